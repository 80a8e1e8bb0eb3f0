from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from compactor.acid.snapshot import ValidTxnList
from compactor.errors import NoSuchTransaction, TransactionAborted, WriteConflict
from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.holders import oldest_unfinished_at_or_below, unfinished_at_or_below
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire, show_locks
from compactor.metastore.schema import (
    COMPLETED_TXN_COMPONENTS,
    MIN_HISTORY_LEVEL,
    MIN_HISTORY_WRITE_ID,
    TXN_COMPONENTS,
    TXNS,
    WRITE_SET,
)
from compactor.metastore.snapshots import open_declared, open_reader, valid_txn_list, valid_txn_list_for_compactor
from compactor.metastore.time_outs import heartbeat_range, time_out_transactions
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    commit_transaction,
    heartbeat,
    min_open_txn,
    open_transactions,
    show_transactions,
    transaction_state,
)
from compactor.metastore.writeids import allocate_write_ids

T = TableName(database="d", table="t")
OTHER = TableName(database="d", table="other")


def begin(db: Database, kind: TxnType = TxnType.DEFAULT) -> int:
    (txn_id,) = open_transactions(db, kind=kind, user="ann", host="h1")
    return txn_id


def write(db: Database, txn_id: int, operation: Operation, table: TableName = T, partition: str | None = None) -> None:
    """What a statement does before it commits; shared locks, so that conflicts are found at the commit."""
    allocate_write_ids(db, [txn_id], table)
    component = LockComponent(
        database=table.database,
        table=table.table,
        partition=partition,
        type=LockType.SHARED_WRITE,
        operation=operation,
    )
    acquire(db, LockRequest(txn_id=txn_id, components=[component], user="ann", host="h1"))


def compact(db: Database, table: TableName, kind: TxnType = TxnType.COMPACTION) -> int:
    """A compaction's transaction as far as it has recorded its snapshot."""
    txn_id = begin(db, kind)
    row = {"TC_TXNID": txn_id, "TC_DATABASE": table.database, "TC_TABLE": table.table, "TC_OPERATION_TYPE": "c"}
    with db.write() as conn:
        conn.execute(TXN_COMPONENTS.insert().values(row | {"TC_WRITEID": 7}))
    return txn_id


def rows(db: Database, table: sa.Table, *columns: str) -> list[tuple[object, ...]]:
    with db.read() as conn:
        query = sa.select(*(table.c[column] for column in columns)).order_by(*(table.c[column] for column in columns))
        return [tuple(row) for row in conn.execute(query)]


def set_heartbeat(db: Database, txn_id: int, at: int) -> None:
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == txn_id).values(TXN_LAST_HEARTBEAT=at))


def test_ids_ascend_and_each_remembers_the_oldest_open_one(db: Database) -> None:
    assert open_transactions(db, count=3, user="ann", host="h1") == [1, 2, 3]
    commit_transaction(db, 1)
    assert begin(db) == 4
    assert rows(db, MIN_HISTORY_LEVEL, "MHL_TXNID", "MHL_MIN_OPEN_TXNID") == [(2, 1), (3, 1), (4, 2)]
    assert min_open_txn(db) == 2


def test_an_open_transaction_shows_who_opened_it_and_when(db: Database) -> None:
    (txn_id,) = open_transactions(db, kind=TxnType.READ_ONLY, user="ann", host="h1", agent_info="query 7")
    commit_transaction(db, begin(db))
    aborted = begin(db)
    abort_transactions(db, [aborted])
    first, second = show_transactions(db)
    assert (first.id, first.state, first.kind) == (txn_id, TxnState.OPEN, TxnType.READ_ONLY)
    assert (first.user, first.host, first.agent_info) == ("ann", "h1", "query 7")
    assert first.started == first.last_heartbeat
    assert (second.id, second.state) == (aborted, TxnState.ABORTED)
    assert show_transactions(db, limit=1) == [first]


