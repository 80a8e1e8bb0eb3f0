from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from compactor.errors import NotInitialised
from compactor.metastore import schema
from compactor.metastore.database import Database
from compactor.service.metrics import DeltaCount, PoolStatistics, QueueStatistics
from compactor.service.queue_statistics import read_statistics

HOUR_MS = 3600 * 1000


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database.connect(f"sqlite:///{tmp_path / 'metastore.db'}")
    schema.init_db(database)
    yield database
    database.dispose()


@pytest.fixture
def now(db: Database) -> int:
    with db.read() as conn:
        return db.now(conn)


def insert(db: Database, table: sa.Table, *rows: dict[str, Any]) -> None:
    with db.write() as conn:
        for row in rows:
            conn.execute(table.insert().values(**row))


def queued(number: int, state: str, **columns: Any) -> dict[str, Any]:
    row = {"ID": number, "DATABASE": "db", "TABLE": f"t{number}", "STATE": state, "TYPE": "i"} | columns
    return {f"CQ_{name}": value for name, value in row.items()}


def ended(number: int, state: str, **columns: Any) -> dict[str, Any]:
    row = {"ID": number, "DATABASE": "db", "TABLE": f"t{number}", "STATE": state, "TYPE": "i"} | columns
    return {f"CC_{name}": value for name, value in row.items()}


def txn(number: int, state: str, started: int, kind: int = 0) -> dict[str, Any]:
    return {
        "TXN_ID": number,
        "TXN_STATE": state,
        "TXN_STARTED": started,
        "TXN_LAST_HEARTBEAT": started,
        "TXN_USER": "u",
        "TXN_HOST": "h",
        "TXN_TYPE": kind,
    }


def read(db: Database, **limits: int) -> QueueStatistics:
    defaults = {"top": 100, "delta_threshold": 100, "obsolete_delta_threshold": 100}
    return read_statistics(db, **(defaults | limits))


def test_an_empty_metastore_has_only_zeros(db: Database) -> None:
    statistics = read(db)
    assert set(statistics.compactions.values()) == {0}
    assert statistics.pools == {"default": PoolStatistics()}
    assert statistics.oldest_enqueue_age_s == 0
    assert statistics.open_non_repl_transactions == 0
    assert statistics.active_deltas == ()


