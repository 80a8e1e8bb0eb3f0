"""Compactions as Spark jobs: tasks that write files, results collected on the driver. Never touches the database.

1. The driver creates the output directories and their `_orc_acid_version`.
2. Each task runs an item and moves the finished file to its final name at once. Of an item with several parts, each
   part that has something to encode is a task, which writes a part file.
3. Part files that need what Arrow cannot hold are written by the JVM.
4. Items with part files are joined, a task each. Most compactions have none and end here without a second job.
5. The driver removes the part files, which nobody has ever seen: the output is not published yet.

A second attempt of a task, or a zombie of a lost executor, writes the same bytes under the same name: nothing to
undo. A task's typed error comes back as that error, not as a stack trace, and ends its own compaction only.
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
from compactor.acid.planning import CompactionPlan, ItemKind, PlanItem
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CompactorError, JobError, VerificationError
from compactor.jobs.formats import run_plain_item
from compactor.jobs.jvm import JvmOrcTask, JvmStripe, rewrite_orc
from compactor.jobs.resources import enter_pool, with_resources
from compactor.jobs.session import SparkSessions
from compactor.jobs.spark_wish import NO_WISH, SparkWish
from compactor.orc.assembler import Template
from compactor.orc.join import join_item
from compactor.orc.parts import NeedsJvm, PartResult, Span, encodes, output_template
from compactor.orc.rewrite import ItemResult, run_item, write_part
from compactor.storage.filesystem import FileSystem, FilesystemOf, open_location

Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all, as far as they are known)."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compaction's share of a Spark job. wish: how it wants to run; jobs that run together have the same."""

    plan: CompactionPlan
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
    """Work of one Spark task with what it needs of its plan, small enough to travel.

    job, number: positions of the compaction among the jobs and of the item in its plan. part: write this part only.
    joined: join these parts; with neither, write the whole item.
    """

    job: int
    number: int
    location: str
    item: PlanItem
    row_type: HiveType
    write_ids: ValidWriteIdList
    part: int | None = None
    joined: tuple[PartResult | None, ...] | None = None


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


Outcome = ItemResult | PartResult | Failure


