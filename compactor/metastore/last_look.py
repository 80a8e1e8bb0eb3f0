"""The last look at a row of the queue before the first of its files is deleted (I5).

What was read for a page of rows may be minutes old when a row's turn comes. What must not have changed since is asked
once more, in one snapshot: the row still waits for cleaning, which it no longer does when its table was dropped, nobody
reads the old files, and nobody forbade to remove them.

Source: Hive `CompactionCleaner.clean`, `AcidEventListener`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.metastore.catalog_schema import PARTITION_PARAMS, TABLE_PARAMS
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.metastore.compaction_rows import fenced
from compactor.metastore.database import Database, retried
from compactor.metastore.holders import Blocker, unfinished
from compactor.metastore.schema import COMPACTION_QUEUE

_SPELLINGS = ("no_cleanup", "NO_CLEANUP")
"""As Hive reads the key; the first one wins."""

# Built once: every row of the queue is looked at, and a statement takes longer to build than to answer
_STILL_READY = sa.select(COMPACTION_QUEUE.c.CQ_ID).where(
    COMPACTION_QUEUE.c.CQ_ID == sa.bindparam("id"), COMPACTION_QUEUE.c.CQ_STATE == CompactionState.READY_FOR_CLEANING
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
    """blocker: the oldest transaction that may need the old files. forbidden_by: whose parameter `no_cleanup` forbids
    it, `table` or `partition`. Both None: the files may go."""

    blocker: Blocker | None
    forbidden_by: str | None


@retried
def last_look(db: Database, compaction: Compaction, *, up_to: int, table_id: int, partition_id: int | None) -> LastLook:
    """Whether the files that a row's compaction replaced may go now; Fenced when the row waits no longer.

    up_to: the transaction id up to and including which readers count, NEXT_TXN_ID.
    """
    with db.read() as conn:
        if conn.scalar(_STILL_READY, {"id": compaction.id}) is None:
            raise fenced(compaction)
        rows = conn.execute(_KEEPS, {"table": table_id, "partition": partition_id})
        keeps = {(row.OWNER, row.PARAM_KEY): row.PARAM_VALUE for row in rows}
        return LastLook(
            blocker=next(iter(unfinished(conn, up_to, compaction.table, limit=1)), None),
            forbidden_by=next((owner for owner in _OWNERS if _forbids(owner, keeps)), None),
        )


def _forbids(owner: str, keeps: Mapping[tuple[str, str], str | None]) -> bool:
    values = [keeps[owner, spelling] for spelling in _SPELLINGS if (owner, spelling) in keeps]
    return bool(values) and (values[0] or "").strip().lower() == "true"
