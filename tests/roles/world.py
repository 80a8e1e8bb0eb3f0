"""A small installation for the tests of the roles: real SQLite, real files, and writers, readers and workers by hand."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from compactor.acid.layout import DeltaKind, base_name, delta_name
from compactor.metastore.catalog import Column, TableName, get_partition, get_table
from compactor.metastore.catalog_write import add_partition, create_database, create_table
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire
from compactor.metastore.queue import claim, publish, record_snapshot, request_compaction
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_COMPACTIONS, TXN_COMPONENTS, TXNS
from compactor.metastore.snapshots import valid_txn_list_for_compactor
from compactor.metastore.txns import TxnType, abort_transactions, commit_transaction, open_transactions
from compactor.metastore.writeids import allocate_write_ids, valid_write_ids
from compactor.service.metrics import Metrics
from compactor.settings import Settings

FILE = "bucket_00000"


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write: its transaction and its write id."""

    txn_id: int
    write_id: int


@dataclass(kw_only=True)
class World:
    """Everything a role needs, and shorthands for what happens around it."""

    db: Database
    warehouse: Path
    settings: Settings
    metrics: Metrics

    def table(
        self, name: str = "t", *, database: str = "default", partitioned: bool = False, **parameters: str
    ) -> TableName:
        found = TableName(database=database, table=name)
        create_table(
            self.db,
            found,
            columns=[Column(name="a", type="int")],
            partition_columns=[Column(name="p", type="string")] if partitioned else [],
            parameters={"transactional": "true"} | parameters,
            owner="hive",
        )
        self.location(found).mkdir(parents=True)
        return found

    def partition(self, table: TableName, value: str, **parameters: str) -> str:
        made = add_partition(self.db, table, [value], parameters=parameters)
        self.location(table, made.name).mkdir(parents=True)
        return made.name

    def database(self, name: str, **parameters: str) -> None:
        create_database(self.db, name, parameters=parameters)

    def location(self, table: TableName, partition: str | None = None) -> Path:
        found = get_table(self.db, table) if partition is None else get_partition(self.db, table, partition)
        return Path(str(found.location).removeprefix("file:"))

    def entries(self, table: TableName, partition: str | None = None) -> list[str]:
        return sorted(path.name for path in self.location(table, partition).iterdir())

    def put(self, directory: Path, size: int = 100) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_bytes(b"x" * size)

    def open_write(
        self, table: TableName, partition: str | None = None, *, size: int = 100, kind: DeltaKind = DeltaKind.INSERT
    ) -> Write:
        """A transaction that has written a delta and is still open."""
        (txn_id,) = open_transactions(self.db, user="u", host="h")
        write_id = allocate_write_ids(self.db, [txn_id], table)[txn_id]
        self.lock(txn_id, table, partition)
        name = delta_name(kind, write_id, write_id, statement_id=0)
        self.put(self.location(table, partition) / name, size)
        return Write(txn_id=txn_id, write_id=write_id)

    def lock(self, txn_id: int, table: TableName, partition: str | None, *, dynamic: bool = False) -> None:
        component = LockComponent(
            database=table.database,
            table=table.table,
            partition=partition,
            type=LockType.SHARED_READ,
            operation=Operation.INSERT,
            is_dynamic_partition=dynamic,
        )
        acquire(self.db, LockRequest(txn_id=txn_id, components=[component], user="u", host="h"))

    def write(self, table: TableName, partition: str | None = None, *, size: int = 100, times: int = 1) -> Write:
        """Committed deltas; the last one."""
        for _ in range(times):
            written = self.open_write(table, partition, size=size)
            commit_transaction(self.db, written.txn_id)
        return written

    def aborted_write(self, table: TableName, partition: str | None = None) -> Write:
        written = self.open_write(table, partition)
        abort_transactions(self.db, [written.txn_id])
        return written

    def request(
        self, table: TableName, partition: str | None = None, kind: CompactionType = CompactionType.MAJOR
    ) -> int:
        wish = CompactionRequest(
            table=table, partition=partition, type=kind, initiator_id="test", initiator_version="0"
        )
        outcome = request_compaction(self.db, wish)
        assert outcome.accepted, outcome.reason
        return outcome.id

    def start_compaction(
        self,
        table: TableName,
        partition: str | None = None,
        *,
        kind: CompactionType = CompactionType.MAJOR,
        worker_id: str = "host-1.abc",
        first: int = 1,
    ) -> tuple[Compaction, int, str]:
        """A worker up to its output, unpublished: claim, transaction, name of the output.

        first: smallest write id that a minor compaction merges.
        """
        self.request(table, partition, kind)
        held = claim(self.db, worker_id=worker_id, worker_version="0")
        assert held is not None
        (txn_id,) = open_transactions(self.db, kind=TxnType.COMPACTION, user="u", host="h")
        txns = valid_txn_list_for_compactor(self.db, txn_id)
        highest = valid_write_ids(self.db, table, txns).for_compaction().high_water
        record_snapshot(self.db, held, txn_id=txn_id, highest_write_id=highest)
        if kind is CompactionType.MAJOR:
            output = base_name(highest, txn_id)
        else:
            output = delta_name(DeltaKind.INSERT, first, highest, visibility_txn=txn_id)
        self.put(self.location(table, partition) / output)
        return held, txn_id, output

    def compact(
        self, table: TableName, partition: str | None = None, *, kind: CompactionType = CompactionType.MAJOR
    ) -> str:
        """A published compaction, ready for cleaning; the name of its output."""
        held, txn_id, output = self.start_compaction(table, partition, kind=kind)
        publish(self.db, held, txn_id)
        return output

    def rows(self, state: CompactionState | None = None) -> list[Compaction]:
        return sorted(show_compactions(self.db, filters=CompactionFilter(state=state)), key=lambda row: row.id)

    def only_row(self) -> Compaction:
        (row,) = self.rows()
        return row

    def fail(self, table: TableName, partition: str | None = None, *, times: int = 1, ago_ms: int = 0) -> None:
        """Failed compactions in the history, requested ago_ms before now."""
        for _ in range(times):
            compaction_id = self.request(table, partition)
            with self.db.write() as conn:
                conn.execute(sa.delete(COMPACTION_QUEUE).where(COMPACTION_QUEUE.c.CQ_ID == compaction_id))
                conn.execute(
                    sa.insert(COMPLETED_COMPACTIONS).values(
                        CC_ID=compaction_id,
                        CC_DATABASE=table.database,
                        CC_TABLE=table.table,
                        CC_PARTITION=partition,
                        CC_STATE="f",
                        CC_TYPE="a",
                        CC_ENQUEUE_TIME=self.db.now(conn) - ago_ms,
                        CC_START=self.db.now(conn) - ago_ms,
                        CC_END=self.db.now(conn) - ago_ms,
                    )
                )

    def age(self, txn_ids: Sequence[int], *, by_ms: int) -> None:
        """Move a transaction's start and last heartbeat into the past."""
        with self.db.write() as conn:
            txns = TXNS.c
            conn.execute(
                sa.update(TXNS)
                .where(txns.TXN_ID.in_(txn_ids))
                .values(TXN_STARTED=txns.TXN_STARTED - by_ms, TXN_LAST_HEARTBEAT=txns.TXN_LAST_HEARTBEAT - by_ms)
            )

    def change_queue(self, compaction_id: int, **values: Any) -> None:
        """Make a row of the queue look as Hive leaves it."""
        with self.db.write() as conn:
            queue = COMPACTION_QUEUE.c
            conn.execute(sa.update(COMPACTION_QUEUE).where(queue.CQ_ID == compaction_id).values(**values))

    def components(self, txn_id: int) -> int:
        with self.db.read() as conn:
            tc = TXN_COMPONENTS.c
            count = sa.select(sa.func.count()).select_from(TXN_COMPONENTS).where(tc.TC_TXNID == txn_id)
            return conn.scalar(count) or 0

    def remove_location(self, table: TableName, partition: str | None = None) -> None:
        shutil.rmtree(self.location(table, partition))
