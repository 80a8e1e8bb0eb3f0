"""Hive 4.0.1 leaves NEXT_TXN_ID and COMMIT_TIME of a rebalance empty. Its own cleaner takes the empty bound for "nobody
needs the old files" and removes them under whoever still reads them; one that takes it for "anybody may" never removes
them on a warehouse where somebody is always reading.

Our cleaner gives such a row the bound of the moment in which it first sees it: it waits for those who were there, and
not for those who came later.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.regressions.hive_rows import change_queue, queue_row
from tests.simulation.world import HOST, World, rows_of


@pytest.fixture
def undated(world: World) -> World:
    """A table after a rebalance of Hive 4.0.1."""
    world.create_table()
    world.fill()
    assert world.compact(CompactionType.REBALANCE).outcome is Outcome.PUBLISHED
    change_queue(world, world.only().id, CQ_NEXT_TXN_ID=None, CQ_COMMIT_TIME=None)
    return world


def open_undeclared(world: World) -> int:
    """A transaction of a Hive that writes no MIN_HISTORY_WRITE_ID."""
    return txns.open_transactions(world.db, user="hive", host=HOST)[0]


def test_without_readers_it_is_cleaned_at_once(undated: World) -> None:
    expected = undated.rows()
    assert undated.clean().cleaned == 1
    assert len(undated.entries()) == 1
    assert undated.rows() == expected


def test_a_reader_from_before_keeps_its_files(world: World) -> None:
    world.create_table()
    expected = world.fill()
    with world.reader() as before:
        assert world.compact(CompactionType.REBALANCE).outcome is Outcome.PUBLISHED
        change_queue(world, world.only().id, CQ_NEXT_TXN_ID=None, CQ_COMMIT_TIME=None)
        assert world.clean().cleaned == 0
        assert world.clean().cleaned == 0
        assert rows_of(before) == expected
    assert world.clean().cleaned == 1
    assert world.rows() == expected


def test_an_unbroken_chain_of_readers_does_not_keep_it_for_ever(undated: World) -> None:
    """Somebody is reading at every moment, each for a while only."""
    first = open_undeclared(undated)
    assert undated.clean().cleaned == 0
    assert queue_row(undated, undated.only().id)["CQ_NEXT_TXN_ID"] == first
    # None of those that come now has been there when the files were replaced, and none remembers the first one.
    txns.commit_transaction(undated.db, first)
    open_undeclared(undated)
    assert undated.clean().cleaned == 1
    assert undated.only().state is CompactionState.SUCCEEDED


def test_a_row_whose_transaction_is_not_over_gets_no_bound(undated: World) -> None:
    """Between Hive's markCompacted and its commit every reader that opens still sees the old files."""
    compacting = open_undeclared(undated)
    change_queue(undated, undated.only().id, CQ_TXN_ID=compacting)
    assert undated.clean().cleaned == 0
    assert queue_row(undated, undated.only().id)["CQ_NEXT_TXN_ID"] is None
