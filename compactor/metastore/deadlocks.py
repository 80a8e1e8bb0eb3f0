"""Transactions that wait for each other's locks in a circle: one of them has to give way.

1. Only transactions with a waiting lock can be part of a circle, so only their locks are read.
2. Who waits for whom follows from the locks themselves, not from HL_BLOCKEDBY_*: these columns name one of the locks
   in the way, as of the last check, and a circle may run through another.
3. The youngest transaction of a circle is aborted, with the circle in TXN_META_INFO, so that its owner learns it from
   the next check. Replayed transactions and soft deletes are never chosen.
4. Before that its row is locked and the circle looked for again: of two waiters that find the same circle only one
   ends it, and nobody is ended for a circle that is gone.

Hive until 4.2 has no detection, its waiters wait until they give up; later ones have a service that follows
HL_BLOCKEDBY_* (`DeadlockDetectionFunction`), from which the choice of the victim is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.metastore.database import Database, retried
from compactor.metastore.locks import LockInfo, LockState, blockers, read_locks
from compactor.metastore.schema import HIVE_LOCKS, TXNS
from compactor.metastore.txns import DEADLOCK_REASON, TxnState, TxnType, end_transactions, open_kind

_PROTECTED = (TxnType.REPL_CREATED, TxnType.SOFT_DELETE)

WaitsFor = Mapping[int, frozenset[int]]
"""Transaction → the transactions whose locks are in its way."""


@dataclass(frozen=True, kw_only=True)
class EndedDeadlock:
    """victim: the transaction that was aborted. circle: each waits for the next, the last for the first."""

    victim: int
    circle: tuple[int, ...]


@retried
def end_deadlocks(db: Database) -> list[EndedDeadlock]:
    """Abort the youngest transaction of every circle of waiting transactions; what was ended."""
    ended: list[EndedDeadlock] = []
    with db.write() as conn:
        graph = _read_graph(conn)
        while (circle := find_circle(graph)) is not None:
            victim = _youngest(conn, circle)
            # its row is locked from here on: whoever else found the circle waits, and then finds it gone
            if victim is None or open_kind(conn, victim) is None:
                graph = _without(graph, circle if victim is None else (victim,))
                continue
            again = _read_graph(conn)
            if reaches_itself(again, victim):
                reason = f"{DEADLOCK_REASON}: {' waits for '.join(str(t) for t in (*circle, circle[0]))}"
                end_transactions(conn, [victim], state=TxnState.ABORTED, reason=reason)
                ended.append(EndedDeadlock(victim=victim, circle=circle))
            graph = _without(again, (victim,))
    return ended


def waits_for(locks: Sequence[LockInfo]) -> WaitsFor:
    """Who waits for whom among these locks, by id and component number; locks without transaction wait for nobody."""
    graph: dict[int, set[int]] = {}
    for waiting in locks:
        if waiting.state is LockState.WAITING and waiting.txn_id:
            before = [lock for lock in locks if lock.lock_id < waiting.lock_id]
            graph.setdefault(waiting.txn_id, set()).update(h.txn_id for _, h in blockers([waiting], before) if h.txn_id)
    return {txn_id: frozenset(others) for txn_id, others in graph.items()}


def find_circle(graph: WaitsFor) -> tuple[int, ...] | None:
    """A shortest circle through the youngest transaction that is part of one, beginning there; None without any."""
    return next((circle for txn_id in sorted(graph, reverse=True) if (circle := _circle_of(graph, txn_id))), None)


def reaches_itself(graph: WaitsFor, txn_id: int) -> bool:
    """Does the transaction wait, through however many others, for itself?"""
    return _circle_of(graph, txn_id) is not None


def _circle_of(graph: WaitsFor, start: int) -> tuple[int, ...] | None:
    paths: list[tuple[int, ...]] = [(start,)]
    seen: set[int] = set()
    for path in paths:
        for following in sorted(graph.get(path[-1], frozenset())):
            if following == start:
                return path
            if following not in seen:
                seen.add(following)
                paths.append((*path, following))
    return None


def _read_graph(conn: sa.Connection) -> WaitsFor:
    waiting = HIVE_LOCKS.alias()
    waiters = sa.select(waiting.c.HL_TXNID).where(waiting.c.HL_LOCK_STATE == LockState.WAITING, waiting.c.HL_TXNID != 0)
    return waits_for(read_locks(conn, HIVE_LOCKS.c.HL_TXNID.in_(waiters)))


def _youngest(conn: sa.Connection, circle: Sequence[int]) -> int | None:
    youngest = sa.select(sa.func.max(TXNS.c.TXN_ID)).where(
        TXNS.c.TXN_ID.in_(circle), sa.func.coalesce(TXNS.c.TXN_TYPE, 0).not_in([int(kind) for kind in _PROTECTED])
    )
    victim: int | None = conn.scalar(youngest)
    return victim


def _without(graph: WaitsFor, gone: Sequence[int]) -> WaitsFor:
    return {txn_id: others for txn_id, others in graph.items() if txn_id not in gone}
