"""Readers that stay open across compaction and cleaning (I1, I5)."""

from __future__ import annotations

import pytest

from compactor.errors import TransactionAborted
from compactor.metastore import txns
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome
from tests.simulation.world import HOST, World, arrow, rows_of

ELSEWHERE = TableName(database="default", table="elsewhere")


@pytest.mark.parametrize("kind", [CompactionType.MINOR, CompactionType.MAJOR], ids=lambda k: k.name.lower())
def test_an_open_reader_keeps_its_rows_and_its_files_until_it_ends(world: World, kind: CompactionType) -> None:
    world.create_table(buckets=2)
    seen = world.fill()
    before = world.entries()
    with world.reader() as snapshot:
        assert rows_of(snapshot) == seen
        world.insert({50: "after the reader"})
        assert world.compact(kind).outcome is Outcome.PUBLISHED
        assert rows_of(snapshot) == seen
        held = world.clean()
        assert held.cleaned == 0
        (holder,) = held.held
        assert holder.blocker is not None
        assert holder.blocker.txn_id == snapshot.txn_id
        assert holder.blocker.user == "bob"
        assert set(before) < set(world.entries())
        assert rows_of(snapshot) == seen
        assert world.rows() == seen | {50: "after the reader"}
    assert world.clean().cleaned == 1
    assert not set(before) & set(world.entries())
    assert world.rows() == seen | {50: "after the reader"}
    assert world.only().state is CompactionState.SUCCEEDED


def test_a_reader_of_the_first_output_holds_only_what_the_second_compaction_replaced(world: World) -> None:
    world.create_table()
    oldest = world.fill()
    with world.reader() as first:
        assert world.compact().outcome is Outcome.PUBLISHED
        with world.reader() as second:
            world.insert({60: "later"})
            assert world.compact().outcome is Outcome.PUBLISHED
            world.clean()
            assert (rows_of(first), rows_of(second)) == (oldest, oldest)
        world.clean()
        assert rows_of(first) == oldest
    while world.clean().did_anything:
        assert world.rows() == oldest | {60: "later"}
    assert len(world.entries()) == 1
    assert set(world.states()) == {CompactionState.SUCCEEDED}


def test_a_reader_that_declared_another_table_blocks_nothing(world: World) -> None:
    world.create_table()
    world.create_table(ELSEWHERE)
    world.insert({1: "elsewhere"}, ELSEWHERE)
    expected = world.fill()
    with world.reader(ELSEWHERE) as elsewhere:
        assert world.compact().outcome is Outcome.PUBLISHED
        assert world.clean().cleaned == 1
        assert len(world.entries()) == 1
        assert rows_of(elsewhere, ELSEWHERE) == {1: "elsewhere"}
    assert world.rows() == expected


def test_a_transaction_that_declared_nothing_blocks_until_it_ends(world: World) -> None:
    world.create_table()
    world.fill()
    (undeclared,) = txns.open_transactions(world.db, kind=txns.TxnType.READ_ONLY, user="eve", host=HOST)
    assert world.compact().outcome is Outcome.PUBLISHED
    (holder,) = world.clean().held
    assert holder.blocker is not None
    assert holder.blocker.txn_id == undeclared
    txns.commit_transaction(world.db, undeclared)
    assert world.clean().cleaned == 1


def test_a_reader_that_opens_after_the_publication_holds_nothing(world: World) -> None:
    world.create_table()
    expected = world.fill()
    assert world.compact().outcome is Outcome.PUBLISHED
    with world.reader() as late:
        assert world.clean().cleaned == 1
        assert rows_of(late) == expected
    assert len(world.entries()) == 1


def test_a_reader_that_fell_silent_is_timed_out_and_told_so_at_its_end(world: World) -> None:
    world.create_table()
    world.fill()
    reading = world.reader()
    silent = reading.__enter__()
    assert world.compact().outcome is Outcome.PUBLISHED
    assert world.clean().cleaned == 0
    world.silence([silent.txn_id])
    assert silent.txn_id in world.keep_house().timed_out_transactions
    assert world.clean().cleaned == 1
    assert len(world.entries()) == 1
    with pytest.raises(TransactionAborted):
        reading.__exit__(None, None, None)


def test_a_writer_that_began_before_the_compaction_commits_after_it(world: World) -> None:
    world.create_table()
    expected = world.fill()
    with world.writer().transaction() as txn:
        txn.insert(arrow({70: "slow writer"}))
        world.insert({71: "fast writer"})
        assert world.compact().outcome is Outcome.PUBLISHED
        assert world.only().highest_write_id == txn.write_id - 1
        world.clean()
        assert world.rows() == expected | {71: "fast writer"}
    expected |= {70: "slow writer", 71: "fast writer"}
    assert world.rows() == expected
    world.clean()
    assert world.rows() == expected
    assert world.compact().outcome is Outcome.PUBLISHED
    while world.clean().did_anything:
        assert world.rows() == expected
    assert len(world.entries()) == 1
