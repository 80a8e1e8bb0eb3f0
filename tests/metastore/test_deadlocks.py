from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import Deadlock, LockNotAcquired
from compactor.metastore.database import Database
from compactor.metastore.deadlocks import EndedDeadlock, end_deadlocks, find_circle, reaches_itself
from compactor.metastore.lock_waits import Patience, wait_for
from compactor.metastore.locks import LockComponent, LockRequest, LockState, LockType, acquire, check, show_locks
from compactor.metastore.schema import HIVE_LOCKS, TXNS
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    open_transactions,
    show_transactions,
    transaction_state,
)


def begin(db: Database, count: int) -> list[int]:
    return open_transactions(db, count=count, user="u", host="h")


def lock(db: Database, txn_id: int, *tables: str, kind: LockType = LockType.EXCLUSIVE) -> int:
    components = [LockComponent(database="d", table=table, type=kind) for table in tables]
    return acquire(db, LockRequest(txn_id=txn_id, components=components, user="u", host="h")).lock_id


def circle(db: Database, txn_ids: list[int]) -> list[int]:
    """Each holds a table and waits for the next one's; the waiting lock ids."""
    for txn_id in txn_ids:
        lock(db, txn_id, f"t{txn_id}")
    return [lock(db, one, f"t{following}") for one, following in zip(txn_ids, [*txn_ids[1:], txn_ids[0]], strict=True)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_youngest_of_a_circle_gives_way_and_the_others_go_on(db: Database, size: int) -> None:
    txn_ids = begin(db, size)
    waiting = circle(db, txn_ids)
    (ended,) = end_deadlocks(db)
    assert ended.victim == txn_ids[-1]
    assert set(ended.circle) == set(txn_ids)
    assert transaction_state(db, txn_ids[-1]) is TxnState.ABORTED
    # the one that waited for the victim goes on, and the rest after it
    assert check(db, waiting[-2]).state is LockState.ACQUIRED
    assert end_deadlocks(db) == []


def test_the_error_names_the_circle(db: Database) -> None:
    one, two = begin(db, 2)
    waiting = circle(db, [one, two])
    end_deadlocks(db)
    with pytest.raises(Deadlock, match=f"abort by deadlock: {two} waits for {one} waits for {two}"):
        check(db, waiting[1], txn_id=two)


def test_a_waiter_finds_the_circle_by_itself(db: Database) -> None:
    one, two = begin(db, 2)
    older, younger = circle(db, [one, two])
    pauses: list[float] = []
    with pytest.raises(Deadlock):
        wait_for(db, younger, txn_id=two, sleep=pauses.append)
    assert pauses == []
    assert wait_for(db, older, txn_id=one, sleep=pauses.append).state is LockState.ACQUIRED


def test_a_waiter_ends_the_other_one_and_goes_on(db: Database) -> None:
    one, two = begin(db, 2)
    older, _ = circle(db, [one, two])
    pauses: list[float] = []
    assert wait_for(db, older, txn_id=one, sleep=pauses.append).state is LockState.ACQUIRED
    assert len(pauses) == 1
    assert {held.txn_id for held in show_locks(db)} == {one}


def test_a_circle_is_found_though_the_blocked_by_columns_name_someone_else(db: Database) -> None:
    bystander, one, two = begin(db, 3)
    lock(db, bystander, "a", kind=LockType.SHARED_READ)
    lock(db, one, "a", kind=LockType.SHARED_READ)
    lock(db, two, "b")
    lock(db, two, "a")
    lock(db, one, "b")
    with db.write() as conn:
        held = next(h for h in show_locks(db) if h.txn_id == bystander)
        blocked = HIVE_LOCKS.update().where(HIVE_LOCKS.c.HL_TXNID == two, HIVE_LOCKS.c.HL_LOCK_STATE == "w")
        conn.execute(blocked.values(HL_BLOCKEDBY_EXT_ID=held.lock_id, HL_BLOCKEDBY_INT_ID=held.component))
    assert end_deadlocks(db) == [EndedDeadlock(victim=two, circle=(two, one))]


def test_a_line_without_a_circle_is_left_alone(db: Database) -> None:
    one, two, three = begin(db, 3)
    lock(db, one, "a")
    lock(db, two, "b")
    lock(db, two, "a")
    waiting = lock(db, three, "b", "a")
    assert end_deadlocks(db) == []
    with pytest.raises(LockNotAcquired):
        wait_for(db, waiting, txn_id=three, sleep=lambda _: None, patience=Patience(retries=2))
    assert {t.state for t in show_transactions(db)} == {TxnState.OPEN}


def test_two_circles_are_ended_at_once(db: Database) -> None:
    one, two, three, four = begin(db, 4)
    circle(db, [one, two])
    circle(db, [three, four])
    assert {deadlock.victim for deadlock in end_deadlocks(db)} == {two, four}


@pytest.mark.parametrize("kind", [TxnType.SOFT_DELETE, TxnType.REPL_CREATED])
def test_drops_and_replayed_transactions_are_never_chosen(db: Database, kind: TxnType) -> None:
    one, two = begin(db, 2)
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == two).values(TXN_TYPE=int(kind)))
    for txn_id in (one, two):
        with db.write() as conn:
            conn.execute(HIVE_LOCKS.insert().values(_row(txn_id, txn_id, "a", held=True)))
            conn.execute(HIVE_LOCKS.insert().values(_row(txn_id, txn_id + 10, "a", held=False)))
    ended = end_deadlocks(db)
    assert {deadlock.victim for deadlock in ended} <= {one}
    assert transaction_state(db, two) is TxnState.OPEN


def test_a_circle_of_protected_ones_is_left_to_the_time_out(db: Database) -> None:
    txn_ids = begin(db, 2)
    circle(db, txn_ids)
    with db.write() as conn:
        conn.execute(TXNS.update().values(TXN_TYPE=int(TxnType.SOFT_DELETE)))
    assert end_deadlocks(db) == []


def test_an_aborted_transaction_is_no_part_of_a_circle(db: Database) -> None:
    one, two = begin(db, 2)
    circle(db, [one, two])
    abort_transactions(db, [one])
    assert end_deadlocks(db) == []


def _row(txn_id: int, lock_id: int, table: str, *, held: bool) -> dict[str, object]:
    return {
        "HL_LOCK_EXT_ID": lock_id,
        "HL_LOCK_INT_ID": 1,
        "HL_TXNID": txn_id,
        "HL_DB": "d",
        "HL_TABLE": table,
        "HL_LOCK_STATE": "a" if held else "w",
        "HL_LOCK_TYPE": "e",
        "HL_LAST_HEARTBEAT": 0,
        "HL_USER": "u",
        "HL_HOST": "h",
    }


GRAPHS = st.dictionaries(st.integers(1, 6), st.frozensets(st.integers(1, 6), max_size=3), max_size=6)


@given(GRAPHS)
def test_a_circle_is_found_exactly_where_there_is_one(graph: dict[int, frozenset[int]]) -> None:
    """Against the transitive closure."""
    reach = {a: set(graph.get(a, ())) for a in range(1, 7)}
    for through, a, b in itertools.product(range(1, 7), repeat=3):
        if through in reach[a] and b in reach[through]:
            reach[a].add(b)
    in_circles = {a for a in reach if a in reach[a]}
    assert {a for a in range(1, 7) if reaches_itself(graph, a)} == in_circles
    found = find_circle(graph)
    assert (found is None) is (not in_circles)
    if found is not None:
        assert found[0] == max(in_circles)
        assert all(b in graph[a] for a, b in zip(found, [*found[1:], found[0]], strict=True))
