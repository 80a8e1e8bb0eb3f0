from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa

from compactor.errors import (
    DatabaseUnavailable,
    LockNotAcquired,
    NoSuchLock,
    NoSuchTransaction,
    TransactionAborted,
    UsageError,
)
from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.intents import add_dynamic_partitions
from compactor.metastore.lock_waits import Patience, wait_for
from compactor.metastore.locks import (
    LockComponent,
    LockFilter,
    LockRequest,
    LockResponse,
    LockState,
    LockType,
    acquire,
    check,
    enqueue,
    show_locks,
    unlock,
)
from compactor.metastore.schema import HIVE_LOCKS, TXN_COMPONENTS, TXNS
from compactor.metastore.time_outs import time_out_locks
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions
from compactor.metastore.writeids import allocate_write_ids
from compactor.settings import LockSettings

T = TableName(database="d", table="t")
R, W, X, E = LockType.SHARED_READ, LockType.SHARED_WRITE, LockType.EXCL_WRITE, LockType.EXCLUSIVE

PAIRS = list(itertools.product(LockType, LockType))

# rows: what is held; columns: what is asked for, in the order R W X E; '-' waits, '+' goes on
SAME_OBJECT = {R: "+++-", W: "++--", X: "+---", E: "----"}


def begin(db: Database) -> int:
    (txn_id,) = open_transactions(db, user="ann", host="h1")
    return txn_id


def component(kind: LockType, table: str | None = "t", partition: str | None = None, **more: object) -> LockComponent:
    return LockComponent(database="d", table=table, partition=partition, type=kind, **more)  # type: ignore[arg-type]


def ask(db: Database, *components: LockComponent, txn_id: int | None = None) -> LockResponse:
    own = begin(db) if txn_id is None else txn_id
    return acquire(db, LockRequest(txn_id=own, components=components, user="ann", host="h1", agent_info="q1"))


def goes_on(db: Database, held: LockComponent, asked: LockComponent) -> bool:
    first = ask(db, held)
    assert first.state is LockState.ACQUIRED
    response = ask(db, asked)
    assert (response.blocked_by is None) is (response.state is LockState.ACQUIRED)
    return response.state is LockState.ACQUIRED


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_two_locks_of_one_table(db: Database, held: LockType, asked: LockType) -> None:
    expected = SAME_OBJECT[held][[R, W, X, E].index(asked)] == "+"
    assert goes_on(db, component(held), component(asked)) is expected


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_a_partition_and_its_table_are_one_place(db: Database, held: LockType, asked: LockType) -> None:
    expected = SAME_OBJECT[held][[R, W, X, E].index(asked)] == "+"
    assert goes_on(db, component(held, partition="p=x"), component(asked)) is expected


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_a_table_and_its_partition_are_one_place(db: Database, held: LockType, asked: LockType) -> None:
    expected = SAME_OBJECT[held][[R, W, X, E].index(asked)] == "+"
    assert goes_on(db, component(held), component(asked, partition="p=x")) is expected


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_a_database_held_against_a_table(db: Database, held: LockType, asked: LockType) -> None:
    # who only reads the database does not stop a table from being dropped
    expected = SAME_OBJECT[held][[R, W, X, E].index(asked)] == "+" or (held, asked) == (R, E)
    assert goes_on(db, component(held, table=None), component(asked)) is expected


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_a_table_held_against_its_database(db: Database, held: LockType, asked: LockType) -> None:
    # a table that is being dropped does not stop anybody from reading the database
    expected = SAME_OBJECT[held][[R, W, X, E].index(asked)] == "+" or (held, asked) == (E, R)
    assert goes_on(db, component(held), component(asked, table=None)) is expected


@pytest.mark.parametrize(("held", "asked"), PAIRS)
def test_other_tables_and_other_partitions_never_wait(db: Database, held: LockType, asked: LockType) -> None:
    assert goes_on(db, component(held), component(asked, table="other"))
    assert goes_on(db, component(held, table="p", partition="p=x"), component(asked, table="p", partition="p=y"))


