"""What a rebalance does with every row, decided before one is written. Pure.

    number n of N rows   in the order of (write id, bucket property, row id), or in the user's ORDER BY
    bucket               n DIV ceil(N / buckets)
    ROW__ID              (write id, encoded bucket, n); with ORDER BY the highest write id of all rows for every row

Row numbers go on from bucket to bucket, so row ids ascend inside every file whatever write ids it holds. A bucket
without rows gets no file, and a table without rows one empty file (I7). All of this is what Hive's query computes;
`TestRebalanceCompactor` lists the ROW__IDs. Sources: Hive `RebalanceQueryCompactor`,
`CompactionQueryBuilderForRebalance` (HIVE-26718).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from compactor.acid import stripes
from compactor.acid.directory import DirectoryState, Listing, Snapshot
from compactor.acid.layout import MAX_BUCKETS, Base, parse_directory
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
from compactor.errors import UnsupportedData, UsageError, VerificationError

Int64Array = npt.NDArray[np.int64]

Place = tuple[int, int]
"""(file number, stripe)."""
_CLAUSE = re.compile(r"\s*order\s+by\b", re.IGNORECASE)
_KEY = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))"
    r"(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE,
)
_UNORDERED = frozenset({"array", "map", "struct", "uniontype"})


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """One key of an ORDER BY. column: lower case."""

    column: str
    descending: bool
    nulls_first: bool

    def __str__(self) -> str:
        """HiveQL, with nothing left to a default."""
        quoted = "`" + self.column.replace("`", "``") + "`"
        return f"{quoted} {'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True, kw_only=True)
class SourceBucket:
    """Everything that is read of one bucket. sources: in row order; deletes: the delete files of the bucket."""

    bucket: int
    sources: tuple[SourceFile, ...]
    deletes: tuple[SourceFile, ...]


@dataclass(frozen=True, kw_only=True)
class RebalancePlan:
    """Everything a rebalance needs; nothing in it depends on the clock or the database.

    directory: the new base, relative to the location. columns: the table's names of the columns, by which it is
    ordered. row_type: their type in every output. buckets: how many are wanted; fewer get rows when there are fewer
    rows. order_by: empty keeps the order of row ids. template: number of the file whose schema, codec and versions the
    output takes; None: none fits. movable: stripes whose bytes may stand in the output under other row ids, with
    their rows. stripes: rows of every stripe, by file. compression: codec (ORC CompressionKind) without a template.
    """

    location: str
    row_type: HiveType
    write_ids: ValidWriteIdList
    directory: str
    sources: tuple[SourceBucket, ...]
    columns: tuple[str, ...]
    buckets: int
    order_by: tuple[SortKey, ...]
    template: int | None
    movable: Mapping[Place, int]
    stripes: tuple[tuple[int, ...], ...]
    compression: int

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The data files, numbered as `Pieces.source` numbers them."""
        return tuple(file for bucket in self.sources for file in bucket.sources)

    @property
    def template_file(self) -> SourceFile | None:
        return None if self.template is None else self.files[self.template]

    @property
    def directories(self) -> tuple[str, ...]:
        return (self.directory,)

    @property
    def files_in(self) -> int:
        return len({f.path for b in self.sources for f in (*b.sources, *b.deletes)})

    @property
    def rows_in(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes_in(self) -> int:
        return sum(f.size for b in self.sources for f in (*b.sources, *b.deletes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Live rows with one write id and bucket property that lie together in a stripe; one array element a run.

    source, stripe: where. start: live rows of the stripe before the run. first, last: row ids.
    """

    source: Int64Array
    stripe: Int64Array
    start: Int64Array
    rows: Int64Array
    write_id: Int64Array
    bucket: Int64Array
    first: Int64Array
    last: Int64Array

    @classmethod
    def joined(cls, parts: Sequence[Runs]) -> Runs:
        """All runs of `parts`."""
        empty = [np.zeros(0, dtype=np.int64)]
        return cls(**{f.name: np.concatenate(empty + [getattr(p, f.name) for p in parts]) for f in fields(cls)})


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Rows in their new order, as stretches of live rows of stripes; one array element a piece."""

    source: Int64Array
    stripe: Int64Array
    start: Int64Array
    rows: Int64Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> int:
        return int(self.rows.sum())

    def cut(self, first: int, stop: int) -> Pieces:
        """Rows number `first` to `stop` (exclusive)."""
        ends = np.cumsum(self.rows)
        low, high = int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, stop, "left")) + 1
        begins = ends[low:high] - self.rows[low:high]
        left = np.maximum(first - begins, 0)
        return Pieces(
            source=self.source[low:high],
            stripe=self.stripe[low:high],
            start=self.start[low:high] + left,
            rows=np.minimum(ends[low:high], stop) - begins - left,
        )

    def cut_out(self, chosen: slice | npt.NDArray[np.bool_]) -> Pieces:
        """Some of the pieces."""
        return Pieces(
            source=self.source[chosen], stripe=self.stripe[chosen], start=self.start[chosen], rows=self.rows[chosen]
        )

    def whole(self, rows: Mapping[Place, int]) -> Iterator[Place]:
        """The stripes of `rows`, which says how many each has, that are here in one piece."""
        for source, stripe, start, count in zip(*(a.tolist() for a in self._arrays()), strict=True):
            if start == 0 and rows.get((source, stripe)) == count:
                yield source, stripe

    def _arrays(self) -> tuple[Int64Array, ...]:
        return self.source, self.stripe, self.start, self.rows

    def places(self) -> Iterator[Place]:
        """(source, stripe) of every stripe that is needed, each once."""
        for source, stripe in np.unique(np.stack([self.source, self.stripe], axis=1), axis=0):
            yield int(source), int(stripe)


def parse_order_by(text: str | None) -> tuple[SortKey, ...]:
    """The keys of CQ_ORDER_BY, where Hive stores the clause with its keywords; without them it is understood too.

    Nulls come last in ascending and first in descending order unless the clause says otherwise, as Hive 4 has it
    (hive.default.nulls.last). Raises UsageError.
    """
    if text is None or not text.strip():
        return ()
    keys: list[SortKey] = []
    clause = _CLAUSE.match(text)
    at = clause.end() if clause is not None else 0
    while True:
        key = _KEY.match(text, at)
        if key is None or (key.end() < len(text) and text[key.end()] != ","):
            raise UsageError(
                f"ORDER BY is not understood at {text[at:].strip()!r}",
                hint="name columns, each with ASC or DESC and NULLS FIRST or LAST if you like: a DESC, b",
            )
        descending = (key["direction"] or "").lower() == "desc"
        nulls_first = key["nulls"].lower() == "first" if key["nulls"] else descending
        name = key["quoted"].replace("``", "`") if key["quoted"] else key["plain"]
        keys.append(SortKey(column=name.lower(), descending=descending, nulls_first=nulls_first))
        if key.end() == len(text):
            return tuple(keys)
        at = key.end() + 1


def order_clause(keys: Sequence[SortKey]) -> str | None:
    """The clause as CQ_ORDER_BY holds it, for a worker of ours or of Hive's; None without keys."""
    return f"ORDER BY {', '.join(map(str, keys))}" if keys else None


def check_order(keys: Sequence[SortKey], row_type: HiveType) -> None:
    """Raises UsageError when a key is no column of the rows, or one of a type without an order."""
    types = {name.lower(): kind for name, kind in row_type.children}
    for key in keys:
        if key.column not in types:
            raise UsageError(
                f"ORDER BY {key.column}: there is no such column",
                hint=f"the rows have {', '.join(types)}; a partition column is the same in every row",
            )
        if types[key.column].kind in _UNORDERED:
            raise UsageError(f"ORDER BY {key.column}: values of type {types[key.column]} have no order")


def check_buckets(buckets: int | None) -> None:
    """Raises UsageError for a number of buckets that the bucket property cannot hold (`BucketCodec.V1`)."""
    if buckets is not None and not 1 <= buckets <= MAX_BUCKETS:
        raise UsageError(f"{buckets} buckets", hint=f"a table has 1 to {MAX_BUCKETS} of them")


def why_never_rebalanced(*, full_acid: bool, bucketed: bool) -> str:
    """Why a table is never rebalanced, whatever lies in it; empty when it may be (Hive `Worker`, `CompactorFactory`)."""
    if not full_acid:
        return "only full ACID tables are rebalanced: rows of an insert-only table have no buckets to move between"
    if bucketed:
        return "bucketed tables (CLUSTERED BY) are not rebalanced: the bucket of a row is given by its columns"
    return ""


def why_not_now(listing: Listing, snapshot: Snapshot) -> str:
    """Why a table cannot be rebalanced in the state it is in; empty when it can.

    A committed delete above the high water mark (an older write is still open) names rows by the ids they have now. A
    compacted base of the high water mark itself would be a twin of the output (HIVE-29210): Hive picks either, and
    deletes that were written against one would not find their rows in the other.
    """
    high = snapshot.write_ids.high_water
    for name in sorted(listing.directories):
        entry = parse_directory(name)
        if entry is None or snapshot.txns.is_aborted(entry.visibility_txn):
            continue
        if isinstance(entry, Base):
            compacted = entry.visibility_txn > 0 or name in listing.compacted_bases
            if entry.write_id == high and compacted and snapshot.txns.is_valid(entry.visibility_txn):
                return f"{name} has the range that the output would have: rebalance after the next write to the table"
        elif entry.is_delete and entry.max_write_id > high:
            return (
                f"{name} names rows by the ids they would lose; it is above the high water mark {high} of open writes"
            )
    return ""


def source_buckets(state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> tuple[SourceBucket, ...]:
    """Every file that is current, by bucket. facts: of every file of base, deltas and originals, by path."""
    below = originals_and_base(state, listing, facts, full_acid=True)
    data = by_bucket([*below, *delta_sources(state, listing, facts, full_acid=True)])
    deletes = by_bucket(delete_sources(state, listing, facts))
    return tuple(
        SourceBucket(bucket=bucket, sources=tuple(files), deletes=tuple(deletes.get(bucket, ())))
        for bucket, files in sorted(data.items())
    )


def output_type(facts: Iterable[FileFacts], table_type: HiveType) -> HiveType:
    """The files' own type when they all agree and have all columns, so that bytes can be copied; else the table's.

    UnsupportedData when a file's values would be lost in it.
    """
    found = {f.row_type for f in facts}
    if len(found) == 1 and len(next(iter(found)).children) == len(table_type.children):
        return found.pop()
    for row_type in found:
        if not can_read_as(row_type, table_type):
            raise UnsupportedData(
                f"a file has the columns {row_type}, the table {table_type}: rewriting would lose values",
                hint="compact with the engine that changed the schema, or rewrite the table",
            )
    return table_type


def movable_stripes(
    files: Sequence[SourceFile], facts: Mapping[str, FileFacts], row_type: HiveType
) -> tuple[int | None, dict[Place, int]]:
    """The file whose template most bytes share, None without one, and the stripes that may move as they are.

    As for a copy, the statistics of a stripe must count its rows, and it must be large enough to stay alone.
    """
    weights: Counter[bytes] = Counter()
    fitting = {
        n: found
        for n, found in enumerate(facts[f.path] for f in files)
        if found.acid and found.template and found.row_type == row_type
    }
    for found in fitting.values():
        weights[found.template] += sum(s.size for s in found.stripes if s.trusted)
    if not weights:
        return None, {}
    ((best, _),) = weights.most_common(1)
    return next(n for n, found in fitting.items() if found.template == best), {
        (n, at): stripe.rows
        for n, found in fitting.items()
        if found.template == best
        for at, stripe in enumerate(found.stripes)
        if stripe.trusted and stripe.size >= stripes.SMALL_STRIPE_BYTES
    }


def in_row_order(runs: Runs) -> Pieces:
    """The rows of all stripes by (write id, bucket property, row id); VerificationError when runs overlap."""
    order = np.lexsort((runs.first, runs.bucket, runs.write_id))
    write_id, bucket = runs.write_id[order], runs.bucket[order]
    same = (write_id[1:] == write_id[:-1]) & (bucket[1:] == bucket[:-1])
    wrong = np.flatnonzero(same & (runs.first[order][1:] <= runs.last[order][:-1]))
    if len(wrong):
        at = int(wrong[0])
        raise VerificationError(
            f"row ids of write id {write_id[at]}, bucket property {bucket[at]} occur in two files",
            hint="two writers used the same row ids; look at the files of this bucket and move the intruder away",
        )
    return _coalesced(
        Pieces(source=runs.source[order], stripe=runs.stripe[order], start=runs.start[order], rows=runs.rows[order])
    )


def shares(rows: int, buckets: int) -> list[tuple[int, int]]:
    """The rows (first, stop) of each bucket that gets a file: `n DIV ceil(rows / buckets)`."""
    size = max(-(-rows // buckets), 1)
    return [(first, min(first + size, rows)) for first in range(0, rows, size)] or [(0, 0)]


def _coalesced(pieces: Pieces) -> Pieces:
    """Pieces that follow each other in one stripe become one: a stripe that stays together is one piece."""
    if not len(pieces):
        return pieces
    continues = (
        (pieces.source[1:] == pieces.source[:-1])
        & (pieces.stripe[1:] == pieces.stripe[:-1])
        & (pieces.start[1:] == pieces.start[:-1] + pieces.rows[:-1])
    )
    begins = np.concatenate([[0], np.flatnonzero(~continues) + 1])
    return Pieces(
        source=pieces.source[begins],
        stripe=pieces.stripe[begins],
        start=pieces.start[begins],
        rows=np.add.reduceat(pieces.rows, begins),
    )
