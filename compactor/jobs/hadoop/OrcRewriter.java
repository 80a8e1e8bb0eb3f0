package hivecompactor;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.exec.vector.ColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.LongColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.StructColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.orc.CompressionKind;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.StripeInformation;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;
import org.apache.orc.impl.SchemaEvolution;
import org.apache.spark.util.SerializableConfiguration;

/**
 * The surviving rows of some ORC stripes, in order, as one ORC file: what pyarrow cannot read or write.
 *
 * <p>Spec: output, schema (of the rows read), written (of the file written: the same, or one of {@link Carrier}), acid
 * (does it have the ACID columns), compression, block_size, stride,
 * proleptic, blooms (columns by number), stripes: [path, stripe, keep (base64 of the zlib-compressed bits of the surviving rows, first row in the
 * highest bit), synthetic: null or write_id, bucket, first_row_id (of the file)]. Answer: rows.
 *
 * <p>Batches of the reader go to the writer as they are, with a selection, or through a carrier: values are never
 * touched, so every nanosecond and every decimal digit survives. Memory: one batch and one stripe of the output.
 * Columns match by position and the fields of structs by name, as Hive reads them.
 */
public class OrcRewriter extends Task {
  private static final long serialVersionUID = 1L;

  private static final long STRIPE_BYTES = 16L << 20;
  private static final int DEFAULT_STRIDE = 10000;

  public OrcRewriter(SerializableConfiguration configuration) {
    super(configuration);
  }

  @Override
  protected void run(JsonNode spec, ObjectNode answer) throws Exception {
    Path output = new Path(spec.get("output").asText());
    FileSystem fs = fileSystem(output);
    Path written = temporary(output);
    boolean published = false;
    try {
      answer.put("rows", write(spec, fs, written));
      publish(fs, written, output);
      published = true;
    } finally {
      if (!published) {
        discard(fs, written);
      }
    }
  }

  private long write(JsonNode spec, FileSystem fs, Path written) throws Failure {
    TypeDescription schema = TypeDescription.fromString(spec.get("schema").asText());
    TypeDescription target = TypeDescription.fromString(spec.get("written").asText());
    Writer writer = open(spec, fs, written, target);
    Carrier carrier = schema.equals(target) ? null : new Carrier(schema, target);
    long rows = 0;
    try {
      JsonNode stripes = spec.get("stripes");
      for (int i = 0; i < stripes.size(); ++i) {
        rows += append(spec, (JsonNode) stripes.get(i), schema, carrier, writer);
      }
    } catch (Failure failure) {
      close(writer);
      throw failure;
    }
    try {
      writer.close();
    } catch (IOException error) {
      throw writing(written, error);
    }
    return rows;
  }

  private static void close(Writer writer) {
    try {
      writer.close();
    } catch (Exception ignored) {
      // What it wrote is thrown away.
    }
  }

  /** Columns by number as the options want them: names with commas in between, without the ACID columns around them. */
  private static String names(TypeDescription schema, JsonNode columns, boolean acid) {
    StringBuilder names = new StringBuilder();
    for (int i = 0; i < columns.size(); ++i) {
      JsonNode column = (JsonNode) columns.get(i);
      String name = schema.findSubtype(column.asInt()).getFullFieldName();
      // ORC looks below `row` in files with ACID columns (ParserUtils.findSubtype), so none of these has a filter.
      if (!acid || name.startsWith("row.")) {
        names.append(names.length() == 0 ? "" : ",").append(acid ? name.substring("row.".length()) : name);
      }
    }
    return names.toString();
  }

  private Writer open(JsonNode spec, FileSystem fs, Path written, TypeDescription schema) throws Failure {
    int stride = spec.get("stride").asInt();
    OrcFile.WriterOptions options = OrcFile.writerOptions(configuration())
        .fileSystem(fs)
        .setSchema(schema)
        .compress(CompressionKind.valueOf(spec.get("compression").asText()))
        .bufferSize(spec.get("block_size").asInt())
        .enforceBufferSize()
        .buildIndex(true)
        .rowIndexStride(stride > 0 ? stride : DEFAULT_STRIDE)
        .stripeSize(STRIPE_BYTES)
        .blockPadding(false)
        .useUTCTimestamp(true)
        .setProlepticGregorian(spec.get("proleptic").asBoolean());
    try {
      options.bloomFilterColumns(names(schema, spec.get("blooms"), spec.get("acid").asBoolean()));
      return OrcFile.createWriter(written, options);
    } catch (IOException error) {
      throw writing(written, error);
    } catch (IllegalArgumentException error) {
      throw new Failure("UnsupportedData", written + ": " + error.getMessage(), error);
    }
  }

