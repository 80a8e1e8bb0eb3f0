"""Joining Parquet files of insert-only tables."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import parse_type
from compactor.errors import CorruptFile, UnsupportedData
from compactor.jobs.parquet import parquet_facts, run_parquet_item
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import ArrowFileSystem

FS = ArrowFileSystem(pafs.LocalFileSystem())
_TYPE = parse_type("struct<id:int,v:string>")


def run(root: Path, *tables: pa.Table | bytes, **options: object) -> tuple[ItemResult, Path]:
    """Write each table (or garbage) as a file and join them."""
    sources = []
    for position, content in enumerate(tables):
        path = root / f"{position}.parquet"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path, **options)
        sources.append(SourceFile(path=path.name, size=path.stat().st_size, rows=0))
    item = PlanItem(kind=ItemKind.PLAIN, output="000000_0", bucket=0, sources=tuple(sources), format="parquet")
    return run_parquet_item(FS, str(root), item, _TYPE), root / "000000_0"


def test_rows_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    done, path = run(tmp_path, pa.table({"id": [1, 2]}), pa.table({"id": [3]}))
    assert pq.read_table(path).column("id").to_pylist() == [1, 2, 3]
    assert (done.rows_in, done.rows_out, done.size) == (3, 3, path.stat().st_size)


def test_columns_match_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    old = pa.table({"v": ["a"], "id": pa.array([1], pa.int32())})
    new = pa.table({"id": pa.array([2], pa.int64()), "extra": [1.5]})
    _, path = run(tmp_path, old, new)
    assert pq.read_table(path).to_pylist() == [{"id": 1, "extra": None, "v": "a"}, {"id": 2, "extra": 1.5, "v": None}]


def test_int96_timestamps_stay_int96_with_every_nanosecond(tmp_path: Path) -> None:
    moments = pa.array([1_700_000_000_123_456_789, None, -1], pa.timestamp("ns"))
    _, path = run(tmp_path, pa.table({"t": moments}), use_deprecated_int96_timestamps=True)
    file = pq.ParquetFile(path)
    assert file.schema.column(0).physical_type == "INT96"
    assert file.read().column("t").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789, None, -1]


def test_64_bit_timestamps_keep_every_nanosecond(tmp_path: Path) -> None:
    _, path = run(tmp_path, pa.table({"t": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))}))
    found = pq.read_table(path).column("t")
    assert (found.type, found.cast(pa.int64()).to_pylist()) == (pa.timestamp("ns"), [1_700_000_000_123_456_789])


@pytest.mark.parametrize("year", [1000, 9999])
def test_a_timestamp_that_would_wrap_around_is_refused(tmp_path: Path, year: int) -> None:
    table = pa.table({"t": pa.array([dt.datetime(year, 1, 1)], pa.timestamp("us"))})  # noqa: DTZ001
    with pytest.raises(UnsupportedData, match="1677-2262"):
        run(tmp_path, table, use_deprecated_int96_timestamps=True)
    assert not (tmp_path / "000000_0").exists()


def test_two_kinds_of_timestamps_in_one_place_are_refused(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1], pa.timestamp("us"))})
    old = pa.BufferOutputStream()
    pq.write_table(table, old, use_deprecated_int96_timestamps=True)
    with pytest.raises(UnsupportedData, match="INT64 and INT96"):
        run(tmp_path, table, old.getvalue().to_pybytes())


def test_columns_of_different_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedData, match="different types"):
        run(tmp_path, pa.table({"id": [1]}), pa.table({"id": ["x"]}))


def test_a_number_that_the_common_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedData, match=r"lost|different types"):
        run(tmp_path, pa.table({"id": [(1 << 53) + 1]}), pa.table({"id": [0.5]}))


@pytest.mark.parametrize("content", [b"", b"PAR1PAR1", b"PAR1" + bytes(200) + b"PAR1", b"x" * 100])
def test_a_file_that_is_no_parquet_is_corrupt(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"0\.parquet"):
        run(tmp_path, content)


def test_a_damaged_page_is_corrupt(tmp_path: Path) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": list(range(1000))}), buffer, compression="gzip")
    content = bytearray(buffer.getvalue().to_pybytes())
    content[60:200] = bytes(140)
    with pytest.raises(CorruptFile, match="row group 0"):
        run(tmp_path, bytes(content))
    assert not (tmp_path / "000000_0").exists()


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "ZSTD"])
def test_the_codec_stays(tmp_path: Path, codec: str) -> None:
    _, path = run(tmp_path, pa.table({"id": [1] * 100}), compression=codec)
    expected = "UNCOMPRESSED" if codec == "NONE" else codec
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == expected


def test_without_any_file_the_table_type_makes_an_empty_one(tmp_path: Path) -> None:
    done, path = run(tmp_path)
    assert pq.read_schema(path) == pa.schema([("id", pa.int32()), ("v", pa.string())])
    assert (done.rows_out, pq.read_table(path).num_rows) == (0, 0)


def test_facts_come_from_the_footer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "f")
    facts = parquet_facts(FS, f"{tmp_path}/f", _TYPE)
    assert (facts.rows, facts.format, facts.acid) == (3, "parquet", False)
