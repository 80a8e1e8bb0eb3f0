from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from compactor.errors import DatabaseUnavailable
from compactor.service.loop import LONG_CYCLE_S, MAX_BACK_OFF_S, MIN_STALE_S, Loop
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest

PATIENCE_S = 10
TICK_S = 0.002

Running = Callable[[Loop], AbstractContextManager[StopRequest]]


@dataclass(frozen=True, kw_only=True)
class Did:
    did_anything: bool = False

    def describe(self) -> str:
        return "moved a mountain" if self.did_anything else "looked around"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Counter:
    """A cycle that counts its runs and lets a test wait for the next ones."""

    def __init__(self, cycle: Callable[[int], Did] = lambda _run: Did()) -> None:
        self._cycle = cycle
        self._changed = threading.Condition()
        self.runs = 0

    def __call__(self) -> Did:
        with self._changed:
            self.runs += 1
            self._changed.notify_all()
        return self._cycle(self.runs)

    def wait_for_more(self, runs: int) -> None:
        with self._changed:
            target = self.runs + runs
            assert self._changed.wait_for(lambda: self.runs >= target, PATIENCE_S)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="0")


@pytest.fixture
def running() -> Running:
    @contextmanager
    def run(loop: Loop) -> Iterator[StopRequest]:
        stop = StopRequest()
        thread = threading.Thread(target=loop.run_until, args=(stop,))
        thread.start()
        try:
            yield stop
        finally:
            stop.drain()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    return run


def test_cycles_run_at_once_and_then_every_interval(metrics: Metrics, running: Running) -> None:
    loop = Loop(metrics=metrics)
    hourly, often = Counter(), Counter()
    loop.every(3600, "hourly", hourly)
    loop.every(TICK_S, "often", often)
    with running(loop):
        often.wait_for_more(3)
    assert hourly.runs == 1


def test_the_first_cycle_may_be_put_off_and_is_not_late_meanwhile(metrics: Metrics, running: Running) -> None:
    loop = Loop(metrics=metrics)
    late, often = Counter(), Counter()
    loop.every(TICK_S, "late", late, first_after_s=3600)
    loop.every(TICK_S, "often", often)
    with running(loop):
        often.wait_for_more(3)
    assert late.runs == 0
    assert [status.age_s < 0 for status in loop.status()] == [True, False]


def test_a_cycle_never_runs_twice_at_the_same_time(metrics: Metrics, running: Running) -> None:
    release = threading.Event()

    def block(_run: int) -> Did:
        assert release.wait(PATIENCE_S)
        return Did()

    loop = Loop(metrics=metrics)
    slow, often = Counter(block), Counter()
    loop.every(TICK_S, "slow", slow)
    loop.every(TICK_S, "often", often)
    with running(loop):
        often.wait_for_more(5)
        assert slow.runs == 1
        release.set()
        slow.wait_for_more(1)


def test_draining_waits_for_the_cycle_that_runs_and_begins_no_other(metrics: Metrics) -> None:
    started, release, stop = threading.Event(), threading.Event(), StopRequest()

    def block(_run: int) -> Did:
        started.set()
        assert release.wait(PATIENCE_S)
        return Did(did_anything=True)

    loop = Loop(metrics=metrics)
    slow = Counter(block)
    loop.every(TICK_S, "slow", slow, until_idle=True)
    thread = threading.Thread(target=loop.run_until, args=(stop,))
    thread.start()
    assert started.wait(PATIENCE_S)
    stop.drain()
    thread.join(0.05)
    assert thread.is_alive()
    release.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert slow.runs == 1


def test_a_busy_cycle_is_followed_by_the_next_at_once_until_it_is_idle(metrics: Metrics, running: Running) -> None:
    loop = Loop(metrics=metrics)
    queue, once = Counter(lambda run: Did(did_anything=run < 4)), Counter(lambda _run: Did(did_anything=True))
    loop.every(3600, "queue", queue, until_idle=True)
    loop.every(3600, "once", once)
    often = Counter()
    loop.every(TICK_S, "often", often)
    with running(loop):
        often.wait_for_more(5)
    assert queue.runs == 4
    assert once.runs == 1


