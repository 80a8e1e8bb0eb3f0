"""What nobody keeps alive comes to its end: transactions without a heartbeat, and locks without one; and the
heartbeat of many transactions at once.

A heartbeat and a time-out exclude each other by the row they change: the time-out locks the rows it selects, and a
row whose heartbeat came in while it waited does not match any more.
Sources: Hive `PerformTimeoutsFunction`, `HeartbeatTxnRangeFunction`.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from compactor.errors import UsageError
from compactor.metastore.database import Database, repeatable, retried
from compactor.metastore.locks import read_locks
from compactor.metastore.schema import HIVE_LOCKS, TXNS
from compactor.metastore.txns import TxnState, TxnType, end_transactions

REPLICATION_TIMEOUT_MS = 11 * 24 * 60 * 60 * 1000
"""A replayed transaction lives so long without a heartbeat (hive.repl.txn.timeout)."""


_LONGEST_RANGE = 100_000


@dataclass(frozen=True, kw_only=True)
class HeartbeatRange:
    """The transactions of a range that are not open any more: aborted, or unknown and committed."""

    aborted: tuple[int, ...]
    no_such: tuple[int, ...]


@repeatable
def heartbeat_range(db: Database, low: int, high: int) -> HeartbeatRange:
    """Heartbeat the open transactions of low…high, both inclusive; which of the range are not open.

    A writer with a batch of transactions keeps all of them alive at once. UsageError for more than 100,000.
    """
    if high - low >= _LONGEST_RANGE:
        raise UsageError(f"transactions {low} to {high} are too many for one heartbeat")
    in_range = TXNS.c.TXN_ID.between(low, high)
    with db.write() as conn:
        beat = TXNS.update().where(in_range, TXNS.c.TXN_STATE == TxnState.OPEN)
        conn.execute(beat.values(TXN_LAST_HEARTBEAT=db.now(conn)))
        states = dict(conn.execute(sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_STATE).where(in_range)).all())
    gone = [txn_id for txn_id in range(low, high + 1) if states.get(txn_id) != TxnState.OPEN]
    return HeartbeatRange(
        aborted=tuple(txn_id for txn_id in gone if states.get(txn_id) == TxnState.ABORTED),
        no_such=tuple(txn_id for txn_id in gone if states.get(txn_id) != TxnState.ABORTED),
    )


@retried
def time_out_transactions(
    db: Database, *, timeout_ms: int, replication_timeout_ms: int = REPLICATION_TIMEOUT_MS, limit: int = 1000
) -> list[int]:
    """Abort, oldest first, at most `limit` open transactions whose last heartbeat is older than the time-out; ids."""
    with db.write() as conn:
        now = db.now(conn)
        replayed = TXNS.c.TXN_TYPE == TxnType.REPL_CREATED
        silent = (
            sa.select(TXNS.c.TXN_ID)
            .where(TXNS.c.TXN_STATE == TxnState.OPEN)
            .where(
                TXNS.c.TXN_LAST_HEARTBEAT < sa.case((replayed, now - replication_timeout_ms), else_=now - timeout_ms)
            )
            .order_by(TXNS.c.TXN_ID)
            .limit(limit)
            .with_for_update()
        )
        expired = list(conn.scalars(silent))
        end_transactions(conn, expired, state=TxnState.ABORTED, reason="abort timed out")
        return expired


@retried
def time_out_locks(db: Database, *, timeout_ms: int) -> list[int]:
    """Release locks without transaction whose last heartbeat is older than the time-out; their ids, ascending."""
    with db.write() as conn:
        silent = sa.and_(HIVE_LOCKS.c.HL_TXNID == 0, HIVE_LOCKS.c.HL_LAST_HEARTBEAT < db.now(conn) - timeout_ms)
        expired = sorted({lock.lock_id for lock in read_locks(conn, silent, lock=True)})
        conn.execute(HIVE_LOCKS.delete().where(silent))
        return expired
