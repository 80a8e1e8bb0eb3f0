"""Asking for a compaction and waiting for it: the one path behind the command line, SQL and Python.

Sources: Hive `AlterTableCompactOperation` (AND WAIT polls with a doubling pause), HIVE-27598.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compactor.acid.rebalance import check_buckets, check_order, order_clause, parse_order_by
from compactor.acid.schema import struct_of
from compactor.errors import NoSuchObject, UsageError
from compactor.metastore import catalog, history, queue
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.queue import RequestOutcome
from compactor.service.targets import why_never_compacted

WAIT_TIMEOUT_S = 300.0
"""hive.compactor.wait.timeout."""
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_PENDING = frozenset({CompactionState.INITIATED, CompactionState.WORKING})


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user asks for. partition: column → value, empty for an unpartitioned table."""

    table: TableName
    type: CompactionType
    partition: Mapping[str, str] = field(default_factory=dict)
    pool: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    buckets: int | None = None
    order_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class RequestRefused:
    """Nothing was queued, because no worker would ever carry it out. reason: one sentence without a full stop."""

    reason: str


def request(db: Database, wish: Wish, *, host: str, version: str) -> RequestOutcome | RequestRefused:
    """Queue a wish after checking that its object exists and can be compacted.

    RequestRefused for what is never compacted in this way: a sorted table, a rebalance of a bucketed one. Raises
    NoSuchObject, UsageError (not transactional, partition missing or not wanted, a column to order by that does not
    exist, a number of buckets that cannot be).
    """
    table = catalog.get_table(db, wish.table)
    order_by = _checked_order(wish, table)
    if not table.is_transactional:
        raise UsageError(f"{wish.table} is not transactional", hint="only ACID tables have deltas to compact")
    if table.is_partitioned and not wish.partition:
        raise UsageError(
            f"{wish.table} is partitioned by {', '.join(c.name for c in table.partition_columns)}",
            hint="name one partition; the initiator finds by itself which ones need it",
        )
    partition = catalog.find_partition(db, wish.table, dict(wish.partition)).name if wish.partition else None
    reason = why_never_compacted(table, wish.type, partition)
    if reason:
        return RequestRefused(reason=reason)
    return queue.request_compaction(
        db,
        CompactionRequest(
            table=wish.table,
            type=wish.type,
            partition=partition,
            pool=wish.pool or table.parameters.get("hive.compactor.worker.pool"),
            initiator_id=f"{host}-manual",
            initiator_version=version,
            properties=wish.properties,
            buckets=wish.buckets,
            order_by=order_by,
        ),
    )


def _checked_order(wish: Wish, table: catalog.Table) -> str | None:
    """The ORDER BY clause for the queue, after a look at what is wished for a rebalance."""
    if wish.type is not CompactionType.REBALANCE and (wish.buckets is not None or wish.order_by):
        raise UsageError(
            f"a {wish.type.name.lower()} compaction keeps every row in its bucket and place",
            hint="only a rebalance takes a number of buckets and an order",
        )
    check_buckets(wish.buckets)
    keys = parse_order_by(wish.order_by)
    if keys:
        check_order(keys, struct_of(tuple((c.name, c.type) for c in table.columns)))
    return order_clause(keys)


def find(db: Database, compaction_id: int) -> Compaction:
    """The row of a compaction, wherever it is by now; NoSuchObject when the history has forgotten it."""
    rows = history.show_compactions(db, filters=history.CompactionFilter(id=compaction_id))
    if not rows:
        raise NoSuchObject(f"compaction {compaction_id} is unknown", hint="the history keeps only the last ones")
    return rows[0]


def wait_for(
    db: Database,
    compaction_id: int,
    *,
    pause: Callable[[float], bool],
    timeout_s: float = WAIT_TIMEOUT_S,
    on_change: Callable[[Compaction], None] = lambda _: None,
) -> Compaction:
    """Poll until the compaction is neither initiated nor working, or the time is over; its last state.

    pause: sleeps, True when waiting should end early. on_change: called with every look at the row.
    """
    waited, step = 0.0, _FIRST_PAUSE_S
    while True:
        row = find(db, compaction_id)
        on_change(row)
        if row.state not in _PENDING or waited >= timeout_s:
            return row
        step = min(step, timeout_s - waited)
        if pause(step):
            return row
        waited += step
        step = min(step * 2, _LONGEST_PAUSE_S)
