"""INSERT, UPDATE, DELETE, MERGE and INSERT OVERWRITE under snapshot isolation.

    writer = TableWriter(db, open_location, orders, user="ada", host="h1")
    writer.insert(rows)                                          # a transaction of its own
    with writer.transaction() as txn:                            # several statements, all or nothing
        txn.update(pc.field("id") == 3, {"state": "paid"})
        txn.delete(pc.field("state") == "cancelled")

An UPDATE deletes the old row and inserts the new one (Hive's split update): delete_delta_W_W_s, delta_W_W_s+1.
Memory: the rows a statement writes, one stripe of what it reads. How transactions work: `table.transaction`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.layout import DeltaKind, base_name, delta_name
from compactor.errors import UsageError
from compactor.metastore.catalog import Table, TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.lock_waits import Patience
from compactor.metastore.open_rules import OpenRules
from compactor.orc.reader import Int64Array
from compactor.settings import LockSettings, TxnSettings
from compactor.storage.filesystem import FilesystemOf
from compactor.table.buckets import row_buckets
from compactor.table.changes import Changes
from compactor.table.conform import by_partition, conformed, static_values, writable_columns
from compactor.table.expressions import assigned, positions_where
from compactor.table.files import prepare_directory, write_buckets
from compactor.table.locking import Statement, Writer
from compactor.table.merge import Merge, matching_row_ids, merge_changes
from compactor.table.scan import Place, ScanBatch, read_task
from compactor.table.transaction import TableTransaction, static_partition, write_transaction
from compactor.table.values import table_type


@dataclass(frozen=True, kw_only=True)
class Written:
    """Rows that a statement inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class Statements:
    """The statements of one transaction; made by `TableWriter.transaction`."""

    def __init__(self, txn: TableTransaction) -> None:
        self._txn = txn

    @property
    def txn_id(self) -> int:
        return self._txn.txn_id

    @property
    def write_id(self) -> int:
        return self._txn.write_id

    def heartbeat(self) -> None:
        """Tell the metastore that the writer lives; TransactionAborted when it was given up already."""
        self._txn.heartbeat()

    def insert(self, rows: pa.Table, *, partition: Mapping[str, object] | None = None) -> Written:
        """Add rows. partition: values of PARTITION (p='x', …); partition columns not named there come from `rows`.

        UsageError names the column that is missing, unknown or holds a value that does not fit.
        """
        table, static = self._txn.table, static_values(self._txn.table, partition)
        data = conformed(rows, writable_columns(table, static), of=f"table {table.name}")
        is_static = static_partition(table, static)
        locked = self._txn.lock(
            Statement.INSERT, Operation.INSERT, partition=self._target(static), dynamic=not is_static
        )
        self._insert(data, static, declared=is_static and locked)
        return Written(inserted=data.num_rows)

    def insert_overwrite(self, rows: pa.Table, *, partition: Mapping[str, object] | None = None) -> Written:
        """Replace the table, or the partitions that `partition` and `rows` name, by `rows`.

        Must be the only statement of its transaction.
        """
        table, static = self._txn.table, static_values(self._txn.table, partition)
        data = conformed(rows, writable_columns(table, static), of=f"table {table.name}")
        self._txn.replace()
        is_static = static_partition(table, static)
        self._txn.lock(Statement.OVERWRITE, Operation.UPDATE, partition=self._target(static), dynamic=not is_static)
        groups = [(self._txn.place(values), group) for values, group in by_partition(data, table, static)]
        if not is_static:
            self._txn.will_write([p.partition for p, _ in groups if p.partition], Operation.UPDATE)
        for place, group in groups:
            self._write_place(place, base_name(self.write_id), group, row_buckets(group, table), 0)
        return Written(inserted=data.num_rows)

    def delete(self, where: pc.Expression | pa.Table) -> Written:
        """Delete the rows for which a condition holds, or those that `where` names by their row ids.

        where: an expression over table and partition columns, or a table with the columns write_id, bucket, row_id
        and, in a partitioned table, the partition columns, as reads `with_row_ids` return them.
        """
        changes = self._changes()
        for place, batch in self._scan():
            rows = pa.Table.from_batches([batch.rows])
            if isinstance(where, pa.Table):
                positions = matching_row_ids(where, place, batch, self._txn.table)
            else:
                positions = positions_where(where, rows)
            if len(positions) and batch.row_ids is not None:
                changes.delete(place, batch.row_ids.take(positions))
        return self._apply(changes)

    def update(self, where: pc.Expression, assignments: Mapping[str, object]) -> Written:
        """SET columns of the rows for which a condition holds.

        assignments: column to an expression over the row's old values, or to a plain Python value. UsageError for
        partition and bucketing columns, which place the row.
        """
        table = self._txn.table
        check_assignable(table, assignments)
        columns = table_type(table.columns).children
        lowered = {name.lower(): value for name, value in assignments.items()}
        changes = self._changes()
        for place, batch in self._scan():
            rows = pa.Table.from_batches([batch.rows])
            positions = positions_where(where, rows)
            if len(positions) and batch.row_ids is not None:
                old = rows.take(pa.array(positions))
                new = pa.Table.from_arrays(assigned(old, lowered, columns), names=[n for n, _ in columns])
                changes.update(place, batch.row_ids.take(positions), new)
        return self._apply(changes)

    def merge(
        self,
        source: pa.Table,
        on: Sequence[str],
        *,
        when_matched_delete: pc.Expression | bool = False,
        when_matched_update: Mapping[str, object] | None = None,
        when_not_matched_insert: Mapping[str, object] | bool = False,
    ) -> Written:
        """MERGE INTO; what the arguments mean stands at `Merge`, of which they are the fields.

        UsageError when a row of the table matches several rows of the source (Hive's cardinality violation).
        """
        merge = Merge(on=on, delete=when_matched_delete, update=when_matched_update, insert=when_not_matched_insert)
        table = self._txn.table
        check_assignable(table, merge.update or {})
        changes = self._changes()
        missing = merge_changes(merge, source, table, self._scan(), changes)
        done = self._apply(changes)
        if missing is None or not missing.num_rows:
            return done
        data = conformed(missing, writable_columns(table, {}), of=f"table {table.name}")
        self._insert(data, {}, declared=False, besides=changes.partitions)
        return Written(inserted=data.num_rows, updated=done.updated, deleted=done.deleted)

    def _changes(self) -> Changes:
        """Lock for changing rows; the scan that follows sees the snapshot of the transaction that holds the lock."""
        table = self._txn.table
        if not table.is_full_acid:
            raise UsageError(
                f"table {table.name} is insert-only: its rows cannot be updated or deleted",
                hint="insert_overwrite replaces them",
            )
        self._txn.lock(Statement.CHANGE, Operation.DELETE, partition=None, dynamic=table.is_partitioned)
        return Changes(table)

    def _scan(self) -> Iterator[tuple[Place, ScanBatch]]:
        for task in self._txn.tasks():
            place = Place(location=task.location, partition=task.partition, values=task.values)
            for batch in read_task(task, self._txn.writer.filesystem_of):
                yield place, batch

    def _apply(self, changes: Changes) -> Written:
        txn = self._txn
        txn.will_write(changes.partitions, Operation.DELETE)
        if changes.deleted_rows:
            name = delta_name(DeltaKind.DELETE, self.write_id, self.write_id, statement_id=txn.next_statement())
            changes.write_deletes(txn.writer.filesystem_of, name, self.write_id)
        if changes.updated_rows:
            statement = txn.next_statement()
            name = delta_name(DeltaKind.INSERT, self.write_id, self.write_id, statement_id=statement)
            for place, rows, buckets in changes.updates():
                self._write_place(place, name, rows, buckets, statement)
        return Written(updated=changes.updated_rows, deleted=changes.deleted_rows - changes.updated_rows)

    def _insert(
        self, data: pa.Table, static: Mapping[str, str], *, declared: bool, besides: Sequence[str] = ()
    ) -> None:
        """Write new rows as one statement. declared: the lock said where; besides: partitions declared already."""
        table = self._txn.table
        statement = self._txn.next_statement()
        name = delta_name(DeltaKind.INSERT, self.write_id, self.write_id, statement_id=statement)
        groups = [(self._txn.place(v), group) for v, group in by_partition(data, table, static) if group.num_rows]
        if not declared:
            reached = [p.partition for p, _ in groups if p.partition and p.partition not in besides]
            self._txn.will_write(reached, Operation.INSERT)
        for place, group in groups:
            self._write_place(place, name, group, row_buckets(group, table), statement)

    def _write_place(self, place: Place, directory: str, rows: pa.Table, buckets: Int64Array, statement: int) -> None:
        table = self._txn.table
        fs, root = self._txn.writer.filesystem_of(place.location)
        prepare_directory(fs, f"{root}/{directory}", full_acid=table.is_full_acid)
        write_buckets(
            fs,
            f"{root}/{directory}",
            table,
            rows,
            buckets,
            write_id=self.write_id,
            statement_id=statement,
            input_format=place.input_format,
        )

    def _target(self, static: Mapping[str, str]) -> str | None:
        """Name of the partition that a static insert goes to, which exists afterwards; None for all other inserts."""
        table = self._txn.table
        if not table.is_partitioned or not static_partition(table, static):
            return None
        return self._txn.place(tuple(static[c.name] for c in table.partition_columns)).partition


