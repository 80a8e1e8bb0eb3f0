"""Statements on full-ACID tables, held against the plain-Python merge of the files they leave."""
# ruff: noqa: PT012 - a transaction is one block

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.acid.records import RowId
from compactor.errors import LockNotAcquired, TransactionAborted, UsageError, WriteConflict
from compactor.metastore import txns
from compactor.metastore.catalog import Column, TableName, get_table, list_partitions
from compactor.metastore.catalog_write import set_columns
from compactor.metastore.database import Database
from compactor.metastore.locks import show_locks
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.reader import TableReader, open_snapshot
from compactor.table.writer import TableWriter
from tests.table.conftest import Oracle, table_writer

COLUMNS = [("id", "int"), ("v", "string")]
BUCKET_0 = 536870912
TIMESTAMP = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001 - Hive's timestamps have no zone


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.table({"id": [p[0] for p in pairs], "v": pa.array([p[1] for p in pairs], pa.string())})


def read(db: Database, name: TableName, **arguments: Any) -> list[tuple[Any, ...]]:
    found = TableReader(db, open_location, name, user="bob", host="h2").read(**arguments)
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def entries(db: Database, name: TableName) -> list[str]:
    fs, root = open_location(get_table(db, name).location or "")
    return sorted(f.path for f in fs.listing(root).files)


@pytest.fixture
def flat(db: Database, name: TableName) -> TableName:
    create_table(db, name, COLUMNS)
    return name


@pytest.fixture
def parted(db: Database, name: TableName) -> TableName:
    create_table(db, name, COLUMNS, partitioned_by=[("p", "string"), ("n", "int")])
    return name


def test_inserted_rows_get_row_ids_in_their_order(flat: TableName, writer: TableWriter, oracle: Oracle) -> None:
    writer.insert(rows((1, "a"), (2, None)))
    writer.insert(rows((3, "c")))
    assert oracle(flat) == [
        ("", RowId(1, BUCKET_0, 0), 1, "a"),
        ("", RowId(1, BUCKET_0, 1), 2, None),
        ("", RowId(2, BUCKET_0, 0), 3, "c"),
    ]


def test_files_are_named_as_hive_names_them_but_without_attempt_ids(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    writer.insert(rows((1, "a"), (2, "b")))
    writer.update(pc.field("id") == 1, {"v": "x"})
    assert entries(db, flat) == [
        "delete_delta_0000002_0000002_0000/_orc_acid_version",
        "delete_delta_0000002_0000002_0000/bucket_00000",
        "delta_0000001_0000001_0000/_orc_acid_version",
        "delta_0000001_0000001_0000/bucket_00000",
        "delta_0000002_0000002_0001/_orc_acid_version",
        "delta_0000002_0000002_0001/bucket_00000",
    ]


def test_an_update_replaces_rows_by_new_versions(flat: TableName, writer: TableWriter, oracle: Oracle) -> None:
    writer.insert(rows((1, "a"), (2, "b"), (3, "c")))
    done = writer.update(
        pc.field("id") > 1, {"v": pc.binary_join_element_wise(pc.field("v"), pc.scalar("!"), pc.scalar(""))}
    )
    assert (done.updated, done.deleted) == (2, 0)
    assert oracle(flat) == [
        ("", RowId(1, BUCKET_0, 0), 1, "a"),
        ("", RowId(2, BUCKET_0 + 1, 0), 2, "b!"),
        ("", RowId(2, BUCKET_0 + 1, 1), 3, "c!"),
    ]


def test_a_delete_removes_the_matching_rows_only(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    writer.insert(rows(*((i, f"v{i}") for i in range(10))))
    assert writer.delete(pc.field("id") < 7).deleted == 7
    assert [r[2:] for r in oracle(flat)] == read(db, flat) == [(7, "v7"), (8, "v8"), (9, "v9")]


def test_a_null_condition_matches_no_row(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, None), (2, "b")))
    assert writer.delete(pc.field("v") != "zzz").deleted == 1
    assert read(db, flat) == [(1, None)]


