"""Compactions whose transaction was aborted: their output is garbage that the cleaner has to find and remove.

The TXN_COMPONENTS row of operation 'c' that `queue.record_snapshot` wrote is what keeps such a transaction known. While
it is there readers see the transaction as aborted and so never its output `…_v<txn>`. Without it the housekeeper
forgets the transaction, and an output directory that came to life afterwards would count as committed.
Sources: Hive `CompactionTxnHandler.updateCompactorState`, `TaskHandler`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select

from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database, retried
from compactor.metastore.queue import COMPACT_OPERATION
from compactor.metastore.schema import TXN_COMPONENTS, TXNS


@dataclass(frozen=True, kw_only=True)
class AbandonedCompaction:
    """An aborted compaction that may have left an output. silent_ms: time since its transaction's last heartbeat."""

    txn_id: int
    table: TableName
    partition: str | None
    silent_ms: int


@retried
def abandoned_compactions(db: Database) -> list[AbandonedCompaction]:
    """Aborted compactions that are still known, oldest transaction first."""
    query = (
        select(
            TXN_COMPONENTS.c.TC_TXNID,
            TXN_COMPONENTS.c.TC_DATABASE,
            TXN_COMPONENTS.c.TC_TABLE,
            TXN_COMPONENTS.c.TC_PARTITION,
            TXNS.c.TXN_LAST_HEARTBEAT,
        )
        .join(TXNS, TXNS.c.TXN_ID == TXN_COMPONENTS.c.TC_TXNID)
        .where(TXNS.c.TXN_STATE == "a", TXN_COMPONENTS.c.TC_OPERATION_TYPE == COMPACT_OPERATION)
        .order_by(TXN_COMPONENTS.c.TC_TXNID)
    )
    with db.read() as conn:
        now = db.now(conn)
        return [
            AbandonedCompaction(
                txn_id=row.TC_TXNID,
                table=TableName(database=row.TC_DATABASE, table=row.TC_TABLE),
                partition=row.TC_PARTITION,
                silent_ms=now - row.TXN_LAST_HEARTBEAT,
            )
            for row in conn.execute(query)
        ]


@retried
def forget_abandoned(db: Database, txn_id: int) -> int:
    """Its output is gone for good: drop what kept the aborted compaction known; how many rows went.

    A rebalance has a component of its update too, and one of Hive's carries no write id by which it would ever go.
    """
    txns = TXNS.c
    aborted = select(txns.TXN_ID).where(txns.TXN_ID == txn_id, txns.TXN_STATE == "a")
    with db.write() as conn:
        return conn.execute(delete(TXN_COMPONENTS).where(TXN_COMPONENTS.c.TC_TXNID.in_(aborted))).rowcount
