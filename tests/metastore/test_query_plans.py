"""No hot statement of a role reads a whole table: what the planner of each database says about those that really ran.

The statements are taken from the connection while the functions run on a database in which little has changed and much
exists, with the planner's statistics up to date. Indexes are those of a database that `init_db` made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.scale_world import Place, ScaleWorld, insert
from cleaner.housekeeper import HouseKeeper
from cleaner.service import Cleaner
from compactor.metastore.candidates import record_full_look
from compactor.metastore.catalog import TableName, find_partition, get_partition, get_table
from compactor.metastore.compaction import Compaction, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire
from compactor.metastore.queue import RequestOutcome, claim, fail, publish, record_job, record_snapshot
from compactor.metastore.schema import TXN_COMPONENTS, TXNS
from compactor.metastore.snapshots import valid_txn_list_for_compactor
from compactor.metastore.txns import TxnType, commit_transaction, heartbeat, open_transactions
from compactor.metastore.writeids import allocate_write_ids, valid_write_ids
from compactor.service.metrics import Metrics
from compactor.service.requests import Wish, find, request
from compactor.settings import Settings
from compactor.storage.filesystem import open_location
from initiator.service import Initiator

PARTITIONS = 6000
CHANGED = 20
GUARDED = {
    "COMPLETED_TXN_COMPONENTS",
    "TXN_COMPONENTS",
    "TXNS",
    "COMPACTION_QUEUE",
    "COMPLETED_COMPACTIONS",
    "PARTITIONS",
}


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Much exists, `CHANGED` partitions changed."""

    world: ScaleWorld
    settings: Settings

    @property
    def db(self) -> Database:
        return self.world.db