def test_rows_can_be_deleted_by_their_row_ids(db: Database, parted: TableName, writer: TableWriter) -> None:
    for p in ("x", "y"):
        writer.insert(rows((1, p), (2, p)), partition={"p": p, "n": 1})
    ids = TableReader(db, open_location, parted, user="b", host="h").read(columns=["p", "n", "id"], with_row_ids=True)
    chosen = ids.filter((pc.field("p") == "y") & (pc.field("id") == 2)).drop_columns(["id"])
    assert writer.delete(chosen).deleted == 1
    assert read(db, parted, columns=["id", "p"]) == [(1, "x"), (1, "y"), (2, "x")]


def test_a_merge_deletes_updates_and_inserts(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, "a"), (2, "b"), (3, "c")))
    source = pa.table({"id": [2, 3, 9, None], "v": ["B", "drop", "new", "null key"]})
    done = writer.merge(
        source,
        ["id"],
        when_matched_delete=pc.field("source.v") == "drop",
        when_matched_update={"v": pc.field("source.v")},
        when_not_matched_insert=True,
    )
    assert (done.inserted, done.updated, done.deleted) == (2, 1, 1)
    assert read(db, flat) == [(1, "a"), (2, "B"), (9, "new"), (None, "null key")]


def test_a_merge_refuses_two_source_rows_for_one_row(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, "a")))
    with pytest.raises(UsageError, match="more than one row"):
        writer.merge(rows((1, "x"), (1, "y")), ["id"], when_matched_update={"v": pc.field("source.v")})
    assert read(db, flat) == [(1, "a")]


def test_an_insert_overwrite_replaces_the_table(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, "old")))
    writer.insert_overwrite(rows((2, "new")))
    writer.insert(rows((3, "after")))
    assert read(db, flat) == [(2, "new"), (3, "after")]


