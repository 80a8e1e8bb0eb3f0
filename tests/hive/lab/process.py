"""Servers of these tests: started with a log of their own, waited for with a limit, stopped by process id."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 300.0
"""Longest wait for anything on a busy machine; a test that needs it fails."""
SHORT_LIVED_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a Java that never lives long enough to earn back what its optimising compiler costs."""
_FIRST_LOOK_S, _LOOK_S = 0.01, 0.1
_STOP_S = 30
_NOT_EPHEMERAL = range(12_000, 32_000)
"""Ports that Linux gives to nobody who does not ask for them."""
_PORT_TRIES = 50


class Process:
    """One running server; `name` is for messages."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                # The kernel ends it when the tests are killed.
                ["setpriv", "--pdeathsig=KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        return self._popen.wait(timeout_s)

    def wait_for_port(self, port: int) -> None:
        self.wait_until(lambda: listens(port), f"listens on {port}")

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        until(lambda: not self.is_alive() or ready(), f"{self.name} {what}")
        assert self.is_alive(), f"{self.name} died: {tail(self.log)}"

    def kill(self) -> None:
        """As a power cut: the whole process group, at once."""
        self._signal(signal.SIGKILL)
        self._popen.wait(_STOP_S)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._popen.send_signal(number)
        try:
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal(self, number: int) -> None:
        if self.is_alive():
            os.killpg(self._popen.pid, number)


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, and that no other program gets by chance before a server of ours has started."""
    found: list[int] = []
    for port in random.sample(_NOT_EPHEMERAL, _PORT_TRIES):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"{_PORT_TRIES} ports were tried, {len(found)} of them are free, {count} are needed")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Look again and again, at first more often, until a condition of another process holds."""
    clock, pause_s = threading.Event(), _FIRST_LOOK_S
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"waited {patience_s} s in vain until {what}"
        clock.wait(pause_s)
        pause_s = min(2 * pause_s, _LOOK_S)


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
