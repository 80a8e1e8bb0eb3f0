"""Streaming ingest: many small commits without many small files, by Hive's transaction batches.

    with StreamingIngest(writer, batch_size=30) as ingest:
        for rows in source:
            ingest.write(rows)
            ingest.commit()             # visible from now on

1. A batch opens N transactions with consecutive write ids x…y, and takes the lock of each at once: an overwrite that
   got a higher write id in between would hide what the batch commits after it.
2. Its rows go to one directory delta_x_y with one growing file a bucket (`table.growing`).
3. A commit appends the transaction's rows and a tail to its files and syncs them, before the metastore commits: what
   is committed is on disk. Readers mask the rows of write ids that are not committed.
4. At the end of a batch the transactions that are left are aborted and the side files removed. A killed writer leaves
   a readable table; the housekeeper's time-out aborts its transactions.

Object stores cannot append: there a batch is one transaction. Memory: the rows of one transaction.
Sources: Hive `HiveStreamingConnection`, `TransactionBatch`, `OrcRecordUpdater`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from compactor.acid.layout import NO_STATEMENT, DeltaKind, bucket_file, delta_name
from compactor.errors import LockNotAcquired, MetastoreError, UsageError
from compactor.metastore import snapshots, statistics, txns
from compactor.metastore.catalog import Table, get_table
from compactor.metastore.catalog_write import add_partition
from compactor.metastore.components import Operation
from compactor.metastore.locks import LockComponent, LockState
from compactor.metastore.writeids import allocate_write_ids
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.storage.filesystem import FileSystem
from compactor.table.buckets import row_buckets
from compactor.table.conform import conformed, static_values, writable_columns
from compactor.table.files import insert_events, last_key, orc_codec, prepare_directory, stripes_of
from compactor.table.growing import GrowingFile, appendable
from compactor.table.locking import Statement, Writer
from compactor.table.scan import Place, places
from compactor.table.transaction import static_partition
from compactor.table.values import table_type
from compactor.table.writer import TableWriter

_FRESH_STARTS = 5


class StreamingIngest:
    """Appends rows to a full-ACID table, or to one partition of it, in transactions of `batch_size` a delta.

    partition: values of all partition columns. Raises UsageError for an insert-only table, for a batch size above 1
    where files cannot be appended to, and for a partition that is not named fully. Not thread-safe.
    """

    def __init__(
        self, writer: TableWriter, *, batch_size: int = 1, partition: Mapping[str, object] | None = None
    ) -> None:
        self._writer = writer.writer
        self._table = get_table(self._writer.db, writer.table)
        self._static = static_values(self._table, partition)
        self._columns = writable_columns(self._table, self._static)
        self._batch_size = batch_size
        self._check()
        self._place: Place | None = None
        self._batch: _Batch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The caller's error counts; transactions time out if the metastore cannot be reached now.
        with suppress(MetastoreError):
            self.close()

    def write(self, rows: pa.Table) -> None:
        """Add rows to the current transaction; the first call of a batch opens it.

        UsageError names the column that is missing, unknown or holds a value that does not fit. LockNotAcquired.
        """
        data = conformed(rows, self._columns, of=f"table {self._table.name}")
        if self._batch is None:
            self._batch = _Batch(self._writer, self._table, self._where(), self._batch_size)
        self._batch.write(data)

    def commit(self) -> int | None:
        """Make what was written since the last commit visible; its write id, None when nothing was written.

        Raises TransactionAborted when the transaction timed out; its rows are lost, the ingest goes on with the next.
        """
        if self._batch is None or not self._batch.has_rows:
            return None
        try:
            return self._batch.commit()
        finally:
            if self._batch.used_up:
                self.close()

    def abort(self) -> None:
        """Throw away what was written since the last commit."""
        if self._batch is not None and self._batch.has_rows:
            self._batch.abort()
            if self._batch.used_up:
                self.close()

    def heartbeat(self) -> None:
        """Keep the open transactions of the batch alive; TransactionAborted when one was given up already."""
        if self._batch is not None:
            self._batch.heartbeat()

    def close(self) -> None:
        """Abort what is not committed and finish the files. The ingest may be used again afterwards."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()

    def _check(self) -> None:
        if not self._table.is_full_acid:
            raise UsageError(
                f"table {self._table.name} is insert-only: its files cannot grow", hint="use TableWriter.insert"
            )
        if not static_partition(self._table, self._static):
            names = ", ".join(c.name for c in self._table.partition_columns)
            raise UsageError(f"streaming into {self._table.name} needs a value for each of: {names}")
        if self._batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {self._batch_size}")

    def _where(self) -> Place:
        if self._place is None:
            if self._table.is_partitioned:
                values = [self._static[c.name] for c in self._table.partition_columns]
                found = add_partition(self._writer.db, self._table.name, values, if_not_exists=True)
                self._place = Place.of(found)
            else:
                (self._place,) = places(self._table, [])
        if self._batch_size > 1 and not appendable(self._place.location):
            raise UsageError(
                f"files at {self._place.location} cannot be appended to",
                hint="use batch_size=1 on object stores: each commit then writes a delta of its own",
            )
        return self._place


