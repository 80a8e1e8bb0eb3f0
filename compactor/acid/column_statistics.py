"""Statistics of a table or partition as Hive's metastore keeps them, and when they may answer a query. Pure.

Hive answers `select count(*)`, `min` and `max` from the metastore (hive.compute.query.using.stats) when the parameter
COLUMN_STATS_ACCURATE says so and the reader sees the write id that the statistics were written at.
Sources: Hive `StatsSetupConst`, `ObjectStore.isCurrentStatsValidForTheQuery`, `StatObjectConverter`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

ACCURATE = "COLUMN_STATS_ACCURATE"
NUM_ROWS = "numRows"
NUM_FILES = "numFiles"
TOTAL_SIZE = "totalSize"
RAW_DATA_SIZE = "rawDataSize"
DDL_TIME = "transient_lastDdlTime"
_BASIC, _COLUMNS = "BASIC_STATS", "COLUMN_STATS"


class StatisticsKind(enum.Enum):
    """Which of the metastore's value columns a column's statistics use (StatObjectConverter)."""

    LONG = "long"
    """LONG_LOW_VALUE and LONG_HIGH_VALUE: integers, dates in days, timestamps in seconds."""
    DOUBLE = "double"
    """DOUBLE_LOW_VALUE and DOUBLE_HIGH_VALUE."""
    DECIMAL = "decimal"
    """BIG_DECIMAL_LOW_VALUE and BIG_DECIMAL_HIGH_VALUE, as text."""
    TEXT = "text"
    """AVG_COL_LEN and MAX_COL_LEN in characters; no bounds."""
    BINARY = "binary"
    """AVG_COL_LEN and MAX_COL_LEN in bytes; no bounds and no distinct values."""
    BOOLEAN = "boolean"
    """NUM_TRUES and NUM_FALSES."""


_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "date", "timestamp"), StatisticsKind.LONG),
    "timestamp with local time zone": StatisticsKind.LONG,
    **dict.fromkeys(("float", "double"), StatisticsKind.DOUBLE),
    **dict.fromkeys(("string", "varchar", "char"), StatisticsKind.TEXT),
    "decimal": StatisticsKind.DECIMAL,
    "binary": StatisticsKind.BINARY,
    "boolean": StatisticsKind.BOOLEAN,
}


def statistics_kind(type_kind: str) -> StatisticsKind | None:
    """Of a column whose HiveType has this `kind`; None for nested types, of which Hive keeps none."""
    return _KINDS.get(type_kind)


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """What was found out about a column.

    type: as the catalogue spells it. values: by column of TAB_COL_STATS (NUM_NULLS, LONG_LOW_VALUE, …); what is not
    known exactly is missing, None says that there is no value. complete: nothing of what Hive keeps is missing, so that
    a row may be added. answers: the bounds and counts that Hive would answer a query from are exact.
    """

    name: str
    type: str
    values: Mapping[str, int | float | str | None]
    complete: bool
    answers: bool


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """What a table or partition holds after a compaction, as the compaction's snapshot sees it.

    files, size: of all current data files, in bytes. rows: events inserted minus events deleted, None when some file
    is of a format whose rows are not counted. exact: `rows` is the number of rows that a reader gets; not so while
    there are delete events, since two of them may name one row. raw_data_size: bytes in memory by ORC's reckoning,
    None when not known exactly. columns: only when `exact`.
    """

    files: int
    size: int
    rows: int | None
    exact: bool
    raw_data_size: int | None
    columns: tuple[ColumnStatistics, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """COLUMN_STATS_ACCURATE: which statistics Hive may answer queries from.

    basic: numRows and the file counts. columns: names of the columns whose statistics are exact.
    """

    basic: bool
    columns: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str | None) -> Accuracy:
        """Read the parameter; what is no such JSON counts as inaccurate (StatsSetupConst.parseStatsAcc)."""
        try:
            found = json.loads(text or "{}")
            columns = found.get(_COLUMNS, {})
            return cls(
                basic=str(found.get(_BASIC)).lower() == "true",
                columns=frozenset(name for name, flag in columns.items() if str(flag).lower() == "true"),
            )
        except (ValueError, AttributeError):
            return cls(basic=False)

    def to_string(self) -> str | None:
        """Hive's form; None when the parameter has to go (StatsSetupConst.setBasicStatsState with "false")."""
        if not self.basic:
            return None
        found: dict[str, object] = {_BASIC: "true"}
        if self.columns:
            found[_COLUMNS] = dict.fromkeys(sorted(self.columns), "true")
        return json.dumps(found, separators=(",", ":"))


class Change(enum.Enum):
    """What recording statistics did to those that were there."""

    SIZES = "sizes"
    """Only numFiles and totalSize, as Hive's `analyze table … noscan`: there is a newer write, or rows are uncounted."""
    ESTIMATE = "estimate"
    """The number of rows as well, but nothing that Hive would answer a query from."""
    CONFIRMED = "confirmed"
    """Hive's statistics were accurate and still are."""
    MADE_ACCURATE = "made accurate"
    """They are exact now, and Hive may answer queries from them."""
    CLEARED = "cleared"
    """They claimed to be accurate and were wrong: Hive asks the table again."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Statistics in the metastore. believed: readers take them for accurate (the flag, and a valid write id)."""

    accuracy: Accuracy
    rows: int | None
    believed: bool


def decide(found: Recorded, new: TableStatistics, *, settled: bool, only_new_readers: bool) -> Change:
    """What `new` may replace.

    settled: no write above the compaction's snapshot is open or committed. only_new_readers: every transaction that
    is open sees all writes of the snapshot, so that no reader could get a number from its future.
    """
    if not settled or new.rows is None:
        return Change.SIZES
    if not new.exact:
        # Hive counts deletes as they happen; our difference is no better, and may be worse, than an accurate count.
        return Change.SIZES if found.believed else Change.ESTIMATE
    if found.believed and found.rows == new.rows:
        return Change.CONFIRMED
    if only_new_readers:
        return Change.MADE_ACCURATE
    return Change.CLEARED if found.believed else Change.ESTIMATE


def accuracy_after(change: Change, found: Accuracy, refreshed: Collection[str], *, only_new_readers: bool) -> Accuracy:
    """The flags after a change; refreshed: columns whose statistics are complete and were written with it."""
    match change:
        case Change.SIZES | Change.ESTIMATE:
            return found
        case Change.CONFIRMED:
            return Accuracy(basic=True, columns=found.columns | frozenset(refreshed if only_new_readers else ()))
        case Change.MADE_ACCURATE:
            return Accuracy(basic=True, columns=frozenset(refreshed))
        case Change.CLEARED:
            return Accuracy(basic=False)
