"""Values that a column of Hive's own script takes differently from ours: letters of either case, odd characters."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from compactor.metastore import schema
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.history import show_compactions
from compactor.metastore.queue import claim, fail, request_compaction
from compactor.metastore.ready import mark_aborts_cleaned
from compactor.metastore.txns import abort_transactions, open_transactions

T = TableName(database="shop", table="orders")


def _as_in_hives_script(db: Database) -> None:
    """Hive's script for MySQL: latin1, compared without regard to case; other products need no change."""
    with db.write() as conn:
        if conn.dialect.name == "mysql":
            for table in (schema.TXN_COMPONENTS, schema.COMPACTION_QUEUE, schema.COMPLETED_COMPACTIONS):
                conn.exec_driver_sql(f"ALTER TABLE {table.name} CONVERT TO CHARACTER SET latin1")


def _request(partition: str) -> CompactionRequest:
    return CompactionRequest(
        table=T, partition=partition, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1"
    )


@pytest.mark.usefixtures("own_schema")
def test_partitions_that_differ_in_case_are_two(db: Database) -> None:
    _as_in_hives_script(db)
    for partition in ("p=a", "p=A", "p=\u00e4"):
        (txn,) = open_transactions(db, user="u", host="h")
        row = {"TC_TXNID": txn, "TC_DATABASE": "shop", "TC_TABLE": "orders", "TC_PARTITION": partition}
        with db.write() as conn:
            conn.execute(schema.TXN_COMPONENTS.insert().values(TC_OPERATION_TYPE=Operation.INSERT, TC_WRITEID=1, **row))
        abort_transactions(db, [txn])
        assert request_compaction(db, _request(partition)).accepted
    for partition in ("p=a", "p=\u00e4"):
        assert mark_aborts_cleaned(db, T, partition, highest_write_id=9, uncompacted_aborts=False) == 1
    with db.read() as conn:
        assert conn.scalars(sa.select(schema.TXN_COMPONENTS.c.TC_PARTITION)).all() == ["p=A"]


@pytest.mark.usefixtures("own_schema")
def test_a_message_of_any_characters_is_written_down(db: Database) -> None:
    _as_in_hives_script(db)
    request_compaction(db, _request("p=a"))
    mine = claim(db, worker_id="h-1.abcdefgh", worker_version="1")
    assert mine is not None
    fail(db, mine, message="no file \u6771\u4eac/\0 \u00e4", txn_id=None)
    (row,) = show_compactions(db)
    assert row.error_message is not None
    assert row.error_message.startswith("no file ")
    assert row.error_message.endswith(" \u00e4")