class _Batch:
    """N open transactions and the one delta they write to."""

    def __init__(self, writer: Writer, table: Table, place: Place, size: int) -> None:
        self._writer, self._table, self._place = writer, table, place
        self._left = _open_locked(writer, table, place, size)
        self._row_type = table_type(table.columns)
        fs, root = writer.filesystem_of(place.location)
        low, high = self._left[0][1], self._left[-1][1]
        self._fs: FileSystem = fs
        self._directory = f"{root}/{delta_name(DeltaKind.INSERT, low, high)}"
        self._growing = size > 1
        self._files: dict[int, _BucketFile] = {}
        self.has_rows = False
        prepare_directory(fs, self._directory, full_acid=True)

    @property
    def used_up(self) -> bool:
        return not self._left

    def write(self, rows: pa.Table) -> None:
        buckets = row_buckets(rows, self._table)
        for bucket in np.unique(buckets).tolist():
            if bucket not in self._files:
                self._files[bucket] = self._bucket_file(bucket)
            chosen = rows.take(pa.array(np.flatnonzero(buckets == bucket)))
            self._files[bucket].add(chosen, self._left[0][1])
        self.has_rows = True

    def commit(self) -> int:
        txn_id, write_id = self._left[0]
        try:
            for file in self._files.values():
                file.flush()
        except BaseException:
            self._end()
            with suppress(MetastoreError):
                txns.abort_transactions(self._writer.db, [txn_id], reason="its rows could not be written")
            raise
        self._end()
        written = [] if self._place.partition is None else [self._place.partition]
        statistics.forget_accuracy(self._writer.db, self._table.name, written, write_id)
        txns.commit_transaction(self._writer.db, txn_id, rules=self._writer.rules)
        return write_id

    def abort(self) -> None:
        txn_id, _ = self._left[0]
        for file in self._files.values():
            file.forget()
        self._end()
        txns.abort_transactions(self._writer.db, [txn_id], reason="abort by its writer")

    def heartbeat(self) -> None:
        for txn_id, _ in self._left:
            txns.heartbeat(self._writer.db, txn_id)

    def close(self) -> None:
        left, self._left = self._left, []
        if left:
            txns.abort_transactions(self._writer.db, [txn_id for txn_id, _ in left], reason="streaming batch closed")
        for file in self._files.values():
            file.complete()

    def _end(self) -> None:
        self._left = self._left[1:]
        self.has_rows = False

    def _bucket_file(self, bucket: int) -> _BucketFile:
        file = GrowingFile(self._fs, f"{self._directory}/{bucket_file(bucket)}", growing=self._growing)
        template = acid_template(self._row_type, compression=orc_codec(self._table))
        return _BucketFile(file, FileAssembler(file, template), bucket, self._table)


class _BucketFile:
    """One bucket of a batch's delta: the rows of the current transaction, and the file they will be appended to."""

    def __init__(self, file: GrowingFile, assembler: FileAssembler, bucket: int, table: Table) -> None:
        self._file, self._assembler = file, assembler
        self._bucket = bucket
        self._row_type = table_type(table.columns)
        self._rows: list[pa.Table] = []
        self._write_id = 0

    def add(self, rows: pa.Table, write_id: int) -> None:
        self._rows.append(rows)
        self._write_id = write_id

    def forget(self) -> None:
        self._rows = []

    def flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows = pa.concat_tables(self._rows), []
        events = insert_events(
            rows, self._row_type, write_id=self._write_id, bucket=self._bucket, statement_id=NO_STATEMENT
        )
        for stripe in stripes_of(events):
            self._assembler.append(stripe, last_key(stripe))
        self._assembler.finish(AcidStats(inserts=self._assembler.rows))
        self._file.flush()

    def complete(self) -> None:
        self._file.complete()


def _open_locked(writer: Writer, table: Table, place: Place, size: int) -> list[tuple[int, int]]:
    """(transaction id, write id) of `size` new transactions that all hold their lock, ascending.

    If one had to wait, all begin again: what was waited for may have taken higher write ids.
    """
    for _ in range(_FRESH_STARTS):
        opened: list[int] = []
        try:
            opened.extend(_open_one(writer, table) for _ in range(size))
            write_ids = allocate_write_ids(writer.db, opened, table.name)
            at_once = [_lock(writer, table, place, txn_id) for txn_id in opened]
        except BaseException:
            with suppress(MetastoreError):
                txns.abort_transactions(writer.db, opened, reason="streaming batch could not be opened")
            raise
        if all(at_once):
            return sorted(write_ids.items())
        txns.abort_transactions(writer.db, opened, reason="begins again after waiting for a lock")
    raise LockNotAcquired(f"table {table.name} is locked again and again by others")


def _open_one(writer: Writer, table: Table) -> int:
    """A transaction that declares its table, so that it holds up no cleaning of other tables."""
    opened = snapshots.open_declared(
        writer.db,
        [table.name],
        kind=txns.TxnType.DEFAULT,
        user=writer.user,
        host=writer.host,
        agent_info=writer.agent_info,
        rules=writer.rules,
    )
    return opened.txn_id


def _lock(writer: Writer, table: Table, place: Place, txn_id: int) -> bool:
    """False when the lock had to be waited for."""
    component = LockComponent(
        database=table.name.database,
        table=table.name.table,
        partition=place.partition,
        type=writer.lock_type(Statement.INSERT),
        operation=Operation.INSERT,
    )
    response = writer.acquire(txn_id, component)
    writer.wait(txn_id, response)
    return response.state is LockState.ACQUIRED
