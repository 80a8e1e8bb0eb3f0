"""A JobRunner in this process: the code that Spark's tasks run, without Spark, for tests of the protocol around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactor.acid.planning import PlanItem
from compactor.errors import CompactorError, JobError
from compactor.jobs.compaction import Execution, Job, Outcome, Progress, Task, run_tasks
from compactor.jobs.jvm import JvmOrcTask
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

        def one_by_one(tasks: Sequence[Task]) -> list[Outcome]:
            nonlocal done
            outcomes: list[Outcome] = []
            for task in tasks:
                self._before_item(task.item)
                if group in self._cancelled:
                    raise JobError(f"{description} was cancelled")
                outcomes += run_tasks([task], self._filesystem_of)
                done += 1
                progress(done, work.tasks)
            return outcomes

        return work.carry_out(one_by_one, no_jvm)

    def job_id(self) -> str:
        return "inline"

    def cancel(self, group: str) -> None:
        self._cancelled.add(group)


def no_jvm(tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
    return [JobError(f"{task.output}: there is no JVM here") for task in tasks]
