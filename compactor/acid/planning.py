"""What a compaction will do, decided from a directory state and the facts in the file tails. Pure.

A plan is a list of items; an item is one output file with everything that goes into it. One Spark task runs one
item, and its output is a function of the item alone.

    MAJOR  base_N_vT/bucket_b             rows of base or originals and all deltas, deletes applied
    MINOR  delta_x_N_vT/bucket_b          events of all insert deltas
           delete_delta_x_N_vT/bucket_b   events of all delete deltas, merge-sorted, none applied

N is the snapshot's high water mark, x the smallest write id of the current deltas (HIVE-23966), T the compactor's
transaction. Sources: Hive `AcidCompactionService`, `CompactorUtil`, `QueryCompactor.Util`, `MajorQueryCompactor`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import (
    DeltaKind,
    base_name,
    bucket_file,
    decode_bucket,
    delta_name,
    insert_only_file,
    parse_bucket,
)
from compactor.acid.records import SyntheticIds, synthetic_ids
from compactor.acid.schema import HiveType, can_read_as
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.stripes import Part, StripeFacts
from compactor.errors import UnsupportedData


class Depth(enum.Enum):
    """How far a compaction goes."""

    MINOR = "minor"
    """Deltas become one delta; the base is left alone and deletes are not applied."""
    MAJOR = "major"
    """Base and deltas become one base; deleted rows are gone."""


class ItemKind(enum.Enum):
    """What an item's output file holds."""

    ROWS = "rows"
    """Insert events in row order, minus those that the item's delete files name."""
    DELETES = "deletes"
    """Delete events in row order."""
    PLAIN = "plain"
    """Rows of an insert-only table, which have no ACID columns."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What the tail of a data file says.

    rows: number of rows. row_type: type of the table's columns in this file (without the ACID columns). acid: the
    file has ACID columns. format: `orc` or `parquet`. stripes: of an ORC file. template: equal in two ORC files
    exactly when their stripes may stand in one file (`orc.assembler.Template`).
    """

    rows: int
    row_type: HiveType
    acid: bool
    format: str = "orc"
    stripes: tuple[StripeFacts, ...] = ()
    template: bytes = b""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file that an item reads. path: relative to the location. synthetic: row ids of a file without ACID columns."""

    path: str
    size: int
    rows: int
    synthetic: SyntheticIds | None = None


@dataclass(frozen=True, kw_only=True)
class PlanItem:
    """One output file. output: path relative to the location; sources in row order; deletes: delete files.

    parts: of ORC items, in row order; those of data items cover every stripe of every source exactly once.
    template: position of the source whose schema, codec and versions the output takes; None: none fits, a fresh one.
    compression: codec (ORC CompressionKind) of a fresh output, or of one whose stripes are all encoded anew.
    """

    kind: ItemKind
    output: str
    bucket: int
    sources: tuple[SourceFile, ...]
    deletes: tuple[SourceFile, ...] = ()
    format: str = "orc"
    parts: tuple[Part, ...] = ()
    template: int | None = None
    compression: int = 1

    @property
    def bytes_in(self) -> int:
        return sum(s.size for s in self.sources) + sum(s.size for s in self.deletes)

    @property
    def rows_in(self) -> int:
        return sum(s.rows for s in self.sources)


@dataclass(frozen=True, kw_only=True)
class CompactionPlan:
    """Everything a job needs; nothing in it depends on the clock or the database.

    directories: the output directories, relative to the location. row_type: the columns' type in every output.
    """

    depth: Depth
    location: str
    row_type: HiveType
    write_ids: ValidWriteIdList
    directories: tuple[str, ...]
    items: tuple[PlanItem, ...]
    full_acid: bool

    @property
    def files_in(self) -> int:
        return len({s.path for i in self.items for s in (*i.sources, *i.deletes)})

    @property
    def bytes_in(self) -> int:
        return sum(i.bytes_in for i in self.items)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Nothing worth doing. reason: for the queue row. leftovers: obsolete or aborted entries wait for the cleaner."""

    reason: str
    leftovers: bool


