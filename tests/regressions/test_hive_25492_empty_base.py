"""HIVE-25492: when every row of a table had been deleted, a major compaction had nothing to write, left no base, and was
marked as succeeded all the same. The deltas stayed, and where something removed the delete deltas the deleted rows
were back.

A major compaction always writes its base, with an empty bucket_00000 in it (Trino sees no base without a file), and the
cleaner never takes the newest base for superfluous because it is empty.
"""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from pyarrow import orc

from compactor.acid.layout import bucket_file
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.simulation.world import World, rows_of


def emptied(world: World, *, buckets: int = 0) -> None:
    world.create_table(buckets=buckets)
    world.fill()
    world.writer().delete(pc.field("id") >= 0)
    assert world.rows() == {}


@pytest.mark.parametrize("buckets", [0, 2])
def test_a_table_whose_rows_are_all_deleted_becomes_one_empty_base(world: World, buckets: int) -> None:
    emptied(world, buckets=buckets)
    assert world.compact().outcome is Outcome.PUBLISHED
    assert world.rows() == {}
    while world.clean().did_anything:
        assert world.rows() == {}
    (base,) = world.entries()
    assert base.startswith("base_")
    assert orc.ORCFile(str(world.location() / base / bucket_file(0))).nrows == 0
    assert world.only().state is CompactionState.SUCCEEDED


def test_the_deleted_rows_do_not_come_back_with_what_is_written_and_compacted_next(world: World) -> None:
    emptied(world)
    world.compact()
    world.clean()
    world.insert({1: "new"})
    assert world.rows() == {1: "new"}
    world.insert({2: "newer"})
    for kind in (CompactionType.MINOR, CompactionType.MAJOR):
        assert world.compact(kind).outcome is Outcome.PUBLISHED
        while world.clean().did_anything:
            assert world.rows() == {1: "new", 2: "newer"}


def test_a_reader_from_before_keeps_its_rows_beside_the_empty_base(world: World) -> None:
    world.create_table()
    expected = world.fill()
    with world.reader() as before:
        world.writer().delete(pc.field("id") >= 0)
        assert world.compact().outcome is Outcome.PUBLISHED
        assert world.clean().cleaned == 0
        assert rows_of(before) == expected
        assert world.rows() == {}
    assert world.clean().cleaned == 1
    assert len(world.entries()) == 1


def test_an_emptied_table_minor_compacted_stays_empty(world: World) -> None:
    """A minor compaction applies no deletes: insert and delete events both stay."""
    emptied(world)
    assert world.compact(CompactionType.MINOR).outcome is Outcome.PUBLISHED
    while world.clean().did_anything:
        assert world.rows() == {}
    assert len(world.entries()) == 2