def test_other_databases_never_wait(db: Database) -> None:
    ask(db, component(E, table=None))
    elsewhere = LockComponent(database="other", table="t", type=E)
    assert ask(db, elsewhere).state is LockState.ACQUIRED


def test_locks_of_one_transaction_do_not_conflict(db: Database) -> None:
    txn_id = begin(db)
    ask(db, component(E), txn_id=txn_id)
    assert ask(db, component(E), txn_id=txn_id).state is LockState.ACQUIRED


def test_nobody_overtakes_a_waiting_lock(db: Database) -> None:
    reader = begin(db)
    ask(db, component(R), txn_id=reader)
    dropper = ask(db, component(E))
    late = ask(db, component(R))
    assert dropper.state is LockState.WAITING
    assert late.state is LockState.WAITING
    assert late.blocked_by is not None
    assert late.blocked_by.lock_id == dropper.lock_id
    commit_transaction(db, reader)
    assert check(db, late.lock_id).state is LockState.WAITING
    assert check(db, dropper.lock_id).state is LockState.ACQUIRED


def test_all_components_of_a_request_are_acquired_together(db: Database) -> None:
    holder = begin(db)
    ask(db, component(X, table="b"), txn_id=holder)
    both = ask(db, component(X, table="a"), component(X, table="b"))
    assert both.state is LockState.WAITING
    waiting = [lock for lock in show_locks(db) if lock.lock_id == both.lock_id]
    assert [lock.state for lock in waiting] == [LockState.WAITING, LockState.WAITING]
    assert [lock.blocked_by for lock in waiting] == [None, (both.lock_id - 1, 1)]
    abort_transactions(db, [holder])
    assert check(db, both.lock_id).state is LockState.ACQUIRED
    acquired = show_locks(db)
    assert [lock.state for lock in acquired] == [LockState.ACQUIRED, LockState.ACQUIRED]
    assert all(lock.blocked_by is None and lock.acquired_at is not None for lock in acquired)


def test_a_lock_shows_who_holds_what(db: Database) -> None:
    txn_id = begin(db)
    response = ask(db, component(W, partition="p=x"), txn_id=txn_id)
    (lock,) = show_locks(db)
    assert (lock.lock_id, lock.component, lock.txn_id) == (response.lock_id, 1, txn_id)
    assert (lock.database, lock.table, lock.partition) == ("d", "t", "p=x")
    assert (lock.type, lock.user, lock.host, lock.agent_info) == (W, "ann", "h1", "q1")
    assert lock.last_heartbeat == 0


def test_lock_ids_ascend(db: Database) -> None:
    assert [ask(db, component(R)).lock_id for _ in range(3)] == [1, 2, 3]


def test_checking_an_acquired_lock_again_changes_nothing(db: Database) -> None:
    response = ask(db, component(X))
    before = show_locks(db)
    assert check(db, response.lock_id).state is LockState.ACQUIRED
    assert show_locks(db) == before


def test_only_an_open_transaction_can_lock(db: Database) -> None:
    txn_id = begin(db)
    abort_transactions(db, [txn_id])
    with pytest.raises(TransactionAborted):
        ask(db, component(R), txn_id=txn_id)
    with pytest.raises(NoSuchTransaction):
        ask(db, component(R), txn_id=99)
    with pytest.raises(UsageError):
        ask(db, component(W, operation=Operation.UPDATE), txn_id=0)
    assert show_locks(db) == []


def test_an_ended_transaction_has_no_locks_left_to_check(db: Database) -> None:
    txn_id = begin(db)
    lock_id = ask(db, component(R), txn_id=txn_id).lock_id
    commit_transaction(db, txn_id)
    with pytest.raises(NoSuchLock):
        check(db, lock_id)


def components_of(db: Database) -> list[tuple[object, ...]]:
    ours = TXN_COMPONENTS.c
    with db.read() as conn:
        query = sa.select(ours.TC_TABLE, ours.TC_PARTITION, ours.TC_OPERATION_TYPE, ours.TC_WRITEID)
        return [tuple(row) for row in conn.execute(query.order_by(ours.TC_TABLE, ours.TC_PARTITION))]


