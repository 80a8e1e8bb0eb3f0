"""Two worker processes on one database: each request is carried out once, whoever is paused or overtaken (I3, I4)."""

from __future__ import annotations

import signal

import pytest

from compactor.acid.layout import parse_directory
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.worker import Outcome, Step
from tests.simulation.processes import Process
from tests.simulation.world import ORDERS, Rows, World

pytestmark = pytest.mark.slow

PUBLISHED = Outcome.PUBLISHED.name


def committed_ranges(world: World, table: TableName) -> list[tuple[object, ...]]:
    """Type and write ids of every compacted directory; each was committed, for the cleaner removes the others."""
    found = [parse_directory(name) for name in world.entries(table)]
    return sorted((type(e).__name__, e.name.split("_v")[0]) for e in found if e is not None and e.visibility_txn > 0)


def test_two_workers_share_a_queue_without_doing_anything_twice(world: World) -> None:
    tables = [TableName(database="default", table=f"shared_{n}") for n in range(6)]
    expected: dict[TableName, Rows] = {}
    for table in tables:
        world.create_table(table)
        world.insert({1: "one", 2: "two"}, table)
        world.insert({3: "three"}, table)
        expected[table] = {1: "one", 2: "two", 3: "three"}
    requests = {world.request(table=table) for table in tables}
    with Process("worker", world.root, "--wait") as one, Process("worker", world.root, "--wait") as two:
        one.go()
        two.go()
        done = [*one.rest(), *two.rest()]
        assert (one.exit_code(), two.exit_code()) == (0, 0)
    assert sorted(d["id"] for d in done) == sorted(requests)
    assert {d["outcome"] for d in done} == {PUBLISHED}
    assert {row.state for row in world.compactions()} == {CompactionState.READY_FOR_CLEANING}
    world.clean()
    for table in tables:
        assert world.rows(table) == expected[table]
        assert committed_ranges(world, table) == [("Base", "base_0000002")]
        assert len(world.entries(table)) == 1


@pytest.mark.parametrize(
    "step", [Step.CLAIMED, Step.SNAPSHOT_RECORDED, Step.PLANNED, Step.VERIFIED], ids=lambda s: s.name.lower()
)
def test_a_paused_worker_whose_claim_was_revoked_publishes_nothing_when_it_wakes_up(world: World, step: Step) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    world.request()
    with Process("worker", world.root, "--stop-at", step.name) as paused:
        assert paused.next() == {"signal": signal.SIGSTOP}
        (row,) = world.compactions()
        assert row.state is CompactionState.WORKING
        # It is not dead: only its silence, or the age of its claim, can tell.
        assert world.initiate().revoked == ()
        world.silence(world.open_compaction_txns())
        impatient = world.settings.worker.model_copy(update={"timeout_s": 1e-9})
        World(
            root=world.root,
            db=world.db,
            metrics=world.metrics,
            settings=world.settings.model_copy(update={"worker": impatient}),
        ).keep_house()
        assert world.only().state is CompactionState.INITIATED
        assert world.worker().run_once().outcome is Outcome.PUBLISHED
        world.clean()
        assert world.only().state is CompactionState.SUCCEEDED
        paused.send(signal.SIGCONT)
        (woken,) = paused.rest()
        assert woken["outcome"] == Outcome.FENCED.name
        assert paused.exit_code() == 0
    # Woken after it had planned, it wrote its whole output although the cleaner had been there already.
    assert world.rows() == expected
    assert not world.open_compaction_txns()
    world.keep_house()
    assert world.rows() == expected
    world.clean()
    assert world.rows() == expected
    assert len(world.entries()) == 1
    assert committed_ranges(world, ORDERS) == [("Base", "base_0000004")]
    assert world.only().state is CompactionState.SUCCEEDED
