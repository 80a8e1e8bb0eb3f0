"""Roles run by commands: what they log when nothing happens, how long they may take, and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from compactor.cli import main
from compactor.cli.daemon import Duty, Role, duties_of, loop_of
from compactor.cli.installation import Installation, Options
from compactor.metastore import queue, txns
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.metastore.schema import COMPACTION_QUEUE, init_db
from compactor.service.loop import CycleResult, CycleStatus, Loop
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from tests.simulation.world import World

HOUR_S = 3600.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An installation in the current directory, where commands find it; logging is left as it was found."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    world = World(root=tmp_path, db=Database.connect(f"sqlite:///{tmp_path}/compactor.db"), settings=Settings())
    init_db(world.db, warehouse=f"file:{tmp_path}/warehouse")
    yield world
    world.db.dispose()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Exit code and the events that were logged."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code, [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]


def ready_with_aborted_transaction(world: World) -> None:
    """A row that the cleaner fails: it says published, its transaction says aborted."""
    world.create_table()
    world.insert({1: "one"})
    world.request()
    queue.claim(world.db, worker_id="w-1", worker_version="0")
    (txn_id,) = txns.open_transactions(world.db, kind=txns.TxnType.COMPACTION, user="ada", host="h", agent_info="")
    with world.db.write() as conn:
        conn.execute(COMPACTION_QUEUE.update().values(CQ_STATE="r", CQ_WORKER_ID=None, CQ_TXN_ID=txn_id))
    txns.abort_transactions(world.db, [txn_id])


@pytest.mark.parametrize("role", ["initiator", "cleaner", "housekeeper"])
@pytest.mark.parametrize("mode", ["--once", "--until-idle"])
def test_a_role_with_nothing_to_do_says_once_what_it_looked_at(
    world: World, capsys: pytest.CaptureFixture[str], role: str, mode: str
) -> None:
    world.create_table()
    code, (event,) = run(capsys, role, mode)
    assert code == 0
    assert event


def test_until_idle_tells_of_idle_cycles_in_the_last_round_only(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.create_table()
    world.fill()
    assert world.compact().did_anything
    code, events = run(capsys, "cleaner", "--until-idle", "--set", "cleaner.retention_s=0")
    assert code == 0
    summaries = [e for e in events if e.startswith("cleaned ")]
    assert [e.partition(",")[0] for e in summaries] == ["cleaned 1", "cleaned 0"]


@pytest.mark.parametrize("mode", ["--once", "--until-idle"])
def test_a_row_that_the_cleaner_fails_makes_the_exit_code_1(
    world: World, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    ready_with_aborted_transaction(world)
    code, _ = run(capsys, "cleaner", mode, "--set", "cleaner.retention_s=0")
    assert world.only().state is CompactionState.FAILED
    assert code == 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass(frozen=True)
class Idle:
    did_anything: bool = False

    def describe(self) -> str:
        return "nothing"


def status_after(duty: Duty, seconds: float, installation: Installation) -> CycleStatus:
    """The duty's state while one of its cycles has been running for so long."""
    clock, stop = Clock(), StopRequest()
    seen: list[CycleStatus] = []

    def cycle() -> CycleResult:
        clock.now += seconds
        seen.extend(loop.status())
        stop.drain()
        return Idle()

    loop: Loop = loop_of([dataclasses.replace(duty, cycle=cycle)], installation.metrics, clock)
    loop.run_until(stop)
    (status,) = seen
    return status


def test_a_compaction_counts_as_stuck_only_when_its_claim_has_timed_out(world: World) -> None:
    options = Options(config=None, hive_site=None, assignments=("worker.timeout_s=36000", "worker.threads=1"))
    installation = Installation(options, {})
    (worker,) = duties_of(installation, Role.WORKER, StopRequest(), lambda *_: None)
    assert not status_after(worker, 9 * HOUR_S, installation).stale
    assert status_after(worker, 11 * HOUR_S, installation).stale
    (initiator,) = duties_of(installation, Role.INITIATOR, StopRequest(), lambda *_: None)
    assert status_after(initiator, 9 * HOUR_S, installation).stale
    installation.close()


def test_the_housekeeper_begins_when_its_settings_say(world: World) -> None:
    installation = Installation(
        Options(config=None, hive_site=None, assignments=("housekeeper.start_s=90", "txn.max_open=7")), {}
    )
    (housekeeper,) = duties_of(installation, Role.HOUSEKEEPER, StopRequest(), lambda *_: None)
    assert housekeeper.first_after_s == 90
    assert installation.open_rules is installation.open_rules, "all threads share one limit"
    installation.close()
