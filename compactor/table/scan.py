"""What a snapshot of a table is read from, cut into tasks, and the reading of one task.

1. List a location and ask `directory_state` which base, deltas and originals the snapshot consists of.
2. Cut that into one task a bucket: the files with rows and the delete files that apply to them. The planner of
   compactions does this cut, so that readers and compactions agree on what a table holds.
3. Read a task stripe by stripe: row identities first; rows of invalid write ids and deleted rows are masked; the
   columns of a stripe without any surviving row are never decoded.

A task is plain data and may travel to another process. Memory: one stripe and the task's delete set.
Source: Hive `AcidUtils.getAcidState`, `VectorizedOrcAcidRowBatchReader`, `OrcRawRecordMerger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa

from compactor.acid.directory import DirectoryState, Listing, Snapshot, directory_state
from compactor.acid.planning import Depth, ItemKind, SourceFile, files_of, plan_compaction
from compactor.acid.records import Operation
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import NoSuchObject, UnsupportedData
from compactor.metastore.catalog import Partition, Table
from compactor.orc.deletes import DeleteSet
from compactor.orc.facts import orc_facts
from compactor.orc.reader import Int64Array, OrcSource
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import FileSystem, FilesystemOf
from compactor.storage.parquet import parquet_batches, parquet_rows
from compactor.table.values import FileFormat, file_format, partition_array, table_type

_Group = tuple[int, tuple[SourceFile, ...], tuple[SourceFile, ...]]
"""Bucket, files with rows, delete files."""


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """One bucket of one location, as one snapshot sees it.

    location: of the table or partition. partition: its name, None for an unpartitioned table; values: unescaped.
    sources: files with rows, in row order. deletes: the delete files that apply to them.
    """

    location: str
    partition: str | None
    values: tuple[str, ...]
    bucket: int
    format: FileFormat
    full_acid: bool
    row_type: HiveType
    partition_types: tuple[tuple[str, HiveType], ...]
    write_ids: ValidWriteIdList
    sources: tuple[SourceFile, ...]
    deletes: tuple[SourceFile, ...] = ()

    @property
    def rows(self) -> int:
        """Rows in the files, those included that the snapshot does not see."""
        return sum(s.rows for s in self.sources)


@dataclass(frozen=True, kw_only=True)
class RowIds:
    """ROW__IDs of consecutive rows, one array element a row; bucket is the encoded property."""

    write_id: Int64Array
    bucket: Int64Array
    row_id: Int64Array

    def __len__(self) -> int:
        return len(self.row_id)

    def take(self, positions: Int64Array) -> RowIds:
        return RowIds(write_id=self.write_id[positions], bucket=self.bucket[positions], row_id=self.row_id[positions])


@dataclass(frozen=True, kw_only=True)
class ScanBatch:
    """Rows of one stripe. row_ids: None in an insert-only table. rows: table columns, then partition columns."""

    row_ids: RowIds | None
    rows: pa.RecordBatch


@dataclass(frozen=True, kw_only=True)
class Place:
    """A location that holds rows: the table itself, or one of its partitions. input_format: None: the table's."""

    location: str
    partition: str | None = None
    values: tuple[str, ...] = ()
    input_format: str | None = None

    @classmethod
    def of(cls, partition: Partition) -> Place:
        return cls(
            location=partition.location,
            partition=partition.name,
            values=partition.values,
            input_format=partition.input_format,
        )


def places(table: Table, partitions: Sequence[Partition]) -> tuple[Place, ...]:
    """The table's own location, or those of its partitions; NoSuchObject for a view."""
    if table.is_partitioned:
        return tuple(Place.of(p) for p in partitions)
    if table.location is None:
        raise NoSuchObject(f"{table.name} is a {table.type} and has no location")
    return (Place(location=table.location),)


def scan_tasks(table: Table, place: Place, snapshot: Snapshot, filesystem_of: FilesystemOf) -> tuple[ScanTask, ...]:
    """The tasks of one place; every file's tail is read for its number of rows.

    Raises PathNotFound, CorruptFile, UnparsableName, NotEnoughHistory, UnsupportedData.
    """
    fs, root = filesystem_of(place.location)
    listing = fs.listing(root)
    state = directory_state(listing, snapshot)
    groups: list[_Group]
    stored_as = file_format(table, place.input_format)
    if not table.is_full_acid:
        groups = [(0, _plain_sources(fs, root, listing, state, stored_as), ())]
    else:
        groups = _acid_groups(fs, root, listing, state, snapshot.write_ids, table)
    return tuple(
        ScanTask(
            location=place.location,
            partition=place.partition,
            values=place.values,
            bucket=bucket,
            format=stored_as,
            full_acid=table.is_full_acid,
            row_type=table_type(table.columns),
            partition_types=table_type(table.partition_columns).children,
            write_ids=snapshot.write_ids,
            sources=sources,
            deletes=deletes,
        )
        for bucket, sources, deletes in groups
        if sources
    )


