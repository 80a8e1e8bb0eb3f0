"""A small installation in a directory: real SQLite, real files, every role's real cycle; Spark only where asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cleaner.housekeeper import HouseKeeper, HouseKeeperResult
from cleaner.service import Cleaner, CleanerResult
from compactor.acid.layout import parse_directory
from compactor.jobs.compaction import JobRunner
from compactor.jobs.engine import Engine
from compactor.metastore import history, queue, txns
from compactor.metastore.catalog import Table, TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.schema import TXNS, init_db
from compactor.service.metrics import Metrics
from compactor.service.offers import prices_of
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.reader import TableSnapshot, open_snapshot
from compactor.table.transaction import TableTransaction
from compactor.table.writer import Statements, TableWriter
from compactor.worker import Step, Worker, WorkerResult
from compactor.worker.metastore import DatabaseMetastore
from initiator.service import Initiator, InitiatorResult
from tests.inline_each import inline
from tests.inline_rebalance import rebalance_inline
from tests.inline_runner import InlineJobRunner

HOST = "simulated"
ORDERS = TableName(database="default", table="orders")
COLUMNS = (("id", "int"), ("item", "string"))
AN_HOUR_MS = 3_600_000

Rows = dict[int, str]
"""id → item: what a table holds."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A metastore, a warehouse, and the roles that work on them."""

    root: Path
    db: Database
    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=lambda: Metrics(version="0"))

    @classmethod
    def create(cls, root: Path, settings: Settings | None = None) -> World:
        world = cls(root=root, db=Database.connect(database_url(root)), settings=settings or Settings())
        init_db(world.db, warehouse=f"file:{root}/warehouse")
        return world

    @classmethod
    def existing(cls, root: Path) -> World:
        """The same installation from another process."""
        return cls(root=root, db=Database.connect(database_url(root)))

    def create_table(
        self,
        name: TableName = ORDERS,
        *,
        partitioned: bool = False,
        buckets: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        return create_table(
            self.db,
            name,
            COLUMNS,
            partitioned_by=(("day", "string"),) if partitioned else (),
            clustered_by=("id",) if buckets else (),
            buckets=buckets,
            properties=properties,
        )

    def writer(self, table: TableName = ORDERS) -> TableWriter:
        return TableWriter(self.db, open_location, table, user="ada", host=HOST)

    def insert(self, rows: Rows, table: TableName = ORDERS, *, day: str | None = None) -> None:
        self.writer(table).insert(arrow(rows), partition=None if day is None else {"day": day})

    def insert_and_abort(self, rows: Rows, table: TableName = ORDERS) -> None:
        """Write rows whose transaction is then aborted, as when the writer of a statement dies."""
        txn = TableTransaction(self.writer(table).writer, table)
        Statements(txn).insert(arrow(rows))
        txn.abort()

    def delete(self, *ids: int, table: TableName = ORDERS) -> None:
        self.writer(table).delete(pc.field("id").isin(list(ids)))

    def fill(self, table: TableName = ORDERS) -> Rows:
        """Three inserts and a delete: enough for both depths, in one bucket or several."""
        self.insert({n: f"first {n}" for n in range(8)}, table)
        self.insert({n: f"second {n}" for n in range(8, 12)}, table)
        self.insert({20: "third"}, table)
        self.delete(1, 9, table=table)
        return self.rows(table)

    @contextmanager
    def reader(self, *tables: TableName) -> Iterator[TableSnapshot]:
        with open_snapshot(self.db, tables or (ORDERS,), user="bob", host=HOST) as snapshot:
            yield snapshot

    def rows(self, table: TableName = ORDERS) -> Rows:
        """What a reader that begins now sees."""
        with self.reader(table) as snapshot:
            return rows_of(snapshot, table)

    def request(
        self,
        kind: CompactionType = CompactionType.MAJOR,
        table: TableName = ORDERS,
        partition: str | None = None,
    ) -> int:
        wish = CompactionRequest(
            table=table, partition=partition, type=kind, initiator_id=f"{HOST}-manual", initiator_version="0"
        )
        return queue.request_compaction(self.db, wish).id

    def worker(
        self,
        *,
        at_step: Callable[[Step], None] = lambda _: None,
        runner: JobRunner | None = None,
        stop: StopRequest | None = None,
    ) -> Worker:
        return Worker(
            metastore=DatabaseMetastore(self.db),
            engine=Engine(
                runner=runner or InlineJobRunner(),
                rebalance=rebalance_inline,
                each=lambda *_: inline,
                cores=lambda: 1,
            ),
            settings=self.settings,
            metrics=self.metrics,
            host=HOST,
            version="0",
            stop=stop or StopRequest(),
            at_step=at_step,
        )

    def compact(self, kind: CompactionType = CompactionType.MAJOR, table: TableName = ORDERS) -> WorkerResult:
        """Request a compaction and carry it out."""
        self.request(kind, table)
        return self.worker().run_once()

    def clean(self) -> CleanerResult:
        cleaner = Cleaner(
            db=self.db, filesystem_of=open_location, settings=self.settings, metrics=self.metrics, host=HOST
        )
        return cleaner.run_once()

    def keep_house(self) -> HouseKeeperResult:
        return HouseKeeper(db=self.db, settings=self.settings, metrics=self.metrics).run_once()

    def initiate(self) -> InitiatorResult:
        return self.initiator().run_once()

    def initiator(self) -> Initiator:
        return Initiator(
            db=self.db,
            filesystem_of=open_location,
            settings=self.settings,
            metrics=self.metrics,
            host=HOST,
            version="0",
            prices_of=prices_of,
        )

    def compactions(self) -> list[Compaction]:
        """Queue and history by id."""
        return sorted(history.show_compactions(self.db), key=lambda row: row.id)

    def compaction(self, compaction_id: int) -> Compaction:
        (row,) = (row for row in self.compactions() if row.id == compaction_id)
        return row

    def only(self) -> Compaction:
        """The one compaction there ever was."""
        (row,) = self.compactions()
        return row

    def states(self) -> list[CompactionState]:
        return [row.state for row in self.compactions()]

    def open_compaction_txns(self) -> list[int]:
        kinds = (txns.TxnType.COMPACTION, txns.TxnType.REBALANCE_COMPACTION)
        return [t.id for t in txns.show_transactions(self.db) if t.state is txns.TxnState.OPEN and t.kind in kinds]

    def silence(self, txn_ids: Sequence[int]) -> None:
        """Let transactions look as if their last heartbeat was an hour ago."""
        with self.db.write() as conn:
            conn.execute(
                TXNS.update()
                .where(TXNS.c.TXN_ID.in_(txn_ids))
                .values(TXN_LAST_HEARTBEAT=TXNS.c.TXN_LAST_HEARTBEAT - AN_HOUR_MS)
            )

    def location(self, table: TableName = ORDERS) -> Path:
        return self.root / "warehouse" / table.table

    def entries(self, table: TableName = ORDERS) -> list[str]:
        """ACID directories of a table, by name; those of its partitions when it has some."""
        place = self.location(table)
        found = [p for p in place.rglob("*") if p.is_dir() and parse_directory(p.name) is not None]
        return sorted(str(p.relative_to(place)) for p in found)


def database_url(root: Path) -> str:
    return f"sqlite:///{root}/metastore.db"


def arrow(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(rows.keys(), pa.int32()), "item": pa.array(rows.values(), pa.string())})


def rows_of(snapshot: TableSnapshot, table: TableName = ORDERS) -> Rows:
    """A snapshot's rows; fails when a row is there twice."""
    found = snapshot.read(table, columns=["id", "item"])
    ids = found.column("id").to_pylist()
    assert len(ids) == len(set(ids)), f"rows are there twice: {sorted(ids)}"
    return dict(zip(ids, found.column("item").to_pylist(), strict=True))


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder with the digest of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
