"""Outputs of aborted compactions: of workers that failed, were killed, or lost their claim.

1. Remove the directories `…_v<txn>` as soon as the transaction is aborted: nobody can ever see them.
2. Keep the transaction known as aborted for a quarantine, counted from its last heartbeat. A worker that was only
   paused may still write when it wakes up; as long as the transaction is known, what it writes stays invisible.
3. Look once more, remove what came late, and forget the transaction.

An output that cannot be removed, as below a read-only location, rests for the retry pause, which doubles each time.

Without step 2 a housekeeper would forget an aborted transaction that has no components, readers would take the unknown
id for a committed one, and a half-written base would become the table (I2).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cleaner.aborted import LONGEST_PAUSE_DOUBLINGS
from cleaner.obsolete import output_of
from cleaner.remover import Removed
from cleaner.sweep import sweep
from cleaner.target import find_target
from compactor.errors import FormatError, PathNotFound, StorageError
from compactor.metastore.abandoned import AbandonedCompaction, abandoned_compactions, forget_abandoned
from compactor.metastore.database import Database
from compactor.storage.filesystem import FilesystemOf


@dataclass(frozen=True, kw_only=True)
class AbandonedOutcome:
    """removed: files of aborted compactions. forgotten: transactions. errors: one sentence for each that went wrong."""

    removed: Removed = field(default_factory=Removed)
    forgotten: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """until: monotonic seconds. doublings: of the pause, one for each failure after the first."""

    until: float
    doublings: int


class AbandonedOutputs:
    """Remembers between cycles what it has removed, so that a quarantine costs no listing every few seconds.

    quarantine_s: how long after its last heartbeat a worker may come back to life. pause_s: rest after the first failed
    removal. clock: monotonic seconds. What it remembers is bounded by the aborted compactions that are still known.
    """

    def __init__(
        self,
        db: Database,
        filesystem_of: FilesystemOf,
        *,
        quarantine_s: float,
        pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._quarantine_ms = quarantine_s * 1000
        self._pause_s = pause_s
        self._clock = clock
        self._removed_once: set[int] = set()
        self._resting: dict[int, _Rest] = {}

    def run_once(self) -> AbandonedOutcome:
        """One look at every aborted compaction that does not rest; MetastoreError when the database fails."""
        removed = Removed()
        forgotten: list[int] = []
        errors: list[str] = []
        known = abandoned_compactions(self._db)
        known_ids = {compaction.txn_id for compaction in known}
        self._removed_once &= known_ids
        self._resting = {txn_id: rest for txn_id, rest in self._resting.items() if txn_id in known_ids}
        for compaction in known:
            over = compaction.silent_ms >= self._quarantine_ms
            if (compaction.txn_id in self._removed_once and not over) or self._rests(compaction):
                continue
            try:
                removed += self._remove(compaction)
            except (StorageError, FormatError) as error:
                errors.append(f"output of the aborted compaction transaction {compaction.txn_id}: {error}")
                self._postpone(compaction)
                continue
            self._resting.pop(compaction.txn_id, None)
            self._removed_once.add(compaction.txn_id)
            if over:
                forget_abandoned(self._db, compaction.txn_id)
                forgotten.append(compaction.txn_id)
        return AbandonedOutcome(removed=removed, forgotten=tuple(forgotten), errors=tuple(errors))

    def _rests(self, compaction: AbandonedCompaction) -> bool:
        rest = self._resting.get(compaction.txn_id)
        return rest is not None and self._clock() < rest.until

    def _postpone(self, compaction: AbandonedCompaction) -> None:
        rest = self._resting.get(compaction.txn_id)
        doublings = 0 if rest is None else min(rest.doublings + 1, LONGEST_PAUSE_DOUBLINGS)
        until = self._clock() + self._pause_s * 2**doublings
        self._resting[compaction.txn_id] = _Rest(until=until, doublings=doublings)

    def _remove(self, compaction: AbandonedCompaction) -> Removed:
        target = find_target(self._db, compaction.table, compaction.partition)
        if target is None or target.location is None:
            return Removed()
        try:
            return sweep(
                self._filesystem_of, target.location, lambda listing: output_of(listing, compaction.txn_id)
            ).removed
        except PathNotFound:
            # A location that does not exist holds no output
            return Removed()
