"""Nulls of a struct as nulls of its fields, as an ORC writer needs them.

In Arrow a null struct may hide valid values of its fields; in ORC it has none, and every later value of the field
would belong to the row before. ORC C++'s Arrow adapter hides them only in a struct that is no field of another one
without nulls (`NormalizeArray`), which in an ACID file the struct `row` is. And where a struct has nulls it forgets
that a field may be a slice, and writes the values from the field's beginning.
"""

from __future__ import annotations

import pyarrow as pa


def hide_in_nulls(table: pa.Table) -> pa.Table:
    """`table`, in which no field of a null struct, at any depth, has a value, and no field is a slice."""
    columns = [
        pa.chunked_array([_hidden(chunk) for chunk in column.chunks], column.type) if _nests(column.type) else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _hidden(array: pa.Array) -> pa.Array:
    kind = array.type
    if array.offset and not pa.types.is_struct(kind):
        # Copies. Arrow builds no list or map from the offsets of a slice and a mask either.
        array = pa.concat_arrays([array])
    if not _nests(kind):
        return array
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [_hidden(field) for field in array.flatten()], fields=list(kind), mask=_mask(array)
        )
    if pa.types.is_map(kind):
        keys, items = _hidden(array.keys), _hidden(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_mask(array))
    return pa.ListArray.from_arrays(array.offsets, _hidden(array.values), type=kind, mask=_mask(array))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _nests(kind: pa.DataType) -> bool:
    """Is there a struct inside?"""
    return pa.types.is_struct(kind) or any(_nests(kind.field(i).type) for i in range(kind.num_fields))