def test_a_lock_for_writing_says_what_will_be_written(db: Database) -> None:
    txn_id = begin(db)
    allocate_write_ids(db, [txn_id], T)
    ask(
        db,
        component(R, operation=Operation.INSERT),
        component(X, table="u", operation=Operation.UPDATE),
        component(R, table="read", operation=Operation.SELECT),
        component(R, table=None),
        txn_id=txn_id,
    )
    assert components_of(db) == [("t", None, "i", 1), ("u", None, "u", None)]


def test_dynamic_partitions_are_one_component_until_they_are_known(db: Database) -> None:
    txn_id = begin(db)
    allocate_write_ids(db, [txn_id], T)
    dynamic = {"is_dynamic_partition": True}
    ask(
        db,
        component(R, partition="p=x", operation=Operation.INSERT, **dynamic),
        component(W, partition="p=y", operation=Operation.DELETE, **dynamic),
        txn_id=txn_id,
    )
    assert components_of(db) == [("t", None, "d", 1)]
    add_dynamic_partitions(db, txn_id, 1, T, ["p=x", "p=z"], Operation.DELETE)
    assert components_of(db) == [("t", "p=x", "d", 1), ("t", "p=z", "d", 1)]


def test_a_dynamic_write_that_reached_no_partition_leaves_no_component(db: Database) -> None:
    txn_id = begin(db)
    ask(db, component(R, operation=Operation.INSERT, is_dynamic_partition=True), txn_id=txn_id)
    add_dynamic_partitions(db, txn_id, 1, T, [], Operation.INSERT)
    assert components_of(db) == []


def test_partitions_are_added_only_to_an_open_transaction(db: Database) -> None:
    txn_id = begin(db)
    abort_transactions(db, [txn_id])
    with pytest.raises(TransactionAborted):
        add_dynamic_partitions(db, txn_id, 1, T, ["p=x"], Operation.INSERT)
    assert components_of(db) == []


def test_a_waiting_lock_can_be_withdrawn_and_a_held_one_goes_with_its_transaction(db: Database) -> None:
    held = ask(db, component(X))
    waiting = ask(db, component(X))
    unlock(db, waiting.lock_id)
    with pytest.raises(UsageError, match="goes when that ends"):
        unlock(db, held.lock_id)
    with pytest.raises(NoSuchLock):
        unlock(db, waiting.lock_id)
    assert [lock.lock_id for lock in show_locks(db)] == [held.lock_id]


def test_a_lock_without_transaction_is_released_by_hand(db: Database) -> None:
    lock_id = ask(db, component(R), txn_id=0).lock_id
    unlock(db, lock_id)
    assert show_locks(db) == []


def test_waiting_doubles_its_pauses_until_the_lock_is_free(db: Database) -> None:
    holder = begin(db)
    ask(db, component(X), txn_id=holder)
    waiting = ask(db, component(X))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            commit_transaction(db, holder)

    assert wait_for(db, waiting.lock_id, sleep=sleep).state is LockState.ACQUIRED
    assert pauses == [0.1, 0.2, 0.4, 0.8]


def test_waiting_in_vain_withdraws_the_request_and_names_who_is_in_the_way(db: Database) -> None:
    holder = begin(db)
    ask(db, component(X), txn_id=holder)
    waiting = ask(db, component(X))
    pauses: list[float] = []
    with pytest.raises(LockNotAcquired, match=f"transaction {holder} of ann@h1"):
        wait_for(db, waiting.lock_id, sleep=pauses.append, patience=Patience(retries=12))
    assert pauses[-1] == 60.0
    assert len(pauses) == 12
    assert {lock.txn_id for lock in show_locks(db)} == {holder}


def test_a_free_lock_is_not_waited_for(db: Database) -> None:
    lock_id = enqueue(db, LockRequest(txn_id=begin(db), components=[component(X)], user="ann", host="h1"))
    pauses: list[float] = []
    assert wait_for(db, lock_id, sleep=pauses.append).state is LockState.ACQUIRED
    assert pauses == []


