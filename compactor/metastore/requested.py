"""Requests for compactions inside the transaction that puts them into the queue: which are needless, and the rows.

Source: Hive `CompactFunction`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, insert

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, format_properties
from compactor.metastore.compaction_rows import next_compaction_ids, objects_are, queue_rows
from compactor.metastore.schema import COMPACTION_QUEUE
from compactor.metastore.writeids import compactable_high_water

Object = tuple[TableName, str | None]


def pending(conn: Connection, objects: Collection[Object]) -> dict[Object, Compaction]:
    """For each of the objects the oldest row, if there is one, that makes a request needless.

    That is a row i or w, or a row r that was compacted up to the write id a compaction could reach now.
    """
    state = COMPACTION_QUEUE.c.CQ_STATE
    under_way = {CompactionState.INITIATED, CompactionState.WORKING}
    reachable: dict[TableName, int] = {}
    found: dict[Object, Compaction] = {}
    for condition in objects_are(COMPACTION_QUEUE, "CQ", objects):
        query = queue_rows().where(condition, state.in_([*under_way, CompactionState.READY_FOR_CLEANING]))
        for row in map(Compaction.from_row, conn.execute(query.order_by(COMPACTION_QUEUE.c.CQ_ID)).mappings()):
            if row.state not in under_way:
                if row.table not in reachable:
                    reachable[row.table] = compactable_high_water(conn, row.table)
                if row.highest_write_id != reachable[row.table]:
                    continue
            found.setdefault((row.table, row.partition), row)
    return found


def insert_requests(conn: Connection, requests: Sequence[CompactionRequest], *, now: int) -> list[int]:
    """Put requests into the queue; their ids. now: epoch ms."""
    if not requests:
        return []
    ids = next_compaction_ids(conn, len(requests))
    rows = [
        {
            "CQ_ID": compaction_id,
            "CQ_DATABASE": request.table.database,
            "CQ_TABLE": request.table.table,
            "CQ_PARTITION": request.partition,
            "CQ_STATE": CompactionState.INITIATED,
            "CQ_TYPE": request.type,
            "CQ_TBLPROPERTIES": format_properties(request.properties),
            "CQ_ENQUEUE_TIME": now,
            "CQ_RUN_AS": request.run_as,
            "CQ_INITIATOR_ID": request.initiator_id,
            "CQ_INITIATOR_VERSION": request.initiator_version,
            "CQ_RETRY_RETENTION": 0,
            "CQ_POOL_NAME": request.pool,
            "CQ_NUMBER_OF_BUCKETS": request.buckets,
            "CQ_ORDER_BY": request.order_by,
        }
        for compaction_id, request in zip(ids, requests, strict=True)
    ]
    conn.execute(insert(COMPACTION_QUEUE), rows)
    return list(ids)
