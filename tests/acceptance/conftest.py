from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("compactor")
TIME_LIMIT_S = 240


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said. code: exit code; out, err: its two outputs."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The error and its hint; fails when there is more, for example a traceback."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert len(lines) == 2, self.err
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("hint: ")
        return lines


@dataclass(frozen=True, kw_only=True)
class Console:
    """The installed `compactor` in a directory of its own."""

    folder: Path

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Answer:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("COMPACTOR_")}
        done = subprocess.run(
            [SCRIPT, *arguments],
            cwd=self.folder,
            env={**inherited, "COMPACTOR_SPARK_MASTER": "local[2]", **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture
def compactor(tmp_path: Path) -> Console:
    return Console(folder=tmp_path)
