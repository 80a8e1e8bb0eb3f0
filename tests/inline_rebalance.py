"""A rebalance in this process: the code that Spark's tasks run, without Spark. It has nobody to sort rows for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compactor.acid.rebalance import Place, RebalancePlan
from compactor.acid.sources import SourceFile
from compactor.errors import CompactorError, JobError
from compactor.jobs.compaction import Progress
from compactor.jobs.jvm import JvmOrcTask
from compactor.jobs.rebalance import Outcome, Step, Task, rebalance, run_tasks
from compactor.jobs.spark_wish import SparkWish
from compactor.orc.rewrite import ItemResult


def rebalance_inline(
    plan: RebalancePlan, *, group: str, description: str, wish: SparkWish, step: Step, progress: Progress
) -> list[ItemResult]:
    def run(tasks: Sequence[Task]) -> list[Outcome]:
        step()
        return list(run_tasks(tasks))

    def sort(_: RebalancePlan, places: Sequence[Place], masks: Mapping[Place, bytes]) -> list[SourceFile]:
        raise JobError(f"{description}: {len(places)} stripes, {len(masks)} of them masked, are sorted by Spark only")

    return rebalance(plan, run, sort, no_jvm, progress)


def no_jvm(tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
    return [JobError(f"{task.output}: there is no JVM here") for task in tasks]
