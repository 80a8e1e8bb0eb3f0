"""Every case, in the order in which they run: those with a bar against the slow PySpark job come last."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from benchmarks.bench import Case
from benchmarks.compactions import compaction_cases
from benchmarks.daemon import daemon_cases
from benchmarks.memory import memory_cases


def all_cases() -> list[Case]:
    return [*compaction_cases(), *memory_cases(), *daemon_cases()]


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Cases whose id begins with one of the patterns or matches it as a file name would; all when there are none.

    Raises ValueError for a pattern that chooses nothing.
    """
    cases = all_cases()
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in cases):
            raise ValueError(f"no case is called {pattern!r}")
    return [case for case in cases if not patterns or any(_matches(case, pattern) for pattern in patterns)]


def _matches(case: Case, pattern: str) -> bool:
    return case.id.startswith(pattern) or fnmatch(case.id, pattern)
