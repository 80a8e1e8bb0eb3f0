"""What a transaction wrote and where: TXN_COMPONENTS while it is open, COMPLETED_TXN_COMPONENTS and WRITE_SET after.

Everything here runs inside a transaction that the caller opened and that holds the transaction lock.
Sources: Hive `CommitTxnFunction`, `OperationType`.
"""

from __future__ import annotations

import enum
from datetime import datetime

import sqlalchemy as sa

from compactor.metastore.schema import COMPLETED_TXN_COMPONENTS, TXN_COMPONENTS, WRITE_SET


class Operation(enum.StrEnum):
    """What a transaction does to an object; the letters of TC_OPERATION_TYPE (Hive `OperationType`)."""

    SELECT = "s"
    """Reads; leaves no component."""
    INSERT = "i"
    """Adds rows."""
    UPDATE = "u"
    """Replaces rows."""
    DELETE = "d"
    """Removes rows; Hive 4 also says so for UPDATE, which it splits into a delete and an insert."""
    COMPACT = "c"
    """Rewrites files; kept only so that the output of an aborted compaction is found again."""


CHANGING = (Operation.UPDATE, Operation.DELETE)
"""Operations that conflict with each other in the same place."""


def has_changes(conn: sa.Connection, txn_id: int) -> bool:
    """Did the transaction update or delete?"""
    changes = sa.select(TXN_COMPONENTS.c.TC_TXNID).where(
        TXN_COMPONENTS.c.TC_TXNID == txn_id, TXN_COMPONENTS.c.TC_OPERATION_TYPE.in_(CHANGING)
    )
    return conn.execute(changes.limit(1)).first() is not None


def conflict(conn: sa.Connection, txn_id: int) -> str | None:
    """Who changed the same place and committed after this transaction opened; None when nobody did.

    A commit id is the newest transaction id at the commit, hence ≥: it committed while we were open. Partitioned
    tables are compared by partition, others as a whole.
    """
    ours, theirs = TXN_COMPONENTS.c, WRITE_SET.c
    same_place = sa.and_(
        theirs.WS_DATABASE == ours.TC_DATABASE,
        theirs.WS_TABLE == ours.TC_TABLE,
        sa.or_(
            theirs.WS_PARTITION == ours.TC_PARTITION,
            sa.and_(theirs.WS_PARTITION.is_(None), ours.TC_PARTITION.is_(None)),
        ),
    )
    query = (
        sa.select(WRITE_SET)
        .join(TXN_COMPONENTS, same_place)
        .where(ours.TC_TXNID == txn_id, ours.TC_OPERATION_TYPE.in_(CHANGING))
        .where(theirs.WS_COMMIT_ID >= txn_id, theirs.WS_TXNID != txn_id, theirs.WS_OPERATION_TYPE.in_(CHANGING))
        .limit(1)
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    place = f"{row.WS_DATABASE}.{row.WS_TABLE}" + (f"/{row.WS_PARTITION}" if row.WS_PARTITION else "")
    return f"transaction {row.WS_TXNID} changed {place} and committed first"


def record_write_set(conn: sa.Connection, txn_id: int, *, commit_id: int, inserts_too: bool = False) -> None:
    """Remember what was changed for the transactions that overlap; commit_id: newest transaction id now.

    inserts_too: also what conflicts with nothing. Without MIN_HISTORY_LEVEL these rows alone keep the write ids of a
    transaction from being forgotten while somebody sees it as open.
    """
    ours = TXN_COMPONENTS.c
    kinds = (*CHANGING, Operation.INSERT) if inserts_too else CHANGING
    changed = (
        sa.select(
            ours.TC_DATABASE,
            ours.TC_TABLE,
            ours.TC_PARTITION,
            ours.TC_TXNID,
            sa.literal(commit_id),
            ours.TC_OPERATION_TYPE,
        )
        .where(ours.TC_TXNID == txn_id, ours.TC_OPERATION_TYPE.in_(kinds))
        .distinct()
    )
    conn.execute(WRITE_SET.insert().from_select([column.name for column in WRITE_SET.columns], changed))


def complete_components(conn: sa.Connection, txn_id: int, *, at: datetime, changes: bool) -> None:
    """What was written becomes a candidate for compaction; changes is the transaction's flag, not the component's."""
    ours = TXN_COMPONENTS.c
    written = sa.select(
        ours.TC_TXNID,
        ours.TC_DATABASE,
        ours.TC_TABLE,
        ours.TC_PARTITION,
        sa.literal(at, sa.DateTime),
        ours.TC_WRITEID,
        sa.literal("Y" if changes else "N"),
    ).where(ours.TC_TXNID == txn_id, ours.TC_OPERATION_TYPE != Operation.COMPACT)
    names = [column.name for column in COMPLETED_TXN_COMPONENTS.columns]
    conn.execute(COMPLETED_TXN_COMPONENTS.insert().from_select(names, written))
