from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from compactor.metastore.candidates import (
    AbortedObject,
    AbortThresholds,
    Candidate,
    CandidateKey,
    aborted_objects,
    active_objects,
    candidates,
)
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import record_not_initiated
from compactor.metastore.queue import Refused, claim, fail, finish_without_output, request_compaction
from compactor.metastore.ready import mark_aborts_cleaned, retry_aborts
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_TXN_COMPONENTS, TXN_COMPONENTS, TXNS
from compactor.metastore.txns import TxnType, abort_transactions, open_transactions

ORDERS = TableName(database="shop", table="orders")
BILLS = TableName(database="shop", table="bills")
HOUR = 60 * 60 * 1000
NEVER_OLD = -1


def wrote(db: Database, table: TableName, *partitions: str | None, long_ago: bool = False) -> None:
    """Committed writes, as a commit leaves them for the initiator."""
    with db.write() as conn:
        for partition in partitions or (None,):
            conn.execute(
                COMPLETED_TXN_COMPONENTS.insert().values(
                    CTC_TXNID=1,
                    CTC_DATABASE=table.database,
                    CTC_TABLE=table.table,
                    CTC_PARTITION=partition,
                    CTC_TIMESTAMP=db.timestamp(conn),
                    CTC_WRITEID=1,
                    CTC_UPDATE_DELETE="N",
                )
            )
        if long_ago:
            conn.execute(update(COMPLETED_TXN_COMPONENTS).values(CTC_TIMESTAMP=db.timestamp(conn) - timedelta(days=1)))


def aborted(db: Database, table: TableName, partition: str | None = None, *, times: int = 1, ms_ago: int = 0) -> None:
    """Aborted writes that began ms_ago."""
    txns = open_transactions(db, count=times, user="u", host="vm")
    with db.write() as conn:
        for txn in txns:
            conn.execute(
                TXN_COMPONENTS.insert().values(
                    TC_TXNID=txn,
                    TC_DATABASE=table.database,
                    TC_TABLE=table.table,
                    TC_PARTITION=partition,
                    TC_OPERATION_TYPE="i",
                    TC_WRITEID=txn,
                )
            )
        started = update(TXNS).where(TXNS.c.TXN_ID.in_(txns))
        conn.execute(started.values(TXN_STARTED=TXNS.c.TXN_STARTED - ms_ago))
    abort_transactions(db, txns)


def test_every_written_object_is_a_candidate_once_in_the_order_of_names(db: Database) -> None:
    wrote(db, ORDERS, "ds=2", "ds=1", "ds=2", None)
    wrote(db, BILLS)
    assert candidates(db, limit=10) == [
        Candidate(table=BILLS, partition=None),
        Candidate(table=ORDERS, partition=None),
        Candidate(table=ORDERS, partition="ds=1"),
        Candidate(table=ORDERS, partition="ds=2"),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 100])
def test_pages_meet_every_candidate_exactly_once(db: Database, limit: int) -> None:
    for table in (ORDERS, BILLS):
        wrote(db, table, None, *(f"ds={day}/country=D E%2F" for day in range(6)))
    seen: list[Candidate] = []
    while page := candidates(db, limit=limit, after=seen[-1].key if seen else None):
        seen += page
    assert len(seen) == len(set(seen)) == 14
    assert seen == candidates(db, limit=100)


def test_a_page_goes_on_although_its_last_candidate_has_gone(db: Database) -> None:
    wrote(db, ORDERS, "ds=1", "ds=3")
    page = candidates(db, limit=9, after=CandidateKey("shop", "orders", "ds=2"))
    assert [found.partition for found in page] == ["ds=3"]


def test_only_what_was_written_since_the_last_check_is_looked_at_again(db: Database) -> None:
    wrote(db, ORDERS, long_ago=True)
    wrote(db, BILLS)
    with db.read() as conn:
        now = db.now(conn)
    assert candidates(db, limit=9, since_ms=now - HOUR) == [Candidate(table=BILLS, partition=None)]
    assert len(candidates(db, limit=9, since_ms=0)) == 2


def test_an_object_whose_last_attempt_failed_is_looked_at_again(db: Database) -> None:
    wrote(db, ORDERS, None, "a", "b", "c", long_ago=True)
    for partition in ("a", "b"):
        request_compaction(
            db,
            CompactionRequest(
                table=ORDERS,
                partition=partition,
                type=CompactionType.MAJOR,
                initiator_id="i",
                initiator_version="1",
            ),
        )
    failed, refused = (claim(db, worker_id="vm-1.a", worker_version="1") for _ in range(2))
    assert failed is not None
    assert refused is not None
    fail(db, failed, message="no", txn_id=None)
    finish_without_output(db, refused, None, outcome=Refused(reason="no"))
    record_not_initiated(db, ORDERS, "c", CompactionType.MINOR, "no")
    with db.read() as conn:
        now = db.now(conn)
    assert [found.partition for found in candidates(db, limit=9, since_ms=now)] == ["a", "c"]
    record_not_initiated(db, ORDERS, "b", CompactionType.MINOR, "no")
    assert [found.partition for found in candidates(db, limit=9, since_ms=now)] == ["a", "b", "c"]