def test_only_silent_locks_without_transaction_time_out(db: Database) -> None:
    silent = ask(db, component(R), txn_id=0).lock_id
    checked = ask(db, component(R), txn_id=0).lock_id
    in_transaction = ask(db, component(R)).lock_id
    with db.write() as conn:
        conn.execute(HIVE_LOCKS.update().values(HL_LAST_HEARTBEAT=1))
    check(db, checked)
    assert time_out_locks(db, timeout_ms=300_000) == [silent]
    assert [lock.lock_id for lock in show_locks(db)] == [checked, in_transaction]


def heartbeat_of(db: Database, txn_id: int) -> int:
    with db.read() as conn:
        return conn.execute(sa.select(TXNS.c.TXN_LAST_HEARTBEAT).where(TXNS.c.TXN_ID == txn_id)).scalar_one()


def test_who_waits_for_a_lock_keeps_its_transaction_alive(db: Database) -> None:
    ask(db, component(X))
    waiter = begin(db)
    lock_id = ask(db, component(X), txn_id=waiter).lock_id
    with db.write() as conn:
        conn.execute(TXNS.update().values(TXN_LAST_HEARTBEAT=1))
    assert check(db, lock_id).state is LockState.WAITING
    assert heartbeat_of(db, waiter) > 1


def test_a_check_says_why_the_request_is_gone(db: Database) -> None:
    aborted, committed = begin(db), begin(db)
    first = ask(db, component(R), txn_id=aborted).lock_id
    second = ask(db, component(R), txn_id=committed).lock_id
    abort_transactions(db, [aborted], reason="abort by query command")
    commit_transaction(db, committed)
    with pytest.raises(TransactionAborted, match="abort by query command"):
        check(db, first, txn_id=aborted)
    with pytest.raises(NoSuchTransaction, match="committed already"):
        check(db, second, txn_id=committed)


def test_components_are_numbered_by_their_names_whatever_order_they_come_in(db: Database) -> None:
    parts = [
        component(R, "b"),
        component(R, "a", "p=y"),
        component(R, None),
        component(R, "a", "p=x"),
        component(R, "a"),
    ]
    ask(db, *parts)
    ask(db, *reversed(parts))
    shown = [[(lock.table, lock.partition) for lock in show_locks(db) if lock.lock_id == lock_id] for lock_id in (1, 2)]
    assert shown[0] == shown[1] == [(None, None), ("a", None), ("a", "p=x"), ("a", "p=y"), ("b", None)]


def test_of_several_in_the_way_the_one_that_allows_the_least_is_named(db: Database) -> None:
    reader, overwriter = ask(db, component(R)), ask(db, component(E, partition="p=x"), txn_id=begin(db))
    assert overwriter.state is LockState.WAITING
    response = ask(db, component(E))
    assert response.blocked_by is not None
    assert response.blocked_by.lock_id == overwriter.lock_id
    asked = next(lock for lock in show_locks(db) if lock.lock_id == response.lock_id)
    assert asked.blocked_by == (overwriter.lock_id, 1)
    commit_transaction(db, response.blocked_by.txn_id)
    blocked_now = check(db, response.lock_id).blocked_by
    assert blocked_now is not None
    assert blocked_now.lock_id == reader.lock_id


def test_every_component_says_who_is_in_its_way_now(db: Database) -> None:
    first, second = begin(db), begin(db)
    ask(db, component(X, "a"), txn_id=first)
    ask(db, component(X, "b"), txn_id=second)
    waiting = ask(db, component(X, "a"), component(X, "b"), component(X, "c")).lock_id

    def blocked_by() -> list[tuple[int, int] | None]:
        return [lock.blocked_by for lock in show_locks(db) if lock.lock_id == waiting]

    assert blocked_by() == [(1, 1), (2, 1), None]
    commit_transaction(db, first)
    check(db, waiting)
    assert blocked_by() == [None, (2, 1), None]