def test_without_open_transactions_there_is_no_smallest(db: Database) -> None:
    commit_transaction(db, begin(db))
    assert min_open_txn(db) is None
    assert transaction_state(db, 1) is TxnState.COMMITTED
    assert transaction_state(db, 99) is None


def test_a_committed_insert_becomes_a_candidate_and_leaves_nothing_else(db: Database) -> None:
    txn_id = begin(db)
    write(db, txn_id, Operation.INSERT)
    commit_transaction(db, txn_id)
    completed = rows(db, COMPLETED_TXN_COMPONENTS, "CTC_TXNID", "CTC_TABLE", "CTC_WRITEID", "CTC_UPDATE_DELETE")
    assert completed == [(txn_id, "t", 1, "N")]
    assert transaction_state(db, txn_id) is TxnState.COMMITTED
    assert show_locks(db) == []
    for table, column in ((TXN_COMPONENTS, "TC_TXNID"), (MIN_HISTORY_LEVEL, "MHL_TXNID"), (WRITE_SET, "WS_TXNID")):
        assert rows(db, table, column) == []


def test_the_time_of_a_candidate_is_the_databases_clock(db: Database) -> None:
    txn_id = begin(db)
    write(db, txn_id, Operation.INSERT)
    commit_transaction(db, txn_id)
    with db.read() as conn:
        stamp = conn.execute(sa.select(COMPLETED_TXN_COMPONENTS.c.CTC_TIMESTAMP)).scalar_one()
        assert abs((db.timestamp(conn) - stamp).total_seconds()) < 60


def test_a_delete_is_recorded_for_the_conflict_check(db: Database) -> None:
    txn_id = begin(db)
    write(db, txn_id, Operation.DELETE, partition="p=x")
    later = begin(db)
    commit_transaction(db, txn_id)
    assert rows(db, COMPLETED_TXN_COMPONENTS, "CTC_PARTITION", "CTC_UPDATE_DELETE") == [("p=x", "Y")]
    recorded = rows(db, WRITE_SET, "WS_TXNID", "WS_COMMIT_ID", "WS_PARTITION", "WS_OPERATION_TYPE")
    assert recorded == [(txn_id, later, "p=x", "d")]


@pytest.mark.parametrize("kind", [TxnType.COMPACTION, TxnType.REBALANCE_COMPACTION])
def test_a_compaction_is_no_new_candidate(db: Database, kind: TxnType) -> None:
    commit_transaction(db, compact(db, T, kind))
    assert rows(db, COMPLETED_TXN_COMPONENTS, "CTC_TXNID") == []
    assert rows(db, TXN_COMPONENTS, "TC_TXNID") == []


def test_committing_twice_does_nothing_the_second_time(db: Database) -> None:
    txn_id = begin(db)
    write(db, txn_id, Operation.INSERT)
    commit_transaction(db, txn_id)
    commit_transaction(db, txn_id)
    assert len(rows(db, COMPLETED_TXN_COMPONENTS, "CTC_TXNID")) == 1


def test_an_aborted_or_unknown_transaction_cannot_commit(db: Database) -> None:
    txn_id = begin(db)
    abort_transactions(db, [txn_id])
    with pytest.raises(TransactionAborted):
        commit_transaction(db, txn_id)
    with pytest.raises(NoSuchTransaction):
        commit_transaction(db, 99)


@pytest.mark.parametrize("first", [Operation.UPDATE, Operation.DELETE])
@pytest.mark.parametrize("second", [Operation.UPDATE, Operation.DELETE])
def test_the_first_committer_wins(db: Database, first: Operation, second: Operation) -> None:
    winner, loser = open_transactions(db, count=2, user="ann", host="h1")
    write(db, winner, first)
    write(db, loser, second)
    commit_transaction(db, winner)
    with pytest.raises(WriteConflict, match=rf"transaction {winner} changed d\.t"):
        commit_transaction(db, loser)
    assert transaction_state(db, loser) is TxnState.ABORTED
    assert rows(db, TXN_COMPONENTS, "TC_TXNID") == [(loser,)]
    assert rows(db, WRITE_SET, "WS_TXNID") == [(winner,)]
    assert show_locks(db) == []


