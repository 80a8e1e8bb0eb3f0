"""A JobRunner in this process: the code that Spark's tasks run, without Spark, for tests of the protocol around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactor.acid.planning import PlanItem
from compactor.errors import CompactorError, JobError
from compactor.jobs.compaction import Job, Progress
from compactor.jobs.execution import Execution, Outcome, Task, run_tasks
from compactor.jobs.jvm import JvmJoin, JvmOrcTask
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import FilesystemOf, open_location


class InlineJobRunner:
    """Runs tasks one after the other. before_item: told the item of each task before it runs; may raise or cancel."""

    def __init__(
        self,
        before_item: Callable[[PlanItem], None] = lambda _: None,
        *,
        filesystem_of: FilesystemOf = open_location,
    ) -> None:
        self._before_item = before_item
        self._filesystem_of = filesystem_of
        self._cancelled: set[str] = set()

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        work = Execution(jobs)
        done = 0

        def before(item: PlanItem) -> None:
            nonlocal done
            self._before_item(item)
            if group in self._cancelled:
                raise JobError(f"{description} was cancelled")
            progress(done, work.tasks)
            done += 1

        outcomes = work.carry_out(InlineEngine(before, self._filesystem_of))
        progress(work.tasks, work.tasks)
        return outcomes

    def job_id(self) -> str:
        return "inline"

    def cancel(self, group: str) -> None:
        self._cancelled.add(group)


class InlineEngine:
    """Engine in this process, without a JVM. before: told the item of each task before it runs."""

    def __init__(self, before: Callable[[PlanItem], None], filesystem_of: FilesystemOf) -> None:
        self._before, self._filesystem_of = before, filesystem_of

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for task in tasks:
            self._before(task.item)
            outcomes += run_tasks([task], self._filesystem_of)
        return outcomes

    def rewrite(self, tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
        return [JobError(f"{task.output}: there is no JVM here") for task in tasks]

    def append(self, joins: Sequence[JvmJoin]) -> list[ItemResult | CompactorError]:
        return [JobError(f"{join.item.output}: there is no JVM here") for join in joins]
