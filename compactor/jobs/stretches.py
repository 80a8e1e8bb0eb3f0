"""Reading the files of a compaction a second time, in Spark tasks: each takes a stretch of one file's stripes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from compactor.acid.records import SyntheticIds
from compactor.errors import CompactorError
from compactor.jobs.compaction import Failure, engine_errors
from compactor.jobs.session import SparkSessions
from compactor.orc.reader import OrcSource
from compactor.orc.tail import stripe_length
from compactor.storage.filesystem import FileSystem

STRETCH_BYTES = 64 << 20
"""Stored bytes that one task reads."""
_FILES_A_TASK = 64
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive stripes of an ORC file. path: relative to the location; stop: exclusive; rows_before: in the file."""

    path: str
    start: int
    stop: int
    rows_before: int
    size: int
    synthetic: SyntheticIds | None = None


def stretches_of(fs: FileSystem, root: str, path: str, synthetic: SyntheticIds | None = None) -> list[Stretch]:
    """An ORC file cut into stretches of about `STRETCH_BYTES`; a file without stripes has none."""
    found: list[Stretch] = []
    with OrcSource(fs, f"{root}/{path}", synthetic=synthetic) as source:
        start = size = before = rows = 0
        for stripe, information in enumerate(source.tail.footer.stripes):
            size += stripe_length(information)
            rows += information.number_of_rows
            if size >= STRETCH_BYTES or stripe + 1 == source.stripes:
                found.append(
                    Stretch(path=path, start=start, stop=stripe + 1, rows_before=before, size=size, synthetic=synthetic)
                )
                start, size, before = stripe + 1, 0, rows
    return found


class Each(Protocol):
    """Runs a function on each of many tasks, somewhere; what it returned, in the order of the tasks.

    size: bytes that a task reads. Raises what a task raised if it is a CompactorError, JobError when the engine fails.
    """

    def __call__(self, tasks: Sequence[T], run: Callable[[T], R], *, size: Callable[[T], int]) -> list[R]: ...


@dataclass(frozen=True, kw_only=True)
class OnSpark:
    """On the executors; small tasks share a Spark task. group: name to cancel it by."""

    sessions: SparkSessions
    group: str
    description: str

    def __call__(self, tasks: Sequence[T], run: Callable[[T], R], *, size: Callable[[T], int]) -> list[R]:
        bundles = list(_bundles(tasks, size))
        outcomes: list[R | Failure] = []
        if bundles:
            with engine_errors(f"Spark job {self.group}"):
                context = self.sessions.get().sparkContext
                context.setJobGroup(self.group, self.description, interruptOnCancel=True)
                spread = context.parallelize(bundles, len(bundles))
                outcomes = spread.flatMap(lambda bundle: _outcomes(bundle, run)).collect()
        return [_result(outcome) for outcome in outcomes]


def _result(outcome: R | Failure) -> R:
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome


def _outcomes(bundle: Iterable[T], run: Callable[[T], R]) -> Iterator[R | Failure]:
    """On an executor. A typed error is a value here: Spark must not retry what will fail again."""
    for task in bundle:
        try:
            yield run(task)
        except CompactorError as error:
            yield Failure(kind=type(error).__name__, message=error.message, hint=error.hint)


def _bundles(tasks: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    bundle: list[T] = []
    total = 0
    for task in tasks:
        if bundle and (total + size(task) > STRETCH_BYTES or len(bundle) == _FILES_A_TASK):
            yield bundle
            bundle, total = [], 0
        bundle.append(task)
        total += size(task)
    if bundle:
        yield bundle
