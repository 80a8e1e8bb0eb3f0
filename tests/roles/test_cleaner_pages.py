"""Rows of the queue are started and ended together, and each is looked at once more before its own deletion."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from cleaner import page
from cleaner.service import ROWS_A_PAGE, Cleaner, CleanerResult
from compactor.metastore.catalog import TableName
from compactor.metastore.catalog_schema import SDS, TBLS
from compactor.metastore.catalog_write import drop_table, set_partition_parameters, set_table_parameters
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.metastore.ready import Cleaned, mark_cleaned
from compactor.metastore.schema import COMPACTION_QUEUE, MIN_HISTORY_LEVEL
from compactor.metastore.txns import commit_transaction, open_transactions
from compactor.storage.filesystem import FileSystem, open_location
from tests.roles.world import Clock, World


def compacted(world: World, partitions: int, name: str = "t") -> TableName:
    """A table of which so many partitions wait for cleaning."""
    table = world.table(name, partitioned=True)
    for number in range(partitions):
        partition = world.partition(table, str(number))
        world.write(table, partition, times=2)
        world.compact(table, partition)
    return table


def run(world: World, *, meanwhile: Callable[[], None], at: str) -> CleanerResult:
    """One cycle, in which something else happens when the cleaner opens a location that ends so, for the first time."""
    waiting = [meanwhile]

    def opened(location: str) -> tuple[FileSystem, str]:
        if location.endswith(at) and waiting:
            waiting.pop()()
        return open_location(location)

    return Cleaner(world.db, opened, world.settings, world.metrics, "host").run_once()


@contextmanager
def counted(db: Database, *, about: str = "") -> Iterator[Counter[str]]:
    """How many statements of each kind are sent meanwhile, by their first word. about: what they contain."""
    found: Counter[str] = Counter()

    def count(_conn: object, _cursor: object, sql: str, _parameters: Any, _context: object, _many: bool) -> None:
        found[sql if sql.startswith("BEGIN") else sql.split(maxsplit=1)[0]] += about in sql

    sa.event.listen(db.engine, "before_cursor_execute", count)
    try:
        yield found
    finally:
        sa.event.remove(db.engine, "before_cursor_execute", count)


def test_what_a_page_writes_does_not_grow_with_its_rows(world: World) -> None:
    role = Cleaner(world.db, open_location, world.settings, world.metrics, "host")
    sent = []
    for rows in (3, 30):
        compacted(world, rows, f"t{rows}")
        with counted(world.db) as statements:
            assert role.run_once().cleaned == rows
        sent.append(statements)
    few, many = sent
    for kind in ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE"):
        assert many[kind] == few[kind] > 0, kind
    # whether the row waits, what forbids it, who reads
    assert many["SELECT"] - few["SELECT"] == 3 * 27


def test_more_rows_than_a_page_holds_are_cleaned_in_one_cycle(world: World) -> None:
    compacted(world, ROWS_A_PAGE + 3)
    result = Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once()
    assert result.cleaned == ROWS_A_PAGE + 3
    assert {row.state for row in world.rows()} == {CompactionState.SUCCEEDED}


def test_a_reader_that_comes_up_while_others_are_cleaned_keeps_its_files(world: World) -> None:
    table = compacted(world, 2)
    before = world.entries(table, "p=1")
    readers = []

    def read() -> None:
        (reader,) = open_transactions(world.db, user="ann", host="h1")
        with world.db.write() as conn:
            conn.execute(sa.delete(MIN_HISTORY_LEVEL).where(MIN_HISTORY_LEVEL.c.MHL_TXNID == reader))
            conn.execute(sa.insert(MIN_HISTORY_LEVEL).values(MHL_TXNID=reader, MHL_MIN_OPEN_TXNID=1))
        readers.append(reader)

    result = run(world, meanwhile=read, at="p=0")
    assert (result.cleaned, [holder.blocker and holder.blocker.txn_id for holder in result.held]) == (1, readers)
    assert world.entries(table, "p=1") == before
    (waiting,) = world.rows(CompactionState.READY_FOR_CLEANING)
    assert (waiting.cleaner_start or -1) == -1
    commit_transaction(world.db, readers[0])
    assert Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once().cleaned == 1


@pytest.mark.parametrize("owner", ["table", "partition"])
def test_no_cleanup_that_is_set_while_others_are_cleaned_keeps_the_files(world: World, owner: str) -> None:
    table = compacted(world, 2)
    before = world.entries(table, "p=1")

    def forbid() -> None:
        if owner == "table":
            set_table_parameters(world.db, table, {"NO_CLEANUP": "True"})
        else:
            set_partition_parameters(world.db, table, "p=1", {"no_cleanup": "true"})

    result = run(world, meanwhile=forbid, at="p=0")
    assert (result.cleaned, result.refused) == (1, 1)
    assert world.entries(table, "p=1") == before
    (refused,) = world.rows(CompactionState.REFUSED)
    assert f"no_cleanup is set on the {owner}" in str(refused.error_message)


def test_what_is_dropped_while_others_are_cleaned_is_left_to_the_next_cycle(world: World) -> None:
    """It may have been created again in the same place, and then its files are others."""
    first, second = compacted(world, 1, "first"), compacted(world, 1, "second")
    place, before = world.location(second, "p=0"), world.entries(second, "p=0")
    result = run(world, meanwhile=lambda: drop_table(world.db, second), at="first/p=0")
    assert (result.cleaned, len(result.held)) == (1, 1)
    assert sorted(path.name for path in place.iterdir()) == before
    assert len(world.entries(first, "p=0")) == 1
    assert Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once().cleaned == 1
    assert sorted(path.name for path in place.iterdir()) == before


def test_the_files_of_a_row_that_is_gone_from_the_queue_stay(world: World) -> None:
    """Hive takes the rows of a table out of the queue when it drops it."""
    first, second = compacted(world, 1, "first"), compacted(world, 1, "second")
    before = world.entries(second, "p=0")
    (row,) = [row for row in world.rows() if row.table == second]

    def take_out() -> None:
        with world.db.write() as conn:
            conn.execute(sa.delete(COMPACTION_QUEUE).where(COMPACTION_QUEUE.c.CQ_ID == row.id))

    result = run(world, meanwhile=take_out, at="first/p=0")
    assert (result.cleaned, result.held) == (1, ())
    assert (len(world.entries(first, "p=0")), world.entries(second, "p=0")) == (1, before)


def test_a_row_that_another_cleaner_ends_meanwhile_is_not_counted_and_forgets_nothing(world: World) -> None:
    table = world.table()
    aborted = world.aborted_write(table)
    world.write(table)
    world.compact(table)
    other = compacted(world, 1, "other")

    def end_it() -> None:
        with world.db.write() as conn:
            conn.execute(sa.delete(COMPACTION_QUEUE).where(COMPACTION_QUEUE.c.CQ_TABLE == table.table))

    result = run(world, meanwhile=end_it, at=f"{other.table}/p=0")
    assert result.cleaned == 1
    assert world.components(aborted.txn_id) == 1


def test_what_is_renamed_while_others_are_cleaned_keeps_its_files(world: World) -> None:
    """Hive's RENAME changes the row in place, and another table may live where this one did (OnRenameFunction)."""
    first, second = compacted(world, 1, "first"), compacted(world, 1, "second")
    before = world.entries(second, "p=0")

    def rename() -> None:
        with world.db.write() as conn:
            queue, tables = COMPACTION_QUEUE, TBLS
            conn.execute(sa.update(tables).where(tables.c.TBL_NAME == "second").values(TBL_NAME="renamed"))
            conn.execute(sa.update(queue).where(queue.c.CQ_TABLE == "second").values(CQ_TABLE="renamed"))

    result = run(world, meanwhile=rename, at="first/p=0")
    renamed = replace(second, table="renamed")
    assert (result.cleaned, len(world.entries(first, "p=0")), world.entries(renamed, "p=0")) == (1, 1, before)
    assert [row.table for row in world.rows(CompactionState.READY_FOR_CLEANING)] == [renamed]


