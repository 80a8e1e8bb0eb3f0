"""Snapshot reads: what a table held at one moment, whatever is written, compacted or cleaned meanwhile.

    with open_snapshot(db, [orders], user="ada", host="h1") as snapshot:
        snapshot.read(orders)            # the whole table
        for batch in snapshot.batches(orders, partitions=["dt=2024-01-01"]):
            …                            # a stripe at a time

1. One database transaction opens a READ_ONLY transaction, takes the snapshot and declares the tables that will be
   read (MIN_HISTORY_WRITE_ID); from then on no cleaner removes a file of theirs that the snapshot needs, and readers
   of other tables are not held up (I5).
2. Files are listed and read when asked for. What was published later is not in the snapshot and is passed over.
3. Leaving the block commits the transaction. A reader that stays longer than the transaction time-out sends
   `heartbeat`s, or the housekeeper aborts it and its files may go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from compactor.acid.directory import Snapshot
from compactor.acid.schema import HiveType
from compactor.errors import MetastoreError, NoSuchObject, UsageError
from compactor.metastore import snapshots, txns
from compactor.metastore.catalog import Table, TableName, get_partition, get_table, list_partitions
from compactor.metastore.database import Database
from compactor.metastore.open_rules import HIVES_RULES, OpenRules
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import FilesystemOf, open_location
from compactor.table.scan import ScanBatch, ScanTask, batch_schema, places, read_task, scan_tasks
from compactor.table.values import table_type

ROW_ID_TYPES = {"write_id": HiveType("bigint"), "bucket": HiveType("int"), "row_id": HiveType("bigint")}
ROW_ID_SCHEMA = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in ROW_ID_TYPES.items()])
"""Columns that `with_row_ids` puts before the table's own: ROW__ID, the bucket as the encoded property."""


