"""Hive is never told a number that a query could answer wrongly, and keeps every number that is right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from compactor.acid.column_statistics import Accuracy, Change, ColumnStatistics, TableStatistics
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import NoSuchObject
from compactor.metastore import queue, snapshots, txns, writeids
from compactor.metastore.catalog import Column, TableName, get_partition, get_table
from compactor.metastore.catalog_schema import PART_COL_STATS, PARTITIONS, TAB_COL_STATS, TBLS
from compactor.metastore.catalog_write import (
    add_partition,
    create_database,
    create_table,
    set_partition_parameters,
    set_table_parameters,
)
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.schema import TXN_TO_WRITE_ID
from compactor.metastore.statistics import columns_with_statistics, forget_accuracy, record_statistics
from tests.servers import drop_columns

T = TableName(database="air", table="flights")
COLUMNS = (Column(name="id", type="int"), Column(name="v", type="string"))
ACCURATE = '{"BASIC_STATS":"true","COLUMN_STATS":{"id":"true","v":"true"}}'
FOUND = TableStatistics(files=2, size=300, rows=5, exact=True, raw_data_size=77)
ID = ColumnStatistics(
    name="id",
    type="int",
    values={"NUM_NULLS": 1, "LONG_LOW_VALUE": -3, "LONG_HIGH_VALUE": 9, "NUM_DISTINCTS": 4},
    complete=True,
    answers=True,
)


@pytest.fixture
def table(db: Database) -> Database:
    create_database(db, "air")
    create_table(db, T, columns=COLUMNS, parameters={"transactional": "true"})
    return db


def write(db: Database, *, commit: bool = True) -> int:
    """One transaction that writes; its write id."""
    (txn,) = txns.open_transactions(db, kind=txns.TxnType.DEFAULT, user="u", host="h")
    write_id = writeids.allocate_write_ids(db, [txn], T)[txn]
    if commit:
        txns.commit_transaction(db, txn)
    else:
        txns.abort_transactions(db, [txn])
    return write_id


def published(db: Database, partition: str | None = None) -> tuple[Compaction, ValidWriteIdList]:
    """A compaction of everything written so far, published; its snapshot."""
    queue.request_compaction(
        db,
        CompactionRequest(
            table=T, partition=partition, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1"
        ),
    )
    claim = queue.claim(db, worker_id="w-1.abcdefgh", worker_version="1")
    assert claim is not None
    (txn,) = txns.open_transactions(db, kind=txns.TxnType.COMPACTION, user="u", host="h")
    valid = snapshots.valid_txn_list_for_compactor(db, txn)
    ids = writeids.valid_write_ids(db, T, valid).for_compaction()
    queue.record_snapshot(db, claim, txn_id=txn, highest_write_id=ids.high_water, run_as="u")
    queue.publish(db, claim, txn)
    return claim, ids


def record(db: Database, done: tuple[Compaction, ValidWriteIdList], found: TableStatistics = FOUND) -> Change:
    claim, ids = done
    return record_statistics(db, T, claim.partition, found, compaction_id=claim.id, write_ids=ids)


def parameters(db: Database) -> dict[str, str]:
    return {k: v for k, v in get_table(db, T).parameters.items() if k not in ("transactional", "transient_lastDdlTime")}


def table_write_id(db: Database) -> int:
    with db.read() as conn:
        return int(conn.execute(sa.select(TBLS.c.WRITE_ID)).scalar_one())


def test_on_a_quiet_table_everything_becomes_accurate_for_those_who_see_the_last_write(table: Database) -> None:
    write(table)
    newest = write(table)
    write(table, commit=False)
    assert record(table, published(table)) is Change.MADE_ACCURATE
    assert parameters(table) == {
        "numRows": "5",
        "numFiles": "2",
        "totalSize": "300",
        "rawDataSize": "77",
        "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}',
    }
    assert table_write_id(table) == newest


def test_what_hive_counted_right_stays_accurate_with_its_columns_and_its_write(table: Database) -> None:
    first = write(table)

    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "5", "numFiles": "9"})
    with table.write() as conn:
        conn.execute(TBLS.update().values(WRITE_ID=first))
    write(table, commit=False)
    assert record(table, published(table)) is Change.CONFIRMED
    assert parameters(table)["COLUMN_STATS_ACCURATE"] == ACCURATE
    assert parameters(table)["numFiles"] == "2"
    assert table_write_id(table) == first


@pytest.mark.parametrize("commits", [True, None])
def test_beside_a_newer_write_only_sizes_change(table: Database, commits: bool | None) -> None:
    write(table)
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "6"})
    done = published(table)
    (txn,) = txns.open_transactions(table, kind=txns.TxnType.DEFAULT, user="u", host="h")
    writeids.allocate_write_ids(table, [txn], T)
    if commits:
        txns.commit_transaction(table, txn)
    assert record(table, done, replace(FOUND, columns=(ID,))) is Change.SIZES
    assert parameters(table) == {
        "numRows": "6",
        "numFiles": "2",
        "totalSize": "300",
        "COLUMN_STATS_ACCURATE": ACCURATE,
    }
    assert columns_with_statistics(table, T, None) == frozenset()


def test_a_newer_write_whose_end_was_forgotten_counts_as_committed(table: Database) -> None:
    write(table)
    done = published(table)
    write(table)
    with table.write() as conn:
        conn.execute(TXN_TO_WRITE_ID.delete())
    assert record(table, done) is Change.SIZES


def test_a_newer_write_that_was_aborted_changes_nothing(table: Database) -> None:
    write(table)
    done = published(table)
    write(table, commit=False)
    assert record(table, done) is Change.MADE_ACCURATE


def test_while_an_older_reader_runs_a_right_number_is_only_an_estimate(table: Database) -> None:
    write(table)
    txns.open_transactions(table, kind=txns.TxnType.READ_ONLY, user="u", host="h")
    write(table)
    assert record(table, published(table)) is Change.ESTIMATE
    assert parameters(table)["numRows"] == "5"
    assert "COLUMN_STATS_ACCURATE" not in parameters(table)


def test_a_reader_that_came_after_the_publication_and_other_compactions_do_not_matter(table: Database) -> None:
    write(table)
    txns.open_transactions(table, kind=txns.TxnType.COMPACTION, user="u", host="h")
    done = published(table)
    txns.open_transactions(table, kind=txns.TxnType.READ_ONLY, user="u", host="h")
    assert record(table, done) is Change.MADE_ACCURATE


def test_a_compaction_that_was_cleaned_already_cannot_tell_who_reads_what(table: Database) -> None:
    write(table)
    claim, ids = published(table)
    assert record(table, (replace(claim, id=claim.id + 1), ids)) is Change.ESTIMATE


def test_a_wrong_number_that_claims_to_be_accurate_loses_its_claim_while_older_readers_run(table: Database) -> None:
    write(table)
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "6"})
    txns.open_transactions(table, kind=txns.TxnType.READ_ONLY, user="u", host="h")
    assert record(table, published(table)) is Change.CLEARED
    assert "COLUMN_STATS_ACCURATE" not in parameters(table)
    assert parameters(table)["numRows"] == "5"


def test_a_wrong_number_is_replaced_and_its_column_flags_go(table: Database) -> None:
    write(table)
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "6"})
    assert record(table, published(table)) is Change.MADE_ACCURATE
    assert parameters(table)["COLUMN_STATS_ACCURATE"] == '{"BASIC_STATS":"true"}'


def test_statistics_of_an_aborted_write_are_nobodys_and_become_exact(table: Database) -> None:
    good, bad = write(table), write(table, commit=False)
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "5"})
    with table.write() as conn:
        conn.execute(TBLS.update().values(WRITE_ID=bad))
    assert record(table, published(table)) is Change.MADE_ACCURATE
    assert table_write_id(table) == good


def test_with_deletes_alive_the_difference_is_an_estimate_and_never_replaces_hives_count(table: Database) -> None:
    write(table)
    found = replace(FOUND, exact=False, raw_data_size=None)
    done = published(table)
    assert record(table, done, found) is Change.ESTIMATE
    assert parameters(table) == {"numRows": "5", "numFiles": "2", "totalSize": "300"}
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "6"})
    assert record(table, done, found) is Change.SIZES
    assert parameters(table)["numRows"] == "6"


def test_rows_that_nobody_counted_leave_numrows_alone(table: Database) -> None:
    write(table)
    set_table_parameters(table, T, {"numRows": "6"})
    assert record(table, published(table), replace(FOUND, rows=None, exact=False)) is Change.SIZES
    assert parameters(table)["numRows"] == "6"


def test_columns_are_added_where_complete_and_refreshed_where_they_are(table: Database) -> None:
    write(table)
    partial = ColumnStatistics(name="v", type="string", values={"NUM_NULLS": 2}, complete=False, answers=False)
    done = published(table)
    record(table, done, replace(FOUND, columns=(ID, partial)))
    assert columns_with_statistics(table, T, None) == {"id"}
    assert Accuracy.parse(parameters(table)["COLUMN_STATS_ACCURATE"]).columns == {"id"}
    again = replace(ID, values={"NUM_NULLS": 0, "LONG_LOW_VALUE": -2}, complete=False)
    record(table, done, replace(FOUND, columns=(again,)))
    with table.read() as conn:
        (row,) = conn.execute(sa.select(TAB_COL_STATS)).mappings().all()
    told = ("DB_NAME", "TABLE_NAME", "COLUMN_NAME", "COLUMN_TYPE", "ENGINE", "LONG_LOW_VALUE", "LONG_HIGH_VALUE")
    assert [row[key] for key in told] == ["air", "flights", "id", "int", "hive", -2, 9]
    assert (row["NUM_NULLS"], row["NUM_DISTINCTS"], row["CAT_NAME"]) == (0, 4, "hive")


@pytest.mark.usefixtures("own_schema")
def test_a_metastore_of_hive_3_has_no_engine_and_no_histogram(table: Database) -> None:
    with table.write() as conn:
        drop_columns(conn, TAB_COL_STATS, "HISTOGRAM", "ENGINE")
    write(table)
    record(table, published(table), replace(FOUND, columns=(ID,)))
    assert columns_with_statistics(table, T, None) == {"id"}


def test_a_partition_has_statistics_of_its_own(db: Database) -> None:
    create_database(db, "air")
    create_table(
        db,
        T,
        columns=COLUMNS,
        partition_columns=(Column(name="p", type="string"),),
        parameters={"transactional": "true"},
    )
    add_partition(db, T, ["x"])
    add_partition(db, T, ["y"])
    newest = write(db)
    done = published(db, "p=x")
    assert record(db, done, replace(FOUND, columns=(ID,))) is Change.MADE_ACCURATE
    x, y = get_partition(db, T, "p=x"), get_partition(db, T, "p=y")
    flags = {"BASIC_STATS": "true", "COLUMN_STATS": {"id": "true"}}
    assert json.loads(x.parameters["COLUMN_STATS_ACCURATE"]) == flags
    assert x.parameters["numRows"] == "5"
    assert y.parameters.keys() == {"transient_lastDdlTime"}
    with db.read() as conn:
        assert conn.execute(sa.select(PART_COL_STATS.c.PARTITION_NAME, PART_COL_STATS.c.PART_ID)).all() == [
            ("p=x", x.id)
        ]
        ids = {row.PART_NAME: row.WRITE_ID for row in conn.execute(sa.select(PARTITIONS))}
    assert ids == {"p=x": newest, "p=y": 0}
    set_partition_parameters(db, T, "p=y", {"COLUMN_STATS_ACCURATE": ACCURATE})
    forget_accuracy(db, T, ["p=x"], 7)
    assert "COLUMN_STATS_ACCURATE" not in get_partition(db, T, "p=x").parameters
    assert "COLUMN_STATS_ACCURATE" in get_partition(db, T, "p=y").parameters


def test_a_writer_without_statistics_leaves_its_write_id_where_they_were_accurate(table: Database) -> None:
    forget_accuracy(table, T, [], 3)
    assert table_write_id(table) == 0
    set_table_parameters(table, T, {"COLUMN_STATS_ACCURATE": ACCURATE, "numRows": "6"})
    forget_accuracy(table, T, [], 4)
    assert parameters(table) == {"numRows": "6"}
    assert table_write_id(table) == 4


def test_a_table_or_partition_that_is_gone_is_an_error(table: Database) -> None:
    write(table)
    claim, ids = published(table)
    with pytest.raises(NoSuchObject):
        record(table, (replace(claim, partition="p=x"), ids))
    with pytest.raises(NoSuchObject):
        columns_with_statistics(table, TableName(database="air", table="gone"), None)


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", '{"BASIC_STATS":"false"}', '{"COLUMN_STATS":7}'])
def test_what_does_not_say_so_is_not_accurate(text: str | None) -> None:
    assert not Accuracy.parse(text).basic


def test_hives_own_json_comes_back_as_it_was() -> None:
    assert Accuracy.parse(ACCURATE).to_string() == ACCURATE
    assert Accuracy.parse('{"BASIC_STATS":"true"}').to_string() == '{"BASIC_STATS":"true"}'
    assert Accuracy(basic=False, columns=frozenset({"id"})).to_string() is None
