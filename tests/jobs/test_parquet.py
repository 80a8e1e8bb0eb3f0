"""Joining Parquet files of insert-only tables: row groups are copied, small ones coalesced, and no value changes."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import parse_type
from compactor.errors import CorruptFile, UnsupportedData, VerificationError
from compactor.jobs.parquet import parquet_facts, run_parquet_item
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import ArrowFileSystem
from compactor.storage.parquet_footer import read_footer
from compactor.storage.thrift import Kind, serialize

FS = ArrowFileSystem(pafs.LocalFileSystem())
_TYPE = parse_type("struct<id:int,v:string>")
RNG = np.random.default_rng(7)


def run(root: Path, *tables: pa.Table | bytes, **options: Any) -> tuple[ItemResult, Path]:
    """Write each table (or garbage) as a file and join them."""
    for position, content in enumerate(tables):
        path = root / f"{position}.parquet"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path, **options)
    return join(root, [root / f"{position}.parquet" for position in range(len(tables))])


def join(root: Path, paths: Sequence[Path]) -> tuple[ItemResult, Path]:
    sources = tuple(SourceFile(path=p.name, size=p.stat().st_size, rows=0) for p in paths)
    item = PlanItem(kind=ItemKind.PLAIN, output="000000_0", bucket=0, sources=sources, format="parquet")
    return run_parquet_item(FS, str(root), item, _TYPE), root / "000000_0"


def noise(rows: int) -> pa.Table:
    """Rows that no codec makes smaller than 16 bytes each."""
    return pa.table({"id": RNG.integers(0, 1 << 62, rows), "f": RNG.random(rows)})


def template(path: Path) -> bytes:
    return parquet_facts(FS, str(path), _TYPE).template


def test_rows_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    done, path = run(tmp_path, pa.table({"id": [1, 2]}), pa.table({"id": [3]}))
    assert pq.read_table(path).column("id").to_pylist() == [1, 2, 3]
    assert (done.rows_in, done.rows_out, done.size) == (3, 3, path.stat().st_size)


def test_row_groups_are_copied_with_statistics_and_page_indexes(tmp_path: Path) -> None:
    tables = [noise(200_000), noise(70_000)]
    options = {"row_group_size": 100_000, "write_page_index": True, "data_page_size": 10_000}
    done, path = run(tmp_path, *tables, **options)
    assert (done.stripes_copied, done.stripes_encoded, done.rows_out) == (3, 0, 270_000)
    assert pq.read_table(path) == pa.concat_tables(tables)
    found, first = pq.read_metadata(path), pq.read_metadata(tmp_path / "0.parquet")
    for group in range(2):
        before, after = first.row_group(group), found.row_group(group)
        assert before.total_byte_size == after.total_byte_size
        for column in range(2):
            assert before.column(column).statistics == after.column(column).statistics
            assert before.column(column).total_compressed_size == after.column(column).total_compressed_size
            assert after.column(column).has_offset_index
            assert after.column(column).has_column_index
    assert (found.schema, found.created_by, found.metadata) == (first.schema, first.created_by, first.metadata)


def test_runs_of_small_row_groups_become_one(tmp_path: Path) -> None:
    tables = [noise(10), noise(20), noise(100_000), noise(30), noise(100_000), noise(5), noise(0), noise(6)]
    done, path = run(tmp_path, *tables)
    assert (done.stripes_copied, done.stripes_encoded) == (3, 2)
    groups = pq.read_metadata(path)
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [30, 100_000, 30, 100_000, 11]
    assert pq.read_table(path) == pa.concat_tables(tables)


_NESTED = pa.table(
    {
        "a": pa.array([[1, None], [], None, [3]], pa.list_(pa.field("array_element", pa.int32()))),
        "m": pa.array([[("k", [1.5])], None, [], [("l", None)]], pa.map_(pa.string(), pa.list_(pa.float64()))),
        "s": pa.array(
            [{"x": 1, "y": {"z": "q"}}, None, {"x": None, "y": None}, {"x": 2, "y": {"z": None}}],
            pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))]),
        ),
        "d": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-99999.99"), None], pa.decimal128(7, 2)),
        "w": pa.array([decimal.Decimal("1" * 30 + ".5"), None, None, None], pa.decimal128(38, 1)),
        "t": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31), None]),
        "ms": pa.array([-1, None, 253402300799999, 0], pa.timestamp("ms", tz="UTC")),
        "us": pa.array([-1, None, 253402300799999999, 0], pa.timestamp("us")),
        "b": pa.array([b"\xff", None, b"", b"\x00"]),
        "f": pa.array([b"abc", None, b"def", b"ghi"], pa.binary(3)),
        "u": pa.array([2**32 - 1, None, 0, 1], pa.uint32()),
        "o": pa.array([True, None, False, True]),
    }
)


@pytest.mark.parametrize("compliant", [True, False])
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_small_row_groups_of_any_type_are_stored_as_their_files_store_them(
    tmp_path: Path, compliant: bool, integer: bool, version: str
) -> None:
    table = _NESTED.drop_columns(["u"]) if version == "1.0" else _NESTED
    options = {"use_compliant_nested_type": compliant, "store_decimal_as_integer": integer, "version": version}
    done, path = run(tmp_path, table, table.slice(1), **options)
    assert (done.stripes_copied, done.stripes_encoded) == (0, 1)
    assert pq.read_table(path).to_pylist() == pa.concat_tables([table, table.slice(1)]).to_pylist()
    first, found = pq.ParquetFile(tmp_path / "0.parquet"), pq.ParquetFile(path)
    assert found.schema.equals(first.schema)
    columns = found.metadata.row_group(0)
    assert [columns.column(i).path_in_schema for i in range(columns.num_columns)] == [
        first.schema.column(i).path for i in range(columns.num_columns)
    ]


def test_columns_that_arrow_would_store_in_another_way_are_copied(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for path in paths:
        pq.write_table(pa.table({"d": pa.array([bytes([0, 0, 0, 1, 0])], pa.binary(5))}), path, store_schema=False)
        # A decimal(9,2) in five bytes, where Arrow would take four.
        footer = read_footer(FS, str(path))
        fields = footer.metadata.get(2).items[1].fields
        fields.update({number: (Kind.I32, value) for number, value in ((6, 5), (7, 2), (8, 9))})
        data = serialize(footer.metadata)
        path.write_bytes(path.read_bytes()[: footer.end] + data + len(data).to_bytes(4, "little") + b"PAR1")
    done, path = join(tmp_path, paths)
    assert (done.stripes_copied, done.stripes_encoded) == (2, 0)
    assert pq.read_table(path).column("d").to_pylist() == [decimal.Decimal("2.56")] * 2


def test_int96_timestamps_stay_int96_with_every_nanosecond(tmp_path: Path) -> None:
    moments = pa.array([1_700_000_000_123_456_789, None, -1], pa.timestamp("ns"))
    done, path = run(tmp_path, *[pa.table({"t": moments})] * 2, use_deprecated_int96_timestamps=True)
    file = pq.ParquetFile(path)
    assert (done.stripes_encoded, file.schema.column(0).physical_type) == (1, "INT96")
    assert file.read().column("t").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789, None, -1] * 2


@pytest.mark.parametrize("year", [1, 1000, 9999])
def test_int96_timestamps_that_nanoseconds_cannot_hold_are_copied(tmp_path: Path, year: int) -> None:
    moment = dt.datetime(year, 1, 1, 1, 2, 3, 4)  # noqa: DTZ001
    far, near = (pa.table({"t": pa.array([m], pa.timestamp("us"))}) for m in (moment, dt.datetime(2020, 1, 1)))  # noqa: DTZ001
    done, path = run(tmp_path, near, far, near, use_deprecated_int96_timestamps=True)
    assert (done.stripes_copied, done.stripes_encoded) == (3, 0)
    found = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read().column("t").to_pylist()
    assert found == [near["t"][0].as_py(), moment, near["t"][0].as_py()]


def test_64_bit_timestamps_keep_every_nanosecond(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))})
    _, path = run(tmp_path, table, table)
    found = pq.read_table(path).column("t")
    assert (found.type, found.cast(pa.int64()).to_pylist()) == (pa.timestamp("ns"), [1_700_000_000_123_456_789] * 2)


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"id": ["x"]}),
        pa.table({"id": pa.array([1], pa.int32())}),
        pa.table({"id": [1], "added": [1]}),
        pa.table({"ID": [1]}),
        pa.table({"id": [1]}).replace_schema_metadata({"writer.time.zone": "UTC"}),
        pa.table({"id": [1]}).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}),
    ],
)
def test_files_that_readers_would_read_differently_never_become_one(tmp_path: Path, other: pa.Table) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "0.parquet")
    pq.write_table(other, tmp_path / "1.parquet")
    assert template(tmp_path / "0.parquet") != template(tmp_path / "1.parquet")
    with pytest.raises(VerificationError, match=r"1\.parquet"):
        join(tmp_path, [tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert not (tmp_path / "000000_0").exists()


def test_metadata_that_no_reader_knows_keeps_nothing_apart(tmp_path: Path) -> None:
    one, two = (pa.table({"id": [i]}).replace_schema_metadata({"job": f"{i}"}) for i in range(2))
    _, path = run(tmp_path, one, two, store_schema=False)
    assert pq.read_table(path).column("id").to_pylist() == [0, 1]


@pytest.mark.parametrize("content", [b"", b"PAR1PAR1", b"PAR1" + bytes(200) + b"PAR1", b"x" * 100])
def test_a_file_that_is_no_parquet_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.parquet").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"0\.parquet"):
        template(tmp_path / "0.parquet")
    with pytest.raises(CorruptFile, match=r"0\.parquet"):
        run(tmp_path, content)


def test_a_damaged_page_among_small_row_groups_is_corrupt(tmp_path: Path) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": list(range(1000))}), buffer, compression="gzip")
    content = bytearray(buffer.getvalue().to_pybytes())
    content[60:200] = bytes(140)
    with pytest.raises(CorruptFile, match="row group 0"):
        run(tmp_path, bytes(content), bytes(content))
    assert not (tmp_path / "000000_0").exists()


def test_a_row_group_outside_its_file_is_corrupt(tmp_path: Path) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(noise(100), buffer)
    content = buffer.getvalue().to_pybytes()
    with pytest.raises(CorruptFile, match="where none are"):
        run(tmp_path, content[:4] + content[500:])


def test_an_encrypted_file_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PARE" + bytes(100) + b"PARE")
    with pytest.raises(UnsupportedData, match="encrypted"):
        template(tmp_path / "f")


@pytest.mark.parametrize("codec", ["NONE", "SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4"])
def test_the_codec_stays(tmp_path: Path, codec: str) -> None:
    table = pa.table({"id": [1] * 100})
    done, path = run(tmp_path, table, table, compression=codec)
    expected = "UNCOMPRESSED" if codec == "NONE" else codec
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == expected
    assert done.stripes_encoded == 1


def test_without_any_file_the_table_type_makes_an_empty_one(tmp_path: Path) -> None:
    done, path = run(tmp_path)
    assert pq.read_schema(path).remove_metadata() == pa.schema([("id", pa.int32()), ("v", pa.string())])
    assert (done.rows_out, pq.read_table(path).num_rows) == (0, 0)


def test_files_without_rows_become_one_without_rows(tmp_path: Path) -> None:
    done, path = run(tmp_path, noise(0), noise(0))
    assert (done.rows_out, pq.read_table(path).num_rows) == (0, 0)


def test_facts_come_from_the_footer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "f")
    facts = parquet_facts(FS, f"{tmp_path}/f", _TYPE)
    assert (facts.rows, facts.format, facts.acid) == (3, "parquet", False)
    assert facts.template == read_footer(FS, f"{tmp_path}/f").signature


_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "i": st.none() | st.integers(-(2**31), 2**31 - 1),
    "s": st.none() | st.text(max_size=5),
    "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    "t": st.none() | st.datetimes(dt.datetime(1678, 1, 1), dt.datetime(2261, 1, 1)),  # noqa: DTZ001
}
_SCHEMA = pa.schema([("i", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.int8())), ("t", pa.timestamp("us"))])
_ROWS = st.lists(st.fixed_dictionaries(_COLUMNS), max_size=6)


@given(
    files=st.lists(_ROWS, min_size=1, max_size=4),
    group=st.integers(1, 4),
    int96=st.booleans(),
    index=st.booleans(),
    pages=st.sampled_from(["1.0", "2.0"]),
)
def test_any_files_joined_hold_all_their_rows_in_order(
    tmp_path: Path, files: list[list[dict[str, Any]]], group: int, int96: bool, index: bool, pages: str
) -> None:
    tables = [pa.Table.from_pylist(rows, schema=_SCHEMA) for rows in files]
    options = {
        "row_group_size": group,
        "use_deprecated_int96_timestamps": int96,
        "write_page_index": index,
        "data_page_version": pages,
    }
    done, path = run(tmp_path, *tables, **options)
    assert pq.read_table(path).to_pylist() == [row for rows in files for row in rows]
    assert done.rows_in == done.rows_out == sum(map(len, files))
