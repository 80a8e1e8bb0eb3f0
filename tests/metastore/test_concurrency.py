"""Two programs at the same rows at the same moment, on real databases.

The first is stopped in the middle of its database transaction, at a statement that the test names; the second runs
until it is done or, where the first holds what it needs, until the first is let go. What is tested is the outcome:
without the lock in question the second would go through, and the outcome would be another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from compactor.errors import Deadlock, MetastoreError, NoSuchLock, TransactionAborted
from compactor.metastore.aborting import abort_compactions
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.deadlocks import EndedDeadlock, end_deadlocks
from compactor.metastore.holders import oldest_unfinished_at_or_below
from compactor.metastore.housekeeping import clean_write_id_map
from compactor.metastore.intents import add_dynamic_partitions
from compactor.metastore.lock_waits import Patience, wait_for
from compactor.metastore.locks import (
    LockComponent,
    LockRequest,
    LockState,
    LockType,
    acquire,
    check,
    enqueue,
    show_locks,
)
from compactor.metastore.open_rules import OpenRules
from compactor.metastore.queue import claim, publish, record_snapshot, request_compaction
from compactor.metastore.schema import COMPACTION_QUEUE, MIN_HISTORY_LEVEL, TXN_COMPONENTS, TXNS
from compactor.metastore.snapshots import open_reader, valid_txn_list
from compactor.metastore.time_outs import time_out_transactions
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    commit_transaction,
    heartbeat,
    open_transactions,
    transaction_state,
)
from compactor.metastore.writeids import allocate_write_ids, seed_write_id, table_write_ids
from tests.servers import SERVERS

pytestmark = pytest.mark.slow

T = TableName(database="d", table="t")
PATIENCE_S = 30.0
WHILE_STOPPED_S = 0.5
"""How long the second program gets while the first is stopped; too short makes no test fail, but proves less."""

R = TypeVar("R")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def other(database_url: str, db: Database) -> Iterator[Database]:
    """Another program's connections to the same database."""
    second = Database.connect(database_url)
    yield second
    second.dispose()


class Stop:
    """A program that stands still at a statement until it is let go."""

    def __init__(self) -> None:
        self._here = threading.Event()
        self._go = threading.Event()

    def arrive(self) -> None:
        if not self._here.is_set():
            self._here.set()
            assert self._go.wait(PATIENCE_S)

    def wait_until_stopped(self) -> None:
        assert self._here.wait(PATIENCE_S), "the statement was never reached"

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def stopped_before(db: Database, statement: str) -> Iterator[Stop]:
    """Whoever uses `db` stops before the first statement that begins like this, quotes aside; or before 'COMMIT'."""
    stop = Stop()

    def before_statement(_conn: Any, _cursor: Any, text: str, *_rest: Any) -> None:
        if text.replace('"', "").replace("`", "").startswith(statement):
            stop.arrive()

    def before_commit(_conn: Any) -> None:
        stop.arrive()

    name, hook = ("commit", before_commit) if statement == "COMMIT" else ("before_cursor_execute", before_statement)
    event.listen(db.engine, name, hook)
    try:
        yield stop
    finally:
        stop.let_go()
        event.remove(db.engine, name, hook)


def meanwhile(
    pool: ThreadPoolExecutor, first: Callable[[], Any], stop: Stop, second: Callable[[], R]
) -> tuple[Future[Any], Future[R]]:
    """Run the second while the first is stopped, then both to their end."""
    one = pool.submit(first)
    stop.wait_until_stopped()
    two = pool.submit(second)
    wait([two], timeout=WHILE_STOPPED_S)
    stop.let_go()
    wait([one, two], timeout=PATIENCE_S)
    assert one.done()
    assert two.done()
    return one, two


def begin(db: Database, kind: TxnType = TxnType.DEFAULT) -> int:
    """One that is stopped while it opens takes longer than an opening may, and would begin anew."""
    rules = OpenRules(open_timeout_ms=int(2 * PATIENCE_S * 1000))
    return open_transactions(db, kind=kind, user="u", host="h", rules=rules)[0]


