from __future__ import annotations

import threading

import pytest

from compactor.acid.snapshot import ValidTxnList
from compactor.errors import AlreadyExists, NoSuchTransaction, TransactionAborted, UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.metastore.schema import TXN_TO_WRITE_ID, TXNS
from compactor.metastore.seeding import ensure_txn_ids_above
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.txns import TxnState, TxnType, abort_transactions, commit_transaction, open_transactions
from compactor.metastore.writeids import (
    allocate_write_ids,
    seed_write_id,
    table_write_ids,
    valid_write_ids,
    valid_write_ids_of_each,
)

T = TableName(database="d", table="t")
OTHER = TableName(database="d", table="other")


def begin(db: Database, count: int = 1) -> list[int]:
    return open_transactions(db, count=count, user="ann", host="h1")


def test_each_table_counts_its_own_writes_from_one(db: Database) -> None:
    one, two = begin(db, 2)
    assert allocate_write_ids(db, [one, two], T) == {one: 1, two: 2}
    assert allocate_write_ids(db, [two], OTHER) == {two: 1}


def test_a_transaction_gets_one_write_id_in_a_table_however_often_it_asks(db: Database) -> None:
    one, two = begin(db, 2)
    first = allocate_write_ids(db, [one], T)
    assert allocate_write_ids(db, [one], T) == first
    assert allocate_write_ids(db, [two, one], T) == first | {two: 2}
    assert allocate_write_ids(db, begin(db), T) == {3: 3}


def test_only_an_open_writing_transaction_gets_a_write_id(db: Database) -> None:
    aborted, committed = begin(db, 2)
    abort_transactions(db, [aborted])
    commit_transaction(db, committed)
    (reader,) = open_transactions(db, kind=TxnType.READ_ONLY, user="ann", host="h1")
    with pytest.raises(TransactionAborted):
        allocate_write_ids(db, [aborted], T)
    with pytest.raises(NoSuchTransaction):
        allocate_write_ids(db, [committed], T)
    with pytest.raises(UsageError):
        allocate_write_ids(db, [reader], T)
    assert table_write_ids(db, T) == []


def test_one_bad_transaction_leaves_no_write_id_for_the_others(db: Database) -> None:
    (good,) = begin(db)
    with pytest.raises(NoSuchTransaction):
        allocate_write_ids(db, [good, 99], T)
    assert table_write_ids(db, T) == []
    assert allocate_write_ids(db, [good], T) == {good: 1}


