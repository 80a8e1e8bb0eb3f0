"""The ORDER BY of a rebalance: all rows through a sort of Spark's, which spills what does not fit.

1. Each partition decodes some stripes and hands out their live rows with the sort keys beside them, and behind these
   the row id, so that there is one order only and a task that runs twice writes the same rows.
2. Spark sorts by ranges. Partition p of the result becomes the file `_part_p` of the output directory: hidden, of our
   own unpublished transaction, and removed by the driver once the buckets are cut out of it.

Values pass through Spark unchanged: what it has no type for (nanoseconds, dates before 1582) travels as an integer.
Orders as in Hive: text by its bytes, char without its padding, nulls as `parse_order_by` says. Needs no pandas.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession, types
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from compactor.acid.rebalance import Place, RebalancePlan, SortKey
from compactor.acid.schema import HiveType
from compactor.acid.sources import SourceFile
from compactor.errors import CompactorError
from compactor.jobs.execution import Failure
from compactor.jobs.spark_types import spark_type
from compactor.orc.reader import OrcSource
from compactor.orc.rebalance import live_rows, output_template, unpack, write_sorted
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import FileSystem, open_location

PART = "_part_"
_FAILURE = "_part_failure"
_STRIPES_A_PARTITION = 8
_BATCH_ROWS = 8192
_PARTITION_BYTES = 64 << 20
"""Bytes of source files for each partition of the sorted rows."""
_ROW = "row"
_ROW_ID = ("write_id", "bucket", "row_id")
_SPARK: dict[str, types.DataType] = {
    "date": types.IntegerType(),
    "timestamp": types.LongType(),
    "timestamp with local time zone": types.LongType(),
}
_CARRIED = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp with local time zone": pa.int64()}


def sort_rows(
    session: SparkSession, plan: RebalancePlan, places: Sequence[Place], masks: Mapping[Place, bytes]
) -> list[SourceFile]:
    """Sort the live rows of all stripes into files of the output directory; the files in order.

    places: (file number, stripe) of every stripe with live rows. masks: as in `Scan`. Raises what reading and writing
    ORC files raises, and PySparkException.
    """
    fs, root = open_location(plan.location)
    remove_parts(fs, f"{root}/{plan.directory}")
    chunks = [places[at : at + _STRIPES_A_PARTITION] for at in range(0, len(places), _STRIPES_A_PARTITION)]
    tasks = [[(plan.files[n], (n, stripe), masks.get((n, stripe))) for n, stripe in chunk] for chunk in chunks]
    source, sink = _source(plan, tasks), _sink(plan)
    session.dataSource.register(source)
    session.dataSource.register(sink)
    keys = [_direction(sf.col(_key(at)), key) for at, key in enumerate(plan.order_by)]
    order = [*keys, *map(sf.col, _ROW_ID)]
    rows = session.read.format(source.name()).load()
    # Not `sort`: its two hundred partitions would be as many small files and processes.
    wanted = max(session.sparkContext.defaultParallelism, -(-plan.bytes_in // _PARTITION_BYTES))
    frame = rows.repartitionByRange(wanted, *order).sortWithinPartitions(*order).select(_ROW)
    try:
        frame.write.format(sink.name()).mode("append").save()
    except PySparkException:
        _raise_failure(fs, f"{root}/{plan.directory}/{_FAILURE}")
        raise
    return _parts(fs, root, plan.directory)


def remove_parts(fs: FileSystem, directory: str) -> None:
    """Remove what a sort has written below the directory of an unpublished rebalance."""
    for file in fs.listing(directory).files:
        if file.name.startswith(PART):
            fs.delete_file(f"{directory}/{file.path}")


def _source(plan: RebalancePlan, tasks: Sequence[Sequence[tuple[SourceFile, Place, bytes | None]]]) -> type[DataSource]:
    kinds = [plan.row_type.children[plan.columns.index(key.column)][1] for key in plan.order_by]
    spark_schema = types.StructType(
        [types.StructField(_key(at), spark_type(kind, _SPARK)) for at, kind in enumerate(kinds)]
        + [types.StructField(name, types.LongType()) for name in _ROW_ID]
        + [types.StructField(_ROW, spark_type(plan.row_type, _SPARK))]
    )

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(at) for at in range(len(tasks))] or [InputPartition(-1)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            if partition.value >= 0:
                with _reported(plan):
                    for file, place, mask in tasks[partition.value]:
                        yield from _batches(plan, file, place[1], mask)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"{plan.directory}_rows"

        def schema(self) -> types.StructType:
            return spark_schema

        def reader(self, schema: types.StructType) -> DataSourceReader:
            return Reader()

    return Source


def _sink(plan: RebalancePlan) -> type[DataSource]:
    wanted = arrow_type(plan.row_type)

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            context = TaskContext.get()
            number = context.partitionId() if context is not None else 0
            rows = (pa.RecordBatch.from_arrays([_cast(b.column(0), wanted)], names=[_ROW]) for b in iterator)
            with _reported(plan):
                fs, root = open_location(plan.location)
                template = output_template(fs, root, plan.template_file, plan.row_type, compression=plan.compression)
                write_sorted(fs, f"{root}/{plan.directory}/{PART}{number:06d}", rows, template)
            return WriterCommitMessage()

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"{plan.directory}_sorted"

        def writer(self, schema: types.StructType, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return Sink


def _batches(plan: RebalancePlan, file: SourceFile, stripe: int, mask: bytes | None) -> Iterator[pa.RecordBatch]:
    """The live rows of a stripe as Spark gets them: sort keys, row id, row."""
    fs, root = open_location(plan.location)
    with OrcSource(fs, f"{root}/{file.path}", synthetic=file.synthetic) as source:
        rows = live_rows(source, stripe, plan.row_type, mask)
        keys = source.keys(stripe)
    live = np.ones(len(keys), dtype=np.bool_) if mask is None else unpack(mask, len(keys))
    columns = [_sortable(rows, plan.columns.index(key.column), plan.row_type) for key in plan.order_by]
    columns += [pa.array(ids[live]) for ids in (keys.write_id, keys.bucket, keys.row_id)]
    columns.append(_cast(rows, _carrier(plan.row_type)))
    labels = [*(_key(at) for at in range(len(plan.order_by))), *_ROW_ID, _ROW]
    for start in range(0, len(rows), _BATCH_ROWS):
        yield pa.RecordBatch.from_arrays([c.slice(start, _BATCH_ROWS) for c in columns], names=labels)


def _sortable(rows: pa.StructArray, column: int, row_type: HiveType) -> pa.Array:
    kind, values = row_type.children[column][1], rows.field(column)
    # Hive compares a char without its padding (HiveBaseChar.compareTo).
    return pc.utf8_rtrim(values, characters=" ") if kind.kind == "char" else _cast(values, _carrier(kind))


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type.equals(wanted) else values.cast(wanted)


def _carrier(kind: HiveType) -> pa.DataType:
    """The Arrow type that a value travels in, with the field names that Spark expects."""
    children = [_carrier(child) for _, child in kind.children]
    match kind.kind:
        case "array":
            return pa.list_(pa.field("element", children[0]))
        case "map":
            return pa.map_(children[0], children[1])
        case "struct":
            return pa.struct([pa.field(n, t) for (n, _), t in zip(kind.children, children, strict=True)])
        case _:
            return _CARRIED.get(kind.kind) or arrow_type(kind)


def _direction(column: Column, key: SortKey) -> Column:
    match key.descending, key.nulls_first:
        case True, True:
            return column.desc_nulls_first()
        case True, False:
            return column.desc_nulls_last()
        case False, True:
            return column.asc_nulls_first()
        case _:
            return column.asc_nulls_last()


def _key(position: int) -> str:
    return f"key_{position}"


def _parts(fs: FileSystem, root: str, directory: str) -> list[SourceFile]:
    found: list[SourceFile] = []
    for file in sorted(f for f in fs.listing(f"{root}/{directory}").files if f.name.startswith(PART)):
        with OrcSource(fs, f"{root}/{directory}/{file.path}") as source:
            found.append(SourceFile(path=f"{directory}/{file.path}", size=file.size, rows=source.tail.rows))
    return found


@contextlib.contextmanager
def _reported(plan: RebalancePlan) -> Iterator[None]:
    """Leave a typed error of a task where the driver finds it: Spark hands out a stack trace only."""
    try:
        yield
    except CompactorError as error:
        told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        fs, root = open_location(plan.location)
        with fs.write_atomically(f"{root}/{plan.directory}/{_FAILURE}") as stream:
            stream.write(json.dumps(told).encode())
        raise


def _raise_failure(fs: FileSystem, path: str) -> None:
    """Raise the error that a task has left, if one did."""
    if fs.exists(path):
        with fs.open(path) as stream:
            told = Failure(**json.loads(bytes(stream.read())))
        raise told.error()
