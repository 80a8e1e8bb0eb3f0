package tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.common.type.HiveDecimal;
import org.apache.hadoop.hive.ql.exec.vector.BytesColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.ColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.DecimalColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.DoubleColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.ListColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.LongColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.MapColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.StructColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.TimestampColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.UnionColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.orc.CompressionKind;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

/**
 * ORC files as JSON rows, by orc-core alone. A timestamp is [seconds, nanos], a date days, a union [tag, value], a
 * map [[key, value], …], a decimal text; all in UTC and the proleptic calendar.
 */
public class OrcFiles {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private OrcFiles() {}

  private static FileSystem local() throws Exception {
    return ((LocalFileSystem) FileSystem.getLocal(new Configuration())).getRawFileSystem();
  }

  public static void write(String path, String type, String rows, String compression, int block, int stride,
      boolean proleptic, int stripeRows) throws Exception {
    TypeDescription schema = TypeDescription.fromString(type);
    OrcFile.WriterOptions options = OrcFile.writerOptions(new Configuration())
        .fileSystem(local())
        .setSchema(schema)
        .compress(CompressionKind.valueOf(compression))
        .bufferSize(block)
        .enforceBufferSize()
        .rowIndexStride(stride)
        .useUTCTimestamp(true)
        .setProlepticGregorian(proleptic);
    Writer writer = OrcFile.createWriter(new Path(path), options);
    JsonNode all = MAPPER.readTree(rows);
    VectorizedRowBatch batch = schema.createRowBatch(stripeRows);
    for (int i = 0; i < all.size(); ++i) {
      JsonNode row = (JsonNode) all.get(i);
      for (int c = 0; c < batch.cols.length; ++c) {
        set(batch.cols[c], batch.size, (JsonNode) row.get(c), (TypeDescription) schema.getChildren().get(c));
      }
      batch.size++;
      if (batch.size == stripeRows) {
        writer.addRowBatch(batch);
        writer.writeIntermediateFooter();
        batch.reset();
      }
    }
    if (batch.size > 0) {
      writer.addRowBatch(batch);
    }
    writer.close();
  }

  public static String read(String path) throws Exception {
    OrcFile.ReaderOptions options = OrcFile.readerOptions(new Configuration())
        .filesystem(local())
        .useUTCTimestamp(true)
        .convertToProlepticGregorian(true);
    Reader reader = OrcFile.createReader(new Path(path), options);
    TypeDescription schema = reader.getSchema();
    VectorizedRowBatch batch = schema.createRowBatch();
    RecordReader rows = reader.rows();
    ArrayNode all = MAPPER.createArrayNode();
    while (rows.nextBatch(batch)) {
      for (int i = 0; i < batch.size; ++i) {
        ArrayNode row = all.addArray();
        for (int c = 0; c < batch.cols.length; ++c) {
          get(batch.cols[c], i, (TypeDescription) schema.getChildren().get(c), row);
        }
      }
    }
    rows.close();
    reader.close();
    return MAPPER.writeValueAsString(all);
  }

  public static String describe(String path) throws Exception {
    Reader reader = OrcFile.createReader(new Path(path), OrcFile.readerOptions(new Configuration()).filesystem(local()));
    String text = reader.getCompressionKind() + " " + reader.getCompressionSize() + " " + reader.getRowIndexStride()
        + " " + reader.getStripes().size() + " " + reader.writerUsedProlepticGregorian() + " " + reader.getSchema();
    reader.close();
    return text;
  }

