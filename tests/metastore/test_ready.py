from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select, update

from compactor.errors import Fenced
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.metastore.queue import claim, publish, record_snapshot, request_compaction
from compactor.metastore.ready import (
    Cleaned,
    cleaner_retry,
    clear_cleaner_start,
    fail_ready,
    mark_aborts_cleaned,
    mark_cleaned,
    mark_cleaner_start,
    ready_to_clean,
    refuse_cleaning,
    retry_aborts,
)
from compactor.metastore.schema import (
    COMPACTION_QUEUE,
    COMPLETED_TXN_COMPONENTS,
    MIN_HISTORY_LEVEL,
    TXN_COMPONENTS,
)
from compactor.metastore.snapshots import open_reader
from compactor.metastore.txns import (
    TxnType,
    abort_transactions,
    commit_transaction,
    open_transactions,
)
from compactor.metastore.writeids import seed_write_id

ORDERS = TableName(database="shop", table="orders")
BILLS = TableName(database="shop", table="bills")
HOUR = 60 * 60 * 1000


def ended(db: Database, compaction: Compaction, *, forgettable: frozenset[int] | None = None) -> bool:
    """Whether it was us who ended the row."""
    return mark_cleaned(db, [Cleaned(compaction=compaction, forgettable=forgettable)]) == {compaction.id}


def published(db: Database, *, partition: str | None = None, table: TableName = ORDERS, highest: int = 7) -> Compaction:
    """A compaction that went the whole way to 'r'; highest: its highest write id."""
    request = CompactionRequest(
        table=table, partition=partition, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1"
    )
    assert request_compaction(db, request).accepted
    mine = claim(db, worker_id="vm-1.a", worker_version="1")
    assert mine is not None
    txn = opened(db, TxnType.COMPACTION)
    record_snapshot(db, mine, txn_id=txn, highest_write_id=highest)
    publish(db, mine, txn)
    return row(db, mine.id)


def opened(db: Database, kind: TxnType = TxnType.DEFAULT) -> int:
    return open_transactions(db, kind=kind, user="u", host="vm")[0]


def reading(db: Database, *tables: TableName) -> int:
    """A reader that declared what it reads."""
    for table in tables:
        seed_write_id(db, table, 1)
    return open_reader(db, tables, user="u", host="vm").txn_id


def row(db: Database, compaction_id: int) -> Compaction:
    return show_compactions(db, filters=CompactionFilter(id=compaction_id))[0]


def ids(db: Database, *, retention_ms: int = 0, limit: int = 1000) -> list[int]:
    return [compaction.id for compaction in ready_to_clean(db, retention_ms=retention_ms, limit=limit)]


def change(db: Database, compaction: Compaction, **columns: object) -> None:
    with db.write() as conn:
        conn.execute(
            update(COMPACTION_QUEUE)
            .where(COMPACTION_QUEUE.c.CQ_ID == compaction.id)
            .values({f"CQ_{name}": value for name, value in columns.items()})
        )


def component(
    db: Database, txn: int, write_id: int, *, partition: str | None = None, operation: str = "i", table: str = "orders"
) -> None:
    with db.write() as conn:
        conn.execute(
            insert(TXN_COMPONENTS).values(
                TC_TXNID=txn,
                TC_DATABASE="shop",
                TC_TABLE=table,
                TC_PARTITION=partition,
                TC_OPERATION_TYPE=operation,
                TC_WRITEID=write_id,
            )
        )


def aborted(
    db: Database, write_id: int, *, partition: str | None = None, operation: str = "i", table: str = "orders"
) -> int:
    """An aborted transaction that wrote; its id."""
    txn = opened(db)
    component(db, txn, write_id, partition=partition, operation=operation, table=table)
    abort_transactions(db, [txn])
    return txn


def known_aborts(db: Database) -> list[int]:
    with db.read() as conn:
        return list(conn.scalars(select(TXN_COMPONENTS.c.TC_WRITEID).order_by(TXN_COMPONENTS.c.TC_WRITEID)))


def completed(db: Database, write_id: int, *, partition: str | None = None, table: str = "orders") -> None:
    with db.write() as conn:
        conn.execute(
            insert(COMPLETED_TXN_COMPONENTS).values(
                CTC_TXNID=write_id,
                CTC_DATABASE="shop",
                CTC_TABLE=table,
                CTC_PARTITION=partition,
                CTC_WRITEID=write_id,
                CTC_UPDATE_DELETE="N",
            )
        )


def known_writes(db: Database) -> list[tuple[str, str | None, int]]:
    columns = COMPLETED_TXN_COMPONENTS.c
    with db.read() as conn:
        found = conn.execute(select(columns.CTC_TABLE, columns.CTC_PARTITION, columns.CTC_WRITEID)).all()
    return sorted((tuple(each) for each in found), key=str)