def worth_doing(depth: Depth, state: DirectoryState) -> Refusal | None:
    """None when the compaction has something to gain (AcidCompactionService.isEnoughToCompact)."""
    leftovers = bool(state.obsolete or state.aborted)
    deltas = len(state.deltas)
    if depth is Depth.MAJOR:
        if state.originals or deltas + (state.base is not None) > 1:
            return None
        # A lone base is the goal; a lone delta reads as fast as a base would.
        return Refusal(reason=f"nothing to gain from a major compaction: {_inventory(state)}", leftovers=leftovers)
    if deltas > 2 or (deltas == 2 and len(state.delete_deltas) != 1):
        return None
    return Refusal(reason=f"nothing to gain from a minor compaction: {_inventory(state)}", leftovers=leftovers)


def files_of(depth: Depth, state: DirectoryState, listing: Listing) -> tuple[ListedFile, ...]:
    """The files whose tails a plan needs: those that the compaction would read."""
    directories = [d.name for d in state.deltas]
    files: list[ListedFile] = []
    if depth is Depth.MAJOR:
        files.extend(state.originals)
        if state.base is not None:
            directories.insert(0, state.base.name)
    for directory in directories:
        files.extend(listing.data_files(directory))
    return tuple(files)


def plan_compaction(
    depth: Depth,
    state: DirectoryState,
    listing: Listing,
    facts: Mapping[str, FileFacts],
    *,
    location: str,
    table_type: HiveType,
    write_ids: ValidWriteIdList,
    txn_id: int,
    full_acid: bool,
    bucketed: bool,
    file_format: str = "orc",
) -> CompactionPlan:
    """The plan of a compaction that is worth doing.

    facts: of every file of `files_of`, by path. table_type: struct of the table's columns. txn_id: the
    compactor's transaction. file_format: the table's, for output that no file goes into. Raises UnsupportedData when files and table disagree in a way that would lose values.
    """
    row_type = _output_type(facts.values(), table_type)
    low = min((d.min_write_id for d in state.deltas), default=write_ids.high_water)
    high = write_ids.high_water
    data_directory = (
        base_name(high, txn_id)
        if depth is Depth.MAJOR
        else delta_name(DeltaKind.INSERT, low, high, visibility_txn=txn_id)
    )
    sources = _data_sources(depth, state, listing, facts, full_acid=full_acid)
    items: list[PlanItem] = []
    directories: list[str] = []
    if not full_acid:
        items += _plain_items(data_directory, sources, facts, bucketed=bucketed, file_format=file_format)
        directories.append(data_directory)
    else:
        deletes = _by_bucket(_delete_sources(state, listing, facts))
        if depth is Depth.MAJOR or sources:
            items += _row_items(data_directory, _by_bucket(sources), deletes if depth is Depth.MAJOR else {})
            directories.append(data_directory)
        if depth is Depth.MINOR and deletes:
            delete_directory = delta_name(DeltaKind.DELETE, low, high, visibility_txn=txn_id)
            items += [
                PlanItem(
                    kind=ItemKind.DELETES,
                    output=f"{delete_directory}/{bucket_file(bucket)}",
                    bucket=bucket,
                    sources=tuple(files),
                )
                for bucket, files in sorted(deletes.items())
            ]
            directories.append(delete_directory)
    return CompactionPlan(
        depth=depth,
        location=location,
        row_type=row_type,
        write_ids=write_ids,
        directories=tuple(directories),
        items=tuple(items),
        full_acid=full_acid,
    )


def _row_items(
    directory: str, sources: Mapping[int, list[SourceFile]], deletes: Mapping[int, list[SourceFile]]
) -> list[PlanItem]:
    """One item a bucket; with no rows at all still one, because a base without a visible file is no base to Trino."""
    return [
        PlanItem(
            kind=ItemKind.ROWS,
            output=f"{directory}/{bucket_file(bucket)}",
            bucket=bucket,
            sources=tuple(sources.get(bucket, ())),
            deletes=tuple(deletes.get(bucket, ())),
        )
        for bucket in sorted(sources) or [0]
    ]


