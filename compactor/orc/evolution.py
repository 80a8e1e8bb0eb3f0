"""Schema evolution on Arrow arrays: missing fields are null, narrow ones widen, texts are cut and padded.

Sources: ORC `SchemaEvolution` with positional columns, as Hive reads ACID files; `StringGroupFromStringGroupTreeReader`
and `CharTreeWriter`. Which conversions are allowed is
decided by `compactor.acid.schema.can_read_as`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.schema import COLUMN, STRINGS, HiveType, below, can_read_as, matching_field
from compactor.errors import UnsupportedData
from compactor.orc.types import arrow_type


def converted(array: pa.Array, found: HiveType, wanted: HiveType, level: int = COLUMN) -> pa.Array:
    """`array`, whose file type is `found`, as `wanted`; UnsupportedData when values could be lost.

    level: as of `can_read_as`; a column's by default.
    """
    if found == wanted:
        return array
    inside = below(level, found.kind)
    if not can_read_as(found, wanted, level):
        raise UnsupportedData(f"a column of type {found} cannot be rewritten as {wanted}")
    match wanted.kind:
        case "struct":
            return _struct(array, found, wanted, level)
        case "array":
            items = converted(array.values, found.children[0][1], wanted.children[0][1], inside)
            return pa.ListArray.from_arrays(array.offsets, items, mask=_nulls(array))
        case "map":
            keys = converted(array.keys, found.children[0][1], wanted.children[0][1], inside)
            values = converted(array.items, found.children[1][1], wanted.children[1][1], inside)
            return pa.MapArray.from_arrays(array.offsets, keys, values, mask=_nulls(array))
        case "string" | "varchar" | "char" if found.kind in STRINGS:
            return _text(array, found, wanted)
        case _:
            return pc.cast(array, arrow_type(wanted), safe=True)


def _text(array: pa.StringArray, found: HiveType, wanted: HiveType) -> pa.StringArray:
    """Cut to the length of the wanted type, in characters; a char is stored padded."""
    # ORC's CharTreeReader, through which Hive converts a char, trims it.
    text = pc.utf8_rtrim(array, characters=" ") if found.kind == "char" else array
    if wanted.kind == "string":
        return text
    cut = pc.utf8_slice_codeunits(text, start=0, stop=wanted.length)
    return pc.utf8_rpad(cut, width=wanted.length, padding=" ") if wanted.kind == "char" else cut


def _struct(array: pa.StructArray, found: HiveType, wanted: HiveType, level: int) -> pa.StructArray:
    children: list[pa.Array] = []
    fields: list[pa.Field] = []
    for position, (name, child) in enumerate(wanted.children):
        at = matching_field(found, wanted, position, level)
        if at is None:
            children.append(pa.nulls(len(array), arrow_type(child)))
        else:
            children.append(converted(array.field(at), found.children[at][1], child, below(level, "struct")))
        fields.append(pa.field(name, children[-1].type))
    return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(array))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
