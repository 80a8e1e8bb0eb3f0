from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from compactor.metastore.database import Database
from compactor.metastore.mutex import HeldMutex, MutexKey, mutex
from compactor.metastore.schema import AUX_TABLE

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
