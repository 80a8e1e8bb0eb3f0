"""What might need a compaction, or a removal of aborted writes: the initiator's and the abort cleaner's questions.

Sources: Hive `CompactionCandidateHandler`, `AbortedTxnHandler`, `ReadyToCleanAbortHandler`. Hive
takes an unordered thousand of the candidates while its check time moves on, so that some tables may never be looked at
(HIVE-30026); here they come in pages by name, and a cycle that asks until a page is short has seen every one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Subquery,
    Table,
    and_,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    union,
    update,
)

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.compaction_rows import objects_are
from compactor.metastore.components import Operation
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import (
    AUX_TABLE,
    COMPACTION_QUEUE,
    COMPLETED_COMPACTIONS,
    COMPLETED_TXN_COMPONENTS,
    TXN_COMPONENTS,
    TXNS,
)
from compactor.metastore.txns import TxnState

_FULL_LOOK = "CompactorFullLook"
"""Our row of AUX_TABLE, beside those of Hive's mutexes."""


@dataclass(frozen=True, kw_only=True)
class AbortThresholds:
    """When aborted transactions of an object are worth an action; both comparisons are strict.

    count: hive.compactor.abortedtxn.threshold. older_than_ms: hive.compactor.aborted.txn.time.threshold, measured from
    the start of the oldest; negative disables it.
    """

    count: int = 1000
    older_than_ms: int = 12 * 60 * 60 * 1000


