"""What a compaction will do, decided from a directory state and the facts in the file tails. Pure.

A plan is a list of items; an item is one output file with everything that goes into it (`compactor.acid.items`).

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
from compactor.acid.items import ItemKind, ItemMaker, OutputOptions, PlanItem
from compactor.acid.layout import DeltaKind, base_name, delta_name
from compactor.acid.schema import HiveType, can_read_as
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.sources import (
    FileFacts,
    SourceFile,
    by_bucket,
    delete_sources,
    delta_sources,
    originals_and_base,
)
from compactor.acid.stripes import DeleteFacts
from compactor.acid.trino import trino_blind, unseen_in_deltas
from compactor.errors import UnsupportedData

__all__ = [
    "CompactionPlan",
    "Depth",
    "FileFacts",
    "ItemKind",
    "OutputOptions",
    "PlanItem",
    "Refusal",
    "SourceFile",
    "files_of",
    "plan_compaction",
    "worth_doing",
]


class Depth(enum.Enum):
    """How far a compaction goes."""

    MINOR = "minor"
    """Deltas become one delta; the base is left alone and deletes are not applied."""
    MAJOR = "major"
    """Base and deltas become one base; deleted rows are gone."""


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


def worth_doing(depth: Depth, state: DirectoryState, listing: Listing) -> Refusal | None:
    """None when the compaction has something to gain (AcidCompactionService.isEnoughToCompact).

    Curing what Trino reads wrongly is a gain as well, even of a lone delete delta that Hive would refuse.
    """
    leftovers = bool(state.obsolete or state.aborted)
    deltas = len(state.deltas)
    if depth is Depth.MAJOR:
        if state.originals or deltas + (state.base is not None) > 1 or trino_blind(state, listing):
            return None
        # A lone base is the goal; a lone delta reads as fast as a base would.
        return Refusal(reason=f"nothing to gain from a major compaction: {_inventory(state)}", leftovers=leftovers)
    if deltas > 2 or (deltas == 2 and len(state.delete_deltas) != 1) or unseen_in_deltas(state, listing):
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
    output: OutputOptions | None = None,
    deletes: DeleteFacts | None = None,
) -> CompactionPlan:
    """The plan of a compaction that is worth doing.

    facts: of every file of `files_of`, by path; files without rows go into nothing. table_type: struct of the table's
    columns. txn_id: the compactor's transaction. deletes: what the keys of the delete files say; without it every
    stripe that has deletes beside it is decoded. Raises UnsupportedData when files and table disagree in a way that
    would lose values.
    """
    sources = delta_sources(state, listing, facts, full_acid=full_acid)
    if depth is Depth.MAJOR:
        sources = originals_and_base(state, listing, facts, full_acid=full_acid) + sources
    row_type = _output_type((facts[s.path] for s in sources), table_type)
    low = min((d.min_write_id for d in state.deltas), default=write_ids.high_water)
    high = write_ids.high_water
    directory = (
        base_name(high, txn_id)
        if depth is Depth.MAJOR
        else delta_name(DeltaKind.INSERT, low, high, visibility_txn=txn_id)
    )
    items: list[PlanItem] = []
    directories: list[str] = []
    make = ItemMaker(
        facts=facts,
        deletes=deletes or DeleteFacts(),
        row_type=row_type,
        write_ids=write_ids,
        output=output or OutputOptions(),
    )
    if not full_acid:
        items += make.plain(directory, sources, bucketed=bucketed)
        directories.append(directory)
    else:
        gone = by_bucket(delete_sources(state, listing, facts))
        if depth is Depth.MAJOR or sources:
            items += make.rows(directory, by_bucket(sources), gone if depth is Depth.MAJOR else {})
            directories.append(directory)
        if depth is Depth.MINOR and gone:
            directories.append(delta_name(DeltaKind.DELETE, low, high, visibility_txn=txn_id))
            items += make.delete_events(directories[-1], gone)
    return CompactionPlan(
        depth=depth,
        location=location,
        row_type=row_type,
        write_ids=write_ids,
        directories=tuple(directories),
        items=tuple(items),
        full_acid=full_acid,
    )


def _output_type(facts: Iterable[FileFacts], table_type: HiveType) -> HiveType:
    """The data files' own type when they all agree, so that nothing is converted; else the table's.

    Columns match by position: a renamed column keeps its values, and a file with fewer columns has nulls in the rest.
    """
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
