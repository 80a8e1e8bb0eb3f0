"""A page of rows of the queue, cleaned one by one, but started and ended together.

What is no decision about a single row costs one database transaction for all of them: reading what the catalogue says
(`cleaner.facts`), showing that they are being cleaned, and writing down that they are done. A crash between the last
two leaves rows behind whose files are gone: the next cycle finds nothing to remove and ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from cleaner.row import RowOutcome, Verdict
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.delta_counts import record_delta_counts
from compactor.metastore.ready import mark_cleaned, mark_cleaner_start

LONGEST_WAIT_S = 10.0
"""So long a row whose files are gone waits at most, besides the row in front of it, to be ended with others."""


def clean_page(
    db: Database,
    page: Sequence[Compaction],
    clean: Callable[[Compaction], RowOutcome],
    pool: Executor,
    clock: Callable[[], float],
) -> Iterator[RowOutcome]:
    """What became of each row of a page, in any order; MetastoreError when the database fails.

    clean: one attempt at a row, several at a time in the pool; it ends the rows itself, but those that it cleaned.
    """
    mine = mark_cleaner_start(db, page)
    yield from (_lost(RowOutcome(compaction=row, verdict=Verdict.LOST)) for row in page if row.id not in mine)
    done: list[RowOutcome] = []
    since = clock()
    try:
        for outcome in pool.map(clean, [row for row in page if row.id in mine]):
            if outcome.cleaned is None:
                yield outcome
                continue
            done.append(outcome)
            if clock() - since >= LONGEST_WAIT_S:
                ended, done, since = done, [], clock()
                yield from _end(db, ended)
    finally:
        # Whatever became of a later row, the files of these are gone
        last = _end(db, done)
    yield from last


def _end(db: Database, done: Sequence[RowOutcome]) -> list[RowOutcome]:
    cleaned = [outcome.cleaned for outcome in done if outcome.cleaned is not None]
    if not cleaned:
        return []
    ended = mark_cleaned(db, cleaned)
    # Counted before these compactions; the initiator counts again when there is something new
    ours = [row.compaction for row in cleaned if row.compaction.id in ended]
    record_delta_counts(db, {(row.table, row.partition): {} for row in ours})
    # Write ids that may be forgotten are many, and no more needed
    return [replace(each, cleaned=None) if each.compaction.id in ended else _lost(each) for each in done]


def _lost(outcome: RowOutcome) -> RowOutcome:
    reason = f"compaction {outcome.compaction.id} was ended by another cleaner"
    return replace(outcome, verdict=Verdict.LOST, cleaned=None, reason=reason)
