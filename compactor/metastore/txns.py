"""The life of a transaction: opened, kept alive, committed or aborted.

    open ──► o ──commit──► c          heartbeats keep it in o
             └──abort, time-out, conflict──► a

1. Opening takes TXN_LOCK_TBL shared, committing changes exclusive, so that such a commit sees every transaction that
   opened before it. Then comes the row of TXNS, which whoever acts for a transaction locks: a commit, an abort, a lock, a
   write id exclude each other. This is Hive's order, and a running Hive takes part in it.
2. A commit is one guarded UPDATE o→c; the row count says whether it was still ours to commit.
3. First committer wins: two transactions that overlap in time and updated or deleted in the same place cannot both
   commit (WRITE_SET). Inserts never conflict.
4. An abort keeps TXN_COMPONENTS: they say where the garbage of the transaction lies.

Sources: Hive `OpenTxnsFunction`, `CommitTxnFunction`, `AbortTxnsFunction`, `HeartbeatTxnFunction`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import sqlalchemy as sa

from compactor.errors import (
    CommitOutcomeUnknown,
    DatabaseUnavailable,
    Deadlock,
    NoSuchTransaction,
    ReplicationRefused,
    TransactionAborted,
    WriteConflict,
)
from compactor.metastore.components import complete_components, conflict, has_changes, record_write_set
from compactor.metastore.database import Database, RolledBack, repeatable, retried
from compactor.metastore.dialects import lock_table
from compactor.metastore.in_flight import oldest_in_flight_or_open
from compactor.metastore.open_rules import HIVES_RULES, OpenRules
from compactor.metastore.schema import (
    HIVE_LOCKS,
    MIN_HISTORY_LEVEL,
    MIN_HISTORY_WRITE_ID,
    TXN_COMPONENTS,
    TXN_LOCK_TBL,
    TXNS,
)
from compactor.metastore.soft_delete import date_queue_rows

_IDS_A_STATEMENT = 1000


class TxnType(enum.IntEnum):
    """What a transaction was opened for (Hive `TxnType`)."""

    DEFAULT = 0
    """A statement that may read and write."""
    REPL_CREATED = 1
    """Replays a transaction of another cluster."""
    READ_ONLY = 2
    """Writes nothing."""
    COMPACTION = 3
    """A major or minor compaction: rewrites rows, changes none."""
    MATER_VIEW_REBUILD = 4
    """Rebuilds a materialised view."""
    SOFT_DELETE = 5
    """Drops a table or partition whose files the cleaner removes later."""
    REBALANCE_COMPACTION = 6
    """A rebalance: a compaction that gives rows new row ids."""


COMPACTION_TYPES = frozenset({TxnType.COMPACTION, TxnType.REBALANCE_COMPACTION})
DEADLOCK_REASON = "abort by deadlock"
"""How TXN_META_INFO begins when `deadlocks` ended a transaction."""

_NEVER_CONFLICT = frozenset({TxnType.READ_ONLY, TxnType.SOFT_DELETE, TxnType.COMPACTION})


class TxnState(enum.StrEnum):
    """Where a transaction stands; the letters of TXN_STATE."""

    OPEN = "o"
    """Running, or its owner died and the time-out has not noticed yet."""
    ABORTED = "a"
    """Given up; what it wrote is garbage until a compaction or the cleaner removes it."""
    COMMITTED = "c"
    """Done; visible to every snapshot that was taken later."""


@dataclass(frozen=True, kw_only=True)
class AbortOutcome:
    """What `abort_transactions` found, by id in ascending order."""

    aborted: tuple[int, ...]
    already_aborted: tuple[int, ...]
    committed: tuple[int, ...]
    unknown: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TransactionInfo:
    """One line of SHOW TRANSACTIONS; started, last_heartbeat: epoch ms of the database's clock."""

    id: int
    state: TxnState
    kind: TxnType
    started: int
    last_heartbeat: int
    user: str
    host: str
    agent_info: str


@retried
def open_transactions(
    db: Database,
    *,
    count: int = 1,
    kind: TxnType = TxnType.DEFAULT,
    user: str,
    host: str,
    agent_info: str = "",
    rules: OpenRules = HIVES_RULES,
) -> list[int]:
    """Open `count` transactions, or as many as one call may; their ids, ascending.

    TooManyTransactions when the installation's limit is reached, ReplicationRefused for a replayed one.
    """
    granted = rules.admit(count, lambda: count_open(db))
    with db.write() as conn:
        opened = insert_open(
            db, conn, count=granted, kind=kind, user=user, host=host, agent_info=agent_info, rules=rules
        )
        require_prompt(db, conn, opened, rules)
        return opened