def test_the_older_transaction_loses_too_when_it_commits_second(db: Database) -> None:
    older, younger = open_transactions(db, count=2, user="ann", host="h1")
    write(db, older, Operation.DELETE)
    write(db, younger, Operation.DELETE)
    commit_transaction(db, younger)
    with pytest.raises(WriteConflict):
        commit_transaction(db, older)


def test_transactions_that_follow_each_other_do_not_conflict(db: Database) -> None:
    for _ in range(2):
        txn_id = begin(db)
        write(db, txn_id, Operation.UPDATE)
        commit_transaction(db, txn_id)
    assert len(rows(db, WRITE_SET, "WS_TXNID")) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((Operation.INSERT, T, None), (Operation.DELETE, T, None)),
        ((Operation.DELETE, T, None), (Operation.INSERT, T, None)),
        ((Operation.INSERT, T, None), (Operation.INSERT, T, None)),
        ((Operation.DELETE, T, None), (Operation.DELETE, OTHER, None)),
        ((Operation.DELETE, T, "p=x"), (Operation.DELETE, T, "p=y")),
    ],
)
def test_inserts_and_changes_elsewhere_do_not_conflict(
    db: Database, first: tuple[Operation, TableName, str | None], second: tuple[Operation, TableName, str | None]
) -> None:
    one, two = open_transactions(db, count=2, user="ann", host="h1")
    write(db, one, *first)
    write(db, two, *second)
    commit_transaction(db, one)
    commit_transaction(db, two)
    assert transaction_state(db, two) is TxnState.COMMITTED


def test_changes_of_one_partition_conflict(db: Database) -> None:
    one, two = open_transactions(db, count=2, user="ann", host="h1")
    write(db, one, Operation.DELETE, partition="p=x")
    write(db, two, Operation.DELETE, partition="p=x")
    commit_transaction(db, one)
    with pytest.raises(WriteConflict, match="p=x"):
        commit_transaction(db, two)


