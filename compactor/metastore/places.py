"""Where the partitions of a table lie, and nothing else about them: a table may have a million.

Source: Hive `ObjectStore`, `MetastoreDirectSqlUtils`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from compactor.metastore.catalog import Table
from compactor.metastore.catalog_schema import PARTITIONS, SDS
from compactor.metastore.database import Database, retried

_NAMES_A_STATEMENT = 500
_ROWS_A_PAGE = 10_000


@dataclass(frozen=True, kw_only=True)
class PartitionPlace:
    """A partition, by its escaped name `p=x/q=y`, and its metastore location."""

    id: int
    name: str
    location: str


@retried
def partition_places(db: Database, table: Table, names: Collection[str]) -> dict[str, PartitionPlace]:
    """Those of the (escaped) names that are partitions of the table, in a few queries."""
    wanted = sorted(names)
    found: dict[str, PartitionPlace] = {}
    with db.read() as conn:
        for start in range(0, len(wanted), _NAMES_A_STATEMENT):
            some = PARTITIONS.c.PART_NAME.in_(wanted[start : start + _NAMES_A_STATEMENT])
            for row in conn.execute(_places(table).where(some)):
                found[row.PART_NAME] = _place(row)
    return found


def every_place(db: Database, table: Table) -> Iterator[PartitionPlace]:
    """All partitions in the order of their names; pages of them are in memory, and what comes or goes meanwhile may be
    in the answer or not."""
    after = ""
    while page := _page_after(db, table, after):
        yield from page
        after = page[-1].name


@retried
def _page_after(db: Database, table: Table, after: str) -> list[PartitionPlace]:
    following = _places(table).where(PARTITIONS.c.PART_NAME > after).order_by(PARTITIONS.c.PART_NAME)
    with db.read() as conn:
        return [_place(row) for row in conn.execute(following.limit(_ROWS_A_PAGE))]


def _places(table: Table) -> sa.Select[Any]:
    return (
        sa.select(PARTITIONS.c.PART_ID, PARTITIONS.c.PART_NAME, SDS.c.LOCATION)
        .join(SDS, SDS.c.SD_ID == PARTITIONS.c.SD_ID)
        .where(PARTITIONS.c.TBL_ID == table.id)
    )


def _place(row: sa.Row[Any]) -> PartitionPlace:
    return PartitionPlace(id=row.PART_ID, name=row.PART_NAME, location=row.LOCATION)
