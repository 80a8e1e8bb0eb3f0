"""Outputs of aborted compactions: of workers that failed, were killed, or lost their claim.

1. Remove the directories `…_v<txn>` as soon as the transaction is aborted: nobody can ever see them.
2. Keep the transaction known as aborted for a quarantine, counted from its last heartbeat. A worker that was only
   paused may still write when it wakes up; as long as the transaction is known, what it writes stays invisible.
3. Look once more, remove what came late, and forget the transaction.

Without step 2 a housekeeper would forget an aborted transaction that has no components, readers would take the unknown
id for a committed one, and a half-written base would become the table (I2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


class AbandonedOutputs:
    """Remembers between cycles what it has removed, so that a quarantine costs no listing every few seconds.

    quarantine_s: how long after its last heartbeat a worker may come back to life.
    """

    def __init__(self, db: Database, filesystem_of: FilesystemOf, *, quarantine_s: float) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._quarantine_ms = quarantine_s * 1000
        self._removed_once: set[int] = set()

    def run_once(self) -> AbandonedOutcome:
        """One look at every aborted compaction; MetastoreError when the database fails."""
        removed = Removed()
        forgotten: list[int] = []
        errors: list[str] = []
        known = abandoned_compactions(self._db)
        self._removed_once &= {compaction.txn_id for compaction in known}
        for compaction in known:
            over = compaction.silent_ms >= self._quarantine_ms
            if compaction.txn_id in self._removed_once and not over:
                continue
            try:
                removed += self._remove(compaction)
            except (StorageError, FormatError) as error:
                errors.append(f"output of the aborted compaction transaction {compaction.txn_id}: {error}")
                continue
            self._removed_once.add(compaction.txn_id)
            if over:
                forget_abandoned(self._db, compaction.txn_id)
                forgotten.append(compaction.txn_id)
        return AbandonedOutcome(removed=removed, forgotten=tuple(forgotten), errors=tuple(errors))

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
