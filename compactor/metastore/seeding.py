"""Let transaction ids go on further up, for tables whose directories come from another metastore.

Their names carry that metastore's transaction ids (`base_5_v123`): with a smaller id of our own such a directory would
count as the output of a transaction that is yet to come. Write ids are seeded by `writeids.seed_write_id`.
Source: Hive `TxnHandler.seedTxnId`, `Msck`.
"""

from __future__ import annotations

from compactor.metastore.database import Database, retried
from compactor.metastore.dialects import follow_ids
from compactor.metastore.schema import TXNS
from compactor.metastore.txns import TxnState, high_water, lock_transactions


@retried
def ensure_txn_ids_above(db: Database, txn_id: int) -> bool:
    """Let every transaction from now on have a higher id; False when that is so already.

    A committed row marks the jump: as old as the database, so that nobody takes what it skips for transactions that
    are just opening (`in_flight`).
    """
    with db.write() as conn:
        lock_transactions(conn)
        if high_water(conn) >= txn_id:
            return False
        mark = {"TXN_ID": txn_id, "TXN_STATE": TxnState.COMMITTED, "TXN_STARTED": 0, "TXN_LAST_HEARTBEAT": 0}
        conn.execute(TXNS.insert().values(mark | {"TXN_USER": "", "TXN_HOST": "", "TXN_TYPE": 0}))
        follow_ids(conn, TXNS, "TXN_ID")
        return True
