"""Joining the parts of an item: stripes of sources and of part files, in order, into one file under one tail.

Nothing is decoded. The order of row ids is checked from part to part as it is inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compactor.acid.planning import ItemKind, PlanItem
from compactor.acid.schema import HiveType
from compactor.acid.stripes import Part
from compactor.errors import VerificationError
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.facts import stripe_facts
from compactor.orc.order import RowOrder
from compactor.orc.parts import NeedsJvm, PartResult, Span, acid_stats, opened, output_template
from compactor.orc.reader import OrcSource
from compactor.orc.rewrite import ItemResult
from compactor.orc.tail import OrcTail, stripe_length
from compactor.storage.filesystem import FileSystem


def join_item(
    fs: FileSystem, root: str, item: PlanItem, parts: Sequence[PartResult | None], row_type: HiveType
) -> ItemResult:
    """Write the output of an ORC item below `root` from its parts, in their order.

    parts: None for a part that no task wrote, because it only copies. Every NeedsJvm was replaced by the Span of the
    file that the JVM wrote.
    """
    template = output_template(fs, root, item, row_type)
    with fs.write_atomically(f"{root}/{item.output}", expected=item.bytes_in) as stream:
        join = _Join(fs, root, item, template, FileAssembler(stream, template))
        rows_in = 0
        for number, done in enumerate(parts):
            if done is None:
                rows_in += join.sources(item.parts[number])
            else:
                rows_in += done.rows_in
                for piece in done.pieces:
                    if isinstance(piece, NeedsJvm):
                        raise VerificationError(f"{piece.output} was never written")
                    join.span(piece)
        size = join.out.finish(acid_stats(item.kind, join.out.rows))
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=rows_in,
        rows_out=join.out.rows,
        rows_deleted=sum(p.rows_deleted for p in parts if p is not None),
        rows_invalid=sum(p.rows_invalid for p in parts if p is not None),
        stripes_copied=join.out.stripes_copied - join.stripes_encoded,
        stripes_encoded=join.stripes_encoded,
        bytes_copied=join.out.bytes_copied - join.bytes_encoded,
        bytes_encoded=join.bytes_encoded,
    )


class _Join:
    """The output while it grows."""

    def __init__(self, fs: FileSystem, root: str, item: PlanItem, template: Template, out: FileAssembler) -> None:
        self._fs, self._root, self._item, self._template = fs, root, item, template
        self._order = None if item.kind is ItemKind.PLAIN else RowOrder(repeats=item.kind is ItemKind.DELETES)
        self.out = out
        self.stripes_encoded = self.bytes_encoded = 0

    def sources(self, part: Part) -> int:
        """All stripes of a part that only copies; returns their rows."""
        rows = 0
        for run in part.runs:
            with opened(self._fs, self._root, self._item.sources[run.source]) as source:
                rows += sum(source.stripe_rows(stripe) for stripe in range(run.start, run.stop))
                self._copy(source, range(run.start, run.stop), self._template)
        return rows

    def span(self, span: Span) -> None:
        with OrcSource(self._fs, f"{self._root}/{span.path}") as source:
            stripes = range(span.start, source.stripes if span.stop is None else span.stop)
            if not span.encoded:
                self._copy(source, stripes, self._template)
                return
            self._copy(source, stripes, self._as_written_by(source.tail))
            self.stripes_encoded += len(stripes)
            self.bytes_encoded += sum(stripe_length(source.tail.footer.stripes[stripe]) for stripe in stripes)

    def _as_written_by(self, tail: OrcTail) -> Template:
        """The template of a part file: who encoded a stripe does not matter, nor how it spells the same calendar."""
        found = Template.of(tail)
        return replace(
            self._template,
            version=found.version,
            writer=found.writer,
            writer_version=found.writer_version,
            calendar=found.calendar if found.proleptic == self._template.proleptic else self._template.calendar,
        )

    def _copy(self, source: OrcSource, stripes: range, template: Template) -> None:
        if not template.accepts(source.tail):
            raise VerificationError(f"{source.path}: its stripes cannot stand in {self._item.output}")
        facts = stripe_facts(source.tail)
        for stripe in stripes:
            last = None if self._order is None else self._order.follow_stripe(source, stripe, facts[stripe])
            self.out.copy(source, stripe, last)
