"""Write ids: each table counts its own writes, and TXN_TO_WRITE_ID says which transaction made which.

Sources: Hive `AllocateTableWriteIdsFunction`, `GetValidWriteIdsForTableFunction`, `TxnHandler.seedWriteId`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import AlreadyExists, MetastoreError, UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database, repeatable, retried
from compactor.metastore.schema import NEXT_WRITE_ID, TXN_TO_WRITE_ID, TXNS
from compactor.metastore.txns import TxnState, TxnType, not_open, open_kind, refuse_replication

AFTER_CONVERSION = 10_000_001
"""First write id of an ordinary table that becomes transactional: its old files count as written before."""

_IDS_A_STATEMENT = 1000


@dataclass(frozen=True, kw_only=True)
class TableWriteId:
    """One write of a table; state: None when the transaction was committed and cleaned away."""

    write_id: int
    txn_id: int
    state: TxnState | None


@repeatable
def allocate_write_ids(db: Database, txn_ids: Sequence[int], table: TableName) -> dict[int, int]:
    """A write id for each open transaction, ascending with the transaction id; the same ones when asked again.

    TransactionAborted or NoSuchTransaction when one is not open, UsageError when one is read-only, ReplicationRefused.
    """
    wanted = sorted(set(txn_ids))
    with db.write() as conn:
        # first the transactions: none of them ends before it has its write id, and locks are taken in Hive's order
        for txn_id in wanted:
            kind = open_kind(conn, txn_id)
            if kind is None:
                raise not_open(conn, txn_id)
            refuse_replication(kind)
            if kind is TxnType.READ_ONLY:
                raise UsageError(f"transaction {txn_id} is read-only and cannot write to {table}")
        first = following = _lock_next(conn, table)
        allocated: dict[int, int] = {}
        for txn_id in wanted:
            existing = write_id_of(conn, txn_id, table)
            if existing is None:
                existing, following = following, following + 1
                conn.execute(
                    TXN_TO_WRITE_ID.insert().values(
                        T2W_TXNID=txn_id, T2W_DATABASE=table.database, T2W_TABLE=table.table, T2W_WRITEID=existing
                    )
                )
            allocated[txn_id] = existing
        if following > first:
            taken = NEXT_WRITE_ID.update().where(_next_of(table), NEXT_WRITE_ID.c.NWI_NEXT == first)
            if conn.execute(taken.values(NWI_NEXT=following)).rowcount != 1:
                raise MetastoreError(f"write id {first} of {table} was taken by someone else under our lock")
        return allocated


@retried
def valid_write_ids(db: Database, table: TableName, txns: ValidTxnList) -> ValidWriteIdList:
    """The writes of a table that a snapshot sees."""
    with db.read() as conn:
        return write_ids_of_snapshot(conn, table, txns)


@retried
def valid_write_ids_of_each(
    db: Database, tables: Collection[TableName], txns: ValidTxnList
) -> dict[TableName, ValidWriteIdList]:
    """`valid_write_ids` of several tables, in one transaction."""
    with db.read() as conn:
        return {table: write_ids_of_snapshot(conn, table, txns) for table in tables}


@retried
def seed_write_id(db: Database, table: TableName, next_id: int = AFTER_CONVERSION) -> None:
    """Let a table that was never written transactionally begin at next_id; AlreadyExists when it has begun."""
    with db.write() as conn:
        if not _insert_next(conn, table, next_id):
            raise AlreadyExists(f"table {table} has write ids already")


@retried
def table_write_ids(db: Database, table: TableName) -> list[TableWriteId]:
    """All writes of a table that are still known, ascending."""
    query = (
        sa.select(TXN_TO_WRITE_ID.c.T2W_WRITEID, TXN_TO_WRITE_ID.c.T2W_TXNID, TXNS.c.TXN_STATE)
        .outerjoin(TXNS, TXNS.c.TXN_ID == TXN_TO_WRITE_ID.c.T2W_TXNID)
        .where(_writes_of(table))
        .order_by(TXN_TO_WRITE_ID.c.T2W_WRITEID)
    )
    with db.read() as conn:
        return [
            TableWriteId(write_id=write_id, txn_id=txn_id, state=None if state is None else TxnState(state))
            for write_id, txn_id, state in conn.execute(query)
        ]


# What follows runs inside a transaction that the caller opened.


def write_ids_of_snapshot(conn: sa.Connection, table: TableName, txns: ValidTxnList) -> ValidWriteIdList:
    """`valid_write_ids`: the high water is the newest write of a transaction below the snapshot's.

    When no transaction below it wrote, everything allocated so far is below the high water and listed as open. A
    write whose transaction row was cleaned away counts as committed.
    """
    writes = TXN_TO_WRITE_ID.c
    newest = sa.select(sa.func.max(writes.T2W_WRITEID)).where(_writes_of(table), writes.T2W_TXNID <= txns.high_water)
    high_water: int = conn.scalar(newest) or next_write_id(conn, table) - 1
    opened: set[int] = set()
    aborted: set[int] = set()
    # A table has any number of writes, nearly all of them committed: only the others are read
    unsettled = txns.open | txns.aborted
    some = writes.T2W_TXNID.in_(unsettled) if len(unsettled) <= _IDS_A_STATEMENT else writes.T2W_TXNID >= min(unsettled)
    below = sa.select(writes.T2W_WRITEID, writes.T2W_TXNID).where(
        _writes_of(table), writes.T2W_WRITEID <= high_water, sa.or_(writes.T2W_TXNID > txns.high_water, some)
    )
    for write_id, txn_id in conn.execute(below):
        if txns.is_aborted(txn_id):
            aborted.add(write_id)
        elif not txns.is_valid(txn_id):
            opened.add(write_id)
    return ValidWriteIdList(table=str(table), high_water=high_water, open=frozenset(opened), aborted=frozenset(aborted))


def write_id_of(conn: sa.Connection, txn_id: int, table: TableName) -> int | None:
    """The write id a transaction has in a table, None when it has none."""
    writes = TXN_TO_WRITE_ID.c
    return conn.scalar(sa.select(writes.T2W_WRITEID).where(_writes_of(table), writes.T2W_TXNID == txn_id))


def next_write_id(conn: sa.Connection, table: TableName) -> int:
    """The write id that will be given out next; 1 for a table that was never written."""
    following: int | None = conn.scalar(sa.select(NEXT_WRITE_ID.c.NWI_NEXT).where(_next_of(table)))
    return following or 1


def compactable_high_water(conn: sa.Connection, table: TableName) -> int:
    """The highest write id a compaction that starts now could cover (TxnUtils.createValidCompactWriteIdList)."""
    first_open: int | None = conn.scalar(
        sa.select(sa.func.min(TXN_TO_WRITE_ID.c.T2W_WRITEID))
        .join(TXNS, TXNS.c.TXN_ID == TXN_TO_WRITE_ID.c.T2W_TXNID)
        .where(_writes_of(table), TXNS.c.TXN_STATE == TxnState.OPEN)
    )
    return (next_write_id(conn, table) if first_open is None else first_open) - 1


def _lock_next(conn: sa.Connection, table: TableName) -> int:
    """The table's next write id, its row locked: allocations of one table follow each other.

    A table's first allocation inserts the row. Whoever does so at the same time waits, and finds the row afterwards.
    """
    query = sa.select(NEXT_WRITE_ID.c.NWI_NEXT).where(_next_of(table)).with_for_update()
    following: int | None = conn.scalar(query)
    if following is None:
        _insert_next(conn, table, 1)
        following = conn.execute(query).scalar_one()
    return following


def _insert_next(conn: sa.Connection, table: TableName, next_id: int) -> bool:
    """Let a table begin at next_id; False when it has begun."""
    row = {"NWI_DATABASE": table.database, "NWI_TABLE": table.table, "NWI_NEXT": next_id}
    try:
        # a savepoint, or a violation would end the whole transaction
        with conn.begin_nested():
            conn.execute(NEXT_WRITE_ID.insert().values(row))
    except IntegrityError:
        return False
    return True


def _writes_of(table: TableName) -> sa.ColumnElement[bool]:
    writes = TXN_TO_WRITE_ID.c
    return sa.and_(writes.T2W_DATABASE == table.database, writes.T2W_TABLE == table.table)


def _next_of(table: TableName) -> sa.ColumnElement[bool]:
    return sa.and_(NEXT_WRITE_ID.c.NWI_DATABASE == table.database, NEXT_WRITE_ID.c.NWI_TABLE == table.table)
