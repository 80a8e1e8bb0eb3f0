"""The hash of a row depends on every value in it and on nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.jobs import row_hash
from compactor.jobs.row_hash import hash_rows

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [None, False, True]),
    "tinyint": (pa.int8(), [None, 0, -1, 127]),
    "int": (pa.int32(), [None, 0, -1, 1 << 30]),
    "bigint": (pa.int64(), [None, 0, -1, 1 << 62]),
    "float": (pa.float32(), [None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "double": (pa.float64(), [None, 0.0, -0.0, 1e300, float("nan"), float("-inf")]),
    "string": (pa.string(), [None, "", "a", "b", "ab", "ba", "a\0", "\0", "\0\0", "x" * 1000, "ä"]),
    "binary": (pa.binary(), [None, b"", b"\0", b"\0\0", b"\1", b"\1\0"]),
    "date": (pa.date32(), [None, 0, -719162, 2932896]),
    "timestamp": (pa.timestamp("ns"), [None, 0, 1, -1, 1_000_000_001]),
    "decimal": (pa.decimal128(38, 2), [None, Decimal(0), Decimal("-0.01"), Decimal("12345678901234567890123.45")]),
    "array": (pa.list_(pa.int32()), [None, [], [None], [0], [0, 0], [1, 2], [2, 1]]),
    "nested": (pa.list_(pa.list_(pa.string())), [None, [], [[]], [None], [["a"], ["b"]], [["a", "b"]], [["ab"]]]),
    "map": (pa.map_(pa.string(), pa.int32()), [None, [], [("a", 1)], [("a", None)], [("b", 1)], [("a", 1), ("b", 1)]]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": ""}, {"a": 2, "b": "x"}],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_different_values_have_different_hashes_and_equal_ones_equal_hashes_in_any_slice(name: str) -> None:
    kind, values = VALUES[name]
    whole = hash_rows(pa.array(values, kind))
    assert len(set(whole.tolist())) == len(values)
    twice = pa.array([*values[::-1], *values], kind)
    assert hash_rows(twice.slice(len(values))).tolist() == whole.tolist()
    assert hash_rows(twice.slice(1, len(values) - 1)).tolist() == whole[::-1][1:].tolist()
    chosen = np.arange(len(values)) % 2 == 0
    assert hash_rows(pa.array(values, kind).filter(pa.array(chosen))).tolist() == whole[chosen].tolist()


def test_what_lies_below_a_null_does_not_count() -> None:
    mask = pa.array([True, False])
    one = pa.StructArray.from_arrays([pa.array([1, 5])], names=["a"], mask=mask)
    other = pa.StructArray.from_arrays([pa.array([2, 5])], names=["a"], mask=mask)
    assert hash_rows(one).tolist() == hash_rows(other).tolist()


def test_every_nan_is_the_same_value() -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64)
    assert len(set(hash_rows(pa.array(bits.view(np.float64))).tolist())) == 1


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=40), st.integers(1, 30))
def test_texts_hash_alike_however_many_bytes_are_taken_at_once(values: list[bytes | None], at_once: int) -> None:
    array = pa.array(values, pa.binary())
    whole = hash_rows(array)
    before = row_hash._BYTES_AT_ONCE
    try:
        row_hash._BYTES_AT_ONCE = at_once
        assert hash_rows(array).tolist() == whole.tolist()
    finally:
        row_hash._BYTES_AT_ONCE = before


def test_an_array_of_nulls_and_an_empty_one_have_hashes() -> None:
    assert len(set(hash_rows(pa.nulls(3)).tolist())) == 1
    for kind, _ in VALUES.values():
        assert len(hash_rows(pa.array([], kind))) == 0
        assert hash_rows(pa.nulls(2, kind)).tolist() == hash_rows(pa.nulls(2)).tolist()
