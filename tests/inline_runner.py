"""A JobRunner in this process: the code that Spark's tasks run, without Spark, for tests of the protocol around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactor.acid.planning import PlanItem
from compactor.errors import CompactorError, JobError
from compactor.jobs.compaction import Failure, Job, Progress, by_job, prepare_directories, run_tasks, tasks_of
from compactor.orc.rewrite import ItemResult


class InlineJobRunner:
    """Runs plan items one after the other. before_item: told each item before it runs; may raise, kill or cancel."""

    def __init__(self, before_item: Callable[[PlanItem], None] = lambda _: None) -> None:
        self._before_item = before_item
        self._cancelled: set[str] = set()

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        for job in jobs:
            prepare_directories(job.plan)
        tasks = tasks_of(jobs)
        outcomes: list[ItemResult | Failure] = []
        for task in tasks:
            self._before_item(task.item)
            if group in self._cancelled:
                raise JobError(f"{description} was cancelled")
            outcomes += run_tasks([task])
            progress(len(outcomes), len(tasks))
        return by_job(jobs, tasks, outcomes)

    def job_id(self) -> str:
        return "inline"

    def cancel(self, group: str) -> None:
        self._cancelled.add(group)