def test_a_database_without_hives_tables_is_reported(tmp_path: Path) -> None:
    empty = Database.connect(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(NotInitialised):
        read(empty)
    empty.dispose()


def test_only_the_newest_compaction_of_an_object_counts_towards_the_states(db: Database) -> None:
    insert(
        db,
        schema.COMPLETED_COMPACTIONS,
        ended(1, "f", TABLE="repaired"),
        ended(2, "s", TABLE="repaired"),
        ended(3, "s", TABLE="parted", PARTITION="p=1"),
        ended(4, "f", TABLE="parted", PARTITION="p=2"),
        ended(5, "x", TABLE="cancelled"),
        ended(6, "s", TABLE="busy"),
    )
    insert(
        db,
        schema.COMPACTION_QUEUE,
        queued(7, "w", TABLE="busy"),
        queued(8, "r", TABLE="cleaning"),
        queued(9, "r", TABLE="retried", TYPE="c"),
    )
    assert {state: count for state, count in read(db).compactions.items() if count} == {
        "succeeded": 2,
        "failed": 1,
        "aborted": 1,
        "working": 1,
        "ready_for_cleaning": 1,
    }


def test_the_oldest_row_of_each_step_gives_its_age(db: Database, now: int) -> None:
    insert(
        db,
        schema.COMPACTION_QUEUE,
        queued(1, "i", ENQUEUE_TIME=now - 60_000),
        queued(2, "i", ENQUEUE_TIME=now - 10_000),
        queued(3, "w", ENQUEUE_TIME=now - HOUR_MS, START=now - 30_000),
        queued(4, "r", ENQUEUE_TIME=now - HOUR_MS, COMMIT_TIME=now - 50_000, CLEANER_START=now - 5_000),
        queued(5, "r", ENQUEUE_TIME=now - HOUR_MS, COMMIT_TIME=now - 20_000, CLEANER_START=-1),
    )
    statistics = read(db)
    assert statistics.oldest_enqueue_age_s == pytest.approx(60, abs=5)
    assert statistics.oldest_working_age_s == pytest.approx(30, abs=5)
    assert statistics.oldest_ready_for_cleaning_age_s == pytest.approx(50, abs=5)
    assert statistics.oldest_cleaning_age_s == pytest.approx(5, abs=5)
    assert statistics.oldest_cleaning_age_s >= 5


def test_pools_are_counted_separately_and_rows_without_one_belong_to_the_default(db: Database, now: int) -> None:
    insert(
        db,
        schema.COMPACTION_QUEUE,
        queued(1, "i", ENQUEUE_TIME=now - 60_000),
        queued(2, "i", POOL_NAME="", ENQUEUE_TIME=now),
        queued(3, "w", POOL_NAME="etl", ENQUEUE_TIME=now, START=now - 30_000),
        queued(4, "r", POOL_NAME="gone", ENQUEUE_TIME=now),
    )
    pools = read(db).pools
    assert {name: (pool.initiated, pool.working) for name, pool in pools.items()} == {"default": (2, 0), "etl": (0, 1)}
    assert pools["default"].oldest_enqueue_age_s == pytest.approx(60, abs=5)
    assert pools["etl"].oldest_working_age_s == pytest.approx(30, abs=5)


def test_processes_are_counted_once_however_many_claims_they_made(db: Database, now: int) -> None:
    insert(
        db,
        schema.COMPACTION_QUEUE,
        queued(1, "w", WORKER_ID="host-a-17.ab12", WORKER_VERSION="1", START=now),
        queued(2, "w", WORKER_ID="host-a-17.cd34", WORKER_VERSION="1", START=now),
        queued(3, "i", INITIATOR_ID="host-a-9.x", INITIATOR_VERSION="1", ENQUEUE_TIME=now),
    )
    insert(
        db,
        schema.COMPLETED_COMPACTIONS,
        ended(4, "s", WORKER_ID="host-b-23", WORKER_VERSION="2", START=now, ENQUEUE_TIME=now),
        ended(5, "s", WORKER_ID="host-c-42", WORKER_VERSION="0", START=now - 25 * HOUR_MS, ENQUEUE_TIME=now),
    )
    statistics = read(db)
    assert (statistics.workers, statistics.worker_versions) == (2, 2)
    assert (statistics.initiators, statistics.initiator_versions) == (1, 1)


def test_transactions_of_replication_are_told_from_those_of_users(db: Database, now: int) -> None:
    insert(
        db,
        schema.TXNS,
        txn(5, "o", now - 60_000),
        txn(6, "o", now - 10_000),
        txn(7, "o", now - 90_000, kind=1),
        txn(8, "a", now - 40_000),
        txn(9, "a", now - 30_000),
        txn(10, "c", now - HOUR_MS),
    )
    statistics = read(db)
    assert statistics.open_non_repl_transactions == 2
    assert statistics.oldest_open_non_repl_txn_id == 5
    assert statistics.oldest_open_non_repl_txn_age_s == pytest.approx(60, abs=5)
    assert statistics.open_repl_transactions == 1
    assert statistics.oldest_open_repl_txn_id == 7
    assert statistics.oldest_open_repl_txn_age_s == pytest.approx(90, abs=5)
    assert (statistics.aborted_transactions, statistics.oldest_aborted_txn_id) == (2, 8)
    assert statistics.oldest_aborted_txn_age_s == pytest.approx(40, abs=5)


def test_an_object_counts_when_strictly_more_transactions_of_it_are_aborted(db: Database, now: int) -> None:
    insert(db, schema.TXNS, *(txn(number, "a", now) for number in range(1, 4)), txn(4, "o", now))
    component = {"TC_DATABASE": "db", "TC_OPERATION_TYPE": "i"}
    insert(
        db,
        schema.TXN_COMPONENTS,
        *(component | {"TC_TXNID": number, "TC_TABLE": "crowded"} for number in (1, 2, 3)),
        *(component | {"TC_TXNID": number, "TC_TABLE": "at_limit"} for number in (1, 2, 2, 4)),
    )
    assert read(db, aborted_txn_threshold=2).tables_with_x_aborted_transactions == 1


def test_locks_and_growing_tables_are_counted(db: Database, now: int) -> None:
    lock = {
        "HL_LOCK_INT_ID": 1,
        "HL_TXNID": 1,
        "HL_DB": "db",
        "HL_LOCK_STATE": "a",
        "HL_LOCK_TYPE": "r",
        "HL_LAST_HEARTBEAT": 0,
        "HL_USER": "u",
        "HL_HOST": "h",
    }
    insert(
        db,
        schema.HIVE_LOCKS,
        lock | {"HL_LOCK_EXT_ID": 1, "HL_ACQUIRED_AT": now - 70_000},
        lock | {"HL_LOCK_EXT_ID": 2, "HL_ACQUIRED_AT": None},
    )
    insert(
        db,
        schema.TXN_TO_WRITE_ID,
        {"T2W_TXNID": 1, "T2W_DATABASE": "db", "T2W_TABLE": "t", "T2W_WRITEID": 1},
    )
    insert(
        db,
        schema.COMPLETED_TXN_COMPONENTS,
        *({"CTC_TXNID": number, "CTC_DATABASE": "db", "CTC_UPDATE_DELETE": "N"} for number in (1, 2, 3)),
    )
    statistics = read(db)
    assert statistics.locks == 2
    assert statistics.oldest_lock_age_s == pytest.approx(70, abs=5)
    assert statistics.txn_to_writeid == 1
    assert statistics.completed_txn_components == 3


def test_the_tables_with_the_most_deltas_are_listed_by_name(db: Database) -> None:
    def cached(table: str, kind: str, value: int, partition: str | None = None) -> dict[str, Any]:
        return {
            "CMC_DATABASE": "db",
            "CMC_TABLE": table,
            "CMC_PARTITION": partition,
            "CMC_METRIC_TYPE": kind,
            "CMC_METRIC_VALUE": value,
            "CMC_VERSION": 1,
        }

    insert(
        db,
        schema.COMPACTION_METRICS_CACHE,
        cached("few", "NUM_DELTAS", 99),
        cached("many", "NUM_DELTAS", 100),
        cached("most", "NUM_DELTAS", 300, "p=1"),
        cached("second", "NUM_DELTAS", 200),
        cached("small", "NUM_SMALL_DELTAS", 101),
        cached("obsolete", "NUM_OBSOLETE_DELTAS", 50),
    )
    statistics = read(db, top=2, obsolete_delta_threshold=50)
    assert statistics.active_deltas == (
        DeltaCount(database="db", table="most", partition="p=1", count=300),
        DeltaCount(database="db", table="second", partition="", count=200),
    )
    assert [delta.table for delta in statistics.small_deltas] == ["small"]
    assert [delta.table for delta in statistics.obsolete_deltas] == ["obsolete"]
    assert [delta.table for delta in read(db).active_deltas] == ["most", "second", "many"]
