from __future__ import annotations

import tracemalloc

import pytest
from sqlalchemy import insert

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import (
    CompactionFilter,
    Ended,
    HistoryRetention,
    expired,
    purge_history,
    recent_outcomes,
    record_not_initiated,
    show_compactions,
)
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_COMPACTIONS

ORDERS = TableName(database="shop", table="orders")
BILLS = TableName(database="shop", table="bills")
DAY = 24 * 60 * 60 * 1000


def ended(
    db: Database,
    states: str,
    *,
    table: TableName = ORDERS,
    partition: str | None = None,
    kind: str = "a",
    start: int = 1,
    first_id: int = 1,
) -> None:
    """History rows of one object in the order they ended, one a letter."""
    with db.write() as conn:
        for number, state in enumerate(states, first_id):
            conn.execute(
                insert(COMPLETED_COMPACTIONS).values(
                    CC_ID=number,
                    CC_DATABASE=table.database,
                    CC_TABLE=table.table,
                    CC_PARTITION=partition,
                    CC_STATE=state,
                    CC_TYPE=kind,
                    CC_START=start,
                    CC_END=start + number,
                    CC_ENQUEUE_TIME=start,
                )
            )


def queued(db: Database, compaction_id: int, state: str, **more: object) -> None:
    """A queue row; more: columns without their prefix."""
    values = {"ID": compaction_id, "DATABASE": "shop", "TABLE": "bills", "STATE": state, "TYPE": "i"} | more
    with db.write() as conn:
        conn.execute(insert(COMPACTION_QUEUE).values({f"CQ_{name}": value for name, value in values.items()}))


def states(db: Database) -> str:
    """The states left in the history, oldest first."""
    return "".join(row.state for row in sorted(show_compactions(db), key=lambda row: row.id))


def now(db: Database) -> int:
    with db.read() as conn:
        return db.now(conn)


def test_what_waits_or_runs_is_listed_first_and_the_rest_newest_first(db: Database) -> None:
    queued(db, 1, "i", ENQUEUE_TIME=500)
    queued(db, 2, "w", ENQUEUE_TIME=400, START=9000)
    queued(db, 3, "r", ENQUEUE_TIME=10, START=20, COMMIT_TIME=700)
    ended(db, "s", first_id=4, start=600)
    ended(db, "f", first_id=5, start=800)
    queued(db, 6, "i", ENQUEUE_TIME=450)
    assert [row.id for row in show_compactions(db)] == [2, 6, 1, 5, 3, 4]
    assert [row.id for row in show_compactions(db, limit=2)] == [2, 6]


def test_rows_hive_itself_moved_are_listed_by_the_same_times(db: Database) -> None:
    # Hive writes 0 where it means NULL; CC_COMMIT_TIME 0 is from a trace of a refused compaction
    ended(db, "cs", start=100)
    with db.write() as conn:
        conn.execute(COMPLETED_COMPACTIONS.update().where(COMPLETED_COMPACTIONS.c.CC_ID == 1).values(CC_COMMIT_TIME=0))
    assert [row.id for row in show_compactions(db)] == [2, 1]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (CompactionFilter(), {1, 2, 3, 4}),
        (CompactionFilter(id=3), {3}),
        (CompactionFilter(database="shop"), {1, 2, 3, 4}),
        (CompactionFilter(database="nowhere"), set()),
        (CompactionFilter(table="bills"), {1, 2}),
        (CompactionFilter(partition="ds=1"), {2}),
        (CompactionFilter(state=CompactionState.SUCCEEDED), {3}),
        (CompactionFilter(state=CompactionState.INITIATED), {1, 2}),
        (CompactionFilter(type=CompactionType.MAJOR), {3, 4}),
        (CompactionFilter(type=CompactionType.MINOR, partition="ds=1"), {2}),
        (CompactionFilter(pool="etl"), {2}),
        (CompactionFilter(pool="default"), {1, 3, 4}),
    ],
)
def test_the_listing_can_be_filtered(db: Database, wanted: CompactionFilter, ids: set[int]) -> None:
    queued(db, 1, "i")
    queued(db, 2, "i", PARTITION="ds=1", POOL_NAME="etl")
    ended(db, "sf", first_id=3)
    assert {row.id for row in show_compactions(db, filters=wanted)} == ids


def test_the_breaker_sees_only_what_succeeded_or_failed_newest_first(db: Database) -> None:
    ended(db, "fsxcaf")
    ended(db, "ff", partition="ds=1", first_id=10)
    ended(db, "s", table=BILLS, first_id=20)
    assert [(row.id, row.state) for row in recent_outcomes(db, ORDERS, None, 2)] == [(6, "f"), (2, "s")]
    assert [row.id for row in recent_outcomes(db, ORDERS, None, 99)] == [6, 2, 1]
    assert [row.id for row in recent_outcomes(db, ORDERS, "ds=1", 99)] == [11, 10]


