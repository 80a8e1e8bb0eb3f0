"""One of a kind at a time: the mutexes that keep two initiators or two cleaners from working side by side.

Hive locks a row of AUX_TABLE for as long as the cycle lasts. SQLite has no row locks, and a transaction that is open
for a whole cycle would stop every other writer, so the lock is a file beside the database, one a key, held with
flock(2): the kernel lets it go when the process dies, however it dies. When the last cycle began is kept where Hive
keeps it, in MT_KEY2 of the row. Source: Hive `TxnStoreMutex`, `TxnStore.MUTEX_KEY`.
"""

from __future__ import annotations

import enum
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from compactor.metastore.database import Database, retried
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

    def __init__(self, db: Database, key: MutexKey, last_update: int) -> None:
        self._db = db
        self._key = key
        self.last_update = last_update
        """Epoch ms that the last holder left behind, 0 when there was none."""

    def set_last_update(self, at: int) -> None:
        """Leave a time (epoch ms) to the next holder."""
        _write_last_update(self._db, self._key, at)
        self.last_update = at


@contextmanager
def mutex(db: Database, key: MutexKey, *, wait: bool = False) -> Iterator[HeldMutex | None]:
    """Hold a mutex during the block; None when somebody else holds it (wait: blocks until it is free)."""
    path = db.file.with_name(f"{db.file.name}.{key}.lock")
    with path.open("ab") as file:
        try:
            # closing the file releases the lock, whatever ends the block
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield HeldMutex(db, key, _read_last_update(db, key))


@retried
def _read_last_update(db: Database, key: MutexKey) -> int:
    query = sa.select(AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == key)
    with db.read() as conn:
        last: int | None = conn.scalar(query)
        return last or 0


@retried
def _write_last_update(db: Database, key: MutexKey, at: int) -> None:
    with db.write() as conn:
        if conn.execute(AUX_TABLE.update().where(AUX_TABLE.c.MT_KEY1 == key).values(MT_KEY2=at)).rowcount == 0:
            conn.execute(AUX_TABLE.insert().values(MT_KEY1=key, MT_KEY2=at))
