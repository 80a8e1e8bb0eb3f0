"""Which tables and partitions a cycle looks at: every one of them, in pages by name (I9, HIVE-30026).

Normally those that were written since the last cycle, or whose last attempt failed. That alone would miss an object
that is worth compacting without a new write: its threshold was lowered, or a writer in front of it was aborted. So once
in a while, and first of all, a cycle looks at every object with writes that nobody compacted.
Source: Hive `CompactionCandidateHandler`; reference §1.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactor.metastore.candidates import AbortThresholds, Candidate, candidates
from compactor.metastore.database import Database

FULL_SCAN_INTERVAL_S = 3600.0
"""Longest time between two cycles that look at everything."""

OVERLAP_MS = 60_000
"""A commit's time stamp is older than the moment others can see it; so far back a cycle looks again."""


def since(last_cycle_ms: int | None, *, full: bool) -> int | None:
    """From when on writes count as new: epoch ms of the database's clock, None for everything."""
    return None if full or last_cycle_ms is None else last_cycle_ms - OVERLAP_MS


def pages(
    db: Database, *, fetch_size: int, since_ms: int | None, aborts: AbortThresholds | None
) -> Iterator[list[Candidate]]:
    """All candidates, at most fetch_size at once; arguments as of `compactor.metastore.candidates.candidates`.

    The position is a name, not an offset: what is added or removed meanwhile makes nobody slip through.
    """
    after = None
    while page := candidates(db, limit=fetch_size, after=after, since_ms=since_ms, aborts=aborts):
        yield page
        if len(page) < fetch_size:
            return
        after = page[-1].key
