"""HIVE-30026: Hive's initiator reads at most 1000 candidates a cycle, in whatever order the database gives them, and
moves its check time on. In warehouses with more than that some tables were never looked at, grew to thousands of deltas,
and nobody was told.

Our cycle goes through all candidates in pages by name, the queue is served in the order of its ids, and what cannot be
cleaned takes no place away from what can.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.metastore.ready import ready_to_clean
from compactor.settings import InitiatorSettings, Settings
from compactor.worker import Outcome
from tests.simulation.world import World, rows_of

FETCH = 3


@pytest.fixture
def small_pages(world: World) -> World:
    limits = InitiatorSettings(fetch_size=FETCH, delta_num_threshold=2)
    return replace(world, settings=Settings(initiator=limits))


def crowded(world: World, count: int) -> list[TableName]:
    """Tables with three deltas each, one more than allowed."""
    tables = [TableName(database="default", table=f"t{n:02d}") for n in range(count)]
    for table in tables:
        world.create_table(table)
        for n in range(3):
            world.insert({n: str(table)}, table)
    return tables


def test_every_table_is_compacted_though_there_are_more_of_them_than_a_page_holds(small_pages: World) -> None:
    tables = crowded(small_pages, 3 * FETCH + 1)
    initiator = small_pages.initiator()
    asked = initiator.run_once()
    assert [r.table for r in asked.requested] == tables
    while small_pages.worker().run_once().outcome is Outcome.PUBLISHED:
        small_pages.clean()
    for table in tables:
        assert len(small_pages.entries(table)) == 1
        assert small_pages.rows(table) == {n: str(table) for n in range(3)}


def test_tables_that_always_fail_leave_the_others_their_turn(small_pages: World) -> None:
    """A whole page of candidates, first by name, whose compactions fail in every cycle."""
    tables = crowded(small_pages, 2 * FETCH)
    broken, sound = tables[:FETCH], tables[FETCH:]
    for table in broken:
        for file in small_pages.location(table).glob("delta_*/bucket_*"):
            file.write_bytes(b"damaged")
    initiator = small_pages.initiator()
    for _ in range(3):
        initiator.run_once()
        while small_pages.worker().run_once().compaction is not None:
            pass
        small_pages.clean()
    for table in sound:
        assert len(small_pages.entries(table)) == 1
    failed = {row.table for row in small_pages.compactions() if row.state is CompactionState.FAILED}
    assert failed == set(broken)


def test_rows_that_a_reader_holds_take_no_place_of_rows_that_can_be_cleaned(small_pages: World) -> None:
    """The stuck oldest row: the limit counts what can be cleaned, not what was looked at."""
    tables = crowded(small_pages, 2 * FETCH)
    held, free = tables[:FETCH], tables[FETCH:]
    with small_pages.reader(*held) as reader:
        for table in tables:
            assert small_pages.compact(table=table).outcome is Outcome.PUBLISHED
        due = ready_to_clean(small_pages.db, limit=FETCH)
        assert [row.table for row in due] == free
        result = small_pages.clean()
        assert (result.cleaned, len(result.held)) == (len(free), len(held))
        for table in held:
            assert rows_of(reader, table) == {n: str(table) for n in range(3)}
    assert small_pages.clean().cleaned == len(held)


def test_a_held_row_of_a_table_does_not_keep_the_next_compaction_from_running(small_pages: World) -> None:
    (table,) = crowded(small_pages, 1)
    with small_pages.reader(table):
        assert small_pages.compact(table=table).outcome is Outcome.PUBLISHED
        for n in range(3):
            small_pages.insert({10 + n: "later"}, table)
        (asked,) = small_pages.initiate().requested
        assert asked.table == table
        assert small_pages.worker().run_once().outcome is Outcome.PUBLISHED
    while small_pages.clean().did_anything:
        pass
    assert len(small_pages.rows(table)) == 6
    assert set(small_pages.states()) == {CompactionState.SUCCEEDED}
