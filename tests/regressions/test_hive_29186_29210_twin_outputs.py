"""HIVE-29186 and HIVE-29210: after a restart the metastore gave claimed compactions to other workers while the first
ones still ran. Both finished, both committed, two directories held the same write ids, and since a reader took both,
every row of them was there twice.

A revoke aborts the claim's transaction in the same database transaction, so of two workers one is fenced. Where an
older Hive left twins behind, readers and compactions take the one that was committed last, and the cleaner removes both.
"""

from __future__ import annotations

import shutil

import pytest

from compactor.acid.layout import parse_directory
from compactor.metastore import queue, txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.snapshots import valid_txn_list
from compactor.worker import Outcome, Step, WorkerResult
from tests.simulation.world import World

STEPS = [Step.CLAIMED, Step.SNAPSHOT_RECORDED, Step.PLANNED, Step.WRITTEN, Step.VERIFIED]
KINDS = [CompactionType.MAJOR, CompactionType.MINOR]


def committed_ranges(world: World) -> list[str]:
    """Ranges of the compacted directories that a reader sees now, without the visibility ids."""
    committed = valid_txn_list(world.db)
    found = [e for e in map(parse_directory, world.entries()) if e is not None and e.visibility_txn > 0]
    return [e.name.split("_v")[0] for e in found if committed.is_valid(e.visibility_txn)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name.lower())
def test_of_two_workers_after_a_restart_one_is_fenced(world: World, step: Step, kind: CompactionType) -> None:
    world.create_table()
    expected = world.fill()
    world.request(kind)
    second: list[WorkerResult] = []

    def restart(reached: Step) -> None:
        """The metastore comes up again and gives every claim back (Hive's revokeFromLocalWorkers)."""
        if reached is step and not second:
            claimed = world.only().worker_id
            assert claimed is not None
            assert queue.revoke_claims(world.db, [claimed]) == [world.only().id]
            second.append(world.worker().run_once())

    first = world.worker(at_step=restart).run_once()
    assert (first.outcome, second[0].outcome) == (Outcome.FENCED, Outcome.PUBLISHED)
    ranges = committed_ranges(world)
    assert ranges
    assert len(ranges) == len(set(ranges))
    assert world.rows() == expected
    world.clean()
    assert world.rows() == expected
    assert world.only().state is CompactionState.SUCCEEDED


def leave_twins(world: World) -> list[str]:
    """What an older Hive left: two committed deltas of one range, each with all rows of it."""
    assert world.compact(CompactionType.MINOR).outcome is Outcome.PUBLISHED
    (compacted,) = (name for name in world.entries() if name.startswith("delta_") and "_v" in name)
    (later,) = txns.open_transactions(world.db, user="hive", host="h")
    txns.commit_transaction(world.db, later)
    twin = f"{compacted.split('_v')[0]}_v{later:07d}"
    shutil.copytree(world.location() / compacted, world.location() / twin)
    return [compacted, twin]


def test_twins_of_an_older_hive_are_read_once(world: World) -> None:
    world.create_table()
    world.insert({1: "one"})
    world.insert({2: "two"})
    twins = leave_twins(world)
    assert set(twins) <= set(world.entries())
    # rows() fails when a row is there twice
    assert world.rows() == {1: "one", 2: "two"}


def test_twins_of_an_older_hive_are_compacted_once_and_removed(world: World) -> None:
    world.create_table()
    world.insert({1: "one"})
    world.insert({2: "two"})
    leave_twins(world)
    world.insert({3: "three"})
    assert world.compact().outcome is Outcome.PUBLISHED
    assert world.rows() == {1: "one", 2: "two", 3: "three"}
    while world.clean().did_anything:
        assert world.rows() == {1: "one", 2: "two", 3: "three"}
    assert len(world.entries()) == 1
