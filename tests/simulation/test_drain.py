"""The real console script: SIGTERM drains, a second one interrupts, and the pages answer meanwhile.

The test holds SQLite's write lock while it sends signals, so that the worker cannot get past its next step in the
metastore, however fast or slow the machine is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.metastore.compaction import CompactionState
from tests.simulation.processes import PATIENCE_S, Lines, until
from tests.simulation.world import World, database_url, fingerprint

pytestmark = pytest.mark.slow

SCRIPT = Path(sys.executable).with_name("compactor")
MANY = 1_500_000


class Daemon:
    """`compactor run` on a world's metastore; its log is JSON, for it goes to a pipe."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [SCRIPT, "run"],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "COMPACTOR_DATABASE_URL": database_url(root),
                "COMPACTOR_SPARK_MASTER": "local[1]",
                "COMPACTOR_METRICS_PORT": "0",
                "COMPACTOR_WORKER__SLEEP_S": "0.2",
                "COMPACTOR_CLEANER__ON": "false",
            },
        )
        assert self.process.stderr is not None
        self.log = Lines(self.process.stderr)
        self.port = json.loads(self.log.until("serving /metrics"))["port"]

    def page(self, name: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()

    def terminate(self, until_it_says: str) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.log.until(until_it_says)

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def daemon(world: World) -> Iterator[Daemon]:
    started = Daemon(world.root)
    yield started
    started.process.kill()
    started.process.wait(PATIENCE_S)


@contextmanager
def no_other_writer(world: World) -> Iterator[None]:
    with world.db.write():
        yield


def spark_workers(daemon: int) -> list[int]:
    """The Python processes below the daemon that run Spark's tasks."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state ppid …; a name may hold spaces and parentheses
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])

    def below(pid: int) -> bool:
        return pid == daemon or (pid in parents and below(parents[pid]))

    return [
        p for p in parents if p != daemon and below(p) and b"pyspark.daemon" in Path(f"/proc/{p}/cmdline").read_bytes()
    ]


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def transaction_is_recorded(world: World) -> bool:
    return world.only().state is CompactionState.WORKING and world.only().txn_id is not None


def test_one_sigterm_lets_the_running_compaction_finish_while_the_pages_answer(world: World, daemon: Daemon) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    assert daemon.page("healthz")[0] == 200
    world.request()
    until(lambda: transaction_is_recorded(world), "the worker has recorded its snapshot")
    with no_other_writer(world):
        # Spark takes seconds to start, and the job's id is the next thing that the worker writes down.
        assert transaction_is_recorded(world)
        daemon.terminate("draining")
        status, health = daemon.page("healthz")
        assert (status, json.loads(health)["status"]) == (200, "ok")
        assert "compactor_" in daemon.page("metrics")[1]
        assert daemon.process.poll() is None
    assert daemon.exit_code() == 0
    assert world.only().state is CompactionState.READY_FOR_CLEANING
    assert world.rows() == expected


def test_a_second_sigterm_before_the_job_gives_the_request_back(world: World, daemon: Daemon) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    before = fingerprint(world.location())
    world.request()
    until(lambda: transaction_is_recorded(world), "the worker has recorded its snapshot")
    with no_other_writer(world):
        assert transaction_is_recorded(world)
        daemon.terminate("draining")
        daemon.terminate("interrupting")
    assert daemon.exit_code() == 0
    assert_released(world, expected)
    assert fingerprint(world.location()) == before


def test_a_second_sigterm_cancels_the_running_job(world: World, daemon: Daemon) -> None:
    world.create_table()
    ids = np.arange(MANY, dtype=np.int32)
    world.writer().insert(pa.table({"id": ids, "item": pc.cast(pa.array(ids), pa.string())}))
    # A delete in every stripe: each has to be decoded and encoded again.
    world.writer().delete(pc.field("id").isin(pa.array(ids[:: MANY // 2000])))
    expected = world.rows()
    world.request()
    until(lambda: any(world.location().glob("base_*/_tmp.*")), "the job writes")
    with stopped(spark_workers(daemon.process.pid)):
        # The job can neither finish nor fail by itself while both signals are on their way.
        assert any(world.location().glob("base_*/_tmp.*"))
        daemon.terminate("draining")
        daemon.terminate("interrupting")
    assert daemon.exit_code() == 0
    assert_released(world, expected)


def assert_released(world: World, expected: dict[int, str]) -> None:
    row = world.only()
    assert (row.state, row.worker_id, row.error_message) == (CompactionState.INITIATED, None, None)
    assert not world.open_compaction_txns()
    assert world.rows() == expected
