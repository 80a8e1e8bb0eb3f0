"""Cleaning one row of the queue, from 'ready for cleaning' to its end.

What is known of a page of rows together was read before (`cleaner.facts`).

1. Table or partition dropped: nothing to remove, the row is done. Dropped by Hive with files left behind for readers
   without locks: they go (`cleaner.dropped`).
2. The compaction's transaction is aborted (HIVE-29572): its own output goes, the row fails, nothing else is touched.
3. Look once more (`cleaner.drain`): `no_cleanup`: refused, the files stay.
4. Someone may still read the old files: held.
5. Decide what goes (`cleaner.obsolete`) with a snapshot that ends at the publication, in transactions and in write ids,
   so that what a later compaction replaced survives for its own readers. A partitioned table as a whole is named only by
   aborted dynamic-partition inserts: there only aborted entries go, never obsolete ones (HIVE-25502, I8).
6. Remove (`cleaner.remover`), list again; something is left: the row stays. Otherwise the row succeeds and the database
   forgets what no file holds any more, together with others (`cleaner.page`).
7. An error of storage or format: again later, with doubling pauses; after the last attempt the row fails and says why.

Sources: Hive `CompactionCleaner`, `TaskHandler`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import assert_never

from cleaner.drain import Drained, Forbidden, HeldBy, drained
from cleaner.dropped import LOCATION_PROPERTY, Ended, Fate, end_dropped
from cleaner.facts import Facts
from cleaner.obsolete import Removal, aborted, output_of, replaced
from cleaner.remover import Removed
from cleaner.sweep import Swept, sweep, sweep_all
from cleaner.target import Target, find_target, locations
from compactor.acid.directory import Listing, Snapshot
from compactor.acid.snapshot import ValidTxnList
from compactor.errors import CompactorError, Fenced, FormatError, MalformedProperties, StorageError
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.last_look import require_waiting
from compactor.metastore.ready import Cleaned, cleaner_retry, clear_cleaner_start, fail_ready, refuse_cleaning
from compactor.storage.filesystem import FilesystemOf


class Verdict(enum.Enum):
    """How an attempt at a row ended."""

    CLEANED = "cleaned"
    """Everything went; the row is in the history as succeeded."""
    HELD = "held"
    """Somebody may still need the files, or something is left; the row stays."""
    RETRY = "retry"
    """An error; the row stays and comes up again after a pause."""
    REFUSED = "refused"
    """The table forbids it; the row is in the history as refused, the files stay."""
    FAILED = "failed"
    """Given up, or an aborted compaction; the row is in the history as failed."""
    LOST = "lost"
    """Another cleaner ended the row meanwhile."""


@dataclass(frozen=True, kw_only=True)
class RowOutcome:
    """What became of a row.

    reason: empty when it was cleaned. holder: set for HELD by a transaction. cleaned: set for CLEANED, what the database
    has to write down.
    """

    compaction: Compaction
    verdict: Verdict
    removed: Removed = field(default_factory=Removed)
    reason: str = ""
    holder: HeldBy | None = None
    cleaned: Cleaned | None = None


@dataclass(frozen=True, kw_only=True)
class RetryRule:
    """first_ms: pause after the first failure, doubled by each further one. max_attempts: failures that end a row."""

    first_ms: int
    max_attempts: int

    def next_pause_ms(self, last_pause_ms: int) -> int | None:
        """The pause after one more failure, None when it was the last attempt (CompactionCleaner.handleCleanerAttemptFailure).

        last_pause_ms: the row's RETRY_RETENTION, from which Hive reads the number of failures; 0 before the first.
        """
        first = max(self.first_ms, 1)
        failures = (last_pause_ms // first).bit_length()
        return None if failures >= self.max_attempts else first << failures


def clean_row(
    db: Database, filesystem_of: FilesystemOf, facts: Facts, compaction: Compaction, retry: RetryRule
) -> RowOutcome:
    """One attempt at a row of which `mark_cleaner_start` has shown it; MetastoreError when the database fails.

    facts: about the page that the row is of.
    """
    try:
        return _clean(db, filesystem_of, facts, compaction)
    except Fenced as error:
        return RowOutcome(compaction=compaction, verdict=Verdict.LOST, reason=error.message)
    except (StorageError, FormatError, MalformedProperties) as error:
        return _try_later(db, compaction, retry, error)


def _clean(db: Database, filesystem_of: FilesystemOf, facts: Facts, compaction: Compaction) -> RowOutcome:
    if compaction.properties.get(LOCATION_PROPERTY):
        outcome = _end_soft_delete(db, compaction, end_dropped(db, filesystem_of, compaction, facts.txns))
        if outcome is not None:
            return outcome
    target = facts.target(compaction)
    if target is None or target.location is None:
        return _without_files(db, compaction)
    if compaction.txn_id is not None and facts.txns.is_aborted(compaction.txn_id):
        return _discard(db, filesystem_of, compaction, target)
    match drained(db, compaction, target, facts.txns):
        case Forbidden(owner=owner):
            return _refuse(db, compaction, f"no_cleanup is set on the {owner}; the obsolete files stay")
        case HeldBy() as holder:
            return _hold(db, holder)
        case Drained(up_to=up_to):
            # Nothing when the row does not say how far it compacted, so that only aborted outputs can go
            highest = compaction.highest_write_id or 0
            write_ids = facts.write_ids[compaction.table].capped(highest)
            snapshot = Snapshot(txns=cleaning_txns(facts.txns, up_to), write_ids=write_ids)
            return _remove(db, filesystem_of, compaction, target, snapshot)


def _without_files(db: Database, compaction: Compaction) -> RowOutcome:
    """The object was not in the catalogue a page of rows ago: it is dropped, unless it came or was renamed meanwhile."""
    found = find_target(db, compaction.table, compaction.partition)
    require_waiting(db, compaction)
    if found is not None and found.location is not None:
        return _hold(db, HeldBy(compaction=compaction, reason="its table or partition was created just now"))
    return RowOutcome(compaction=compaction, verdict=Verdict.CLEANED, cleaned=Cleaned(compaction=compaction))


def cleaning_txns(txns: ValidTxnList, up_to: int) -> ValidTxnList:
    """The transactions that a cleaning may see: up to an id, everything open or aborted below it being an exception."""
    top = min(txns.high_water, up_to)
    return ValidTxnList(
        high_water=top,
        open=frozenset(i for i in txns.open if i <= top),
        aborted=frozenset(i for i in txns.aborted if i <= top),
    )


def _remove(
    db: Database, filesystem_of: FilesystemOf, compaction: Compaction, target: Target, snapshot: Snapshot
) -> RowOutcome:
    swept = _sweep(db, filesystem_of, target, snapshot)
    if swept.after.doomed:
        reason = f"{len(swept.after.doomed)} entries are still there after their removal"
        return _hold(db, HeldBy(compaction=compaction, reason=reason), swept.removed)
    # Hive forgets every abort up to the highest write id when no file has one left, and with them aborted compactions,
    # which must stay known for their quarantine (cleaner.abandoned): so always exactly the write ids, nothing more
    cleaned = Cleaned(compaction=compaction, forgettable=swept.after.forgettable)
    return RowOutcome(compaction=compaction, verdict=Verdict.CLEANED, removed=swept.removed, cleaned=cleaned)


def _sweep(db: Database, filesystem_of: FilesystemOf, target: Target, snapshot: Snapshot) -> Swept:
    def only_aborted(listing: Listing) -> Removal:
        return aborted(listing, snapshot)

    def all_replaced(listing: Listing) -> Removal:
        return replaced(listing, snapshot)

    decide = only_aborted if target.is_whole_partitioned_table else all_replaced
    return sweep_all(filesystem_of, locations(db, target, filesystem_of), decide)


def _discard(db: Database, filesystem_of: FilesystemOf, compaction: Compaction, target: Target) -> RowOutcome:
    """The row says published, its transaction says aborted: nothing was made obsolete, the output is garbage."""
    txn_id = compaction.txn_id or 0
    removed = Removed()
    if target.location is not None:
        removed = sweep(filesystem_of, target.location, lambda listing: output_of(listing, txn_id)).removed
    reason = f"the compaction's transaction {txn_id} is aborted: its output was removed, the table is as before"
    fail_ready(db, compaction, reason)
    return RowOutcome(compaction=compaction, verdict=Verdict.FAILED, removed=removed, reason=reason)


def _end_soft_delete(db: Database, compaction: Compaction, ended: Ended | HeldBy) -> RowOutcome | None:
    """End a row about a dropped object; None when it is a partition that was created again, with its old files."""
    if isinstance(ended, HeldBy):
        return _hold(db, ended)
    match ended.fate:
        case Fate.GONE:
            # The DROP forgot what was written; a later table of the same name has writes of its own
            cleaned = Cleaned(compaction=replace(compaction, highest_write_id=None))
            return RowOutcome(compaction=compaction, verdict=Verdict.CLEANED, removed=ended.removed, cleaned=cleaned)
        case Fate.FOREIGN:
            return replace(_refuse(db, compaction, ended.reason), removed=ended.removed)
        case Fate.NEVER_DROPPED:
            fail_ready(db, compaction, ended.reason)
            return RowOutcome(compaction=compaction, verdict=Verdict.FAILED, reason=ended.reason)
        case Fate.CREATED_AGAIN:
            return None
        case _:
            assert_never(ended.fate)


def _hold(db: Database, holder: HeldBy, removed: Removed | None = None) -> RowOutcome:
    clear_cleaner_start(db, holder.compaction)
    return RowOutcome(
        compaction=holder.compaction,
        verdict=Verdict.HELD,
        removed=removed or Removed(),
        reason=holder.reason,
        holder=holder,
    )


def _refuse(db: Database, compaction: Compaction, reason: str) -> RowOutcome:
    refuse_cleaning(db, compaction, reason)
    return RowOutcome(compaction=compaction, verdict=Verdict.REFUSED, reason=reason)


def _try_later(db: Database, compaction: Compaction, retry: RetryRule, error: CompactorError) -> RowOutcome:
    pause_ms = retry.next_pause_ms(compaction.retry_retention)
    try:
        if pause_ms is None:
            reason = f"cleaning was given up after {retry.max_attempts + 1} attempts: {error}"
            fail_ready(db, compaction, reason)
            return RowOutcome(compaction=compaction, verdict=Verdict.FAILED, reason=reason)
        cleaner_retry(db, compaction, retention_ms=pause_ms, message=str(error))
    except Fenced as fenced:
        return RowOutcome(compaction=compaction, verdict=Verdict.LOST, reason=fenced.message)
    return RowOutcome(compaction=compaction, verdict=Verdict.RETRY, reason=str(error))