def test_an_overwrite_with_nothing_leaves_an_empty_base_with_a_file(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    writer.insert(rows((1, "old")))
    writer.insert_overwrite(rows().cast(pa.schema([("id", pa.int32()), ("v", pa.string())])))
    assert read(db, flat) == []
    assert "base_0000002/bucket_00000" in entries(db, flat)


def test_an_overwrite_must_be_alone_in_its_transaction(db: Database, flat: TableName, writer: TableWriter) -> None:
    with pytest.raises(UsageError, match="only statement"), writer.transaction() as txn:
        txn.insert(rows((1, "a")))
        txn.insert_overwrite(rows((2, "b")))
    assert read(db, flat) == []


def test_statements_of_a_transaction_see_each_other_and_nobody_else_does(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    writer.insert(rows((1, "a")))
    with writer.transaction() as txn:
        txn.insert(rows((2, "b"), (3, "c")))
        txn.update(pc.field("id") >= 2, {"v": "mine"})
        assert txn.delete(pc.field("v") == "mine").deleted == 2
        txn.insert(rows((4, "d")))
        assert read(db, flat) == [(1, "a")]
    assert read(db, flat) == [(1, "a"), (4, "d")]


def test_a_failed_statement_aborts_the_transaction_and_its_rows_stay_invisible(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    writer.insert(rows((1, "kept")))
    with pytest.raises(ZeroDivisionError), writer.transaction() as txn:
        txn.insert(rows((2, "lost")))
        raise ZeroDivisionError
    assert txns.transaction_state(db, txn.txn_id) is txns.TxnState.ABORTED
    assert valid_write_ids(db, flat, valid_txn_list(db)).aborted == {2}
    assert [r[2:] for r in oracle(flat)] == read(db, flat) == [(1, "kept")]


def test_an_aborted_transaction_cannot_commit(db: Database, flat: TableName, writer: TableWriter) -> None:
    with pytest.raises(TransactionAborted), writer.transaction() as txn:
        txn.insert(rows((1, "a")))
        txns.abort_transactions(db, [txn.txn_id])
    assert read(db, flat) == []


def test_a_reader_keeps_its_snapshot_while_others_write(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, "a"), (2, "b")))
    with open_snapshot(db, [flat], user="bob", host="h2") as snapshot:
        writer.update(pc.field("id") == 1, {"v": "new"})
        writer.delete(pc.field("id") == 2)
        writer.insert_overwrite(rows((7, "all new")))
        assert snapshot.read(flat).to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert read(db, flat) == [(7, "all new")]


def test_the_first_of_two_overlapping_updates_wins(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(rows((1, "a"), (2, "b")))
    with pytest.raises(WriteConflict), writer.transaction() as late:
        writer.update(pc.field("id") == 1, {"v": "first"})
        late.update(pc.field("id") == 2, {"v": "second"})
    assert read(db, flat) == [(1, "first"), (2, "b")]


def test_overlapping_updates_of_different_partitions_both_commit_where_writes_are_shared(
    db: Database, parted: TableName
) -> None:
    writer = table_writer(db, parted, xlock_write=False)
    for p in ("x", "y"):
        writer.insert(rows((1, p)), partition={"p": p, "n": 1})
    with writer.transaction() as late:
        late.update(pc.field("p") == "x", {"v": "late"})
        writer.update(pc.field("p") == "y", {"v": "other"})
    assert read(db, parted, columns=["v", "p"]) == [("late", "x"), ("other", "y")]


def test_an_update_waits_for_another_one_and_changes_what_that_left(db: Database, flat: TableName) -> None:
    writer = table_writer(db, flat)
    writer.insert(rows((1, "a")))
    updating = writer.transaction()
    first = updating.__enter__()
    first.update(pc.field("id") == 1, {"v": "first"})

    def finish(_: float) -> None:
        if txns.transaction_state(db, first.txn_id) is txns.TxnState.OPEN:
            updating.__exit__(None, None, None)

    waiting = TableWriter(db, open_location, flat, user="eve", host="h3", sleep=finish)
    waiting.update(pc.field("v") == "first", {"v": "second"})
    assert read(db, flat) == [(1, "second")]


def test_overlapping_inserts_both_commit(db: Database, flat: TableName, writer: TableWriter) -> None:
    with writer.transaction() as one:
        one.insert(rows((1, "one")))
        writer.insert(rows((2, "two")))
    assert read(db, flat) == [(1, "one"), (2, "two")]


def test_an_overwrite_waits_for_open_inserts(db: Database, flat: TableName, writer: TableWriter) -> None:
    with writer.transaction() as one:
        one.insert(rows((1, "one")))
        with pytest.raises(LockNotAcquired):
            writer.insert_overwrite(rows((2, "two")))
    assert read(db, flat) == [(1, "one")]
    assert show_locks(db) == []


def test_an_insert_that_waited_for_an_overwrite_is_not_hidden_by_its_base(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    overwriting = writer.transaction()
    first = overwriting.__enter__()
    first.insert_overwrite(rows((1, "base")))

    def finish(_: float) -> None:
        if txns.transaction_state(db, first.txn_id) is txns.TxnState.OPEN:
            overwriting.__exit__(None, None, None)

    waiting = TableWriter(db, open_location, flat, user="eve", host="h3", sleep=finish)
    waiting.insert(rows((2, "waited")))
    assert read(db, flat) == [(1, "base"), (2, "waited")]


def test_an_overwrite_that_waited_for_an_insert_does_not_begin_again(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    inserting = writer.transaction()
    first = inserting.__enter__()
    first.insert(rows((1, "first")))

    def finish(_: float) -> None:
        if txns.transaction_state(db, first.txn_id) is txns.TxnState.OPEN:
            inserting.__exit__(None, None, None)

    waiting = TableWriter(db, open_location, flat, user="eve", host="h3", sleep=finish)
    waiting.insert_overwrite(rows((2, "new")))
    assert read(db, flat) == [(2, "new")]
    assert valid_write_ids(db, flat, valid_txn_list(db)).aborted == frozenset()


def test_dynamic_partitions_are_added_and_named_as_hive_does(
    db: Database, parted: TableName, writer: TableWriter
) -> None:
    data = rows((1, "a"), (2, "b"), (3, "c"))
    data = data.append_column("p", pa.array(["a b:c/d=e%", None, "plain"])).append_column("n", pa.array([7, 1, None]))
    writer.insert(data)
    default = "__HIVE_DEFAULT_PARTITION__"
    assert [p.name for p in list_partitions(db, parted)] == [
        f"p={default}/n=1",
        "p=a b%3Ac%2Fd%3De%25/n=7",
        f"p=plain/n={default}",
    ]
    assert read(db, parted) == [
        (1, "a", "a b:c/d=e%", 7),
        (2, "b", default, 1),
        (3, "c", "plain", None),
    ]


def test_a_partitioned_update_names_the_partitions_it_changed(
    db: Database, parted: TableName, writer: TableWriter
) -> None:
    for p in ("x", "y"):
        writer.insert(rows((1, p)), partition={"p": p, "n": 1})
    writer.update(pc.field("p") == "y", {"v": "changed"})
    with db.read() as conn:
        done = conn.exec_driver_sql(
            "SELECT CTC_PARTITION, CTC_UPDATE_DELETE FROM COMPLETED_TXN_COMPONENTS ORDER BY CTC_TXNID"
        ).all()
        left = conn.exec_driver_sql("SELECT COUNT(*) FROM TXN_COMPONENTS").scalar_one()
    assert [tuple(r) for r in done] == [("p=x/n=1", "N"), ("p=y/n=1", "N"), ("p=y/n=1", "Y")]
    assert left == 0


def test_an_aborted_dynamic_insert_leaves_a_component_for_each_partition(
    db: Database, parted: TableName, writer: TableWriter
) -> None:
    with pytest.raises(ZeroDivisionError), writer.transaction() as txn:
        for p in ("x", "y"):
            txn.insert(rows((1, p)).append_column("p", pa.array([p])).append_column("n", pa.array([1])))
        raise ZeroDivisionError
    with db.read() as conn:
        left = conn.exec_driver_sql("SELECT TC_PARTITION, TC_WRITEID FROM TXN_COMPONENTS ORDER BY 1").all()
    assert [tuple(r) for r in left] == [("p=x/n=1", 1), ("p=y/n=1", 1)]


def test_overwriting_one_partition_leaves_the_others(db: Database, parted: TableName, writer: TableWriter) -> None:
    for p in ("x", "y"):
        writer.insert(rows((1, p)), partition={"p": p, "n": 1})
    writer.insert_overwrite(rows((2, "new")), partition={"p": "x", "n": 1})
    assert read(db, parted, columns=["id", "p"]) == [(1, "y"), (2, "x")]


def test_rows_of_a_bucketed_table_stay_in_their_bucket_when_updated(
    db: Database, name: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    create_table(db, name, COLUMNS, clustered_by=["id"], buckets=4)
    writer.insert(rows(*((i, "a") for i in range(40))))
    before = {row[2]: (row[1].bucket >> 16) & 0xFFF for row in oracle(name)}
    writer.update(pc.field("id") < 20, {"v": "b"})
    assert set(before.values()) == {0, 1, 2, 3}
    assert {row[2]: (row[1].bucket >> 16) & 0xFFF for row in oracle(name)} == before
    with pytest.raises(UsageError, match="decides where"):
        writer.update(pc.field("id") == 1, {"id": 2})


def test_added_and_widened_columns_read_as_the_table_says_now(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    writer.insert(rows((1, "a")))
    set_columns(
        db,
        flat,
        [Column(name="id", type="bigint"), Column(name="renamed", type="string"), Column(name="d", type="double")],
    )
    writer.insert(pa.table({"id": [1 << 40], "renamed": ["b"], "d": [1.5]}))
    writer.update(pc.field("id") == 1, {"d": 2.5})
    assert read(db, flat) == [(1, "a", 2.5), (1 << 40, "b", 1.5)]


def test_every_type_survives_a_round_trip(db: Database, name: TableName, writer: TableWriter) -> None:
    columns = {
        "b": ("boolean", True),
        "ti": ("tinyint", -128),
        "bi": ("bigint", 1 << 62),
        "f": ("float", 1.5),
        "dc": ("decimal(20,5)", decimal.Decimal("12345.67891")),
        "whole": ("decimal(5,2)", 7),
        "c": ("char(5)", "ab"),
        "vc": ("varchar(3)", "äöü"),
        "ts": ("timestamp", TIMESTAMP),
        "d": ("date", dt.date(1969, 12, 31)),
        "bin": ("binary", b"\x00\xff"),
        "arr": ("array<int>", [1, None, 3]),
        "m": ("map<string,int>", [("k", 1)]),
        "st": ("struct<x:int,y:string>", {"x": 1, "y": "why"}),
    }
    create_table(db, name, [(n, t) for n, (t, _) in columns.items()])
    arrays = {
        n: pa.array([v, None], pa.map_(pa.string(), pa.int32()) if n == "m" else None) for n, (_, v) in columns.items()
    }
    writer.insert(pa.table(arrays))
    found = TableReader(db, open_location, name, user="b", host="h").read().to_pylist()
    expected = {n: v for n, (_, v) in columns.items()} | {"c": "ab   ", "whole": decimal.Decimal("7.00")}
    assert [{k: str(v) if k == "ts" else v for k, v in row.items()} for row in found] == [
        expected | {"ts": "2024-02-29 23:59:59.123456"},
        {n: "None" if n == "ts" else None for n in columns},
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"id": [1]}, "lack column v"),
        ({"id": [1], "v": ["a"], "w": [2]}, "no column w"),
        ({"id": [1 << 40], "v": ["a"]}, "column id"),
        ({"id": ["one"], "v": ["a"]}, "column id"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_name_of_the_column(
    db: Database, flat: TableName, writer: TableWriter, data: dict[str, list[Any]], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        writer.insert(pa.table(data))
    assert read(db, flat) == []


def test_too_long_text_is_refused(db: Database, name: TableName, writer: TableWriter) -> None:
    create_table(db, name, [("c", "char(3)"), ("v", "varchar(3)")])
    writer.insert(pa.table({"c": ["abc  "], "v": ["abc"]}))
    with pytest.raises(UsageError, match="column v"):
        writer.insert(pa.table({"c": ["abc"], "v": ["abcd"]}))


@pytest.mark.parametrize("stored_as", ["orc", "parquet"])
def test_insert_only_tables_hold_plain_files(
    db: Database, name: TableName, writer: TableWriter, stored_as: str
) -> None:
    create_table(
        db, name, [*COLUMNS, ("ts", "timestamp")], partitioned_by=[("p", "int")], insert_only=True, format=stored_as
    )
    moment = pa.array([TIMESTAMP, None])
    writer.insert(rows((1, "a"), (2, None)).append_column("ts", moment), partition={"p": 1})
    writer.insert(rows((3, "b"), (4, "c")).append_column("ts", moment).append_column("p", pa.array([1, 2])))
    assert read(db, name, columns=["id", "v", "p"]) == [(1, "a", 1), (2, None, 1), (3, "b", 1), (4, "c", 2)]
    writer.insert_overwrite(rows((9, "z")).append_column("ts", moment.slice(0, 1)), partition={"p": 1})
    assert read(db, name, columns=["id", "p"]) == [(4, 2), (9, 1)]
    assert entries(db, name) == [
        "p=1/base_0000003/000000_0",
        "p=1/delta_0000001_0000001_0000/000000_0",
        "p=1/delta_0000002_0000002_0000/000000_0",
        "p=2/delta_0000002_0000002_0000/000000_0",
    ]
    with pytest.raises(UsageError, match="insert-only"):
        writer.delete(pc.field("id") == 9)


def test_closing_a_snapshot_leaves_nothing_that_would_hold_up_the_cleaner(db: Database, flat: TableName) -> None:
    with open_snapshot(db, [flat], user="b", host="h") as snapshot:
        snapshot.heartbeat()
        assert txns.min_open_txn(db) == snapshot.txn_id
    with pytest.raises(ZeroDivisionError), open_snapshot(db, [flat], user="b", host="h"):
        raise ZeroDivisionError
    assert txns.min_open_txn(db) is None
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT COUNT(*) FROM MIN_HISTORY_WRITE_ID").scalar_one() == 0


def test_a_table_as_a_whole_can_be_read_a_stripe_at_a_time(db: Database, flat: TableName, writer: TableWriter) -> None:
    for n in range(3):
        writer.insert(rows((n, "x")))
    with open_snapshot(db, [flat], user="b", host="h") as snapshot:
        assert [b.num_rows for b in snapshot.batches(flat, columns=["id"])] == [1, 1, 1]


def test_a_table_that_the_snapshot_does_not_declare_cannot_be_read(db: Database, flat: TableName) -> None:
    other = TableName(database="default", table="other")
    create_table(db, other, COLUMNS)
    with open_snapshot(db, [flat], user="b", host="h") as snapshot, pytest.raises(Exception, match="not opened for"):
        snapshot.read(other)


def test_the_created_table_has_the_parameters_that_hive_sets(db: Database, flat: TableName, tmp_path: Path) -> None:
    table = get_table(db, flat)
    assert {k: v for k, v in table.parameters.items() if k != "transient_lastDdlTime"} == {
        "transactional": "true",
        "transactional_properties": "default",
        "bucketing_version": "2",
    }
    assert (tmp_path / "warehouse" / "t").is_dir()