def test_a_publication_is_ready_when_nobody_reads(db: Database) -> None:
    compaction = published(db)
    assert ready_to_clean(db) == [compaction]


def test_requested_and_running_compactions_are_not_ready(db: Database) -> None:
    compaction = published(db)
    for state in (CompactionState.INITIATED, CompactionState.WORKING):
        change(db, compaction, STATE=state)
        assert ids(db) == []


def test_a_reader_that_opened_before_the_publication_holds_it_back(db: Database) -> None:
    reader = opened(db, TxnType.READ_ONLY)
    compaction = published(db)
    assert ids(db) == []
    commit_transaction(db, reader)
    assert ids(db) == [compaction.id]


def test_the_reader_whose_id_equals_next_txn_id_counts(db: Database) -> None:
    compaction = published(db)
    reader = opened(db, TxnType.READ_ONLY)
    assert compaction.next_txn_id == reader - 1
    assert ids(db) == [compaction.id], "it opened after the publication"
    change(db, compaction, NEXT_TXN_ID=reader)
    assert ids(db) == [], "Hive's NEXT <= watermark would delete under its feet"
    commit_transaction(db, reader)
    assert ids(db) == [compaction.id]


def test_a_declared_reader_of_another_table_holds_nothing_back(db: Database) -> None:
    reading(db, BILLS)
    compaction = published(db)
    assert ids(db) == [compaction.id]


def test_a_declared_reader_of_the_table_holds_it_back(db: Database) -> None:
    reader = reading(db, BILLS, ORDERS)
    compaction = published(db)
    assert ids(db) == []
    commit_transaction(db, reader)
    assert ids(db) == [compaction.id]


def test_a_reader_that_saw_an_old_transaction_open_holds_it_back_by_min_history_level(db: Database) -> None:
    old = opened(db)
    compaction = published(db)
    young = opened(db)
    with db.read() as conn:
        seen = conn.scalar(select(MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID).where(MIN_HISTORY_LEVEL.c.MHL_TXNID == young))
    assert seen == old
    commit_transaction(db, old)
    assert ids(db) == []
    commit_transaction(db, young)
    assert ids(db) == [compaction.id]


def test_of_an_object_only_the_oldest_publication_comes_up(db: Database) -> None:
    first = published(db, highest=7)
    second = published(db, highest=9)
    elsewhere = published(db, partition="ds=1", highest=9)
    assert ids(db) == [first.id, elsewhere.id]
    assert ended(db, first)
    assert ids(db) == [second.id, elsewhere.id]


def test_a_held_back_publication_holds_back_the_younger_ones_of_its_object(db: Database) -> None:
    commit_transaction(db, opened(db))
    reader = opened(db, TxnType.READ_ONLY)
    first = published(db, highest=7)
    second = published(db, highest=9)
    change(db, second, NEXT_TXN_ID=reader - 1)
    assert ids(db) == []
    commit_transaction(db, reader)
    assert ids(db) == [first.id]


def test_rows_come_by_id_and_the_limit_counts_only_ready_ones(db: Database) -> None:
    commit_transaction(db, opened(db))
    reader = opened(db, TxnType.READ_ONLY)
    held = published(db, partition="ds=0")
    free = [published(db, partition=f"ds={day}") for day in range(1, 4)]
    for compaction in free:
        change(db, compaction, NEXT_TXN_ID=reader - 1)
    assert ids(db, limit=2) == [free[0].id, free[1].id]
    commit_transaction(db, reader)
    assert ids(db, limit=2) == [held.id, free[0].id]


def test_old_files_stay_for_the_retention(db: Database) -> None:
    compaction = published(db)
    assert ids(db, retention_ms=HOUR) == []
    change(db, compaction, COMMIT_TIME=COMPACTION_QUEUE.c.CQ_COMMIT_TIME - HOUR)
    assert ids(db, retention_ms=HOUR) == [compaction.id]


def test_a_failed_attempt_waits_for_its_retry_however_old_the_publication_is(db: Database) -> None:
    compaction = published(db)
    change(db, compaction, COMMIT_TIME=1)
    mark_cleaner_start(db, [compaction])
    cleaner_retry(db, compaction, retention_ms=HOUR, message="storage away")
    seen = row(db, compaction.id)
    assert (seen.retry_retention, seen.error_message, seen.state) == (HOUR, "storage away", "r")
    assert ids(db) == []
    change(db, compaction, CLEANER_START=COMPACTION_QUEUE.c.CQ_CLEANER_START - HOUR)
    assert ids(db) == [compaction.id]