class SparkJobRunner:
    """JobRunner on a Spark session."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions
        self._cancelled: dict[str, threading.Event] = {}

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        work = Execution(jobs)
        session = self._sessions.get()
        context = session.sparkContext
        cancelled = self._cancelled[group] = threading.Event()

        def on_spark(tasks: Sequence[Task]) -> list[Outcome]:
            if cancelled.is_set():
                raise JobError(f"Spark job {group} was cancelled")
            return (
                with_resources(context.parallelize(tasks, len(tasks)), jobs[0].wish).mapPartitions(run_tasks).collect()
            )

        try:
            with _watched(session, group, work, progress), _engine_errors(f"Spark job {group}"):
                context.setJobGroup(group, description, interruptOnCancel=True)
                enter_pool(context, jobs[0].wish)
                return work.carry_out(on_spark, lambda tasks: rewrite_orc(self._sessions, tasks))
        finally:
            del self._cancelled[group]

    def job_id(self) -> str:
        with _engine_errors("Spark"):
            return str(self._sessions.get().sparkContext.applicationId)

    def cancel(self, group: str) -> None:
        # Between two stages no task runs.
        cancelled = self._cancelled.get(group)
        if cancelled is not None:
            cancelled.set()
        session = self._sessions.running()
        if session is not None:
            # Without a Java there are no tasks to stop, and `run` says that it is gone.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.sparkContext.cancelJobGroup(group)


class Execution:
    """Compactions on their way through the stages; one with an error takes no further part.

    tasks: number of tasks, as far as it is known.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._errors: dict[int, CompactorError] = {}
        self._done: dict[tuple[int, int], ItemResult] = {}
        self._parts: dict[tuple[int, int], list[PartResult | None]] = {}
        self._first = [task for number in range(len(jobs)) for task in self._first_tasks(number)]
        self.tasks = len(self._first) + len(self._parts)

    def carry_out(
        self,
        run: Callable[[Sequence[Task]], list[Outcome]],
        rewrite: Callable[[Sequence[JvmOrcTask]], list[int | CompactorError]],
    ) -> list[list[ItemResult] | CompactorError]:
        """For each job, in order, the results of its items or its first error.

        run: as `run_tasks`, somewhere. rewrite: as `rewrite_orc`.
        """
        for number, job in enumerate(self._jobs):
            with self._errors_of(number):
                prepare_directories(job.plan)
        self._run([task for task in self._first if task.job not in self._errors], run)
        self._rewrite(rewrite)
        joins = [self._task(k, joined=tuple(parts)) for k, parts in self._parts.items() if k[0] not in self._errors]
        self._run(joins, run)
        for number in range(len(self._jobs)):
            with self._errors_of(number):
                self._remove_part_files(number)
        return [self._errors.get(number) or self._results(number) for number in range(len(self._jobs))]

    def _first_tasks(self, number: int) -> Iterator[Task]:
        """One task for an item of one part, or that only copies; else one for each part that has to encode."""
        for position, item in enumerate(self._jobs[number].plan.items):
            encoding = [part for part in range(len(item.parts)) if encodes(item, item.parts[part])]
            if len(item.parts) < 2 or not encoding:
                yield self._task((number, position))
            else:
                self._parts[number, position] = [None] * len(item.parts)
                yield from (self._task((number, position), part=part) for part in encoding)

    def _task(
        self, key: tuple[int, int], *, part: int | None = None, joined: tuple[PartResult | None, ...] | None = None
    ) -> Task:
        plan = self._jobs[key[0]].plan
        return Task(
            job=key[0],
            number=key[1],
            location=plan.location,
            item=plan.items[key[1]],
            row_type=plan.row_type,
            write_ids=plan.write_ids,
            part=part,
            joined=joined,
        )

    def _run(self, tasks: Sequence[Task], run: Callable[[Sequence[Task]], list[Outcome]]) -> None:
        if not tasks:
            return
        for task, outcome in zip(tasks, run(tasks), strict=True):
            key = task.job, task.number
            match outcome:
                case Failure():
                    self._errors.setdefault(task.job, outcome.error())
                case ItemResult():
                    self._done[key] = outcome
                case PartResult() if task.part is None:
                    # It was to be written at once, but the JVM has to write some of it.
                    self._parts[key] = [outcome]
                    self.tasks += 1
                case PartResult():
                    self._parts[key][task.part] = outcome

    def _rewrite(self, rewrite: Callable[[Sequence[JvmOrcTask]], list[int | CompactorError]]) -> None:
        """Let the JVM write what Arrow cannot hold, and put its files in their places."""
        wanted: list[tuple[tuple[int, int], NeedsJvm, JvmOrcTask]] = []
        for key, parts in self._parts.items():
            missing = [p for part in parts if part is not None for p in part.pieces if isinstance(p, NeedsJvm)]
            if missing and key[0] not in self._errors:
                with self._errors_of(key[0]):
                    task = self._task(key)
                    template = output_template(*open_location(task.location), task.item, task.row_type)
                    wanted += [(key, piece, jvm_task(task, template, piece)) for piece in missing]
        if not wanted:
            return
        self.tasks += len(wanted)
        for (key, piece, _), rows in zip(wanted, rewrite([task for _, _, task in wanted]), strict=True):
            if isinstance(rows, CompactorError):
                self._errors.setdefault(key[0], rows)
            elif rows != piece.rows:
                error = VerificationError(f"{piece.output}: the JVM wrote {rows} rows, {piece.rows} survive")
                self._errors.setdefault(key[0], error)
        for key in {key for key, _, _ in wanted}:
            self._parts[key] = [None if part is None else part.completed() for part in self._parts[key]]

    def _remove_part_files(self, number: int) -> None:
        """Of a compaction that failed everything stays where it is: the cleaner removes its directories whole."""
        if number in self._errors:
            return
        fs, root = open_location(self._jobs[number].plan.location)
        files = {
            piece.path
            for (job, _), parts in self._parts.items()
            for part in parts
            if part is not None and job == number
            for piece in part.pieces
            if isinstance(piece, Span) and piece.encoded
        }
        for path in sorted(files):
            fs.delete_file(f"{root}/{path}")

    def _results(self, number: int) -> list[ItemResult]:
        return [self._done[number, position] for position in range(len(self._jobs[number].plan.items))]

    @contextlib.contextmanager
    def _errors_of(self, number: int) -> Iterator[None]:
        """A typed error of a compaction ends that compaction only."""
        try:
            yield
        except CompactorError as error:
            self._errors.setdefault(number, error)


