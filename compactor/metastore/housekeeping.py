"""What the housekeeper forgets: transactions, write ids and components that no reader or compaction can ask for.

Each function returns how many rows went. Everything above a low-water mark stays, and a mark can only rise: what is
below it when it is read may go at any time later. Sources: Hive `AcidHouseKeeperService`,
`AcidTxnCleanerService`, `CompactionTxnHandler`.
"""

from __future__ import annotations

from sqlalchemy import and_, case, delete, func, select

from compactor.metastore.database import Database, retried
from compactor.metastore.in_flight import OPEN_TXN_TIMEOUT_MS
from compactor.metastore.schema import (
    COMPLETED_TXN_COMPONENTS,
    MIN_HISTORY_LEVEL,
    TXN_COMPONENTS,
    TXN_TO_WRITE_ID,
    TXNS,
    WRITE_SET,
)
from compactor.metastore.txns import TxnState, lock_transactions


@retried
def clean_empty_transactions(db: Database, *, open_txn_timeout_ms: int = OPEN_TXN_TIMEOUT_MS) -> int:
    """Forget ended transactions without components (cleanEmptyAbortedAndCommittedTxns).

    An aborted transaction may go only when no component is left: until then readers must know that its writes are
    void. The newest transaction and all younger than the time-out stay, for snapshots count up from them.
    """
    with db.write() as conn:
        boundary = conn.scalar(
            select(func.max(TXNS.c.TXN_ID)).where(TXNS.c.TXN_STARTED < db.now(conn) - open_txn_timeout_ms)
        )
        if boundary is None:
            return 0
        has_component = select(TXN_COMPONENTS.c.TC_TXNID).where(TXN_COMPONENTS.c.TC_TXNID == TXNS.c.TXN_ID).exists()
        empty = and_(
            TXNS.c.TXN_STATE.in_([TxnState.ABORTED, TxnState.COMMITTED]), TXNS.c.TXN_ID < boundary, ~has_component
        )
        return conn.execute(delete(TXNS).where(empty)).rowcount


@retried
def clean_write_id_map(db: Database) -> int:
    """Forget which transaction wrote which write id, below every id that somebody sees as not committed.

    Without the mapping a write id counts as committed, so the row of an open or aborted transaction, and of one that
    was open when a present reader began, must stay (CleanTxnToWriteIdTableFunction, MinUncommittedTxnIdHandler).
    """
    low_water = _lowest_uncommitted(db)
    with db.write() as conn:
        return conn.execute(delete(TXN_TO_WRITE_ID).where(TXN_TO_WRITE_ID.c.T2W_TXNID < low_water)).rowcount


def _lowest_uncommitted(db: Database) -> int:
    """Every transaction below it ended long ago, for everybody who is there or will come.

    Nobody opens meanwhile: a transaction that has its id and no row yet could get its write ids between this and the
    deletion, and a reader could remember an older one as open that has just ended.
    """
    unfinished = select(func.min(TXNS.c.TXN_ID)).where(TXNS.c.TXN_STATE.in_([TxnState.OPEN, TxnState.ABORTED]))
    with db.write() as conn:
        lock_transactions(conn)
        marks = [
            conn.scalar(select(func.max(TXNS.c.TXN_ID) + 1)),
            conn.scalar(unfinished),
            conn.scalar(select(func.min(WRITE_SET.c.WS_TXNID))),
            conn.scalar(select(func.min(MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID))),
        ]
    return min((mark for mark in marks if mark is not None), default=0)


@retried
def clean_write_sets(db: Database) -> int:
    """Forget which rows were updated by transactions that no open one overlaps (performWriteSetGC).

    One that is just opening gets an id above every commit id there is, because a commit waits for those that open.
    """
    with db.write() as conn:
        first_open = conn.scalar(select(func.min(TXNS.c.TXN_ID)).where(TXNS.c.TXN_STATE == TxnState.OPEN))
        following = conn.scalar(select(func.max(TXNS.c.TXN_ID) + 1))
        low_water = following if first_open is None else first_open
        return conn.execute(delete(WRITE_SET).where(WRITE_SET.c.WS_COMMIT_ID < low_water)).rowcount


@retried
def clean_duplicate_completed_components(db: Database) -> int:
    """Of each object keep the newest completed write and the newest update or delete, all the initiator needs.

    Source: RemoveDuplicateCompleteTxnComponentsCommand.
    """
    written = COMPLETED_TXN_COMPONENTS
    in_object = (written.c.CTC_DATABASE, written.c.CTC_TABLE, written.c.CTC_PARTITION)
    updated = case((written.c.CTC_UPDATE_DELETE == "Y", written.c.CTC_WRITEID))
    newest = (
        select(*in_object, func.max(written.c.CTC_WRITEID).label("LAST"), func.max(updated).label("LAST_UPDATE"))
        .group_by(*in_object)
        .having(func.count() > 1)
    )
    removed = 0
    with db.write() as conn:
        for row in conn.execute(newest).all():
            older = delete(written).where(
                written.c.CTC_DATABASE == row.CTC_DATABASE,
                written.c.CTC_TABLE == row.CTC_TABLE,
                written.c.CTC_PARTITION.is_not_distinct_from(row.CTC_PARTITION),
                written.c.CTC_WRITEID < row.LAST,
                written.c.CTC_WRITEID.is_distinct_from(row.LAST_UPDATE),
            )
            removed += conn.execute(older).rowcount
    return removed
