"""The loop around cycles: boring on purpose.

A cycle is a function that does one round of a role's work and returns what it did. The loop runs it now and then every
interval, never twice at the same time, and goes on after errors with growing pauses. A cycle that takes longer than its
interval is followed by one run, not by a heap of them.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from compactor.errors import CompactorError
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest

MAX_BACK_OFF_S: Final = 320.0
"""Longest pause after errors in a row (Hive: hive.compactor.worker.max.sleep.time)."""
LONG_CYCLE_S: Final = 6 * 3600.0
"""A cycle that runs longer counts as stuck (Hive: metastore.compactor.long.running.initiator.threshold.warning)."""
STALE_INTERVALS: Final = 3
"""A role that began no cycle for this many pauses, and MIN_STALE_S, counts as stuck."""
MIN_STALE_S: Final = 10.0
"""Below this a busy machine would look like a stuck role."""

_log = structlog.get_logger(__name__)


class CycleResult(Protocol):
    """What one cycle did."""

    @property
    def did_anything(self) -> bool:
        """Whether the cycle changed something; idle cycles are not worth a line in the log."""

    def describe(self) -> str:
        """One line for the log, e.g. "requested 3 compactions"."""


@dataclass(frozen=True, kw_only=True)
class CycleStatus:
    """How a role's loop is doing. age_s: since the last cycle ended, or since the running one began."""

    name: str
    running: bool
    age_s: float
    failures_in_a_row: int
    stale: bool


class _Cycle:
    """One role's cycle with its own record: when it ran, and whether it should pause."""

    def __init__(
        self,
        name: str,
        run: Callable[[], CycleResult],
        *,
        interval_s: float,
        until_idle: bool,
        may_run_s: float,
        max_back_off_s: float,
        first_after_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self._run = run
        self._until_idle = until_idle
        self._may_run_s = may_run_s
        self._max_back_off_s = max_back_off_s
        self._clock = clock
        self._lock = threading.Lock()
        self._running = False
        self.first_after_s = first_after_s
        # A cycle that is not due yet is not late.
        self._changed_at = clock() + first_after_s
        self._failures = 0
        self._not_before = clock()

    def tick(self, stop: StopRequest, metrics: Metrics) -> None:
        """Run unless pausing after errors; the scheduler calls this every interval."""
        if stop.draining.is_set() or self._clock() < self._not_before:
            return
        with structlog.contextvars.bound_contextvars(cycle=self.name):
            while self._once(metrics) and self._until_idle and not stop.draining.is_set():
                pass

    def status(self) -> CycleStatus:
        with self._lock:
            age_s = self._clock() - self._changed_at
            pause_s = max(self.interval_s, self._pause_s())
            limit_s = self._may_run_s if self._running else max(STALE_INTERVALS * pause_s, MIN_STALE_S)
            return CycleStatus(
                name=self.name,
                running=self._running,
                age_s=age_s,
                failures_in_a_row=self._failures,
                stale=age_s > limit_s,
            )

    def _once(self, metrics: Metrics) -> bool:
        """One cycle; True when it did something and another one may be worth it."""
        started = self._begin()
        outcome = "failed"
        try:
            result = self._run()
            outcome = "worked" if result.did_anything else "idle"
        except CompactorError as error:
            _log.error("cycle failed", error=error.message, hint=error.hint)
        except Exception:  # noqa: BLE001 -- a bug in one role's cycle must not end the others
            _log.exception("cycle failed unexpectedly")
        else:
            log = _log.info if result.did_anything else _log.debug
            log(result.describe())
        finally:
            self._end(failed=outcome == "failed")
            metrics.cycle_finished(self.name, seconds=self._clock() - started, outcome=outcome)
        return outcome == "worked"

    def _begin(self) -> float:
        with self._lock:
            self._running, self._changed_at = True, self._clock()
            return self._changed_at

    def _end(self, *, failed: bool) -> None:
        with self._lock:
            self._running, self._changed_at = False, self._clock()
            self._failures = self._failures + 1 if failed else 0
            self._not_before = self._changed_at + self._pause_s()

    def _pause_s(self) -> float:
        """Pause that the failures in a row ask for; the first one waits only for the next interval."""
        if self._failures < 2:
            return 0.0
        return float(min(self.interval_s * 2 ** min(self._failures - 1, 30), self._max_back_off_s))


class Loop:
    """Runs cycles on a scheduler's threads until asked to stop."""

    def __init__(self, *, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._cycles: list[_Cycle] = []

    def every(
        self,
        interval_s: float,
        name: str,
        cycle: Callable[[], CycleResult],
        *,
        until_idle: bool = False,
        may_run_s: float = LONG_CYCLE_S,
        max_back_off_s: float = MAX_BACK_OFF_S,
        first_after_s: float = 0.0,
    ) -> None:
        """Run `cycle` now and then every interval_s seconds.

        until_idle: a cycle that did something is followed by the next at once, until there is nothing left to do.
        may_run_s: a single cycle that takes longer makes the process unhealthy.
        max_back_off_s: longest pause after errors in a row. first_after_s: time until the first cycle.
        """
        self._cycles.append(
            _Cycle(
                name,
                cycle,
                interval_s=interval_s,
                until_idle=until_idle,
                may_run_s=may_run_s,
                max_back_off_s=max_back_off_s,
                first_after_s=first_after_s,
                clock=self._clock,
            )
        )

    def run_until(self, stop: StopRequest) -> None:
        """Block until draining begins, then until the cycles that run have ended."""
        workers = ThreadPoolExecutor(max_workers=max(1, len(self._cycles)))
        scheduler = BackgroundScheduler(executors={"default": workers}, timezone=dt.UTC)
        for number, cycle in enumerate(self._cycles):
            scheduler.add_job(
                cycle.tick,
                "interval",
                args=(stop, self._metrics),
                seconds=cycle.interval_s,
                id=f"{number}-{cycle.name}",
                next_run_time=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=cycle.first_after_s),
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
            )
        scheduler.start()
        try:
            stop.draining.wait()
        finally:
            scheduler.shutdown(wait=True)

    def status(self) -> list[CycleStatus]:
        """Every cycle's state, in the order in which they were added."""
        return [cycle.status() for cycle in self._cycles]
