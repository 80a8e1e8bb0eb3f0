"""HIVE-29572: Hive's worker marks its row 'ready for cleaning' before it commits. When the commit failed, or the
transaction timed out in between, the row stayed 'r' for ever, and as the oldest row of its table it kept every later
compaction from being cleaned: files piled up until the disk was full.

We publish state and transaction together. A row that a Hive left like that is recognised by its aborted transaction:
the cleaner removes that transaction's output alone, fails the row and goes on with the next.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome, Step
from tests.regressions.hive_rows import change_queue, mark_compacted, queue_row
from tests.simulation.world import World


def leave_a_ready_row_behind(world: World, kind: CompactionType) -> int:
    """A compaction up to Hive's markCompacted, whose transaction is then aborted; its id."""
    compaction_id = world.request(kind)

    def die(step: Step) -> None:
        if step is Step.VERIFIED:
            mark_compacted(world, compaction_id)
            txns.abort_transactions(world.db, world.open_compaction_txns(), reason="abort timed out")

    assert world.worker(at_step=die).run_once().outcome is Outcome.FENCED
    left = queue_row(world, compaction_id)
    assert (left["CQ_STATE"], left["CQ_NEXT_TXN_ID"], left["CQ_COMMIT_TIME"]) == ("r", None, None)
    return compaction_id


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_the_row_is_failed_and_the_next_compaction_of_the_table_is_cleaned(world: World, kind: CompactionType) -> None:
    world.create_table()
    expected = world.fill()
    stuck = leave_a_ready_row_behind(world, kind)
    assert world.rows() == expected
    world.insert({70: "later"})
    expected |= {70: "later"}
    later = world.request()
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == expected
    while world.clean().did_anything:
        assert world.rows() == expected
    assert world.compaction(stuck).state is CompactionState.FAILED
    assert "aborted" in str(world.compaction(stuck).error_message)
    assert world.compaction(later).state is CompactionState.SUCCEEDED
    assert len(world.entries()) == 1


def test_nothing_but_the_aborted_output_goes(world: World) -> None:
    world.create_table()
    expected = world.fill()
    before = set(world.entries())
    leave_a_ready_row_behind(world, CompactionType.MAJOR)
    assert len(world.entries()) == len(before) + 1
    assert world.clean().failed == 1
    assert set(world.entries()) == before
    assert world.rows() == expected


def test_a_row_whose_transaction_is_still_open_waits_for_its_commit(world: World) -> None:
    """Between Hive's markCompacted and its commit nothing may be deleted: the transaction can still go either way."""
    world.create_table()
    expected = world.fill()
    compaction_id = world.request()
    before_the_commit: list[list[str]] = []

    def look(step: Step) -> None:
        if step is Step.VERIFIED:
            claimed_by = world.only().worker_id
            mark_compacted(world, compaction_id)
            (held,) = world.clean().held
            assert "has not ended" in held.reason
            before_the_commit.append(world.entries())
            change_queue(world, compaction_id, CQ_STATE="w", CQ_WORKER_ID=claimed_by)

    assert world.worker(at_step=look).run_once().outcome is Outcome.PUBLISHED
    assert before_the_commit == [world.entries()]
    assert world.clean().cleaned == 1
    assert world.rows() == expected
