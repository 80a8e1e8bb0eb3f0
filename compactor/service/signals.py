"""How the daemon is asked to stop: the first SIGTERM or SIGINT drains, the second interrupts.

1. The handlers only pass the signal on. Logging, locking or raising inside a handler can deadlock or break a library
   that happens to hold the same lock, so everything else happens in another thread.
2. Draining: no new work is taken; what runs is finished and published.
3. Interrupting: running work is cancelled through the callbacks (Spark's jobs, for one); its transaction is aborted
   and its output stays invisible.
4. The previous handlers are restored on the way out, so that a third signal, or a daemon that is embedded in a test
   or a notebook, behaves as it did before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Final

import structlog

from compactor.errors import JobError

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FINISHED: Final = 0
"""No signal has this number."""

_log = structlog.get_logger(__name__)


class StopRequest:
    """Whether, and how urgently, the process should stop. Safe to use from any thread."""

    def __init__(self) -> None:
        self.draining = threading.Event()
        self.interrupting = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def drain(self) -> None:
        """Take no new work."""
        self.draining.set()

    def interrupt(self) -> None:
        """Cancel running work; the callbacks run in the calling thread, each once."""
        self.draining.set()
        with self._lock:
            self.interrupting.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise JobError when running work should be given up; for moments when there is nothing to cancel yet."""
        if self.interrupting.is_set():
            raise JobError("interrupted", hint="the request is queued again")

    def wait(self, timeout_s: float) -> bool:
        """Sleep until draining begins or the time is over; True when draining."""
        return self.draining.wait(timeout_s)

    @contextmanager
    def on_interrupt(self, callback: Callable[[], None]) -> Iterator[None]:
        """Run `callback` if the work inside is interrupted; at once when that has already happened."""
        with self._lock:
            late = self.interrupting.is_set()
            if not late:
                self._callbacks.append(callback)
        if late:
            callback()
        try:
            yield
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into requests to stop while the body runs. Main thread only.

    A thread of its own carries them to `stop`, because a handler must not. Between the two stands a SimpleQueue: its
    put() is reentrant, while Event.set() takes a lock that the interrupted code may hold.
    """
    received: SimpleQueue[int] = SimpleQueue()

    def handle(number: int, _frame: FrameType | None) -> None:
        received.put(number)

    carrier = threading.Thread(target=_carry, args=(received, stop), name="signals", daemon=True)
    carrier.start()
    previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        received.put(_FINISHED)
        carrier.join()


def _carry(received: SimpleQueue[int], stop: StopRequest) -> None:
    while (number := received.get()) != _FINISHED:
        name = signal.Signals(number).name
        if not stop.draining.is_set():
            _log.info("draining: what runs is finished first; a second signal interrupts it", signal=name)
            stop.drain()
        else:
            _log.warning("interrupting: running work is cancelled", signal=name)
            stop.interrupt()
