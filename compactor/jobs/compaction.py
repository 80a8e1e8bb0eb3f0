"""Compactions on Spark: the tasks of `jobs.execution` as Spark tasks, results collected on the driver.

Most compactions are one Spark job; those with large items are two, of which the second joins what the first wrote.
Never touches the database.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from compactor.errors import CompactorError, JobError
from compactor.jobs.execution import Execution, Failure, Job, Outcome, Task, run_tasks
from compactor.jobs.jvm import JvmJoin, JvmOrcTask, append_in_jvm, rewrite_orc
from compactor.jobs.resources import enter_pool, with_resources
from compactor.jobs.session import SparkSessions
from compactor.jobs.spark_wish import SparkWish
from compactor.orc.rewrite import ItemResult

__all__ = ["Failure", "Job", "JobRunner", "Progress", "SparkJobRunner"]

Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all, as far as they are known)."""
_POLL_SECONDS = 0.2
_BUNDLE_BYTES = 8 << 20
"""What a core reads in less time than a Spark task takes to start."""


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


class SparkJobRunner:
    """JobRunner on a Spark session."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._sessions = sessions
        self._running: dict[str, _Spark] = {}

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        work = Execution(jobs)
        engine = _Spark(self._sessions, group, jobs[0].wish)
        self._running[group] = engine
        try:
            with _watched(engine.context, group, work, progress), engine_errors(f"Spark job {group}"):
                engine.context.setJobGroup(group, description, interruptOnCancel=True)
                enter_pool(engine.context, jobs[0].wish)
                return work.carry_out(engine)
        finally:
            del self._running[group]

    def job_id(self) -> str:
        with engine_errors("Spark"):
            return str(self._sessions.get().sparkContext.applicationId)

    def cores(self) -> int:
        """How many tasks run at the same time."""
        with engine_errors("Spark"):
            return int(self._sessions.get().sparkContext.defaultParallelism)

    def cancel(self, group: str) -> None:
        # Between two stages no task runs.
        running = self._running.get(group)
        if running is not None:
            running.cancelled.set()
        session = self._sessions.running()
        if session is not None:
            # Without a Java there are no tasks to stop, and `run` says that it is gone.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.sparkContext.cancelJobGroup(group)


class _Spark:
    """Engine of one job group."""

    def __init__(self, sessions: SparkSessions, group: str, wish: SparkWish) -> None:
        self._sessions, self._group, self._wish = sessions, group, wish
        self.context = sessions.get().sparkContext
        self.cancelled = threading.Event()

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        self._check()
        bundles = bundled([task.size for task in tasks], cores=self.context.defaultParallelism)
        spread = self.context.parallelize([[tasks[number] for number in bundle] for bundle in bundles], len(bundles))
        outcomes = with_resources(spread, self._wish).flatMap(run_tasks).collect()
        numbered = zip(chain.from_iterable(bundles), outcomes, strict=True)
        return [outcome for _, outcome in sorted(numbered, key=itemgetter(0))]

    def rewrite(self, tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
        self._check()
        return rewrite_orc(self._sessions, tasks)

    def append(self, joins: Sequence[JvmJoin]) -> list[ItemResult | CompactorError]:
        self._check()
        return append_in_jvm(self._sessions, joins)

    def _check(self) -> None:
        if self.cancelled.is_set():
            raise JobError(f"Spark job {self._group} was cancelled")


def bundled(sizes: Sequence[int], *, cores: int) -> list[list[int]]:
    """Positions of tasks of these sizes in bytes, by the Spark task that runs them.

    A Spark task costs more than a tiny file: small ones are dealt out to as many Spark tasks as there are cores, or
    more if they are many. The largest come first, so that no core waits for one that began last.
    """
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    large = [[number] for number in order if sizes[number] >= _BUNDLE_BYTES]
    small = order[len(large) :]
    hands = min(len(small), max(cores, -(-sum(sizes[number] for number in small) // _BUNDLE_BYTES)))
    return large + [small[hand::hands] for hand in range(hands)]


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
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
def _watched(context: SparkContext, group: str, work: Execution, progress: Progress) -> Iterator[None]:
    """Report the number of finished tasks of a job group while the block runs."""
    tracker = context.statusTracker()
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
