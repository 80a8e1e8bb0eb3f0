"""A role in a process of its own that can be made to die or to stop: `python -m tests.simulation.crashing_worker`.

It prints one JSON line for everything it does, and "ready" first; with --wait it then waits for a line on its
standard input, so that a test can let several processes begin at the same moment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path

import structlog

from compactor.acid.planning import PlanItem
from compactor.jobs.compaction import JobRunner, SparkJobRunner
from compactor.jobs.session import SparkSessions
from compactor.worker import Outcome, Step
from tests.inline_runner import InlineJobRunner
from tests.simulation.world import World


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def end_of_process(number: int) -> None:
    """SIGKILL: nothing after this line runs. SIGSTOP: it runs when SIGCONT comes."""
    say(signal=number)
    os.kill(os.getpid(), number)


def work(world: World, options: argparse.Namespace) -> None:
    """Carry out everything that is queued."""

    def at_step(step: Step) -> None:
        if step.name == options.kill_at:
            end_of_process(signal.SIGKILL)
        if step.name == options.stop_at:
            end_of_process(signal.SIGSTOP)

    worker = world.worker(at_step=at_step, runner=runner(world, options))
    while (result := worker.run_once()).outcome is not Outcome.IDLE:
        assert result.compaction is not None
        say(outcome=result.outcome.name, id=result.compaction.id, reason=result.reason)


def runner(world: World, options: argparse.Namespace) -> JobRunner:
    if options.spark:
        return SparkJobRunner(
            SparkSessions(
                master="local[1]", app_name="crash", driver_memory="512m", conf={}, cache=world.root / "cache"
            )
        )
    items = iter(range(1, sys.maxsize))

    def before_item(_: PlanItem) -> None:
        if next(items) == options.kill_before_item:
            end_of_process(signal.SIGKILL)

    return InlineJobRunner(before_item)


def initiate(world: World) -> None:
    """One cycle of an initiator."""
    result = world.initiate()
    say(requested=[r.id for r in result.requested], held_elsewhere=result.held_elsewhere)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["worker", "initiator"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--kill-at", choices=[s.name for s in Step])
    parser.add_argument("--stop-at", choices=[s.name for s in Step])
    parser.add_argument("--kill-before-item", type=int)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    world = World.existing(options.root)
    say(ready=True)
    if options.wait:
        sys.stdin.readline()
    if options.role == "worker":
        work(world, options)
    else:
        initiate(world)


if __name__ == "__main__":
    main()
