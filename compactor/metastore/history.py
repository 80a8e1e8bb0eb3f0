"""Queue and history as people and the initiator read them, and what is kept of the history.

Sources: Hive `ShowCompactHandler`, `CheckFailedCompactionsHandler`, `CompactionTxnHandler.updateStatus`,
`PurgeCompactionHistoryFunction`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, assert_never

from sqlalchemy import Select, Table, case, delete, func, insert, or_, select, union_all

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState, CompactionType
from compactor.metastore.compaction_rows import history_rows, next_compaction_id, object_is, objects_are, queue_rows
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_COMPACTIONS

DEFAULT_POOL = "default"
"""How SHOW COMPACTIONS names the pool of rows without one."""

QUEUED = frozenset({CompactionState.INITIATED, CompactionState.WORKING, CompactionState.READY_FOR_CLEANING})
"""States of rows in the queue; every other one is a row of the history."""

_IDS_PER_STATEMENT = 500
_IDS_A_TRANSACTION = 5000
_ROWS_A_FETCH = 1000


@dataclass(frozen=True, kw_only=True)
class CompactionFilter:
    """Which rows SHOW COMPACTIONS lists; None does not filter. pool: 'default' means rows without a pool."""

    id: int | None = None
    database: str | None = None
    table: str | None = None
    partition: str | None = None
    state: CompactionState | None = None
    type: CompactionType | None = None
    pool: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a compaction ended, and when it was asked for (epoch ms, None when it is not known)."""

    state: CompactionState
    enqueue_time: int | None


@dataclass(frozen=True, kw_only=True)
class HistoryRetention:
    """How many rows of an object and a state the history keeps, newest first (metastore.compactor.history.retention.*).

    failed is never less than breaker_threshold, or the failure breaker would forget. older_than_ms: after so long a row
    that did not succeed goes as soon as a newer success covers it. aborted is ours; Hive keeps those for ever.
    """

    did_not_initiate: int = 2
    failed: int = 3
    succeeded: int = 3
    refused: int = 3
    aborted: int = 3
    breaker_threshold: int = 2
    older_than_ms: int = 7 * 24 * 60 * 60 * 1000

    def of(self, state: CompactionState) -> int:
        """Rows of this state to keep for an object."""
        match state:
            case CompactionState.DID_NOT_INITIATE:
                return self.did_not_initiate
            case CompactionState.FAILED:
                return max(self.failed, self.breaker_threshold)
            case CompactionState.SUCCEEDED:
                return self.succeeded
            case CompactionState.REFUSED:
                return self.refused
            case CompactionState.ABORTED:
                return self.aborted
            case CompactionState.INITIATED | CompactionState.WORKING | CompactionState.READY_FOR_CLEANING:
                raise ValueError(f"{state.name} is no state of the history")
            case _:
                assert_never(state)


@retried
def show_compactions(
    db: Database, *, filters: CompactionFilter | None = None, limit: int | None = None
) -> list[Compaction]:
    """Queue and history in the order of Hive's SHOW COMPACTIONS (ShowCompactHandler).

    What is requested or running first, oldest request first; then by the latest of end, start and publication, newest
    first. limit None: all.
    """
    wanted = filters or CompactionFilter()
    halves = [
        _filtered(rows, table, prefix, wanted)
        for rows, table, prefix, is_queue in (
            (queue_rows(), COMPACTION_QUEUE, "CQ", True),
            (history_rows(), COMPLETED_COMPACTIONS, "CC", False),
        )
        if wanted.state is None or (wanted.state in QUEUED) is is_queue
    ]
    rows = union_all(*halves).subquery()
    end, start, committed = rows.c.END, func.coalesce(rows.c.START, 0), func.coalesce(rows.c.COMMIT_TIME, 0)
    latest = case(
        # without a publication Hive's own comparison yields NULL for a row of the queue
        (rows.c.STATE.in_([CompactionState.INITIATED, CompactionState.WORKING]), None),
        ((end > start) & (end > committed), end),
        (start > committed, start),
        else_=committed,
    )
    query = select(rows).order_by(latest.is_(None).desc(), latest.desc(), rows.c.ENQUEUE_TIME, rows.c.ID).limit(limit)
    with db.read() as conn:
        return [Compaction.from_row(row) for row in conn.execute(query).mappings()]