def test_a_row_that_is_renamed_after_its_files_went_is_ended_by_the_next_cycle(world: World) -> None:
    compacted(world, 1, "t")
    (row,) = world.rows()
    with world.db.write() as conn:
        conn.execute(sa.update(COMPACTION_QUEUE).values(CQ_TABLE="renamed"))
    assert mark_cleaned(world.db, [Cleaned(compaction=row)]) == frozenset()
    assert [row.table.table for row in world.rows(CompactionState.READY_FOR_CLEANING)] == ["renamed"]


def test_a_place_that_is_left_while_others_are_cleaned_keeps_its_files(world: World) -> None:
    first, second = compacted(world, 1, "first"), compacted(world, 1, "second")
    place, before = world.location(second, "p=0"), world.entries(second, "p=0")

    def move() -> None:
        with world.db.write() as conn:
            moved = sa.update(SDS).where(SDS.c.LOCATION.endswith("second/p=0"))
            assert conn.execute(moved.values(LOCATION=SDS.c.LOCATION + "_moved")).rowcount == 1

    result = run(world, meanwhile=move, at="first/p=0")
    assert (result.cleaned, [holder.reason for holder in result.held]) == (
        1,
        ["its table or partition was dropped or moved just now"],
    )
    assert (len(world.entries(first, "p=0")), sorted(path.name for path in place.iterdir())) == (1, before)


