from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import BigInteger, Column, ForeignKey, MetaData, Table, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from compactor.errors import Fenced
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.metastore.queue import (
    ReadyWithoutOutput,
    Refused,
    claim,
    fail,
    finish_without_output,
    publish,
    record_snapshot,
    request_compaction,
    revoke_timed_out,
)
from compactor.metastore.schema import (
    COMPACTION_QUEUE,
    COMPLETED_TXN_COMPONENTS,
    HIVE_LOCKS,
    MIN_HISTORY_LEVEL,
    MIN_HISTORY_WRITE_ID,
    TXN_COMPONENTS,
    TXNS,
)
from compactor.metastore.txns import TxnState, TxnType, abort_transactions, open_transactions, transaction_state

ORDERS = TableName(database="shop", table="orders")
TRANSACTION_ROWS = (
    (HIVE_LOCKS, HIVE_LOCKS.c.HL_TXNID),
    (MIN_HISTORY_LEVEL, MIN_HISTORY_LEVEL.c.MHL_TXNID),
    (MIN_HISTORY_WRITE_ID, MIN_HISTORY_WRITE_ID.c.MH_TXNID),
)


def open_txn(db: Database, kind: TxnType = TxnType.COMPACTION) -> int:
    return open_transactions(db, kind=kind, user="u", host="vm")[0]


def claimed(db: Database, worker_id: str = "vm-1.a") -> Compaction:
    found = claim(db, worker_id=worker_id, worker_version="1")
    assert found is not None
    return found


