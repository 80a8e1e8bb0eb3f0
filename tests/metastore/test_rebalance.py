"""A rebalance gives every row a new id: whoever updates or deletes at the same time conflicts with it."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from compactor.errors import Fenced, WriteConflict
from compactor.metastore import locks
from compactor.metastore.abandoned import abandoned_compactions, forget_abandoned
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.metastore.locks import LockComponent, LockRequest, LockState, LockType
from compactor.metastore.queue import (
    ReadyWithoutOutput,
    Refused,
    claim,
    fail,
    finish_without_output,
    publish,
    record_snapshot,
    request_compaction,
    revoke_claims,
)
from compactor.metastore.schema import COMPLETED_TXN_COMPONENTS, TXN_COMPONENTS, WRITE_SET
from compactor.metastore.txns import TxnState, TxnType, commit_transaction, open_transactions, transaction_state
from compactor.metastore.writeids import allocate_write_ids

ORDERS = TableName(database="shop", table="orders")
DAY, NEXT_DAY = "d=1", "d=2"


def begin(db: Database, kind: TxnType = TxnType.DEFAULT) -> int:
    return open_transactions(db, kind=kind, user="u", host="vm")[0]


def lock(db: Database, txn: int, kind: LockType, operation: Operation, partition: str | None = DAY) -> LockState:
    component = LockComponent(database="shop", table="orders", partition=partition, type=kind, operation=operation)
    return locks.acquire(db, LockRequest(txn_id=txn, components=[component], user="u", host="vm")).state


def change(db: Database, txn: int, operation: Operation = Operation.DELETE, partition: str | None = DAY) -> LockState:
    """What a statement does before it writes."""
    allocate_write_ids(db, [txn], ORDERS)
    kind = LockType.SHARED_READ if operation is Operation.INSERT else LockType.SHARED_WRITE
    return lock(db, txn, kind, operation, partition)


def at_work(
    db: Database, *, partition: str | None = DAY, kind: CompactionType = CompactionType.REBALANCE
) -> tuple[Compaction, int]:
    """A claim with its transaction, lock and snapshot, as a worker has before it publishes."""
    request_compaction(
        db,
        CompactionRequest(
            table=ORDERS,
            type=kind,
            partition=partition,
            initiator_id="i",
            initiator_version="1",
            buckets=4 if kind is CompactionType.REBALANCE else None,
            order_by="ORDER BY `a` DESC" if kind is CompactionType.REBALANCE else None,
        ),
    )
    mine = claim(db, worker_id="vm-1.a", worker_version="1")
    assert mine is not None
    rebalance = kind is CompactionType.REBALANCE
    txn = begin(db, TxnType.REBALANCE_COMPACTION if rebalance else TxnType.COMPACTION)
    lock_type = LockType.EXCL_WRITE if rebalance else LockType.SHARED_READ
    assert lock(db, txn, lock_type, Operation.SELECT, partition) is LockState.ACQUIRED
    record_snapshot(db, mine, txn_id=txn, highest_write_id=7)
    return mine, txn


def row(db: Database, compaction: Compaction) -> Compaction:
    return show_compactions(db, filters=CompactionFilter(id=compaction.id))[0]


def components(db: Database) -> list[tuple[int, str, int | None]]:
    ours = TXN_COMPONENTS.c
    with db.read() as conn:
        found = conn.execute(select(ours.TC_TXNID, ours.TC_OPERATION_TYPE, ours.TC_WRITEID).order_by(*ours))
        return [(r.TC_TXNID, r.TC_OPERATION_TYPE, r.TC_WRITEID) for r in found]


def write_set(db: Database) -> list[tuple[str | None, int, int, str]]:
    theirs = WRITE_SET.c
    with db.read() as conn:
        found = conn.execute(
            select(theirs.WS_PARTITION, theirs.WS_TXNID, theirs.WS_COMMIT_ID, theirs.WS_OPERATION_TYPE)
        )
        return [tuple(r) for r in found]


def test_a_publication_tells_the_cleaner_how_long_to_wait_and_leaves_its_change_behind(db: Database) -> None:
    mine, txn = at_work(db)
    assert components(db) == [(txn, "c", 7), (txn, "u", 7)]
    reader = begin(db, TxnType.READ_ONLY)
    publish(db, mine, txn)
    seen = row(db, mine)
    assert (seen.state, seen.next_txn_id) == (CompactionState.READY_FOR_CLEANING, reader)
    assert seen.commit_time is not None, "Hive 4.0.1 leaves it and the transaction id empty"
    assert (seen.number_of_buckets, seen.order_by) == (4, "ORDER BY `a` DESC")
    assert transaction_state(db, txn) is TxnState.COMMITTED
    assert write_set(db) == [(DAY, txn, reader, "u")]
    assert components(db) == []
    with db.read() as conn:
        assert conn.execute(select(COMPLETED_TXN_COMPONENTS)).all() == [], "there is nothing new to compact"


def test_other_compactions_change_no_row_and_conflict_with_nobody(db: Database) -> None:
    mine, txn = at_work(db, kind=CompactionType.MAJOR)
    assert components(db) == [(txn, "c", 7)]
    writer = begin(db)
    assert change(db, writer) is LockState.ACQUIRED
    commit_transaction(db, writer)
    publish(db, mine, txn)
    assert [w[1] for w in write_set(db)] == [writer]


@pytest.mark.parametrize("operation", [Operation.UPDATE, Operation.DELETE])
@pytest.mark.parametrize("partition", [DAY, None])
def test_a_change_that_committed_after_we_began_fails_the_publication(
    db: Database, operation: Operation, partition: str | None
) -> None:
    mine, txn = at_work(db, partition=partition)
    writer = begin(db)
    # Another program's lock manager let it in.
    with db.write() as conn:
        values = {"TC_DATABASE": "shop", "TC_TABLE": "orders", "TC_PARTITION": partition, "TC_WRITEID": 8}
        conn.execute(TXN_COMPONENTS.insert().values(TC_TXNID=writer, TC_OPERATION_TYPE=operation, **values))
    commit_transaction(db, writer)
    with pytest.raises(WriteConflict, match=f"transaction {writer} changed shop.orders"):
        publish(db, mine, txn)
    assert transaction_state(db, txn) is TxnState.OPEN, "nothing was changed"
    assert row(db, mine).state is CompactionState.WORKING
    assert components(db) == [(txn, "c", 7), (txn, "u", 7)]
    assert [w[1] for w in write_set(db)] == [writer]
    fail(db, mine, message="conflict", txn_id=txn)
    assert transaction_state(db, txn) is TxnState.ABORTED
    assert row(db, mine).state is CompactionState.FAILED


def test_a_change_that_began_before_our_publication_and_locked_after_it_is_aborted(db: Database) -> None:
    mine, txn = at_work(db)
    writer = begin(db)
    assert change(db, writer) is LockState.WAITING
    publish(db, mine, txn)
    (held,) = locks.show_locks(db)
    assert locks.check(db, held.lock_id).state is LockState.ACQUIRED
    with pytest.raises(WriteConflict, match=f"transaction {txn} changed shop.orders/d=1"):
        commit_transaction(db, writer)
    assert transaction_state(db, writer) is TxnState.ABORTED


def test_a_change_that_began_after_the_publication_knows_the_new_ids(db: Database) -> None:
    mine, txn = at_work(db)
    publish(db, mine, txn)
    writer = begin(db)
    assert change(db, writer) is LockState.ACQUIRED
    commit_transaction(db, writer)
    assert transaction_state(db, writer) is TxnState.COMMITTED


def test_inserts_and_other_partitions_go_on(db: Database) -> None:
    mine, txn = at_work(db)
    inserting, elsewhere = begin(db), begin(db)
    assert change(db, inserting, Operation.INSERT) is LockState.ACQUIRED
    assert change(db, elsewhere, partition=NEXT_DAY) is LockState.ACQUIRED
    commit_transaction(db, inserting)
    commit_transaction(db, elsewhere)
    publish(db, mine, txn)
    assert row(db, mine).state is CompactionState.READY_FOR_CLEANING


def test_a_writer_at_work_keeps_a_rebalance_out(db: Database) -> None:
    assert change(db, begin(db)) is LockState.ACQUIRED
    txn = begin(db, TxnType.REBALANCE_COMPACTION)
    assert lock(db, txn, LockType.EXCL_WRITE, Operation.SELECT) is LockState.WAITING


def test_a_reader_keeps_no_rebalance_out_and_is_not_kept_out(db: Database) -> None:
    assert lock(db, begin(db, TxnType.READ_ONLY), LockType.SHARED_READ, Operation.SELECT) is LockState.ACQUIRED
    at_work(db)
    assert lock(db, begin(db, TxnType.READ_ONLY), LockType.SHARED_READ, Operation.SELECT) is LockState.ACQUIRED


@pytest.mark.parametrize("outcome", [Refused(reason="nothing to do"), ReadyWithoutOutput()])
def test_a_rebalance_without_output_changed_nothing(db: Database, outcome: Refused | ReadyWithoutOutput) -> None:
    mine, txn = at_work(db)
    finish_without_output(db, mine, txn, outcome=outcome)
    assert transaction_state(db, txn) is TxnState.COMMITTED
    assert (write_set(db), components(db)) == ([], [])


def test_a_revoked_rebalance_publishes_nothing(db: Database) -> None:
    mine, txn = at_work(db)
    revoke_claims(db, ["vm-1.a"])
    with pytest.raises(Fenced):
        publish(db, mine, txn)
    assert write_set(db) == []


def test_an_aborted_rebalance_is_forgotten_as_a_whole(db: Database) -> None:
    mine, txn = at_work(db)
    fail(db, mine, message="it failed", txn_id=txn)
    assert [a.txn_id for a in abandoned_compactions(db)] == [txn]
    assert forget_abandoned(db, txn) == 2
    assert components(db) == []
