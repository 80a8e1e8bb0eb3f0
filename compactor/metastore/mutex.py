"""One of a kind at a time: the mutexes that keep two initiators or two cleaners from working side by side.

On a database server it is Hive's: a row of AUX_TABLE, locked in a transaction that stays open as long as the cycle
lasts, on a connection of its own; so ours and Hive's initiators and cleaners exclude each other. The server lets go
when the connection ends, however it ends. When the last cycle began stands in MT_KEY2 and is written with the release;
a cycle that failed leaves the old time.

SQLite has no row locks, and a transaction that is open for a whole cycle would stop every other writer, so there the
lock is a file beside the database, one a key, held with flock(2): the kernel lets it go when the process dies.

Source: Hive `TxnStoreMutex`, `TxnStore.MUTEX_KEY`.
"""

from __future__ import annotations

import enum
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from compactor.metastore.database import Database, RolledBack, retried
from compactor.metastore.schema import AUX_TABLE


class MutexKey(enum.StrEnum):
    """What is to happen only once at a time; the values of MT_KEY1."""

    INITIATOR = "Initiator"
    """Looking for tables that need a compaction."""
    CLEANER = "Cleaner"
    """Removing obsolete files."""
    HOUSE_KEEPER = "HouseKeeper"
    """Timing out transactions, purging history."""


class HeldMutex:
    """A mutex that is ours until the `with` block ends."""

    def __init__(self, last_update: int) -> None:
        self.last_update = last_update
        """Epoch ms that the last holder left behind, 0 when there was none."""
        self.is_changed = False

    def set_last_update(self, at: int) -> None:
        """Leave a time (epoch ms) to the next holder; it is written when the block ends without an error."""
        self.last_update = at
        self.is_changed = True


@contextmanager
def mutex(db: Database, key: MutexKey) -> Iterator[HeldMutex | None]:
    """Hold a mutex during the block; None when somebody else holds it."""
    with _row_locked(db, key) if db.file is None else _file_locked(db, db.file, key) as held:
        yield held


@contextmanager
def _row_locked(db: Database, key: MutexKey) -> Iterator[HeldMutex | None]:
    with db.apart() as conn:
        last = _lock_row(conn, key)
        if last is None and not _exists(conn, key) and _insert(db, key):
            last = _lock_row(conn, key)
        if last is None:
            yield None
            return
        held = HeldMutex(last)
        yield held
        if held.is_changed:
            conn.execute(_update(key, held.last_update))
            conn.commit()


def _lock_row(conn: sa.Connection, key: MutexKey) -> int | None:
    """MT_KEY2 of the row, which is ours now; None when there is none that is free."""
    free = sa.select(AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == key).with_for_update(skip_locked=True)
    last: int | None = conn.scalar(free)
    return last


def _exists(conn: sa.Connection, key: MutexKey) -> bool:
    return conn.scalar(sa.select(AUX_TABLE.c.MT_KEY1).where(AUX_TABLE.c.MT_KEY1 == key)) is not None


def _insert(db: Database, key: MutexKey) -> bool:
    """Add the row, as whoever first needs it does; False when somebody adds it in a transaction that goes on."""
    try:
        with db.write() as conn:
            conn.execute(AUX_TABLE.insert().values(MT_KEY1=key, MT_KEY2=0))
    except IntegrityError:
        return True
    except RolledBack:
        return False
    return True


@contextmanager
def _file_locked(db: Database, file: Path, key: MutexKey) -> Iterator[HeldMutex | None]:
    with file.with_name(f"{file.name}.{key}.lock").open("ab") as lock:
        try:
            # closing the file releases the lock, whatever ends the block
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        held = HeldMutex(_read_last_update(db, key))
        yield held
        if held.is_changed:
            _write_last_update(db, key, held.last_update)


@retried
def _read_last_update(db: Database, key: MutexKey) -> int:
    query = sa.select(AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == key)
    with db.read() as conn:
        last: int | None = conn.scalar(query)
        return last or 0


@retried
def _write_last_update(db: Database, key: MutexKey, at: int) -> None:
    with db.write() as conn:
        if conn.execute(_update(key, at)).rowcount == 0:
            conn.execute(AUX_TABLE.insert().values(MT_KEY1=key, MT_KEY2=at))


def _update(key: MutexKey, at: int) -> sa.Update:
    return AUX_TABLE.update().where(AUX_TABLE.c.MT_KEY1 == key).values(MT_KEY2=at)
