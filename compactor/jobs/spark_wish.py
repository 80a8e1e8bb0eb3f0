"""What one compaction asks of Spark, from the properties of its table and of its request.

Hive lets a table say how its compactions run: `compactor.<name>` in TBLPROPERTIES, or after WITH OVERWRITE
TBLPROPERTIES of the request, which wins (CompactorUtil.getCompactorJobQueueName, CompactorMR.overrideMRProps). Here
the names are Spark's; Hive's MapReduce names are taken where they mean the same. The Spark application is already
running, so what it fixed at its start cannot be changed for one compaction: such names come back as warnings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "compactor."
_POOL = "spark.scheduler.pool"
EXECUTOR = frozenset(
    {"spark.executor.memory", "spark.executor.memoryOverhead", "spark.executor.pyspark.memory", "spark.executor.cores"}
)
"""Requests for executors of this compaction's own (stage-level scheduling)."""
TASK = frozenset({"spark.task.cpus"})
_HIVE_NAMES = {
    "hive.compactor.job.queue": _POOL,
    "mapreduce.job.queuename": _POOL,
    "mapred.job.queue.name": _POOL,
    "mapreduce.map.memory.mb": "spark.executor.memory",
    "mapred.job.map.memory.mb": "spark.executor.memory",
    "mapreduce.map.cpu.vcores": "spark.task.cpus",
}
"""Names of Hive's compactor and of MapReduce, and what they mean to Spark."""
_OURS = frozenset({"recompress"})
"""`compactor.` properties that say something about the data and not about Spark."""
_MEMORY = re.compile(r"\d+[kmgt]b?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class SparkWish:
    """How a compaction wants to run.

    pool: scheduler pool; empty: the default one. resources: Spark's names of `EXECUTOR` and `TASK` with their values.
    """

    pool: str = ""
    resources: tuple[tuple[str, str], ...] = ()


NO_WISH = SparkWish()


def spark_wish(
    parameters: Mapping[str, str], request: Mapping[str, str], *, job_queue: str = ""
) -> tuple[SparkWish, tuple[str, ...]]:
    """The wish, and a warning for each property that is not heeded.

    parameters: of the table. request: of this compaction alone. job_queue: the installation's pool.
    """
    named: dict[str, str] = {}
    warnings: list[str] = []
    for key, given in {**_ours(parameters), **_ours(request)}.items():
        if key in _OURS:
            continue
        name = _HIVE_NAMES.get(key, key)
        # MapReduce counts megabytes.
        value = f"{given}m" if key.endswith(".memory.mb") else given
        problem = _problem(name, value)
        if problem:
            warnings.append(f"{PREFIX}{key} = {given} is not heeded: {problem}")
        else:
            named[name] = value
    pool = named.pop(_POOL, job_queue)
    return SparkWish(pool=pool, resources=tuple(sorted(named.items()))), tuple(warnings)


def _ours(properties: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(PREFIX): value for key, value in properties.items() if key.startswith(PREFIX)}


def _problem(name: str, value: str) -> str:
    """Why a property cannot be heeded; empty when it can."""
    if name == _POOL:
        return ""
    if name in EXECUTOR or name in TASK:
        whole = name.endswith((".cores", ".cpus"))
        if whole and not (value.isdigit() and int(value) > 0):
            return "a whole number, 1 or more, is needed"
        if not whole and _MEMORY.fullmatch(value) is None:
            return "an amount of memory such as 2g is needed"
        return ""
    if name.startswith("spark."):
        return "it is fixed when Spark starts; put it into the [spark] settings"
    return "it is a setting of another engine and has no meaning in Spark"