def wanted(txn_id: int, table: str = "t", kind: LockType = LockType.EXCLUSIVE, **more: Any) -> LockRequest:
    component = LockComponent(database="d", table=table, type=kind, **more)
    return LockRequest(txn_id=txn_id, components=[component], user="u", host="h")


def ask(db: Database) -> int:
    wish = CompactionRequest(table=T, type=CompactionType.MAJOR, initiator_id="h-manual", initiator_version="1")
    return request_compaction(db, wish).id


def test_two_writers_that_begin_a_table_at_once_get_different_write_ids(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    one, two = begin(db), begin(db)
    with stopped_before(db, "INSERT INTO NEXT_WRITE_ID") as stop:
        first, second = meanwhile(
            pool, lambda: allocate_write_ids(db, [one], T), stop, lambda: allocate_write_ids(other, [two], T)
        )
    assert sorted((first.result() | second.result()).values()) == [1, 2]


def test_a_table_is_converted_once_whoever_writes_to_it_at_once(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    with stopped_before(db, "INSERT INTO NEXT_WRITE_ID") as stop:
        first, second = meanwhile(
            pool, lambda: seed_write_id(db, T), stop, lambda: allocate_write_ids(other, [txn_id], T)
        )
    given = second.result()[txn_id]
    assert given in {1, 10_000_001}
    assert (first.exception() is None) is (given == 10_000_001)


def test_who_is_just_opening_counts_as_open(db: Database, other: Database, pool: ThreadPoolExecutor) -> None:
    begin(db)
    with stopped_before(db, "INSERT INTO MIN_HISTORY_LEVEL") as stop:
        opening = pool.submit(begin, db)
        stop.wait_until_stopped()
        later = pool.submit(begin, other)
        wait([later], timeout=WHILE_STOPPED_S)
        seen = valid_txn_list(other)
        stop.let_go()
        opened = opening.result(PATIENCE_S)
        later.result(PATIENCE_S)
    assert not seen.is_valid(opened)
    commit_transaction(db, opened)
    assert not seen.is_valid(opened)


def test_the_history_level_of_a_transaction_knows_who_was_just_opening(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    with stopped_before(db, "INSERT INTO MIN_HISTORY_LEVEL") as stop:
        first, second = meanwhile(pool, lambda: begin(db), stop, lambda: begin(other))
    with db.read() as conn:
        levels = dict(conn.execute(sa.select(MIN_HISTORY_LEVEL)).all())
    assert levels == {first.result(): 1, second.result(): 1}


def test_a_publication_waits_for_a_reader_that_has_its_snapshot_and_no_row_yet(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    ask(db)
    claimed = claim(db, worker_id="h-1.00000000", worker_version="1")
    assert claimed is not None
    txn_id = begin(db, TxnType.COMPACTION)
    record_snapshot(db, claimed, txn_id=txn_id, highest_write_id=1)
    with stopped_before(other, "INSERT INTO MIN_HISTORY_WRITE_ID") as stop:
        reading, published = meanwhile(
            pool, lambda: open_reader(other, [T], user="u", host="h"), stop, lambda: publish(db, claimed, txn_id)
        )
    published.result()
    with db.read() as conn:
        next_txn_id = conn.execute(sa.select(COMPACTION_QUEUE.c.CQ_NEXT_TXN_ID)).scalar_one()
    blocker = oldest_unfinished_at_or_below(db, next_txn_id, T)
    sees_the_new_files = reading.result().txns.is_valid(txn_id)
    assert sees_the_new_files or (blocker is not None and blocker.txn_id == reading.result().txn_id)


def test_an_abort_waits_for_a_lock_that_is_being_taken_and_removes_it(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    with stopped_before(db, "INSERT INTO HIVE_LOCKS") as stop:
        taken, aborted = meanwhile(
            pool, lambda: enqueue(db, wanted(txn_id)), stop, lambda: abort_transactions(other, [txn_id])
        )
    taken.result()
    assert aborted.result().aborted == (txn_id,)
    assert show_locks(db) == []


def test_a_lock_is_never_acquired_by_a_transaction_that_is_being_aborted(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    lock_id = enqueue(db, wanted(txn_id))
    with stopped_before(other, "COMMIT") as stop:
        _, checked = meanwhile(
            pool, lambda: abort_transactions(other, [txn_id]), stop, lambda: check(db, lock_id, txn_id=txn_id)
        )
    assert isinstance(checked.exception(), TransactionAborted | NoSuchLock)
    assert show_locks(db) == []


def test_two_requests_that_come_at_once_stand_in_line_one_behind_the_other(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    one, two = begin(db), begin(db)
    with stopped_before(db, "INSERT INTO HIVE_LOCKS") as stop:
        first, second = meanwhile(pool, lambda: acquire(db, wanted(one)), stop, lambda: acquire(other, wanted(two)))
    by_id = sorted([first.result(), second.result()], key=lambda response: response.lock_id)
    assert [response.lock_id for response in by_id] == [1, 2]
    assert [check(db, i).state for i in (1, 2)] == [LockState.ACQUIRED, LockState.WAITING]


def test_exclusive_locks_never_overlap_however_many_want_one(database_url: str, db: Database) -> None:
    inside = threading.Semaphore(1)
    start = threading.Barrier(4)

    def work() -> None:
        own = Database.connect(database_url)
        start.wait(PATIENCE_S)
        for _ in range(3):
            txn_id = begin(own)
            response = acquire(own, wanted(txn_id))
            wait_for(own, response.lock_id, txn_id=txn_id, sleep=lambda _: None, patience=Patience(retries=100_000))
            assert inside.acquire(blocking=False), "two transactions hold the same lock"
            inside.release()
            commit_transaction(own, txn_id)
        own.dispose()

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result(PATIENCE_S * 4)
    assert show_locks(db) == []


def test_a_heartbeat_that_comes_in_time_saves_its_transaction(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == txn_id).values(TXN_LAST_HEARTBEAT=1))
    with stopped_before(db, "COMMIT") as stop:
        beat, timed_out = meanwhile(
            pool, lambda: heartbeat(db, txn_id), stop, lambda: time_out_transactions(other, timeout_ms=60_000)
        )
    beat.result()
    assert timed_out.result() == []
    assert transaction_state(db, txn_id) is TxnState.OPEN


def test_a_transaction_is_committed_or_aborted_and_never_half_of_each(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    allocate_write_ids(db, [txn_id], T)
    acquire(db, wanted(txn_id, kind=LockType.SHARED_WRITE, operation=Operation.UPDATE))
    with stopped_before(db, "INSERT INTO WRITE_SET") as stop:
        committed, aborted = meanwhile(
            pool, lambda: commit_transaction(db, txn_id), stop, lambda: abort_transactions(other, [txn_id])
        )
    committed.result()
    assert aborted.result().committed == (txn_id,)
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(TXN_COMPONENTS)) == 0


# SQLite's writers always wait for each other.
@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.UPDATE])
def test_only_changes_wait_for_those_that_open(
    db: Database, other: Database, pool: ThreadPoolExecutor, operation: Operation
) -> None:
    txn_id = begin(other)
    allocate_write_ids(other, [txn_id], T)
    acquire(other, wanted(txn_id, kind=LockType.SHARED_WRITE, operation=operation))
    with stopped_before(db, "INSERT INTO MIN_HISTORY_LEVEL") as stop:
        opening = pool.submit(begin, db)
        stop.wait_until_stopped()
        committing = pool.submit(commit_transaction, other, txn_id)
        if operation is Operation.INSERT:
            committing.result(PATIENCE_S)
        else:
            assert wait([committing], timeout=WHILE_STOPPED_S).not_done
        stop.let_go()
        opening.result(PATIENCE_S)
        committing.result(PATIENCE_S)


def test_dynamic_partitions_are_known_before_their_transaction_is_aborted(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    txn_id = begin(db)
    write_id = allocate_write_ids(db, [txn_id], T)[txn_id]
    acquire(db, wanted(txn_id, kind=LockType.SHARED_READ, operation=Operation.INSERT, is_dynamic_partition=True))
    with stopped_before(other, "COMMIT") as stop:
        _, added = meanwhile(
            pool,
            lambda: abort_transactions(other, [txn_id]),
            stop,
            lambda: add_dynamic_partitions(db, txn_id, write_id, T, ["p=x"], Operation.INSERT),
        )
    # it waited for the abort and says so, before a single file is written
    assert isinstance(added.exception(), TransactionAborted)


def test_the_write_id_map_keeps_the_writes_of_one_that_was_opening_when_it_was_cleaned(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    with stopped_before(db, "INSERT INTO MIN_HISTORY_LEVEL") as opening_stop:
        opening = pool.submit(begin, db)
        opening_stop.wait_until_stopped()
        newer = pool.submit(_insert_as_hive_does, other)
        wait([newer], timeout=WHILE_STOPPED_S)
        with stopped_before(other, "DELETE FROM TXN_TO_WRITE_ID") as deleting_stop:
            cleaning = pool.submit(clean_write_id_map, other)
            wait([cleaning], timeout=WHILE_STOPPED_S)
            opening_stop.let_go()
            opened = opening.result(PATIENCE_S)
            deleting_stop.wait_until_stopped()
            writing = pool.submit(allocate_write_ids, db, [opened], T)
            wait([writing], timeout=WHILE_STOPPED_S)
            deleting_stop.let_go()
            cleaning.result(PATIENCE_S)
            writing.result(PATIENCE_S)
    newer.result(PATIENCE_S)
    assert [write.txn_id for write in table_write_ids(db, T)] == [opened]


def _insert_as_hive_does(db: Database) -> int:
    """Hive commits an insert without the transaction lock."""
    txn_id = begin(db)
    with db.write() as conn:
        conn.execute(MIN_HISTORY_LEVEL.delete().where(MIN_HISTORY_LEVEL.c.MHL_TXNID == txn_id))
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == txn_id).values(TXN_STATE=TxnState.COMMITTED))
    return txn_id


def test_of_a_circle_only_one_is_ended_however_many_find_it(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    one, two = begin(db), begin(db)
    acquire(db, wanted(one, "a"))
    acquire(db, wanted(two, "b"))
    last = [acquire(db, wanted(one, "b")), acquire(db, wanted(two, "a"))]
    assert {response.state for response in last} == {LockState.WAITING}
    with stopped_before(db, "UPDATE TXNS") as stop:
        first, second = meanwhile(pool, lambda: end_deadlocks(db), stop, lambda: end_deadlocks(other))
    assert first.result() + second.result() == [EndedDeadlock(victim=two, circle=(two, one))]
    with pytest.raises(Deadlock, match=f"{two} waits for {one} waits for {two}"):
        check(db, last[1].lock_id, txn_id=two)
    assert check(db, last[0].lock_id).state is LockState.ACQUIRED


def test_a_request_is_taken_by_a_worker_or_aborted_and_never_both(
    db: Database, other: Database, pool: ThreadPoolExecutor
) -> None:
    compaction_id = ask(db)
    with stopped_before(db, "INSERT INTO COMPLETED_COMPACTIONS") as stop:
        aborted, claimed = meanwhile(
            pool,
            lambda: abort_compactions(db, [compaction_id]),
            stop,
            lambda: claim(other, worker_id="h-1.00000000", worker_version="1"),
        )
    assert (claimed.result() is None) is (aborted.result()[0].status == "Success")


def test_many_that_do_everything_at_once_leave_nothing_behind(database_url: str, db: Database) -> None:
    start = threading.Barrier(4)
    failed: list[MetastoreError] = []

    def work(number: int) -> None:
        own = Database.connect(database_url)
        start.wait(PATIENCE_S)
        for turn in range(4):
            txn_id = begin(own)
            allocate_write_ids(own, [txn_id], T)
            acquire(own, wanted(txn_id, kind=LockType.SHARED_READ, operation=Operation.INSERT))
            heartbeat(own, txn_id)
            valid_txn_list(own, own_txn=txn_id)
            try:
                if (number + turn) % 3:
                    commit_transaction(own, txn_id)
                else:
                    abort_transactions(own, [txn_id])
                clean_write_id_map(own)
                end_deadlocks(own)
            except MetastoreError as error:
                failed.append(error)
        own.dispose()

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, n) for n in range(4)]:
            done.result(PATIENCE_S * 4)
    assert failed == []
    assert show_locks(db) == []
    assert {write.state for write in table_write_ids(db, T)} <= {None, TxnState.COMMITTED, TxnState.ABORTED}
