"""Who still needs the files that a compaction replaced (I5).

A compaction that committed with NEXT_TXN_ID = N replaced files that every transaction with an id ≤ N may be reading:
N itself counts, because it can be a reader that opened just before the commit. Such a transaction holds the files
back while it is open, unless it is known not to read the table:

* it declared what it reads (MIN_HISTORY_WRITE_ID), and this table is not among it, or
* it is a compaction of another table.

MIN_HISTORY_LEVEL must agree, for those who declared nothing: a transaction above N that opened while one ≤ N was open
is waited for as well. A declared one above N opened, and took its snapshot, after the publication: it sees the new
files, and a long query elsewhere must not block this table through it.

Sources: Hive `MinOpenTxnIdWaterMarkFunction`, `ReadyToCleanHandler`, `Cleaner.findMinTxnIdSeenOpen`; HIVE-26704.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from compactor.acid.snapshot import NO_OPEN
from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import MIN_HISTORY_LEVEL, MIN_HISTORY_WRITE_ID, TXN_COMPONENTS, TXNS
from compactor.metastore.txns import COMPACTION_TYPES, TxnState


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """A transaction that may need the replaced files; started: epoch ms; why: one clause for the operator."""

    txn_id: int
    user: str
    host: str
    started: int
    why: str


def oldest_unfinished_at_or_below(db: Database, txn_id: int, table: TableName) -> Blocker | None:
    """The oldest transaction that forbids removing what a compaction of the table with NEXT_TXN_ID = txn_id replaced.

    None: every file that became obsolete then may go.
    """
    return next(iter(unfinished_at_or_below(db, txn_id, table, limit=1)), None)


@retried
def unfinished_at_or_below(db: Database, txn_id: int, table: TableName, *, limit: int = 100) -> list[Blocker]:
    """All such transactions, oldest first, at most `limit`."""
    with db.read() as conn:
        return unfinished(conn, txn_id, table, limit=limit)


def unfinished(conn: sa.Connection, txn_id: int, table: TableName, *, limit: int) -> list[Blocker]:
    """`unfinished_at_or_below` inside a transaction that is open already."""
    about = {"up_to": txn_id, "of_database": table.database, "of_table": table.table, "at_most": limit}
    return [
        Blocker(txn_id=row.TXN_ID, user=row.TXN_USER, host=row.TXN_HOST, started=row.TXN_STARTED, why=row.WHY)
        for row in conn.execute(_unfinished(), about)
    ]


@cache
def _unfinished() -> sa.Select[Any]:
    """Made once: it is asked before every removal, and to build it takes longer than to answer it."""
    up_to = sa.bindparam("up_to", type_=sa.BigInteger)
    declared = _declared()
    reads_this = _declared(this_table=True)
    compaction = TXNS.c.TXN_TYPE.in_(COMPACTION_TYPES)
    elsewhere = sa.and_(compaction, _compacts(), ~_compacts(this_table=True))
    remembered = sa.exists().where(
        MIN_HISTORY_LEVEL.c.MHL_TXNID == TXNS.c.TXN_ID, MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID <= up_to
    )
    opened_before = TXNS.c.TXN_ID <= up_to
    why = sa.case(
        (sa.and_(opened_before, reads_this), "it declared that it reads the table"),
        (sa.and_(opened_before, compaction), "it compacts the table"),
        (opened_before, "it opened before the compaction committed and did not declare what it reads"),
        else_="it opened while an older transaction was open (MIN_HISTORY_LEVEL) and did not declare what it reads",
    )
    return (
        sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_USER, TXNS.c.TXN_HOST, TXNS.c.TXN_STARTED, why.label("WHY"))
        .where(TXNS.c.TXN_STATE == TxnState.OPEN)
        .where(sa.or_(sa.and_(opened_before, sa.or_(~declared, reads_this)), sa.and_(remembered, ~declared)))
        .where(~elsewhere)
        .order_by(TXNS.c.TXN_ID)
        .limit(sa.bindparam("at_most", type_=sa.Integer))
    )


@dataclass(frozen=True, kw_only=True)
class Holds:
    """From which NEXT_TXN_ID on the old files of compactions are held: of every table, and of some besides.

    The same rules as `unfinished_at_or_below`, for thousands of compactions at once; in doubt a row counts as held.
    """

    everywhere: int
    of_table: Mapping[TableName, int]

    def holds(self, next_txn_id: int, table: TableName) -> bool:
        """Does somebody need the files that a compaction of the table with this NEXT_TXN_ID replaced?"""
        return next_txn_id >= min(self.everywhere, self.of_table.get(table, NO_OPEN))


@retried
def current_holds(db: Database) -> Holds:
    """What the transactions that are open now hold."""
    compaction = sa.func.coalesce(TXNS.c.TXN_TYPE, 0).in_(COMPACTION_TYPES)
    oldest_txn = sa.func.min(TXNS.c.TXN_ID)
    oldest_remembered = sa.func.min(MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID)
    reads, compacts = MIN_HISTORY_WRITE_ID.c, TXN_COMPONENTS.c
    undeclared = (
        sa.select(oldest_txn, oldest_remembered)
        .outerjoin(MIN_HISTORY_LEVEL, MIN_HISTORY_LEVEL.c.MHL_TXNID == TXNS.c.TXN_ID)
        .where(TXNS.c.TXN_STATE == TxnState.OPEN, ~_declared(), ~compaction)
    )
    readers = (
        sa.select(reads.MH_DATABASE, reads.MH_TABLE, oldest_txn)
        .join(TXNS, TXNS.c.TXN_ID == reads.MH_TXNID)
        .where(TXNS.c.TXN_STATE == TxnState.OPEN)
        .group_by(reads.MH_DATABASE, reads.MH_TABLE)
    )
    running = (
        sa.select(TXNS.c.TXN_ID, MIN_HISTORY_LEVEL.c.MHL_MIN_OPEN_TXNID)
        .outerjoin(MIN_HISTORY_LEVEL, MIN_HISTORY_LEVEL.c.MHL_TXNID == TXNS.c.TXN_ID)
        .where(TXNS.c.TXN_STATE == TxnState.OPEN, compaction)
    )
    of_table: dict[TableName, int] = {}
    with db.read() as conn:
        everywhere = _smallest(conn.execute(undeclared).one())
        compactions = {row.TXN_ID: _smallest(row) for row in conn.execute(running)}
        compacted = sa.select(compacts.TC_DATABASE, compacts.TC_TABLE, compacts.TC_TXNID).where(
            compacts.TC_TXNID.in_(compactions), compacts.TC_OPERATION_TYPE == Operation.COMPACT
        )
        of_compactions = conn.execute(compacted).all()
        held = [(database, table, compactions[txn_id]) for database, table, txn_id in of_compactions]
        held += [(database, table, txn_id) for database, table, txn_id in conn.execute(readers)]
    # of a compaction that has not said yet what it compacts nobody knows what it reads
    silent = compactions.keys() - {txn_id for _, _, txn_id in of_compactions}
    everywhere = min([everywhere, *(compactions[txn_id] for txn_id in silent)])
    for database, table, oldest in held:
        name = TableName(database=database, table=table)
        of_table[name] = min(of_table.get(name, NO_OPEN), oldest)
    return Holds(everywhere=everywhere, of_table=of_table)


def _smallest(ids: Iterable[int | None]) -> int:
    return min((i for i in ids if i is not None), default=NO_OPEN)


def _declared(*, this_table: bool = False) -> sa.Exists:
    """Has the transaction declared that it reads the table of the question, or any table?"""
    history = MIN_HISTORY_WRITE_ID.c
    rows = sa.exists().where(history.MH_TXNID == TXNS.c.TXN_ID)
    return rows.where(_is_this(history.MH_DATABASE, history.MH_TABLE)) if this_table else rows


def _compacts(*, this_table: bool = False) -> sa.Exists:
    """Has the transaction recorded that it compacts the table of the question, or any table?"""
    ours = TXN_COMPONENTS.c
    rows = sa.exists().where(ours.TC_TXNID == TXNS.c.TXN_ID, ours.TC_OPERATION_TYPE == Operation.COMPACT)
    return rows.where(_is_this(ours.TC_DATABASE, ours.TC_TABLE)) if this_table else rows


def _is_this(database: sa.Column[str], table: sa.Column[str]) -> sa.ColumnElement[bool]:
    return sa.and_(database == sa.bindparam("of_database"), table == sa.bindparam("of_table"))
