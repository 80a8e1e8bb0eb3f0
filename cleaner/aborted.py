"""Aborted writes, removed without a compaction (HIVE-27020).

1. Objects with too many aborted transactions, or with an old one, and whose last failed attempt is long enough ago.
2. Only what is aborted as a whole goes: deltas of which every write id is aborted, insert-overwrite bases, outputs of
   aborted compactions. Never an obsolete entry, for nobody knows whether it is still read (HIVE-25502, I8). Write ids
   count up to the first one that is still open in the table.
3. The database forgets exactly the write ids that no file holds any more. One that is left in a delta with committed
   rows stays until a compaction has left its rows out.
4. An object where nothing could be forgotten rests: it is looked at again when its number of aborts changed, or after
   the retry pause.

Sources: Hive `AbortedTxnCleaner`, `ReadyToCleanAbortHandler`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from cleaner.obsolete import Removal, aborted
from cleaner.remover import Removed
from cleaner.sweep import sweep_all
from cleaner.target import find_target, locations
from compactor.acid.directory import Listing, Snapshot
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import FormatError, StorageError
from compactor.metastore.candidates import AbortedObject, AbortThresholds, aborted_objects
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.metastore.ready import mark_aborts_cleaned, retry_aborts
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.settings import Settings
from compactor.storage.filesystem import FilesystemOf

LONGEST_PAUSE_DOUBLINGS = 16
"""Hive doubles without limit; 2^16 × 300 s is most of a year."""


@dataclass(frozen=True, kw_only=True)
class AbortedOutcome:
    """removed: files of aborted writes. forgotten: components. errors: one sentence for each object that went wrong."""

    removed: Removed = field(default_factory=Removed)
    forgotten: int = 0
    errors: tuple[str, ...] = ()


class AbortedTxnCleaner:
    """Runs inside the cleaner's cycle, under its mutex. clock: monotonic seconds."""

    def __init__(
        self,
        db: Database,
        filesystem_of: FilesystemOf,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._thresholds = AbortThresholds(
            count=settings.initiator.aborted_txn_threshold,
            older_than_ms=int(settings.initiator.aborted_txn_time_threshold_s * 1000),
        )
        self._limit = settings.initiator.fetch_size
        self._pause_s = settings.cleaner.retry_retention_s
        self._clock = clock
        self._resting: dict[tuple[TableName, str | None], tuple[int, float]] = {}

    def run_once(self) -> AbortedOutcome:
        """One look at every object over a threshold; MetastoreError when the database fails."""
        removed = Removed()
        forgotten = 0
        errors: list[str] = []
        for found in self._due():
            try:
                freed, count = self._clean(found)
            except (StorageError, FormatError) as error:
                errors.append(f"aborted writes of {_name(found)}: {error}")
                self._postpone(found, str(error))
                continue
            removed += freed
            forgotten += count
            if count < found.count:
                left = found.count - count
                self._resting[found.table, found.partition] = (left, self._clock() + self._pause_s)
        return AbortedOutcome(removed=removed, forgotten=forgotten, errors=tuple(errors))

    def _due(self) -> list[AbortedObject]:
        # Resting objects stay in the answer, so the limit grows by them: no object waits behind those (I9)
        found = aborted_objects(self._db, thresholds=self._thresholds, limit=self._limit + len(self._resting))
        over = {(o.table, o.partition) for o in found}
        self._resting = {key: rest for key, rest in self._resting.items() if key in over}
        return [o for o in found if not self._rests(o)]

    def _rests(self, found: AbortedObject) -> bool:
        count, until = self._resting.get((found.table, found.partition), (0, 0.0))
        return count == found.count and self._clock() < until

    def _clean(self, found: AbortedObject) -> tuple[Removed, int]:
        """What was removed, and how many components were forgotten."""
        txns = valid_txn_list(self._db)
        write_ids = valid_write_ids(self._db, found.table, txns).for_compaction()
        target = find_target(self._db, found.table, found.partition)
        places = iter(()) if target is None else locations(self._db, target, self._filesystem_of)
        first = next(places, None)
        if first is None:
            return Removed(), self._forget(found, write_ids, forgettable=None)

        def decide(listing: Listing) -> Removal:
            return aborted(listing, Snapshot(txns=txns, write_ids=write_ids))

        swept = sweep_all(self._filesystem_of, chain([first], places), decide)
        if swept.after.doomed:
            raise StorageError(f"{len(swept.after.doomed)} entries are still there after their removal")
        return swept.removed, self._forget(found, write_ids, forgettable=swept.after.forgettable)

    def _forget(self, found: AbortedObject, write_ids: ValidWriteIdList, *, forgettable: frozenset[int] | None) -> int:
        """forgettable: exactly these write ids; None: the object has no files any more, so everything."""
        return mark_aborts_cleaned(
            self._db,
            found.table,
            found.partition,
            highest_write_id=write_ids.high_water,
            uncompacted_aborts=forgettable is not None,
            aborted_write_ids=forgettable or frozenset(),
        )

    def _postpone(self, found: AbortedObject, message: str) -> None:
        first_ms = max(int(self._pause_s * 1000), 1)
        doublings = min((found.retry_retention // first_ms).bit_length(), LONGEST_PAUSE_DOUBLINGS)
        retry_aborts(self._db, found.table, found.partition, retention_ms=first_ms << doublings, message=message)


def _name(found: AbortedObject) -> str:
    return str(found.table) if found.partition is None else f"{found.table}/{found.partition}"
