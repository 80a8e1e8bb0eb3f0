"""Which tables and partitions a cycle looks at: every one of them, in pages by name (I9, HIVE-30026).

Normally those that were written since the last cycle, or whose last compaction failed or ended since. That alone would
miss an object that is worth compacting without a new write: its threshold was lowered, or a writer in front of it was
aborted. So once in a while, and first of all, a cycle looks at every object with writes that nobody compacted; when
that was is kept in the database, so that it happens as seldom when every cycle is a process of its own.
Source: Hive `CompactionCandidateHandler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactor.metastore.candidates import AbortThresholds, Candidate, candidates, last_full_look
from compactor.metastore.database import Database

FULL_LOOK_INTERVAL_MS = 3_600_000
"""Longest time between two cycles that look at everything."""

OVERLAP_MS = 60_000
"""A commit's time stamp is older than the moment others can see it; so far back a cycle looks again."""

_NAMES_A_QUERY = 50_000
"""Names are small and the query for them is not: it looks at everything that may follow, to find the first ones."""


def since(db: Database, last_cycle_ms: int, *, now_ms: int) -> int | None:
    """From when on writes count as new: epoch ms of the database's clock, None for everything.

    last_cycle_ms: when the last cycle began, 0 when there was none.
    """
    full = last_full_look(db)
    if not last_cycle_ms or full is None or not 0 <= now_ms - full < FULL_LOOK_INTERVAL_MS:
        return None
    return last_cycle_ms - OVERLAP_MS


def pages(
    db: Database, *, fetch_size: int, since_ms: int | None, aborts: AbortThresholds | None
) -> Iterator[list[Candidate]]:
    """All candidates, at most fetch_size at once; arguments as of `compactor.metastore.candidates.candidates`.

    The position is a name, not an offset: what is added or removed meanwhile makes nobody slip through.
    """
    after = None
    while names := candidates(db, limit=_NAMES_A_QUERY, after=after, since_ms=since_ms, aborts=aborts):
        for start in range(0, len(names), fetch_size):
            yield names[start : start + fetch_size]
        if len(names) < _NAMES_A_QUERY:
            return
        after = names[-1].key
