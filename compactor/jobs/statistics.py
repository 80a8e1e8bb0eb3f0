"""What a table or partition holds after a compaction, from the tails of its files.

numFiles and totalSize count every current data file: the output, and after a minor compaction the base or original
files beside it. numRows is the inserts minus the deletes of their tails. rawDataSize is ORC's: bytes that the values
would take as Java objects. Bounds and null counts of columns are read off the merged statistics where these are exact:
no delete event is left that could hide a row, and every stripe's statistics count all of its rows (Hive's streaming
writer leaves some empty).

Sources: Hive `BasicStatsNoJobTask`, `AcidUtils.getAcidFilesForStats`, ORC `ReaderImpl.getRawDataSize`, `JavaDataModel`.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from compactor.acid.column_statistics import ColumnStatistics, StatisticsKind, TableStatistics, statistics_kind
from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import Delta, parse_directory
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.schema import HiveType, parse_type
from compactor.jobs.distinct import Distinct
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.reader import OrcSource
from compactor.orc.rewrite import ItemResult
from compactor.orc.tail import OrcTail
from compactor.storage.filesystem import FileSystem, open_location

_OBJECT, _ARRAY, _WORD, _LONG_WORD = 32, 40, 4, 8
"""JavaDataModel.JAVA64: bytes of an object, of an array, of a 32-bit and of a 64-bit value."""
_DECIMAL = _OBJECT + 2 * _LONG_WORD + _OBJECT + 4 * _LONG_WORD
_RAW_SIZES = {
    **dict.fromkeys((pb.Type.TIMESTAMP, pb.Type.TIMESTAMP_INSTANT), _OBJECT + _LONG_WORD),
    **dict.fromkeys((pb.Type.DOUBLE, pb.Type.LONG), _LONG_WORD),
    pb.Type.DATE: _OBJECT + 3 * _LONG_WORD,
    pb.Type.DECIMAL: _DECIMAL,
}
_TEXTS = (pb.Type.STRING, pb.Type.CHAR, pb.Type.VARCHAR)
_GREGORIAN_DAYS, _MS_A_DAY = -141_427, 86_400_000
"""1582-10-15: earlier dates mean another day in a file that counts in the hybrid calendar."""

Value = int | float | decimal.Decimal | None


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What the tails of some files say. columns: of the wanted columns, by name; absent when not exact in some file."""

    rows: int = 0
    raw_data_size: int | None = 0
    columns: Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, kw_only=True)
class CurrentFiles:
    """Everything that a reader of a new snapshot reads, once the output of a compaction is published.

    data: files with rows; deletes: files of delete events. orc: their tails tell everything; otherwise written is the
    number of rows, None when they were not counted.
    """

    location: str
    data: tuple[ListedFile, ...]
    deletes: tuple[ListedFile, ...]
    orc: bool = True
    written: int | None = None

    @property
    def of_live_rows(self) -> tuple[str, ...]:
        """Paths of ORC files that together hold the live rows and no other; none while there are delete events."""
        return tuple(f.path for f in self.data) if self.orc and not self.deletes else ()


def current_files(
    plan: CompactionPlan | RebalancePlan, results: Sequence[ItemResult], state: DirectoryState, listing: Listing
) -> CurrentFiles:
    """The output of `plan`, which is `results`, and what stays beside it; state, listing: what it was planned from."""
    outputs = [ListedFile(path=result.output, size=result.size) for result in results]
    if isinstance(plan, RebalancePlan):
        return CurrentFiles(location=plan.location, data=tuple(outputs), deletes=())
    kept = _kept(plan, state, listing)
    uncounted = kept or any(result.rows_out < 0 for result in results)
    files = [*kept, *outputs]
    return CurrentFiles(
        location=plan.location,
        data=tuple(f for f in files if not _is_delete(f)),
        deletes=tuple(f for f in files if _is_delete(f)),
        orc=all(item.format == "orc" for item in plan.items),
        written=None if uncounted else sum(result.rows_out for result in results),
    )


def gather(
    files: CurrentFiles,
    *,
    columns: Sequence[tuple[str, str]],
    wanted: Collection[str],
    distinct: Mapping[str, Distinct] | None = None,
) -> TableStatistics:
    """What the tails of all current files say.

    columns: (name, Hive type) of the table. wanted: names of the columns to say something about. distinct: what a scan
    of `files.of_live_rows` found. Raises StorageError, CorruptFile.
    """
    every = (*files.data, *files.deletes)
    found = TableStatistics(
        files=len(every), size=sum(f.size for f in every), rows=None, exact=False, raw_data_size=None
    )
    if not files.orc:
        return replace(found, rows=files.written, exact=files.written is not None)
    fs, root = open_location(files.location)
    deleted = sum(_rows(fs, f"{root}/{f.path}") for f in files.deletes)
    chosen = [(n, t) for n, t in columns if n in wanted] if not deleted else []
    contents = _contents(fs, [f"{root}/{f.path}" for f in files.data], columns, {name for name, _ in chosen})
    return replace(
        found,
        rows=contents.rows - deleted,
        exact=not deleted,
        raw_data_size=None if deleted else contents.raw_data_size,
        columns=tuple(_finished(n, t, contents.columns.get(n, {}), (distinct or {}).get(n)) for n, t in chosen),
    )


