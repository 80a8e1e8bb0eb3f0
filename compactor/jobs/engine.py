"""What the worker needs of Spark, in one place: tests put the same code, run in their own process, behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from compactor.jobs.compaction import JobRunner, SparkJobRunner
from compactor.jobs.rebalance import Rebalancer, run_rebalance
from compactor.jobs.session import SparkSessions
from compactor.jobs.stretches import Each, OnSpark


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where the data plane runs.

    runner: minor and major compactions. rebalance: the third kind. each: given a job's group and description, runs a
    function on many tasks. cores: how many tasks run at the same time; raises JobError without an engine.
    """

    runner: JobRunner
    rebalance: Rebalancer
    each: Callable[[str, str], Each]
    cores: Callable[[], int]


def spark_engine(sessions: SparkSessions) -> Engine:
    """The engine of a process that has Spark sessions."""
    runner = SparkJobRunner(sessions)
    return Engine(
        runner=runner,
        rebalance=partial(run_rebalance, sessions),
        each=lambda group, description: OnSpark(sessions=sessions, group=group, description=description),
        cores=runner.cores,
    )
