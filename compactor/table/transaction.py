"""One writing transaction on one table.

1. Open the transaction with its snapshot; it declares the table, so the cleaner waits for it (`open_declared`).
2. At the first statement allocate the write id, then take the statement's lock. Having had to wait for a writer that
   allows no other means that it replaced rows under our snapshot, perhaps with a higher write id: nothing is written
   yet, so give this transaction up and begin again at 1 with a new snapshot and a new write id.
3. Each statement writes directories of its own (statement id 0, 1, …). Nobody sees them yet, except later statements
   of the same transaction.
4. Commit: the metastore checks the write set, first committer wins. On any error abort; the files stay, TXN_COMPONENTS
   says where, and the cleaner removes them. An unknown outcome of the commit is left alone.

Which lock a statement takes stands in `table.locking`.
Sources: Hive `DbTxnManager`, `DriverTxnHandler` (invalid snapshots).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from compactor.acid.directory import Snapshot
from compactor.acid.layout import MAX_STATEMENTS
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import LockNotAcquired, MetastoreError, UsageError
from compactor.metastore import catalog_write, snapshots, statistics, txns
from compactor.metastore.catalog import Table, TableName, get_table, list_partitions
from compactor.metastore.components import Operation
from compactor.metastore.intents import add_dynamic_partitions
from compactor.metastore.locks import LockComponent, LockState, LockType
from compactor.metastore.writeids import allocate_write_ids
from compactor.table.locking import Statement, Writer
from compactor.table.scan import Place, ScanTask, places, scan_tasks

_FRESH_STARTS = 10
"""How often a transaction begins again after waiting for its first lock."""
_SHARED = (LockType.SHARED_READ, LockType.SHARED_WRITE)


class TableTransaction:
    """An open writing transaction; made by `write_transaction`."""

    def __init__(self, writer: Writer, name: TableName) -> None:
        self.writer = writer
        self.table: Table = get_table(writer.db, name)
        if not self.table.is_transactional:
            raise UsageError(f"table {name} is not transactional")
        self._seen = self._open()
        self._write_id: int | None = None
        self._statements = 0
        self._locked: list[LockComponent] = []
        self._replaced = False
        self._reached: set[str] = set()

    @property
    def txn_id(self) -> int:
        return self._seen.txn_id

    @property
    def write_id(self) -> int:
        """The table's write id of this transaction; the first statement allocates it."""
        return self._write_id if self._write_id is not None else self._allocate()

    def heartbeat(self) -> None:
        """Tell the metastore that the writer lives; TransactionAborted when it was given up already."""
        txns.heartbeat(self.writer.db, self.txn_id)

    def next_statement(self) -> int:
        """The id of a new statement's directory; UsageError after an insert overwrite, whose base would hide it."""
        if self._replaced:
            raise UsageError("an insert overwrite is the only statement of its transaction")
        if self._statements == MAX_STATEMENTS:
            raise UsageError(f"a transaction has at most {MAX_STATEMENTS} statement directories")
        self._statements += 1
        return self._statements - 1

    def replace(self) -> None:
        """Say that the transaction writes a base; UsageError when it has written anything before."""
        if self._statements or self._replaced:
            raise UsageError("an insert overwrite is the only statement of its transaction")
        self._replaced = True

    def lock(self, statement: Statement, operation: Operation, *, partition: str | None, dynamic: bool = False) -> bool:
        """Take the lock of a statement; False when a lock of an earlier statement covers it.

        Raises LockNotAcquired when it is not free in time, Deadlock when somebody who holds it waits for us.
        """
        kind = self.writer.lock_type(statement)
        if any(held.type.strength >= kind.strength and held.partition in (None, partition) for held in self._locked):
            return False
        wanted = LockComponent(
            database=self.table.name.database,
            table=self.table.name.table,
            partition=partition,
            type=kind,
            operation=operation,
            is_dynamic_partition=dynamic,
        )
        for _ in range(_FRESH_STARTS):
            if self._acquired(wanted):
                self._locked.append(wanted)
                return True
            if self._locked:
                raise LockNotAcquired(
                    f"table {self.table.name} was locked by another transaction between two statements",
                    hint="run the whole transaction again",
                )
            txns.abort_transactions(self.writer.db, [self.txn_id], reason="begins again after waiting for a lock")
            self._seen, self._write_id = self._open(), None
        raise LockNotAcquired(f"table {self.table.name} is locked again and again by others")

    def will_write(self, partitions: Iterable[str], operation: Operation) -> None:
        """Say which partitions a statement reaches, before it writes there; they replace the table's own component.

        A component must stand before the first file: without it nobody would know the files of an aborted
        transaction, and once its write id is forgotten they would count as committed.
        """
        if self.table.is_partitioned:
            partitions = set(partitions)
            self._reached |= partitions
            add_dynamic_partitions(
                self.writer.db, self.txn_id, self.write_id, self.table.name, sorted(partitions), operation
            )

    def tasks(self) -> Iterator[ScanTask]:
        """What the table holds for this transaction: its snapshot and what it wrote itself."""
        partitions = list_partitions(self.writer.db, self.table.name)
        seen = Snapshot(txns=self._seen.txns, write_ids=self._own_view())
        for place in places(self.table, partitions):
            yield from scan_tasks(self.table, place, seen, self.writer.filesystem_of)

    def place(self, values: tuple[str, ...]) -> Place:
        """Where rows with these partition values go; a partition that does not exist is added with its directory."""
        if not self.table.is_partitioned:
            (only,) = places(self.table, [])
            return only
        partition = catalog_write.add_partition(self.writer.db, self.table.name, values, if_not_exists=True)
        fs, root = self.writer.filesystem_of(partition.location)
        fs.create_directory(root)
        return Place.of(partition)

    def commit(self) -> None:
        """WriteConflict, TransactionAborted, CommitOutcomeUnknown."""
        if self._write_id is not None:
            written = self._reached | {held.partition for held in self._locked if held.partition is not None}
            statistics.forget_accuracy(self.writer.db, self.table.name, written, self._write_id)
        txns.commit_transaction(self.writer.db, self.txn_id, rules=self.writer.rules)

    def abort(self) -> None:
        txns.abort_transactions(self.writer.db, [self.txn_id], reason="abort by its writer")

    def _open(self) -> snapshots.ReadSnapshot:
        writer = self.writer
        return snapshots.open_declared(
            writer.db,
            [self.table.name],
            kind=txns.TxnType.DEFAULT,
            user=writer.user,
            host=writer.host,
            agent_info=writer.agent_info,
            rules=writer.rules,
        )

    def _acquired(self, wanted: LockComponent) -> bool:
        """Waits for the lock in any case; False when our snapshot is outdated by a writer that had to be waited for.

        Shared holders that an overwrite waits for do not outdate it: what they commit stays beside its base, or they
        conflict with it when it commits.
        """
        # The lock writes TXN_COMPONENTS, which name the write id.
        self._allocate()
        response = self.writer.acquire(self.txn_id, wanted)
        self.writer.wait(self.txn_id, response)
        # the strongest of those in the way is named
        return response.state is LockState.ACQUIRED or (
            response.blocked_by is not None and response.blocked_by.type in _SHARED
        )

    def _allocate(self) -> int:
        self._write_id = allocate_write_ids(self.writer.db, [self.txn_id], self.table.name)[self.txn_id]
        return self._write_id

    def _own_view(self) -> ValidWriteIdList:
        """The snapshot's write ids and our own; ids that others got in between stay invisible."""
        seen = self._seen.write_ids[self.table.name]
        if self._write_id is None or self._write_id <= seen.high_water:
            return seen
        between = frozenset(range(seen.high_water + 1, self._write_id))
        return ValidWriteIdList(
            table=seen.table, high_water=self._write_id, open=seen.open | between, aborted=seen.aborted
        )


@contextmanager
def write_transaction(writer: Writer, table: TableName) -> Iterator[TableTransaction]:
    """A transaction for the length of the block: committed at its end, aborted when it raises."""
    txn = TableTransaction(writer, table)
    try:
        yield txn
    except BaseException:
        # The caller's error counts; the transaction times out if the metastore cannot be reached now.
        with suppress(MetastoreError):
            txn.abort()
        raise
    txn.commit()


def static_partition(table: Table, values: Mapping[str, str]) -> bool:
    """Do `values` name every partition column? True for an unpartitioned table."""
    return all(column.name in values for column in table.partition_columns)