def at_work(db: Database) -> tuple[Compaction, int]:
    """A claim with its transaction, lock, history rows and recorded snapshot, as a worker has before it publishes."""
    request = CompactionRequest(table=ORDERS, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1")
    request_compaction(db, request)
    mine, txn = claimed(db), open_txn(db)
    record_snapshot(db, mine, txn_id=txn, highest_write_id=7)
    with db.write() as conn:
        conn.execute(
            insert(HIVE_LOCKS).values(
                HL_LOCK_EXT_ID=1,
                HL_LOCK_INT_ID=1,
                HL_TXNID=txn,
                HL_DB="shop",
                HL_TABLE="orders",
                HL_LOCK_STATE="a",
                HL_LOCK_TYPE="r",
                HL_LAST_HEARTBEAT=0,
                HL_USER="u",
                HL_HOST="vm",
            )
        )
        conn.execute(
            insert(MIN_HISTORY_WRITE_ID).values(MH_TXNID=txn, MH_DATABASE="shop", MH_TABLE="orders", MH_WRITEID=8)
        )
    return mine, txn


def row(db: Database, compaction_id: int) -> Compaction:
    return show_compactions(db, filters=CompactionFilter(id=compaction_id))[0]


def left_of(db: Database, txn: int) -> int:
    with db.read() as conn:
        return sum(
            conn.scalar(select(func.count()).select_from(table).where(owner == txn)) or 0
            for table, owner in TRANSACTION_ROWS
        )


def everything(db: Database) -> dict[str, list[tuple[object, ...]]]:
    """Each transaction table row by row, to see that nothing changed."""
    tables = (COMPACTION_QUEUE, TXNS, TXN_COMPONENTS, HIVE_LOCKS, MIN_HISTORY_LEVEL, MIN_HISTORY_WRITE_ID)
    with db.read() as conn:
        return {table.name: [tuple(found) for found in conn.execute(select(table))] for table in tables}


def test_publishing_commits_the_transaction_and_moves_the_row_together(db: Database) -> None:
    mine, txn = at_work(db)
    publish(db, mine, txn)
    seen = row(db, mine.id)
    assert (seen.state, seen.worker_id) == (CompactionState.READY_FOR_CLEANING, None)
    assert (seen.txn_id, seen.highest_write_id, seen.next_txn_id) == (txn, 7, txn)
    assert seen.commit_time is not None
    assert transaction_state(db, txn) is TxnState.COMMITTED
    assert left_of(db, txn) == 0
    with db.read() as conn:
        assert conn.scalar(select(func.count()).select_from(TXN_COMPONENTS)) == 0
        completed = conn.scalar(select(func.count()).select_from(COMPLETED_TXN_COMPONENTS))
    assert completed == 0, "a compaction is no new write to compact"


def test_the_cleaner_has_to_wait_for_every_transaction_that_opened_before_the_publication(db: Database) -> None:
    mine, txn = at_work(db)
    reader = open_txn(db, TxnType.READ_ONLY)
    publish(db, mine, txn)
    assert row(db, mine.id).next_txn_id == reader
    later = open_txn(db, TxnType.READ_ONLY)
    assert row(db, mine.id).next_txn_id < later


def test_an_aborted_transaction_publishes_nothing(db: Database) -> None:
    mine, txn = at_work(db)
    abort_transactions(db, [txn])
    before = everything(db)
    with pytest.raises(Fenced, match="no longer open"):
        publish(db, mine, txn)
    assert everything(db) == before


def test_a_revoked_claim_publishes_nothing_although_its_successor_works_on(db: Database) -> None:
    lost, old_txn = at_work(db)
    revoke_timed_out(db, timeout_ms=-1)
    successor, new_txn = claimed(db, "vm-2.b"), open_txn(db)
    record_snapshot(db, successor, txn_id=new_txn, highest_write_id=7)
    before = everything(db)
    for txn in (old_txn, new_txn):
        with pytest.raises(Fenced):
            publish(db, lost, txn)
    assert everything(db) == before
    publish(db, successor, new_txn)
    assert row(db, lost.id).txn_id == new_txn


def test_a_claim_that_was_taken_away_without_its_transaction_stays_unpublished(db: Database) -> None:
    lost, txn = at_work(db)
    with db.write() as conn:
        # as another program's revoke does: the row alone
        conn.execute(update(COMPACTION_QUEUE).values(CQ_STATE="i", CQ_WORKER_ID=None, CQ_START=None))
    before = everything(db)
    with pytest.raises(Fenced):
        publish(db, lost, txn)
    assert everything(db) == before, "the commit that came first in the transaction is undone"
    assert transaction_state(db, txn) is TxnState.OPEN


def test_another_transaction_than_the_recorded_one_publishes_nothing(db: Database) -> None:
    mine, _ = at_work(db)
    other = open_txn(db)
    before = everything(db)
    with pytest.raises(Fenced):
        publish(db, mine, other)
    assert everything(db) == before


def test_publishing_twice_is_fenced(db: Database) -> None:
    mine, txn = at_work(db)
    publish(db, mine, txn)
    before = everything(db)
    with pytest.raises(Fenced):
        publish(db, mine, txn)
    assert everything(db) == before


@pytest.mark.usefixtures("own_schema")
def test_a_failure_in_the_middle_of_publishing_leaves_nothing_behind(db: Database) -> None:
    mine, txn = at_work(db)
    # the database itself refuses the last statement of the publication
    held = Column("HELD", BigInteger, ForeignKey(MIN_HISTORY_LEVEL.c.MHL_TXNID), primary_key=True, autoincrement=False)
    holder = Table("HOLDER", MetaData(), held)
    with db.write() as conn:
        holder.create(conn)
        conn.execute(insert(holder).values(HELD=txn))
    before = everything(db)
    with pytest.raises(IntegrityError):
        publish(db, mine, txn)
    assert everything(db) == before


def test_no_row_is_ever_seen_ready_while_its_transaction_is_not_committed(db: Database, database_url: str) -> None:
    mine, txn = at_work(db)

    def watch() -> set[tuple[str, str]]:
        watcher, seen = Database.connect(database_url), set()
        try:
            while ("r", "c") not in seen:
                with watcher.read() as conn:
                    pair = select(COMPACTION_QUEUE.c.CQ_STATE, TXNS.c.TXN_STATE).join(TXNS, TXNS.c.TXN_ID == txn)
                    seen.add(tuple(conn.execute(pair).one()))
            return seen
        finally:
            watcher.dispose()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        publish(db, mine, txn)
        assert watching.result(timeout=30) <= {("w", "o"), ("r", "c")}


@pytest.mark.parametrize("winner", ["publish", "revoke"])
def test_publish_and_revoke_exclude_each_other(db: Database, winner: str) -> None:
    mine, txn = at_work(db)
    if winner == "publish":
        publish(db, mine, txn)
        assert revoke_timed_out(db, timeout_ms=-1) == []
        assert transaction_state(db, txn) is TxnState.COMMITTED
    else:
        revoke_timed_out(db, timeout_ms=-1)
        with pytest.raises(Fenced):
            publish(db, mine, txn)
        assert transaction_state(db, txn) is TxnState.ABORTED


def test_racing_publish_and_revoke_end_in_one_of_both_outcomes(db: Database) -> None:
    for _ in range(5):
        mine, txn = at_work(db)

        def try_to_publish(mine: Compaction = mine, txn: int = txn) -> bool:
            try:
                publish(db, mine, txn)
            except Fenced:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            published, revoked = pool.submit(try_to_publish), pool.submit(revoke_timed_out, db, timeout_ms=-1)
            assert published.result() != bool(revoked.result())
        committed = transaction_state(db, txn) is TxnState.COMMITTED
        assert committed is published.result()
        assert row(db, mine.id).state is (
            CompactionState.READY_FOR_CLEANING if committed else CompactionState.INITIATED
        )
        with db.write() as conn:
            conn.execute(COMPACTION_QUEUE.delete())
            conn.execute(HIVE_LOCKS.delete())


def test_a_refusal_ends_in_the_history_with_its_reason_and_commits_the_transaction(db: Database) -> None:
    mine, txn = at_work(db)
    finish_without_output(db, mine, txn, outcome=Refused(reason="nothing to do"))
    seen = row(db, mine.id)
    assert (seen.state, seen.error_message, seen.worker_id) == (CompactionState.REFUSED, "nothing to do", "vm-1.a")
    assert seen.end is not None
    assert (seen.next_txn_id, seen.commit_time) == (None, None)
    assert transaction_state(db, txn) is TxnState.COMMITTED
    assert left_of(db, txn) == 0
    with db.read() as conn:
        assert conn.scalar(select(func.count()).select_from(COMPACTION_QUEUE)) == 0
        assert conn.scalar(select(func.count()).select_from(TXN_COMPONENTS)) == 0


def test_a_table_can_be_refused_before_a_transaction_is_opened(db: Database) -> None:
    request = CompactionRequest(table=ORDERS, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1")
    request_compaction(db, request)
    mine = claimed(db)
    finish_without_output(db, mine, None, outcome=Refused(reason="no such table"))
    assert row(db, mine.id).state is CompactionState.REFUSED


def test_obsolete_directories_alone_go_to_the_cleaner_without_output(db: Database) -> None:
    mine, txn = at_work(db)
    finish_without_output(db, mine, txn, outcome=ReadyWithoutOutput())
    seen = row(db, mine.id)
    assert (seen.state, seen.next_txn_id) == (CompactionState.READY_FOR_CLEANING, txn)
    assert transaction_state(db, txn) is TxnState.COMMITTED


@pytest.mark.parametrize("outcome", [Refused(reason="nothing to do"), ReadyWithoutOutput()])
def test_a_lost_claim_cannot_finish(db: Database, outcome: Refused | ReadyWithoutOutput) -> None:
    mine, txn = at_work(db)
    revoke_timed_out(db, timeout_ms=-1)
    before = everything(db)
    with pytest.raises(Fenced):
        finish_without_output(db, mine, txn, outcome=outcome)
    with pytest.raises(Fenced):
        finish_without_output(db, mine, None, outcome=outcome)
    assert everything(db) == before


def test_a_failure_ends_in_the_history_and_aborts_the_transaction(db: Database) -> None:
    mine, txn = at_work(db)
    fail(db, mine, message="disk full", txn_id=txn)
    seen = row(db, mine.id)
    assert (seen.state, seen.error_message, seen.txn_id) == (CompactionState.FAILED, "disk full", txn)
    assert (seen.highest_write_id, seen.worker_id, seen.worker_version) == (7, "vm-1.a", "1")
    assert transaction_state(db, txn) is TxnState.ABORTED
    assert left_of(db, txn) == 0
    with db.read() as conn:
        components = conn.execute(select(TXN_COMPONENTS.c.TC_TXNID, TXN_COMPONENTS.c.TC_OPERATION_TYPE)).all()
    assert [tuple(component) for component in components] == [(txn, "c")]


def test_a_claim_whose_transaction_timed_out_can_still_say_why_it_failed(db: Database) -> None:
    mine, txn = at_work(db)
    abort_transactions(db, [txn])
    fail(db, mine, message="heartbeat lost", txn_id=txn)
    assert row(db, mine.id).error_message == "heartbeat lost"


def test_a_published_compaction_cannot_fail_any_more(db: Database) -> None:
    mine, txn = at_work(db)
    publish(db, mine, txn)
    with pytest.raises(Fenced):
        fail(db, mine, message="too late", txn_id=txn)
    assert transaction_state(db, txn) is TxnState.COMMITTED