def jvm_task(task: Task, template: Template, piece: NeedsJvm) -> JvmOrcTask:
    """What the JVM has to know to write a part file whose stripes can stand in the item's output."""
    location = task.location.rstrip("/")
    return JvmOrcTask(
        output=f"{location}/{piece.output}",
        row_type=task.row_type,
        acid=task.item.kind is not ItemKind.PLAIN,
        compression=template.compression,
        block_size=template.block_size,
        stride=template.stride,
        proleptic=template.proleptic,
        stripes=tuple(
            JvmStripe(path=f"{location}/{s.path}", stripe=s.stripe, keep=s.keep, synthetic=s.synthetic)
            for s in piece.stripes
        ),
    )


def prepare_directories(plan: CompactionPlan) -> None:
    """Create the output directories; full-ACID ones carry the format's version (OrcAcidVersion.writeVersionFile)."""
    fs, root = open_location(plan.location)
    for directory in plan.directories:
        fs.create_directory(f"{root}/{directory}")
        if plan.full_acid:
            with fs.write_atomically(f"{root}/{directory}/{ACID_VERSION_FILE}") as stream:
                stream.write(ACID_VERSION_CONTENT)


def run_tasks(tasks: Iterable[Task], filesystem_of: FilesystemOf = open_location) -> Iterator[Outcome]:
    """On an executor. A typed error is a value here: Spark must not retry what will fail again."""
    for task in tasks:
        try:
            yield _run_task(task, *filesystem_of(task.location))
        except CompactorError as error:
            yield Failure(kind=type(error).__name__, message=error.message, hint=error.hint)


def _run_task(task: Task, fs: FileSystem, root: str) -> ItemResult | PartResult:
    if task.item.format != "orc":
        return run_plain_item(fs, root, task.item, task.row_type)
    if task.joined is not None:
        return join_item(fs, root, task.item, task.joined, task.row_type)
    if task.part is not None:
        return write_part(fs, root, task.item, task.part, task.row_type, task.write_ids)
    return run_item(fs, root, task.item, task.row_type, task.write_ids)


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
def _watched(session: SparkSession, group: str, work: Execution, progress: Progress) -> Iterator[None]:
    """Report the number of finished tasks of a job group while the block runs."""
    tracker = session.sparkContext.statusTracker()
    over = threading.Event()

    def watch() -> None:
        # A Java that is gone ends the watching; the job itself raises.
        with contextlib.suppress(Py4JError, OSError):
            # Spark remembers jobs of this name that ran before.
            earlier = set(tracker.getJobIdsForGroup(group))
            while not over.wait(_POLL_SECONDS):
                jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - earlier]
                stages = [tracker.getStageInfo(s) for j in jobs if j is not None for s in j.stageIds]
                progress(min(sum(s.numCompletedTasks for s in stages if s is not None), work.tasks), work.tasks)

    thread = threading.Thread(target=watch, name=f"progress of {group}", daemon=True)
    progress(0, work.tasks)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(work.tasks, work.tasks)


def _first_lines(error: BaseException) -> str:
    """How an engine's message begins, and its last line if that is a Python error: what lies between is its stack."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    cause = [line for line in lines[3:] if re.match(r"[\w.]+(Error|Exception): ", line)]
    return " ".join(lines[:3] + cause[:1])
