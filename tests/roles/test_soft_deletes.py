"""What the cleaner does with the rows that Hive's DROP leaves behind when reads take no locks."""

from __future__ import annotations

import pytest

from cleaner.service import Cleaner
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType, format_properties
from compactor.metastore.schema import COMPACTION_QUEUE
from compactor.metastore.txns import TxnType, abort_transactions, commit_transaction, open_transactions
from compactor.storage.filesystem import open_location
from tests.roles.world import World


def drop_softly(world: World, table: TableName) -> int:
    """As Hive's listener does in the transaction of the DROP; the transaction, still open."""
    (txn_id,) = open_transactions(world.db, kind=TxnType.SOFT_DELETE, user="hive", host="hs2")
    row = {
        "CQ_ID": 1,
        "CQ_DATABASE": table.database,
        "CQ_TABLE": table.table,
        "CQ_STATE": CompactionState.READY_FOR_CLEANING,
        "CQ_TYPE": CompactionType.MAJOR,
        "CQ_TBLPROPERTIES": format_properties({"location": str(world.location(table)), "ifPurge": "true"}),
        "CQ_TXN_ID": txn_id,
        "CQ_HIGHEST_WRITE_ID": 1,
        "CQ_RETRY_RETENTION": 0,
    }
    with world.db.write() as conn:
        conn.execute(COMPACTION_QUEUE.insert().values(row))
    return txn_id


def clean(world: World) -> None:
    Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once()


@pytest.fixture
def table(world: World) -> TableName:
    table = world.table()
    world.write(table)
    return table


def test_nothing_happens_before_the_drop_commits(world: World, table: TableName) -> None:
    drop_softly(world, table)
    clean(world)
    assert world.only_row().state is CompactionState.READY_FOR_CLEANING


def test_the_files_of_a_dropped_table_stay_and_the_operator_learns_where(world: World, table: TableName) -> None:
    before = world.entries(table)
    commit_transaction(world.db, drop_softly(world, table))
    clean(world)
    row = world.only_row()
    assert row.state is CompactionState.REFUSED
    assert str(world.location(table)) in (row.error_message or "")
    assert world.entries(table) == before


def test_an_aborted_drop_leaves_the_table_as_it_was(world: World, table: TableName) -> None:
    before = world.entries(table)
    txn_id = drop_softly(world, table)
    abort_transactions(world.db, [txn_id])
    clean(world)
    row = world.only_row()
    assert row.state is CompactionState.FAILED
    assert row.error_message == f"the DROP, transaction {txn_id}, is aborted: the object and its files stay"
    assert world.entries(table) == before
