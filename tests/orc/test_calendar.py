"""Dates before 1582: files count them in one of two calendars, readers and compactions keep the date."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from compactor.acid.planning import SourceFile
from compactor.acid.schema import parse_type
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import acid_template
from compactor.orc.rewrite import run_item
from compactor.storage.calendar import to_hybrid, to_proleptic
from tests.orc.acid_files import FS, insert, source, write_events
from tests.orc.items import ALL, item_of

ROW = parse_type("struct<d:date,a:array<date>,m:map<int,struct<x:date>>>")
EARLY = [dt.date(1, 1, 1), dt.date(999, 1, 1), dt.date(1582, 10, 4)]
LATE = [dt.date(1582, 10, 15), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]
HIVES_DAYS = {dt.date(1, 1, 1): -719_164, dt.date(999, 1, 1): -354_645, dt.date(1582, 10, 4): -141_428}
"""As Hive 4.0.1 stored them in ORC files of its own."""


def days(dates: list[dt.date]) -> list[int]:
    return [d.toordinal() - dt.date(1970, 1, 1).toordinal() for d in dates]


def date_rows(path: Path, calendar: pb.CalendarKind, write_id: int, dates: list[dt.date | None]) -> None:
    """A file of `calendar` with a row a date, which stands at every depth of the row."""
    template = replace(acid_template(ROW, compression=pb.ZLIB), calendar=calendar)
    events = [insert(write_id, n, (d, [d, None], {n: {"x": d}})) for n, d in enumerate(dates)]
    write_events(path, events, row_type=ROW, template=template)


def read(path: Path) -> list[tuple[object, ...]]:
    with source(path) as opened:
        rows = [r for n in range(opened.stripes) for r in opened.rows(n, ROW).to_pylist()]
    return [(r["d"], *r["a"], *(v["x"] for _, v in r["m"])) for r in rows]


@pytest.mark.parametrize("calendar", pb.CalendarKind.values())
def test_a_date_reads_as_it_was_written_in_either_calendar(tmp_path: Path, calendar: pb.CalendarKind) -> None:
    path = tmp_path / "d" / "bucket_00000"
    date_rows(path, calendar, 1, [*EARLY, None, *LATE])
    assert read(path) == [(d, d, None, d) for d in (*EARLY, None, *LATE)]


def test_a_file_of_the_hybrid_calendar_holds_the_days_that_hive_stores(tmp_path: Path) -> None:
    path = tmp_path / "d" / "bucket_00000"
    date_rows(path, pb.JULIAN_GREGORIAN, 1, [*EARLY, *LATE])
    stored = orc.ORCFile(str(path)).read().column("row").combine_chunks().field("d")
    assert stored.cast(pa.int32()).to_pylist() == [*(HIVES_DAYS[d] for d in EARLY), *days(LATE)]


def test_a_compaction_of_files_of_both_calendars_keeps_every_date(tmp_path: Path) -> None:
    sources = []
    for write_id, calendar in enumerate((pb.JULIAN_GREGORIAN, pb.PROLEPTIC_GREGORIAN, pb.UNKNOWN_CALENDAR), 1):
        path = tmp_path / f"delta_{write_id}" / "bucket_00000"
        date_rows(path, calendar, write_id, [*EARLY, *LATE])
        sources.append(SourceFile(path=f"{path.parent.name}/{path.name}", size=path.stat().st_size, rows=6))
    (tmp_path / "base").mkdir()
    item = item_of(tmp_path, sources, row_type=ROW, output="base/bucket_00000")
    run_item(FS, str(tmp_path), item, ROW, ALL)
    assert [r[0] for r in read(tmp_path / "base" / "bucket_00000")] == [*EARLY, *LATE] * 3


@pytest.mark.parametrize(
    ("hybrid", "proleptic"),
    [(dt.date(1582, 10, 24), dt.date(1582, 10, 14)), (dt.date(1582, 10, 15), dt.date(1582, 10, 5))],
)
def test_a_date_that_the_hybrid_calendar_skips_moves_as_in_hive(hybrid: dt.date, proleptic: dt.date) -> None:
    assert to_hybrid(pa.array([proleptic])).to_pylist() == [hybrid]


def test_the_julian_leap_day_of_1500_becomes_the_first_of_march() -> None:
    stored = [dt.date(1500, 3, 9), dt.date(1500, 3, 10), dt.date(1500, 3, 11)]
    read_as = [dt.date(1500, 2, 28), dt.date(1500, 3, 1), dt.date(1500, 3, 1)]
    assert to_proleptic(pa.array(stored)).to_pylist() == read_as


@given(st.dates())
def test_there_and_back_is_the_same_date(date: dt.date) -> None:
    skipped = dt.date(1582, 10, 4) < date < dt.date(1582, 10, 15)
    assert skipped or to_proleptic(to_hybrid(pa.array([date]))).to_pylist() == [date]


def test_a_slice_of_lists_and_maps_with_nulls_is_converted_too() -> None:
    kind = pa.struct({"a": pa.list_(pa.date32()), "m": pa.map_(pa.int32(), pa.date32())})
    early = dt.date(1500, 2, 3)
    rows = [{"a": [early], "m": [(1, early)]}, None, {"a": None, "m": None}, {"a": [early, None], "m": [(2, early)]}]
    array = pa.array(rows, kind)
    assert to_hybrid(array.slice(1)).equals(to_hybrid(array).slice(1))
