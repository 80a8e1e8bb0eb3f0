"""Null structs around valid values: what Arrow hides, an ORC file must not have."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor.acid.schema import HiveType, parse_type
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.nulls import hide_in_nulls
from compactor.orc.types import arrow_type

_POINT = "struct<x:int,l:array<int>,m:map<string,int>,s:string>"
_VALUE = {"x": 5, "l": [1, 2], "m": [("k", 3)], "s": "five"}


def written(rows: pa.Array, row_type: HiveType) -> list[Any]:
    """What pyarrow reads from a file with `rows` as the struct `row` of its only column."""
    buffer = io.BytesIO()
    out = FileAssembler(
        pa.PythonFile(buffer, mode="w"),
        Template.fresh(HiveType("struct", children=(("row", row_type),)), compression=pb.ZLIB),
    )
    out.append(pa.table({"row": rows}), None)
    out.finish(None)
    buffer.seek(0)
    found: list[Any] = orc.ORCFile(buffer).read().column("row").to_pylist()
    return found


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        (f"struct<p:{_POINT}>", [{"p": None}, {"p": _VALUE}, {"p": None}, {"p": _VALUE}]),
        (f"struct<p:struct<q:{_POINT}>>", [{"p": {"q": None}}, {"p": None}, {"p": {"q": _VALUE}}]),
        (f"struct<p:array<{_POINT}>>", [{"p": [None, _VALUE]}, {"p": None}, {"p": [_VALUE, None, _VALUE]}]),
        (f"struct<p:map<string,{_POINT}>>", [{"p": [("a", None), ("b", _VALUE)]}, {"p": None}, {"p": [("c", _VALUE)]}]),
        (f"struct<p:{_POINT}>", [None, {"p": None}, {"p": _VALUE}]),
    ],
)
def test_values_after_a_null_struct_stay_where_they_are(columns: str, values: list[Any]) -> None:
    row_type = parse_type(columns)
    rows = pa.array(values, arrow_type(row_type))
    assert written(rows, row_type) == values
    assert written(rows[1:], row_type) == values[1:]


def test_values_hidden_by_a_null_struct_are_not_written() -> None:
    row_type = parse_type("struct<p:struct<x:int,l:array<int>>>")
    inner = pa.StructArray.from_arrays(
        [pa.array([7, 5], pa.int32()), pa.array([[7, 8], [5]], pa.list_(pa.int32()))],
        fields=list(arrow_type(row_type).field(0).type),
        mask=pa.array([True, False]),
    )
    rows = pa.StructArray.from_arrays([inner], names=["p"])
    assert written(rows, row_type) == [{"p": None}, {"p": {"x": 5, "l": [5]}}]


def test_a_table_without_structs_stays_as_it_is() -> None:
    table = pa.table({"a": pa.array([1, None]), "l": pa.array([[1], None])})
    assert hide_in_nulls(table).equals(table)


def test_a_slice_of_a_struct_with_nulls_is_written_from_its_own_beginning() -> None:
    row_type = parse_type("struct<x:int,s:string>")
    values = [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}, {"x": 3, "s": "c"}, None, {"x": 5, "s": "e"}]
    rows = pa.array(values, arrow_type(row_type))
    assert written(rows[2:], row_type) == values[2:]
    assert written(rows[1:4], row_type) == values[1:4]
