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
from compactor.metastore.in_flight import OPEN_TXN_TIMEOUT_MS, ids_in_flight
from compactor.metastore.open_rules import HIVES_RULES, OpenRules
from compactor.metastore.schema import MIN_HISTORY_WRITE_ID, TXNS
from compactor.metastore.txns import TxnState, TxnType, count_open, high_water, insert_open, require_prompt
from compactor.metastore.writeids import write_ids_of_snapshot


@dataclass(frozen=True, kw_only=True)
class ReadSnapshot:
    """What a declared transaction sees of the tables it declared."""

    txn_id: int
    txns: ValidTxnList
    write_ids: Mapping[TableName, ValidWriteIdList]


@retried
def valid_txn_list(db: Database, *, own_txn: int = 0, open_timeout_ms: int = OPEN_TXN_TIMEOUT_MS) -> ValidTxnList:
    """The transactions that are committed now.

    own_txn: the snapshot of that transaction: it sees itself, and nothing that opened later even when that has
    committed already. 0: the newest state. open_timeout_ms: see `in_flight`.
    """
    with db.read() as conn:
        return _txn_list(db, conn, own_txn=own_txn, open_timeout_ms=open_timeout_ms)


@retried
def valid_txn_list_for_compactor(
    db: Database, own_txn: int, *, open_timeout_ms: int = OPEN_TXN_TIMEOUT_MS
) -> ValidTxnList:
    """The snapshot of a compaction: its own transaction counts as open.

    Otherwise it could take its own unfinished output for the base and lose the table (HIVE-29567).
    """
    with db.read() as conn:
        seen = _txn_list(db, conn, own_txn=own_txn, open_timeout_ms=open_timeout_ms)
    return ValidTxnList(high_water=seen.high_water, open=seen.open | {own_txn}, aborted=seen.aborted)


def open_reader(
    db: Database,
    tables: Sequence[TableName],
    *,
    user: str,
    host: str,
    agent_info: str = "",
    rules: OpenRules = HIVES_RULES,
) -> ReadSnapshot:
    """Open a read-only transaction that reads exactly these tables, with its snapshot; raises as `open_declared`."""
    kind = TxnType.READ_ONLY
    return open_declared(db, tables, kind=kind, user=user, host=host, agent_info=agent_info, rules=rules)


@retried
def open_declared(
    db: Database,
    tables: Sequence[TableName],
    *,
    kind: TxnType,
    user: str,
    host: str,
    agent_info: str = "",
    rules: OpenRules = HIVES_RULES,
) -> ReadSnapshot:
    """Open a transaction that declares the tables it will read, a writer's targets included, with its snapshot.

    The transaction lock, which opening holds shared until the end, keeps every publication out: either it came before
    and the snapshot sees its output, or it comes after and finds the declaration. TooManyTransactions.
    """
    rules.admit(1, lambda: count_open(db))
    with db.write() as conn:
        opened = insert_open(db, conn, count=1, kind=kind, user=user, host=host, agent_info=agent_info, rules=rules)
        txn_id = opened[0]
        txns = _txn_list(db, conn, own_txn=txn_id, open_timeout_ms=rules.open_timeout_ms)
        write_ids = {table: write_ids_of_snapshot(conn, table, txns) for table in tables}
        for table, writes in write_ids.items() if rules.min_history_write_id else ():
            oldest_needed = writes.high_water + 1 if writes.min_open == NO_OPEN else writes.min_open
            conn.execute(
                MIN_HISTORY_WRITE_ID.insert().values(
                    MH_TXNID=txn_id, MH_DATABASE=table.database, MH_TABLE=table.table, MH_WRITEID=oldest_needed
                )
            )
        require_prompt(db, conn, opened, rules)
        return ReadSnapshot(txn_id=txn_id, txns=txns, write_ids=write_ids)


def _txn_list(db: Database, conn: sa.Connection, *, own_txn: int, open_timeout_ms: int) -> ValidTxnList:
    """The newest id is read first: what commits or opens between the statements is above it, or still open to us."""
    newest = high_water(conn)
    top = min(own_txn, newest) if own_txn else newest
    # before the rows are: an id that gets its row in between is a row then, never neither
    opened = {i for i in ids_in_flight(db, conn, open_timeout_ms=open_timeout_ms) if i <= top}
    unfinished = sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_STATE).where(
        TXNS.c.TXN_STATE.in_([TxnState.OPEN, TxnState.ABORTED]), TXNS.c.TXN_ID <= top, TXNS.c.TXN_ID != own_txn
    )
    aborted: set[int] = set()
    for txn_id, state in conn.execute(unfinished):
        (aborted if state == TxnState.ABORTED else opened).add(txn_id)
    return ValidTxnList(high_water=top, open=frozenset(opened - aborted), aborted=frozenset(aborted))
