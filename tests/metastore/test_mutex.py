from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionType
from compactor.metastore.database import Database, RetryPolicy, RolledBack
from compactor.metastore.mutex import HeldMutex, MutexKey, mutex
from compactor.metastore.queue import request_compaction
from compactor.metastore.schema import AUX_TABLE
from tests.servers import on_servers

HOLD_UNTIL_KILLED = """
import sys
from compactor.metastore.database import Database
from compactor.metastore.mutex import MutexKey, mutex
with mutex(Database.connect(sys.argv[1]), MutexKey.CLEANER) as held:
    print("held" if held else "refused", flush=True)
    sys.stdin.read()
"""


def test_a_held_mutex_is_refused_to_everybody_else(db: Database, database_url: str) -> None:
    other = Database.connect(database_url)
    with mutex(db, MutexKey.CLEANER) as held:
        assert held is not None
        with mutex(other, MutexKey.CLEANER) as second:
            assert second is None
    with mutex(other, MutexKey.CLEANER) as third:
        assert third is not None
    other.dispose()


def test_mutexes_of_different_keys_are_independent(db: Database) -> None:
    with mutex(db, MutexKey.CLEANER) as cleaner, mutex(db, MutexKey.INITIATOR) as initiator:
        assert cleaner is not None
        assert initiator is not None


def test_an_error_inside_releases_the_mutex(db: Database) -> None:
    with pytest.raises(KeyError), mutex(db, MutexKey.CLEANER):
        raise KeyError
    with mutex(db, MutexKey.CLEANER) as held:
        assert held is not None


def test_writers_go_on_while_a_mutex_is_held(db: Database) -> None:
    with mutex(db, MutexKey.CLEANER) as held:
        with db.write() as conn:
            conn.execute(AUX_TABLE.insert().values(MT_KEY1="x", MT_KEY2=1))
        assert held is not None
        with db.read() as conn:
            assert conn.scalar(AUX_TABLE.select().where(AUX_TABLE.c.MT_KEY1 == "x")) == "x"


def test_the_next_holder_learns_when_the_last_one_began(db: Database) -> None:
    with mutex(db, MutexKey.INITIATOR) as held:
        assert held is not None
        assert held.last_update == 0
        held.set_last_update(1000)
        held.set_last_update(2000)
        assert held.last_update == 2000
    with mutex(db, MutexKey.INITIATOR) as held:
        assert held is not None
        assert held.last_update == 2000
    with mutex(db, MutexKey.CLEANER) as held:
        assert held is not None
        assert held.last_update == 0
    with db.read() as conn:
        rows = conn.execute(sa.select(AUX_TABLE.c.MT_KEY1, AUX_TABLE.c.MT_KEY2)).all()
    assert ("Initiator", 2000) in rows


def test_a_cycle_that_failed_leaves_the_old_time(db: Database) -> None:
    with mutex(db, MutexKey.INITIATOR) as held:
        assert held is not None
        held.set_last_update(1000)

    def fail(held: HeldMutex | None) -> None:
        assert held is not None
        held.set_last_update(2000)
        raise KeyError

    with pytest.raises(KeyError), mutex(db, MutexKey.INITIATOR) as held:
        fail(held)
    with mutex(db, MutexKey.INITIATOR) as held:
        assert held is not None
        assert held.last_update == 1000


def test_a_killed_process_lets_go(db: Database, database_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_UNTIL_KILLED, database_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with mutex(db, MutexKey.CLEANER) as held:
            assert held is None
        process.kill()
    with mutex(db, MutexKey.CLEANER) as held:
        assert held is not None


@on_servers
def test_hives_lock_on_the_row_and_our_mutex_exclude_each_other(db: Database, database_url: str) -> None:
    with mutex(db, MutexKey.CLEANER):
        pass
    hive = Database.connect(database_url)
    row = sa.select(AUX_TABLE.c.MT_COMMENT, AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == "Cleaner")
    with hive.write() as conn:
        conn.execute(row.with_for_update())
        with mutex(db, MutexKey.CLEANER) as held:
            assert held is None
    with mutex(db, MutexKey.CLEANER) as held, hive.write() as conn:
        assert held is not None
        assert conn.execute(row.with_for_update(skip_locked=True)).all() == []
    hive.dispose()


def test_requests_wait_for_hives_scheduler(db: Database, database_url: str) -> None:
    table = TableName(database="d", table="t")
    request = CompactionRequest(table=table, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1")
    assert request_compaction(db, request).accepted
    assert not request_compaction(db, request).accepted, "Hive's row is there from the first request on"
    impatient = Database.connect(database_url, busy_timeout_s=0, retry=RetryPolicy(attempts=1))
    scheduler = sa.select(AUX_TABLE).where(AUX_TABLE.c.MT_KEY1 == "CompactionScheduler")
    with db.write() as conn:
        assert len(conn.execute(scheduler.with_for_update()).all()) == 1
        with pytest.raises(RolledBack):
            request_compaction(impatient, request)
    impatient.dispose()


@on_servers
def test_a_mutex_whose_connection_broke_is_free_again(db: Database) -> None:
    with db.apart() as conn:
        locked = sa.select(AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == "Cleaner").with_for_update()
        with mutex(db, MutexKey.CLEANER):
            pass
        conn.execute(locked)
        with mutex(db, MutexKey.CLEANER) as held:
            assert held is None
        conn.connection.dbapi_connection.close()  # type: ignore[union-attr]
        with mutex(db, MutexKey.CLEANER) as held:
            assert held is not None
