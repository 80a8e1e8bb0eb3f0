"""Days since 1970 in the two calendars that files may count dates in.

Hive writes dates before 15 October 1582 in the hybrid calendar of `java.util.GregorianCalendar` (Julian before that
day) and says so in the file: ORC's footer `calendar`, Parquet's key `writer.date.proleptic`. Arrow, Spark and Hive's
own types count in the proleptic Gregorian calendar. What is converted is the printed date; one that the other calendar
lacks moves forward, as in Hive: 1582-10-14 becomes 1582-10-24, and 1500-02-29 becomes 1500-03-01.
Source: Hive `CalendarUtils.convertDateToProleptic`, `convertDateToHybrid`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Days = npt.NDArray[np.int64]
_Kind = Callable[[pa.DataType], bool]

_SWITCHOVER = -141_427
"""1582-10-15, the first day of the Gregorian calendar."""
_EPOCH = 2_440_588
"""Julian day number of 1970-01-01."""


def to_proleptic(array: pa.Array) -> pa.Array:
    """An array as read from a file in the hybrid calendar; dates at any depth change, all else stays."""
    return map_leaves(array, pa.types.is_date32, lambda a: _moved(a, lambda days: _from_gregorian(*_julian(days))))


def to_hybrid(array: pa.Array) -> pa.Array:
    """The opposite of `to_proleptic`, for a file in the hybrid calendar."""
    return map_leaves(array, pa.types.is_date32, lambda a: _moved(a, lambda days: _from_julian(*_gregorian(days))))


def holds_dates(kind: pa.DataType) -> bool:
    """Is the type a date, or one somewhere inside?"""
    return _holds(kind, pa.types.is_date32)


def map_leaves(array: pa.Array, wanted: _Kind, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """`array` with `convert` done to every array of a wanted type inside it; `convert` keeps types and lengths."""
    kind = array.type
    if not _holds(kind, wanted):
        return array
    if array.offset:
        # Arrow builds no list or map from the offsets of a slice and a mask.
        array = pa.concat_arrays([array])
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [map_leaves(array.field(i), wanted, convert) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys, items = (map_leaves(part, wanted, convert) for part in (array.keys, array.items))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, map_leaves(array.values, wanted, convert), type=kind, mask=mask)
    return convert(array)


def _holds(kind: pa.DataType, wanted: _Kind) -> bool:
    return wanted(kind) or any(_holds(kind.field(i).type, wanted) for i in range(kind.num_fields))


def _moved(array: pa.Array, convert: Callable[[Days], Days]) -> pa.Array:
    days = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    early = days < _SWITCHOVER
    if not early.any():
        return array
    days[early] = convert(days[early])
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(days.astype(np.int32), pa.int32(), mask=nulls).cast(pa.date32())


def _julian(days: Days) -> tuple[Days, Days, Days]:
    """(years, months, days of the month) in the Julian calendar."""
    return _date(days + _EPOCH + 32_082, np.zeros_like(days))


def _gregorian(days: Days) -> tuple[Days, Days, Days]:
    shifted = days + _EPOCH + 32_044
    centuries = (4 * shifted + 3) // 146_097
    return _date(shifted - 146_097 * centuries // 4, centuries)


def _date(count: Days, centuries: Days) -> tuple[Days, Days, Days]:
    """Richards' algorithm: days since 1 March 4801 BC, less whole Gregorian centuries, as a date."""
    years = (4 * count + 3) // 1461
    rest = count - 1461 * years // 4
    months = (5 * rest + 2) // 153
    return (
        100 * centuries + years - 4800 + months // 10,
        months + 3 - 12 * (months // 10),
        rest - (153 * months + 2) // 5 + 1,
    )


def _from_julian(years: Days, months: Days, days: Days) -> Days:
    march_years, since_march = _since_march(years, months, days)
    return since_march + 365 * march_years + march_years // 4 - 32_083 - _EPOCH


def _from_gregorian(years: Days, months: Days, days: Days) -> Days:
    march_years, since_march = _since_march(years, months, days)
    leaps = march_years // 4 - march_years // 100 + march_years // 400
    return since_march + 365 * march_years + leaps - 32_045 - _EPOCH


def _since_march(years: Days, months: Days, days: Days) -> tuple[Days, Days]:
    """(years from March to February since 4801 BC, days since 1 March counting from 1)."""
    before_march = (14 - months) // 12
    return years + 4800 - before_march, days + (153 * (months + 12 * before_march - 3) + 2) // 5
