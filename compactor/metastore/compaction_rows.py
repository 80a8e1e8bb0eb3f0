"""Statements on rows of COMPACTION_QUEUE and COMPLETED_COMPACTIONS that several protocol steps share.

Every function here works inside the caller's database transaction; none begins or ends one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Label,
    Select,
    String,
    Table,
    and_,
    bindparam,
    cast,
    delete,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from compactor.errors import Fenced, MetastoreError
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.metastore.database import RolledBack
from compactor.metastore.dialects import exactly
from compactor.metastore.schema import AUX_TABLE, COMPACTION_QUEUE, COMPLETED_COMPACTIONS, NEXT_COMPACTION_QUEUE_ID

T = TypeVar("T")

_SCHEDULER = "CompactionScheduler"
"""Hive's mutex of requests (`TxnStore.MUTEX_KEY`)."""

SHARED_COLUMNS = (
    "ID",
    "DATABASE",
    "TABLE",
    "PARTITION",
    "STATE",
    "TYPE",
    "TBLPROPERTIES",
    "WORKER_ID",
    "ENQUEUE_TIME",
    "START",
    "RUN_AS",
    "HIGHEST_WRITE_ID",
    "META_INFO",
    "HADOOP_JOB_ID",
    "ERROR_MESSAGE",
    "NEXT_TXN_ID",
    "TXN_ID",
    "COMMIT_TIME",
    "INITIATOR_ID",
    "INITIATOR_VERSION",
    "WORKER_VERSION",
    "POOL_NAME",
    "NUMBER_OF_BUCKETS",
    "ORDER_BY",
)
"""The columns that queue (CQ_) and history (CC_) have in common, without their prefix."""

_NAMES_AN_ALTERNATIVE = 500
_ALTERNATIVES_A_STATEMENT = 50


def queue_rows() -> Select[Any]:
    """SELECT of the queue, labelled as Compaction.from_row wants it and with the history's columns."""
    columns = [COMPACTION_QUEUE.c[f"CQ_{name}"].label(name) for name in SHARED_COLUMNS]
    own = [COMPACTION_QUEUE.c[f"CQ_{name}"].label(name) for name in ("CLEANER_START", "RETRY_RETENTION")]
    return select(*columns, _absent("END"), *own)


def history_rows() -> Select[Any]:
    """SELECT of the history, labelled like `queue_rows`."""
    columns = [COMPLETED_COMPACTIONS.c[f"CC_{name}"].label(name) for name in SHARED_COLUMNS]
    absent = [_absent(name) for name in ("CLEANER_START", "RETRY_RETENTION")]
    return select(*columns, COMPLETED_COMPACTIONS.c.CC_END.label("END"), *absent)


def _absent(name: str) -> Label[int]:
    """A column that the other table has; PostgreSQL takes a bare NULL for a text."""
    return cast(null(), BigInteger).label(name)


def object_is(rows: Table, prefix: str, table: TableName, partition: str | None) -> ColumnElement[bool]:
    """The rows of exactly this object; partition None means the rows without one.

    rows, prefix: a table with columns <prefix>_DATABASE, _TABLE and _PARTITION.
    """
    in_partition = rows.c[f"{prefix}_PARTITION"]
    return and_(
        rows.c[f"{prefix}_DATABASE"] == table.database,
        rows.c[f"{prefix}_TABLE"] == table.table,
        in_partition.is_(None) if partition is None else exactly(in_partition, partition),
    )


def each_object(rows: Table, prefix: str, *, partitioned: bool) -> ColumnElement[bool]:
    """`object_is` for a statement that runs once for each of many objects: its parameters come from `of_object`."""
    in_partition = rows.c[f"{prefix}_PARTITION"]
    return and_(
        rows.c[f"{prefix}_DATABASE"] == bindparam("of_database"),
        rows.c[f"{prefix}_TABLE"] == bindparam("of_table"),
        exactly(in_partition, bindparam("of_partition", type_=String())) if partitioned else in_partition.is_(None),
    )


def of_object(table: TableName, partition: str | None) -> dict[str, Any]:
    """The parameters of `each_object` for one of them."""
    names = {"of_database": table.database, "of_table": table.table}
    return names if partition is None else names | {"of_partition": partition}


def objects_are(
    rows: Table, prefix: str, objects: Iterable[tuple[TableName, str | None]]
) -> Iterator[ColumnElement[bool]]:
    """Conditions that together, one statement for each, match the rows of exactly these objects; as `object_is`.

    Each alternative of a condition is answered by an index by name; without one, a scan answers hundreds of objects.
    """
    tables: defaultdict[str, set[str]] = defaultdict(set)
    partitions: defaultdict[TableName, set[str]] = defaultdict(set)
    for table, partition in objects:
        if partition is None:
            tables[table.database].add(table.table)
        else:
            partitions[table].add(partition)
    database, table_name, named = (rows.c[f"{prefix}_{column}"] for column in ("DATABASE", "TABLE", "PARTITION"))
    alternatives = [
        *(and_(database == of, table_name.in_(some), named.is_(None)) for of, some in _some_at_a_time(tables)),
        *(
            and_(database == of.database, table_name == of.table, named.in_(some))
            for of, some in _some_at_a_time(partitions)
        ),
    ]
    for start in range(0, len(alternatives), _ALTERNATIVES_A_STATEMENT):
        yield or_(*alternatives[start : start + _ALTERNATIVES_A_STATEMENT])