def _filtered(query: Select[Any], table: Table, prefix: str, wanted: CompactionFilter) -> Select[Any]:
    """Of one of the two tables the rows that a filter lets through, so that its indexes can be used."""
    equal = {
        "ID": wanted.id,
        "DATABASE": wanted.database,
        "TABLE": wanted.table,
        "PARTITION": wanted.partition,
        "STATE": wanted.state,
        "TYPE": wanted.type,
    }
    query = query.where(*(table.c[f"{prefix}_{name}"] == value for name, value in equal.items() if value is not None))
    pool = table.c[f"{prefix}_POOL_NAME"]
    if wanted.pool == DEFAULT_POOL:
        return query.where(or_(pool.is_(None), pool == DEFAULT_POOL))
    return query if wanted.pool is None else query.where(pool == wanted.pool)


@retried
def recent_outcomes(db: Database, table: TableName, partition: str | None, n: int) -> list[Compaction]:
    """The newest n compactions of the object that succeeded or failed, newest first; for the failure breaker.

    Rows that were refused, aborted or not initiated say nothing about whether it would work.
    """
    query = (
        history_rows()
        .where(object_is(COMPLETED_COMPACTIONS, "CC", table, partition))
        .where(COMPLETED_COMPACTIONS.c.CC_STATE.in_([CompactionState.SUCCEEDED, CompactionState.FAILED]))
        .order_by(COMPLETED_COMPACTIONS.c.CC_ID.desc())
        .limit(n)
    )
    with db.read() as conn:
        return [Compaction.from_row(row) for row in conn.execute(query).mappings()]


@retried
def outcomes_of_each(
    db: Database, objects: Collection[tuple[TableName, str | None]], n: int
) -> dict[tuple[TableName, str | None], list[Outcome]]:
    """`recent_outcomes` of many objects, in a few queries; objects without any are not in the answer."""
    history = COMPLETED_COMPACTIONS.c
    key = (history.CC_DATABASE, history.CC_TABLE, history.CC_PARTITION)
    place = func.row_number().over(partition_by=key, order_by=history.CC_ID.desc()).label("PLACE")
    found: dict[tuple[TableName, str | None], list[Outcome]] = {}
    with db.read() as conn:
        for condition in objects_are(COMPLETED_COMPACTIONS, "CC", objects):
            ended = history.CC_STATE.in_([CompactionState.SUCCEEDED, CompactionState.FAILED])
            rows = select(*key, history.CC_STATE, history.CC_ENQUEUE_TIME, place).where(condition, ended).subquery()
            for row in conn.execute(select(rows).where(rows.c.PLACE <= n).order_by(rows.c.PLACE)):
                name = TableName(database=row.CC_DATABASE, table=row.CC_TABLE)
                outcome = Outcome(state=CompactionState(row.CC_STATE), enqueue_time=row.CC_ENQUEUE_TIME)
                found.setdefault((name, row.CC_PARTITION), []).append(outcome)
    return found


@retried
def newest_outcome(db: Database, table: TableName, partition: str | None) -> Compaction | None:
    """The newest row that the history has of the object, however it ended."""
    query = history_rows().where(object_is(COMPLETED_COMPACTIONS, "CC", table, partition))
    newest = query.order_by(COMPLETED_COMPACTIONS.c.CC_ID.desc()).limit(1)
    with db.read() as conn:
        row = conn.execute(newest).mappings().one_or_none()
        return None if row is None else Compaction.from_row(row)


