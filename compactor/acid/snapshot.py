"""What a reader may see: valid transactions and valid write ids, with Hive's own string forms.

Sources: Hive `ValidReadTxnList`, `ValidReaderWriteIdList`, `ValidCompactorWriteIdList`,
`TxnUtils.createValidCompactWriteIdList`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from compactor.errors import FormatError

NO_OPEN = (1 << 63) - 1
"""Hive's "nothing is open" (Long.MAX_VALUE) in the place of a smallest open id."""


class RangeValidity(enum.Enum):
    """How much of a write-id range a reader may see."""

    NONE = "none"
    """No id of the range is valid: skip the directory."""
    SOME = "some"
    """Rows must be filtered one by one by their write id."""
    ALL = "all"
    """Every id of the range is valid."""


@dataclass(frozen=True, kw_only=True)
class ValidTxnList:
    """The transactions a snapshot counts as committed: all ids ≤ high_water that are neither open nor aborted."""

    high_water: int
    open: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()

    @property
    def min_open(self) -> int:
        """Smallest open transaction id, NO_OPEN when none is open."""
        return min(self.open, default=NO_OPEN)

    def is_valid(self, txn_id: int) -> bool:
        return txn_id <= self.high_water and txn_id not in self.open and txn_id not in self.aborted

    def is_aborted(self, txn_id: int) -> bool:
        return txn_id in self.aborted

    def to_string(self) -> str:
        """Hive's form `highWater:minOpen:open,…:aborted,…` (ValidReadTxnList.writeToString)."""
        return f"{self.high_water}:{self.min_open}:{_ids(self.open)}:{_ids(self.aborted)}"

    @classmethod
    def parse(cls, text: str) -> ValidTxnList:
        """Read Hive's string form; FormatError when it is not one."""
        high, _, opened, aborted = _fields(text, 4)
        return cls(high_water=_int(high, text), open=_id_set(opened, text), aborted=_id_set(aborted, text))


@dataclass(frozen=True, kw_only=True)
class ValidWriteIdList:
    """The write ids of one table that a snapshot may see.

    table: `db.table`. min_open: smallest open write id, NO_OPEN when none is.
    """

    table: str
    high_water: int
    open: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()

    @property
    def min_open(self) -> int:
        return min(self.open, default=NO_OPEN)

    def is_valid(self, write_id: int) -> bool:
        return write_id <= self.high_water and write_id not in self.open and write_id not in self.aborted

    def is_aborted(self, write_id: int) -> bool:
        return write_id in self.aborted

    def is_valid_base(self, write_id: int) -> bool:
        """A base may be used when no write below it is open (ValidReaderWriteIdList.isValidBase)."""
        return write_id < self.min_open and write_id <= self.high_water

    def range_validity(self, low: int, high: int) -> RangeValidity:
        """low, high inclusive (ValidReaderWriteIdList.isWriteIdRangeValid)."""
        if low > self.high_water:
            return RangeValidity.NONE
        invalid = self._count(self.open | self.aborted, low, min(high, self.high_water))
        if invalid == 0 and high <= self.high_water:
            return RangeValidity.ALL
        return RangeValidity.NONE if invalid == min(high, self.high_water) - low + 1 else RangeValidity.SOME

    def range_aborted(self, low: int, high: int) -> RangeValidity:
        """ALL: every id of the range is aborted; SOME: at least one (isWriteIdRangeAborted)."""
        aborted = self._count(self.aborted, low, high)
        if aborted == 0:
            return RangeValidity.NONE
        return RangeValidity.ALL if aborted == high - low + 1 else RangeValidity.SOME

    def capped(self, high_water: int) -> ValidWriteIdList:
        """The same list seen up to high_water (ValidReaderWriteIdList.updateHighWatermark)."""
        top = min(self.high_water, high_water)
        return ValidWriteIdList(
            table=self.table,
            high_water=top,
            open=frozenset(i for i in self.open if i <= top),
            aborted=frozenset(i for i in self.aborted if i <= top),
        )

    def for_compaction(self) -> ValidWriteIdList:
        """What a compaction may merge: everything below the first open write of the table.

        Only aborted ids stay as exceptions; an open write anywhere in the table is the ceiling for all of
        it (TxnUtils.createValidCompactWriteIdList).
        """
        return self.capped(min(self.high_water, self.min_open - 1))

    def to_string(self) -> str:
        """Hive's form `db.table:highWater:minOpen:open,…:aborted,…`."""
        return f"{self.table}:{self.high_water}:{self.min_open}:{_ids(self.open)}:{_ids(self.aborted)}"

    @classmethod
    def parse(cls, text: str) -> ValidWriteIdList:
        """Read Hive's string form; FormatError when it is not one."""
        table, high, _, opened, aborted = _fields(text, 5)
        return cls(table=table, high_water=_int(high, text), open=_id_set(opened, text), aborted=_id_set(aborted, text))

    @staticmethod
    def _count(ids: frozenset[int], low: int, high: int) -> int:
        if high < low:
            return 0
        if len(ids) <= high - low:
            return sum(1 for i in ids if low <= i <= high)
        return sum(1 for i in range(low, high + 1) if i in ids)


def _ids(ids: Iterable[int]) -> str:
    return ",".join(str(i) for i in sorted(ids))


def _fields(text: str, count: int) -> list[str]:
    parts = text.split(":")
    if len(parts) != count:
        raise FormatError(f"{text!r} is no snapshot string: {count} fields separated by ':' expected")
    return parts


def _int(field: str, text: str) -> int:
    try:
        return int(field)
    except ValueError:
        raise FormatError(f"{text!r} is no snapshot string: {field!r} is not a number") from None


def _id_set(field: str, text: str) -> frozenset[int]:
    return frozenset(_int(i, text) for i in field.split(",") if i)