def test_of_many_that_race_to_commit_the_same_change_exactly_one_wins(db: Database, database_url: str) -> None:
    contenders = open_transactions(db, count=8, user="ann", host="h1")
    for txn_id in contenders:
        write(db, txn_id, Operation.UPDATE)
    start = threading.Barrier(len(contenders))
    won: list[int] = []

    def race(txn_id: int) -> None:
        own = Database.connect(database_url)
        start.wait()
        try:
            commit_transaction(own, txn_id)
            won.append(txn_id)
        except WriteConflict:
            assert transaction_state(own, txn_id) is TxnState.ABORTED
        finally:
            own.dispose()

    threads = [threading.Thread(target=race, args=(txn_id,)) for txn_id in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert rows(db, TXNS, "TXN_STATE").count(("a",)) == 7


def test_an_abort_keeps_components_and_releases_everything_else(db: Database) -> None:
    snapshot = open_declared(db, [T], kind=TxnType.DEFAULT, user="ann", host="h1")
    write(db, snapshot.txn_id, Operation.INSERT)
    abort_transactions(db, [snapshot.txn_id], reason="rollback")
    assert rows(db, TXN_COMPONENTS, "TC_TXNID", "TC_WRITEID") == [(snapshot.txn_id, 1)]
    assert rows(db, TXNS, "TXN_STATE", "TXN_META_INFO") == [("a", "rollback"), ("c", None)]
    assert show_locks(db) == []
    assert rows(db, MIN_HISTORY_LEVEL, "MHL_TXNID") == []
    assert rows(db, MIN_HISTORY_WRITE_ID, "MH_TXNID") == []


def test_an_abort_says_what_it_found(db: Database) -> None:
    opened, aborted, committed = open_transactions(db, count=3, user="ann", host="h1")
    abort_transactions(db, [aborted])
    commit_transaction(db, committed)
    outcome = abort_transactions(db, [99, committed, opened, aborted, opened])
    assert outcome.aborted == (opened,)
    assert outcome.already_aborted == (aborted,)
    assert outcome.committed == (committed,)
    assert outcome.unknown == (99,)


def test_thousands_are_aborted_at_once(db: Database) -> None:
    ids = open_transactions(db, count=2500, user="ann", host="h1")
    assert len(abort_transactions(db, ids).aborted) == 2500
    assert rows(db, MIN_HISTORY_LEVEL, "MHL_TXNID") == []


def test_a_heartbeat_says_whether_there_is_a_point_in_going_on(db: Database) -> None:
    opened, aborted, committed = open_transactions(db, count=3, user="ann", host="h1")
    abort_transactions(db, [aborted])
    commit_transaction(db, committed)
    set_heartbeat(db, opened, 1)
    heartbeat(db, opened)
    assert show_transactions(db)[0].last_heartbeat > 1
    with pytest.raises(TransactionAborted):
        heartbeat(db, aborted)
    with pytest.raises(NoSuchTransaction, match="committed"):
        heartbeat(db, committed)
    with pytest.raises(NoSuchTransaction):
        heartbeat(db, 99)


def test_a_range_is_kept_alive_at_once(db: Database) -> None:
    first, aborted, committed, last = open_transactions(db, count=4, user="ann", host="h1")
    abort_transactions(db, [aborted])
    commit_transaction(db, committed)
    set_heartbeat(db, first, 1)
    result = heartbeat_range(db, first, last + 1)
    assert result.aborted == (aborted,)
    assert result.no_such == (committed, last + 1)
    assert show_transactions(db)[0].last_heartbeat > 1


def test_only_silent_transactions_time_out_oldest_first(db: Database) -> None:
    silent, second, alive = open_transactions(db, count=3, user="ann", host="h1")
    replayed = begin(db)
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == replayed).values(TXN_TYPE=int(TxnType.REPL_CREATED)))
    with db.read() as conn:
        long_ago = db.now(conn) - 600_000
    for txn_id in (silent, second, replayed):
        set_heartbeat(db, txn_id, long_ago)
    assert time_out_transactions(db, timeout_ms=300_000, limit=1) == [silent]
    assert time_out_transactions(db, timeout_ms=300_000) == [second]
    assert time_out_transactions(db, timeout_ms=300_000) == []
    assert transaction_state(db, alive) is TxnState.OPEN
    assert time_out_transactions(db, timeout_ms=300_000, replication_timeout_ms=300_000) == [replayed]


def test_a_snapshot_excludes_open_and_aborted_transactions(db: Database) -> None:
    committed, opened, aborted = open_transactions(db, count=3, user="ann", host="h1")
    commit_transaction(db, committed)
    abort_transactions(db, [aborted])
    assert valid_txn_list(db) == ValidTxnList(high_water=3, open=frozenset({opened}), aborted=frozenset({aborted}))


def test_a_transaction_sees_itself_and_nothing_that_opened_later(db: Database) -> None:
    earlier, own, later = open_transactions(db, count=3, user="ann", host="h1")
    commit_transaction(db, later)
    seen = valid_txn_list(db, own_txn=own)
    assert seen == ValidTxnList(high_water=own, open=frozenset({earlier}))
    assert seen.is_valid(own)
    assert not seen.is_valid(later)


def test_a_compaction_does_not_see_its_own_output(db: Database) -> None:
    own = begin(db, TxnType.COMPACTION)
    assert valid_txn_list(db, own_txn=own).is_valid(own)
    seen = valid_txn_list_for_compactor(db, own)
    assert not seen.is_valid(own)
    assert seen.min_open == own
    assert seen.high_water == own


