"""ACID tables as Spark DataFrames: the driver plans and commits, executors read and write files.

Reading: one Spark task a bucket of a place, each running the same reader as everybody else. Writing: each task writes
its rows as one bucket file a partition, or, in a bucketed table, as the buckets that a shuffle brought to it. Files
are a function of the task's rows and appear as a whole, so a task that runs twice does no harm.

Spark has no nanoseconds: timestamps are cut to microseconds when read. Neither direction needs pandas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.functions import arrow_udf

from compactor.acid.layout import MAX_BUCKETS, DeltaKind, delta_name
from compactor.errors import JobError, UsageError
from compactor.jobs.spark_types import spark_type
from compactor.metastore.catalog import Table, TableName
from compactor.metastore.components import Operation
from compactor.storage.filesystem import FilesystemOf
from compactor.table.buckets import row_buckets
from compactor.table.conform import by_partition, conformed, static_values, writable_columns
from compactor.table.files import prepare_directory, write_buckets
from compactor.table.locking import Statement
from compactor.table.reader import ROW_ID_TYPES, TableSnapshot, task_batches
from compactor.table.scan import Place, ScanTask
from compactor.table.transaction import TableTransaction, static_partition, write_transaction
from compactor.table.values import partition_text, table_type
from compactor.table.writer import TableWriter

_READER, _WRITER = "hive_acid_snapshot", "hive_acid_delta"
_BUCKET = "compactor_bucket"
_reading, _writing = threading.Lock(), threading.Lock()
"""A source's name belongs to the session; between registering and using it nobody may replace it. Spark looks a reader
up at once, a writer only when its job starts, so inserts of one process take turns."""


def read_dataframe(
    spark: SparkSession,
    snapshot: TableSnapshot,
    table: TableName,
    *,
    partitions: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    with_row_ids: bool = False,
) -> DataFrame:
    """A table of an open snapshot as a DataFrame; arguments as in `TableSnapshot.batches`.

    Actions on it must run while the snapshot is open.
    """
    tasks = snapshot.tasks(table, partitions=partitions)
    schema = snapshot.schema(table, columns=columns, with_row_ids=with_row_ids)
    kinds = {**ROW_ID_TYPES, **snapshot.column_types(table)}
    spark_schema = types.StructType([types.StructField(name, spark_type(kinds[name])) for name in schema.names])
    source = _snapshot_source(tasks, schema, spark_schema, snapshot.filesystem_of, with_row_ids)
    with _reading:
        spark.dataSource.register(source)
        return spark.read.format(_READER).load()


def insert_dataframe(
    spark: SparkSession, frame: DataFrame, writer: TableWriter, *, partition: Mapping[str, object] | None = None
) -> int:
    """INSERT the rows of a DataFrame in one transaction; its write id. partition: as in `Statements.insert`.

    The frame is evaluated once more to find its partitions when these are dynamic. Raises what
    `TableWriter.insert` raises, and JobError.
    """
    with write_transaction(writer.writer, writer.table) as txn:
        table, static = txn.table, static_values(txn.table, partition)
        _check_columns(frame, [name for name, _ in writable_columns(table, static)], table)
        is_static = static_partition(table, static)
        txn.lock(Statement.INSERT, Operation.INSERT, partition=None, dynamic=table.is_partitioned)
        try:
            frame = _placed(frame, table)
            targets = [_static_values(table, static)] if is_static else _dynamic_values(frame, table, static)
            found = {values: txn.place(values) for values in targets}
            txn.will_write([p.partition for p in found.values() if p.partition], Operation.INSERT)
            directory = _prepared(txn, list(found.values()))
            sink = _delta_sink(table, static, found, directory, txn.write_id, writer.writer.filesystem_of)
            with _writing:
                spark.dataSource.register(sink)
                frame.write.format(_WRITER).mode("append").save()
        except (PySparkException, Py4JError) as error:
            raise JobError(f"inserting into {table.name} with Spark failed: {str(error)[:1000]}") from error
        return txn.write_id


def _snapshot_source(
    tasks: tuple[ScanTask, ...],
    schema: pa.Schema,
    spark_schema: types.StructType,
    filesystem_of: FilesystemOf,
    with_row_ids: bool,
) -> type[DataSource]:
    target = pa.schema([pa.field(f.name, _spark_arrow(f.type)) for f in schema])

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(at) for at in range(len(tasks))] or [InputPartition(-1)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            if partition.value >= 0:
                task = tasks[partition.value]
                for batch in task_batches(task, schema, filesystem_of, with_row_ids=with_row_ids):
                    # Nanoseconds are cut off on purpose.
                    columns = [c.cast(f.type, safe=False) for c, f in zip(batch.columns, target, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=target)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return _READER

        def schema(self) -> types.StructType:
            return spark_schema

        def reader(self, schema: types.StructType) -> DataSourceReader:
            return Reader()

    return Source


def _delta_sink(
    table: Table,
    static: Mapping[str, str],
    found: Mapping[tuple[str, ...], Place],
    directory: str,
    write_id: int,
    filesystem_of: FilesystemOf,
) -> type[DataSource]:
    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            context = TaskContext.get()
            task = context.partitionId() if context is not None else 0
            batches = list(iterator)
            if batches:
                rows = pa.Table.from_batches(batches)
                rows = rows.drop_columns([_BUCKET] if _BUCKET in rows.column_names else [])
                data = conformed(rows, writable_columns(table, static), of=f"table {table.name}")
                for values, group in by_partition(data, table, static):
                    buckets = row_buckets(group, table)
                    if table.bucket_count <= 0:
                        buckets += task
                    place = found[values]
                    fs, root = filesystem_of(place.location)
                    write_buckets(
                        fs,
                        f"{root}/{directory}",
                        table,
                        group,
                        buckets,
                        write_id=write_id,
                        statement_id=0,
                        input_format=place.input_format,
                    )
            return WriterCommitMessage()

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return _WRITER

        def writer(self, schema: types.StructType, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return Sink


def _placed(frame: DataFrame, table: Table) -> DataFrame:
    """The frame in as many tasks as it may have files: rows of one bucket come together in one task."""
    if table.bucket_count <= 0:
        return frame.coalesce(MAX_BUCKETS) if frame.rdd.getNumPartitions() > MAX_BUCKETS else frame
    kinds = dict(table_type(table.columns).children)
    wanted = [(name, kinds[name]) for name in table.bucket_columns]

    def bucket(*columns: pa.Array) -> pa.Array:
        rows = pa.Table.from_arrays(list(columns), names=[name for name, _ in wanted])
        return pa.array(row_buckets(conformed(rows, wanted, of=f"table {table.name}"), table), pa.int32())

    # Spark takes the kind of function from its annotations; the stubs ask for it as an argument.
    hash_of = arrow_udf(bucket, types.IntegerType())  # type: ignore[call-overload]
    hashed: Column = hash_of(*(frame[name] for name in table.bucket_columns))
    return frame.withColumn(_BUCKET, hashed).repartition(table.bucket_count, sf.col(_BUCKET))


def _static_values(table: Table, static: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(static[c.name] for c in table.partition_columns)


def _dynamic_values(frame: DataFrame, table: Table, static: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The partition values that occur in a frame; '' for null."""
    columns = table_type(table.partition_columns).children
    dynamic = [(name, kind) for name, kind in columns if name not in static]
    found = frame.select(*(name for name, _ in dynamic)).distinct().toArrow()
    rows = conformed(found, dynamic, of=f"table {table.name}").to_pylist()
    texts = [{**static, **{name: partition_text(row[name], name) for name, _ in dynamic}} for row in rows]
    return sorted({tuple(text[name] for name, _ in columns) for text in texts})


def _prepared(txn: TableTransaction, found: Sequence[Place]) -> str:
    directory = delta_name(DeltaKind.INSERT, txn.write_id, txn.write_id, statement_id=txn.next_statement())
    for place in found:
        fs, root = txn.writer.filesystem_of(place.location)
        prepare_directory(fs, f"{root}/{directory}", full_acid=txn.table.is_full_acid)
    return directory


def _check_columns(frame: DataFrame, names: Sequence[str], table: Table) -> None:
    given = [name.lower() for name in frame.columns]
    if sorted(given) != sorted(names):
        raise UsageError(
            f"the frame has the columns {', '.join(given)}",
            hint=f"an insert into {table.name} needs {', '.join(names)}",
        )


def _spark_arrow(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark expects for one of ours."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _spark_arrow(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_spark_arrow(kind.key_type), _spark_arrow(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _spark_arrow(f.type)) for f in kind])
    return kind
