"""ORC files as lists of stripes: what their tails say, and what a compaction does with each stripe. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactor.acid.records import RowId


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
    ACID files) hive.acid.key.index has an entry: only then may the bytes be copied. first: a bound at or below the
    first row id; last: the last row id; both None when the tail does not tell, and in files without ACID columns.
    write_ids: smallest and largest write id of the events, None when the tail does not tell. inserts_only: all
    events are known to be inserts.
    """

    rows: int
    size: int
    trusted: bool
    first: RowId | None = None
    last: RowId | None = None
    write_ids: tuple[int, int] | None = None
    inserts_only: bool = False


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
