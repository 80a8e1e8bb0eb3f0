"""HIVE-26704 and HIVE-29619: Hive's cleaner waits for the oldest open transaction of the whole warehouse. One report that
read a single table for a day kept the files of every other table, and HIVE-26704's cure, which asks who reads this
table, had to be repaired three years later.

Our readers declare what they read together with their snapshot, and the cleaner waits only for those who read the table,
or who declared nothing. Transactions that opened during the long report remember it (MIN_HISTORY_LEVEL); what they
declared counts, not what they remember.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.snapshots import open_reader
from compactor.worker import Outcome
from tests.simulation.world import HOST, World, rows_of

REPORTED = TableName(database="default", table="reported")


@pytest.fixture
def busy(world: World) -> World:
    """orders, which is compacted all the time, and a table that somebody reads all day long."""
    world.create_table()
    world.create_table(REPORTED)
    world.insert({1: "reported"}, REPORTED)
    return world


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_a_report_on_one_table_keeps_no_file_of_another(busy: World, kind: CompactionType) -> None:
    expected = busy.fill()
    with busy.reader(REPORTED) as report:
        for n in range(3):
            busy.insert({100 + n: "during the report"})
            busy.insert({200 + n: "during the report"})
            expected |= {100 + n: "during the report", 200 + n: "during the report"}
            assert busy.compact(kind).outcome is Outcome.PUBLISHED
            newest = busy.compactions()[-1]
            # Hive's watermark: nothing may go while the oldest open transaction is not above NEXT_TXN_ID.
            assert newest.next_txn_id is not None
            assert (txns.min_open_txn(busy.db) or 0) <= newest.next_txn_id
            assert busy.clean().cleaned == 1
            assert busy.compaction(newest.id).state is CompactionState.SUCCEEDED
            assert busy.rows() == expected
        assert rows_of(report, REPORTED) == {1: "reported"}


def test_readers_of_the_table_that_opened_during_the_report_keep_only_what_they_see(busy: World) -> None:
    expected = busy.fill()
    with busy.reader(REPORTED):
        with busy.reader() as before:
            assert busy.compact().outcome is Outcome.PUBLISHED
            assert busy.clean().cleaned == 0
            with busy.reader() as after:
                assert rows_of(before) == rows_of(after) == expected
        # `after` remembers that the report was open, and that is older than the publication.
        with busy.reader() as after:
            assert busy.clean().cleaned == 1
            assert rows_of(after) == expected
    assert len(busy.entries()) == 1


def test_a_report_on_both_tables_keeps_both(busy: World) -> None:
    expected = busy.fill()
    report = open_reader(busy.db, [REPORTED, busy.writer().table], user="ada", host=HOST)
    assert busy.compact().outcome is Outcome.PUBLISHED
    (held,) = busy.clean().held
    assert held.blocker is not None
    assert held.blocker.txn_id == report.txn_id
    txns.commit_transaction(busy.db, report.txn_id)
    assert busy.clean().cleaned == 1
    assert busy.rows() == expected


def test_a_long_transaction_that_declared_nothing_keeps_everything_and_is_named(busy: World) -> None:
    """Hive without MIN_HISTORY_WRITE_ID: nobody knows what it reads, so its files stay, and the operator learns why."""
    busy.fill()
    (silent,) = txns.open_transactions(busy.db, user="eve", host="hs2")
    assert busy.compact().outcome is Outcome.PUBLISHED
    (held,) = busy.clean().held
    assert f"transaction {silent} of eve@hs2" in held.reason
    assert "did not declare" in held.reason