class CandidateKey(NamedTuple):
    """Where a page of candidates ended; partition '' stands for none."""

    database: str
    table: str
    partition: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A table or partition with writes that nobody compacted yet, or with many or old aborted ones."""

    table: TableName
    partition: str | None
    too_many_aborts: bool = False
    has_old_abort: bool = False

    @property
    def key(self) -> CandidateKey:
        """What to pass as `after` for the next page."""
        return CandidateKey(self.table.database, self.table.table, self.partition or "")


@dataclass(frozen=True, kw_only=True)
class AbortedObject:
    """A table or partition with aborted writes to remove.

    count: components of aborted transactions. oldest_started: epoch ms. min_open_txn: smallest open transaction that
    writes the same object. retry_retention: how long the last failed attempt was held back, 0 when there was none.
    """

    table: TableName
    partition: str | None
    count: int
    oldest_started: int
    too_many_aborts: bool
    has_old_abort: bool
    min_open_txn: int | None
    retry_retention: int


@retried
def candidates(
    db: Database,
    *,
    limit: int,
    after: CandidateKey | None = None,
    since_ms: int | None = None,
    aborts: AbortThresholds | None = None,
) -> list[Candidate]:
    """The next page of objects to look at, ordered by name; shorter than limit: there are no more.

    since_ms: epoch ms of the database's clock; only objects that were written since then, whose compaction ended since
    then, or whose newest history row says that the last attempt failed or was not started. None: all. aborts: take in objects over these thresholds too;
    None: aborted writes are the cleaner's business and both flags stay False.
    """
    with db.read() as conn:
        written = select(*_key(COMPLETED_TXN_COMPONENTS, "CTC")).distinct()
        parts = [written]
        if since_ms is not None:
            since = db.timestamp(conn) - timedelta(milliseconds=db.now(conn) - since_ms)
            parts = [written.where(COMPLETED_TXN_COMPONENTS.c.CTC_TIMESTAMP >= since), *_to_look_at_again(since_ms)]
        if aborts is not None:
            overdue = _aborted(db.now(conn), aborts).subquery()
            parts.append(select(overdue.c.DATABASE, overdue.c.TABLE, overdue.c.PARTITION))
        keys = union(*parts).subquery()
        position = (keys.c.DATABASE, keys.c.TABLE, keys.c.PARTITION)
        page = select(*position).order_by(*position).limit(limit)
        if after is not None:
            page = page.where(tuple_(*position) > tuple_(*(literal(part) for part in after)))
        found = [CandidateKey(*row) for row in conn.execute(page)]
        flags = {} if aborts is None else _flags(conn, db.now(conn), aborts)
    return [_candidate(key, *flags.get(key, (False, False))) for key in found]


@retried
def aborted_objects(db: Database, *, thresholds: AbortThresholds, limit: int = 1000) -> list[AbortedObject]:
    """Objects whose aborted writes are over a threshold, oldest first (ReadyToCleanAbortHandler).

    An object whose removal failed lately is kept back until its retry is due.
    """
    with db.read() as conn:
        now = db.now(conn)
        found = _aborted(now, thresholds).subquery()
        writers = _open_writers().subquery()
        retries = _held_back().subquery()
        query = (
            select(
                found,
                writers.c.MIN_OPEN_TXN,
                func.coalesce(retries.c.RETENTION, 0).label("RETRY_RETENTION"),
            )
            .outerjoin(writers, _same(found, writers))
            .outerjoin(retries, _same(found, retries))
            .where(or_(retries.c.DUE.is_(None), retries.c.DUE <= now))
            .order_by(found.c.OLDEST, found.c.DATABASE, found.c.TABLE, found.c.PARTITION)
            .limit(limit)
        )
        return [
            AbortedObject(
                table=TableName(database=row.DATABASE, table=row.TABLE),
                partition=row.PARTITION or None,
                count=row.ABORTS,
                oldest_started=row.OLDEST,
                too_many_aborts=row.ABORTS > thresholds.count,
                has_old_abort=_is_old(row.OLDEST, now, thresholds),
                min_open_txn=row.MIN_OPEN_TXN,
                retry_retention=row.RETRY_RETENTION,
            )
            for row in conn.execute(query)
        ]


@retried
def last_full_look(db: Database) -> int | None:
    """When the last cycle began that looked at everything, epoch ms; None when there was none."""
    with db.read() as conn:
        return conn.scalar(select(AUX_TABLE.c.MT_KEY2).where(AUX_TABLE.c.MT_KEY1 == _FULL_LOOK))


@retried
def record_full_look(db: Database, at: int) -> None:
    """Keep for every initiator to come when a cycle began that looked at everything; at: epoch ms."""
    with db.write() as conn:
        kept = update(AUX_TABLE).where(AUX_TABLE.c.MT_KEY1 == _FULL_LOOK).values(MT_KEY2=at)
        if conn.execute(kept).rowcount == 0:
            conn.execute(insert(AUX_TABLE).values(MT_KEY1=_FULL_LOOK, MT_KEY2=at))


@retried
def active_objects(
    db: Database, objects: Collection[tuple[TableName, str | None]]
) -> frozenset[tuple[TableName, str | None]]:
    """Those of the objects of which a compaction is requested or running; 'r' does not count (isEligibleForCompaction)."""
    queue = COMPACTION_QUEUE.c
    query = select(queue.CQ_DATABASE, queue.CQ_TABLE, queue.CQ_PARTITION).where(
        queue.CQ_STATE.in_([CompactionState.INITIATED, CompactionState.WORKING])
    )
    with db.read() as conn:
        return frozenset(
            (TableName(database=row.CQ_DATABASE, table=row.CQ_TABLE), row.CQ_PARTITION)
            for condition in objects_are(COMPACTION_QUEUE, "CQ", objects)
            for row in conn.execute(query.where(condition))
        )


def _key(rows: Table, prefix: str) -> list[ColumnElement[Any]]:
    """The name of a row's object, comparable: no partition is ''."""
    return [
        rows.c[f"{prefix}_DATABASE"].label("DATABASE"),
        rows.c[f"{prefix}_TABLE"].label("TABLE"),
        func.coalesce(rows.c[f"{prefix}_PARTITION"], "").label("PARTITION"),
    ]


def _same(left: Subquery, right: Subquery) -> ColumnElement[bool]:
    return and_(*(left.c[name] == right.c[name] for name in ("DATABASE", "TABLE", "PARTITION")))


def _candidate(key: CandidateKey, too_many_aborts: bool, has_old_abort: bool) -> Candidate:
    return Candidate(
        table=TableName(database=key.database, table=key.table),
        partition=key.partition or None,
        too_many_aborts=too_many_aborts,
        has_old_abort=has_old_abort,
    )


def _to_look_at_again(since_ms: int) -> Iterator[Select[Any]]:
    """Objects with writes that were no new ones, but whose last compaction failed, or ended since then.

    While it was under way nobody could ask for another one. Objects with a partition and without are separate
    questions, for no index answers one that compares NULLs.
    """
    queue, history, newer = COMPACTION_QUEUE, COMPLETED_COMPACTIONS, COMPLETED_COMPACTIONS.alias()
    published = and_(
        queue.c.CQ_STATE == CompactionState.READY_FOR_CLEANING,
        or_(queue.c.CQ_COMMIT_TIME >= since_ms, queue.c.CQ_COMMIT_TIME.is_(None)),
    )
    failed = history.c.CC_STATE.in_([CompactionState.DID_NOT_INITIATE, CompactionState.FAILED])
    for partitioned in (True, False):
        followed = _same_object(history, "CC", newer, "CC", partitioned=partitioned)
        last = ~exists().where(followed, newer.c.CC_ID > history.c.CC_ID)
        for rows, prefix, condition in (
            (queue, "CQ", published),
            (history, "CC", history.c.CC_END >= since_ms),
            (history, "CC", and_(failed, last)),
        ):
            named = rows.c[f"{prefix}_PARTITION"]
            written = _same_object(rows, prefix, COMPLETED_TXN_COMPONENTS, "CTC", partitioned=partitioned)
            yield select(*_key(rows, prefix)).where(
                condition, named.is_not(None) if partitioned else named.is_(None), exists().where(written)
            )


