package tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.exec.vector.StructColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.hadoop.hive.ql.io.sarg.PredicateLeaf;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgument;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgumentFactory;
import org.apache.hadoop.hive.serde2.io.HiveDecimalWritable;
import org.apache.orc.CompressionKind;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.StripeInformation;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

/** Searching ACID files as Hive does, and writing them as Hive does, with bloom filters. */
public class OrcSearch {
  private OrcSearch() {}

  private static FileSystem local() throws Exception {
    return ((LocalFileSystem) FileSystem.getLocal(new Configuration())).getRawFileSystem();
  }

  private static Reader open(String path) throws Exception {
    OrcFile.ReaderOptions options = OrcFile.readerOptions(new Configuration()).filesystem(local());
    return OrcFile.createReader(new Path(path), options.useUTCTimestamp(true));
  }

  /** The same rows in the same stripes with the same user metadata; bloom filters for `columns`. */
  public static void rewrite(String from, String to, String compression, int block, int stride, String columns)
      throws Exception {
    Reader source = open(from);
    TypeDescription schema = source.getSchema();
    OrcFile.WriterOptions options = OrcFile.writerOptions(new Configuration()).fileSystem(local()).setSchema(schema)
        .compress(CompressionKind.valueOf(compression)).bufferSize(block).enforceBufferSize().rowIndexStride(stride)
        .bloomFilterColumns(columns).bloomFilterFpp(0.01).stripeSize(1L << 30).useUTCTimestamp(true)
        .setProlepticGregorian(true).overwrite(true);
    Writer writer = OrcFile.createWriter(new Path(to), options);
    List stripes = source.getStripes();
    for (int s = 0; s < stripes.size(); ++s) {
      StripeInformation stripe = (StripeInformation) stripes.get(s);
      RecordReader reader = source.rows(source.options().range(stripe.getOffset(), stripe.getLength()));
      VectorizedRowBatch batch = schema.createRowBatch(1000);
      while (reader.nextBatch(batch)) {
        writer.addRowBatch(batch);
      }
      reader.close();
      writer.writeIntermediateFooter();
    }
    List keys = source.getMetadataKeys();
    for (int k = 0; k < keys.size(); ++k) {
      writer.addUserMetadata((String) keys.get(k), source.getMetadataValue((String) keys.get(k)));
    }
    writer.close();
    source.close();
  }

  private static Object literal(PredicateLeaf.Type kind, String text) {
    if (kind == PredicateLeaf.Type.LONG) {
      return Long.valueOf(text);
    } else if (kind == PredicateLeaf.Type.DECIMAL) {
      return new HiveDecimalWritable(text);
    } else if (kind == PredicateLeaf.Type.DATE) {
      return java.sql.Date.valueOf(text);
    } else if (kind == PredicateLeaf.Type.TIMESTAMP) {
      return java.sql.Timestamp.valueOf(text);
    }
    return text;
  }

  /** Seek to each row of a list, which is text, and read on: number:value of the first field, for each row. */
  public static String seeks(String path, String list) throws Exception {
    Reader file = open(path);
    // orc-core itself fails to seek in a stripe with bloom filters unless there is a predicate; this one is always true.
    SearchArgument any = SearchArgumentFactory.newBuilder().startNot().isNull("id", PredicateLeaf.Type.LONG).end().build();
    Reader.Options options = file.options().searchArgument(any, new String[] {"id"}).allowSARGToFilter(false);
    RecordReader reader = file.rows(options);
    VectorizedRowBatch batch = file.getSchema().createRowBatch(8);
    List found = new ArrayList();
    String[] wanted = list.split(",");
    for (int w = 0; w < wanted.length; ++w) {
      reader.seekToRow(Long.parseLong(wanted[w]));
      reader.nextBatch(batch);
      for (int i = 0; i < batch.size; ++i) {
        StringBuilder text = new StringBuilder().append(Long.parseLong(wanted[w]) + i).append(":");
        ((StructColumnVector) batch.cols[5]).fields[0].stringifyValue(text, i);
        found.add(text.toString());
      }
    }
    reader.close();
    file.close();
    return String.join(",", found);
  }

  /** What a reader with a predicate on a field of `row` reads: number:value of the first field, for each row. */
  public static String search(String path, String operator, String column, String type, String values)
      throws Exception {
    Reader file = open(path);
    PredicateLeaf.Type kind = PredicateLeaf.Type.valueOf(type);
    String[] texts = values.split("\n");
    Object[] literals = new Object[texts.length];
    for (int i = 0; i < texts.length && !values.isEmpty(); ++i) {
      literals[i] = literal(kind, texts[i]);
    }
    SearchArgument.Builder builder = SearchArgumentFactory.newBuilder().startAnd();
    if (operator.equals("equals")) {
      builder.equals(column, kind, literals[0]);
    } else if (operator.equals("between")) {
      builder.between(column, kind, literals[0], literals[1]);
    } else if (operator.equals("in")) {
      builder.in(column, kind, literals);
    } else {
      builder.isNull(column, kind);
    }
    Reader.Options options = file.options().searchArgument(builder.end().build(), new String[] {column})
        .allowSARGToFilter(false);
    RecordReader reader = file.rows(options);
    List found = new ArrayList();
    VectorizedRowBatch batch = file.getSchema().createRowBatch(1000);
    long first = reader.getRowNumber();
    while (reader.nextBatch(batch)) {
      for (int i = 0; i < batch.size; ++i) {
        StringBuilder text = new StringBuilder().append(first + i).append(":");
        ((StructColumnVector) batch.cols[5]).fields[0].stringifyValue(text, i);
        found.add(text.toString());
      }
      first = reader.getRowNumber();
    }
    reader.close();
    file.close();
    return String.join(",", found);
  }
}