def test_aborted_writes_are_no_candidates_unless_asked_for(db: Database) -> None:
    aborted(db, ORDERS, times=3)
    assert candidates(db, limit=9) == []
    over = AbortThresholds(count=2, older_than_ms=NEVER_OLD)
    assert candidates(db, limit=9, aborts=over) == [
        Candidate(table=ORDERS, partition=None, too_many_aborts=True, has_old_abort=False)
    ]
    exactly = AbortThresholds(count=3, older_than_ms=NEVER_OLD)
    assert candidates(db, limit=9, aborts=exactly) == []


def test_a_written_object_says_whether_it_has_too_many_or_old_aborts(db: Database) -> None:
    wrote(db, ORDERS, "many", "old", "none")
    aborted(db, ORDERS, "many", times=3)
    aborted(db, ORDERS, "old", ms_ago=2 * HOUR)
    found = candidates(db, limit=9, aborts=AbortThresholds(count=2, older_than_ms=HOUR))
    assert [(each.partition, each.too_many_aborts, each.has_old_abort) for each in found] == [
        ("many", True, False),
        ("none", False, False),
        ("old", False, True),
    ]


def test_aborted_objects_come_oldest_first_with_what_the_cleaner_has_to_know(db: Database) -> None:
    aborted(db, ORDERS, "ds=1", times=3)
    aborted(db, BILLS, ms_ago=2 * HOUR)
    aborted(db, ORDERS, "ds=2")
    writer = open_transactions(db, user="u", host="vm")[0]
    with db.write() as conn:
        conn.execute(
            TXN_COMPONENTS.insert().values(
                TC_TXNID=writer,
                TC_DATABASE="shop",
                TC_TABLE="orders",
                TC_PARTITION="ds=1",
                TC_OPERATION_TYPE="i",
                TC_WRITEID=99,
            )
        )
    found = aborted_objects(db, thresholds=AbortThresholds(count=2, older_than_ms=HOUR))
    assert found == [
        AbortedObject(
            table=BILLS,
            partition=None,
            count=1,
            oldest_started=found[0].oldest_started,
            too_many_aborts=False,
            has_old_abort=True,
            min_open_txn=None,
            retry_retention=0,
        ),
        AbortedObject(
            table=ORDERS,
            partition="ds=1",
            count=3,
            oldest_started=found[1].oldest_started,
            too_many_aborts=True,
            has_old_abort=False,
            min_open_txn=writer,
            retry_retention=0,
        ),
    ]


def test_aborted_compactions_are_not_counted_as_aborted_writes(db: Database) -> None:
    txn = open_transactions(db, kind=TxnType.COMPACTION, user="u", host="vm")[0]
    with db.write() as conn:
        conn.execute(
            TXN_COMPONENTS.insert().values(
                TC_TXNID=txn, TC_DATABASE="shop", TC_TABLE="orders", TC_OPERATION_TYPE="c", TC_WRITEID=1
            )
        )
    abort_transactions(db, [txn])
    everything = AbortThresholds(count=0, older_than_ms=NEVER_OLD)
    assert aborted_objects(db, thresholds=everything) == []
    assert candidates(db, limit=9, aborts=everything) == []


def test_an_object_whose_removal_failed_is_kept_back_until_its_retry(db: Database) -> None:
    thresholds = AbortThresholds(count=0, older_than_ms=NEVER_OLD)
    aborted(db, ORDERS, "ds=1")
    retry_aborts(db, ORDERS, "ds=1", retention_ms=HOUR, message="storage away")
    assert aborted_objects(db, thresholds=thresholds) == []
    with db.write() as conn:
        conn.execute(update(COMPACTION_QUEUE).values(CQ_COMMIT_TIME=COMPACTION_QUEUE.c.CQ_COMMIT_TIME - HOUR))
    (due,) = aborted_objects(db, thresholds=thresholds)
    assert due.retry_retention == HOUR
    retry_aborts(db, ORDERS, "ds=1", retention_ms=2 * HOUR, message="still away")
    assert aborted_objects(db, thresholds=thresholds) == []
    assert mark_aborts_cleaned(db, ORDERS, "ds=1", highest_write_id=99, uncompacted_aborts=False) == 1
    aborted(db, ORDERS, "ds=1")
    (fresh,) = aborted_objects(db, thresholds=thresholds)
    assert fresh.retry_retention == 0, "success starts the retries afresh"


def test_only_requested_and_running_compactions_are_active(db: Database) -> None:
    request = CompactionRequest(
        table=ORDERS, partition="a", type=CompactionType.MAJOR, initiator_id="i", initiator_version="1"
    )
    objects = [(ORDERS, "a"), (ORDERS, "b"), (ORDERS, None), (BILLS, "a"), (BILLS, None)]
    assert active_objects(db, objects) == frozenset()
    request_compaction(db, request)
    for state, active in [
        (CompactionState.INITIATED, True),
        (CompactionState.WORKING, True),
        (CompactionState.READY_FOR_CLEANING, False),
    ]:
        with db.write() as conn:
            conn.execute(update(COMPACTION_QUEUE).values(CQ_STATE=state))
        assert active_objects(db, objects) == (frozenset({(ORDERS, "a")}) if active else frozenset())
