"""ORC files as lists of stripes: what a compaction does with each, and into which tasks that falls. Pure.

1. Each stripe gets its use, from its file's tail and from where the delete events fall (`uses_of`).
2. Consecutive stripes of a source with one use are a run, consecutive runs are a part (`parts_of`). The work of a part
   is decoding and encoding; copying costs next to nothing beside it.
3. Delete events have no stripes worth keeping: their parts are ranges of row ids (`key_ranges`).

Facts behind the rules (what may stand in one file, what an encoded byte costs): ARCHITECTURE.md, "Stripes, not rows".
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidWriteIdList

SMALL_STRIPE_BYTES = 1 << 20
"""Stripes below this size are joined with their neighbours: every stripe costs readers two seeks and a footer."""
PART_BYTES = 64 << 20
"""Compressed bytes to be encoded anew that make a part: some seconds of one core, so that a task's overhead of 0.1 s
does not show and that the cores of a small cluster still share one large bucket."""
PART_EVENTS = 1_000_000
"""Delete events that make a part: 40 MB while they are sorted, and one stripe once they are encoded."""


class StripeUse(enum.Enum):
    """What becomes of a stripe."""

    COPY = "copy"
    """Its bytes are copied as they are."""
    DECODE = "decode"
    """A delete or an invalid write may fall into it, or its bytes may not stand in the output: read and re-encoded."""
    COALESCE = "coalesce"
    """It could be copied but is so small that it is joined with its neighbours."""


@dataclass(frozen=True, kw_only=True)
class StripeFacts:
    """One stripe, from its file's tail alone.

    size: bytes of indexes, data and footer. trusted: there are row indexes, the statistics count every row, and (in
    ACID files) first and last are known: only then may the bytes be copied. first: a bound at or below the first row
    id; last: of inserts the last row id, of delete events, which need not be sorted, a bound at or above all of them;
    each None when the tail does not tell, and in files without ACID columns. write_ids: smallest and largest write id
    of the events, None when the tail does not tell. inserts_only: all events are known to be inserts. settled: all are
    of valid writes, whatever lies between the smallest and the largest: somebody has looked (`orc.settled`).
    """

    rows: int
    size: int
    trusted: bool
    first: RowId | None = None
    last: RowId | None = None
    write_ids: tuple[int, int] | None = None
    inserts_only: bool = False
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class StripeRun:
    """Consecutive stripes of one source with one use. source: position among the item's sources; stop: exclusive."""

    source: int
    start: int
    stop: int
    use: StripeUse


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of an item that one task can write on its own; the parts of an item follow each other in row order.

    runs: of data items. after, up_to: of items of delete events, the row ids it covers (after is exclusive, up_to
    inclusive, None is open): every source is read for its events in between.
    """

    runs: tuple[StripeRun, ...] = ()
    after: RowId | None = None
    up_to: RowId | None = None


@dataclass(frozen=True, kw_only=True)
class DeleteFacts:
    """What the keys of the delete files say, read before planning.

    hits: by path of a data file, for each of its stripes the delete events of valid write ids that lie between its
    first and last row id. A file that is missing here may be hit anywhere. marks: by path of a delete file, row ids of
    events in order, each with the number of events up to it since the mark before; needed to cut more than
    `PART_EVENTS` events into parts.
    """

    hits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    marks: Mapping[str, tuple[tuple[RowId, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StripedSource:
    """A source of a data item, as the decision needs it.

    fits: its stripes may stand in the output: they have the output's template, columns and (if it has them) row ids.
    hits: delete events in each stripe; None: nobody looked, so each may be hit. end: last row id of the source where
    its stripes do not tell, as in files whose row ids are synthetic.
    """

    stripes: tuple[StripeFacts, ...]
    fits: bool
    hits: tuple[int, ...] | None = None
    end: RowId | None = None

    def may_be_hit(self, stripe: int) -> bool:
        return self.hits is None or self.hits[stripe] > 0


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A stripe of an item, with its use."""

    source: int
    stripe: int
    size: int
    use: StripeUse


def parts_of(
    sources: Sequence[StripedSource], write_ids: ValidWriteIdList, *, acid: bool, max_files: int
) -> tuple[Part, ...]:
    """The parts of a data item: every stripe of every source once, in order; at least one part.

    acid: the item's rows have row ids. max_files: no part reads more source files. A part with fewer sources than the
    item is what Hive calls a partial minor (`hive.compactor.max.num.delta`): Hive writes it as a delta of its own and
    then compacts those deltas, here it is one stretch of the output file, and joining them copies stripes.
    """
    placed = [
        _Placed(source=number, stripe=stripe, size=source.stripes[stripe].size, use=use)
        for number, (source, uses) in enumerate(zip(sources, uses_of(sources, write_ids, acid=acid), strict=True))
        for stripe, use in enumerate(uses)
    ]
    return tuple(Part(runs=_runs(stretch)) for stretch in _cut(placed, max_files)) or (Part(),)