def test_a_row_hive_published_and_lost_comes_up_to_be_failed(db: Database) -> None:
    compaction = published(db)
    lost = opened(db, TxnType.COMPACTION)
    # HIVE-29572: 'r' is written, the commit never came
    change(db, compaction, TXN_ID=lost, NEXT_TXN_ID=None, COMMIT_TIME=None)
    assert ids(db) == [], "the commit may still come"
    opened(db, TxnType.READ_ONLY)
    abort_transactions(db, [lost])
    (found,) = ready_to_clean(db)
    fail_ready(db, found, "compaction transaction was aborted")
    seen = row(db, compaction.id)
    assert (seen.state, seen.error_message) == (CompactionState.FAILED, "compaction transaction was aborted")
    assert ids(db) == []


def test_a_row_without_next_txn_id_waits_for_everybody(db: Database) -> None:
    compaction = published(db)
    change(db, compaction, NEXT_TXN_ID=None, COMMIT_TIME=None)
    reader = opened(db, TxnType.READ_ONLY)
    assert ids(db) == []
    commit_transaction(db, reader)
    assert ids(db) == [compaction.id]


def test_notes_of_the_abort_cleaner_are_no_publications(db: Database) -> None:
    retry_aborts(db, ORDERS, None, retention_ms=0, message="storage away")
    assert ids(db) == []


def test_the_start_of_cleaning_is_shown_and_taken_back(db: Database) -> None:
    compaction = published(db)
    mark_cleaner_start(db, [compaction])
    assert row(db, compaction.id).cleaner_start is not None
    clear_cleaner_start(db, compaction)
    assert row(db, compaction.id).cleaner_start is None
    assert ids(db) == [compaction.id], "what was left over may go in the next cycle"


def test_a_cleaned_row_ends_in_the_history_with_all_it_knew(db: Database) -> None:
    compaction = published(db, partition="ds=1")
    mark_cleaner_start(db, [compaction])
    assert ended(db, compaction)
    seen = row(db, compaction.id)
    assert seen.state is CompactionState.SUCCEEDED
    assert seen.end is not None
    kept = ("id", "table", "partition", "type", "highest_write_id", "txn_id", "next_txn_id", "commit_time", "start")
    assert [getattr(seen, name) for name in kept] == [getattr(compaction, name) for name in kept]
    assert len(show_compactions(db)) == 1


def test_what_was_compacted_is_no_candidate_any_more_and_what_came_later_is(db: Database) -> None:
    for write_id in (6, 7, 8):
        for partition in ("ds=1", "ds=2"):
            completed(db, write_id, partition=partition)
    completed(db, 1, table="bills")
    assert ended(db, published(db, partition="ds=1"))
    left = [
        ("bills", None, 1),
        ("orders", "ds=1", 8),
        ("orders", "ds=2", 6),
        ("orders", "ds=2", 7),
        ("orders", "ds=2", 8),
    ]
    assert known_writes(db) == left
    # A row for the partitioned table as a whole compacted none of its partitions.
    assert ended(db, published(db))
    assert known_writes(db) == left
    assert ended(db, published(db, table=BILLS))
    assert known_writes(db) == left[1:]


def test_aborts_that_were_compacted_away_are_forgotten(db: Database) -> None:
    for write_id in (5, 7, 8):
        aborted(db, write_id)
    aborted(db, 3, partition="ds=1")
    aborted(db, 4, table="bills")
    component(db, opened(db), 6)
    component(db, opened(db, TxnType.COMPACTION), 2, operation="c", table="bills")
    assert ended(db, published(db, highest=7))
    # open ones, those above the mark, and those of other partitions and tables are all still needed
    assert known_aborts(db) == [2, 3, 4, 6, 8]


def test_while_aborted_rows_are_left_in_files_only_removed_write_ids_are_forgotten(db: Database) -> None:
    for write_id in (4, 5, 6):
        aborted(db, write_id)
    assert ended(db, published(db), forgettable=frozenset({5}))
    assert known_aborts(db) == [4, 6]


def test_while_aborted_rows_are_left_in_files_nothing_is_forgotten_by_itself(db: Database) -> None:
    aborted(db, 4)
    assert ended(db, published(db), forgettable=frozenset())
    assert known_aborts(db) == [4]


def test_an_aborted_compaction_stays_known_until_its_output_is_looked_for(db: Database) -> None:
    txn = opened(db, TxnType.COMPACTION)
    component(db, txn, 5, operation="c")
    abort_transactions(db, [txn])
    assert ended(db, published(db))
    assert known_aborts(db) == [5], "its worker may still write; forgotten, the output would count as committed"


