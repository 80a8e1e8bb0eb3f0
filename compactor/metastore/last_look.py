"""The last look at a row of the queue before the first of its files is deleted (I5).

What was read for a page of rows may be minutes old when a row's turn comes. What must not have changed since is asked
once more, in one snapshot: the row still waits for cleaning, which it no longer does when its table was dropped, nobody
reads the old files, and nobody forbade to remove them.

Source: Hive `CompactionCleaner.clean`, `AcidEventListener`.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from compactor.metastore.catalog_schema import PARTITION_PARAMS, TABLE_PARAMS
from compactor.metastore.compaction import Compaction
from compactor.metastore.compaction_rows import fenced, ready
from compactor.metastore.database import Database, retried
from compactor.metastore.holders import Blocker, unfinished
from compactor.metastore.schema import COMPACTION_QUEUE

NO_CLEANUP = "no_cleanup"
_SPELLINGS = (NO_CLEANUP, NO_CLEANUP.upper())
"""As Hive reads the key; the first one wins."""


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
        if conn.scalar(sa.select(COMPACTION_QUEUE.c.CQ_ID).where(ready(compaction))) is None:
            raise fenced(compaction)
        owners = [("table", _keeps(conn, TABLE_PARAMS, TABLE_PARAMS.c.TBL_ID == table_id))]
        if partition_id is not None:
            owners.append(("partition", _keeps(conn, PARTITION_PARAMS, PARTITION_PARAMS.c.PART_ID == partition_id)))
        return LastLook(
            blocker=next(iter(unfinished(conn, up_to, compaction.table, limit=1)), None),
            forbidden_by=next((owner for owner, keeps in owners if keeps), None),
        )


def _keeps(conn: sa.Connection, parameters: sa.Table, of_owner: sa.ColumnElement[bool]) -> bool:
    of_key = parameters.c.PARAM_KEY.in_(_SPELLINGS)
    found = dict(
        row for row in conn.execute(sa.select(parameters.c.PARAM_KEY, parameters.c.PARAM_VALUE).where(of_owner, of_key))
    )
    value = next((found[key] for key in _SPELLINGS if key in found), None)
    return (value or "").strip().lower() == "true"
