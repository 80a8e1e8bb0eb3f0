package hivecompactor;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.util.SerializableConfiguration;

/** All records of some files, in order, as one. Spec: output, sources, columns. Answer: rows, size (bytes). */
public abstract class Joiner extends Task {
  private static final long serialVersionUID = 1L;

  protected Joiner(SerializableConfiguration configuration) {
    super(configuration);
  }

  /** Write all records of {@code sources} to {@code written}; returns how many there are. */
  protected abstract long join(Path[] sources, JsonNode spec, FileSystem fs, Path written) throws Exception;

  @Override
  protected void run(JsonNode spec, ObjectNode answer) throws Exception {
    Path output = new Path(spec.get("output").asText());
    JsonNode names = spec.get("sources");
    Path[] sources = new Path[names.size()];
    for (int i = 0; i < sources.length; ++i) {
      sources[i] = new Path(((JsonNode) names.get(i)).asText());
    }
    FileSystem fs = fileSystem(output);
    Path written = temporary(output);
    boolean published = false;
    try {
      answer.put("rows", join(sources, spec, fs, written));
      answer.put("size", fs.getFileStatus(written).getLen());
      publish(fs, written, output);
      published = true;
    } catch (Exception error) {
      throw writing(output, error);
    } finally {
      if (!published) {
        discard(fs, written);
      }
    }
  }
}
