"""Plan items: which files become one output file, and how. Pure.

An item is one output file with everything that goes into it; its output is a function of the item alone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compactor.acid.layout import bucket_file, insert_only_file
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.sources import FileFacts, SourceFile, by_bucket
from compactor.acid.stripes import DeleteFacts, Part, StripedSource, StripeUse, key_ranges, parts_of
from compactor.errors import UnsupportedData


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
class ItemMaker:
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
            if copyable and facts.template and source.synthetic is None and facts.row_type == self.row_type:
                weights[facts.template] = weights.get(facts.template, 0) + copyable
                first.setdefault(facts.template, position)
        return first[max(weights, key=weights.__getitem__)] if weights else None