def test_a_request_that_could_not_be_made_leaves_a_row_with_its_reason(db: Database) -> None:
    first = record_not_initiated(db, ORDERS, "ds=1", CompactionType.MAJOR, "table is gone", initiator_id="vm-1")
    assert record_not_initiated(db, ORDERS, None, CompactionType.MINOR, "again") == first + 1
    (row,) = show_compactions(db, filters=CompactionFilter(id=first))
    assert (row.state, row.type, row.error_message) == ("a", "a", "table is gone")
    assert (row.partition, row.initiator_id) == ("ds=1", "vm-1")
    assert row.start == row.end == row.enqueue_time


@pytest.mark.parametrize(
    ("history", "left"),
    [
        ("aaaa", "aa"),
        ("ffffff", "fff"),
        ("ssssss", "sss"),
        ("cccccc", "ccc"),
        ("xxxxxx", "xxx"),
        ("sssfffaaasffss", "faasffss"),
        ("xaxaxaxfscsf", "xaxaxfscsf"),
    ],
)
def test_of_each_state_the_newest_rows_are_kept(db: Database, history: str, left: str) -> None:
    ended(db, history, start=now(db))
    assert purge_history(db, HistoryRetention()) == len(history) - len(left)
    assert states(db) == left
    assert purge_history(db, HistoryRetention()) == 0


def test_every_object_has_its_own_retention(db: Database) -> None:
    ended(db, "aa", start=now(db))
    ended(db, "aa", partition="ds=1", start=now(db), first_id=10)
    ended(db, "aa", table=BILLS, start=now(db), first_id=20)
    assert purge_history(db, HistoryRetention()) == 0


def test_partitions_that_differ_in_case_alone_have_their_own_retention(db: Database) -> None:
    for number in range(4):
        ended(db, "a", partition="ds=a", start=now(db), first_id=2 * number + 1)
        ended(db, "a", partition="ds=A", start=now(db), first_id=2 * number + 2)
    assert purge_history(db, HistoryRetention()) == 4
    assert sorted(row.id for row in show_compactions(db)) == [5, 6, 7, 8]


def test_the_failures_the_breaker_counts_are_kept_whatever_is_configured(db: Database) -> None:
    ended(db, "ffffff", start=now(db))
    purge_history(db, HistoryRetention(failed=1, breaker_threshold=4))
    assert states(db) == "ffff"


@pytest.mark.parametrize(
    ("older", "newer", "left"),
    [
        (("f", "i"), ("s", "a"), "s"),
        (("f", "a"), ("s", "a"), "s"),
        (("f", "i"), ("s", "i"), "s"),
        (("f", "a"), ("s", "i"), "fs"),
        (("c", "a"), ("s", "r"), "cs"),
        (("a", "i"), ("s", "a"), "s"),
        (("c", "i"), ("s", "a"), "s"),
        (("x", "i"), ("s", "a"), "s"),
        (("s", "i"), ("s", "a"), "ss"),
        (("f", "i"), ("f", "a"), "ff"),
    ],
)
def test_an_old_row_goes_when_a_newer_success_covers_it(
    db: Database, older: tuple[str, str], newer: tuple[str, str], left: str
) -> None:
    long_ago = now(db) - 8 * DAY
    ended(db, older[0], kind=older[1], start=long_ago)
    ended(db, newer[0], kind=newer[1], start=long_ago, first_id=2)
    purge_history(db, HistoryRetention())
    assert states(db) == left


def test_a_covered_row_stays_while_it_is_young(db: Database) -> None:
    ended(db, "fs", start=now(db) - 6 * DAY)
    assert purge_history(db, HistoryRetention()) == 0


def test_a_long_history_is_purged_at_once(db: Database) -> None:
    ended(db, "s" * 6700, start=now(db))
    assert purge_history(db, HistoryRetention()) == 6697
    assert purge_history(db, HistoryRetention()) == 0


def test_to_find_what_is_expired_keeps_no_row_of_the_history() -> None:
    """What is remembered belongs to one object."""
    rows = (
        Ended(
            object=("shop", "orders", f"ds={number // 4}"),
            id=number,
            state=CompactionState.SUCCEEDED,
            type=CompactionType.MAJOR,
            start=0,
        )
        for number in range(200_000)
    )
    tracemalloc.start()
    try:
        count = sum(1 for _ in expired(rows, HistoryRetention(succeeded=3), now=0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50_000
    assert peak < 1_000_000
