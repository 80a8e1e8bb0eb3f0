"""The state of the whole installation as numbers: one consistent read of Hive's tables.

What is counted follows Hive's AcidMetricService and CompactionMetricData: of each table or partition only
its newest compaction counts towards the states, so that a failure that was repaired since no longer raises an alarm.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.schema import (
    COMPACTION_METRICS_CACHE,
    COMPACTION_QUEUE,
    COMPLETED_COMPACTIONS,
    COMPLETED_TXN_COMPONENTS,
    HIVE_LOCKS,
    TXN_COMPONENTS,
    TXN_TO_WRITE_ID,
    TXNS,
)
from compactor.service.metrics import DEFAULT_POOL, STATES, DeltaCount, PoolStatistics, QueueStatistics

ABORTED_TXN_THRESHOLD: Final = 1500
"""Hive: metastore.acidmetrics.table.aborted.txns.threshold."""
LATELY_MS: Final = 24 * 3600 * 1000
"""Initiators and workers seen within this time are counted (Hive: …worker.detect.multiple.versions.threshold)."""

_REPLICATION = 1
"""Hive's TxnType.REPL_CREATED."""
_NOT_CLEANING = -1
"""CQ_CLEANER_START of a row that a cleaner gave back."""

_Q = COMPACTION_QUEUE.c
_C = COMPLETED_COMPACTIONS.c


def read_statistics(
    db: Database,
    *,
    top: int,
    delta_threshold: int,
    obsolete_delta_threshold: int,
    aborted_txn_threshold: int = ABORTED_TXN_THRESHOLD,
) -> QueueStatistics:
    """Read everything in one transaction.

    top: tables and partitions that are listed by name for each kind of delta, with at least `delta_threshold` (active,
    small) or `obsolete_delta_threshold` deltas. aborted_txn_threshold: aborted transactions, strictly more than which
    make a table count. Raises DatabaseUnavailable or NotInitialised.
    """
    with db.read() as conn:
        now = db.now(conn)
        oldest = _oldest_rows(conn)
        users, replication = _open_transactions(conn)
        aborted = conn.execute(
            sa.select(sa.func.count(), sa.func.min(TXNS.c.TXN_ID), sa.func.min(TXNS.c.TXN_STARTED)).where(
                TXNS.c.TXN_STATE == "a"
            )
        ).one()
        locks = conn.execute(sa.select(sa.func.count(), sa.func.min(HIVE_LOCKS.c.HL_ACQUIRED_AT))).one()
        initiators, initiator_versions = _seen_lately(conn, "INITIATOR", "ENQUEUE_TIME", since=now - LATELY_MS)
        workers, worker_versions = _seen_lately(conn, "WORKER", "START", since=now - LATELY_MS)
        return QueueStatistics(
            compactions=_newest_by_state(conn),
            pools=_pools(conn, now),
            oldest_enqueue_age_s=_age_s(now, oldest.enqueued),
            oldest_working_age_s=_age_s(now, oldest.started),
            oldest_ready_for_cleaning_age_s=_age_s(now, oldest.published),
            oldest_cleaning_age_s=_age_s(now, oldest.cleaning),
            initiators=initiators,
            workers=workers,
            initiator_versions=initiator_versions,
            worker_versions=worker_versions,
            active_deltas=_deltas(conn, "NUM_DELTAS", top=top, threshold=delta_threshold),
            small_deltas=_deltas(conn, "NUM_SMALL_DELTAS", top=top, threshold=delta_threshold),
            obsolete_deltas=_deltas(conn, "NUM_OBSOLETE_DELTAS", top=top, threshold=obsolete_delta_threshold),
            open_non_repl_transactions=users[0],
            oldest_open_non_repl_txn_id=users[1] or 0,
            oldest_open_non_repl_txn_age_s=_age_s(now, users[2]),
            open_repl_transactions=replication[0],
            oldest_open_repl_txn_id=replication[1] or 0,
            oldest_open_repl_txn_age_s=_age_s(now, replication[2]),
            aborted_transactions=aborted[0],
            oldest_aborted_txn_id=aborted[1] or 0,
            oldest_aborted_txn_age_s=_age_s(now, aborted[2]),
            tables_with_x_aborted_transactions=_tables_with_many_aborts(conn, aborted_txn_threshold),
            locks=locks[0],
            oldest_lock_age_s=_age_s(now, locks[1]),
            txn_to_writeid=_rows(conn, TXN_TO_WRITE_ID),
            completed_txn_components=_rows(conn, COMPLETED_TXN_COMPONENTS),
        )


def _age_s(now_ms: int, since_ms: int | None) -> float:
    return max(0, now_ms - since_ms) / 1000 if since_ms else 0.0