def commit_transaction(db: Database, txn_id: int, *, rules: OpenRules = HIVES_RULES) -> None:
    """Make what a transaction wrote visible.

    WriteConflict: someone who overlapped in time was first, and this transaction is aborted now. TransactionAborted,
    NoSuchTransaction, ReplicationRefused. Committing what is committed already does nothing, as in Hive. When the
    answer is lost the transaction is read back; CommitOutcomeUnknown when that, too, is not possible.
    """
    try:
        _commit(db, txn_id, rules=rules)
    except CommitOutcomeUnknown as unknown:
        try:
            state = transaction_state(db, txn_id)
        except DatabaseUnavailable as error:
            raise unknown from error
        if state is None:
            raise
        _commit(db, txn_id, rules=rules)


@retried
def _commit(db: Database, txn_id: int, *, rules: OpenRules) -> None:
    with db.write() as conn:
        in_order = rules.min_history_level is False or _changes_or_publishes(conn, txn_id)
        if in_order:
            lock_transactions(conn)
        kind = open_kind(conn, txn_id)
        if kind is None:
            if state_of(conn, txn_id) is TxnState.COMMITTED:
                return
            raise not_open(conn, txn_id)
        refuse_replication(kind)
        may_conflict = kind not in _NEVER_CONFLICT
        changes = may_conflict and has_changes(conn, txn_id)
        if changes and not in_order:
            raise RolledBack(f"transaction {txn_id} got something to write while it committed")
        winner = conflict(conn, txn_id) if changes else None
        if winner is None:
            newest = high_water(conn)
            if changes or (may_conflict and not rules.min_history_level):
                record_write_set(conn, txn_id, commit_id=newest, inserts_too=not rules.min_history_level)
            if kind is TxnType.SOFT_DELETE or kind in COMPACTION_TYPES:
                date_queue_rows(conn, txn_id, newest_txn=newest, now=db.now(conn))
            if kind is not TxnType.READ_ONLY and kind not in COMPACTION_TYPES:
                complete_components(conn, txn_id, at=db.timestamp(conn), changes=changes)
            conn.execute(TXN_COMPONENTS.delete().where(TXN_COMPONENTS.c.TC_TXNID == txn_id))
            end_transactions(conn, [txn_id], state=TxnState.COMMITTED)
        else:
            end_transactions(conn, [txn_id], state=TxnState.ABORTED, reason="abort write conflict")
    # raised only now: the abort itself must be committed
    if winner is not None:
        raise WriteConflict(
            f"transaction {txn_id} is aborted: {winner}", hint="run the statement again on a new snapshot"
        )


@retried
def abort_transactions(db: Database, txn_ids: Iterable[int], *, reason: str = "abort by query command") -> AbortOutcome:
    """Abort those that are open and say what the others are; reason goes to TXN_META_INFO (128 characters)."""
    wanted = sorted(set(txn_ids))
    with db.write() as conn:
        states = dict(
            row
            for chunk in _chunks(wanted)
            for row in conn.execute(
                sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_STATE)
                .where(TXNS.c.TXN_ID.in_(chunk))
                .order_by(TXNS.c.TXN_ID)
                .with_for_update()
            )
        )
        aborted = [txn_id for txn_id in wanted if states.get(txn_id) == TxnState.OPEN]
        end_transactions(conn, aborted, state=TxnState.ABORTED, reason=reason)
    return AbortOutcome(
        aborted=tuple(aborted),
        already_aborted=tuple(i for i in wanted if states.get(i) == TxnState.ABORTED),
        committed=tuple(i for i in wanted if states.get(i) == TxnState.COMMITTED),
        unknown=tuple(i for i in wanted if i not in states),
    )


@repeatable
def heartbeat(db: Database, txn_id: int) -> None:
    """Say that the owner is alive; TransactionAborted, or NoSuchTransaction when it is committed or unknown."""
    with db.write() as conn:
        keep_alive(db, conn, txn_id)


@retried
def transaction_state(db: Database, txn_id: int) -> TxnState | None:
    """The state, None when the id is unknown: never opened, or ended and cleaned away."""
    with db.read() as conn:
        return state_of(conn, txn_id)


