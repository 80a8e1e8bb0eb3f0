"""Hive types as ORC's flat type list and as Arrow types.

Sources: ORC v1 specification "Types" (pre-order numbering); what pyarrow's ORC reader makes of each type
(char and varchar come back as string, a union as a sparse union).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from compactor.acid.schema import HiveType
from compactor.errors import BeyondArrow, CorruptFile
from compactor.orc import orc_proto_pb2 as pb

_KINDS: dict[str, pb.Type.Kind] = {
    "boolean": pb.Type.BOOLEAN,
    "tinyint": pb.Type.BYTE,
    "smallint": pb.Type.SHORT,
    "int": pb.Type.INT,
    "bigint": pb.Type.LONG,
    "float": pb.Type.FLOAT,
    "double": pb.Type.DOUBLE,
    "string": pb.Type.STRING,
    "binary": pb.Type.BINARY,
    "timestamp": pb.Type.TIMESTAMP,
    "timestamp with local time zone": pb.Type.TIMESTAMP_INSTANT,
    "date": pb.Type.DATE,
    "decimal": pb.Type.DECIMAL,
    "char": pb.Type.CHAR,
    "varchar": pb.Type.VARCHAR,
    "array": pb.Type.LIST,
    "map": pb.Type.MAP,
    "struct": pb.Type.STRUCT,
    "uniontype": pb.Type.UNION,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("ns"),
    "timestamp with local time zone": pa.timestamp("ns", tz="UTC"),
    "date": pa.date32(),
}

ACID_KEY_TYPES: tuple[tuple[str, HiveType], ...] = (
    ("operation", HiveType("int")),
    ("originalTransaction", HiveType("bigint")),
    ("bucket", HiveType("int")),
    ("rowId", HiveType("bigint")),
    ("currentTransaction", HiveType("bigint")),
)
_MAX_PRECISION = 38


def acid_type(row_type: HiveType) -> HiveType:
    """The struct of an ACID file around the table's columns (OrcRecordUpdater.createEventObjectInspector)."""
    return HiveType("struct", children=(*ACID_KEY_TYPES, ("row", row_type)))


def to_orc(hive_type: HiveType) -> list[pb.Type]:
    """The flat, pre-order type list of a footer."""
    types: list[pb.Type] = []
    _flatten(hive_type, types)
    return types


def _flatten(hive_type: HiveType, types: list[pb.Type]) -> int:
    node = pb.Type(kind=_KINDS[hive_type.kind])
    index = len(types)
    types.append(node)
    if hive_type.kind == "decimal":
        node.precision, node.scale = hive_type.precision, hive_type.scale
    if hive_type.length:
        node.maximum_length = hive_type.length
    for name, child in hive_type.children:
        if hive_type.kind == "struct":
            node.field_names.append(name)
        node.subtypes.append(_flatten(child, types))
    return index


def from_orc(types: Sequence[pb.Type], index: int = 0) -> HiveType:
    """The Hive type of the sub-tree at `index`; CorruptFile when the list is no tree."""
    if index >= len(types):
        raise CorruptFile(f"the ORC footer refers to type {index} of {len(types)}")
    node = types[index]
    kind = _NAMES[node.kind]
    if any(child <= index for child in node.subtypes):
        raise CorruptFile(f"the ORC footer's type {index} refers back to itself")
    children = [from_orc(types, child) for child in node.subtypes]
    match kind:
        case "struct":
            names: Sequence[str] = node.field_names
        case "array":
            names = ("item",)
        case "map":
            names = ("key", "value")
        case _:
            names = [str(i) for i in range(len(children))]
    if kind == "decimal" and not 1 <= node.precision <= _MAX_PRECISION:
        raise CorruptFile(f"the ORC footer's type {index} is a decimal of precision {node.precision}")
    if not all(isinstance(name, str) for name in names):
        # protobuf hands out bytes where the text is not UTF-8.
        raise CorruptFile(f"the ORC footer's type {index} has names that are no text: {list(names)}")
    if len(names) != len(children):
        raise CorruptFile(f"the ORC footer's type {index} has {len(children)} children and {len(names)} names")
    return HiveType(
        kind,
        length=node.maximum_length,
        precision=node.precision if kind == "decimal" else 0,
        scale=node.scale if kind == "decimal" else 0,
        children=tuple(zip(names, children, strict=True)),
    )


def arrow_type(hive_type: HiveType) -> pa.DataType:
    """The Arrow type that pyarrow's ORC reader gives a column of this type; BeyondArrow for a union."""
    if hive_type.kind in _ARROW:
        return _ARROW[hive_type.kind]
    children = [arrow_type(child) for _, child in hive_type.children]
    match hive_type.kind:
        case "decimal":
            return pa.decimal128(hive_type.precision, hive_type.scale)
        case "array":
            return pa.list_(pa.field("item", children[0]))
        case "map":
            return pa.map_(children[0], children[1])
        case "struct":
            names = [name for name, _ in hive_type.children]
            return pa.struct([pa.field(n, t) for n, t in zip(names, children, strict=True)])
        case _:
            raise BeyondArrow(f"values of type {hive_type} cannot be re-encoded")


def without_unions(hive_type: HiveType) -> HiveType:
    """`hive_type` with a struct for every union: the same columns in a file, and a type that Arrow can hold nulls of."""
    kind = "struct" if hive_type.kind == "uniontype" else hive_type.kind
    return replace(hive_type, kind=kind, children=tuple((name, without_unions(c)) for name, c in hive_type.children))


def acid_arrow_schema(row_type: HiveType) -> pa.Schema:
    """Schema of a batch of ACID events; `row` is null in a delete."""
    fields = [pa.field(name, arrow_type(child)) for name, child in acid_type(row_type).children]
    return pa.schema(fields)
