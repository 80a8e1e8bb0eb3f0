"""Hive's locks on databases, tables and partitions.

1. `enqueue` gives the request a lock id and writes its components in state 'w'; a write also says what it will write
   (TXN_COMPONENTS), from now on. The row of NEXT_LOCK_ID stays locked until all that is committed, so that whoever has
   a higher id finds every lock of a smaller one.
2. `check` compares it with every lock of a smaller id, waiting or acquired: nobody overtakes. All components of a
   request are acquired together or none is. Therefore two requests may be checked side by side: of two that conflict
   only the older one can be acquired. A check is a heartbeat too.
3. Locks of a transaction go with its end and time out with it; others are released by `unlock`. Both `enqueue` and
   `check` lock the row of TXNS, as ending the transaction does: an ended one never gets a lock.

Sources: Hive `EnqueueLockFunction`, `CheckLockFunction`, `InsertHiveLocksCommand`, `LockTypeUtil`, `ShowLocksHandler`,
`TxnHandler.unlock`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import sqlalchemy as sa

from compactor.errors import MetastoreError, NoSuchLock, UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database, retried
from compactor.metastore.intents import Intent, record_intents
from compactor.metastore.schema import HIVE_LOCKS, NEXT_LOCK_ID
from compactor.metastore.txns import keep_alive, not_open, open_kind, refuse_replication


class LockType(enum.StrEnum):
    """How much a lock allows beside it, weakest first; the letters of HL_LOCK_TYPE."""

    SHARED_READ = "r"
    """Reading; also inserting, which disturbs no reader."""
    SHARED_WRITE = "w"
    """Writing beside other writers; conflicts are found when they commit."""
    EXCL_WRITE = "x"
    """The only writer; readers go on."""
    EXCLUSIVE = "e"
    """Alone: the object is being dropped or replaced."""

    @property
    def strength(self) -> int:
        """0 for the weakest (`LockTypeComparator`)."""
        return list(LockType).index(self)


class LockState(enum.StrEnum):
    """The letters of HL_LOCK_STATE."""

    WAITING = "w"
    """An earlier lock is in the way."""
    ACQUIRED = "a"
    """Held until its transaction ends."""


@dataclass(frozen=True, kw_only=True)
class LockComponent:
    """One object to lock and what will be done to it.

    operation: None locks without writing, as DDL does (Hive's NO_TXN). is_dynamic_partition: the partitions are known
    only after the write; the component is the table's until `intents.add_dynamic_partitions`.
    """

    database: str
    table: str | None = None
    partition: str | None = None
    type: LockType
    operation: Operation | None = None
    is_dynamic_partition: bool = False

    @property
    def writes(self) -> bool:
        return self.operation in {Operation.INSERT, Operation.UPDATE, Operation.DELETE}


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """Components that are locked together. txn_id 0: outside a transaction, reading only."""

    txn_id: int
    components: Sequence[LockComponent]
    user: str
    host: str
    agent_info: str = ""


@dataclass(frozen=True, kw_only=True)
class LockInfo:
    """One line of SHOW LOCKS; acquired_at: epoch ms; blocked_by: lock and component number in the way."""

    lock_id: int
    component: int
    txn_id: int
    database: str
    table: str | None
    partition: str | None
    state: LockState
    type: LockType
    last_heartbeat: int
    acquired_at: int | None
    user: str
    host: str
    agent_info: str
    blocked_by: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class LockFilter:
    """Which locks SHOW LOCKS lists; None does not filter. Of a table: those of its partitions too."""

    database: str | None = None
    table: str | None = None
    partition: str | None = None
    txn_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class LockResponse:
    """Where a request stands; blocked_by: a lock that is in the way of a waiting one."""

    lock_id: int
    state: LockState
    blocked_by: LockInfo | None = None


def conflicts(requested: LockInfo, held: LockInfo) -> bool:
    """Must `requested` wait for `held`? Both in the same database; the compatibility table of CheckLockFunction.

    Locks of one transaction never conflict. A lock covers everything below its object, with two exceptions: who reads
    a database (to see that it stays) does not mind what happens to its tables, nor the other way round.
    """
    if requested.txn_id != 0 and requested.txn_id == held.txn_id:
        return False
    if not _overlap(requested, held):
        return False
    match requested.type:
        case LockType.SHARED_READ:
            below = held.table is not None and requested.table is None
            return held.type is LockType.EXCLUSIVE and not below
        case LockType.SHARED_WRITE:
            return held.type in {LockType.EXCL_WRITE, LockType.EXCLUSIVE}
        case LockType.EXCL_WRITE:
            return held.type is not LockType.SHARED_READ
        case LockType.EXCLUSIVE:
            above = held.table is None and requested.table is not None
            return not (above and held.type is LockType.SHARED_READ)
        case _:
            assert_never(requested.type)


def acquire(db: Database, request: LockRequest) -> LockResponse:
    """Enqueue a request and check it once: acquired, or waiting with what blocks it.

    TransactionAborted, NoSuchTransaction; UsageError for a write without a transaction.
    """
    return check(db, enqueue(db, request))


@retried
def enqueue(db: Database, request: LockRequest) -> int:
    """Put a request in line; its lock id. The first half of `acquire`.

    The components are numbered in the order of their names, whatever order they are asked for in.
    """
    with db.write() as conn:
        if request.txn_id == 0:
            if any(component.writes for component in request.components):
                raise UsageError("only a transaction can lock for writing")
        else:
            kind = open_kind(conn, request.txn_id)
            if kind is None:
                raise not_open(conn, request.txn_id)
            refuse_replication(kind)
        record_intents(conn, request.txn_id, _intents(request))
        now = 0 if request.txn_id else db.now(conn)
        lock_id = conn.execute(sa.select(NEXT_LOCK_ID.c.NL_NEXT).with_for_update()).scalar_one()
        taken = NEXT_LOCK_ID.update().where(NEXT_LOCK_ID.c.NL_NEXT == lock_id).values(NL_NEXT=lock_id + 1)
        if conn.execute(taken).rowcount != 1:
            raise MetastoreError(f"lock id {lock_id} was taken by someone else under our lock")
        rows = [
            {
                "HL_LOCK_EXT_ID": lock_id,
                "HL_LOCK_INT_ID": number,
                "HL_TXNID": request.txn_id,
                "HL_DB": component.database.lower(),
                "HL_TABLE": component.table.lower() if component.table else None,
                "HL_PARTITION": component.partition,
                "HL_LOCK_STATE": LockState.WAITING,
                "HL_LOCK_TYPE": component.type,
                "HL_LAST_HEARTBEAT": now,
                "HL_USER": request.user,
                "HL_HOST": request.host,
                "HL_AGENT_INFO": request.agent_info[:128] or None,
            }
            for number, component in enumerate(sorted(request.components, key=_place), start=1)
        ]
        conn.execute(HIVE_LOCKS.insert(), rows)
        return int(lock_id)


@retried
def check(db: Database, lock_id: int, *, txn_id: int = 0) -> LockResponse:
    """Acquire a waiting request if nothing before it is in the way; a heartbeat of its transaction, or of itself.

    txn_id: whose request it is, so that the error of a request that is gone can say why. TransactionAborted (a
    Deadlock, where it was one) or NoSuchTransaction when the transaction is over, NoSuchLock when the request was
    released or timed out.
    """
    mine = HIVE_LOCKS.c.HL_LOCK_EXT_ID == lock_id
    with db.write() as conn:
        requested = read_locks(conn, mine)
        if owner := requested[0].txn_id if requested else txn_id:
            keep_alive(db, conn, owner)
        if not requested:
            raise NoSuchLock(f"lock {lock_id} does not exist; its transaction ended, or it timed out")
        now = db.now(conn)
        if owner == 0:
            conn.execute(HIVE_LOCKS.update().where(mine).values(HL_LAST_HEARTBEAT=now))
        if all(component.state is LockState.ACQUIRED for component in requested):
            return LockResponse(lock_id=lock_id, state=LockState.ACQUIRED)
        databases = {component.database for component in requested}
        before = sa.and_(HIVE_LOCKS.c.HL_LOCK_EXT_ID < lock_id, HIVE_LOCKS.c.HL_DB.in_(sorted(databases)))
        in_the_way = blockers(requested, read_locks(conn, before))
        if in_the_way:
            _note_blockers(conn, requested, in_the_way)
            return LockResponse(lock_id=lock_id, state=LockState.WAITING, blocked_by=in_the_way[0][1])
        acquired = {
            "HL_LOCK_STATE": LockState.ACQUIRED,
            "HL_ACQUIRED_AT": now,
            "HL_BLOCKEDBY_EXT_ID": None,
            "HL_BLOCKEDBY_INT_ID": None,
        }
        if conn.execute(HIVE_LOCKS.update().where(mine).values(acquired)).rowcount != len(requested):
            raise NoSuchLock(f"lock {lock_id} was released meanwhile")
        return LockResponse(lock_id=lock_id, state=LockState.ACQUIRED)


def blockers(requested: Sequence[LockInfo], before: Sequence[LockInfo]) -> list[tuple[LockInfo, LockInfo]]:
    """Which component of a request has to wait for which earlier lock: the strongest locks first, then the oldest.

    So a waiter learns at once whether it has to wait for somebody who allows no one beside himself.
    """
    pairs = [
        (component, held)
        for held in before
        for component in requested
        if component.database == held.database and conflicts(component, held)
    ]
    return sorted(pairs, key=lambda pair: (-pair[1].type.strength, pair[1].lock_id, pair[1].component))


@retried
def unlock(db: Database, lock_id: int) -> None:
    """Release a lock without transaction, or withdraw a waiting request.

    NoSuchLock when there is none, UsageError when a transaction holds it: it goes when the transaction ends.
    """
    mine = HIVE_LOCKS.c.HL_LOCK_EXT_ID == lock_id
    with db.write() as conn:
        found = read_locks(conn, mine, lock=True)
        if not found:
            raise NoSuchLock(f"lock {lock_id} does not exist")
        if found[0].txn_id and found[0].state is LockState.ACQUIRED:
            raise UsageError(f"lock {lock_id} belongs to transaction {found[0].txn_id} and goes when that ends")
        conn.execute(HIVE_LOCKS.delete().where(mine))


@retried
def show_locks(db: Database, filters: LockFilter | None = None) -> list[LockInfo]:
    """SHOW LOCKS: every component of every lock; what is held first, then from the weakest type to the strongest."""
    wanted = filters or LockFilter()
    columns = HIVE_LOCKS.c
    equal = (
        (columns.HL_DB, wanted.database),
        (columns.HL_TABLE, wanted.table),
        (columns.HL_PARTITION, wanted.partition),
        (columns.HL_TXNID, wanted.txn_id),
    )
    where = sa.and_(sa.true(), *(column == value for column, value in equal if value is not None))
    with db.read() as conn:
        found = read_locks(conn, where)
    return sorted(found, key=lambda lock: (lock.state is not LockState.ACQUIRED, lock.type.strength))


def _overlap(one: LockInfo, other: LockInfo) -> bool:
    if one.table is None or other.table is None:
        return True
    if one.table != other.table:
        return False
    return one.partition is None or other.partition is None or one.partition == other.partition


def _note_blockers(
    conn: sa.Connection, requested: Sequence[LockInfo], in_the_way: Sequence[tuple[LockInfo, LockInfo]]
) -> None:
    """HL_BLOCKEDBY_* of every component: who is in its way now, or nobody any more."""
    first: dict[int, tuple[int, int]] = {}
    for component, held in in_the_way:
        first.setdefault(component.component, (held.lock_id, held.component))
    for component in requested:
        by = first.get(component.component)
        if by != component.blocked_by:
            row = sa.and_(
                HIVE_LOCKS.c.HL_LOCK_EXT_ID == component.lock_id, HIVE_LOCKS.c.HL_LOCK_INT_ID == component.component
            )
            lock_id, number = by or (None, None)
            blocked = {"HL_BLOCKEDBY_EXT_ID": lock_id, "HL_BLOCKEDBY_INT_ID": number}
            conn.execute(HIVE_LOCKS.update().where(row).values(blocked))


def _place(component: LockComponent) -> tuple[str, str, str]:
    return component.database.lower(), (component.table or "").lower(), component.partition or ""


def _intents(request: LockRequest) -> list[Intent]:
    """What a request says it will write; `intents.record_intents` stores it."""
    return [
        Intent(
            table=TableName(database=component.database, table=component.table),
            partition=component.partition,
            operation=component.operation,
            is_dynamic_partition=component.is_dynamic_partition,
        )
        for component in request.components
        if component.writes and component.table and component.operation
    ]


def read_locks(conn: sa.Connection, where: sa.ColumnElement[bool], *, lock: bool = False) -> list[LockInfo]:
    """Locks by id and component number, inside a transaction that the caller opened; lock: with their rows locked."""
    query = sa.select(HIVE_LOCKS).where(where).order_by(HIVE_LOCKS.c.HL_LOCK_EXT_ID, HIVE_LOCKS.c.HL_LOCK_INT_ID)
    query = query.with_for_update() if lock else query
    return [
        LockInfo(
            lock_id=row.HL_LOCK_EXT_ID,
            component=row.HL_LOCK_INT_ID,
            txn_id=row.HL_TXNID,
            database=row.HL_DB,
            table=row.HL_TABLE,
            partition=row.HL_PARTITION,
            state=LockState(row.HL_LOCK_STATE),
            type=LockType(row.HL_LOCK_TYPE),
            last_heartbeat=row.HL_LAST_HEARTBEAT,
            acquired_at=row.HL_ACQUIRED_AT,
            user=row.HL_USER,
            host=row.HL_HOST,
            agent_info=row.HL_AGENT_INFO or "",
            blocked_by=None if row.HL_BLOCKEDBY_EXT_ID is None else (row.HL_BLOCKEDBY_EXT_ID, row.HL_BLOCKEDBY_INT_ID),
        )
        for row in conn.execute(query)
    ]