def test_a_reader_declares_its_tables_with_the_oldest_write_it_may_need(db: Database) -> None:
    done, running = open_transactions(db, count=2, user="ann", host="h1")
    for txn_id in (done, running):
        allocate_write_ids(db, [txn_id], T)
    allocate_write_ids(db, [done], OTHER)
    commit_transaction(db, done)
    snapshot = open_reader(db, [T, OTHER], user="bo", host="h2")
    declared = rows(db, MIN_HISTORY_WRITE_ID, "MH_TXNID", "MH_TABLE", "MH_WRITEID")
    assert declared == [(snapshot.txn_id, "other", 2), (snapshot.txn_id, "t", 2)]
    assert snapshot.write_ids[T].high_water == 2
    assert snapshot.write_ids[T].open == {2}
    assert snapshot.write_ids[OTHER].high_water == 1
    assert snapshot.txns.high_water == snapshot.txn_id
    assert show_transactions(db)[-1].kind is TxnType.READ_ONLY
    commit_transaction(db, snapshot.txn_id)
    assert rows(db, MIN_HISTORY_WRITE_ID, "MH_TXNID") == []


def test_the_transaction_with_exactly_the_next_id_counts(db: Database) -> None:
    reader = begin(db)
    blocker = oldest_unfinished_at_or_below(db, reader, T)
    assert blocker is not None
    assert (blocker.txn_id, blocker.user, blocker.host) == (reader, "ann", "h1")
    assert "did not declare" in blocker.why
    assert oldest_unfinished_at_or_below(db, reader - 1, T) is None


def test_a_finished_transaction_does_not_hold_files_back(db: Database) -> None:
    one, two = open_transactions(db, count=2, user="ann", host="h1")
    commit_transaction(db, one)
    abort_transactions(db, [two])
    assert oldest_unfinished_at_or_below(db, two, T) is None


def test_a_declared_reader_holds_back_only_the_tables_it_declared(db: Database) -> None:
    reader = open_reader(db, [OTHER], user="bo", host="h2").txn_id
    assert oldest_unfinished_at_or_below(db, reader, T) is None
    blocker = oldest_unfinished_at_or_below(db, reader, OTHER)
    assert blocker is not None
    assert "declared" in blocker.why


def test_a_compaction_of_another_table_does_not_hold_files_back(db: Database) -> None:
    elsewhere = compact(db, OTHER)
    assert oldest_unfinished_at_or_below(db, elsewhere, T) is None
    here = compact(db, T, TxnType.REBALANCE_COMPACTION)
    blocker = oldest_unfinished_at_or_below(db, here, T)
    assert blocker is not None
    assert (blocker.txn_id, blocker.why) == (here, "it compacts the table")


def test_a_compaction_that_has_not_said_what_it_compacts_holds_everything_back(db: Database) -> None:
    unknown = begin(db, TxnType.COMPACTION)
    assert oldest_unfinished_at_or_below(db, unknown, T) is not None


def test_the_history_level_must_agree_for_those_who_declared_nothing(db: Database) -> None:
    old = open_reader(db, [OTHER], user="bo", host="h2").txn_id
    next_txn_id = begin(db)
    undeclared = begin(db)
    commit_transaction(db, next_txn_id)
    blocker = oldest_unfinished_at_or_below(db, next_txn_id, T)
    assert blocker is not None
    assert blocker.txn_id == undeclared
    assert "MIN_HISTORY_LEVEL" in blocker.why
    commit_transaction(db, undeclared)
    commit_transaction(db, old)
    assert begin(db) > next_txn_id
    assert oldest_unfinished_at_or_below(db, next_txn_id, T) is None


def test_a_long_query_elsewhere_does_not_block_through_later_declared_readers(db: Database) -> None:
    open_reader(db, [OTHER], user="bo", host="h2")
    next_txn_id = begin(db)
    commit_transaction(db, next_txn_id)
    open_reader(db, [T], user="bo", host="h2")
    assert oldest_unfinished_at_or_below(db, next_txn_id, T) is None


def test_all_holders_are_listed_oldest_first(db: Database) -> None:
    first = open_reader(db, [T], user="bo", host="h2").txn_id
    second = begin(db)
    open_reader(db, [OTHER], user="bo", host="h2")
    assert [blocker.txn_id for blocker in unfinished_at_or_below(db, 99, T)] == [first, second]
    assert [blocker.txn_id for blocker in unfinished_at_or_below(db, 99, T, limit=1)] == [first]
