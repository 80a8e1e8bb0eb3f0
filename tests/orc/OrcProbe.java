package tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hive.ql.exec.vector.ColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.hadoop.hive.ql.io.sarg.PredicateLeaf;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgument;
import org.apache.hadoop.hive.ql.io.sarg.SearchArgumentFactory;
import org.apache.hadoop.hive.serde2.io.HiveDecimalWritable;
import org.apache.orc.CompressionKind;
import org.apache.orc.OrcFile;
import org.apache.orc.Reader;
import org.apache.orc.RecordReader;
import org.apache.orc.TypeDescription;
import org.apache.orc.Writer;

/** What orc-core finds in a file by scanning, by seeking and by searching, and how it writes the same rows itself. */
public class OrcProbe {
  private OrcProbe() {}

  private static FileSystem local() throws Exception {
    return ((LocalFileSystem) FileSystem.getLocal(new Configuration())).getRawFileSystem();
  }

  private static Reader open(String path) throws Exception {
    OrcFile.ReaderOptions options = OrcFile.readerOptions(new Configuration()).filesystem(local());
    return OrcFile.createReader(new Path(path), options.useUTCTimestamp(true));
  }

  private static String row(VectorizedRowBatch batch, int at) {
    StringBuilder text = new StringBuilder();
    for (int c = 0; c < batch.cols.length; ++c) {
      text.append(c == 0 ? "" : "|");
      ColumnVector column = batch.cols[c];
      column.stringifyValue(text, at);
    }
    return text.toString();
  }

  private static List rows(RecordReader reader, VectorizedRowBatch batch, List numbers) throws Exception {
    List found = new ArrayList();
    long first = reader.getRowNumber();
    while (reader.nextBatch(batch)) {
      for (int i = 0; i < batch.size; ++i) {
        found.add(row(batch, i));
        numbers.add(Long.valueOf(first + i));
      }
      first = reader.getRowNumber();
    }
    return found;
  }

  private static List scan(Reader file) throws Exception {
    RecordReader reader = file.rows(file.options());
    try {
      return rows(reader, file.getSchema().createRowBatch(1024), new ArrayList());
    } finally {
      reader.close();
    }
  }

  /** Every row as text, a line each. */
  public static String dump(String path) throws Exception {
    return String.join("\n", scan(open(path)));
  }

  /** Seek to every row of the list, which is text, and read on a little; returns the first that differs from a scan, or "". */
  public static String seeks(String path, String list) throws Exception {
    Reader file = open(path);
    List all = scan(file);
    VectorizedRowBatch batch = file.getSchema().createRowBatch(8);
    RecordReader reader = file.rows(file.options());
    try {
      String[] wanted = list.split(",");
      for (int w = 0; w < wanted.length; ++w) {
        int target = Integer.parseInt(wanted[w]);
        reader.seekToRow(target);
        if (!reader.nextBatch(batch)) {
          return "nothing at " + target;
        }
        for (int i = 0; i < batch.size; ++i) {
          if (!row(batch, i).equals(all.get(target + i))) {
            return "row " + (target + i) + " after a seek to " + target + ": " + row(batch, i) + " not " + all.get(target + i);
          }
        }
      }
      return "";
    } finally {
      reader.close();
    }
  }

  private static Object literal(String kind, String text) {
    if (kind.equals("LONG")) {
      return Long.valueOf(text);
    } else if (kind.equals("FLOAT")) {
      return Double.valueOf(text);
    } else if (kind.equals("DECIMAL")) {
      return new HiveDecimalWritable(text);
    } else if (kind.equals("DATE")) {
      return java.sql.Date.valueOf(text);
    } else if (kind.equals("TIMESTAMP")) {
      return java.sql.Timestamp.valueOf(text);
    } else if (kind.equals("BOOLEAN")) {
      return Boolean.valueOf(text);
    }
    return text;
  }

  /** Numbers of the rows that a reader with the predicate low <= column <= high reads; an error when one is not as scanned. */
  public static String search(String path, String column, String kind, String low, String high) throws Exception {
    Reader file = open(path);
    List all = scan(file);
    SearchArgument predicate = SearchArgumentFactory.newBuilder().startAnd()
        .between(column, PredicateLeaf.Type.valueOf(kind), literal(kind, low), literal(kind, high)).end().build();
    Reader.Options options = file.options().searchArgument(predicate, new String[] {column}).allowSARGToFilter(false);
    RecordReader reader = file.rows(options);
    try {
      List numbers = new ArrayList();
      List found = rows(reader, file.getSchema().createRowBatch(1024), numbers);
      StringBuilder text = new StringBuilder();
      for (int i = 0; i < found.size(); ++i) {
        int number = ((Long) numbers.get(i)).intValue();
        if (!found.get(i).equals(all.get(number))) {
          return "row " + number + ": " + found.get(i) + " not " + all.get(number);
        }
        text.append(i == 0 ? "" : ",").append(number);
      }
      return text.toString();
    } finally {
      reader.close();
    }
  }

  /** Write the rows of files, whose paths stand in lines, to another one: a stripe for each. */
  public static void rewrite(String from, String to, String compression) throws Exception {
    String[] sources = from.split("\n");
    TypeDescription schema = open(sources[0]).getSchema();
    OrcFile.WriterOptions options = OrcFile.writerOptions(new Configuration()).fileSystem(local()).setSchema(schema)
        .compress(CompressionKind.valueOf(compression)).stripeSize(1L << 30).useUTCTimestamp(true)
        .setProlepticGregorian(true).overwrite(true);
    Writer writer = OrcFile.createWriter(new Path(to), options);
    for (int s = 0; s < sources.length; ++s) {
      Reader file = open(sources[s]);
      RecordReader reader = file.rows(file.options());
      VectorizedRowBatch batch = schema.createRowBatch(1024);
      while (reader.nextBatch(batch)) {
        writer.addRowBatch(batch);
      }
      reader.close();
      writer.writeIntermediateFooter();
    }
    writer.close();
  }
}