def uses_of(
    sources: Sequence[StripedSource], write_ids: ValidWriteIdList, *, acid: bool
) -> tuple[tuple[StripeUse, ...], ...]:
    """The use of every stripe of every source.

    A stripe is copied when its file fits, its tail is trusted and, in ACID files, all its events are inserts of valid
    write ids, no delete may fall into it and it begins after the end of the stripe before it.
    """
    may_copy = list(_copyable(sources, write_ids, acid=acid))
    flat = [stripe for source in sources for stripe in source.stripes]
    joinable = [not may or s.size < SMALL_STRIPE_BYTES for may, s in zip(may_copy, flat, strict=True)]
    uses: list[StripeUse] = []
    for at, may in enumerate(may_copy):
        # A small stripe between two that are copied has nobody to join: encoding it alone gains nothing.
        neighbour = (at > 0 and joinable[at - 1]) or (at + 1 < len(flat) and joinable[at + 1])
        if not may:
            uses.append(StripeUse.DECODE)
        else:
            uses.append(StripeUse.COALESCE if joinable[at] and neighbour else StripeUse.COPY)
    each = iter(uses)
    return tuple(tuple(next(each) for _ in source.stripes) for source in sources)


def key_ranges(marks: Iterable[tuple[RowId, int]]) -> tuple[Part, ...]:
    """The parts of an item of delete events: ranges of about `PART_EVENTS` each; one part when there are no more.

    marks: of all its sources, as in `DeleteFacts`, in any order. Every range reads every file that may have events of
    it, one at a time: what bounds a task here is the events that it sorts.
    """
    ordered = sorted(marks)
    events = sum(count for _, count in ordered)
    share = _share(events, PART_EVENTS)
    cuts: list[RowId] = []
    counted = 0
    for key, group in groupby(ordered, key=lambda mark: mark[0]):
        counted += sum(count for _, count in group)
        if counted >= share and key < ordered[-1][0]:
            cuts.append(key)
            counted = 0
    return tuple(Part(after=a, up_to=b) for a, b in zip([None, *cuts], [*cuts, None], strict=True))


def _copyable(sources: Sequence[StripedSource], write_ids: ValidWriteIdList, *, acid: bool) -> Iterator[bool]:
    """For each stripe whether its bytes may be copied, however small it is."""
    invalid = sorted(write_ids.open | write_ids.aborted)

    def valid(bounds: tuple[int, int] | None) -> bool:
        if bounds is None or bounds[1] > write_ids.high_water:
            return False
        return bisect_left(invalid, bounds[0]) == bisect_right(invalid, bounds[1])

    # The last row id so far; None: some stripe did not tell, so nobody knows what comes after it.
    reached: RowId | None = _LOWEST
    for source in sources:
        for at, stripe in enumerate(source.stripes):
            may = source.fits and stripe.trusted
            if acid:
                ascends = stripe.first is not None and reached is not None and stripe.first > reached
                known = stripe.settled or valid(stripe.write_ids)
                may = may and ascends and stripe.inserts_only and known and not source.may_be_hit(at)
                reached = stripe.last
            yield may
        if source.stripes and reached is None:
            reached = source.end


def _cut(placed: Sequence[_Placed], max_files: int) -> Iterator[list[_Placed]]:
    """The stripes of each part.

    A long stretch of copies is a part of its own, so that its bytes do not travel through a task; a short one is no
    reason to end a part.
    """
    work = sum(p.size for p in placed if p.use is not StripeUse.COPY)
    if work <= PART_BYTES and len({p.source for p in placed}) <= max_files:
        if placed:
            yield list(placed)
        return
    share = _share(work, PART_BYTES)
    part: list[_Placed] = []
    encoded = 0
    files: set[int] = set()
    for copied, group in groupby(placed, key=lambda p: p.use is StripeUse.COPY):
        stretch = list(group)
        alone = copied and sum(p.size for p in stretch) >= PART_BYTES
        ends = alone or encoded >= share
        for stripe in stretch:
            if part and (ends or (stripe.source not in files and len(files) == max_files)):
                yield part
                part, encoded, files = [], 0, set()
            part.append(stripe)
            files.add(stripe.source)
            encoded += 0 if copied else stripe.size
            ends = encoded >= share
        if alone:
            yield part
            part, encoded, files = [], 0, set()
    if part:
        yield part


def _share(work: int, unit: int) -> float:
    """`work` divided into the fewest equal portions of at most `unit`."""
    return max(work, 1) / max(1, -(-work // unit))


def _runs(placed: Iterable[_Placed]) -> tuple[StripeRun, ...]:
    runs: list[StripeRun] = []
    for (source, use), group in groupby(placed, key=lambda p: (p.source, p.use)):
        stripes = [p.stripe for p in group]
        runs.append(StripeRun(source=source, start=stripes[0], stop=stripes[-1] + 1, use=use))
    return tuple(runs)


_LOWEST = RowId(-(1 << 63), 0, 0)
"""Before every row id."""