def _plain_items(
    directory: str, sources: list[SourceFile], facts: Mapping[str, FileFacts], *, bucketed: bool, file_format: str
) -> list[PlanItem]:
    """Insert-only tables: one file a bucket if the table is bucketed, else one file in all; one even without rows."""
    formats = {facts[s.path].format for s in sources} or {file_format}
    if len(formats) > 1:
        raise UnsupportedData(f"files of several formats in one place: {', '.join(sorted(formats))}")
    grouped = _by_bucket(sources) if bucketed and sources else {0: sources}
    (common_format,) = formats
    return [
        PlanItem(
            kind=ItemKind.PLAIN,
            output=f"{directory}/{insert_only_file(bucket)}",
            bucket=bucket,
            sources=tuple(files),
            format=common_format,
        )
        for bucket, files in sorted(grouped.items())
    ]


def _data_sources(
    depth: Depth, state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts], *, full_acid: bool
) -> list[SourceFile]:
    """Files with rows in reading order: originals or base first, then the deltas by write id and statement."""
    sources: list[SourceFile] = []
    if depth is Depth.MAJOR:
        sources += _sources(state.originals, facts, write_id=0, statement_id=0, full_acid=full_acid)
        if state.base is not None:
            files = listing.data_files(state.base.name)
            sources += _sources(files, facts, write_id=state.base.write_id, statement_id=0, full_acid=full_acid)
    for delta in state.insert_deltas:
        files = listing.data_files(delta.name)
        sources += _sources(
            files, facts, write_id=delta.min_write_id, statement_id=max(delta.statement_id, 0), full_acid=full_acid
        )
    return sources


def _delete_sources(state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> list[SourceFile]:
    return [
        SourceFile(path=f.path, size=f.size, rows=facts[f.path].rows)
        for delta in state.delete_deltas
        for f in listing.data_files(delta.name)
    ]


def _sources(
    files: Iterable[ListedFile],
    facts: Mapping[str, FileFacts],
    *,
    write_id: int,
    statement_id: int,
    full_acid: bool,
) -> list[SourceFile]:
    """Files of one directory; those without ACID columns get the row ids that Hive gives them."""
    listed = list(files)
    plain = [(f, facts[f.path].rows) for f in listed if full_acid and not facts[f.path].acid]
    ids = synthetic_ids(plain, write_id=write_id, statement_id=statement_id)
    sources = [SourceFile(path=f.path, size=f.size, rows=facts[f.path].rows, synthetic=ids.get(f.path)) for f in listed]
    return sorted(sources, key=lambda s: s.synthetic.first_row_id if s.synthetic else 0)


def _by_bucket(sources: Iterable[SourceFile]) -> dict[int, list[SourceFile]]:
    grouped: dict[int, list[SourceFile]] = {}
    for source in sources:
        parsed = parse_bucket(source.path.rpartition("/")[2])
        if source.synthetic is not None:
            bucket = decode_bucket(source.synthetic.bucket)
        elif parsed is not None:
            bucket = parsed.bucket
        else:
            raise UnsupportedData(
                f"{source.path}: the name does not tell the bucket", hint="rename the file to 00000N_0 or bucket_0000N"
            )
        grouped.setdefault(bucket, []).append(source)
    return grouped


def _output_type(facts: Iterable[FileFacts], table_type: HiveType) -> HiveType:
    """The files' own type when they all agree, so that nothing is converted; else the table's."""
    found = {f.row_type for f in facts}
    if not found:
        return table_type
    if len(found) == 1:
        (only,) = found
        return only
    for row_type in found:
        if not can_read_as(row_type, table_type):
            raise UnsupportedData(
                f"a file has the columns {row_type}, the table {table_type}: rewriting would lose values",
                hint="compact with the engine that changed the schema, or rewrite the table",
            )
    return table_type


def _inventory(state: DirectoryState) -> str:
    base = state.base.name if state.base is not None else "no base"
    return (
        f"{base}, {len(state.insert_deltas)} delta(s), {len(state.delete_deltas)} delete delta(s), "
        f"{len(state.originals)} original file(s)"
    )
