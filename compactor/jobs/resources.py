"""Giving a compaction's tasks the pool and the executors that its table asks for.

Pools are a property of the submitting thread (Spark, "Fair Scheduler Pools"). Executors of a size of their own are
Spark's stage-level scheduling: standalone, YARN and Kubernetes, with dynamic allocation; elsewhere every stage runs on
the executors that the application has.
"""

from __future__ import annotations

import re
from typing import TypeVar

import structlog
from pyspark import RDD, SparkContext
from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

from compactor.jobs.spark_wish import EXECUTOR, SparkWish

T = TypeVar("T")
_log = structlog.get_logger(__name__)


def enter_pool(context: SparkContext, wish: SparkWish) -> None:
    """Jobs of this thread belong to the wish's pool from now on; without one to the default pool."""
    # Spark takes None for "no pool"; its annotation forgets that.
    context.setLocalProperty("spark.scheduler.pool", wish.pool or None)  # type: ignore[arg-type]


def with_resources(tasks: RDD[T], wish: SparkWish) -> RDD[T]:
    """The same tasks on executors of the wish's size, where the cluster can give such."""
    if not wish.resources:
        return tasks
    context = tasks.context
    executor = [name for name, _ in wish.resources if name in EXECUTOR]
    dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    if str(context.master).startswith("local") or (executor and not dynamic):
        _log.warning(
            "executors of a compaction's own need a cluster with spark.dynamicAllocation.enabled; it uses those there are",
            wanted=dict(wish.resources),
        )
        return tasks
    return tasks.withResources(_profile(wish, context).build)


def _profile(wish: SparkWish, context: SparkContext) -> ResourceProfileBuilder:
    executors, per_task = ExecutorResourceRequests(), TaskResourceRequests()
    asked = dict(wish.resources)
    # A profile that does not name them gets Spark's defaults, not the application's.
    for name in EXECUTOR:
        value = asked.get(name, context.getConf().get(name, ""))
        if not value:
            continue
        match name:
            case "spark.executor.memory":
                executors.memory(_amount(value))
            case "spark.executor.memoryOverhead":
                executors.memoryOverhead(_amount(value))
            case "spark.executor.pyspark.memory":
                executors.pysparkMemory(_amount(value))
            case "spark.executor.cores":
                executors.cores(int(value))
    per_task.cpus(int(asked.get("spark.task.cpus", context.getConf().get("spark.task.cpus", "1"))))
    return ResourceProfileBuilder().require(executors).require(per_task)


def _amount(text: str) -> str:
    """Spark's requests want a unit: a bare number means MiB, as in the application's properties."""
    return text if re.search(r"[a-zA-Z]$", text) else f"{text}m"
