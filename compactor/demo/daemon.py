"""The daemon as a user starts it: the console script's module in a process of its own, its log in a file."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from compactor.errors import JobError

_DRAIN_S = 60.0


def run_until_idle(config: Path, log: Path) -> None:
    """`compactor run --until-idle`; JobError when it does not end well."""
    with log.open("ab") as output:
        done = subprocess.run(  # noqa: S603 -- our own interpreter
            _command(config, "--until-idle"), stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
        )
    if done.returncode != 0:
        raise JobError(
            f"compactor run --until-idle ended with exit code {done.returncode}:\n{_tail(log)}", hint=f"see {log}"
        )


@contextlib.contextmanager
def running(config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`compactor run` while the block lasts; drained by SIGTERM at its end, killed when that takes too long."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 -- our own interpreter
            _command(config), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            yield process
            if process.poll() is not None:
                raise JobError(
                    f"the daemon ended with exit code {process.returncode}:\n{_tail(log)}", hint=f"see {log}"
                )
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_DRAIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _tail(log: Path, lines: int = 5) -> str:
    """The last lines of the daemon's log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "compactor", "run", "--config", str(config), *arguments]