def test_thousands_of_aborted_write_ids_are_forgotten_at_once(db: Database) -> None:
    txn = opened(db)
    with db.write() as conn:
        rows = [
            {
                "TC_TXNID": txn,
                "TC_DATABASE": "shop",
                "TC_TABLE": "orders",
                "TC_OPERATION_TYPE": "i",
                "TC_WRITEID": write_id,
            }
            for write_id in range(3000)
        ]
        conn.execute(insert(TXN_COMPONENTS), rows)
    abort_transactions(db, [txn])
    assert (
        mark_aborts_cleaned(
            db,
            ORDERS,
            None,
            highest_write_id=9999,
            uncompacted_aborts=True,
            aborted_write_ids=range(1, 3000),
        )
        == 2999
    )
    assert known_aborts(db) == [0]


def test_aborts_removed_without_a_compaction_are_forgotten_with_their_retry_note(db: Database) -> None:
    for write_id in (4, 5, 9):
        aborted(db, write_id, partition="ds=1")
    aborted(db, 3)
    retry_aborts(db, ORDERS, "ds=1", retention_ms=HOUR, message="storage away")
    retry_aborts(db, ORDERS, None, retention_ms=HOUR, message="storage away")
    assert mark_aborts_cleaned(db, ORDERS, "ds=1", highest_write_id=5, uncompacted_aborts=False) == 2
    assert known_aborts(db) == [3, 9]
    assert [note.partition for note in show_compactions(db)] == [None]


def test_a_successful_cleaning_takes_the_objects_retry_note_along(db: Database) -> None:
    retry_aborts(db, ORDERS, None, retention_ms=HOUR, message="storage away")
    retry_aborts(db, BILLS, None, retention_ms=HOUR, message="storage away")
    assert ended(db, published(db))
    notes = show_compactions(db, filters=CompactionFilter(type=CompactionType.ABORT_TXN_CLEANUP))
    assert [note.table for note in notes] == [BILLS]


def test_a_second_failure_replaces_the_first_note(db: Database) -> None:
    retry_aborts(db, ORDERS, None, retention_ms=HOUR, message="first")
    retry_aborts(db, ORDERS, None, retention_ms=2 * HOUR, message="second")
    (note,) = show_compactions(db)
    assert (note.retry_retention, note.error_message) == (2 * HOUR, "second")


def test_a_refused_cleaning_keeps_what_the_compaction_knew(db: Database) -> None:
    aborted(db, 5)
    completed(db, 5)
    compaction = published(db)
    refuse_cleaning(db, compaction, "no_cleanup is set on shop.orders")
    seen = row(db, compaction.id)
    assert (seen.state, seen.error_message) == (CompactionState.REFUSED, "no_cleanup is set on shop.orders")
    assert known_aborts(db) == [5]
    assert known_writes(db) == [("orders", None, 5)]


def test_a_row_that_another_cleaner_ended_cannot_be_ended_again(db: Database) -> None:
    compaction = published(db)
    assert ended(db, compaction)
    completed(db, 5)
    for again in (
        lambda: fail_ready(db, compaction, "too late"),
        lambda: refuse_cleaning(db, compaction, "too late"),
        lambda: cleaner_retry(db, compaction, retention_ms=1, message="too late"),
        lambda: clear_cleaner_start(db, compaction),
    ):
        with pytest.raises(Fenced):
            again()
    assert not ended(db, compaction)
    assert mark_cleaner_start(db, [compaction]) == frozenset()
    assert row(db, compaction.id).state is CompactionState.SUCCEEDED
    assert known_writes(db) == [("orders", None, 5)], "nothing was forgotten on behalf of a fenced cleaner"


@pytest.mark.parametrize("state", ["i", "w"])
def test_a_row_that_does_not_wait_for_cleaning_cannot_be_cleaned(db: Database, state: str) -> None:
    compaction = published(db)
    change(db, compaction, STATE=state)
    assert not ended(db, compaction)
    assert mark_cleaner_start(db, [compaction]) == frozenset()
    with pytest.raises(Fenced):
        cleaner_retry(db, compaction, retention_ms=1, message="no")


def test_of_racing_cleaners_one_ends_the_row(db: Database) -> None:
    compaction = published(db)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: ended(db, compaction), range(8))) == 1
    assert len(show_compactions(db)) == 1


def test_a_row_whose_highest_write_id_is_unknown_forgets_nothing(db: Database) -> None:
    completed(db, 5)
    aborted(db, 4)
    compaction = published(db)
    change(db, compaction, HIGHEST_WRITE_ID=None)
    assert ended(db, row(db, compaction.id))
    assert known_writes(db) == [("orders", None, 5)]
    assert known_aborts(db) == [4]
