"""Every case, in the order in which they run and stand in the results."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from benchmarks.bench import Case
from benchmarks.choice import choice_cases
from benchmarks.compactions import compaction_cases
from benchmarks.daemon import daemon_cases
from benchmarks.hive import hive_cases
from benchmarks.memory import memory_cases
from benchmarks.scale import scale_cases

BARS = "bars"


def all_cases() -> list[Case]:
    return [*compaction_cases(), *choice_cases(), *memory_cases(), *daemon_cases(), *scale_cases(), *hive_cases()]


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Cases whose id begins with one of the patterns or matches it as a file name would; all when there are none.

    The pattern `bars` stands for every case that has a bar.

    Raises ValueError for a pattern that chooses nothing.
    """
    cases = all_cases()
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in cases):
            raise ValueError(f"no case is called {pattern!r}")
    return [case for case in cases if not patterns or any(_matches(case, pattern) for pattern in patterns)]


def _matches(case: Case, pattern: str) -> bool:
    return (pattern == BARS and case.bar) or case.id.startswith(pattern) or fnmatch(case.id, pattern)
