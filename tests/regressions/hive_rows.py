"""Rows of the metastore as Hive leaves them, where our own roles would never write such a thing."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from compactor.metastore.schema import COMPACTION_QUEUE
from tests.simulation.world import World


def change_queue(world: World, compaction_id: int, **values: Any) -> None:
    """Overwrite columns of a row of COMPACTION_QUEUE, whatever state it is in."""
    with world.db.write() as conn:
        row = COMPACTION_QUEUE.update().where(COMPACTION_QUEUE.c.CQ_ID == compaction_id)
        assert conn.execute(row.values(values)).rowcount == 1


def queue_row(world: World, compaction_id: int) -> dict[str, Any]:
    """The row of COMPACTION_QUEUE, every column."""
    with world.db.read() as conn:
        row = sa.select(COMPACTION_QUEUE).where(COMPACTION_QUEUE.c.CQ_ID == compaction_id)
        return dict(conn.execute(row).mappings().one())


def mark_compacted(world: World, compaction_id: int) -> None:
    """w→r as Hive's `MarkCompactedFunction` does it: by the id alone, before the transaction commits."""
    change_queue(world, compaction_id, CQ_STATE="r", CQ_WORKER_ID=None)
