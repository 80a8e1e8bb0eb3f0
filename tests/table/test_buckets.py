"""Hive's bucketing hash, against files that Hive wrote and against values computed with Hive's own classes' rules."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.acid.layout import parse_bucket
from compactor.acid.schema import parse_type
from compactor.errors import UnsupportedData
from compactor.orc.reader import OrcSource
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import open_location
from compactor.table.buckets import bucket_numbers, murmur3
from tests.fixtures.hive_tables import hive_table, unpack


def numbers(values: pa.Array, kind: str, buckets: int = 1 << 31, version: int = 2) -> list[int]:
    column = (pa.chunked_array([values]), parse_type(kind), "c")
    return bucket_numbers([column], buckets, version=version).tolist()


def test_rows_of_hive_lie_in_the_buckets_that_the_hash_says(tmp_path: Path) -> None:
    table = hive_table("acid_bucketed", unpack(tmp_path))
    fs, root = open_location(str(table.location))
    checked = 0
    for file in fs.listing(root).files:
        parsed = parse_bucket(file.name)
        if parsed is None or file.directory.startswith("delete_delta"):
            continue
        with OrcSource(fs, f"{root}/{file.path}") as source:
            for stripe in range(source.stripes):
                ids = source.rows(stripe, source.tail.row_type).field("id")
                assert set(numbers(ids, "int", buckets=4)) == {parsed.bucket}
                checked += len(ids)
    assert checked > 80


@pytest.mark.parametrize(
    ("values", "kind", "data"),
    [
        (pa.array([-7], pa.int32()), "int", b"\xff\xff\xff\xf9"),
        (pa.array([1 << 40], pa.int64()), "bigint", (1 << 40).to_bytes(8, "big")),
        (pa.array([258], pa.int16()), "smallint", b"\x01\x02"),
        (pa.array([dt.date(1970, 1, 3)]), "date", b"\x00\x00\x00\x02"),
        (pa.array(["äbcde"]), "string", "äbcde".encode()),
        (pa.array(["ab   "]), "char(5)", b"ab"),
        (pa.array([decimal.Decimal("1.50")]), "decimal(10,2)", b"\x0f"),
        (pa.array([decimal.Decimal("-1.28")]), "decimal(10,2)", b"\x80"),
    ],
)
def test_a_value_is_hashed_over_its_big_endian_bytes(values: pa.Array, kind: str, data: bytes) -> None:
    assert numbers(values, kind) == [murmur3(data) & 0x7FFFFFFF]


def test_whole_words_are_hashed_alike_one_by_one_and_all_at_once() -> None:
    longs = np.random.default_rng(7).integers(-(1 << 63), 1 << 63, 200, dtype=np.int64)
    expected = [murmur3(int(v).to_bytes(8, "big", signed=True)) & 0x7FFFFFFF for v in longs]
    assert numbers(pa.array(longs), "bigint") == expected


def test_null_hashes_to_zero_and_columns_combine_with_31() -> None:
    columns = [
        (pa.chunked_array([pa.array([1, None], pa.int8())]), parse_type("tinyint"), "a"),
        (pa.chunked_array([pa.array([True, None])]), parse_type("boolean"), "b"),
    ]
    assert bucket_numbers(columns, 1 << 31).tolist() == [32, 0]


def test_version_1_is_javas_hash_code() -> None:
    assert numbers(pa.array(["ab", None]), "string", version=1) == [31 * ord("a") + ord("b"), 0]
    assert numbers(pa.array([(1 << 32) + 5]), "bigint", version=1) == [4]


@pytest.mark.parametrize(
    ("kind", "value", "version_1", "version_2"),
    [
        ("tinyint", -128, -128, -128),
        ("smallint", 300, 300, 2107031704),
        ("int", 300_000, 300000, -678663480),
        ("bigint", 300_000_000_000, -647710651, -888935297),
        ("float", 12.34, 1095069860, -381747602),
        ("float", float("nan"), 2143289344, -480354314),
        ("float", float("-inf"), -8388608, -1433270801),
        ("double", 12.34, 986311098, -2070733568),
        ("double", float("nan"), 2146959360, 1138026565),
        ("string", "", 0, -965378730),
        ("string", "test string", -318923937, -138301454),
        ("string", "\u5f3a\u5927\u7684Trino\u5f15\u64ce", 1688501507, 1784416344),
        ("varchar(15)", "test string", -189841218, -138301454),
        ("date", dt.date(1950, 11, 19), -6983, -431619185),
        ("array<smallint>", [5, 8, 13], 5066, -905011156),
        ("array<array<bigint>>", [[10, 20], [-10, -20], [None]], 326368, 611324477),
        ("map<string,bigint>", [("key", 123), ("key2", 123456789), ("key3", -123456)], 127880789, -1910999650),
    ],
)
def test_hashes_are_those_that_hives_own_classes_compute(
    kind: str, value: object, version_1: int, version_2: int
) -> None:
    values = pa.array([value], arrow_type(parse_type(kind)))
    assert numbers(values, kind, version=1) == [version_1 & 0x7FFFFFFF]
    assert numbers(values, kind) == [version_2 & 0x7FFFFFFF]


def test_a_type_without_a_known_hash_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedData, match="column c"):
        numbers(pa.array([b"x"]), "binary")
