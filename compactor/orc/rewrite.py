"""Running a plan item, or one part of it: read its sources stripe by stripe as the plan says, write what becomes of them.

    COPY       the stripe's bytes go into the output; its rows are not read.
    DECODE     read the row ids and find the rows that survive. None: drop the stripe. All, and the stripe may be
               copied and is large enough: copy it after all. Otherwise decode the columns, take the survivors, and
               encode them together with their neighbours.
    COALESCE   decode the stripe and encode it together with its neighbours.

An item of one part is written to its final file at once. A part of a larger item is a task of its own: what it
encodes goes into a part file, what it copies is left to the task that joins the parts (`orc.join`). Rows that Arrow
cannot hold are left to the JVM, from the first such stripe to the next one that is copied; what survives of each
stripe is known by then.

The order of row ids is checked as the output grows: a violation is an error, never a silently wrong file. What is
written is a function of the item alone. Memory: one decoded stripe, `ENCODE_BYTES` of decoded rows, and
`deletes.WINDOW_EVENTS` deleted rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from compactor.acid import stripes
from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.records import Operation, RowId
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.stripes import Part, StripeFacts, StripeUse
from compactor.errors import BeyondArrow, UnsupportedData, VerificationError
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.deletes import DeleteWindow, check_deletes
from compactor.orc.facts import stripe_facts
from compactor.orc.order import RowOrder, may_lie_within
from compactor.orc.parts import (
    PartFile,
    PartResult,
    Sink,
    WholeFile,
    acid_stats,
    opened,
    output_template,
    part_file,
)
from compactor.orc.reader import BoolArray, Keys, OrcSource
from compactor.orc.types import acid_arrow_schema, arrow_type, without_unions
from compactor.storage.filesystem import FileSystem

ENCODE_BYTES = 32 << 20
"""Decoded bytes that become one stripe, about 8-16 MB once encoded."""
DELETES_A_STRIPE = 1_000_000
"""Delete events that become one stripe."""


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """What became of a plan item; `verify` in the worker holds it against the plan.

    rows_in = rows_out + rows_deleted + rows_invalid. rows_invalid: events of aborted write ids.
    """

    output: str
    size: int
    rows_in: int
    rows_out: int
    rows_deleted: int = 0
    rows_invalid: int = 0
    stripes_copied: int = 0
    stripes_encoded: int = 0
    bytes_copied: int
    bytes_encoded: int


def run_item(
    fs: FileSystem, root: str, item: PlanItem, row_type: HiveType, write_ids: ValidWriteIdList
) -> ItemResult | PartResult:
    """Write the output of an ORC item below `root`; it appears under its final name only when complete.

    A PartResult, of the item as one part, when the JVM has to write some of it.
    """
    template = output_template(fs, root, item, row_type)
    try:
        with fs.write_atomically(f"{root}/{item.output}", expected=item.bytes_in) as stream:
            out = FileAssembler(stream, template)
            done = _Rewrite(fs, root, item, row_type, write_ids, template, WholeFile(out))
            for part in item.parts:
                done.part(part)
            size = out.finish(acid_stats(item.kind, out.rows))
    except BeyondArrow:
        whole = Part(runs=tuple(run for part in item.parts for run in part.runs))
        return _write_part(fs, root, item, 0, whole, row_type, write_ids)
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=done.rows_in,
        rows_out=out.rows,
        rows_deleted=done.deleted,
        rows_invalid=done.invalid,
        stripes_copied=out.stripes_copied,
        stripes_encoded=out.stripes_encoded,
        bytes_copied=out.bytes_copied,
        bytes_encoded=out.bytes_encoded,
    )


def write_part(
    fs: FileSystem, root: str, item: PlanItem, number: int, row_type: HiveType, write_ids: ValidWriteIdList
) -> PartResult:
    """Write what part `number` of an ORC item has to encode into a part file beside the item's output."""
    return _write_part(fs, root, item, number, item.parts[number], row_type, write_ids)


def _write_part(
    fs: FileSystem,
    root: str,
    item: PlanItem,
    number: int,
    part: Part,
    row_type: HiveType,
    write_ids: ValidWriteIdList,
) -> PartResult:
    template = output_template(fs, root, item, row_type)
    with contextlib.ExitStack() as stack:
        sink = PartFile(fs, root, part_file(item, number), template, stack)
        done = _Rewrite(fs, root, item, row_type, write_ids, template, sink)
        done.part(part)
        sink.finish(item.kind)
    return PartResult(
        pieces=tuple(sink.pieces), rows_in=done.rows_in, rows_deleted=done.deleted, rows_invalid=done.invalid
    )


