"""Hive's locks on databases, tables and partitions.

1. `enqueue` gives the request a lock id and writes its components in state 'w'; a write also says what it will write
   (TXN_COMPONENTS), from now on.
2. `check` compares it with every lock of a smaller id, waiting or acquired: nobody overtakes. All components of a
   request are acquired together or none is.
3. Locks of a transaction go with its end and time out with it; others are released by `unlock`.

Sources: Hive `EnqueueLockFunction`, `CheckLockFunction`, `InsertTxnComponentsCommand`, `InsertHiveLocksCommand`,
`LockTypeUtil`, `TxnHandler.unlock`, `DbLockManager`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import sqlalchemy as sa

from compactor.errors import LockNotAcquired, MetastoreError, NoSuchLock, UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.components import CHANGING, Operation
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import HIVE_LOCKS, NEXT_LOCK_ID, TXN_COMPONENTS
from compactor.metastore.txns import not_open, open_kind
from compactor.metastore.writeids import write_id_of

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 60.0


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
    only after the write; the component is the table's until `add_dynamic_partitions`.
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
    """Put a request in line; its lock id. The first half of `acquire`."""
    with db.write() as conn:
        if request.txn_id == 0:
            if any(component.writes for component in request.components):
                raise UsageError("only a transaction can lock for writing")
        elif open_kind(conn, request.txn_id) is None:
            raise not_open(conn, request.txn_id)
        _insert_components(conn, request)
        lock_id = conn.execute(sa.select(NEXT_LOCK_ID.c.NL_NEXT).with_for_update()).scalar_one()
        taken = NEXT_LOCK_ID.update().where(NEXT_LOCK_ID.c.NL_NEXT == lock_id).values(NL_NEXT=lock_id + 1)
        if conn.execute(taken).rowcount != 1:
            raise MetastoreError(f"lock id {lock_id} was taken by someone else under our lock")
        for number, component in enumerate(request.components, start=1):
            conn.execute(
                HIVE_LOCKS.insert().values(
                    HL_LOCK_EXT_ID=lock_id,
                    HL_LOCK_INT_ID=number,
                    HL_TXNID=request.txn_id,
                    HL_DB=component.database.lower(),
                    HL_TABLE=component.table.lower() if component.table else None,
                    HL_PARTITION=component.partition,
                    HL_LOCK_STATE=LockState.WAITING,
                    HL_LOCK_TYPE=component.type,
                    HL_LAST_HEARTBEAT=0 if request.txn_id else db.now(conn),
                    HL_USER=request.user,
                    HL_HOST=request.host,
                    HL_AGENT_INFO=request.agent_info[:128] or None,
                )
            )
        return int(lock_id)


@retried
def check(db: Database, lock_id: int) -> LockResponse:
    """Acquire a waiting request if nothing before it is in the way; it also counts as a heartbeat without transaction.

    NoSuchLock when it was released or timed out, or its transaction ended.
    """
    mine = HIVE_LOCKS.c.HL_LOCK_EXT_ID == lock_id
    with db.write() as conn:
        requested = _infos(conn, mine)
        if not requested:
            raise NoSuchLock(f"lock {lock_id} does not exist; its transaction ended, or it timed out")
        if requested[0].txn_id == 0:
            conn.execute(HIVE_LOCKS.update().where(mine).values(HL_LAST_HEARTBEAT=db.now(conn)))
        if all(component.state is LockState.ACQUIRED for component in requested):
            return LockResponse(lock_id=lock_id, state=LockState.ACQUIRED)
        before = sa.and_(
            HIVE_LOCKS.c.HL_LOCK_EXT_ID < lock_id,
            HIVE_LOCKS.c.HL_DB.in_({component.database for component in requested}),
        )
        for held in _infos(conn, before):
            for component in requested:
                if component.database == held.database and conflicts(component, held):
                    blocked = HIVE_LOCKS.update().where(mine, HIVE_LOCKS.c.HL_LOCK_INT_ID == component.component)
                    by = {"HL_BLOCKEDBY_EXT_ID": held.lock_id, "HL_BLOCKEDBY_INT_ID": held.component}
                    conn.execute(blocked.values(by))
                    return LockResponse(lock_id=lock_id, state=LockState.WAITING, blocked_by=held)
        acquired = {
            "HL_LOCK_STATE": LockState.ACQUIRED,
            "HL_ACQUIRED_AT": db.now(conn),
            "HL_BLOCKEDBY_EXT_ID": None,
            "HL_BLOCKEDBY_INT_ID": None,
        }
        if conn.execute(HIVE_LOCKS.update().where(mine).values(acquired)).rowcount != len(requested):
            raise NoSuchLock(f"lock {lock_id} was released meanwhile")
        return LockResponse(lock_id=lock_id, state=LockState.ACQUIRED)


@retried
def unlock(db: Database, lock_id: int) -> None:
    """Release a lock without transaction, or withdraw a waiting request.

    NoSuchLock when there is none, UsageError when a transaction holds it: it goes when the transaction ends.
    """
    mine = HIVE_LOCKS.c.HL_LOCK_EXT_ID == lock_id
    with db.write() as conn:
        found = _infos(conn, mine)
        if not found:
            raise NoSuchLock(f"lock {lock_id} does not exist")
        if found[0].txn_id and found[0].state is LockState.ACQUIRED:
            raise UsageError(f"lock {lock_id} belongs to transaction {found[0].txn_id} and goes when that ends")
        conn.execute(HIVE_LOCKS.delete().where(mine))


def wait_for(db: Database, lock_id: int, *, sleep: Callable[[float], None], attempts: int = 100) -> LockResponse:
    """Check until the lock is acquired, sleeping 0.1 s, 0.2 s, … at most 60 s in between (DbLockManager).

    After `attempts` checks in vain the request is withdrawn: LockNotAcquired. NoSuchLock as in `check`.
    """
    pause = FIRST_WAIT_S
    for attempt in range(attempts):
        if attempt:
            sleep(pause)
            pause = min(pause * 2, LONGEST_WAIT_S)
        response = check(db, lock_id)
        if response.state is LockState.ACQUIRED:
            return response
    unlock(db, lock_id)
    holder = response.blocked_by
    raise LockNotAcquired(
        f"lock {lock_id} was not acquired in {attempts} attempts",
        hint="" if holder is None else f"transaction {holder.txn_id} of {holder.user}@{holder.host} is in the way",
    )


@retried
def add_dynamic_partitions(
    db: Database, txn_id: int, write_id: int, table: TableName, partitions: Sequence[str], operation: Operation
) -> None:
    """Say which partitions a dynamic-partition write reached: they replace the table's own component.

    An object known by table only would make the cleaner look at every partition. TransactionAborted,
    NoSuchTransaction.
    """
    of_table = (TXN_COMPONENTS.c.TC_TXNID == txn_id, *_component_of(table))
    with db.write() as conn:
        if open_kind(conn, txn_id) is None:
            raise not_open(conn, txn_id)
        for partition in partitions:
            row = _component(txn_id, table, partition, operation, write_id)
            conn.execute(TXN_COMPONENTS.insert().values(row))
        conn.execute(TXN_COMPONENTS.delete().where(*of_table, TXN_COMPONENTS.c.TC_PARTITION.is_(None)))


@retried
def show_locks(db: Database) -> list[LockInfo]:
    """SHOW LOCKS: every component of every lock, by lock and component number."""
    with db.read() as conn:
        return _infos(conn, sa.true())


@retried
def time_out_locks(db: Database, *, timeout_ms: int) -> list[int]:
    """Release locks without transaction whose last heartbeat is older than the time-out; their ids, ascending."""
    with db.write() as conn:
        silent = sa.and_(HIVE_LOCKS.c.HL_TXNID == 0, HIVE_LOCKS.c.HL_LAST_HEARTBEAT < db.now(conn) - timeout_ms)
        expired = sorted({info.lock_id for info in _infos(conn, silent)})
        conn.execute(HIVE_LOCKS.delete().where(silent))
        return expired


def _overlap(one: LockInfo, other: LockInfo) -> bool:
    if one.table is None or other.table is None:
        return True
    if one.table != other.table:
        return False
    return one.partition is None or other.partition is None or one.partition == other.partition


def _insert_components(conn: sa.Connection, request: LockRequest) -> None:
    """TXN_COMPONENTS of a request's writes; dynamic partitions are one row for the table, the strongest operation."""
    writes = [component for component in request.components if component.writes and component.table]
    dynamic: set[TableName] = set()
    for component in writes:
        table = TableName(database=component.database, table=component.table or "")
        partition, operation = component.partition, component.operation
        if component.is_dynamic_partition:
            if table in dynamic:
                continue
            dynamic.add(table)
            same_table = [
                other.operation
                for other in writes
                if other.is_dynamic_partition and TableName(database=other.database, table=other.table or "") == table
            ]
            partition = None
            operation = next((o for o in same_table if o in CHANGING), Operation.INSERT)
        write_id = write_id_of(conn, request.txn_id, table)
        conn.execute(TXN_COMPONENTS.insert().values(_component(request.txn_id, table, partition, operation, write_id)))


def _component(
    txn_id: int, table: TableName, partition: str | None, operation: Operation | None, write_id: int | None
) -> dict[str, object]:
    return {
        "TC_TXNID": txn_id,
        "TC_DATABASE": table.database,
        "TC_TABLE": table.table,
        "TC_PARTITION": partition,
        "TC_OPERATION_TYPE": operation,
        "TC_WRITEID": write_id,
    }


def _component_of(table: TableName) -> tuple[sa.ColumnElement[bool], ...]:
    return (TXN_COMPONENTS.c.TC_DATABASE == table.database, TXN_COMPONENTS.c.TC_TABLE == table.table)


def _infos(conn: sa.Connection, where: sa.ColumnElement[bool]) -> list[LockInfo]:
    query = sa.select(HIVE_LOCKS).where(where).order_by(HIVE_LOCKS.c.HL_LOCK_EXT_ID, HIVE_LOCKS.c.HL_LOCK_INT_ID)
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
