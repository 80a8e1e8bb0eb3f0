"""A trap in Hive 4 that nobody reported: its minor compaction selects deltas by "smallest write id ≥ the smallest open
one", and the snapshot remembers the smallest open one only when there is an exception besides it. With an aborted and an
open write on one table the range is empty, the minor selects nothing, and it succeeds in silence for as long as the
writer is open. MergeCompactor even names such an output delta_<open>_<open - 1>.

Our compactions take the directories that the snapshot lists below the first open write, and are named after those.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.simulation.world import ORDERS, World, arrow

KINDS = [CompactionType.MINOR, CompactionType.MAJOR]
EXPECTED_NAME = {CompactionType.MINOR: "delta_0000001_0000004", CompactionType.MAJOR: "base_0000004"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_an_aborted_and_an_open_write_do_not_make_a_compaction_of_nothing(world: World, kind: CompactionType) -> None:
    world.create_table()
    world.insert({1: "one"})
    world.insert({2: "two"})
    world.insert_and_abort({3: "aborted"})
    world.insert({4: "four"})
    with world.writer().transaction() as slow:
        slow.insert(arrow({5: "slow"}))
        world.insert({6: "six"})
        assert world.rows() == {1: "one", 2: "two", 4: "four", 6: "six"}
        assert world.compact(kind).outcome is Outcome.PUBLISHED
        assert world.only().highest_write_id == slow.write_id - 1 == 4
        (output,) = (name for name in world.entries() if "_v" in name)
        assert output.split("_v")[0] == EXPECTED_NAME[kind]
        assert world.rows() == {1: "one", 2: "two", 4: "four", 6: "six"}
        while world.clean().did_anything:
            assert world.rows() == {1: "one", 2: "two", 4: "four", 6: "six"}
    expected = {1: "one", 2: "two", 4: "four", 5: "slow", 6: "six"}
    assert world.rows() == expected
    world.clean()
    assert set(world.states()) == {CompactionState.SUCCEEDED}
    assert sorted(name.split("_v")[0] for name in world.entries()) == [
        EXPECTED_NAME[kind],
        "delta_0000005_0000005_0000",
        "delta_0000006_0000006_0000",
    ]
    assert world.compact().outcome is Outcome.PUBLISHED
    while world.clean().did_anything:
        assert world.rows() == expected
    assert len(world.entries()) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_an_open_writer_below_everything_leaves_nothing_to_compact_and_says_so(
    world: World, kind: CompactionType
) -> None:
    """The ceiling is the first open write of the table: refused with a reason, never succeeded with nothing."""
    world.create_table()
    world.insert_and_abort({1: "aborted"})
    txn = world.writer().transaction()
    slow = txn.__enter__()
    slow.insert(arrow({2: "slow"}))
    world.insert({3: "three"})
    world.insert({4: "four"})
    result = world.compact(kind)
    assert result.outcome is not Outcome.PUBLISHED
    assert "nothing to gain" in result.reason
    assert not [name for name in world.entries(ORDERS) if "_v" in name]
    txns.abort_transactions(world.db, [slow.txn_id])
    assert world.compact(kind).outcome is Outcome.PUBLISHED
    assert world.rows() == {3: "three", 4: "four"}
