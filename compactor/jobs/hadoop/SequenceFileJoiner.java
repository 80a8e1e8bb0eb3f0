package hivecompactor;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.Text;
import org.apache.spark.util.SerializableConfiguration;

/**
 * The records of SequenceFiles with equal headers, in order, as one SequenceFile of the same classes, compression and
 * metadata. Values stay as they are stored; without any source, an empty file as Hive writes it (bytes and text).
 */
public class SequenceFileJoiner extends Joiner {
  private static final long serialVersionUID = 1L;

  public SequenceFileJoiner(SerializableConfiguration configuration) {
    super(configuration);
  }

  @Override
  protected long join(Path[] sources, JsonNode spec, FileSystem fs, Path written) throws Exception {
    FSDataOutputStream out = create(fs, written);
    SequenceFile.Writer writer = null;
    long rows = 0;
    try {
      for (int i = 0; i < sources.length; ++i) {
        SequenceFile.Reader reader = open(sources[i]);
        try {
          writer = writer == null ? writer(out, reader, written) : writer;
          rows += append(reader, writer, sources[i], written);
        } finally {
          reader.close();
        }
      }
      if (writer == null) {
        writer = SequenceFile.createWriter(configuration(), new SequenceFile.Writer.Option[] {
          SequenceFile.Writer.stream(out),
          SequenceFile.Writer.keyClass(BytesWritable.class),
          SequenceFile.Writer.valueClass(Text.class),
          SequenceFile.Writer.compression(SequenceFile.CompressionType.NONE),
        });
      }
      writer.close();
    } finally {
      out.close();
    }
    return rows;
  }

  private SequenceFile.Reader open(Path source) throws Failure {
    try {
      FileSystem fs = fileSystem(source);
      FSDataInputStream in = fs.open(source);
      return new SequenceFile.Reader(configuration(), new SequenceFile.Reader.Option[] {
        SequenceFile.Reader.stream(in),
        SequenceFile.Reader.length(fs.getFileStatus(source).getLen()),
      });
    } catch (Exception error) {
      throw reading(source, error);
    }
  }

  private SequenceFile.Writer writer(FSDataOutputStream out, SequenceFile.Reader like, Path written) throws Failure {
    try {
      return SequenceFile.createWriter(configuration(), new SequenceFile.Writer.Option[] {
        SequenceFile.Writer.stream(out),
        SequenceFile.Writer.keyClass(like.getKeyClass()),
        SequenceFile.Writer.valueClass(like.getValueClass()),
        SequenceFile.Writer.compression(like.getCompressionType(), like.getCompressionCodec()),
        SequenceFile.Writer.metadata(like.getMetadata()),
      });
    } catch (Exception error) {
      throw writing(written, error);
    }
  }

  private static long append(SequenceFile.Reader reader, SequenceFile.Writer writer, Path source, Path written)
      throws Failure {
    DataOutputBuffer key = new DataOutputBuffer();
    SequenceFile.ValueBytes value = reader.createValueBytes();
    long rows = 0;
    while (true) {
      try {
        key.reset();
        if (reader.nextRaw(key, value) < 0) {
          return rows;
        }
      } catch (Exception error) {
        throw reading(source, error);
      }
      try {
        writer.appendRaw(key.getData(), 0, key.getLength(), value);
      } catch (Exception error) {
        throw writing(written, error);
      }
      if (++rows % 10000 == 0) {
        checkNotCancelled();
      }
    }
  }
}
