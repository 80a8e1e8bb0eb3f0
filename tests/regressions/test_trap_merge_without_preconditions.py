"""A trap in Hive 4's MergeCompactor, which joins files instead of rows: it does not check that the table has original
(pre-ACID) files, which a major would drop; that a delta came from LOAD DATA and holds files named 000000_0 without ACID
columns, which its bucket filter skips; or that a streaming delta holds rows of aborted transactions, which it copies and
whose metadata is then forgotten.

Our plan looks into every file's tail: what is not a stripe of committed ACID rows is decoded and written anew.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.orc.acid_files import write_plain
from tests.regressions.hive_rows import keep_house_much_later, open_write
from tests.regressions.streamed import stream_with_an_abort
from tests.simulation.world import ORDERS, Rows, World, arrow

KINDS = [CompactionType.MAJOR, CompactionType.MINOR]


def compacted_and_cleaned(world: World, kind: CompactionType, expected: Rows) -> None:
    assert world.rows() == expected
    assert world.compact(kind).outcome is Outcome.PUBLISHED
    assert world.rows() == expected
    while world.clean().did_anything:
        assert world.rows() == expected
    keep_house_much_later(world)
    assert world.rows() == expected


def load_data(world: World, rows: Rows) -> None:
    """LOAD DATA INPATH: the files are moved into a delta as they are."""
    txn_id, write_id = open_write(world, ORDERS)
    write_plain(world.location() / f"delta_{write_id:07d}_{write_id:07d}_0000" / "000000_0", arrow(rows))
    txns.commit_transaction(world.db, txn_id)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_original_files_are_not_left_out(world: World, kind: CompactionType) -> None:
    world.create_table()
    write_plain(world.location() / "000000_0", arrow({100: "original", 101: "original"}))
    write_plain(world.location() / "000000_0_copy_1", arrow({102: "copy"}))
    expected = world.fill() | {100: "original", 101: "original", 102: "copy"}
    world.delete(101)
    del expected[101]
    compacted_and_cleaned(world, kind, expected)
    originals = [p.name for p in world.location().glob("000000_0*")]
    assert len(originals) == (0 if kind is CompactionType.MAJOR else 2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_files_from_load_data_are_not_skipped(world: World, kind: CompactionType) -> None:
    world.create_table()
    load_data(world, {200: "loaded", 201: "loaded"})
    expected = world.fill()
    load_data(world, {202: "loaded later"})
    world.delete(201)
    del expected[201]
    compacted_and_cleaned(world, kind, expected | {202: "loaded later"})
    assert set(world.states()) == {CompactionState.SUCCEEDED}


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_rows_of_aborted_transactions_are_not_copied(world: World, kind: CompactionType) -> None:
    world.create_table()
    expected = world.fill()
    expected |= stream_with_an_abort(world)
    compacted_and_cleaned(world, kind, expected)
    for file in world.location().rglob("bucket_*"):
        assert b"never committed" not in file.read_bytes()
    assert set(world.states()) == {CompactionState.SUCCEEDED}


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name.lower())
def test_all_of_them_at_once_below_an_open_writer(world: World, kind: CompactionType) -> None:
    world.create_table()
    write_plain(world.location() / "000000_0", arrow({100: "original"}))
    expected = world.fill() | {100: "original"}
    load_data(world, {200: "loaded"})
    expected |= {200: "loaded"} | stream_with_an_abort(world)
    with world.writer().transaction() as slow:
        slow.insert(arrow({300: "slow"}))
        world.insert({301: "above"})
        compacted_and_cleaned(world, kind, expected | {301: "above"})
        assert world.only().highest_write_id == slow.write_id - 1
    expected |= {300: "slow", 301: "above"}
    compacted_and_cleaned(world, CompactionType.MAJOR, expected)
    assert len(world.entries()) == 1
