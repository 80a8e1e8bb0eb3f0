from __future__ import annotations

from sqlalchemy import insert, select, update

from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.metastore.housekeeping import (
    clean_duplicate_completed_components,
    clean_empty_transactions,
    clean_write_id_map,
    clean_write_sets,
)
from compactor.metastore.schema import (
    COMPLETED_TXN_COMPONENTS,
    MIN_HISTORY_LEVEL,
    TXN_COMPONENTS,
    TXN_TO_WRITE_ID,
    TXNS,
    WRITE_SET,
)
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions
from compactor.metastore.writeids import allocate_write_ids

ORDERS = TableName(database="shop", table="orders")


def opened(db: Database, count: int = 1) -> list[int]:
    return open_transactions(db, count=count, user="u", host="vm")


def grow_old(db: Database) -> None:
    with db.write() as conn:
        conn.execute(update(TXNS).values(TXN_STARTED=0))


def component(db: Database, txn: int, *, partition: str | None = None) -> None:
    with db.write() as conn:
        conn.execute(
            insert(TXN_COMPONENTS).values(
                TC_TXNID=txn,
                TC_DATABASE="shop",
                TC_TABLE="orders",
                TC_PARTITION=partition,
                TC_OPERATION_TYPE="i",
                TC_WRITEID=txn,
            )
        )


def known(db: Database) -> list[int]:
    with db.read() as conn:
        return list(conn.scalars(select(TXNS.c.TXN_ID).where(TXNS.c.TXN_ID > 0).order_by(TXNS.c.TXN_ID)))


def mapped(db: Database) -> list[int]:
    with db.read() as conn:
        return list(conn.scalars(select(TXN_TO_WRITE_ID.c.T2W_TXNID).order_by(TXN_TO_WRITE_ID.c.T2W_TXNID)))


def completed(db: Database, partition: str | None, *writes: tuple[int, str]) -> None:
    with db.write() as conn:
        for write_id, update_delete in writes:
            conn.execute(
                insert(COMPLETED_TXN_COMPONENTS).values(
                    CTC_TXNID=write_id,
                    CTC_DATABASE="shop",
                    CTC_TABLE="orders",
                    CTC_PARTITION=partition,
                    CTC_WRITEID=write_id,
                    CTC_UPDATE_DELETE=update_delete,
                )
            )


def test_ended_transactions_without_components_are_forgotten_but_never_the_newest(db: Database) -> None:
    committed, aborted, still_open, with_component, newest = opened(db, 5)
    for txn in (committed, newest):
        commit_transaction(db, txn)
    component(db, with_component)
    abort_transactions(db, [aborted, with_component])
    grow_old(db)
    assert clean_empty_transactions(db) == 3, "the first row that the schema brings goes too"
    assert known(db) == [still_open, with_component, newest]
    assert clean_empty_transactions(db) == 0


def test_an_aborted_transaction_is_forgotten_as_soon_as_its_components_are(db: Database) -> None:
    aborted, newest = opened(db, 2)
    component(db, aborted)
    abort_transactions(db, [aborted])
    commit_transaction(db, newest)
    grow_old(db)
    clean_empty_transactions(db)
    assert aborted in known(db)
    with db.write() as conn:
        conn.execute(TXN_COMPONENTS.delete())
    assert clean_empty_transactions(db) == 1
    assert aborted not in known(db)


def test_young_transactions_are_not_forgotten(db: Database) -> None:
    first, second, third = opened(db, 3)
    for txn in (first, second, third):
        commit_transaction(db, txn)
    assert clean_empty_transactions(db, open_txn_timeout_ms=60_000) == 0
    assert known(db) == [first, second, third]


def test_transaction_ids_do_not_come_back_after_the_housekeeping(db: Database) -> None:
    txns = opened(db, 3)
    for txn in txns:
        commit_transaction(db, txn)
    grow_old(db)
    clean_empty_transactions(db)
    assert opened(db)[0] == txns[-1] + 1


def test_the_write_id_map_keeps_what_somebody_sees_as_not_committed(db: Database) -> None:
    first, second, third, fourth = opened(db, 4)
    allocate_write_ids(db, [first, second, third, fourth], ORDERS)
    commit_transaction(db, first)
    assert clean_write_id_map(db) == 0, "those that opened together see the first one as open"
    commit_transaction(db, third)
    component(db, second)
    abort_transactions(db, [second])
    commit_transaction(db, fourth)
    assert clean_write_id_map(db) == 1
    assert mapped(db) == [second, third, fourth], "without its row an aborted write would count as committed"
    with db.write() as conn:
        conn.execute(update(TXNS).where(TXNS.c.TXN_ID == second).values(TXN_STATE="c"))
    assert clean_write_id_map(db) == 3


def test_the_write_id_map_keeps_what_a_reader_saw_open_when_it_began(db: Database) -> None:
    writer = opened(db)[0]
    allocate_write_ids(db, [writer], ORDERS)
    reader = opened(db)[0]
    commit_transaction(db, writer)
    with db.read() as conn:
        seen_open = select(MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID).where(MIN_HISTORY_LEVEL.c.MHL_TXNID == reader)
        assert conn.scalar(seen_open) == writer
    assert clean_write_id_map(db) == 0
    commit_transaction(db, reader)
    assert clean_write_id_map(db) == 1


def test_write_sets_go_when_no_open_transaction_overlaps_them(db: Database) -> None:
    with db.write() as conn:
        for commit_id in (1, 2, 3):
            conn.execute(
                insert(WRITE_SET).values(
                    WS_DATABASE="shop",
                    WS_TABLE="orders",
                    WS_TXNID=commit_id,
                    WS_COMMIT_ID=commit_id,
                    WS_OPERATION_TYPE="u",
                )
            )
    first, second, third = opened(db, 3)
    assert (first, third) == (1, 3)
    commit_transaction(db, first)
    assert clean_write_sets(db) == 1, "commits before the oldest open transaction began concern nobody"
    commit_transaction(db, second)
    commit_transaction(db, third)
    assert clean_write_sets(db) == 2


def test_of_completed_writes_the_newest_and_the_newest_change_are_enough(db: Database) -> None:
    completed(db, None, (1, "N"), (2, "Y"), (3, "Y"), (4, "N"), (5, "N"))
    completed(db, "ds=1", (1, "N"), (2, "N"))
    completed(db, "ds=2", (7, "Y"))
    assert clean_duplicate_completed_components(db) == 4
    with db.read() as conn:
        rows = conn.execute(
            select(COMPLETED_TXN_COMPONENTS.c.CTC_PARTITION, COMPLETED_TXN_COMPONENTS.c.CTC_WRITEID)
        ).all()
    assert {tuple(row) for row in rows} == {(None, 3), (None, 5), ("ds=1", 2), ("ds=2", 7)}
    assert clean_duplicate_completed_components(db) == 0
