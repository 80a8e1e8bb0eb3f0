"""Waiting for a lock that is not free at once.

Pauses double from 100 ms to the longest one; 100 further attempts with pauses of up to 60 s are 91 minutes. Each
attempt is a heartbeat. A wait that can never end, because others wait for us, is ended (`deadlocks`).
Source: Hive `DbLockManager.lock`, `backoff`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from compactor.errors import DatabaseUnavailable, LockNotAcquired, NoSuchLock
from compactor.metastore.database import Database
from compactor.metastore.deadlocks import end_deadlocks
from compactor.metastore.locks import LockResponse, LockState, check, unlock
from compactor.settings import LockSettings

FIRST_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait: see the [lock] settings. retries: attempts after the first one."""

    retries: int = 100
    longest_pause_s: float = 60.0
    unlock_retries: int = 10

    @classmethod
    def of(cls, lock: LockSettings, *, timeout_s: float = inf) -> Patience:
        """The settings' patience. timeout_s: the transaction's; an attempt is its heartbeat, so none comes too late."""
        return cls(
            retries=lock.retries,
            longest_pause_s=min(lock.longest_pause_s, timeout_s / 2),
            unlock_retries=lock.unlock_retries,
        )


def wait_for(
    db: Database,
    lock_id: int,
    *,
    txn_id: int = 0,
    sleep: Callable[[float], None],
    patience: Patience = Patience(),
) -> LockResponse:
    """Check until the lock is acquired, with doubling pauses in between.

    After the last attempt in vain the request is withdrawn: LockNotAcquired. Deadlock when the transaction was in a
    circle and had to give way; otherwise as `check`.
    """
    pause = FIRST_PAUSE_S
    response = check(db, lock_id, txn_id=txn_id)
    for _ in range(patience.retries):
        if response.state is LockState.ACQUIRED:
            return response
        if txn_id not in {deadlock.victim for deadlock in end_deadlocks(db)}:
            sleep(min(pause, patience.longest_pause_s))
            pause *= 2
        response = check(db, lock_id, txn_id=txn_id)
    if response.state is LockState.ACQUIRED:
        return response
    _withdraw(db, lock_id, sleep=sleep, patience=patience)
    holder = response.blocked_by
    raise LockNotAcquired(
        f"lock {lock_id} was not acquired in {patience.retries + 1} attempts",
        hint="" if holder is None else f"transaction {holder.txn_id} of {holder.user}@{holder.host} is in the way",
    )


def _withdraw(db: Database, lock_id: int, *, sleep: Callable[[float], None], patience: Patience) -> None:
    """A request that stays in line holds up everybody behind it, so a failing database is asked more than once."""
    pause = FIRST_PAUSE_S
    for attempt in range(patience.unlock_retries + 1):
        try:
            unlock(db, lock_id)
        except NoSuchLock:
            return
        except DatabaseUnavailable:
            if attempt == patience.unlock_retries:
                raise
            sleep(min(pause, patience.longest_pause_s))
            pause *= 2
        else:
            return
