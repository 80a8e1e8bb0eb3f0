"""Publications of which nobody wrote down when they happened.

Hive 4.0.1 fills in NEXT_TXN_ID and COMMIT_TIME of a compaction when its transaction commits, but not those of a
rebalance. Without a bound every transaction there is counts as a possible reader of the old files, and on a busy
warehouse there is always one: such a row would never be cleaned. So the cleaner gives it the bound of the moment in
which it sees it first; whoever opened before that moment is waited for, and nobody else (I5).

Sources: Hive 4.0.1 `CommitTxnFunction` (only SOFT_DELETE and COMPACTION), newer ones (REBALANCE_COMPACTION too).
"""

from __future__ import annotations

from sqlalchemy import func, or_, select, update

from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTION_QUEUE, TXNS
from compactor.metastore.txns import TxnState, high_water, lock_transactions

_AT_ONCE = 1000


def date_publications(db: Database) -> int:
    """Give rows r whose transaction is over, but not aborted, and that have no NEXT_TXN_ID one; how many."""
    found = _undated(db)
    return _date(db, found) if found else 0


@retried
def _undated(db: Database) -> list[int]:
    queue = COMPACTION_QUEUE.c
    query = (
        select(queue.CQ_ID)
        .outerjoin(TXNS, TXNS.c.TXN_ID == queue.CQ_TXN_ID)
        .where(
            queue.CQ_STATE == CompactionState.READY_FOR_CLEANING,
            queue.CQ_TYPE != CompactionType.ABORT_TXN_CLEANUP,
            func.coalesce(queue.CQ_NEXT_TXN_ID, 0) == 0,
            or_(TXNS.c.TXN_STATE.is_(None), TXNS.c.TXN_STATE == TxnState.COMMITTED),
        )
        .order_by(queue.CQ_ID)
        .limit(_AT_ONCE)
    )
    with db.read() as conn:
        return list(conn.scalars(query))


@retried
def _date(db: Database, compaction_ids: list[int]) -> int:
    queue = COMPACTION_QUEUE.c
    with db.write() as conn:
        # Under the lock that a commit takes no transaction is half open: each reader has its id, and counts.
        lock_transactions(conn)
        dated = update(COMPACTION_QUEUE).where(
            queue.CQ_ID.in_(compaction_ids),
            queue.CQ_STATE == CompactionState.READY_FOR_CLEANING,
            func.coalesce(queue.CQ_NEXT_TXN_ID, 0) == 0,
        )
        values = {
            "CQ_NEXT_TXN_ID": high_water(conn),
            "CQ_COMMIT_TIME": func.coalesce(queue.CQ_COMMIT_TIME, db.now(conn)),
        }
        return conn.execute(dated.values(values)).rowcount
