"""What the metastore knows about a page of candidates, read together: a few queries a page, not a few a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import NoSuchObject
from compactor.metastore.candidates import Candidate, active_objects
from compactor.metastore.catalog import (
    CatalogDatabase,
    Table,
    TableName,
    get_database,
    get_tables,
)
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.metastore.history import Outcome, outcomes_of_each
from compactor.metastore.places import partition_places
from compactor.metastore.writeids import valid_write_ids_of_each
from initiator.decide import PastCompaction

Object = tuple[TableName, str | None]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """About every candidate of one page.

    tables, databases, locations: what exists of them; a location belongs to a partition of a table. active: objects of
    which a compaction is under way. outcomes: how the last compactions of an object ended, newest first. write_ids: of
    each table, up to where a compaction could go now.
    """

    databases: Mapping[str, CatalogDatabase]
    tables: Mapping[TableName, Table]
    locations: Mapping[Object, str]
    active: frozenset[Object]
    outcomes: Mapping[Object, Sequence[Outcome]]
    write_ids: Mapping[TableName, ValidWriteIdList]

    def database(self, name: str) -> CatalogDatabase:
        """NoSuchObject when it was dropped."""
        if name not in self.databases:
            raise NoSuchObject(f"database {name} does not exist")
        return self.databases[name]

    def table(self, name: TableName) -> Table:
        """NoSuchObject when it was dropped."""
        if name not in self.tables:
            raise NoSuchObject(f"table {name} does not exist")
        return self.tables[name]

    def location(self, candidate: Candidate) -> str | None:
        """Of the table or partition, None for a view; NoSuchObject when it was dropped."""
        if candidate.partition is None:
            return self.table(candidate.table).location
        if (candidate.table, candidate.partition) not in self.locations:
            raise NoSuchObject(f"table {candidate.table} has no partition {candidate.partition}")
        return self.locations[candidate.table, candidate.partition]

    def past(self, candidate: Candidate) -> list[PastCompaction]:
        """How its last compactions ended, newest first."""
        rows = self.outcomes.get((candidate.table, candidate.partition), ())
        return [
            PastCompaction(failed=row.state is CompactionState.FAILED, enqueue_time_ms=row.enqueue_time) for row in rows
        ]


def facts_of(db: Database, page: Sequence[Candidate], txns: ValidTxnList, *, outcomes: int) -> Facts:
    """Read what there is to know about a page. txns: the cycle's snapshot. outcomes: past ones of each object."""
    objects = [(candidate.table, candidate.partition) for candidate in page]
    tables = get_tables(db, {table for table, _ in objects})
    partitions: dict[TableName, set[str]] = {}
    for table, partition in objects:
        if partition is not None and table in tables:
            partitions.setdefault(table, set()).add(partition)
    return Facts(
        databases=_databases(db, {table.database for table, _ in objects}),
        tables=tables,
        locations={
            (table, name): place.location
            for table, names in partitions.items()
            for name, place in partition_places(db, tables[table], names).items()
        },
        active=active_objects(db, objects),
        outcomes=outcomes_of_each(db, objects, outcomes),
        write_ids={
            table: write_ids.for_compaction() for table, write_ids in valid_write_ids_of_each(db, tables, txns).items()
        },
    )


def _databases(db: Database, names: set[str]) -> dict[str, CatalogDatabase]:
    found: dict[str, CatalogDatabase] = {}
    for name in names:
        try:
            found[name] = get_database(db, name)
        except NoSuchObject:
            # Dropped with everything in it: its candidates are skipped
            continue
    return found