@retried
def record_not_initiated(
    db: Database,
    table: TableName,
    partition: str | None,
    type: CompactionType,  # noqa: A002
    reason: str,
    *,
    initiator_id: str | None = None,
    initiator_version: str | None = None,
) -> int:
    """Put a row 'a' into the history: the initiator wanted a compaction and could not ask for it; its id (markFailed)."""
    with db.write() as conn:
        compaction_id = next_compaction_id(conn)
        now = db.now(conn)
        conn.execute(
            insert(COMPLETED_COMPACTIONS).values(
                CC_ID=compaction_id,
                CC_DATABASE=table.database,
                CC_TABLE=table.table,
                CC_PARTITION=partition,
                CC_STATE=CompactionState.DID_NOT_INITIATE,
                CC_TYPE=type,
                CC_ENQUEUE_TIME=now,
                CC_START=now,
                CC_END=now,
                CC_ERROR_MESSAGE=reason,
                CC_INITIATOR_ID=initiator_id,
                CC_INITIATOR_VERSION=initiator_version,
            )
        )
    return compaction_id


def purge_history(db: Database, retention: HistoryRetention) -> int:
    """Delete history rows that are beyond the retention; how many (PurgeCompactionHistoryFunction).

    Some thousands in a transaction. What is added meanwhile is newer and makes nothing worth keeping again.
    """
    ids = _expired_ids(db, retention)
    return sum(_forget(db, ids[start : start + _IDS_A_TRANSACTION]) for start in range(0, len(ids), _IDS_A_TRANSACTION))


@retried
def _expired_ids(db: Database, retention: HistoryRetention) -> Sequence[int]:
    """Read as a stream: a history has millions of rows."""
    history = COMPLETED_COMPACTIONS.c
    key = (history.CC_DATABASE, history.CC_TABLE, history.CC_PARTITION)
    query = select(*key, history.CC_ID, history.CC_STATE, history.CC_TYPE, history.CC_START)
    with db.read() as conn:
        now = db.now(conn)
        newest_first = query.order_by(*key, history.CC_ID.desc())
        with conn.execution_options(yield_per=_ROWS_A_FETCH).execute(newest_first) as rows:
            ended = (
                Ended(
                    object=(row.CC_DATABASE, row.CC_TABLE, row.CC_PARTITION),
                    id=row.CC_ID,
                    state=CompactionState(row.CC_STATE),
                    type=row.CC_TYPE,
                    start=row.CC_START or 0,
                )
                for row in rows
            )
            return array("q", expired(ended, retention, now=now))


@retried
def _forget(db: Database, ids: Sequence[int]) -> int:
    history = COMPLETED_COMPACTIONS
    with db.write() as conn:
        return sum(
            conn.execute(
                delete(history).where(history.c.CC_ID.in_(list(ids[start : start + _IDS_PER_STATEMENT])))
            ).rowcount
            for start in range(0, len(ids), _IDS_PER_STATEMENT)
        )


class Ended(NamedTuple):
    """What decides about a row of the history. type: its letter, which may be one
    of a later Hive's. start: epoch ms, 0 when it is not known."""

    object: tuple[str, str, str | None]
    id: int
    state: CompactionState
    type: str
    start: int


def expired(newest_first: Iterable[Ended], retention: HistoryRetention, *, now: int) -> Iterator[int]:
    """Ids of the history rows that may go. newest_first: object by object; now: epoch ms.

    Of every object and state the newest rows stay; of those, one that did not succeed goes once it is old and a newer
    success covers it: a major covers everything, a minor only minors.
    """
    for _, rows in groupby(newest_first, key=_without_case):
        kept: Counter[tuple[object, CompactionState]] = Counter()
        covered: dict[object, set[bool]] = {}
        for row in rows:
            kept[row.object, row.state] += 1
            successes = covered.setdefault(row.object, set())
            is_covered = True in successes or (False in successes and row.type == CompactionType.MINOR)
            is_old = row.start < now - retention.older_than_ms
            if row.state is CompactionState.SUCCEEDED:
                successes.add(row.type == CompactionType.MAJOR)
                is_covered = False
            if kept[row.object, row.state] > retention.of(row.state) or (is_covered and is_old):
                yield row.id


def _without_case(row: Ended) -> tuple[str, str, str]:
    """Rows of p=a and p=A come mixed where Hive's script for MySQL lets the order ignore case."""
    database, table, partition = row.object
    return database.casefold(), table.casefold(), (partition or "").casefold()