class TableWriter:
    """Writes one table; each statement is a transaction of its own, `transaction` joins several.

    txn, lock: the settings of the installation, Hive's defaults otherwise; they say which locks are taken and how long
    is waited for them. sleep: how. Every statement may raise WriteConflict, TransactionAborted, Deadlock,
    LockNotAcquired, TooManyTransactions, UsageError, StorageError; then nothing of its transaction is visible.
    """

    def __init__(
        self,
        db: Database,
        filesystem_of: FilesystemOf,
        table: TableName,
        *,
        user: str,
        host: str,
        agent_info: str = "",
        sleep: Callable[[float], None] = time.sleep,
        txn: TxnSettings | None = None,
        lock: LockSettings | None = None,
    ) -> None:
        self.table = table
        txn = txn or TxnSettings()
        self.writer = Writer(
            db=db,
            user=user,
            host=host,
            agent_info=agent_info,
            filesystem_of=filesystem_of,
            sleep=sleep,
            patience=Patience.of(lock or LockSettings(), timeout_s=txn.timeout_s),
            txn=txn,
            rules=OpenRules.of(txn),
        )

    @contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Several statements as one transaction: each sees what those before it wrote."""
        with write_transaction(self.writer, self.table) as txn:
            yield Statements(txn)

    def insert(self, rows: pa.Table, *, partition: Mapping[str, object] | None = None) -> Written:
        """`Statements.insert` in a transaction of its own."""
        with self.transaction() as txn:
            return txn.insert(rows, partition=partition)

    def insert_overwrite(self, rows: pa.Table, *, partition: Mapping[str, object] | None = None) -> Written:
        """`Statements.insert_overwrite` in a transaction of its own."""
        with self.transaction() as txn:
            return txn.insert_overwrite(rows, partition=partition)

    def delete(self, where: pc.Expression | pa.Table) -> Written:
        """`Statements.delete` in a transaction of its own."""
        with self.transaction() as txn:
            return txn.delete(where)

    def update(self, where: pc.Expression, assignments: Mapping[str, object]) -> Written:
        """`Statements.update` in a transaction of its own."""
        with self.transaction() as txn:
            return txn.update(where, assignments)

    def merge(
        self,
        source: pa.Table,
        on: Sequence[str],
        *,
        when_matched_delete: pc.Expression | bool = False,
        when_matched_update: Mapping[str, object] | None = None,
        when_not_matched_insert: Mapping[str, object] | bool = False,
    ) -> Written:
        """`Statements.merge` in a transaction of its own."""
        with self.transaction() as txn:
            return txn.merge(
                source,
                on,
                when_matched_delete=when_matched_delete,
                when_matched_update=when_matched_update,
                when_not_matched_insert=when_not_matched_insert,
            )


def check_assignable(table: Table, assignments: Mapping[str, object]) -> None:
    """UsageError for an unknown column and for one that decides where a row lies."""
    for name in (n.lower() for n in assignments):
        if name in {c.name for c in table.partition_columns} or name in table.bucket_columns:
            raise UsageError(f"column {name} of {table.name} cannot be updated: it decides where a row is stored")
        if name not in {c.name for c in table.columns}:
            raise UsageError(f"table {table.name} has no column {name} to update")
