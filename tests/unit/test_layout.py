"""Names of the ACID format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.layout import (
    Base,
    BucketName,
    Delta,
    DeltaKind,
    base_name,
    bucket_file,
    decode_bucket,
    delta_name,
    encode_bucket,
    flush_length_file,
    insert_only_file,
    is_hidden,
    parse_bucket,
    parse_directory,
)
from compactor.errors import UnparsableName

_INSERT, _DELETE = DeltaKind.INSERT, DeltaKind.DELETE


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("base_0000005", {"write_id": 5}),
        ("base_5", {"write_id": 5}),
        ("base_0000005_v0000123", {"write_id": 5, "visibility_txn": 123}),
        ("base_12345678901", {"write_id": 12345678901}),
    ],
)
def test_a_base_directory_parses(name: str, entry: dict[str, int]) -> None:
    assert parse_directory(name) == Base(name=name, **entry)


@pytest.mark.parametrize(
    ("name", "kind", "low", "high", "statement", "txn"),
    [
        ("delta_0000001_0000005", _INSERT, 1, 5, -1, 0),
        ("delta_0000003_0000003_0000", _INSERT, 3, 3, 0, 0),
        ("delta_0000003_0000003_0012", _INSERT, 3, 3, 12, 0),
        ("delta_0000001_0000005_v0000123", _INSERT, 1, 5, -1, 123),
        ("delete_delta_0000003_0000003_0001_v0000009", _DELETE, 3, 3, 1, 9),
        ("delete_delta_0000001_0000005", _DELETE, 1, 5, -1, 0),
        ("delta_10000001_10000001_0001", _INSERT, 10000001, 10000001, 1, 0),
    ],
)
def test_a_delta_directory_parses(name: str, kind: DeltaKind, low: int, high: int, statement: int, txn: int) -> None:
    assert parse_directory(name) == Delta(
        name=name, kind=kind, min_write_id=low, max_write_id=high, statement_id=statement, visibility_txn=txn
    )


@given(
    st.sampled_from(DeltaKind),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(-1, 4095),
    st.integers(0, 10**9),
)
def test_a_delta_name_reads_back(kind: DeltaKind, low: int, width: int, statement: int, txn: int) -> None:
    name = delta_name(kind, low, low + width, statement_id=statement, visibility_txn=txn)
    assert parse_directory(name) == Delta(
        name=name,
        kind=kind,
        min_write_id=low,
        max_write_id=low + width,
        statement_id=statement,
        visibility_txn=txn,
    )


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_base_name_reads_back(write_id: int, txn: int) -> None:
    name = base_name(write_id, txn)
    assert parse_directory(name) == Base(name=name, write_id=write_id, visibility_txn=txn)


def test_names_are_padded_as_hive_pads_them() -> None:
    assert base_name(5, 123) == "base_0000005_v0000123"
    assert delta_name(_INSERT, 1, 5) == "delta_0000001_0000005"
    assert delta_name(_DELETE, 3, 3, statement_id=0) == "delete_delta_0000003_0000003_0000"
    assert bucket_file(3) == "bucket_00003"
    assert insert_only_file(3) == "000003_0"
    assert flush_length_file("bucket_00003") == "bucket_00003_flush_length"


@pytest.mark.parametrize(
    "name",
    [
        "delta_7_3",
        "base_",
        "base_x",
        "base_5_123",
        "base_5_v",
        "base_0000005_v1_v2",
        "delta_5",
        "delta_5_6_7_8",
        "delta_0000001_0000001_0000.bak",
        "delete_delta_1_x",
        "delta_-1_5",
        "base_٣",
        "delta_１_２",
    ],
)
def test_a_name_that_only_looks_like_an_acid_directory_is_an_error(name: str) -> None:
    with pytest.raises(UnparsableName, match="'"):
        parse_directory(name)


@pytest.mark.parametrize(
    "name", ["", "000000_0", "1", "dt=2024-01-01", "_tmp", ".hive-staging_1", "basement", "deltas"]
)
def test_another_directory_is_none_of_ours(name: str) -> None:
    assert parse_directory(name) is None


@pytest.mark.parametrize(
    ("name", "bucket", "attempt", "copy", "legacy"),
    [
        ("bucket_00000", 0, None, 0, False),
        ("bucket_00012_0", 12, 0, 0, False),
        ("bucket_123456_3", 123456, 3, 0, False),
        ("000000_0", 0, None, 0, True),
        ("000007_1000", 7, None, 0, True),
        ("000001_0_copy_12", 1, None, 12, True),
        ("000001_0.snappy", 1, None, 0, True),
    ],
)
def test_a_data_file_parses(name: str, bucket: int, attempt: int | None, copy: int, legacy: bool) -> None:
    assert parse_bucket(name) == BucketName(name=name, bucket=bucket, attempt=attempt, copy=copy, legacy=legacy)


@pytest.mark.parametrize(
    "name", ["bucket_0", "bucket_00000_flush_length", "_orc_acid_version", "part-0000.orc", "bucket_٠٠٠٠٠", "000000"]
)
def test_a_file_of_another_name_has_no_bucket(name: str) -> None:
    assert parse_bucket(name) is None


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("_tmp.x", True), (".x.crc", True), ("-tmp.delta_0000001_0000001_0000", True), ("bucket_00000", False)],
)
def test_scratch_and_side_files_are_hidden(name: str, hidden: bool) -> None:
    assert is_hidden(name) is hidden


@given(st.integers(0, 4095), st.integers(-1, 4095))
def test_an_encoded_bucket_reads_back(bucket: int, statement: int) -> None:
    assert decode_bucket(encode_bucket(bucket, statement)) == bucket


def test_buckets_are_encoded_as_hive_encodes_them() -> None:
    assert encode_bucket(0) == 536870912
    assert encode_bucket(0, 1) == 536870913
    assert encode_bucket(1, 0) == 536936448
    assert decode_bucket(7) == 7


@pytest.mark.parametrize(("bucket", "statement"), [(-1, 0), (4096, 0), (0, 4096), (0, -2)])
def test_a_bucket_beyond_its_bits_is_refused(bucket: int, statement: int) -> None:
    with pytest.raises(ValueError, match="not in"):
        encode_bucket(bucket, statement)