@retried
def show_transactions(db: Database, *, limit: int = 1000) -> list[TransactionInfo]:
    """SHOW TRANSACTIONS: the oldest open and aborted transactions, by id."""
    query = sa.select(TXNS).where(TXNS.c.TXN_STATE != TxnState.COMMITTED).order_by(TXNS.c.TXN_ID).limit(limit)
    with db.read() as conn:
        return [
            TransactionInfo(
                id=row.TXN_ID,
                state=TxnState(row.TXN_STATE),
                kind=TxnType(row.TXN_TYPE or 0),
                started=row.TXN_STARTED,
                last_heartbeat=row.TXN_LAST_HEARTBEAT,
                user=row.TXN_USER,
                host=row.TXN_HOST,
                agent_info=row.TXN_AGENT_INFO or "",
            )
            for row in conn.execute(query)
        ]


@retried
def min_open_txn(db: Database) -> int | None:
    """The smallest open transaction id, None when none is open."""
    query = sa.select(sa.func.min(TXNS.c.TXN_ID)).where(TXNS.c.TXN_STATE == TxnState.OPEN)
    with db.read() as conn:
        smallest: int | None = conn.scalar(query)
        return smallest


@retried
def count_open(db: Database) -> int:
    """How many transactions are open (`CountOpenTxnsHandler`)."""
    with db.read() as conn:
        query = sa.select(sa.func.count()).select_from(TXNS).where(TXNS.c.TXN_STATE == TxnState.OPEN)
        return conn.execute(query).scalar_one()


# What follows runs inside a transaction that the caller opened.


def _changes_or_publishes(conn: sa.Connection, txn_id: int) -> bool:
    """Must the commit come before or after every opening? Not of readers and inserts, which conflict with nobody."""
    kind = conn.scalar(sa.select(TXNS.c.TXN_TYPE).where(TXNS.c.TXN_ID == txn_id))
    return kind not in (None, TxnType.DEFAULT, TxnType.READ_ONLY) or has_changes(conn, txn_id)


def lock_transactions(conn: sa.Connection, *, shared: bool = False) -> None:
    """Hive's global transaction lock (`AcquireTxnLockFunction`): always the first lock taken."""
    lock_table(conn, TXN_LOCK_TBL, shared=shared)


def insert_open(
    db: Database,
    conn: sa.Connection,
    *,
    count: int,
    kind: TxnType,
    user: str,
    host: str,
    agent_info: str,
    rules: OpenRules,
) -> list[int]:
    """The rows of new transactions, each with the smallest id that was open when it opened (MIN_HISTORY_LEVEL).

    `require_prompt` has to be the last statement of the same database transaction.
    """
    refuse_replication(kind)
    lock_transactions(conn, shared=True)
    now = db.now(conn)
    opened = {
        "TXN_STATE": TxnState.OPEN,
        "TXN_STARTED": now,
        "TXN_LAST_HEARTBEAT": now,
        "TXN_USER": user,
        "TXN_HOST": host,
        "TXN_AGENT_INFO": agent_info[:128] or None,
        "TXN_TYPE": int(kind),
    }
    if conn.dialect.insert_executemany_returning:
        # in one go: a thousand round trips would take longer than opening may
        txn_ids = sorted(conn.scalars(TXNS.insert().returning(TXNS.c.TXN_ID), [opened] * count))
    else:
        results = [conn.execute(TXNS.insert().values(opened)) for _ in range(count)]
        txn_ids = [key[0] for result in results if (key := result.inserted_primary_key)]
    if rules.min_history_level:
        oldest = oldest_in_flight_or_open(db, conn, open_timeout_ms=rules.open_timeout_ms)
        seen = [{"MHL_TXNID": txn_id, "MHL_MIN_OPEN_TXNID": oldest} for txn_id in txn_ids]
        conn.execute(MIN_HISTORY_LEVEL.insert(), seen)
    return txn_ids


