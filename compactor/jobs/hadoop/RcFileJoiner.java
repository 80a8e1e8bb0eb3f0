package hivecompactor;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.io.RCFile;
import org.apache.hadoop.io.Text;
import org.apache.spark.util.SerializableConfiguration;

/**
 * The blocks of RCFiles with equal headers, in order, as one RCFile: values stay compressed, as in Hive's
 * RCFileMergeOperator. Without any source, an empty file of the table's number of columns.
 */
public class RcFileJoiner extends Joiner {
  private static final long serialVersionUID = 1L;

  private static final Text COLUMNS = new Text("hive.io.rcfile.column.number");

  public RcFileJoiner(SerializableConfiguration configuration) {
    super(configuration);
  }

  @Override
  protected long join(Path[] sources, JsonNode spec, FileSystem fs, Path written) throws Exception {
    RCFile.Writer writer = null;
    long rows = 0;
    try {
      for (int i = 0; i < sources.length; ++i) {
        RCFile.Reader reader = open(sources[i]);
        try {
          writer = writer == null ? writer(fs, reader, written) : writer;
          rows += append(reader, writer, sources[i], written);
        } finally {
          reader.close();
        }
      }
      if (writer == null) {
        writer = new RCFile.Writer(fs, columns(spec.get("columns").asInt()), written);
      }
    } finally {
      if (writer != null) {
        writer.close();
      }
    }
    return rows;
  }

  private RCFile.Reader open(Path source) throws Failure {
    try {
      return new RCFile.Reader(fileSystem(source), source, configuration());
    } catch (Exception error) {
      throw reading(source, error);
    }
  }

  private RCFile.Writer writer(FileSystem fs, RCFile.Reader like, Path written) throws Failure {
    try {
      Configuration configuration = columns(Integer.parseInt(like.getMetadata().get(COLUMNS).toString()));
      return new RCFile.Writer(fs, configuration, written, null, like.getMetadata(), like.getCompressionCodec());
    } catch (Exception error) {
      throw writing(written, error);
    }
  }

  private Configuration columns(int number) {
    Configuration configuration = new Configuration(configuration());
    configuration.setInt(RCFile.COLUMN_NUMBER_CONF_STR, number);
    return configuration;
  }

  private static long append(RCFile.Reader reader, RCFile.Writer writer, Path source, Path written) throws Failure {
    long rows = 0;
    while (true) {
      checkNotCancelled();
      try {
        if (!reader.nextBlock()) {
          return rows;
        }
        rows += reader.getCurrentKeyBufferObj().getNumberRows();
      } catch (Exception error) {
        throw reading(source, error);
      }
      try {
        writer.flushBlock(reader.getCurrentKeyBufferObj(), reader.getCurrentValueBufferObj(),
            reader.getCurrentBlockLength(), reader.getCurrentKeyLength(), reader.getCurrentCompressedKeyLen());
      } catch (Exception error) {
        throw writing(written, error);
      }
    }
  }
}
