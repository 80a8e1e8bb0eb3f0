"""Keeping a transaction alive while its work runs, and knowing when it can no longer be trusted.

1. The first beat comes a quarter of the time-out after the start, the next ones every half (Hive: DbTxnManager,
   `hive.txn.timeout`), or sooner if the caller says so.
2. A beat that succeeds renews the trust window, measured from the *start* of that beat: the database cannot have noted
   it earlier, so a slow call never stretches our claim.
3. A beat that finds no connection is tried again every RETRY_S while the window lasts.
4. When the window, less a margin, is over, or the database says that the transaction is gone, the work is lost:
   `on_lost` is called once (it cancels the Spark job) and `check()` raises Fenced ever after. A late beat that
   succeeds does not restore trust; publication is fenced in the database besides (I4).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from compactor.errors import CommitOutcomeUnknown, DatabaseUnavailable, Fenced, NoSuchTransaction, TransactionAborted

RETRY_S: Final = 5.0
"""Pause after a beat that found no connection."""
MARGIN: Final = 0.1
"""Part of the time-out kept in reserve: clocks differ, and noticing the loss takes time."""

_log = structlog.get_logger(__name__)

Wait = Callable[[float], bool]
"""Sleeps the seconds given, or until the work ends; True when it ended."""


class Heartbeat:
    """Beats in a thread of its own while the body of the `with` runs.

    beat: one heartbeat; raises TransactionAborted or NoSuchTransaction when the transaction is gone,
    DatabaseUnavailable when that cannot be known. timeout_s: the transaction's time-out. interval_s: between beats,
    half the time-out by default. clock: monotonic seconds. wait: replaces the sleep between beats.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        *,
        timeout_s: float,
        interval_s: float | None = None,
        on_lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait | None = None,
    ) -> None:
        self._beat = beat
        self._interval_s = min(interval_s or timeout_s / 2, timeout_s / 2)
        self._window_s = timeout_s * (1 - MARGIN)
        self._first_s = min(timeout_s / 4, self._interval_s)
        self._on_lost = on_lost
        self._clock = clock
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._lock = threading.Lock()
        self._trusted_until = clock() + self._window_s
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        # The transaction was opened before this: its own start counts as the first beat.
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def trusted(self) -> bool:
        """Whether the transaction is certainly still ours."""
        with self._lock:
            return self._lost is None and self._clock() < self._trusted_until

    def check(self) -> None:
        """Raise Fenced unless `trusted()`. Call it before every step that others can see."""
        if not self.trusted():
            raise Fenced(self._lost or "the transaction's heartbeat is overdue", hint="the work is queued again")

    def _run(self) -> None:
        pause = self._first_s
        while self._lost is None and not self._wait(pause):
            pause = self._beat_once()

    def _beat_once(self) -> float:
        """One beat; the pause until the next one, in seconds."""
        started = self._clock()
        if started >= self._trusted_until:
            self._lose("the transaction's heartbeat is overdue: the metastore did not answer in time")
            return 0.0
        try:
            self._beat()
        except (TransactionAborted, NoSuchTransaction) as error:
            self._lose(error.message)
            return 0.0
        except (DatabaseUnavailable, CommitOutcomeUnknown) as error:
            # A beat that may have landed does no harm when it is repeated.
            _log.warning("heartbeat failed, trying again", error=str(error))
            # Looked at again when the window closes at the latest, so that the loss is noticed on time.
            return max(0.0, min(RETRY_S, self._interval_s, self._trusted_until - self._clock()))
        except Exception as error:  # noqa: BLE001 -- a thread that dies here would leave the work running unguarded
            self._lose(f"heartbeat failed: {error}")
            return 0.0
        if self._clock() >= self._trusted_until:
            self._lose("the transaction's heartbeat came too late")
            return 0.0
        with self._lock:
            self._trusted_until = started + self._window_s
        return self._interval_s

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._lost = reason
        _log.error("transaction lost", reason=reason)
        if self._on_lost is not None:
            self._on_lost()