  /** Append the survivors of one stripe; returns how many there are. */
  private long append(JsonNode spec, JsonNode from, TypeDescription schema, Carrier carrier, Writer writer)
      throws Failure {
    Path path = new Path(from.get("path").asText());
    try {
      Reader reader = OrcFile.createReader(path, readerOptions(spec, path));
      try {
        List stripes = reader.getStripes();
        int position = from.get("stripe").asInt();
        if (position >= stripes.size()) {
          throw new Failure("CorruptFile", path + " has " + stripes.size() + " stripes, none of number " + position, null);
        }
        StripeInformation stripe = (StripeInformation) stripes.get(position);
        Identities identities = null;
        if (spec.get("acid").asBoolean() && !from.get("synthetic").isNull()) {
          identities = new Identities(from.get("synthetic"), rowsBefore(stripes, position));
        }
        byte[] keep = inflate(from.get("keep").asText(), (int) ((stripe.getNumberOfRows() + 7) / 8), path);
        TypeDescription wanted = identities == null ? schema : (TypeDescription) schema.getChildren().get(5);
        RecordReader rows = reader.rows(reader.options()
            .range(stripe.getOffset(), stripe.getLength())
            .schema(named(reader.getSchema(), wanted, identities == null && spec.get("acid").asBoolean() ? 2 : 1))
            .tolerateMissingSchema(true));
        try {
          return copy(rows, wanted, stripe.getNumberOfRows(), keep, identities, carrier, writer, path);
        } finally {
          rows.close();
        }
      } finally {
        reader.close();
      }
    } catch (SchemaEvolution.IllegalEvolutionException error) {
      throw new Failure("UnsupportedData", path + ": " + error.getMessage(), error);
    } catch (Exception error) {
      throw reading(path, error);
    }
  }

  private static long copy(RecordReader rows, TypeDescription wanted, long expected, byte[] keep, Identities identities,
      Carrier carrier, Writer writer, Path path) throws IOException, Failure {
    VectorizedRowBatch batch = wanted.createRowBatch();
    int[] selected = new int[batch.getMaxSize()];
    long position = 0;
    long written = 0;
    while (rows.nextBatch(batch)) {
      checkNotCancelled();
      int count = 0;
      for (int i = 0; i < batch.size; ++i) {
        long row = position + i;
        if ((keep[(int) (row >> 3)] >> (7 - (int) (row & 7)) & 1) != 0) {
          selected[count++] = i;
        }
      }
      VectorizedRowBatch out = identities == null ? batch : identities.around(batch, position);
      position += batch.size;
      if (count == 0) {
        continue;
      }
      if (carrier == null) {
        out.selected = selected;
        out.selectedInUse = count < out.size;
        out.size = count;
      } else {
        out = carrier.carry(out, selected, count);
      }
      try {
        writer.addRowBatch(out);
      } catch (IOException error) {
        throw writing("the rows of " + path, error);
      }
      written += count;
    }
    if (position != expected) {
      throw new Failure("CorruptFile", path + ": a stripe has " + position + " rows, its tail says " + expected, null);
    }
    return written;
  }

  private OrcFile.ReaderOptions readerOptions(JsonNode spec, Path path) throws IOException, Failure {
    FileSystem fs = fileSystem(path);
    OrcFile.ReaderOptions options = OrcFile.readerOptions(configuration())
        .filesystem(fs)
        .useUTCTimestamp(true)
        .convertToProlepticGregorian(spec.get("proleptic").asBoolean());
    Path side = new Path(path.getParent(), path.getName() + "_flush_length");
    return fs.exists(side) ? options.maxLength(committed(fs, side)) : options;
  }

  /** The last complete length in the side file of a streaming writer (OrcAcidUtils.getLastFlushLength). */
  private static long committed(FileSystem fs, Path side) throws IOException {
    long lengths = fs.getFileStatus(side).getLen() / 8;
    if (lengths == 0) {
      return 0;
    }
    FSDataInputStream in = fs.open(side);
    try {
      in.seek((lengths - 1) * 8);
      return in.readLong();
    } finally {
      in.close();
    }
  }

  private static long rowsBefore(List stripes, int position) {
    long rows = 0;
    for (int i = 0; i < position; ++i) {
      rows += ((StripeInformation) stripes.get(i)).getNumberOfRows();
    }
    return rows;
  }

