from __future__ import annotations

import os
import signal
import threading

import pytest

from compactor.service.signals import SIGNALS, StopRequest, stop_on_signals

PATIENCE_S = 10


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_drains_and_the_second_interrupts(number: signal.Signals) -> None:
    stop = StopRequest()
    with stop_on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(PATIENCE_S)
        assert not stop.interrupting.is_set()
        os.kill(os.getpid(), number)
        assert stop.interrupting.wait(PATIENCE_S)


def test_two_different_signals_count_as_two() -> None:
    stop = StopRequest()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.interrupting.wait(PATIENCE_S)


def test_a_signal_after_a_request_from_elsewhere_interrupts() -> None:
    stop = StopRequest()
    with stop_on_signals(stop):
        stop.drain()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.interrupting.wait(PATIENCE_S)


def test_the_previous_handlers_are_restored_even_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]

    def work() -> None:
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ValueError("work failed")

    with pytest.raises(ValueError, match="work failed"), stop_on_signals(StopRequest()):
        work()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert "signals" not in {thread.name for thread in threading.enumerate()}


def test_waiting_ends_when_draining_begins_and_says_so() -> None:
    stop = StopRequest()
    assert not stop.wait(0)
    stop.drain()
    assert stop.wait(PATIENCE_S)


def test_interrupting_includes_draining_and_calls_back_once() -> None:
    stop = StopRequest()
    calls: list[str] = []
    with stop.on_interrupt(lambda: calls.append("cancelled")):
        stop.interrupt()
        stop.interrupt()
    assert calls == ["cancelled"]
    assert stop.draining.is_set()


def test_finished_work_is_not_called_back() -> None:
    stop = StopRequest()
    calls: list[str] = []
    with stop.on_interrupt(lambda: calls.append("cancelled")):
        pass
    stop.interrupt()
    assert calls == []


def test_work_that_begins_after_the_interruption_is_cancelled_at_once() -> None:
    stop = StopRequest()
    stop.interrupt()
    calls: list[str] = []
    with stop.on_interrupt(lambda: calls.append("cancelled")):
        assert calls == ["cancelled"]


def test_draining_alone_cancels_nothing() -> None:
    stop = StopRequest()
    calls: list[str] = []
    with stop.on_interrupt(lambda: calls.append("cancelled")):
        stop.drain()
    assert calls == []
