"""First committer wins, for a rebalance as for any other change of rows.

Sources: Hive `CommitTxnFunction`, WRITE_SET.
"""

from __future__ import annotations

import sqlalchemy as sa

from compactor.errors import WriteConflict
from compactor.metastore.components import conflict, record_write_set
from compactor.metastore.txns import TxnType, high_water, open_kind


def keep_changes(conn: sa.Connection, txn_id: int) -> None:
    """First committer wins, for a rebalance as for any other change of rows (`CommitTxnFunction`, WRITE_SET).

    Its lock keeps writers out only while it is held: a transaction that took its snapshot before the rebalance was
    published and its lock afterwards must find it in WRITE_SET. WriteConflict when someone was first. Needs the
    transaction lock; does nothing for other kinds of compactions.
    """
    if open_kind(conn, txn_id) is not TxnType.REBALANCE_COMPACTION:
        return
    winner = conflict(conn, txn_id)
    if winner is not None:
        raise WriteConflict(
            f"the rebalance, transaction {txn_id}, cannot commit: {winner}", hint="request the rebalance again"
        )
    record_write_set(conn, txn_id, commit_id=high_water(conn))
