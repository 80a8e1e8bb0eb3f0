"""The last look at a row of the queue before the first of its files is deleted (I5).

What was read for a page of rows may be minutes old when a row's turn comes. What must not have changed since is asked
once more, in one snapshot: the row still waits for cleaning and is about the same name (Hive's RENAME changes it in
place), its table or partition is still the same one in the same location, nobody reads the old files, and nobody
forbade to remove them.

Source: Hive `CompactionCleaner.clean`, `AcidEventListener`, `OnRenameFunction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from compactor.metastore.catalog_schema import PARTITION_PARAMS, PARTITIONS, SDS, TABLE_PARAMS, TBLS
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.metastore.compaction_rows import each_object, fenced, of_object
from compactor.metastore.database import Database, retried
from compactor.metastore.dialects import exactly
from compactor.metastore.holders import Blocker, unfinished
from compactor.metastore.schema import COMPACTION_QUEUE

_SPELLINGS = ("no_cleanup", "NO_CLEANUP")
"""As Hive reads the key; the first one wins."""

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
    """The files may go when it exists and nothing is in the way.

    exists: table and partition have not been dropped, moved or created again since. blocker: the oldest transaction
    that may need the old files. forbidden_by: whose parameter `no_cleanup` forbids it, `table` or `partition`.
    """

    exists: bool
    blocker: Blocker | None
    forbidden_by: str | None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a row is about, as the catalogue had it.

    partition_id: None without a partition. location: its own; None when it does not matter where it lies.
    """

    table_id: int
    partition_id: int | None = None
    location: str | None = None


@retried
def last_look(db: Database, compaction: Compaction, subject: Subject, *, up_to: int) -> LastLook:
    """Whether the files that a row's compaction replaced may go now; Fenced when the row waits no longer.

    up_to: the transaction id up to and including which readers count, NEXT_TXN_ID.
    """
    with db.read() as conn:
        exists = _waiting_for(conn, compaction, subject)
        rows = conn.execute(_KEEPS, {"table": subject.table_id, "partition": subject.partition_id})
        keeps = {(row.OWNER, row.PARAM_KEY): row.PARAM_VALUE for row in rows}
        return LastLook(
            exists=exists,
            blocker=next(iter(unfinished(conn, up_to, compaction.table, limit=1)), None),
            forbidden_by=next((owner for owner in _OWNERS if _forbids(owner, keeps)), None),
        )


@retried
def require_waiting(db: Database, compaction: Compaction) -> None:
    """Fenced when a row waits no longer for cleaning, or has got another name."""
    with db.read() as conn:
        _waiting_for(conn, compaction, Subject(table_id=0))


def _waiting_for(conn: sa.Connection, compaction: Compaction, subject: Subject) -> bool:
    """Whether what the row is about is still there; Fenced when the row waits no longer."""
    query = _waits(
        partitioned=compaction.partition is not None,
        in_partition=subject.partition_id is not None,
        placed=subject.location is not None,
    )
    about = of_object(compaction.table, compaction.partition) | {
        "id": compaction.id,
        "table": subject.table_id,
        "partition": subject.partition_id,
        "location": subject.location,
    }
    exists = conn.scalar(query, about)
    if exists is None:
        raise fenced(compaction)
    return bool(exists)


@cache
def _waits(*, partitioned: bool, in_partition: bool, placed: bool) -> sa.Select[Any]:
    """Made once: every row of the queue is looked at, and a statement takes longer to build than to answer."""
    queue = COMPACTION_QUEUE.c
    owner = PARTITIONS if in_partition else TBLS
    there = sa.exists().where(owner.c.TBL_ID == sa.bindparam("table", type_=sa.BigInteger))
    if in_partition:
        there = there.where(PARTITIONS.c.PART_ID == sa.bindparam("partition", type_=sa.BigInteger))
    if placed:
        location = sa.bindparam("location", type_=sa.String())
        there = there.where(SDS.c.SD_ID == owner.c.SD_ID, exactly(SDS.c.LOCATION, location))
    return sa.select(there.label("EXISTS")).where(
        queue.CQ_ID == sa.bindparam("id", type_=sa.BigInteger),
        queue.CQ_STATE == CompactionState.READY_FOR_CLEANING,
        each_object(COMPACTION_QUEUE, "CQ", partitioned=partitioned),
    )


def _forbids(owner: str, keeps: Mapping[tuple[str, str], str | None]) -> bool:
    values = [keeps[owner, spelling] for spelling in _SPELLINGS if (owner, spelling) in keeps]
    return bool(values) and (values[0] or "").strip().lower() == "true"
