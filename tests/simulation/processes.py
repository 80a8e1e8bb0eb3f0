"""Starting roles in processes of their own, and reading what they say; every wait has an end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).parents[2]
PATIENCE_S = 120.0
"""Longest wait for anything on a busy machine; a test that needs it fails."""
_LOOK_S = 0.02


class Process:
    """`crashing_worker` with its arguments; ends with the `with` block at the latest."""

    def __init__(self, role: str, root: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.crashing_worker", role, str(root), *arguments],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._said = Lines(self._process.stdout)
        assert self.next() == {"ready": True}

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def go(self) -> None:
        """Let a process that was started with --wait begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """What it says next."""
        said: dict[str, Any] = json.loads(self._said.next())
        return said

    def rest(self) -> list[dict[str, Any]]:
        """All it says until its end."""
        return [json.loads(line) for line in self._said.rest()]

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        return self._process.wait(PATIENCE_S)


class Lines:
    """Lines of a pipe, read by a thread of their own so that no wait is for ever."""

    def __init__(self, pipe: IO[str]) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._taken = 0
        self._ended = False
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def next(self) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._lines) > self._taken or self._ended, PATIENCE_S)
            assert len(self._lines) > self._taken, "the process ended without a word"
            self._taken += 1
            return self._lines[self._taken - 1]

    def until(self, text: str) -> str:
        """The next line with `text` in it."""
        while text not in (line := self.next()):
            pass
        return line

    def rest(self) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, PATIENCE_S)
            left = self._lines[self._taken :]
            self._taken = len(self._lines)
            return left

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again until a condition of the metastore or the file system holds."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / _LOOK_S)):
        if condition():
            return
        pause.wait(_LOOK_S)
    raise AssertionError(f"waited {PATIENCE_S} s in vain until {what}")
