"""A compaction as a Spark job: one task a plan item, results collected on the driver. Never touches the database.

1. The driver creates the output directories and their `_orc_acid_version`.
2. Each task runs its item and moves the finished file to its final name at once. A second attempt of a task, or a
   zombie of a lost executor, writes the same bytes under the same name: nothing to undo.
3. The driver gets what each task did. A task's typed error comes back as that error, not as a stack trace.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import compactor.errors
from compactor.acid.layout import ACID_VERSION_CONTENT, ACID_VERSION_FILE
from compactor.acid.planning import CompactionPlan, PlanItem
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CompactorError, JobError
from compactor.jobs.parquet import run_parquet_item
from compactor.jobs.resources import enter_pool, with_resources
from compactor.jobs.session import SparkSessions
from compactor.jobs.spark_wish import NO_WISH, SparkWish
from compactor.orc.rewrite import ItemResult, run_item
from compactor.storage.filesystem import open_location

Progress = Callable[[int, int], None]
"""Called with (items done, items in all)."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compaction's share of a Spark job.

    compression: codec (ORC CompressionKind) of output without a source. wish: how it wants to run; jobs that run
    together have the same.
    """

    plan: CompactionPlan
    compression: int
    wish: SparkWish = NO_WISH


class JobRunner(Protocol):
    """What the worker needs of an engine."""

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        """Write the output of several compactions; for each, in order, the results of its plan's items or its error.

        group: name to cancel them by. The typed error of one compaction does not touch the others. Raises JobError
        when the engine fails, which says nothing about any of them.
        """

    def job_id(self) -> str:
        """What the engine calls the job, for SHOW COMPACTIONS."""

    def cancel(self, group: str) -> None:
        """Stop the tasks of a running group soon; `run` then raises JobError."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One item with what it needs of its plan, small enough to travel. job: position of its compaction."""

    job: int
    location: str
    item: PlanItem
    row_type: HiveType
    write_ids: ValidWriteIdList
    compression: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A CompactorError of an item on its way back to the driver."""

    kind: str
    message: str
    hint: str

    def error(self) -> CompactorError:
        kind = getattr(compactor.errors, self.kind, JobError)
        error: CompactorError = kind(self.message, hint=self.hint)
        return error


class SparkJobRunner:
    """JobRunner on a Spark session."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        for job in jobs:
            prepare_directories(job.plan)
        tasks = tasks_of(jobs)
        session = self._sessions.get()
        outcomes: list[ItemResult | Failure] = []
        with _watched(session, group, len(tasks), progress):
            context = session.sparkContext
            with _engine_errors(f"Spark job {group}"):
                context.setJobGroup(group, description, interruptOnCancel=True)
                enter_pool(context, jobs[0].wish)
                spread = with_resources(context.parallelize(tasks, max(len(tasks), 1)), jobs[0].wish)
                outcomes = spread.mapPartitions(run_tasks).collect()
        return by_job(jobs, tasks, outcomes)

    def job_id(self) -> str:
        with _engine_errors("Spark"):
            return str(self._sessions.get().sparkContext.applicationId)

    def cancel(self, group: str) -> None:
        session = self._sessions.running()
        if session is not None:
            # Without a Java there are no tasks to stop, and `run` says that it is gone.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.sparkContext.cancelJobGroup(group)


def tasks_of(jobs: Sequence[Job]) -> list[Task]:
    """One task an item."""
    return [
        Task(
            job=number,
            location=job.plan.location,
            item=item,
            row_type=job.plan.row_type,
            write_ids=job.plan.write_ids,
            compression=job.compression,
        )
        for number, job in enumerate(jobs)
        for item in job.plan.items
    ]


def by_job(
    jobs: Sequence[Job], tasks: Sequence[Task], outcomes: Sequence[ItemResult | Failure]
) -> list[list[ItemResult] | CompactorError]:
    """What the tasks returned, for each job; the first failure of a job stands for all of it."""
    results: list[list[ItemResult]] = [[] for _ in jobs]
    errors: dict[int, CompactorError] = {}
    for task, outcome in zip(tasks, outcomes, strict=True):
        if isinstance(outcome, Failure):
            errors.setdefault(task.job, outcome.error())
        else:
            results[task.job].append(outcome)
    return [errors.get(number, done) for number, done in enumerate(results)]


def prepare_directories(plan: CompactionPlan) -> None:
    """Create the output directories; full-ACID ones carry the format's version (OrcAcidVersion.writeVersionFile)."""
    fs, root = open_location(plan.location)
    for directory in plan.directories:
        fs.create_directory(f"{root}/{directory}")
        if plan.full_acid:
            with fs.write_atomically(f"{root}/{directory}/{ACID_VERSION_FILE}") as stream:
                stream.write(ACID_VERSION_CONTENT)


def run_tasks(tasks: Iterable[Task]) -> Iterator[ItemResult | Failure]:
    """On an executor. A typed error is a value here: Spark must not retry what will fail again."""
    for task in tasks:
        fs, root = open_location(task.location)
        try:
            if task.item.format == "parquet":
                yield run_parquet_item(fs, root, task.item, task.row_type)
            else:
                yield run_item(fs, root, task.item, task.row_type, task.write_ids, compression=task.compression)
        except CompactorError as error:
            yield Failure(kind=type(error).__name__, message=error.message, hint=error.hint)


@contextlib.contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Turn what pyspark raises, a lost connection to its Java included, into a JobError."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobError(f"{what} failed: {_first_lines(error)}") from error
    except (OSError, EOFError) as error:
        raise JobError(
            f"{what} failed: no connection to Spark's Java: {error}", hint="the next compaction starts a new one"
        ) from error


@contextlib.contextmanager
def _watched(session: SparkSession, group: str, total: int, progress: Progress) -> Iterator[None]:
    """Report the number of finished tasks of a job group while the block runs."""
    tracker = session.sparkContext.statusTracker()
    over = threading.Event()

    def watch() -> None:
        # A Java that is gone ends the watching; the job itself raises.
        with contextlib.suppress(Py4JError, OSError):
            while not over.wait(_POLL_SECONDS):
                jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
                stages = [tracker.getStageInfo(s) for j in jobs if j is not None for s in j.stageIds]
                progress(min(sum(s.numCompletedTasks for s in stages if s is not None), total), total)

    thread = threading.Thread(target=watch, name=f"progress of {group}", daemon=True)
    progress(0, total)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(total, total)


def _first_lines(error: BaseException) -> str:
    """How an engine's message begins, and its last line if that is a Python error: what lies between is its stack."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    cause = [line for line in lines[3:] if re.match(r"[\w.]+(Error|Exception): ", line)]
    return " ".join(lines[:3] + cause[:1])