def _same_object(
    one: FromClause, prefix: str, other: FromClause, other_prefix: str, *, partitioned: bool
) -> ColumnElement[bool]:
    """partitioned: both rows have a partition; otherwise neither has."""
    partition = other.c[f"{other_prefix}_PARTITION"]
    return and_(
        other.c[f"{other_prefix}_DATABASE"] == one.c[f"{prefix}_DATABASE"],
        other.c[f"{other_prefix}_TABLE"] == one.c[f"{prefix}_TABLE"],
        partition == one.c[f"{prefix}_PARTITION"] if partitioned else partition.is_(None),
    )


def _aborted(now: int, thresholds: AbortThresholds) -> Select[Any]:
    """Objects over a threshold: DATABASE, TABLE, PARTITION, ABORTS, OLDEST. Aborted compactions are `abandoned`'s."""
    count, oldest = func.count(), func.min(TXNS.c.TXN_STARTED)
    over = count > thresholds.count
    if thresholds.older_than_ms >= 0:
        over = or_(over, oldest < now - thresholds.older_than_ms)
    key = _key(TXN_COMPONENTS, "TC")
    return (
        select(*key, count.label("ABORTS"), oldest.label("OLDEST"))
        .join(TXNS, TXNS.c.TXN_ID == TXN_COMPONENTS.c.TC_TXNID)
        .where(TXNS.c.TXN_STATE == TxnState.ABORTED, TXN_COMPONENTS.c.TC_OPERATION_TYPE != Operation.COMPACT)
        .group_by(TXN_COMPONENTS.c.TC_DATABASE, TXN_COMPONENTS.c.TC_TABLE, TXN_COMPONENTS.c.TC_PARTITION)
        .having(over)
    )


def _is_old(oldest_started: int, now: int, thresholds: AbortThresholds) -> bool:
    return thresholds.older_than_ms >= 0 and oldest_started < now - thresholds.older_than_ms


def _flags(conn: Connection, now: int, thresholds: AbortThresholds) -> dict[CandidateKey, tuple[bool, bool]]:
    rows = conn.execute(_aborted(now, thresholds))
    return {
        CandidateKey(row.DATABASE, row.TABLE, row.PARTITION): (
            row.ABORTS > thresholds.count,
            _is_old(row.OLDEST, now, thresholds),
        )
        for row in rows
    }


def _open_writers() -> Select[Any]:
    """The smallest open writing transaction of each object."""
    return (
        select(*_key(TXN_COMPONENTS, "TC"), func.min(TXN_COMPONENTS.c.TC_TXNID).label("MIN_OPEN_TXN"))
        .join(TXNS, TXNS.c.TXN_ID == TXN_COMPONENTS.c.TC_TXNID)
        .where(TXNS.c.TXN_STATE == TxnState.OPEN)
        .group_by(TXN_COMPONENTS.c.TC_DATABASE, TXN_COMPONENTS.c.TC_TABLE, TXN_COMPONENTS.c.TC_PARTITION)
    )


def _held_back() -> Select[Any]:
    """Objects with a retry row of type c: how long they are held back and until when."""
    queue = COMPACTION_QUEUE
    retention = func.max(queue.c.CQ_RETRY_RETENTION)
    return (
        select(
            *_key(queue, "CQ"),
            retention.label("RETENTION"),
            (func.min(queue.c.CQ_COMMIT_TIME) + retention).label("DUE"),
        )
        .where(
            queue.c.CQ_STATE == CompactionState.READY_FOR_CLEANING,
            queue.c.CQ_TYPE == CompactionType.ABORT_TXN_CLEANUP,
        )
        .group_by(queue.c.CQ_DATABASE, queue.c.CQ_TABLE, queue.c.CQ_PARTITION)
    )
