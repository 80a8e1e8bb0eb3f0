package hivecompactor;

import org.apache.hadoop.hive.ql.exec.vector.ColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.DateColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.ListColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.LongColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.MapColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.StructColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.TimestampColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.UnionColumnVector;
import org.apache.hadoop.hive.ql.exec.vector.VectorizedRowBatch;
import org.apache.orc.TypeDescription;

/**
 * Rows between their own type and one that Arrow can hold, either way: a timestamp travels as
 * struct&lt;seconds,nanos&gt;, a union as the struct of its tag and its fields. Everything else is copied as it is.
 */
final class Carrier {
  private final TypeDescription from;
  private final TypeDescription to;
  private final VectorizedRowBatch out;

  Carrier(TypeDescription from, TypeDescription to) {
    this.from = from;
    this.to = to;
    this.out = to.createRowBatch();
  }

  /** The selected rows of a batch, and no others, under the other type. */
  VectorizedRowBatch carry(VectorizedRowBatch batch, int[] selected, int count) {
    out.reset();
    out.ensureSize(count);
    for (int column = 0; column < batch.cols.length; ++column) {
      TypeDescription source = (TypeDescription) from.getChildren().get(column);
      TypeDescription target = (TypeDescription) to.getChildren().get(column);
      for (int row = 0; row < count; ++row) {
        copy(batch.cols[column], selected[row], source, out.cols[column], row, target);
      }
    }
    out.size = count;
    return out;
  }

  private static void copy(
      ColumnVector in, int given, TypeDescription source, ColumnVector out, int at, TypeDescription target) {
    int row = in.isRepeating ? 0 : given;
    if (!in.noNulls && in.isNull[row]) {
      out.noNulls = false;
      out.isNull[at] = true;
      return;
    }
    out.isNull[at] = false;
    switch (source.getCategory()) {
      case TIMESTAMP:
      case TIMESTAMP_INSTANT:
        pack((TimestampColumnVector) in, row, (StructColumnVector) out, at);
        return;
      case UNION:
        open((UnionColumnVector) in, row, source, (StructColumnVector) out, at, target);
        return;
      case STRUCT:
        if (target.getCategory() == TypeDescription.Category.UNION) {
          close((StructColumnVector) in, row, source, (UnionColumnVector) out, at, target);
        } else if (target.getCategory() != TypeDescription.Category.STRUCT) {
          unpack((StructColumnVector) in, row, (TimestampColumnVector) out, at);
        } else {
          for (int i = 0; i < source.getChildren().size(); ++i) {
            copy(((StructColumnVector) in).fields[i], row, child(source, i),
                ((StructColumnVector) out).fields[i], at, child(target, i));
          }
        }
        return;
      case LIST:
        list((ListColumnVector) in, row, source, (ListColumnVector) out, at, target);
        return;
      case MAP:
        map((MapColumnVector) in, row, source, (MapColumnVector) out, at, target);
        return;
      case DATE:
        ((DateColumnVector) out).changeCalendar(((DateColumnVector) in).isUsingProlepticCalendar(), false);
        out.setElement(at, row, in);
        return;
      default:
        out.setElement(at, row, in);
    }
  }

  private static void pack(TimestampColumnVector in, int row, StructColumnVector out, int at) {
    set(out.fields[0], at, Math.floorDiv(in.time[row], 1000L));
    set(out.fields[1], at, in.nanos[row]);
  }

  private static void unpack(StructColumnVector in, int row, TimestampColumnVector out, int at) {
    long nanos = get(in.fields[1], row);
    out.setIsUTC(true);
    out.changeCalendar(true, false);
    out.time[at] = get(in.fields[0], row) * 1000L + nanos / 1000000L;
    out.nanos[at] = (int) nanos;
  }

  private static void open(
      UnionColumnVector in, int row, TypeDescription source, StructColumnVector out, int at, TypeDescription target) {
    int tag = in.tags[row];
    set(out.fields[0], at, tag);
    for (int i = 0; i < in.fields.length; ++i) {
      if (i == tag) {
        copy(in.fields[i], row, child(source, i), out.fields[i + 1], at, child(target, i + 1));
      } else {
        out.fields[i + 1].noNulls = false;
        out.fields[i + 1].isNull[at] = true;
      }
    }
  }

  private static void close(
      StructColumnVector in, int row, TypeDescription source, UnionColumnVector out, int at, TypeDescription target) {
    int tag = (int) get(in.fields[0], row);
    out.tags[at] = tag;
    copy(in.fields[tag + 1], row, child(source, tag + 1), out.fields[tag], at, child(target, tag));
  }

  private static void list(
      ListColumnVector in, int row, TypeDescription source, ListColumnVector out, int at, TypeDescription target) {
    int length = (int) in.lengths[row];
    int first = out.childCount;
    out.offsets[at] = first;
    out.lengths[at] = length;
    out.childCount += length;
    out.child.ensureSize(out.childCount, true);
    for (int i = 0; i < length; ++i) {
      copy(in.child, (int) in.offsets[row] + i, child(source, 0), out.child, first + i, child(target, 0));
    }
  }

  private static void map(
      MapColumnVector in, int row, TypeDescription source, MapColumnVector out, int at, TypeDescription target) {
    int length = (int) in.lengths[row];
    int first = out.childCount;
    out.offsets[at] = first;
    out.lengths[at] = length;
    out.childCount += length;
    out.keys.ensureSize(out.childCount, true);
    out.values.ensureSize(out.childCount, true);
    for (int i = 0; i < length; ++i) {
      int entry = (int) in.offsets[row] + i;
      copy(in.keys, entry, child(source, 0), out.keys, first + i, child(target, 0));
      copy(in.values, entry, child(source, 1), out.values, first + i, child(target, 1));
    }
  }

  private static TypeDescription child(TypeDescription type, int number) {
    return (TypeDescription) type.getChildren().get(number);
  }

  private static long get(ColumnVector column, int row) {
    return ((LongColumnVector) column).vector[column.isRepeating ? 0 : row];
  }

  private static void set(ColumnVector column, int row, long value) {
    ((LongColumnVector) column).vector[row] = value;
    column.isNull[row] = false;
  }
}
