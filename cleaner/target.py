"""Where an object of the queue lives: its table, its partition, its locations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from compactor.acid.directory import Listing
from compactor.acid.layout import parse_directory
from compactor.metastore.catalog import Table, TableName, get_tables
from compactor.metastore.database import Database
from compactor.metastore.places import PartitionPlace, every_place, partition_places
from compactor.storage.filesystem import FilesystemOf

Object = tuple[TableName, str | None]
"""A table, or a partition of it by its escaped name."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a row of the queue is about. partition: None for an unpartitioned table, or for a partitioned one as a whole."""

    table: Table
    partition: PartitionPlace | None

    @property
    def is_whole_partitioned_table(self) -> bool:
        """Named by aborted dynamic-partition inserts, of which nobody knows the partitions (isDynPartAbort)."""
        return self.partition is None and self.table.is_partitioned

    @property
    def location(self) -> str | None:
        """Metastore location; None for a view."""
        return self.table.location if self.partition is None else self.partition.location


def find_target(db: Database, name: TableName, partition: str | None) -> Target | None:
    """The object as the catalogue has it; None when table or partition was dropped."""
    return find_targets(db, [(name, partition)]).get((name, partition))


def find_targets(db: Database, objects: Collection[Object]) -> dict[Object, Target]:
    """Those of the objects that the catalogue has, in a few queries for each of their tables at most."""
    tables = get_tables(db, {name for name, _ in objects})
    names: dict[TableName, set[str]] = {}
    for name, partition in objects:
        if partition is not None and name in tables:
            names.setdefault(name, set()).add(partition)
    places = {name: partition_places(db, tables[name], partitions) for name, partitions in names.items()}
    return {
        (name, partition): Target(table=tables[name], partition=None if partition is None else places[name][partition])
        for name, partition in objects
        if name in tables and (partition is None or partition in places[name])
    }


def locations(db: Database, target: Target, filesystem_of: FilesystemOf) -> Iterator[str]:
    """Every location whose entries belong to the target, one after the other: a table may have a million partitions.

    For a partitioned table as a whole: its partitions, and directories below the table's own location that hold ACID
    entries but are no partition, as an aborted dynamic-partition insert leaves them.
    """
    if target.location is None:
        return
    if not target.is_whole_partitioned_table:
        yield target.location
        return
    filesystem, path = filesystem_of(target.location)
    depth = len(target.table.partition_columns)
    stray = {f"{path}/{prefix}": prefix for prefix in _partition_directories(filesystem.listing(path), depth)}
    for place in every_place(db, target.table):
        stray.pop(filesystem_of(place.location)[1], None)
        yield place.location
    for prefix in sorted(stray.values()):
        yield f"{target.location.rstrip('/')}/{prefix}"


def _partition_directories(listing: Listing, depth: int) -> set[str]:
    """`p=x/q=y` of every file below `p=x/q=y/delta_…/`. depth: number of partition columns."""
    found = set()
    for file in listing.files:
        parts = file.path.split("/")
        columns = parts[:depth]
        if (
            len(parts) > depth + 1
            and all("=" in part for part in columns)
            and parse_directory(parts[depth]) is not None
        ):
            found.add("/".join(columns))
    return found
