"""HIVE-24481: a streaming delta holds committed and aborted transactions in one file. When a compaction of it was skipped,
because a single delta gains nothing, the row still went to the cleaner, which forgot all aborted transactions up to its
write id. With nobody left to say that they were aborted, their rows appeared in the table.

Our cleaner forgets an aborted write id only when no file that is left can hold its rows; a compaction that left them out
is what sets them free.
"""

from __future__ import annotations

import pytest

from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.regressions.hive_rows import keep_house_much_later
from tests.regressions.streamed import stream_with_an_abort
from tests.simulation.world import World


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_rows_of_an_aborted_transaction_stay_away_after_a_skipped_compaction(
    world: World, kind: CompactionType
) -> None:
    world.create_table()
    # A delta that is aborted as a whole: it is why the skipped compaction has something for the cleaner.
    world.insert_and_abort({1: "aborted"})
    expected = stream_with_an_abort(world)
    assert world.rows() == expected
    assert world.compact(kind).outcome is Outcome.LEFT_TO_CLEANER
    assert world.clean().cleaned == 1
    assert world.entries() == ["delta_0000002_0000004"]
    for _ in range(2):
        keep_house_much_later(world)
        assert world.rows() == expected
        world.clean()
        assert world.rows() == expected


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_a_compaction_that_leaves_the_rows_out_ends_the_memory(world: World, kind: CompactionType) -> None:
    world.create_table()
    expected = stream_with_an_abort(world)
    for n in (5, 6):
        world.insert({n: "later"})
        expected[n] = "later"
    assert world.compact(kind).outcome is Outcome.PUBLISHED
    assert world.rows() == expected
    while world.clean().did_anything:
        assert world.rows() == expected
    keep_house_much_later(world)
    assert world.rows() == expected
    assert len(world.entries()) == 1
    assert world.only().state is CompactionState.SUCCEEDED


def test_the_file_really_holds_the_row_that_must_not_be_seen(world: World) -> None:
    """The faulty history is there: whoever forgets the abort reads it."""
    world.create_table()
    stream_with_an_abort(world)
    (bucket,) = world.location().glob("delta_*/bucket_00000")
    assert b"never committed" in bucket.read_bytes()
