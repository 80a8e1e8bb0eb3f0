from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from compactor.errors import CommitOutcomeUnknown, DatabaseUnavailable, Fenced, NoSuchTransaction, TransactionAborted
from compactor.service.heartbeat import MARGIN, RETRY_S, Heartbeat

TIMEOUT_S = 100.0
WINDOW_S = TIMEOUT_S * (1 - MARGIN)


class Time:
    """A clock that only pauses move; the given number of them, then the work ends."""

    def __init__(self, pauses: int) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._left = pauses

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        if self._left == 0:
            return True
        self._left -= 1
        self.pauses.append(seconds)
        self.now += seconds
        return False


def beat_for(time: Time, beat: Callable[[], None], on_lost: Callable[[], None] | None = None) -> Heartbeat:
    """Run a heartbeat until its time is used up or the transaction is lost."""
    heartbeat = Heartbeat(beat, timeout_s=TIMEOUT_S, on_lost=on_lost, clock=time.clock, wait=time.wait)
    with heartbeat:
        pass
    return heartbeat


def test_the_first_beat_comes_after_a_quarter_and_the_next_ones_after_halves_of_the_time_out() -> None:
    time = Time(pauses=4)
    beats: list[float] = []
    heartbeat = beat_for(time, lambda: beats.append(time.now))
    assert beats == [25, 75, 125, 175]
    heartbeat.check()


def test_an_interval_longer_than_half_the_time_out_is_shortened() -> None:
    time = Time(pauses=2)
    beats: list[float] = []
    with Heartbeat(
        lambda: beats.append(time.now), timeout_s=TIMEOUT_S, interval_s=500, clock=time.clock, wait=time.wait
    ):
        pass
    assert beats == [25, 75]


def test_trust_lasts_from_the_start_of_a_slow_beat_not_from_its_end() -> None:
    time = Time(pauses=1)

    def slow() -> None:
        time.now += 30

    heartbeat = beat_for(time, slow)
    time.now = 25 + WINDOW_S - 0.1
    assert heartbeat.trusted()
    time.now = 25 + WINDOW_S
    assert not heartbeat.trusted()
    with pytest.raises(Fenced, match="overdue"):
        heartbeat.check()


def test_a_database_that_is_away_for_a_moment_costs_nothing() -> None:
    time = Time(pauses=3)
    answers = [DatabaseUnavailable("gone"), CommitOutcomeUnknown("gone"), None]

    def beat() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    heartbeat = beat_for(time, beat)
    assert time.pauses == [25, RETRY_S, RETRY_S]
    assert heartbeat.trusted()


def test_a_database_that_stays_away_loses_the_transaction_when_the_window_closes() -> None:
    time = Time(pauses=1000)
    lost: list[float] = []

    def beat() -> None:
        raise DatabaseUnavailable("gone")

    heartbeat = beat_for(time, beat, on_lost=lambda: lost.append(time.now))
    assert lost == [WINDOW_S]
    with pytest.raises(Fenced, match="did not answer in time"):
        heartbeat.check()


def test_a_beat_that_hangs_past_the_window_does_not_restore_trust() -> None:
    time = Time(pauses=1000)
    lost: list[float] = []

    def hang() -> None:
        time.now += WINDOW_S

    heartbeat = beat_for(time, hang, on_lost=lambda: lost.append(time.now))
    assert lost == [25 + WINDOW_S]
    with pytest.raises(Fenced, match="came too late"):
        heartbeat.check()


@pytest.mark.parametrize(
    "error", [TransactionAborted("transaction 7 is aborted"), NoSuchTransaction("transaction 7 is gone")]
)
def test_a_transaction_that_is_gone_is_lost_at_once_and_told_once(error: Exception) -> None:
    time = Time(pauses=1000)
    lost: list[float] = []

    def beat() -> None:
        raise error

    heartbeat = beat_for(time, beat, on_lost=lambda: lost.append(time.now))
    assert lost == [25]
    with pytest.raises(Fenced, match="transaction 7"):
        heartbeat.check()


def test_an_unforeseen_error_stops_the_work_instead_of_leaving_it_unguarded() -> None:
    lost: list[str] = []

    def beat() -> None:
        raise ZeroDivisionError("a bug")

    heartbeat = beat_for(Time(pauses=1000), beat, on_lost=lambda: lost.append("lost"))
    assert lost == ["lost"]
    with pytest.raises(Fenced, match="a bug"):
        heartbeat.check()


def test_the_end_of_the_work_ends_the_heartbeat_at_once() -> None:
    with Heartbeat(lambda: None, timeout_s=1e6) as heartbeat:
        heartbeat.check()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_failure_of_the_work_passes_through() -> None:
    with pytest.raises(KeyError), Heartbeat(lambda: None, timeout_s=1e6):
        raise KeyError("work")