def _rows(conn: sa.Connection, table: sa.Table) -> int:
    return int(conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _is(state: CompactionState) -> sa.ColumnElement[bool]:
    return COMPACTION_QUEUE.c["CQ_STATE"] == state.value


def _is_compaction() -> sa.ColumnElement[bool]:
    """Leaves out the abort cleaner's notes to itself."""
    return COMPACTION_QUEUE.c["CQ_TYPE"] != CompactionType.ABORT_TXN_CLEANUP.value


def _newest_by_state(conn: sa.Connection) -> dict[str, int]:
    queue = sa.select(
        _Q.CQ_ID.label("id"),
        _Q.CQ_DATABASE.label("db"),
        _Q.CQ_TABLE.label("tbl"),
        _Q.CQ_PARTITION.label("part"),
        _Q.CQ_STATE.label("state"),
    ).where(_is_compaction())
    history = sa.select(_C.CC_ID, _C.CC_DATABASE, _C.CC_TABLE, _C.CC_PARTITION, _C.CC_STATE)
    every = sa.union_all(queue, history).subquery()
    newest = sa.select(sa.func.max(every.c.id)).group_by(every.c.db, every.c.tbl, every.c.part)
    counted = sa.select(every.c.state, sa.func.count()).where(every.c.id.in_(newest)).group_by(every.c.state)
    numbers = dict.fromkeys(STATES, 0)
    for letter, count in conn.execute(counted):
        numbers[CompactionState(letter).name.lower()] = count
    return numbers


def _oldest_rows(conn: sa.Connection) -> sa.Row[int | None, int | None, int | None, int | None]:
    """The smallest enqueue, start, commit and cleaner start times of the rows that wait for each step, epoch ms."""

    def smallest(column: sa.ColumnElement[int], state: CompactionState, name: str) -> sa.Label[int | None]:
        return sa.func.min(sa.case((_is(state), column))).label(name)

    cleaning = sa.case((_Q.CQ_CLEANER_START != _NOT_CLEANING, _Q.CQ_CLEANER_START))
    return conn.execute(
        sa.select(
            smallest(_Q.CQ_ENQUEUE_TIME, CompactionState.INITIATED, "enqueued"),
            smallest(_Q.CQ_START, CompactionState.WORKING, "started"),
            smallest(_Q.CQ_COMMIT_TIME, CompactionState.READY_FOR_CLEANING, "published"),
            smallest(cleaning, CompactionState.READY_FOR_CLEANING, "cleaning"),
        ).where(_is_compaction())
    ).one()


def _pools(conn: sa.Connection, now: int) -> dict[str, PoolStatistics]:
    """Waiting and running rows by pool; the default pool is always there, so that its series never vanishes."""
    pool = sa.func.coalesce(sa.func.nullif(_Q.CQ_POOL_NAME, ""), DEFAULT_POOL)
    waiting, running = _is(CompactionState.INITIATED), _is(CompactionState.WORKING)
    rows = conn.execute(
        sa.select(
            pool,
            sa.func.count(sa.case((waiting, 1))),
            sa.func.count(sa.case((running, 1))),
            sa.func.min(sa.case((waiting, _Q.CQ_ENQUEUE_TIME))),
            sa.func.min(sa.case((running, _Q.CQ_START))),
        )
        .where(waiting | running)
        .group_by(pool)
    )
    pools = {DEFAULT_POOL: PoolStatistics()}
    for name, initiated, working, enqueued, started in rows:
        pools[name] = PoolStatistics(
            initiated=initiated,
            working=working,
            oldest_enqueue_age_s=_age_s(now, enqueued),
            oldest_working_age_s=_age_s(now, started),
        )
    return pools


def _seen_lately(conn: sa.Connection, role: str, time: str, *, since: int) -> tuple[int, int]:
    """Processes and versions of a role (INITIATOR, WORKER) in queue and history since a time in epoch ms."""
    pairs: set[tuple[str, str]] = set()
    for table, prefix in ((COMPACTION_QUEUE, "CQ"), (COMPLETED_COMPACTIONS, "CC")):
        who, version = table.c[f"{prefix}_{role}_ID"], table.c[f"{prefix}_{role}_VERSION"]
        seen = sa.select(who, version).where(who.is_not(None), table.c[f"{prefix}_{time}"] >= since).distinct()
        pairs.update((_process(name), release or "") for name, release in conn.execute(seen))
    return len({name for name, _ in pairs}), len({release for _, release in pairs})


def _process(identity: str) -> str:
    """`host-pid` of an identity `host-pid.random`, whose tail is new with every claim; Hive's `host-thread` as it is."""
    host, dash, tail = identity.rpartition("-")
    return f"{host}{dash}{tail.partition('.')[0]}"


def _open_transactions(conn: sa.Connection) -> tuple[sa.Row[int, int, int], sa.Row[int, int, int]]:
    """(count, smallest id, earliest start in epoch ms) of users' and of replication's open transactions."""
    numbers = sa.select(sa.func.count(), sa.func.min(TXNS.c.TXN_ID), sa.func.min(TXNS.c.TXN_STARTED)).where(
        TXNS.c.TXN_STATE == "o"
    )
    is_replication = sa.func.coalesce(TXNS.c.TXN_TYPE, 0) == _REPLICATION
    return conn.execute(numbers.where(~is_replication)).one(), conn.execute(numbers.where(is_replication)).one()


def _tables_with_many_aborts(conn: sa.Connection, threshold: int) -> int:
    component = TXN_COMPONENTS.c
    crowded = (
        sa.select(component.TC_DATABASE)
        .join(TXNS, TXNS.c.TXN_ID == component.TC_TXNID)
        .where(TXNS.c.TXN_STATE == "a")
        .group_by(component.TC_DATABASE, component.TC_TABLE, component.TC_PARTITION)
        .having(sa.func.count(sa.distinct(component.TC_TXNID)) > threshold)
        .subquery()
    )
    return int(conn.execute(sa.select(sa.func.count()).select_from(crowded)).scalar_one())


def _deltas(conn: sa.Connection, kind: str, *, top: int, threshold: int) -> tuple[DeltaCount, ...]:
    cache = COMPACTION_METRICS_CACHE.c
    rows = conn.execute(
        sa.select(cache.CMC_DATABASE, cache.CMC_TABLE, cache.CMC_PARTITION, cache.CMC_METRIC_VALUE)
        .where(cache["CMC_METRIC_TYPE"] == kind, cache["CMC_METRIC_VALUE"] >= threshold)
        .order_by(cache.CMC_METRIC_VALUE.desc(), cache.CMC_DATABASE, cache.CMC_TABLE, cache.CMC_PARTITION)
        .limit(top)
    )
    return tuple(DeltaCount(database=row[0], table=row[1], partition=row[2] or "", count=row[3]) for row in rows)
