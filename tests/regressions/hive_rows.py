"""The metastore as Hive, or time, leaves it, where our own roles would never write such a thing."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire
from compactor.metastore.schema import COMPACTION_QUEUE, TXNS
from compactor.metastore.txns import open_transactions
from compactor.metastore.writeids import allocate_write_ids
from tests.simulation.world import AN_HOUR_MS, HOST, World


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


def open_write(
    world: World, table: TableName, partition: str | None = None, *, dynamic: bool = False
) -> tuple[int, int]:
    """(transaction id, write id) of an open writer that holds its lock; its files are the test's business.

    dynamic: a dynamic-partition insert that has not said yet which partitions it reached.
    """
    (txn_id,) = open_transactions(world.db, user="hive", host=HOST)
    write_id = allocate_write_ids(world.db, [txn_id], table)[txn_id]
    component = LockComponent(
        database=table.database,
        table=table.table,
        partition=partition,
        type=LockType.SHARED_READ,
        operation=Operation.INSERT,
        is_dynamic_partition=dynamic,
    )
    acquire(world.db, LockRequest(txn_id=txn_id, components=[component], user="hive", host=HOST))
    return txn_id, write_id


def keep_house_much_later(world: World) -> None:
    """The housekeeper's cycle when every transaction that has ended is old enough to be forgotten."""
    with world.db.write() as conn:
        conn.execute(TXNS.update().values(TXN_STARTED=TXNS.c.TXN_STARTED - AN_HOUR_MS))
    world.keep_house()