@pytest.fixture
def installation(empty_db: Database, database_url: str, tmp_path: Path) -> Installation:
    world = ScaleWorld(empty_db, tmp_path)
    places = world.create(PARTITIONS, files=False)
    changed = places[:: PARTITIONS // CHANGED]
    world.change(changed)
    world.leave_cycle_time()
    with world.db.write() as conn:
        now = world.db.now(conn)
    record_full_look(world.db, now)
    world.queue(places[1000:5000], CQ_STATE="i")
    world.queue(places[5000:5010], CQ_STATE="r", CQ_NEXT_TXN_ID=1, CQ_HIGHEST_WRITE_ID=1, CQ_COMMIT_TIME=1)
    with world.db.write() as conn:
        insert(conn, TXNS, (_transaction(i, "c") for i in range(1000, 6000)))
        insert(conn, TXNS, (_transaction(i, "a") for i in range(6000, 7000)))
        insert(conn, TXNS, (_transaction(i, "o") for i in range(7000, 7010)))
        insert(conn, TXN_COMPONENTS, (_component(6000 + i % 1010, places[i % 5000]) for i in range(30_000)))
    _analyze(world.db)
    return Installation(world=world, settings=Settings(warehouse=f"file:{tmp_path}/warehouse"))


def initiator(installation: Installation) -> None:
    Initiator(
        installation.db,
        open_location,
        installation.settings,
        Metrics(version="test"),
        "host",
        "1.0",
        prices_of=lambda *_: {},
    ).run_once()


def worker(installation: Installation) -> None:
    db = installation.db
    for number in range(2):
        mine = claim(db, worker_id=f"host-1.{number}", worker_version="1.0")
        assert mine is not None
        table = get_table(db, mine.table)
        assert mine.partition is not None
        get_partition(db, mine.table, mine.partition)
        (txn_id,) = open_transactions(db, kind=TxnType.COMPACTION, user="u", host="h")
        acquire(db, LockRequest(txn_id=txn_id, components=[_shared(mine)], user="u", host="h"))
        heartbeat(db, txn_id)
        txns = valid_txn_list_for_compactor(db, txn_id)
        write_ids = valid_write_ids(db, table.name, txns).for_compaction()
        record_snapshot(db, mine, txn_id=txn_id, highest_write_id=write_ids.high_water)
        record_job(db, [mine], "job")
        if number:
            publish(db, mine, txn_id)
        else:
            fail(db, mine, message="it failed", txn_id=txn_id)


def cleaner(installation: Installation) -> None:
    Cleaner(installation.db, open_location, installation.settings, Metrics(version="test"), "host").run_once()


def housekeeper(installation: Installation) -> None:
    settings = installation.settings
    HouseKeeper(installation.db, settings, Metrics(version="test")).run_once()


def user(installation: Installation) -> None:
    db = installation.db
    name = TableName(database="default", table="events_3")
    partition = find_partition(db, name, {"part": "0000577"})
    wish = Wish(table=name, type=CompactionType.MAJOR, partition={"part": "0000577"})
    outcome = request(db, wish, host="host", version="1.0")
    assert isinstance(outcome, RequestOutcome)
    assert find(db, outcome.id).partition == partition.name
    (txn_id,) = open_transactions(db, user="u", host="h")
    allocate_write_ids(db, [txn_id], name)
    component = LockComponent(
        database=name.database,
        table=name.table,
        partition=partition.name,
        type=LockType.SHARED_WRITE,
        operation=Operation.UPDATE,
    )
    acquire(db, LockRequest(txn_id=txn_id, components=[component], user="u", host="h"))
    commit_transaction(db, txn_id)


ON_PURPOSE = {
    # every row of the history, in its order, once in five minutes
    "_expired_ids": {"COMPLETED_COMPACTIONS"},
    # an object is known to have duplicates only by counting its rows
    "clean_duplicate_completed_components": {"COMPLETED_TXN_COMPONENTS"},
    # most of what there is has ended, until it has run
    "clean_empty_transactions": {"TXNS", "TXN_COMPONENTS"},
    # counts the components of all aborted transactions, and there are components of few others
    "aborted_objects": {"TXN_COMPONENTS", "TXNS"},
    "abandoned_compactions": {"TXN_COMPONENTS", "TXNS"},
}
"""What a function of the metastore has to read whole, and why."""


@pytest.mark.parametrize("role", [initiator, worker, cleaner, housekeeper, user], ids=lambda role: role.__name__)
def test_no_statement_of_a_role_reads_a_whole_table(
    role: Callable[[Installation], None], installation: Installation
) -> None:
    with captured(installation.db) as statements:
        role(installation)
    assert len(statements) > 5
    found = {
        f"{full} in: {statement.sql}" for statement in statements for full in full_scans(installation.db, statement)
    }
    assert found == set()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What was sent to the database. caller: the function of the metastore that sent it."""

    sql: str
    parameters: Any
    caller: str


@contextmanager
def captured(db: Database) -> Iterator[list[Statement]]:
    """Every different statement with a plan that is sent meanwhile, with its first parameters."""
    found: dict[str, Statement] = {}

    def keep(_conn: object, _cursor: object, sql: str, parameters: Any, _context: object, many: bool) -> None:
        if sql.lstrip("( ").startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            first = parameters[0] if many else parameters
            found.setdefault(sql, Statement(sql=sql, parameters=first, caller=_caller()))

    sa.event.listen(db.engine, "before_cursor_execute", keep)
    statements: list[Statement] = []
    try:
        yield statements
    finally:
        sa.event.remove(db.engine, "before_cursor_execute", keep)
        statements += found.values()


def _caller() -> str:
    frame = sys._getframe()
    while frame is not None and "/compactor/metastore/" not in frame.f_code.co_filename:
        frame = frame.f_back
    names = []
    while frame is not None and "/compactor/metastore/" in frame.f_code.co_filename:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return ".".join(names)


def full_scans(db: Database, statement: Statement) -> set[str]:
    """The guarded tables that the database would read whole for a statement."""
    scans = {
        "sqlite": _sqlite_scans,
        "postgresql": _postgresql_scans,
        "mysql": _mariadb_scans,
        "mariadb": _mariadb_scans,
    }
    with db.write() as conn:
        names = {_table(name) for name in scans[db.engine.dialect.name](conn, statement)}
    allowed = [tables for function, tables in ON_PURPOSE.items() if function in statement.caller]
    return (names & GUARDED).difference(*allowed)


def _sqlite_scans(conn: sa.Connection, statement: Statement) -> Iterator[str]:
    plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement.sql}", statement.parameters).all()
    ordered = "LIMIT" in statement.sql and not any("TEMP B-TREE" in row.detail for row in plan)
    for row in plan:
        if (scanned := re.match(r"SCAN (\w+)", row.detail)) and not ordered:
            yield scanned[1]


def _postgresql_scans(conn: sa.Connection, statement: Statement) -> Iterator[str]:
    plan = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement.sql}", statement.parameters).scalar_one()
    nodes = [(plan[0]["Plan"], False)]
    while nodes:
        node, limited = nodes.pop()
        limited = limited or node["Node Type"] == "Limit"
        ordered = node["Node Type"].startswith("Index") and ("Index Cond" in node or limited)
        if "Relation Name" in node and not ordered and node["Node Type"] not in {"Bitmap Heap Scan", "ModifyTable"}:
            yield node["Relation Name"]
        nodes += [(child, limited) for child in node.get("Plans", [])]


def _mariadb_scans(conn: sa.Connection, statement: Statement) -> Iterator[str]:
    for row in conn.exec_driver_sql(f"EXPLAIN {statement.sql}", statement.parameters).mappings():
        ordered = row["type"] == "index" and "LIMIT" in statement.sql and "filesort" not in (row["Extra"] or "")
        if row["table"] is not None and row["type"] in {"ALL", "index"} and not ordered:
            yield row["table"]


def _table(name: str) -> str:
    """Of an alias such as TXNS_1."""
    return re.sub(r"_\d+$", "", name)


def _analyze(db: Database) -> None:
    """Let the planner know how large the tables are."""
    with db.write() as conn:
        if db.engine.dialect.name == "sqlite":
            # Nobody runs ANALYZE on SQLite; its planner then takes each table for a large one
            return
        if db.engine.dialect.name in {"mysql", "mariadb"}:
            for table in sorted(GUARDED):
                conn.exec_driver_sql(f"ANALYZE TABLE {table}").all()
        else:
            conn.exec_driver_sql("ANALYZE")


def _transaction(txn_id: int, state: str) -> dict[str, Any]:
    # aborted a moment ago: nothing that the cleaner has to remove yet
    times = {"TXN_STARTED": 1 if state == "c" else 1 << 45, "TXN_LAST_HEARTBEAT": 1 << 45}
    return {"TXN_ID": txn_id, "TXN_STATE": state, "TXN_USER": "u", "TXN_HOST": "h", "TXN_TYPE": 0} | times


def _component(txn_id: int, place: Place) -> dict[str, Any]:
    name = {"TC_DATABASE": place.table.database, "TC_TABLE": place.table.table, "TC_PARTITION": place.partition}
    return {"TC_TXNID": txn_id, "TC_OPERATION_TYPE": "i", "TC_WRITEID": 1} | name


def _shared(mine: Compaction) -> LockComponent:
    return LockComponent(
        database=mine.table.database,
        table=mine.table.table,
        partition=mine.partition,
        type=LockType.SHARED_READ,
        operation=Operation.SELECT,
    )
