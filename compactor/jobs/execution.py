"""Carrying out compactions: which tasks there are, what each returns, and what becomes of it. Without an engine.

1. Create the output directories and their `_orc_acid_version`.
2. Write items: a task each, which moves the finished file to its final name at once. Of an item with several parts,
   each part that has something to encode is a task, which writes a part file.
3. Let the JVM write what Python cannot: SequenceFiles, RCFiles, and part files of rows that Arrow cannot hold.
4. Join the items that have part files, a task each. Most compactions have none and are over by now.
5. Remove the part files, which nobody has ever seen: the output is not published yet.

A second attempt of a task, or a zombie of a lost executor, writes the same bytes under the same name: nothing to
undo. A task's typed error comes back as that error, not as a stack trace, and ends its own compaction only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import compactor.errors
from compactor.acid.layout import ACID_VERSION_CONTENT, ACID_VERSION_FILE
from compactor.acid.planning import CompactionPlan, ItemKind, PlanItem
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CompactorError, JobError, VerificationError
from compactor.jobs.formats import joined_in_jvm, run_plain_item
from compactor.jobs.jvm import JvmJoin, JvmOrcTask, JvmStripe
from compactor.jobs.spark_wish import NO_WISH, SparkWish
from compactor.orc.assembler import Template
from compactor.orc.join import join_item
from compactor.orc.parts import NeedsJvm, PartResult, Span, encodes, output_template
from compactor.orc.rewrite import ItemResult, run_item, write_part
from compactor.storage.filesystem import FileSystem, FilesystemOf, open_location


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compaction's share of a Spark job. wish: how it wants to run; jobs that run together have the same."""

    plan: CompactionPlan
    wish: SparkWish = NO_WISH


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

    @property
    def size(self) -> int:
        """Bytes that it reads, about."""
        return self.item.bytes_in // (1 if self.part is None else len(self.item.parts))


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
_Key = tuple[int, int]
"""Positions of a compaction among the jobs and of an item in its plan."""


class Engine(Protocol):
    """Where tasks run. Raises JobError when it fails, which says nothing about any of them."""

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """As `run_tasks`, for each task in order."""

    def rewrite(self, tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
        """As `jvm.rewrite_orc`."""

    def append(self, joins: Sequence[JvmJoin]) -> list[ItemResult | CompactorError]:
        """As `jvm.append_in_jvm`."""


class Execution:
    """Compactions on their way through the stages; one with an error takes no further part.

    tasks: number of tasks, as far as it is known.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._errors: dict[int, CompactorError] = {}
        self._done: dict[_Key, ItemResult] = {}
        self._parts: dict[_Key, list[PartResult | None]] = {}
        self._first = [task for number in range(len(jobs)) for task in self._first_tasks(number)]
        self.tasks = len(self._first) + len(self._parts)

    def carry_out(self, engine: Engine) -> list[list[ItemResult] | CompactorError]:
        """For each job, in order, the results of its items or its first error."""
        for number, job in enumerate(self._jobs):
            with self._errors_of(number):
                prepare_directories(job.plan)
        first = [task for task in self._first if task.job not in self._errors]
        self._run([task for task in first if not joined_in_jvm(task.item.format)], engine)
        self._append([task for task in first if joined_in_jvm(task.item.format)], engine)
        self._rewrite(engine)
        joins = [self._task(k, joined=tuple(parts)) for k, parts in self._parts.items() if k[0] not in self._errors]
        self._run(joins, engine)
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

    def _task(self, key: _Key, *, part: int | None = None, joined: tuple[PartResult | None, ...] | None = None) -> Task:
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

    def _run(self, tasks: Sequence[Task], engine: Engine) -> None:
        # Few compactions have anything to join: no engine is asked about nothing.
        for task, outcome in zip(tasks, engine.run(tasks) if tasks else (), strict=True):
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

    def _append(self, tasks: Sequence[Task], engine: Engine) -> None:
        joins = [JvmJoin(location=t.location, item=t.item, row_type=t.row_type) for t in tasks]
        for task, outcome in zip(tasks, engine.append(joins) if joins else (), strict=True):
            if isinstance(outcome, CompactorError):
                self._errors.setdefault(task.job, outcome)
            else:
                self._done[task.job, task.number] = outcome

    def _rewrite(self, engine: Engine) -> None:
        """Let the JVM write what Arrow cannot hold, and put its files in their places."""
        wanted: list[tuple[_Key, NeedsJvm, JvmOrcTask]] = []
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
        for (key, piece, _), rows in zip(wanted, engine.rewrite([task for _, _, task in wanted]), strict=True):
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
        blooms=tuple(column for column, _ in template.blooms),
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
