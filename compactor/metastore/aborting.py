"""ABORT TRANSACTIONS and ABORT COMPACTIONS: what an operator ends, and an answer for each id.

A compaction can be ended while nobody works on it; to stop one that runs, end its transaction: that fences its worker.
Sources: Hive `AbortCompactionFunction`, `AbortCompactionsOperation`, `AbortTransactionsOperation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, select

from compactor.metastore.compaction import Compaction, CompactionState
from compactor.metastore.compaction_rows import history_rows, queue_rows, retire
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_COMPACTIONS
from compactor.metastore.txns import abort_transactions

SUCCESS = "Success"
ERROR = "Error"


@dataclass(frozen=True, kw_only=True)
class Aborted:
    """One row of the answer. status: Success or Error, as Hive says it."""

    id: int
    status: str
    message: str


def abort_transactions_by_id(db: Database, txn_ids: Sequence[int]) -> list[Aborted]:
    """Abort open transactions, all in one database transaction; a row for each id, ascending."""
    outcome = abort_transactions(db, txn_ids)
    answers = {
        **dict.fromkeys(outcome.aborted, (SUCCESS, "Successfully aborted transaction")),
        **dict.fromkeys(outcome.already_aborted, (SUCCESS, "The transaction was aborted already")),
        **dict.fromkeys(outcome.committed, (ERROR, "The transaction is committed already")),
        **dict.fromkeys(outcome.unknown, (ERROR, "No such transaction id available")),
    }
    return [Aborted(id=i, status=status, message=message) for i, (status, message) in sorted(answers.items())]


def abort_compactions(db: Database, compaction_ids: Sequence[int]) -> list[Aborted]:
    """Move requests that no worker has taken to the history as aborted; a row for each id, ascending.

    Each id is a database transaction of its own, as in Hive: one that cannot be aborted does not keep the others.
    """
    return [_abort_compaction(db, compaction_id) for compaction_id in sorted(set(compaction_ids))]


@retried
def _abort_compaction(db: Database, compaction_id: int) -> Aborted:
    waiting = and_(COMPACTION_QUEUE.c.CQ_ID == compaction_id, COMPACTION_QUEUE.c.CQ_STATE == CompactionState.INITIATED)
    with db.write() as conn:
        # keeps a worker that is just claiming it waiting, or waits for the worker
        conn.execute(
            select(COMPACTION_QUEUE.c.CQ_ID).where(COMPACTION_QUEUE.c.CQ_ID == compaction_id).with_for_update()
        )
        queued = conn.execute(queue_rows().where(COMPACTION_QUEUE.c.CQ_ID == compaction_id)).mappings().one_or_none()
        ended = history_rows().where(COMPLETED_COMPACTIONS.c.CC_ID == compaction_id)
        row = queued or conn.execute(ended).mappings().first()
        if row is None:
            return Aborted(id=compaction_id, status=ERROR, message="No Such Compaction Id Available")
        found = Compaction.from_row(row)
        if found.state is not CompactionState.INITIATED:
            state = found.state.name.lower().replace("_", " ")
            message = f"Error while aborting compaction as compaction is in state-{state}"
            return Aborted(id=compaction_id, status=ERROR, message=message)
        message = "Compaction aborted by abort compaction request"
        retire(conn, found, waiting, state=CompactionState.ABORTED, end=db.now(conn), message=message)
    return Aborted(id=compaction_id, status=SUCCESS, message="Successfully aborted compaction")