def require_prompt(db: Database, conn: sa.Connection, txn_ids: Sequence[int], rules: OpenRules) -> None:
    """RolledBack when opening took so long that snapshots may have stopped to wait for these ids (`in_flight`).

    Readers may take longer: nobody is misled by a transaction that writes nothing.
    """
    query = sa.select(TXNS.c.TXN_STARTED, TXNS.c.TXN_TYPE).where(TXNS.c.TXN_ID == txn_ids[0])
    started, kind = conn.execute(query).one()
    took = db.now(conn) - started
    if took >= rules.open_timeout_ms and kind != TxnType.READ_ONLY:
        raise RolledBack(
            f"opening transaction {txn_ids[0]} took {took} ms, longer than {rules.open_timeout_ms} ms; it is undone"
        )


def refuse_replication(kind: TxnType) -> None:
    """ReplicationRefused for a transaction whose other half lives in another cluster."""
    if kind is TxnType.REPL_CREATED:
        raise ReplicationRefused("transactions that replay those of another cluster are not supported")


def keep_alive(db: Database, conn: sa.Connection, txn_id: int) -> None:
    """Heartbeat an open transaction, whose row is locked from then on; TransactionAborted, NoSuchTransaction."""
    beat = TXNS.update().where(TXNS.c.TXN_ID == txn_id, TXNS.c.TXN_STATE == TxnState.OPEN)
    if conn.execute(beat.values(TXN_LAST_HEARTBEAT=db.now(conn))).rowcount != 1:
        raise not_open(conn, txn_id)


def high_water(conn: sa.Connection) -> int:
    """The largest transaction id that was ever given out (`GetHighWaterMarkHandler`)."""
    return conn.execute(sa.select(sa.func.max(TXNS.c.TXN_ID))).scalar_one() or 0


def open_kind(conn: sa.Connection, txn_id: int) -> TxnType | None:
    """What an open transaction was opened for, its row locked; None when it is not open."""
    query = sa.select(TXNS.c.TXN_TYPE).where(TXNS.c.TXN_ID == txn_id, TXNS.c.TXN_STATE == TxnState.OPEN)
    row = conn.execute(query.with_for_update()).one_or_none()
    return None if row is None else TxnType(row.TXN_TYPE or 0)


def state_of(conn: sa.Connection, txn_id: int) -> TxnState | None:
    """The state of a transaction, None when the id is unknown."""
    letter = conn.scalar(sa.select(TXNS.c.TXN_STATE).where(TXNS.c.TXN_ID == txn_id))
    return None if letter is None else TxnState(letter)


def not_open(conn: sa.Connection, txn_id: int) -> NoSuchTransaction | TransactionAborted:
    """The error that says why a transaction cannot go on (`TxnUtils.raiseTxnUnexpectedState`)."""
    state = state_of(conn, txn_id)
    if state is TxnState.ABORTED:
        reason = conn.scalar(sa.select(TXNS.c.TXN_META_INFO).where(TXNS.c.TXN_ID == txn_id)) or ""
        error = Deadlock if reason.startswith(DEADLOCK_REASON) else TransactionAborted
        return error(f"transaction {txn_id} is aborted" + (f" ({reason})" if reason else ""))
    why = "is committed already" if state is TxnState.COMMITTED else "does not exist"
    return NoSuchTransaction(f"transaction {txn_id} {why}")


def end_transactions(
    conn: sa.Connection, txn_ids: Sequence[int], *, state: TxnState, reason: str | None = None
) -> None:
    """o→state, and everything goes that only an open transaction has: locks and history rows."""
    for chunk in _chunks(txn_ids):
        ended = TXNS.update().where(TXNS.c.TXN_ID.in_(chunk), TXNS.c.TXN_STATE == TxnState.OPEN)
        values = {"TXN_STATE": state} | ({} if reason is None else {"TXN_META_INFO": reason[:128]})
        if conn.execute(ended.values(values)).rowcount != len(chunk):
            raise TransactionAborted(f"one of the transactions {chunk} ended meanwhile; nothing was changed")
        conn.execute(HIVE_LOCKS.delete().where(HIVE_LOCKS.c.HL_TXNID.in_(chunk)))
        conn.execute(MIN_HISTORY_LEVEL.delete().where(MIN_HISTORY_LEVEL.c.MHL_TXNID.in_(chunk)))
        conn.execute(MIN_HISTORY_WRITE_ID.delete().where(MIN_HISTORY_WRITE_ID.c.MH_TXNID.in_(chunk)))


def _chunks(txn_ids: Sequence[int]) -> Iterator[list[int]]:
    rest = iter(txn_ids)
    while chunk := list(islice(rest, _IDS_A_STATEMENT)):
        yield chunk