@pytest.mark.parametrize("error", [DatabaseUnavailable("no answer", hint="start it"), ZeroDivisionError("a bug")])
def test_an_error_is_logged_and_counted_and_the_loop_goes_on(
    metrics: Metrics, running: Running, error: Exception
) -> None:
    def fail_once(run: int) -> Did:
        if run == 1:
            raise error
        return Did()

    loop = Loop(metrics=metrics)
    cycle = Counter(fail_once)
    loop.every(TICK_S, "initiator", cycle)
    with capture_logs() as records, running(loop):
        cycle.wait_for_more(2)
    assert [record["log_level"] for record in records if record["event"].startswith("cycle failed")] == ["error"]
    value = metrics.registry.get_sample_value
    assert value("compactor_cycles_total", {"cycle": "initiator", "outcome": "failed"}) == 1
    assert value("hive_compaction_initiator_failure_counter_total") == 1


def test_errors_in_a_row_lead_to_growing_bounded_pauses(metrics: Metrics, running: Running) -> None:
    clock = Clock()

    def fail(_run: int) -> Did:
        raise DatabaseUnavailable("no answer")

    loop = Loop(metrics=metrics, clock=clock)
    failing, often = Counter(fail), Counter()
    loop.every(TICK_S, "failing", failing)
    loop.every(TICK_S, "often", often)

    def wait_for_failures(number: int) -> None:
        while loop.status()[0].failures_in_a_row < number:
            often.wait_for_more(1)

    with running(loop):
        # The clock stands still, so after the second failure in a row the pause never ends by itself.
        wait_for_failures(2)
        for failures, pause_s in enumerate((TICK_S * 2, TICK_S * 4, TICK_S * 8), start=2):
            clock.now += pause_s * 0.9
            often.wait_for_more(5)
            assert failing.runs == failures
            clock.now += pause_s * 0.2
            wait_for_failures(failures + 1)
        for failures in range(6, 40):
            clock.now += MAX_BACK_OFF_S * 1.01
            wait_for_failures(failures)


def test_only_cycles_that_did_something_are_worth_a_line_at_info(metrics: Metrics, running: Running) -> None:
    loop = Loop(metrics=metrics)
    cycle = Counter(lambda run: Did(did_anything=run == 2))
    loop.every(TICK_S, "cleaner", cycle)
    with capture_logs() as records, running(loop):
        cycle.wait_for_more(4)
    assert [record["event"] for record in records if record["log_level"] == "info"] == ["moved a mountain"]
    value = metrics.registry.get_sample_value
    assert value("compactor_cycles_total", {"cycle": "cleaner", "outcome": "worked"}) == 1


def test_a_role_that_begins_no_cycle_for_three_intervals_is_stale(metrics: Metrics) -> None:
    clock = Clock()
    loop = Loop(metrics=metrics, clock=clock)
    loop.every(60, "initiator", Counter())
    loop.every(0.1, "cleaner", Counter())
    clock.now = MIN_STALE_S
    assert [status.stale for status in loop.status()] == [False, False]
    clock.now = 180
    assert [status.stale for status in loop.status()] == [False, True]
    clock.now = 181
    initiator = loop.status()[0]
    assert (initiator.name, initiator.running, initiator.age_s, initiator.stale) == ("initiator", False, 181, True)


def test_a_long_cycle_is_healthy_until_its_limit(metrics: Metrics, running: Running) -> None:
    clock, started, release = Clock(), threading.Event(), threading.Event()

    def block(_run: int) -> Did:
        started.set()
        assert release.wait(PATIENCE_S)
        return Did()

    loop = Loop(metrics=metrics, clock=clock)
    loop.every(60, "worker", Counter(block), may_run_s=7200)
    with running(loop):
        assert started.wait(PATIENCE_S)
        clock.now = 7200
        assert (loop.status()[0].running, loop.status()[0].stale) == (True, False)
        clock.now = 7201
        assert loop.status()[0].stale
        release.set()
    assert LONG_CYCLE_S == 6 * 3600
    assert not loop.status()[0].running


def test_more_loops_than_a_default_pool_has_threads_all_run_together(metrics: Metrics, running: Running) -> None:
    together = threading.Barrier(17)

    def meet(_run: int) -> Did:
        together.wait(PATIENCE_S)
        return Did()

    loop = Loop(metrics=metrics)
    for number in range(16):
        loop.every(3600, f"worker-{number}", Counter(meet))
    with running(loop):
        together.wait(PATIENCE_S)
