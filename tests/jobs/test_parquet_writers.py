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
from compactor.jobs.parquet import parquet_facts, run_parquet_item
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


@pytest.mark.parametrize("properties", [{"writer_time_zone": "Europe/Berlin"}, {"writer_time_zone": "UTC"}, {}])
def test_joined_timestamps_belong_to_the_zone_of_their_writer(tmp_path: Path, properties: dict[str, str]) -> None:
    table = pa.table({"t": pa.array([_NOON, None], pa.timestamp("ns"))})
    sources = [hive_file(tmp_path / f"{i}", table, **properties) for i in range(2)]
    path = join(tmp_path, *sources)
    found, first = pq.read_metadata(path), pq.read_metadata(tmp_path / "0")
    assert (found.created_by, found.metadata, found.num_row_groups) == (first.created_by, first.metadata, 1)
    assert read(path, table.schema) == 2 * read(tmp_path / "0", table.schema)


def test_writers_of_several_zones_calendars_or_kinds_never_share_a_file(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([_NOON], pa.timestamp("ns"))})
    for number, zone in enumerate(["UTC", "Europe/Berlin"]):
        hive_file(tmp_path / f"{number}", table, writer_time_zone=zone)
    hive_file(tmp_path / "2", table, writer_time_zone="UTC", writer_date_proleptic="true")
    pq.write_table(table, tmp_path / "3", use_deprecated_int96_timestamps=True)
    facts = [parquet_facts(FS, f"{tmp_path}/{i}", parse_type("struct<t:timestamp>")) for i in range(4)]
    assert len({f.template for f in facts}) == 4


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


def test_joined_dates_stay_in_the_calendar_of_their_writer(tmp_path: Path) -> None:
    table = pa.table({"d": [_HIVES_EARLY]})
    path = join(tmp_path, *[hive_file(tmp_path / f"{i}", table, writer_date_proleptic="false") for i in range(2)])
    assert pq.read_table(path).column("d").to_pylist() == [_HIVES_EARLY] * 2
    assert pq.read_metadata(path).metadata[b"writer.date.proleptic"] == b"false"
    assert read(path, pa.schema([("d", pa.date32())])) == [{"d": _EARLY}] * 2


def test_a_file_that_we_write_names_its_calendar(tmp_path: Path) -> None:
    rows = pa.table({"d": [_EARLY]})
    with FS.write_atomically(str(tmp_path / "f")) as stream:
        write_parquet(stream, rows, codec="SNAPPY")
    assert pq.read_metadata(tmp_path / "f").metadata[b"writer.date.proleptic"] == b"true"
    assert read(tmp_path / "f", rows.schema) == [{"d": _EARLY}]