def read_task(task: ScanTask, filesystem_of: FilesystemOf) -> Iterator[ScanBatch]:
    """The rows of a task that its snapshot sees, a stripe (ORC) or row group (Parquet) at a time."""
    fs, root = filesystem_of(task.location)
    if task.full_acid:
        yield from _acid_batches(task, fs, root)
        return
    match task.format:
        case FileFormat.ORC:
            yield from _plain_orc_batches(task, fs, root)
        case FileFormat.PARQUET:
            yield from _parquet_batches(task, fs, root)
        case _:
            assert_never(task.format)


def batch_schema(row_type: HiveType, partition_types: Sequence[tuple[str, HiveType]]) -> pa.Schema:
    """Arrow schema of the rows of a table: its columns, then its partition columns."""
    return pa.schema([pa.field(n, arrow_type(t)) for n, t in (*row_type.children, *partition_types)])


def _acid_groups(
    fs: FileSystem, root: str, listing: Listing, state: DirectoryState, write_ids: ValidWriteIdList, table: Table
) -> list[_Group]:
    facts = {f.path: orc_facts(fs, f"{root}/{f.path}") for f in files_of(Depth.MAJOR, state, listing)}
    # The plan of a major compaction is what a read does: all rows, deletes applied.
    plan = plan_compaction(
        Depth.MAJOR,
        state,
        listing,
        facts,
        location=root,
        table_type=table_type(table.columns),
        write_ids=write_ids,
        txn_id=0,
        full_acid=True,
        bucketed=table.bucket_count > 0,
    )
    return [(i.bucket, i.sources, i.deletes) for i in plan.items if i.kind is ItemKind.ROWS]


def _plain_sources(
    fs: FileSystem, root: str, listing: Listing, state: DirectoryState, kind: FileFormat
) -> tuple[SourceFile, ...]:
    """Every visible data file of an insert-only table in reading order, whatever its name."""
    files = list(state.originals)
    for directory in (*((state.base.name,) if state.base else ()), *(d.name for d in state.insert_deltas)):
        files.extend(listing.data_files(directory))
    return tuple(SourceFile(path=f.path, size=f.size, rows=_plain_rows(fs, f"{root}/{f.path}", kind)) for f in files)


def _plain_rows(fs: FileSystem, path: str, kind: FileFormat) -> int:
    match kind:
        case FileFormat.ORC:
            return orc_facts(fs, path).rows
        case FileFormat.PARQUET:
            return parquet_rows(fs, path)
        case _:
            assert_never(kind)


def _acid_batches(task: ScanTask, fs: FileSystem, root: str) -> Iterator[ScanBatch]:
    deletes = DeleteSet.load(fs, [f"{root}/{d.path}" for d in task.deletes], task.write_ids)
    for file in task.sources:
        with OrcSource(fs, f"{root}/{file.path}", synthetic=file.synthetic) as source:
            for stripe in range(source.stripes):
                keys = source.keys(stripe)
                if np.any(keys.operation != Operation.INSERT):
                    raise UnsupportedData(
                        f"{source.path} holds update or delete events among its rows, as Hive before 3.0 wrote them",
                        hint="run a major compaction in Hive 2 before the upgrade, as Hive's upgrade guide asks",
                    )
                keep = keys.visible(task.write_ids) & deletes.survivors(keys)
                if not keep.any():
                    continue
                rows = pa.RecordBatch.from_struct_array(source.rows(stripe, task.row_type))
                ids = RowIds(write_id=keys.write_id, bucket=keys.bucket, row_id=keys.row_id)
                if not keep.all():
                    positions = np.flatnonzero(keep)
                    rows, ids = rows.take(pa.array(positions)), ids.take(positions)
                yield ScanBatch(row_ids=ids, rows=_with_partition(rows, task))


def _plain_orc_batches(task: ScanTask, fs: FileSystem, root: str) -> Iterator[ScanBatch]:
    for file in task.sources:
        with OrcSource(fs, f"{root}/{file.path}") as source:
            for stripe in range(source.stripes):
                rows = pa.RecordBatch.from_struct_array(source.rows(stripe, task.row_type))
                yield ScanBatch(row_ids=None, rows=_with_partition(rows, task))


def _parquet_batches(task: ScanTask, fs: FileSystem, root: str) -> Iterator[ScanBatch]:
    schema = batch_schema(task.row_type, ())
    for file in task.sources:
        for rows in parquet_batches(fs, f"{root}/{file.path}", schema):
            yield ScanBatch(row_ids=None, rows=_with_partition(rows, task))


def _with_partition(rows: pa.RecordBatch, task: ScanTask) -> pa.RecordBatch:
    if not task.partition_types:
        return rows
    schema = batch_schema(task.row_type, task.partition_types)
    added = [
        partition_array(value, kind, len(rows), name)
        for (name, kind), value in zip(task.partition_types, task.values, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)
