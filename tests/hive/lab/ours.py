"""Our own roles beside Hive, as an operator runs them: the console script with Hive's hive-site.xml."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hive.lab.hive import Hive
from tests.hive.lab.process import PATIENCE_S, SHORT_LIVED_JAVA, Process, until

_SETTINGS = """[spark]
master = "local[2]"
driver_memory = "900m"
[spark.conf]
"spark.ui.enabled" = "false"
[metrics]
port = 0
[housekeeper]
interval_s = 2
"""


class Compactor:
    """`playing` starts and stops roles, each a process of its own; a call runs one command to its end."""

    def __init__(self, root: Path, site: Path) -> None:
        self._root = root
        self._site = site
        self._count = itertools.count(1)
        self._running: dict[str, Process] = {}
        self._root.mkdir()
        (root / "compactor.toml").write_text(_SETTINGS)

    def __call__(self, *arguments: str) -> str:
        """A command that must succeed; what it printed."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self._root,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def playing(self, roles: Iterable[str]) -> None:
        """These roles run from now on, and no other."""
        wanted = set(roles)
        for role in self._running.keys() - wanted:
            self._running.pop(role).stop()
        for role in wanted:
            self.start(role)

    def start(self, role: str) -> Process:
        """The role's process, started when it does not run."""
        running = self._running.get(role)
        if running is None or not running.is_alive():
            log = self._root / f"{role}-{next(self._count)}.log"
            running = Process(role, self._command(role), log=log, cwd=self._root, env=_environment())
            self._running[role] = running
        return running

    def clean(self, is_clean: Callable[[], bool]) -> None:
        """Cycles of our cleaner until it is clean: who held the files may take a moment to be gone."""
        until(lambda: self("cleaner", "--once") is not None and is_clean(), "the cleaner has cleaned")

    @contextmanager
    def stopped_in_compactions(self, hive: Hive, tables: Sequence[str]) -> Iterator[list[int]]:
        """A new worker, frozen between its transactions and their publication; their ids, in the order of the tables.

        Spark takes seconds to start, so that the transactions are open for long enough to be seen.
        """
        worker = self.start("worker")
        until(
            lambda: all(opened_txn(hive, table) is not None for table in tables),
            f"the worker has opened transactions for {', '.join(tables)}",
        )
        os.killpg(worker.pid, signal.SIGSTOP)
        try:
            txns = [txn for table in tables if (txn := opened_txn(hive, table)) is not None]
            assert len(txns) == len(tables)
            yield txns
        finally:
            os.killpg(worker.pid, signal.SIGCONT)

    def logs(self) -> dict[str, Path]:
        return {p.stem: p for p in sorted(self._root.glob("*.log"))}

    def stop(self) -> None:
        self.playing(())

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "compactor", *arguments, "--hive-site", str(self._site)]


def opened_txn(hive: Hive, table: str) -> int | None:
    """The transaction of the table's claim, once it has one."""
    query = 'SELECT "CQ_TXN_ID" FROM "COMPACTION_QUEUE" WHERE "CQ_TABLE" = %s AND "CQ_STATE" = \'w\''
    with hive.metastore_rows() as conn:
        row = conn.execute(query, (table,)).fetchone()
    return int(str(row[0])) if row and row[0] else None


def _environment() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COMPACTOR_")}
    return environment | {"JDK_JAVA_OPTIONS": " ".join(SHORT_LIVED_JAVA)}
