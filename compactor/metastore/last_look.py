"""The last look at a row of the queue before the first of its files is deleted (I5).

What was read for a page of rows may be minutes old when a row's turn comes. What must not have changed since is asked
once more, in one snapshot: the row still waits for cleaning, its table or partition is still the same one and was not
dropped, nobody reads the old files, and nobody forbade to remove them.

Source: Hive `CompactionCleaner.clean`, `AcidEventListener`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.metastore.catalog_schema import PARTITION_PARAMS, PARTITIONS, TABLE_PARAMS, TBLS
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.metastore.compaction_rows import fenced
from compactor.metastore.database import Database, retried
from compactor.metastore.holders import Blocker, unfinished
from compactor.metastore.schema import COMPACTION_QUEUE

_SPELLINGS = ("no_cleanup", "NO_CLEANUP")
"""As Hive reads the key; the first one wins."""

# Built once: every row of the queue is looked at, and a statement takes longer to build than to answer
_IN_CATALOGUE = sa.exists().where(TBLS.c.TBL_ID == sa.bindparam("table"))
_PARTITION_IN_CATALOGUE = sa.exists().where(PARTITIONS.c.PART_ID == sa.bindparam("partition", type_=sa.BigInteger))
_STILL_READY, _PARTITION_STILL_READY = (
    sa.select(sa.and_(*there).label("EXISTS")).where(
        COMPACTION_QUEUE.c.CQ_ID == sa.bindparam("id"),
        COMPACTION_QUEUE.c.CQ_STATE == CompactionState.READY_FOR_CLEANING,
    )
    for there in ((_IN_CATALOGUE,), (_IN_CATALOGUE, _PARTITION_IN_CATALOGUE))
)
_OWNERS = ("table", "partition")
_KEEPS = sa.union_all(
    *(
        sa.select(sa.literal(owner).label("OWNER"), rows.c.PARAM_KEY, rows.c.PARAM_VALUE).where(
            rows.c[key] == sa.bindparam(owner, type_=sa.BigInteger), rows.c.PARAM_KEY.in_(_SPELLINGS)
        )
        for owner, rows, key in zip(_OWNERS, (TABLE_PARAMS, PARTITION_PARAMS), ("TBL_ID", "PART_ID"), strict=True)
    )
)


@dataclass(frozen=True, kw_only=True)
class LastLook:
    """exists: table and partition have not been dropped, nor created again since. blocker: the oldest transaction that
    may need the old files. forbidden_by: whose parameter `no_cleanup` forbids it, `table` or `partition`. The files may
    go when it exists and both are None."""

    exists: bool
    blocker: Blocker | None
    forbidden_by: str | None


@retried
def last_look(db: Database, compaction: Compaction, *, up_to: int, table_id: int, partition_id: int | None) -> LastLook:
    """Whether the files that a row's compaction replaced may go now; Fenced when the row waits no longer.

    up_to: the transaction id up to and including which readers count, NEXT_TXN_ID.
    """
    with db.read() as conn:
        about = {"id": compaction.id, "table": table_id, "partition": partition_id}
        still = conn.scalar(_STILL_READY if partition_id is None else _PARTITION_STILL_READY, about)
        if still is None:
            raise fenced(compaction)
        rows = conn.execute(_KEEPS, about)
        keeps = {(row.OWNER, row.PARAM_KEY): row.PARAM_VALUE for row in rows}
        return LastLook(
            exists=bool(still),
            blocker=next(iter(unfinished(conn, up_to, compaction.table, limit=1)), None),
            forbidden_by=next((owner for owner in _OWNERS if _forbids(owner, keeps)), None),
        )


def _forbids(owner: str, keeps: Mapping[tuple[str, str], str | None]) -> bool:
    values = [keeps[owner, spelling] for spelling in _SPELLINGS if (owner, spelling) in keeps]
    return bool(values) and (values[0] or "").strip().lower() == "true"