  private static void set(ColumnVector vector, int row, JsonNode value, TypeDescription type) {
    if (value.isNull()) {
      vector.noNulls = false;
      vector.isNull[row] = true;
      return;
    }
    vector.isNull[row] = false;
    List children = type.getChildren();
    if (vector instanceof TimestampColumnVector) {
      TimestampColumnVector timestamps = (TimestampColumnVector) vector;
      timestamps.setIsUTC(true);
      timestamps.changeCalendar(true, false);
      int nanos = ((JsonNode) value.get(1)).asInt();
      timestamps.time[row] = ((JsonNode) value.get(0)).asLong() * 1000 + nanos / 1000000;
      timestamps.nanos[row] = nanos;
    } else if (vector instanceof LongColumnVector) {
      if (vector instanceof org.apache.hadoop.hive.ql.exec.vector.DateColumnVector) {
        ((org.apache.hadoop.hive.ql.exec.vector.DateColumnVector) vector).changeCalendar(true, false);
      }
      ((LongColumnVector) vector).vector[row] = value.isBoolean() ? (value.asBoolean() ? 1L : 0L) : value.asLong();
    } else if (vector instanceof DoubleColumnVector) {
      ((DoubleColumnVector) vector).vector[row] = value.asDouble();
    } else if (vector instanceof BytesColumnVector) {
      ((BytesColumnVector) vector).setVal(row, value.asText().getBytes(StandardCharsets.UTF_8));
    } else if (vector instanceof DecimalColumnVector) {
      ((DecimalColumnVector) vector).set(row, HiveDecimal.create(value.asText()));
    } else if (vector instanceof StructColumnVector) {
      for (int i = 0; i < children.size(); ++i) {
        set(((StructColumnVector) vector).fields[i], row, (JsonNode) value.get(i), (TypeDescription) children.get(i));
      }
    } else if (vector instanceof UnionColumnVector) {
      UnionColumnVector union = (UnionColumnVector) vector;
      int tag = ((JsonNode) value.get(0)).asInt();
      union.tags[row] = tag;
      set(union.fields[tag], row, (JsonNode) value.get(1), (TypeDescription) children.get(tag));
    } else if (vector instanceof ListColumnVector) {
      ListColumnVector list = (ListColumnVector) vector;
      list.offsets[row] = list.childCount;
      list.lengths[row] = value.size();
      list.childCount += value.size();
      list.child.ensureSize(list.childCount, true);
      for (int i = 0; i < value.size(); ++i) {
        set(list.child, (int) list.offsets[row] + i, (JsonNode) value.get(i), (TypeDescription) children.get(0));
      }
    } else {
      MapColumnVector map = (MapColumnVector) vector;
      map.offsets[row] = map.childCount;
      map.lengths[row] = value.size();
      map.childCount += value.size();
      map.keys.ensureSize(map.childCount, true);
      map.values.ensureSize(map.childCount, true);
      for (int i = 0; i < value.size(); ++i) {
        JsonNode entry = (JsonNode) value.get(i);
        set(map.keys, (int) map.offsets[row] + i, (JsonNode) entry.get(0), (TypeDescription) children.get(0));
        set(map.values, (int) map.offsets[row] + i, (JsonNode) entry.get(1), (TypeDescription) children.get(1));
      }
    }
  }

  private static void get(ColumnVector vector, int at, TypeDescription type, ArrayNode to) {
    int row = vector.isRepeating ? 0 : at;
    if (!vector.noNulls && vector.isNull[row]) {
      to.addNull();
      return;
    }
    List children = type.getChildren();
    if (vector instanceof TimestampColumnVector) {
      TimestampColumnVector timestamps = (TimestampColumnVector) vector;
      to.addArray().add(Math.floorDiv(timestamps.time[row], 1000L)).add(timestamps.nanos[row]);
    } else if (vector instanceof LongColumnVector) {
      to.add(((LongColumnVector) vector).vector[row]);
    } else if (vector instanceof DoubleColumnVector) {
      to.add(((DoubleColumnVector) vector).vector[row]);
    } else if (vector instanceof BytesColumnVector) {
      BytesColumnVector bytes = (BytesColumnVector) vector;
      to.add(new String(bytes.vector[row], bytes.start[row], bytes.length[row], StandardCharsets.UTF_8));
    } else if (vector instanceof DecimalColumnVector) {
      to.add(((DecimalColumnVector) vector).vector[row].toString());
    } else if (vector instanceof StructColumnVector) {
      ArrayNode struct = to.addArray();
      for (int i = 0; i < children.size(); ++i) {
        get(((StructColumnVector) vector).fields[i], row, (TypeDescription) children.get(i), struct);
      }
    } else if (vector instanceof UnionColumnVector) {
      UnionColumnVector union = (UnionColumnVector) vector;
      ArrayNode pair = to.addArray().add(union.tags[row]);
      get(union.fields[union.tags[row]], row, (TypeDescription) children.get(union.tags[row]), pair);
    } else if (vector instanceof ListColumnVector) {
      ListColumnVector list = (ListColumnVector) vector;
      ArrayNode items = to.addArray();
      for (long i = list.offsets[row]; i < list.offsets[row] + list.lengths[row]; ++i) {
        get(list.child, (int) i, (TypeDescription) children.get(0), items);
      }
    } else {
      MapColumnVector map = (MapColumnVector) vector;
      ArrayNode entries = to.addArray();
      for (long i = map.offsets[row]; i < map.offsets[row] + map.lengths[row]; ++i) {
        ArrayNode entry = entries.addArray();
        get(map.keys, (int) i, (TypeDescription) children.get(0), entry);
        get(map.values, (int) i, (TypeDescription) children.get(1), entry);
      }
    }
  }
}
