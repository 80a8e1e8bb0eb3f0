"""Thrift's compact protocol: what is read and written again is the same, byte for byte."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.storage.thrift import Kind, Struct, ThriftError, ThriftList, ThriftMap, parse, serialize

_INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


_PLAIN: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TRUE: st.booleans(),
    Kind.FALSE: st.booleans(),
    Kind.BYTE: st.integers(0, 255),
    Kind.I16: _INTEGERS,
    Kind.I32: _INTEGERS,
    Kind.I64: _INTEGERS,
    Kind.DOUBLE: st.binary(min_size=8, max_size=8),
    Kind.UUID: st.binary(min_size=16, max_size=16),
    Kind.BINARY: st.binary(max_size=200),
}


def _values(kind: Kind, depth: int) -> st.SearchStrategy[Any]:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is Kind.STRUCT:
        return _structs(depth - 1)
    if kind is Kind.MAP:
        return _elements(depth).flatmap(
            lambda k: st.lists(st.tuples(_items(k, depth), _INTEGERS), min_size=1, max_size=4).map(
                lambda v: ThriftMap(k, Kind.I32, v)
            )
        )
    return _elements(depth).flatmap(lambda k: st.lists(_items(k, depth), max_size=20).map(lambda v: ThriftList(k, v)))


def _elements(depth: int) -> st.SearchStrategy[Kind]:
    return st.sampled_from([k for k in Kind if depth > 0 or k in _PLAIN])


def _items(kind: Kind, depth: int) -> st.SearchStrategy[Any]:
    return st.integers(0, 2) if kind in (Kind.TRUE, Kind.FALSE) else _values(kind, depth - 1)


def _structs(depth: int) -> st.SearchStrategy[Struct]:
    fields = _elements(depth).flatmap(lambda k: _values(k, depth).map(lambda v: (k, v)))
    return st.dictionaries(st.integers(-(1 << 15), (1 << 15) - 1), fields, max_size=5).map(_as_read)


def _as_read(fields: dict[int, tuple[Kind, Any]]) -> Struct:
    """A reader finds a boolean's value in its kind."""
    bools = (Kind.TRUE, Kind.FALSE)
    return Struct({n: (Kind.TRUE if v else Kind.FALSE, v) if k in bools else (k, v) for n, (k, v) in fields.items()})


@given(struct=_structs(3), rest=st.binary(max_size=5))
def test_any_struct_survives(struct: Struct, rest: bytes) -> None:
    data = serialize(struct)
    assert parse(data + rest) == (struct, len(data))


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"version": "1.0"}, {"compression": "zstd"}])
def test_a_footer_is_written_as_it_was_read(options: dict[str, Any]) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1, None], "b": [["x"], []], "c": [{"d": 1.5}, None]})
    pq.write_table(table.replace_schema_metadata({"k": "v"}), sink, row_group_size=1, **options)
    content = sink.getvalue().to_pybytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    found, length = parse(footer)
    assert (serialize(found), length) == (footer, len(footer))


@given(data=st.binary(max_size=60))
def test_what_is_no_thrift_is_an_error_of_its_own(data: bytes) -> None:
    try:
        parse(data)
    except ThriftError:
        return


def test_a_struct_that_ends_too_early_is_an_error() -> None:
    data = serialize(Struct({1: (Kind.BINARY, b"text")}))
    for length in range(len(data)):
        with pytest.raises(ThriftError):
            parse(data[:length])