def test_an_acquired_lock_is_blocked_by_nobody(db: Database) -> None:
    holder = begin(db)
    ask(db, component(X), txn_id=holder)
    waiting = ask(db, component(X))
    commit_transaction(db, holder)
    check(db, waiting.lock_id)
    (lock,) = show_locks(db)
    assert (lock.state, lock.blocked_by) == (LockState.ACQUIRED, None)
    assert lock.acquired_at is not None


def test_locks_are_shown_held_ones_first_and_the_weakest_of_them(db: Database) -> None:
    for kind, table in ((E, "a"), (R, "a"), (R, "b"), (X, "b"), (W, "c")):
        ask(db, component(kind, table))
    assert [(lock.state.name, lock.type) for lock in show_locks(db)] == [
        ("ACQUIRED", R),
        ("ACQUIRED", W),
        ("ACQUIRED", X),
        ("ACQUIRED", E),
        ("WAITING", R),
    ]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (LockFilter(), {1, 2, 3, 4}),
        (LockFilter(database="d"), {1, 2, 3}),
        (LockFilter(database="d", table="t"), {2, 3}),
        (LockFilter(database="d", table="t", partition="p=x"), {3}),
        (LockFilter(txn_id=2), {2}),
        (LockFilter(database="nowhere"), set()),
    ],
)
def test_locks_are_filtered_by_place_and_transaction(db: Database, filters: LockFilter, found: set[int]) -> None:
    ask(db, component(R, None))
    ask(db, component(R, "t"))
    ask(db, component(R, "t", "p=x"))
    ask(db, LockComponent(database="other", table="t", type=R))
    assert {lock.lock_id for lock in show_locks(db, filters)} == found


def test_pauses_and_attempts_follow_the_settings(db: Database) -> None:
    ask(db, component(X))
    waiting = ask(db, component(X))
    pauses: list[float] = []
    patience = Patience.of(LockSettings(retries=5, longest_pause_s=0.5))
    with pytest.raises(LockNotAcquired, match="6 attempts"):
        wait_for(db, waiting.lock_id, sleep=pauses.append, patience=patience)
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_no_pause_is_so_long_that_the_transaction_would_time_out() -> None:
    assert Patience.of(LockSettings(longest_pause_s=600), timeout_s=300).longest_pause_s == 150
    assert Patience.of(LockSettings(longest_pause_s=60), timeout_s=300).longest_pause_s == 60


def test_the_longest_wait_of_the_defaults_is_that_of_the_manual(db: Database) -> None:
    ask(db, component(X))
    waiting = ask(db, component(X))
    pauses: list[float] = []
    with pytest.raises(LockNotAcquired):
        wait_for(db, waiting.lock_id, sleep=pauses.append, patience=Patience.of(LockSettings()))
    # (100ms + 200ms + … + 51200ms + 60s + … + 60s), a hundred pauses, are 91m:42s:300ms
    assert sum(pauses) == pytest.approx(91 * 60 + 42.3)


def test_a_withdrawal_is_tried_again_when_the_database_fails(db: Database) -> None:
    ask(db, component(X))
    waiting = ask(db, component(X))
    failures = [DatabaseUnavailable("gone"), DatabaseUnavailable("gone")]

    def fail(_conn: object, _cursor: object, text: str, *_rest: object) -> None:
        if failures and text.replace('"', "").replace("`", "").startswith("DELETE FROM HIVE_LOCKS"):
            raise failures.pop()

    sa.event.listen(db.engine, "before_cursor_execute", fail)
    pauses: list[float] = []
    with pytest.raises(LockNotAcquired):
        wait_for(db, waiting.lock_id, sleep=pauses.append, patience=Patience(retries=0, unlock_retries=2))
    assert pauses == [0.1, 0.2]
    assert [lock.lock_id for lock in show_locks(db)] == [1]
    failures.extend([DatabaseUnavailable("gone")] * 2)
    waiting = ask(db, component(X))
    with pytest.raises(DatabaseUnavailable):
        wait_for(db, waiting.lock_id, sleep=pauses.append, patience=Patience(retries=0, unlock_retries=1))