def _some_at_a_time(names_of: Mapping[T, set[str]]) -> Iterator[tuple[T, list[str]]]:
    for owner, names in names_of.items():
        ordered = sorted(names)
        for start in range(0, len(ordered), _NAMES_AN_ALTERNATIVE):
            yield owner, ordered[start : start + _NAMES_AN_ALTERNATIVE]


def lock_requests(conn: Connection) -> None:
    """Only we may ask for compactions until the transaction ends: neither another of ours nor a running Hive.

    Hive serialises its requests by a mutex row of AUX_TABLE, which it adds when it first needs it (`CompactFunction`).
    """
    scheduler = AUX_TABLE.c.MT_KEY1 == _SCHEDULER
    if conn.scalar(select(AUX_TABLE.c.MT_KEY1).where(scheduler).with_for_update()) is None:
        try:
            conn.execute(insert(AUX_TABLE).values(MT_KEY1=_SCHEDULER, MT_KEY2=0))
        except IntegrityError as error:
            raise RolledBack("another request for a compaction added its mutex at the same moment") from error
    lock_compaction_ids(conn)


def lock_compaction_ids(conn: Connection) -> int:
    """Lock the row of NEXT_COMPACTION_QUEUE_ID until the transaction ends; the id it would give out.

    Whoever adds to the queue holds this lock, so what was read under it cannot change by another request.
    """
    following: int | None = conn.scalar(select(NEXT_COMPACTION_QUEUE_ID.c.NCQ_NEXT).with_for_update())
    if following is None:
        raise MetastoreError("NEXT_COMPACTION_QUEUE_ID has no row", hint="the metastore's schema is incomplete")
    return following


def next_compaction_id(conn: Connection) -> int:
    """Take the next id of queue and history (GenerateCompactionQueueIdFunction)."""
    return next_compaction_ids(conn, 1)[0]


def next_compaction_ids(conn: Connection, count: int) -> range:
    """Take the next ids of queue and history."""
    taken = lock_compaction_ids(conn)
    ids = NEXT_COMPACTION_QUEUE_ID
    if conn.execute(update(ids).where(ids.c.NCQ_NEXT == taken).values(NCQ_NEXT=taken + count)).rowcount != 1:
        raise MetastoreError(f"compaction id {taken} was taken by someone else under our lock")
    return range(taken, taken + count)


def held_by(claim: Compaction, *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """The guard of every step of a worker: the row is still working, and still for this claim."""
    return and_(
        COMPACTION_QUEUE.c.CQ_ID == claim.id,
        COMPACTION_QUEUE.c.CQ_STATE == CompactionState.WORKING,
        COMPACTION_QUEUE.c.CQ_WORKER_ID == claim.worker_id,
        *conditions,
    )


def ready(compaction: Compaction) -> ColumnElement[bool]:
    """The guard of every step of the cleaner: the row still waits for cleaning."""
    return ready_among([compaction.id])


def ready_among(ids: Collection[int]) -> ColumnElement[bool]:
    """`ready` for a step that takes a page of rows."""
    return and_(COMPACTION_QUEUE.c.CQ_ID.in_(ids), COMPACTION_QUEUE.c.CQ_STATE == CompactionState.READY_FOR_CLEANING)


def change_row(conn: Connection, compaction: Compaction, guard: ColumnElement[bool], values: dict[str, Any]) -> None:
    """UPDATE the queue row under a guard; Fenced when it changed no row."""
    if conn.execute(update(COMPACTION_QUEUE).where(guard).values(values)).rowcount != 1:
        raise fenced(compaction)


def retire(
    conn: Connection,
    compaction: Compaction,
    guard: ColumnElement[bool],
    *,
    state: CompactionState,
    end: int,
    message: str | None,
) -> None:
    """Move the queue row under a guard to the history as it stands in the database; Fenced when it is not there.

    message None keeps the row's own (CompactionTxnHandler.updateStatus, MarkCleanedFunction).
    """
    if retire_rows(conn, guard, state=state, end=end, message=message) != [compaction.id]:
        raise fenced(compaction)


def retire_rows(
    conn: Connection, guard: ColumnElement[bool], *, state: CompactionState, end: int, message: str | None
) -> list[int]:
    """`retire` whatever rows of the queue are under a guard; their ids, ascending."""
    columns = [COMPACTION_QUEUE.c[f"CQ_{name}"].label(f"CC_{name}") for name in SHARED_COLUMNS]
    locked = select(*columns).where(guard).order_by(COMPACTION_QUEUE.c.CQ_ID).with_for_update()
    rows = [dict(row) for row in conn.execute(locked).mappings()]
    if not rows:
        return []
    ended = {"CC_STATE": state, "CC_END": end} | ({} if message is None else {"CC_ERROR_MESSAGE": message})
    conn.execute(insert(COMPLETED_COMPACTIONS), [row | ended for row in rows])
    if conn.execute(delete(COMPACTION_QUEUE).where(guard)).rowcount != len(rows):
        raise MetastoreError("rows of the queue were changed by someone else under our lock")
    return [row["CC_ID"] for row in rows]


def fenced(compaction: Compaction) -> Fenced:
    holder = f" held by {compaction.worker_id}" if compaction.worker_id else ""
    return Fenced(
        f"compaction {compaction.id} of {compaction.object_name} is no longer "
        f"{compaction.state.name.lower().replace('_', ' ')}{holder}",
        hint="it was revoked, aborted or finished by someone else; nothing was changed",
    )