@dataclass(frozen=True, kw_only=True)
class _Stripe:
    """A stripe of a source. file: the source as the plan knows it. at: its number. fits: the source, into the output."""

    source: OrcSource
    file: SourceFile
    at: int
    facts: StripeFacts
    fits: bool

    @property
    def may_be_copied(self) -> bool:
        return self.facts.trusted and self.fits

    def __str__(self) -> str:
        return f"{self.source.path}: stripe {self.at}"


class _Rewrite:
    """Turns runs of stripes into stripes of the output; holds the state that grows with them."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        item: PlanItem,
        row_type: HiveType,
        write_ids: ValidWriteIdList,
        template: Template,
        sink: Sink,
    ) -> None:
        self._fs, self._root, self._item = fs, root, item
        self._row_type, self._write_ids = row_type, write_ids
        self._template, self._sink = template, sink
        self._order = RowOrder(repeats=item.kind is ItemKind.DELETES)
        self._deletes = DeleteWindow(fs, (), write_ids)
        self._pending = _Pending()
        self.rows_in = self.deleted = self.invalid = 0

    def part(self, part: Part) -> None:
        if self._item.kind is ItemKind.DELETES:
            self._delete_events(part)
            return
        paths = [f"{self._root}/{d.path}" for d in self._item.deletes]
        self._deletes = DeleteWindow(self._fs, paths, self._write_ids, up_to=self._end(part))
        for position, runs in groupby(part.runs, key=lambda run: run.source):
            file = self._item.sources[position]
            with opened(self._fs, self._root, file) as source:
                facts = stripe_facts(source.tail)
                fits = file.synthetic is None and self._template.accepts(source.tail)
                for run in runs:
                    for at in range(run.start, run.stop):
                        self.rows_in += facts[at].rows
                        self._stripe(_Stripe(source=source, file=file, at=at, facts=facts[at], fits=fits), run.use)
        self._flush()

    def _end(self, part: Part) -> RowId | None:
        """The last row id of a part for which deletes matter; None when the tail does not tell."""
        decoded = [run for run in part.runs if run.use is StripeUse.DECODE]
        if not decoded or not self._item.deletes:
            return None
        with opened(self._fs, self._root, self._item.sources[decoded[-1].source]) as source:
            return stripe_facts(source.tail)[decoded[-1].stop - 1].last

    def _delete_events(self, part: Part) -> None:
        """Delete events of all sources, sorted by row id and then by who deleted; 40 bytes an event in memory."""
        found: list[Keys] = []
        for file in self._item.sources:
            with opened(self._fs, self._root, file) as source:
                found += [
                    self._events(source, stripe, part)
                    for stripe, facts in enumerate(stripe_facts(source.tail))
                    if may_lie_within(facts, part.after, part.up_to)
                ]
        if not found:
            return
        events = Keys.joined(found)
        found.clear()
        order = np.lexsort((events.current_write_id, events.row_id, events.bucket, events.write_id))
        for start in range(0, len(order), DELETES_A_STRIPE):
            chunk = events.chosen(order[start : start + DELETES_A_STRIPE])
            self._order.follow(chunk, None, self._item.output)
            self._sink.append(_delete_table(chunk, self._row_type), chunk.at(-1))

    def _events(self, source: OrcSource, stripe: int, part: Part) -> Keys:
        keys = source.keys(stripe)
        check_deletes(keys, source.path)
        keys = keys.chosen(keys.within(part.after, part.up_to))
        valid = keys.visible(self._write_ids)
        self.rows_in += len(keys)
        self.invalid += int(np.count_nonzero(~valid))
        return keys.chosen(valid)

    def _stripe(self, stripe: _Stripe, use: StripeUse) -> None:
        acid = self._item.kind is ItemKind.ROWS
        if use is StripeUse.COPY:
            if not stripe.may_be_copied:
                raise VerificationError(f"{stripe} is not the one that was planned to be copied")
            last = self._order.follow_stripe(stripe.source, stripe.at, stripe.facts) if acid else None
            self._copy(stripe, last)
            return
        keys, keep = None, np.ones(stripe.facts.rows, dtype=np.bool_)
        if acid:
            keys = stripe.source.keys(stripe.at)
            if use is StripeUse.DECODE:
                keep = self._survivors(keys)
        if not keep.any():
            return
        if keys is not None:
            self._order.follow(keys, keep, stripe.source.path)
        whole = bool(keep.all()) and stripe.may_be_copied
        if whole and use is StripeUse.DECODE and stripe.facts.size >= stripes.SMALL_STRIPE_BYTES:
            self._copy(stripe, self._order.last)
        elif self._sink.diverting and not self._pending.rows and not whole:
            self._sink.divert(stripe.file, stripe.at, keep)
        else:
            self._decode(stripe, keys, keep, whole=whole)

    def _decode(self, stripe: _Stripe, keys: Keys | None, keep: BoolArray, *, whole: bool) -> None:
        """Queue rows of a stripe for encoding; `whole`: what cannot be decoded can still be copied, however small."""
        if self._pending.would_overflow(int(np.count_nonzero(keep))):
            self._flush()
        try:
            rows = stripe.source.rows(stripe.at, self._row_type, keep)
        except BeyondArrow:
            self._flush()
            if whole:
                self._copy(stripe, self._order.last)
            else:
                self._sink.divert(stripe.file, stripe.at, keep)
            return
        kept = None if keys is None else keys.chosen(keep)
        if kept is None:
            table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
        else:
            table = _event_table(kept, rows, self._row_type)
        pieces = max(-(-table.nbytes // ENCODE_BYTES), 1)
        for piece in range(pieces):
            start, stop = table.num_rows * piece // pieces, table.num_rows * (piece + 1) // pieces
            if piece:
                self._flush()
            self._pending.add(table.slice(start, stop - start), None if kept is None else kept.at(stop - 1))

    def _survivors(self, keys: Keys) -> BoolArray:
        if np.any(keys.operation != Operation.INSERT):
            raise UnsupportedData(
                "the file holds update or delete events among its rows, as Hive before 3.0 wrote them",
                hint="run a major compaction in Hive 2 before the upgrade, as Hive's upgrade guide asks",
            )
        valid = keys.visible(self._write_ids)
        keep = valid & self._deletes.covering(keys.at(0), keys.at(-1)).survivors(keys)
        self.invalid += int(np.count_nonzero(~valid))
        self.deleted += int(np.count_nonzero(valid & ~keep))
        return keep

    def _copy(self, stripe: _Stripe, last: RowId | None) -> None:
        self._flush()
        self._sink.copy(stripe.source, stripe.file, stripe.at, last)

    def _flush(self) -> None:
        tables, last = self._pending.taken()
        if tables:
            self._sink.append(pa.concat_tables(tables), last)


class _Pending:
    """Decoded rows that wait to become a stripe, and the last row id among them."""

    def __init__(self) -> None:
        self.rows = self._size = 0
        self._tables: list[pa.Table] = []
        self._last: RowId | None = None

    def would_overflow(self, rows: int) -> bool:
        """Would so many more rows, of the width of those here, be more than a stripe?"""
        return bool(self.rows) and self._size * (self.rows + rows) > ENCODE_BYTES * self.rows

    def add(self, table: pa.Table, last: RowId | None) -> None:
        self._tables.append(table)
        self._last = last
        self.rows += table.num_rows
        self._size += table.nbytes

    def taken(self) -> tuple[Sequence[pa.Table], RowId | None]:
        tables, self._tables = self._tables, []
        self.rows = self._size = 0
        return tables, self._last


def _delete_table(keys: Keys, row_type: HiveType) -> pa.Table:
    """Delete events as an ACID file holds them: without rows, so that it does not matter what Arrow has no type for."""
    bare = without_unions(row_type)
    return _event_table(keys, pa.nulls(len(keys), arrow_type(bare)), bare)


def _event_table(keys: Keys, rows: pa.Array, row_type: HiveType) -> pa.Table:
    """Events as an ACID file holds them."""
    schema = acid_arrow_schema(row_type)
    columns = [
        pa.array(keys.operation).cast(pa.int32()),
        pa.array(keys.write_id),
        pa.array(keys.bucket).cast(pa.int32()),
        pa.array(keys.row_id),
        pa.array(keys.current_write_id),
        rows,
    ]
    return pa.Table.from_arrays(columns, names=schema.names)