def test_what_comes_back_while_others_are_cleaned_forgets_nothing(world: World) -> None:
    compacted(world, 1, "first")
    second = compacted(world, 1, "second")
    shutil.rmtree(world.location(second))
    drop_table(world.db, second)

    def create_again() -> None:
        world.partition(world.table("second", partitioned=True), "0")

    result = run(world, meanwhile=create_again, at="first/p=0")
    assert (result.cleaned, [holder.reason for holder in result.held]) == (
        1,
        ["its table or partition was created just now"],
    )
    assert [row.table for row in world.rows(CompactionState.READY_FOR_CLEANING)] == [second]


def test_an_error_at_a_row_does_not_keep_those_before_it_from_their_end(world: World) -> None:
    table = compacted(world, 3)

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(world, meanwhile=fail, at="p=2")
    assert [len(world.entries(table, f"p={number}")) for number in range(3)] == [1, 1, 3]
    assert [row.partition for row in world.rows(CompactionState.READY_FOR_CLEANING)] == ["p=2"]


def test_a_crash_before_a_page_is_ended_loses_nothing(world: World) -> None:
    table = compacted(world, 3)

    def crash(_conn: object, _cursor: object, sql: str, _parameters: Any, _context: object, _many: bool) -> None:
        if sql.startswith("DELETE FROM"):
            raise KeyboardInterrupt

    sa.event.listen(world.db.engine, "before_cursor_execute", crash)
    with pytest.raises(KeyboardInterrupt):
        Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once()
    sa.event.remove(world.db.engine, "before_cursor_execute", crash)
    assert [len(world.entries(table, f"p={number}")) for number in range(3)] == [1, 1, 1]
    assert len(world.rows(CompactionState.READY_FOR_CLEANING)) == 3
    result = Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once()
    assert (result.cleaned, result.files_removed) == (3, 0)


def test_rows_do_not_wait_long_for_the_end_of_their_page(world: World) -> None:
    compacted(world, 3)
    clock = Clock()

    def slow(location: str) -> tuple[FileSystem, str]:
        clock.now += page.LONGEST_WAIT_S
        return open_location(location)

    with counted(world.db, about="COMPLETED_COMPACTIONS") as statements:
        assert Cleaner(world.db, slow, world.settings, world.metrics, "host", clock=clock).run_once().cleaned == 3
    assert statements["INSERT"] >= 2
