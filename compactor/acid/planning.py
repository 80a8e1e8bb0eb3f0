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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import DeltaKind, base_name, bucket_file, delta_name, insert_only_file
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
from compactor.acid.stripes import DeleteFacts, Part, StripedSource, StripeUse, key_ranges, parts_of
from compactor.acid.trino import trino_blind, unseen_deletes
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


class ItemKind(enum.Enum):
    """What an item's output file holds."""

    ROWS = "rows"
    """Insert events in row order, minus those that the item's delete files name."""
    DELETES = "deletes"
    """Delete events in row order."""
    PLAIN = "plain"
    """Rows of an insert-only table, which have no ACID columns."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How the outputs are written.

    file_format: the table's, for an output that no file goes into. codec: of ORC outputs that take none from a source
    (ORC CompressionKind; the table's `orc.compress`). recompress: codec of ORC outputs whose stripes are all encoded
    anew; None: the one they had. max_files: source files that one part may read (hive.compactor.max.num.delta).
    """

    file_format: str = "orc"
    codec: int = 1
    recompress: int | None = None
    max_files: int = 500

    def codec_of(self, template: int | None) -> int:
        """Of an output whose stripes are all encoded anew. template: the codec that it would take; None: none."""
        if self.recompress is not None:
            return self.recompress
        return self.codec if template is None else template


@dataclass(frozen=True, kw_only=True)
class PlanItem:
    """One output file. output: path relative to the location; sources in row order; deletes: delete files.

    parts: of ORC items at least one, in row order; those of data items cover every stripe of every source exactly
    once, those of DELETES items every row id. template: position of the source whose schema, versions, row-index
    stride and calendar the output takes, and whose stripes are the only ones that are copied; None: none fits, a fresh
    one. compression: the codec (ORC CompressionKind) of the output, whatever the template's is; the two differ only
    where no stripe is copied. skipped: as in `FileFacts`.
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
    skipped: tuple[int, int] = (0, 0)

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
    if deltas > 2 or (deltas == 2 and len(state.delete_deltas) != 1) or unseen_deletes(state, listing):
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
    output: OutputOptions = OutputOptions(),
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
    make = _Items(facts=facts, deletes=deletes or DeleteFacts(), row_type=row_type, write_ids=write_ids, output=output)
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


@dataclass(frozen=True, kw_only=True)
class _Items:
    """Makes the items of one plan."""

    facts: Mapping[str, FileFacts]
    deletes: DeleteFacts
    row_type: HiveType
    write_ids: ValidWriteIdList
    output: OutputOptions

    def rows(
        self, directory: str, sources: Mapping[int, list[SourceFile]], deletes: Mapping[int, list[SourceFile]]
    ) -> list[PlanItem]:
        """One item a bucket; one even with no rows at all, because a base without a visible file is none to Trino."""
        return [
            self._striped(
                ItemKind.ROWS,
                f"{directory}/{bucket_file(bucket)}",
                bucket,
                sources.get(bucket, ()),
                deletes.get(bucket, ()),
            )
            for bucket in sorted(sources) or [0]
        ]

    def delete_events(self, directory: str, deletes: Mapping[int, list[SourceFile]]) -> list[PlanItem]:
        return [
            PlanItem(
                kind=ItemKind.DELETES,
                output=f"{directory}/{bucket_file(bucket)}",
                bucket=bucket,
                sources=tuple(files),
                parts=key_ranges(mark for f in files for mark in self.deletes.marks.get(f.path, ())),
                compression=self.output.codec_of(None),
            )
            for bucket, files in sorted(deletes.items())
        ]

    def plain(self, directory: str, sources: list[SourceFile], *, bucketed: bool) -> list[PlanItem]:
        """Insert-only tables: one file a bucket if the table is bucketed, else one in all; one even without rows."""
        formats = {self.facts[s.path].format for s in sources} or {self.output.file_format}
        if len(formats) > 1:
            raise UnsupportedData(f"files of several formats in one place: {', '.join(sorted(formats))}")
        grouped = by_bucket(sources) if bucketed and sources else {0: sources}
        (file_format,) = formats
        if file_format == "orc":
            return [
                self._striped(ItemKind.PLAIN, f"{directory}/{insert_only_file(bucket)}", bucket, files, ())
                for bucket, files in sorted(grouped.items())
            ]
        items: list[PlanItem] = []
        for bucket, files in sorted(grouped.items()):
            for number, alike in enumerate(self._by_template(files)):
                # Readers take a file's bucket from its name; without buckets the numbers mean nothing.
                place = (bucket, number) if bucketed else (number, 0)
                items.append(self._joined(directory, place, alike, file_format))
        return items

    def _by_template(self, files: Iterable[SourceFile]) -> list[list[SourceFile]]:
        grouped: dict[bytes, list[SourceFile]] = {}
        for file in files:
            grouped.setdefault(self.facts[file.path].template, []).append(file)
        return list(grouped.values()) or [[]]

    def _joined(
        self, directory: str, place: tuple[int, int], files: Sequence[SourceFile], file_format: str
    ) -> PlanItem:
        """place: bucket, and number of the file in it."""
        bucket, copy = place
        first = self.facts[files[0].path] if files else None
        suffix, skipped = (first.suffix, first.skipped) if first is not None else ("", (0, 0))
        return PlanItem(
            kind=ItemKind.PLAIN,
            output=f"{directory}/{insert_only_file(bucket, copy=copy, suffix=suffix)}",
            bucket=bucket,
            sources=tuple(files),
            format=file_format,
            skipped=skipped,
        )

    def _striped(
        self,
        kind: ItemKind,
        output: str,
        bucket: int,
        sources: Sequence[SourceFile],
        deletes: Sequence[SourceFile],
    ) -> PlanItem:
        template = self._template(sources)
        digest = b"" if template is None else self.facts[sources[template].path].template
        parts = parts_of(
            [self._striped_source(s, digest, hit=bool(deletes)) for s in sources],
            self.write_ids,
            acid=kind is ItemKind.ROWS,
            max_files=self.output.max_files,
        )
        codec = None if template is None else self.facts[sources[template].path].compression
        copies = any(run.use is StripeUse.COPY for part in parts for run in part.runs)
        return PlanItem(
            kind=kind,
            output=output,
            bucket=bucket,
            sources=tuple(sources),
            deletes=tuple(deletes),
            parts=parts,
            template=template,
            compression=codec if copies and codec is not None else self.output.codec_of(codec),
        )

    def _striped_source(self, source: SourceFile, digest: bytes, *, hit: bool) -> StripedSource:
        """digest: of the item's template. hit: the item has delete files."""
        facts = self.facts[source.path]
        return StripedSource(
            stripes=facts.stripes,
            fits=bool(digest) and facts.template == digest and source.synthetic is None,
            hits=self.deletes.hits.get(source.path) if hit else (0,) * len(facts.stripes),
            end=source.synthetic_end,
        )

    def _template(self, sources: Sequence[SourceFile]) -> int | None:
        """The source whose template has the most bytes that can be copied, among those with the output's columns."""
        weights: dict[bytes, int] = {}
        first: dict[bytes, int] = {}
        for position, source in enumerate(sources):
            facts = self.facts[source.path]
            copyable = sum(s.size for s in facts.stripes if s.trusted)
            if copyable and source.synthetic is None and facts.row_type == self.row_type:
                weights[facts.template] = weights.get(facts.template, 0) + copyable
                first.setdefault(facts.template, position)
        return first[max(weights, key=weights.__getitem__)] if weights else None


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
