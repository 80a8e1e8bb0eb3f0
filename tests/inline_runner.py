"""A JobRunner in this process: the code that Spark's tasks run, without Spark, for tests of the protocol around it."""

from __future__ import annotations

from collections.abc import Callable

from compactor.acid.planning import CompactionPlan, PlanItem
from compactor.errors import JobError
from compactor.jobs.compaction import Progress, _Failure, _run_tasks, _Task, prepare_directories
from compactor.orc.rewrite import ItemResult


class InlineJobRunner:
    """Runs plan items one after the other. before_item: told each item before it runs; may raise, kill or cancel."""

    def __init__(self, before_item: Callable[[PlanItem], None] = lambda _: None) -> None:
        self._before_item = before_item
        self._cancelled: set[str] = set()

    def run(
        self, plan: CompactionPlan, *, group: str, description: str, compression: int, progress: Progress
    ) -> list[ItemResult]:
        prepare_directories(plan)
        results: list[ItemResult] = []
        for item in plan.items:
            self._before_item(item)
            if group in self._cancelled:
                raise JobError(f"{description} was cancelled")
            results.append(self._run_item(plan, item, compression))
            progress(len(results), len(plan.items))
        return results

    def job_id(self) -> str:
        return "inline"

    def cancel(self, group: str) -> None:
        self._cancelled.add(group)

    def _run_item(self, plan: CompactionPlan, item: PlanItem, compression: int) -> ItemResult:
        task = _Task(
            location=plan.location,
            item=item,
            row_type=plan.row_type,
            write_ids=plan.write_ids,
            compression=compression,
        )
        (outcome,) = _run_tasks([task])
        if isinstance(outcome, _Failure):
            raise outcome.error()
        return outcome