def test_racing_writers_get_different_write_ids_without_a_gap(db: Database, database_url: str) -> None:
    txn_ids = begin(db, 12)
    start = threading.Barrier(4)
    given: dict[int, int] = {}

    def race(mine: list[int]) -> None:
        own = Database.connect(database_url)
        start.wait()
        for txn_id in mine:
            given.update(allocate_write_ids(own, [txn_id], T))
        own.dispose()

    threads = [threading.Thread(target=race, args=(txn_ids[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given.values()) == list(range(1, 13))


def test_a_snapshot_knows_open_and_aborted_writes(db: Database) -> None:
    txn_ids = begin(db, 4)
    allocate_write_ids(db, txn_ids, T)
    commit_transaction(db, txn_ids[0])
    abort_transactions(db, [txn_ids[1]])
    commit_transaction(db, txn_ids[3])
    seen = valid_write_ids(db, T, valid_txn_list(db))
    assert seen.table == "d.t"
    assert seen.high_water == 4
    assert (seen.open, seen.aborted) == ({3}, {2})


def test_a_write_of_a_later_transaction_is_not_seen_though_its_number_is_smaller(db: Database) -> None:
    older, younger = begin(db, 2)
    allocate_write_ids(db, [younger], T)
    allocate_write_ids(db, [older], T)
    commit_transaction(db, younger)
    seen = valid_write_ids(db, T, valid_txn_list(db, own_txn=older))
    assert seen.high_water == 2
    assert seen.open == {1}
    assert seen.is_valid(2)


def test_writes_above_the_snapshot_are_open_when_nothing_below_it_wrote(db: Database) -> None:
    reader, writer = begin(db, 2)
    allocate_write_ids(db, [writer], T)
    commit_transaction(db, writer)
    seen = valid_write_ids(db, T, valid_txn_list(db, own_txn=reader))
    assert (seen.high_water, seen.open) == (1, {1})


def test_a_table_without_writes_has_high_water_zero(db: Database) -> None:
    assert valid_write_ids(db, T, ValidTxnList(high_water=5)).high_water == 0


def test_writes_whose_map_was_cleaned_away_are_valid(db: Database) -> None:
    for txn_id in begin(db, 3):
        allocate_write_ids(db, [txn_id], T)
        commit_transaction(db, txn_id)
    with db.write() as conn:
        conn.execute(TXN_TO_WRITE_ID.delete())
    seen = valid_write_ids(db, T, valid_txn_list(db))
    assert seen.high_water == 3
    assert all(seen.is_valid(write_id) for write_id in (1, 2, 3))


def test_a_converted_table_begins_where_hive_says(db: Database) -> None:
    seed_write_id(db, T)
    (txn_id,) = begin(db)
    assert allocate_write_ids(db, [txn_id], T) == {txn_id: 10_000_001}
    with pytest.raises(AlreadyExists):
        seed_write_id(db, T, 5)
    seed_write_id(db, OTHER, 5)
    assert allocate_write_ids(db, [txn_id], OTHER) == {txn_id: 5}
    assert valid_write_ids(db, OTHER, ValidTxnList(high_water=0)).high_water == 5


def test_the_writes_of_a_table_are_listed_with_the_state_of_their_transactions(db: Database) -> None:
    txn_ids = begin(db, 4)
    allocate_write_ids(db, txn_ids, T)
    commit_transaction(db, txn_ids[0])
    commit_transaction(db, txn_ids[1])
    abort_transactions(db, [txn_ids[2]])
    with db.write() as conn:
        conn.execute(TXNS.delete().where(TXNS.c.TXN_ID == txn_ids[0]))
    listed = table_write_ids(db, T)
    assert [(write.write_id, write.txn_id) for write in listed] == list(enumerate(txn_ids, start=1))
    assert [write.state for write in listed] == [None, TxnState.COMMITTED, TxnState.ABORTED, TxnState.OPEN]


def test_transaction_ids_go_on_where_another_metastore_ended(db: Database) -> None:
    (first,) = begin(db, 1)
    assert ensure_txn_ids_above(db, 5_000_000)
    assert begin(db, 2) == [5_000_001, 5_000_002]
    assert valid_txn_list(db).open == {first, 5_000_001, 5_000_002}
    for txn_id in (first, 5_000_001, 5_000_002):
        commit_transaction(db, txn_id)
    assert valid_txn_list(db).is_valid(4_000_000)


def test_transaction_ids_never_go_back(db: Database) -> None:
    (newest,) = begin(db, 1)
    assert not ensure_txn_ids_above(db, newest)
    assert not ensure_txn_ids_above(db, 0)
    assert begin(db, 1) == [newest + 1]


def test_of_many_writes_each_open_and_aborted_one_is_found(db: Database) -> None:
    """More of them than one statement asks about, and some above the snapshot."""
    opened = range(2001, 3201)
    rows = [
        {"T2W_TXNID": i, "T2W_DATABASE": T.database, "T2W_TABLE": T.table, "T2W_WRITEID": i}
        for i in (*range(1, 11), *opened)
    ]
    with db.write() as conn:
        conn.execute(TXN_TO_WRITE_ID.insert(), rows)
    txns = ValidTxnList(high_water=3100, open=frozenset(opened), aborted=frozenset({7}))
    seen = valid_write_ids(db, T, txns)
    assert (seen.high_water, seen.open, seen.aborted) == (3100, frozenset(range(2001, 3101)), frozenset({7}))
    assert valid_write_ids_of_each(db, [T, OTHER], txns)[T] == seen