class TableSnapshot:
    """An open snapshot of one or more tables; made by `open_snapshot`."""

    def __init__(self, db: Database, seen: snapshots.ReadSnapshot, filesystem_of: FilesystemOf) -> None:
        self._db = db
        self._seen = seen
        self.filesystem_of = filesystem_of

    @property
    def txn_id(self) -> int:
        """The reader's transaction."""
        return self._seen.txn_id

    def heartbeat(self) -> None:
        """Tell the metastore that the reader lives; TransactionAborted when it was given up already."""
        txns.heartbeat(self._db, self._seen.txn_id)

    def schema(
        self, table: TableName, *, columns: Sequence[str] | None = None, with_row_ids: bool = False
    ) -> pa.Schema:
        """Arrow schema of what `read` returns for the same arguments."""
        return _chosen_schema(get_table(self._db, table), columns, with_row_ids=with_row_ids)

    def column_types(self, table: TableName) -> dict[str, HiveType]:
        """Hive types of the table's columns and partition columns, by name."""
        found = get_table(self._db, table)
        return dict((*table_type(found.columns).children, *table_type(found.partition_columns).children))

    def tasks(self, table: TableName, *, partitions: Sequence[str] | None = None) -> tuple[ScanTask, ...]:
        """What there is to read, one task a bucket of every place; partitions: their names, all when None.

        Raises NoSuchObject for a table that the snapshot was not opened for, or an unknown partition.
        """
        write_ids = self._seen.write_ids.get(table)
        if write_ids is None:
            raise NoSuchObject(f"the snapshot was not opened for table {table}", hint="name it in open_snapshot")
        found = get_table(self._db, table)
        if partitions is None:
            chosen = list_partitions(self._db, table)
        else:
            chosen = [get_partition(self._db, table, name) for name in partitions]
        seen = Snapshot(txns=self._seen.txns, write_ids=write_ids)
        return tuple(
            task for place in places(found, chosen) for task in scan_tasks(found, place, seen, self.filesystem_of)
        )

    def batches(
        self,
        table: TableName,
        *,
        partitions: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        with_row_ids: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Rows a stripe at a time: partition by partition, bucket by bucket, in row order inside a bucket.

        columns: names of table or partition columns, all when None. with_row_ids: put `ROW_ID_SCHEMA` before them;
        UsageError for an insert-only table, which has no row ids, and for a table with columns of these names.
        """
        schema = self.schema(table, columns=columns, with_row_ids=with_row_ids)
        for task in self.tasks(table, partitions=partitions):
            yield from task_batches(task, schema, self.filesystem_of, with_row_ids=with_row_ids)

    def read(
        self,
        table: TableName,
        *,
        partitions: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        with_row_ids: bool = False,
    ) -> pa.Table:
        """All rows at once; arguments as in `batches`."""
        schema = self.schema(table, columns=columns, with_row_ids=with_row_ids)
        found = self.batches(table, partitions=partitions, columns=columns, with_row_ids=with_row_ids)
        return pa.Table.from_batches(found, schema=schema)


@contextmanager
def open_snapshot(
    db: Database,
    tables: Sequence[TableName],
    *,
    user: str,
    host: str,
    agent_info: str = "",
    filesystem_of: FilesystemOf = open_location,
    rules: OpenRules = HIVES_RULES,
) -> Iterator[TableSnapshot]:
    """A snapshot of `tables` for the length of the block.

    user, host: who reads, as `show transactions` tells it. rules: how transactions are opened in this installation;
    TooManyTransactions when their limit is reached. TransactionAborted at the end of the block when the
    reader was given up meanwhile: what it read late may be incomplete.
    """
    seen = snapshots.open_reader(db, tables, user=user, host=host, agent_info=agent_info, rules=rules)
    try:
        yield TableSnapshot(db, seen, filesystem_of)
    except BaseException:
        # The caller's error counts; the transaction times out if the metastore cannot be reached now.
        with suppress(MetastoreError):
            txns.abort_transactions(db, [seen.txn_id])
        raise
    txns.commit_transaction(db, seen.txn_id)


class TableReader:
    """Reads one table, each call in a snapshot of its own."""

    def __init__(self, db: Database, filesystem_of: FilesystemOf, table: TableName, *, user: str, host: str) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._table = table
        self._user, self._host = user, host

    def read(
        self,
        *,
        partitions: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        with_row_ids: bool = False,
    ) -> pa.Table:
        """The table as it is now; arguments as in `TableSnapshot.batches`."""
        with open_snapshot(
            self._db, [self._table], user=self._user, host=self._host, filesystem_of=self._filesystem_of
        ) as snapshot:
            return snapshot.read(self._table, partitions=partitions, columns=columns, with_row_ids=with_row_ids)


def task_batches(
    task: ScanTask, schema: pa.Schema, filesystem_of: FilesystemOf, *, with_row_ids: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of one task as batches of `schema` (of `TableSnapshot.schema`); runs in Spark's executors too."""
    for batch in read_task(task, filesystem_of):
        yield _chosen(batch, schema, with_row_ids=with_row_ids)


def _chosen(batch: ScanBatch, schema: pa.Schema, *, with_row_ids: bool) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    names: Iterable[str] = schema.names
    if with_row_ids and batch.row_ids is not None:
        ids = batch.row_ids
        arrays = [pa.array(ids.write_id), pa.array(ids.bucket, pa.int32()), pa.array(ids.row_id)]
        names = schema.names[len(ROW_ID_SCHEMA) :]
    return pa.RecordBatch.from_arrays([*arrays, *(batch.rows.column(name) for name in names)], schema=schema)


def _chosen_schema(table: Table, columns: Sequence[str] | None, *, with_row_ids: bool) -> pa.Schema:
    own = batch_schema(table_type(table.columns), table_type(table.partition_columns).children)
    wanted = own.names if columns is None else [name.lower() for name in columns]
    unknown = [name for name in wanted if name not in own.names]
    if unknown:
        raise UsageError(
            f"table {table.name} has no column {', '.join(unknown)}", hint=f"its columns are: {', '.join(own.names)}"
        )
    fields = [own.field(name) for name in wanted]
    if not with_row_ids:
        return pa.schema(fields)
    if not table.is_full_acid:
        raise UsageError(f"the rows of insert-only table {table.name} have no row ids")
    if clash := set(ROW_ID_SCHEMA.names) & set(wanted):
        raise UsageError(
            f"table {table.name} has columns named like row ids: {', '.join(sorted(clash))}",
            hint="name the columns to read and leave these out",
        )
    return pa.schema([*ROW_ID_SCHEMA, *fields])
