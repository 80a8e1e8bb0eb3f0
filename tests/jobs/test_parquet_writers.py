"""Parquet values mean what the file says of its writer: time zone of INT96 timestamps, calendar of dates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import parse_type
from compactor.errors import UnsupportedData
from compactor.jobs.parquet import run_parquet_item
from compactor.storage.filesystem import ArrowFileSystem
from compactor.storage.parquet import parquet_batches, write_parquet

FS = ArrowFileSystem(pafs.LocalFileSystem())
_NOON = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 -- what a clock shows
_EARLY = dt.date(999, 1, 1)
_HIVES_EARLY = dt.date(999, 1, 6)
"""The day that the hybrid calendar calls 999-01-01, as Arrow prints it."""


def hive_file(path: Path, table: pa.Table, **properties: str) -> SourceFile:
    """A file as Hive's parquet-mr would write it; pyarrow has no way to say so, so its name is overwritten."""
    written = table.replace_schema_metadata({k.replace("_", "."): v for k, v in properties.items()})
    pq.write_table(written, path, use_deprecated_int96_timestamps=True)
    own = pq.read_metadata(path).created_by.encode()
    content = path.read_bytes()
    assert content.count(own) == 1
    path.write_bytes(content.replace(own, b"parquet-mr version 1.13.1".ljust(len(own))))
    return SourceFile(path=path.name, size=path.stat().st_size, rows=table.num_rows)


def read(path: Path, schema: pa.Schema) -> list[object]:
    return [row for batch in parquet_batches(FS, str(path), schema) for row in batch.to_pylist()]


def join(root: Path, *sources: SourceFile) -> Path:
    item = PlanItem(kind=ItemKind.PLAIN, output="000000_0", bucket=0, sources=sources, format="parquet")
    run_parquet_item(FS, str(root), item, parse_type("struct<t:timestamp>"))
    return root / "000000_0"


@pytest.mark.parametrize(("zone", "utc_hour"), [("Europe/Berlin", 10), ("UTC", 12), ("GMT-05:00", 17), ("Z", 12)])
def test_timestamps_read_as_the_clock_of_the_writer_showed_them(tmp_path: Path, zone: str, utc_hour: int) -> None:
    moments = pa.array([_NOON.replace(hour=utc_hour), None], pa.timestamp("ns"))
    table = pa.table({"t": moments, "a": pa.array([[m] for m in moments.to_pylist()], pa.list_(pa.timestamp("ns")))})
    hive_file(tmp_path / "f", table, writer_time_zone=zone)
    assert read(tmp_path / "f", table.schema) == [{"t": _NOON, "a": [_NOON]}, {"t": None, "a": [None]}]


@pytest.mark.parametrize("properties", [{"writer_time_zone": "Europe/Berlin"}, {}])
def test_timestamps_that_our_files_would_shift_are_not_rewritten(tmp_path: Path, properties: dict[str, str]) -> None:
    source = hive_file(tmp_path / "f", pa.table({"t": pa.array([_NOON], pa.timestamp("ns"))}), **properties)
    with pytest.raises(UnsupportedData, match="time zone"):
        join(tmp_path, source)


def test_files_without_timestamps_may_come_from_any_zone(tmp_path: Path) -> None:
    source = hive_file(tmp_path / "f", pa.table({"id": [1, 2]}), writer_time_zone="Europe/Berlin")
    assert pq.read_table(join(tmp_path, source)).column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("properties", "stored"),
    [
        ({"writer_date_proleptic": "true"}, _EARLY),
        ({"writer_date_proleptic": "false"}, _HIVES_EARLY),
        ({}, _HIVES_EARLY),
    ],
)
def test_dates_read_as_the_writer_meant_them(tmp_path: Path, properties: dict[str, str], stored: dt.date) -> None:
    table = pa.table({"d": [stored]})
    hive_file(tmp_path / "f", table, **properties)
    assert read(tmp_path / "f", table.schema) == [{"d": _EARLY}]


def test_files_of_both_calendars_join_into_one_that_names_its_calendar(tmp_path: Path) -> None:
    hybrid = hive_file(tmp_path / "0", pa.table({"d": [_HIVES_EARLY]}), writer_date_proleptic="false")
    proleptic = hive_file(tmp_path / "1", pa.table({"d": [_EARLY]}), writer_date_proleptic="true")
    path = join(tmp_path, hybrid, proleptic)
    assert pq.read_table(path).column("d").to_pylist() == [_EARLY, _EARLY]
    assert pq.read_metadata(path).metadata[b"writer.date.proleptic"] == b"true"


def test_a_file_that_we_write_names_its_calendar(tmp_path: Path) -> None:
    rows = pa.table({"d": [_EARLY]})
    with FS.write_atomically(str(tmp_path / "f")) as stream:
        write_parquet(stream, rows, codec="SNAPPY")
    assert pq.read_metadata(tmp_path / "f").metadata[b"writer.date.proleptic"] == b"true"
    assert read(tmp_path / "f", rows.schema) == [{"d": _EARLY}]