  /**
   * The type {@code wanted} under the field names of {@code found} wherever Hive, which forces positional evolution,
   * matches positions: ORC's SchemaEvolution would match names. A field that the file lacks gets a name that no other
   * has. Level: positionalLevels of SchemaEvolution; at 0 fields keep the names by which they match, and structs in
   * arrays, maps and unions are below 0.
   */
  private static TypeDescription named(TypeDescription found, TypeDescription wanted, int level) {
    if (found == null || wanted.getChildren() == null || found.getCategory() != wanted.getCategory()) {
      return wanted.clone();
    }
    List children = wanted.getChildren();
    List others = found.getChildren();
    switch (wanted.getCategory()) {
      case STRUCT:
        TypeDescription struct = TypeDescription.createStruct();
        if (level == 0) {
          for (int i = 0; i < children.size(); ++i) {
            String name = (String) wanted.getFieldNames().get(i);
            int place = found.getFieldNames().indexOf(name);
            TypeDescription other = place < 0 ? null : (TypeDescription) others.get(place);
            struct.addField(name, named(other, (TypeDescription) children.get(i), 0));
          }
          return struct;
        }
        for (int i = 0; i < children.size(); ++i) {
          boolean there = i < others.size();
          String name = there ? (String) found.getFieldNames().get(i) : "\u0000added " + i;
          struct.addField(name, named(
              there ? (TypeDescription) others.get(i) : null, (TypeDescription) children.get(i), level - 1));
        }
        return struct;
      case LIST:
        return TypeDescription.createList(
            named((TypeDescription) others.get(0), (TypeDescription) children.get(0), level - 1));
      case MAP:
        return TypeDescription.createMap(
            named((TypeDescription) others.get(0), (TypeDescription) children.get(0), level - 1),
            named((TypeDescription) others.get(1), (TypeDescription) children.get(1), level - 1));
      case UNION:
        TypeDescription union = TypeDescription.createUnion();
        for (int i = 0; i < children.size(); ++i) {
          TypeDescription other = i < others.size() ? (TypeDescription) others.get(i) : null;
          union.addUnionChild(named(other, (TypeDescription) children.get(i), level - 1));
        }
        return union;
      default:
        return wanted.clone();
    }
  }

  private static byte[] inflate(String text, int size, Path path) throws Failure {
    Inflater inflater = new Inflater();
    try {
      inflater.setInput(Base64.getDecoder().decode(text));
      // One byte more, to see a mask that is too long.
      byte[] bits = new byte[size + 1];
      int filled = 0;
      int count = inflater.inflate(bits);
      while (count > 0) {
        filled += count;
        count = inflater.inflate(bits, filled, bits.length - filled);
      }
      if (filled != size || !inflater.finished()) {
        throw new Failure("VerificationError", path + ": the mask is not one of " + size + " bytes", null);
      }
      return bits;
    } catch (DataFormatException error) {
      throw new Failure("VerificationError", path + ": the mask is damaged", error);
    } finally {
      inflater.end();
    }
  }

  /** The ACID columns of a file that has none: an insert by one write id, rows numbered through the file. */
  private static final class Identities {
    private final long writeId;
    private final long bucket;
    private final long first;

    Identities(JsonNode synthetic, long rowsBefore) {
      writeId = synthetic.get("write_id").asLong();
      bucket = synthetic.get("bucket").asLong();
      first = synthetic.get("first_row_id").asLong() + rowsBefore;
    }

    /** The rows of a batch as events; position: of its first row in the stripe. */
    VectorizedRowBatch around(VectorizedRowBatch rows, long position) {
      int capacity = rows.getMaxSize();
      VectorizedRowBatch events = new VectorizedRowBatch(6, capacity);
      LongColumnVector ids = new LongColumnVector(capacity);
      for (int i = 0; i < rows.size; ++i) {
        ids.vector[i] = first + position + i;
      }
      events.cols[0] = constant(0, capacity);
      events.cols[1] = constant(writeId, capacity);
      events.cols[2] = constant(bucket, capacity);
      events.cols[3] = ids;
      events.cols[4] = constant(writeId, capacity);
      events.cols[5] = new StructColumnVector(capacity, (ColumnVector[]) Arrays.copyOf(rows.cols, rows.cols.length));
      events.size = rows.size;
      return events;
    }

    private static LongColumnVector constant(long value, int capacity) {
      LongColumnVector column = new LongColumnVector(capacity);
      column.fill(value);
      return column;
    }
  }
}
