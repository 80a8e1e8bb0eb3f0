"""Where an object of the queue lives: its table, its partition, its locations."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.acid.directory import Listing
from compactor.acid.layout import parse_directory
from compactor.errors import NoSuchObject
from compactor.metastore.catalog import Partition, Table, TableName, get_partition, get_table, list_partitions
from compactor.metastore.database import Database
from compactor.storage.filesystem import FilesystemOf

NO_CLEANUP = "no_cleanup"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a row of the queue is about. partition: None for an unpartitioned table, or for a partitioned one as a whole."""

    table: Table
    partition: Partition | None

    @property
    def is_whole_partitioned_table(self) -> bool:
        """Named by aborted dynamic-partition inserts, of which nobody knows the partitions (isDynPartAbort)."""
        return self.partition is None and self.table.is_partitioned

    @property
    def location(self) -> str | None:
        """Metastore location; None for a view."""
        return self.table.location if self.partition is None else self.partition.location

    @property
    def no_cleanup(self) -> str | None:
        """Whose parameter forbids cleaning, `table` or `partition`; None when it is allowed."""
        owners = [("table", self.table.parameters)]
        if self.partition is not None:
            owners.append(("partition", self.partition.parameters))
        for owner, parameters in owners:
            value = parameters.get(NO_CLEANUP, parameters.get(NO_CLEANUP.upper(), ""))
            if value.strip().lower() == "true":
                return owner
        return None


def find_target(db: Database, name: TableName, partition: str | None) -> Target | None:
    """The object as the catalogue has it; None when table or partition was dropped."""
    try:
        table = get_table(db, name)
        return Target(table=table, partition=None if partition is None else get_partition(db, name, partition))
    except NoSuchObject:
        return None


def locations(db: Database, target: Target, filesystem_of: FilesystemOf) -> tuple[str, ...]:
    """Every location whose entries belong to the target.

    For a partitioned table as a whole: its partitions, and directories below the table's own location that hold ACID
    entries but are no partition, as an aborted dynamic-partition insert leaves them.
    """
    if target.location is None:
        return ()
    if not target.is_whole_partitioned_table:
        return (target.location,)
    known = [partition.location for partition in list_partitions(db, target.table.name)]
    filesystem, path = filesystem_of(target.location)
    opened = {filesystem_of(location)[1] for location in known}
    depth = len(target.table.partition_columns)
    stray = {
        f"{target.location.rstrip('/')}/{prefix}"
        for prefix in _partition_directories(filesystem.listing(path), depth)
        if f"{path}/{prefix}" not in opened
    }
    return (*known, *sorted(stray))


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
