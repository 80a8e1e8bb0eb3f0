"""Snapshots: which transactions and writes a reader, a writer or a compaction may see.

A reader of ours declares in MIN_HISTORY_WRITE_ID every table it will ever read, in the same database transaction in
which it opens and takes its snapshot. That is what lets the cleaner wait for the readers of one table only (I5).

Sources: Hive `TxnCommonUtils.createValidReadTxnList`, `TxnUtils.createValidTxnListForCompactor` (HIVE-29567),
`GetOpenTxnsListHandler`, `AddWriteIdsToMinHistoryCommand`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.acid.snapshot import NO_OPEN, ValidTxnList, ValidWriteIdList
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import MIN_HISTORY_WRITE_ID, TXNS
from compactor.metastore.txns import TxnState, TxnType, high_water, insert_open
from compactor.metastore.writeids import write_ids_of_snapshot


@dataclass(frozen=True, kw_only=True)
class ReadSnapshot:
    """What a declared transaction sees of the tables it declared."""

    txn_id: int
    txns: ValidTxnList
    write_ids: Mapping[TableName, ValidWriteIdList]


@retried
def valid_txn_list(db: Database, *, own_txn: int = 0) -> ValidTxnList:
    """The transactions that are committed now.

    own_txn: the snapshot of that transaction: it sees itself, and nothing that opened later even when that has
    committed already. 0: the newest state.
    """
    with db.read() as conn:
        return _txn_list(conn, own_txn=own_txn)


@retried
def valid_txn_list_for_compactor(db: Database, own_txn: int) -> ValidTxnList:
    """The snapshot of a compaction: its own transaction counts as open.

    Otherwise it could take its own unfinished output for the base and lose the table (HIVE-29567).
    """
    with db.read() as conn:
        seen = _txn_list(conn, own_txn=own_txn)
    return ValidTxnList(high_water=seen.high_water, open=seen.open | {own_txn}, aborted=seen.aborted)


def open_reader(
    db: Database, tables: Sequence[TableName], *, user: str, host: str, agent_info: str = ""
) -> ReadSnapshot:
    """Open a read-only transaction that reads exactly these tables, with its snapshot."""
    return open_declared(db, tables, kind=TxnType.READ_ONLY, user=user, host=host, agent_info=agent_info)


@retried
def open_declared(
    db: Database, tables: Sequence[TableName], *, kind: TxnType, user: str, host: str, agent_info: str = ""
) -> ReadSnapshot:
    """Open a transaction that declares the tables it will read, a writer's targets included, with its snapshot."""
    with db.write() as conn:
        (txn_id,) = insert_open(db, conn, count=1, kind=kind, user=user, host=host, agent_info=agent_info)
        txns = _txn_list(conn, own_txn=txn_id)
        write_ids = {table: write_ids_of_snapshot(conn, table, txns) for table in tables}
        for table, writes in write_ids.items():
            oldest_needed = writes.high_water + 1 if writes.min_open == NO_OPEN else writes.min_open
            conn.execute(
                MIN_HISTORY_WRITE_ID.insert().values(
                    MH_TXNID=txn_id, MH_DATABASE=table.database, MH_TABLE=table.table, MH_WRITEID=oldest_needed
                )
            )
        return ReadSnapshot(txn_id=txn_id, txns=txns, write_ids=write_ids)


def _txn_list(conn: sa.Connection, *, own_txn: int) -> ValidTxnList:
    newest = high_water(conn)
    top = min(own_txn, newest) if own_txn else newest
    unfinished = sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_STATE).where(
        TXNS.c.TXN_STATE != TxnState.COMMITTED, TXNS.c.TXN_ID <= top, TXNS.c.TXN_ID != own_txn
    )
    opened: set[int] = set()
    aborted: set[int] = set()
    for txn_id, state in conn.execute(unfinished):
        (aborted if state == TxnState.ABORTED else opened).add(txn_id)
    return ValidTxnList(high_water=top, open=frozenset(opened), aborted=frozenset(aborted))
