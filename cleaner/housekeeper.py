"""The housekeeper: ends what nobody keeps alive, and forgets what nobody can ask for.

One cycle, under the HouseKeeper mutex; each step is one database transaction, and any order of them is safe:

1. Abort transactions without a heartbeat, and release locks without one. End deadlocks: waiters of ours do it
   themselves, Hive's do not. Claims of compactions whose transaction was aborted, or which are older than the time
   limit, go back to the queue.
2. Forget ended transactions, write ids, write sets and duplicates that no snapshot can refer to.
3. Shorten the history.

Sources: Hive `AcidHouseKeeperService`, `AcidTxnCleanerService`, `CompactionHouseKeeperService`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from compactor.metastore.database import Database
from compactor.metastore.deadlocks import end_deadlocks
from compactor.metastore.history import HistoryRetention, purge_history
from compactor.metastore.housekeeping import (
    clean_duplicate_completed_components,
    clean_empty_transactions,
    clean_write_id_map,
    clean_write_sets,
)
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.queue import revoke_aborted, revoke_silent, revoke_timed_out
from compactor.metastore.time_outs import time_out_locks, time_out_transactions
from compactor.service.metrics import Metrics
from compactor.settings import Settings

_BATCH = 1000
_MOST_BATCHES = 100


@dataclass(frozen=True, kw_only=True)
class HouseKeeperResult:
    """What one cycle did: ids of what was ended, numbers of rows that were forgotten."""

    timed_out_transactions: tuple[int, ...] = ()
    timed_out_locks: tuple[int, ...] = ()
    deadlocked: tuple[int, ...] = ()
    revoked: tuple[int, ...] = ()
    empty_transactions: int = 0
    write_ids: int = 0
    write_sets: int = 0
    duplicate_components: int = 0
    history: int = 0
    held_elsewhere: bool = False

    @property
    def did_anything(self) -> bool:
        forgotten = (
            self.empty_transactions + self.write_ids + self.write_sets + self.duplicate_components + self.history
        )
        ended = self.timed_out_transactions or self.timed_out_locks or self.deadlocked
        return bool(ended or self.revoked or forgotten)

    def describe(self) -> str:
        if self.held_elsewhere:
            return "another housekeeper is at work"
        return (
            f"timed out {len(self.timed_out_transactions)} transactions and {len(self.timed_out_locks)} locks, "
            f"ended {len(self.deadlocked)} deadlocks, "
            f"gave back {len(self.revoked)} claims; forgot {self.empty_transactions} transactions, "
            f"{self.write_ids} write ids, {self.write_sets} write sets, {self.duplicate_components} duplicates, "
            f"{self.history} history rows"
        )


class HouseKeeper:
    """Runs cycles; `compactor.service.loop` decides when. clock: monotonic seconds."""

    def __init__(
        self, db: Database, settings: Settings, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._db = db
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._purged_at: float | None = None

    def run_once(self) -> HouseKeeperResult:
        """One cycle. MetastoreError when the database fails; the steps before that stay done."""
        with mutex(self._db, MutexKey.HOUSE_KEEPER) as mine:
            if mine is None:
                self._metrics.waits.labels("housekeeper mutex").inc()
                return HouseKeeperResult(held_elsewhere=True)
            timeout_ms = int(self._settings.txn.timeout_s * 1000)
            timed_out = self._time_out_transactions(timeout_ms)
            locks = time_out_locks(self._db, timeout_ms=timeout_ms)
            deadlocked = [deadlock.victim for deadlock in end_deadlocks(self._db)]
            revoked = revoke_aborted(self._db)
            revoked += revoke_silent(self._db, timeout_ms=timeout_ms)
            revoked += revoke_timed_out(self._db, timeout_ms=int(self._settings.worker.timeout_s * 1000))
            return HouseKeeperResult(
                timed_out_transactions=tuple(timed_out),
                timed_out_locks=tuple(locks),
                deadlocked=tuple(deadlocked),
                revoked=tuple(revoked),
                empty_transactions=clean_empty_transactions(
                    self._db, open_txn_timeout_ms=int(self._settings.txn.open_timeout_s * 1000)
                ),
                write_ids=clean_write_id_map(self._db),
                write_sets=clean_write_sets(self._db),
                duplicate_components=clean_duplicate_completed_components(self._db),
                history=self._purge_history(),
            )

    def _time_out_transactions(self, timeout_ms: int) -> list[int]:
        """Batch by batch: each is one database transaction, and what is counted stays counted when the next one fails."""
        timed_out: list[int] = []
        for _ in range(_MOST_BATCHES):
            batch = time_out_transactions(
                self._db,
                timeout_ms=timeout_ms,
                replication_timeout_ms=int(self._settings.txn.repl_timeout_s * 1000),
                limit=_BATCH,
            )
            self._metrics.timed_out_transactions.inc(len(batch))
            timed_out += batch
            if len(batch) < _BATCH:
                break
        return timed_out

    def _purge_history(self) -> int:
        """Less often than the rest: it reads the whole history."""
        now = self._clock()
        if self._purged_at is not None and now - self._purged_at < self._settings.housekeeper.history_interval_s:
            return 0
        self._purged_at = now
        return purge_history(self._db, self._retention())

    def _retention(self) -> HistoryRetention:
        settings = self._settings.housekeeper
        return HistoryRetention(
            did_not_initiate=settings.retention.did_not_initiate,
            failed=settings.retention.failed,
            succeeded=settings.retention.succeeded,
            refused=settings.retention.refused,
            aborted=settings.retention.aborted,
            breaker_threshold=self._settings.initiator.failed_compacts_threshold,
            older_than_ms=int(settings.history_timeout_s * 1000),
        )