def raw_data_size(tail: OrcTail) -> int:
    """Bytes of the table's columns as Java objects (ReaderImpl.getRawDataSize); the ACID columns do not count."""
    types = tail.footer.types
    root = types[0].subtypes[5] if tail.is_acid else 0
    columns = zip(types[root:], tail.footer.statistics[root:], strict=True)
    return sum(_raw_size(kind, statistics) for kind, statistics in columns)


def _raw_size(column: pb.Type, statistics: pb.ColumnStatistics) -> int:
    values = statistics.number_of_values
    if column.kind == pb.Type.BINARY:
        return statistics.binary_statistics.sum
    if column.kind in _TEXTS:
        values = values or 1
        return values * (_OBJECT + 3 * _WORD + _ARRAY + statistics.string_statistics.sum // values)
    return values * _RAW_SIZES.get(column.kind, _WORD)


def _kept(plan: CompactionPlan, state: DirectoryState, listing: Listing) -> list[ListedFile]:
    """The current files that the output stands beside: none after a major compaction."""
    if plan.depth is Depth.MAJOR:
        return []
    files = list(state.originals)
    if state.base is not None:
        files += listing.data_files(state.base.name)
    replaced = [d for d in map(parse_directory, plan.directories) if isinstance(d, Delta)]
    for delta in state.deltas:
        if not any(r.min_write_id <= delta.min_write_id and delta.max_write_id <= r.max_write_id for r in replaced):
            files += listing.data_files(delta.name)
    return files


def _is_delete(file: ListedFile) -> bool:
    parsed = parse_directory(file.directory)
    return isinstance(parsed, Delta) and parsed.is_delete


def _rows(fs: FileSystem, path: str) -> int:
    with OrcSource(fs, path) as source:
        return source.tail.rows


def _contents(
    fs: FileSystem, paths: Sequence[str], columns: Sequence[tuple[str, str]], wanted: Collection[str]
) -> _Contents:
    rows, raw = 0, 0
    trusted = True
    found: dict[str, list[Mapping[str, Value]]] = {name: [] for name in wanted}
    for path in paths:
        with OrcSource(fs, path) as source:
            tail = source.tail
        rows += tail.rows
        if not (_trusted(tail) or tail.rows == 0):
            trusted = False
            continue
        raw += raw_data_size(tail) if tail.rows else 0
        for position, (name, kind) in enumerate(columns):
            if name in wanted and tail.rows:
                found[name].append(_column(tail, position, parse_type(kind)))
    merged = {name: reduce(_merged, parts) if parts else {} for name, parts in found.items()} if trusted else {}
    return _Contents(rows=rows, raw_data_size=raw if trusted else None, columns=merged)


def _trusted(tail: OrcTail) -> bool:
    statistics = tail.footer.statistics
    return len(statistics) == len(tail.footer.types) and statistics[0].number_of_values == tail.rows


def _column(tail: OrcTail, position: int, wanted: HiveType) -> dict[str, Value]:
    """What a file says about the table's column at `position`, by column of TAB_COL_STATS; only what is exact."""
    types = tail.footer.types
    root = types[0].subtypes[5] if tail.is_acid else 0
    kind = statistics_kind(wanted.kind)
    if position >= len(types[root].subtypes):
        # The column was added after the file was written.
        return {"NUM_NULLS": tail.rows} | (dict.fromkeys(_BOUNDS[kind]) if kind in _BOUNDS else {})
    found = tail.row_type.children[position][1]
    statistics = tail.footer.statistics[types[root].subtypes[position]]
    values: dict[str, Value] = {"NUM_NULLS": tail.rows - statistics.number_of_values}
    if kind is None or statistics_kind(found.kind) is not kind:
        return values
    if kind is StatisticsKind.BOOLEAN:
        trues = statistics.bucket_statistics.count[0] if statistics.number_of_values else 0
        return values | {"NUM_TRUES": trues, "NUM_FALSES": statistics.number_of_values - trues}
    if kind not in _BOUNDS:
        return values
    if not statistics.number_of_values:
        return values | dict.fromkeys(_BOUNDS[kind])
    bounds = _bounds(statistics, wanted.kind, found.kind, proleptic=tail.proleptic)
    return values | (dict(zip(_BOUNDS[kind], bounds, strict=True)) if bounds is not None else {})


_BOUNDS = {
    StatisticsKind.LONG: ("LONG_LOW_VALUE", "LONG_HIGH_VALUE"),
    StatisticsKind.DOUBLE: ("DOUBLE_LOW_VALUE", "DOUBLE_HIGH_VALUE"),
    StatisticsKind.DECIMAL: ("BIG_DECIMAL_LOW_VALUE", "BIG_DECIMAL_HIGH_VALUE"),
}


def _bounds(statistics: pb.ColumnStatistics, wanted: str, found: str, *, proleptic: bool) -> tuple[Value, Value] | None:
    """Smallest and largest value; None when the statistics do not tell them exactly."""
    old: float = -math.inf if proleptic else _GREGORIAN_DAYS
    match found:
        case "date" if wanted == "date":
            return _both(statistics.date_statistics, "minimum", "maximum", lambda d: d, least=old)
        case "timestamp" | "timestamp with local time zone" if wanted == found:
            times = statistics.timestamp_statistics
            return _both(times, "minimum_utc", "maximum_utc", lambda ms: ms // 1000, least=old * _MS_A_DAY)
        case "float" | "double":
            # A NaN lies between no bounds, but it shows in the sum.
            numbers = statistics.double_statistics
            return _both(numbers, "minimum", "maximum", lambda f: f) if math.isfinite(numbers.sum) else None
        case "decimal":
            return _both(statistics.decimal_statistics, "minimum", "maximum", decimal.Decimal)
        case "tinyint" | "smallint" | "int" | "bigint" if wanted not in ("date", "timestamp"):
            return _both(statistics.int_statistics, "minimum", "maximum", lambda i: i)
        case _:
            return None


def _both(
    bounds: Any, low: str, high: str, value: Callable[[Any], Value], *, least: float = -math.inf
) -> tuple[Value, Value] | None:
    if not (bounds.HasField(low) and bounds.HasField(high)):
        return None
    smallest, largest = getattr(bounds, low), getattr(bounds, high)
    return (value(smallest), value(largest)) if least == -math.inf or smallest >= least else None


def _merged(one: Mapping[str, Value], other: Mapping[str, Value]) -> Mapping[str, Value]:
    """Of two files; what one of them does not tell is not known of both."""
    return {key: _merge(key, one[key], other[key]) for key in one.keys() & other.keys()}


def _merge(key: str, one: Any, other: Any) -> Any:
    if key.startswith("NUM_"):
        return one + other
    known = [value for value in (one, other) if value is not None]
    pick = min if key.endswith("LOW_VALUE") else max
    return pick(known) if known else None


def _finished(name: str, declared: str, values: Mapping[str, Value], distinct: Distinct | None) -> ColumnStatistics:
    """A column's statistics as the metastore stores them."""
    kind = statistics_kind(parse_type(declared).kind)
    found: dict[str, int | float | str | None] = {
        key: format(value, "f") if isinstance(value, decimal.Decimal) else value for key, value in values.items()
    }
    if distinct is not None and kind is not None:
        found |= dict(_scanned(kind, distinct))
    needed = set(_NEEDED[kind]) if kind is not None else {""}
    counted = set(_BOUNDS.get(kind, _COUNTS.get(kind, ()))) if kind is not None else set()
    # Hive keeps timestamps in seconds, which is no exact bound, and of text it keeps none.
    answers = bool(counted) and {"NUM_NULLS", *counted} <= found.keys() and not declared.startswith("timestamp")
    return ColumnStatistics(name=name, type=declared, values=found, complete=needed <= found.keys(), answers=answers)


_COUNTS = {StatisticsKind.BOOLEAN: ("NUM_TRUES", "NUM_FALSES")}
_LENGTHS = ("AVG_COL_LEN", "MAX_COL_LEN")
_NEEDED = {
    StatisticsKind.BOOLEAN: ("NUM_NULLS", *_COUNTS[StatisticsKind.BOOLEAN]),
    StatisticsKind.BINARY: ("NUM_NULLS", *_LENGTHS),
    StatisticsKind.TEXT: ("NUM_NULLS", "NUM_DISTINCTS", *_LENGTHS),
    **{kind: ("NUM_NULLS", "NUM_DISTINCTS", *bounds) for kind, bounds in _BOUNDS.items()},
}
"""What Hive stores of each kind of column (StatObjectConverter.convertToMTableColumnStatistics)."""


def _scanned(kind: StatisticsKind, distinct: Distinct) -> Iterator[tuple[str, int | float | None]]:
    if kind not in (StatisticsKind.BOOLEAN, StatisticsKind.BINARY):
        yield "NUM_DISTINCTS", distinct.values
        # Hive's sketch of the old values would bring the old number back with the next merge.
        yield "BIT_VECTOR", None
    if kind in (StatisticsKind.TEXT, StatisticsKind.BINARY):
        yield "AVG_COL_LEN", distinct.average_length
        yield "MAX_COL_LEN", distinct.longest
