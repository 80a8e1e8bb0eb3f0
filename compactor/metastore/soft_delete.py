"""Rows of the queue that a transaction leaves for the cleaner besides compactions: what DROP put aside.

With lockless reads Hive drops a table or partition from the catalogue and leaves its files for the readers that are
still there: the transaction, of type SOFT_DELETE, puts a row in state r with the property `location` into the queue.
The row is no work yet. At the commit it gets the newest transaction id, up to which readers may know the object. What
the cleaner then does: `cleaner.dropped`.

Source: Hive `CommitTxnFunction.updateWSCommitIdAndCleanUpMetadata`, `AcidEventListener`.
"""

from __future__ import annotations

import sqlalchemy as sa

from compactor.metastore.schema import COMPACTION_QUEUE


def date_queue_rows(conn: sa.Connection, txn_id: int, *, newest_txn: int, now: int) -> int:
    """Write when, and after which transaction, the rows of a committing transaction became cleanable; how many.

    Runs under the transaction lock: nobody opens a transaction until newest_txn is written down. now: epoch ms.
    """
    queue = COMPACTION_QUEUE
    dated = queue.update().where(queue.c.CQ_TXN_ID == txn_id)
    return conn.execute(dated.values(CQ_NEXT_TXN_ID=newest_txn, CQ_COMMIT_TIME=now)).rowcount
