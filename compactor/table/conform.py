"""Bringing rows that are to be written into the table's exact types, and cutting them by partition.

Nothing is lost silently: a value that does not fit its column is a UsageError that names the column. Text for
char(n) is padded as Hive stores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.partition_name import DEFAULT_PARTITION
from compactor.acid.schema import HiveType
from compactor.errors import UsageError
from compactor.metastore.catalog import Table
from compactor.orc.types import arrow_type
from compactor.table.values import partition_text, table_type


def conformed(rows: pa.Table, wanted: Sequence[tuple[str, HiveType]], *, of: str) -> pa.Table:
    """`rows` with exactly the wanted columns, in that order and with their Arrow types.

    Columns match by name, without regard to case. of: what is written to, for messages. Raises UsageError for a
    missing, doubled or unknown column and for a value that does not fit.
    """
    given: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if name.lower() in given:
            raise UsageError(f"column {name} is given twice for {of}")
        given[name.lower()] = column
    names = [name for name, _ in wanted]
    if missing := [name for name in names if name not in given]:
        raise UsageError(f"the rows for {of} lack column {', '.join(missing)}", hint=f"expected: {', '.join(names)}")
    if unknown := [name for name in given if name not in names]:
        raise UsageError(f"{of} has no column {', '.join(unknown)} to write", hint=f"expected: {', '.join(names)}")
    columns = [conformed_column(given[name], kind, name) for name, kind in wanted]
    fields = [pa.field(name, arrow_type(kind)) for name, kind in wanted]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def conformed_column(column: pa.ChunkedArray, kind: HiveType, name: str) -> pa.ChunkedArray:
    """A column as `kind`; UsageError naming it when a value does not fit."""
    wanted = arrow_type(kind)
    try:
        if kind.kind == "decimal" and pa.types.is_integer(column.type):
            # Arrow wants room for every value of the integer type before it looks at the values.
            column = pc.cast(column, pa.decimal256(19 + kind.scale + 1, kind.scale))
        converted = column if column.type == wanted else pc.cast(column, wanted, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"column {name}: values of type {column.type} do not fit {kind}: {error}") from error
    return _fitted_text(converted, kind, name) if kind.kind in ("char", "varchar") else converted


def single_value(value: Any, kind: HiveType, count: int, name: str) -> pa.ChunkedArray:
    """`count` times a Python value as a column of type `kind`; UsageError naming the column when it does not fit."""
    try:
        one = pa.array([value], arrow_type(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise UsageError(f"column {name}: {value!r} does not fit {kind}: {error}") from error
    fitted = _fitted_text(pa.chunked_array([one]), kind, name) if kind.length else pa.chunked_array([one])
    return pa.chunked_array([fitted.take(pa.array([0] * count, pa.int64())).combine_chunks()], type=one.type)


def by_partition(rows: pa.Table, table: Table, static: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """(partition values, rows without partition columns) for every partition that occurs in `rows`.

    rows: as `conformed` to the columns of `writable_columns`. static: column to value. '' stands for null.
    """
    columns = [c.name for c in table.partition_columns]
    dynamic = [name for name in columns if name not in static]
    data = rows.select([c.name for c in table.columns])
    if not dynamic:
        yield tuple(static[name] for name in columns), data
        return
    texts = {name: pa.array(_texts(rows.column(name), name), pa.string()) for name in dynamic}
    positions = pa.table({**texts, "position": pa.array(range(rows.num_rows), pa.int64())})
    groups = positions.group_by(dynamic, use_threads=False).aggregate([("position", "list")])
    for group in groups.to_pylist():
        values = {**static, **{name: group[name] for name in dynamic}}
        yield tuple(values[name] for name in columns), data.take(pa.array(group["position_list"], pa.int64()))


def writable_columns(table: Table, static: Mapping[str, str]) -> list[tuple[str, HiveType]]:
    """(name, type) of what the rows of an insert hold: the table's columns, then its dynamic partition columns.

    UsageError when `static` names a column that is no partition column.
    """
    partition = table_type(table.partition_columns).children
    if unknown := set(static) - {name for name, _ in partition}:
        raise UsageError(
            f"table {table.name} is not partitioned by {', '.join(sorted(unknown))}",
            hint=f"its partition columns are: {', '.join(name for name, _ in partition) or 'none'}",
        )
    return [*table_type(table.columns).children, *((n, t) for n, t in partition if n not in static)]


def static_values(table: Table, partition: Mapping[str, object] | None) -> dict[str, str]:
    """Column to text of PARTITION (p='x', …); null and the default partition become ''."""
    values = {name.lower(): partition_text(value, name) for name, value in (partition or {}).items()}
    return {name: "" if text == DEFAULT_PARTITION else text for name, text in values.items()}


def _texts(column: pa.ChunkedArray, name: str) -> list[str]:
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us"))
    texts = {value: partition_text(value, name) for value in pc.unique(column).to_pylist()}
    return ["" if texts[v] == DEFAULT_PARTITION else texts[v] for v in column.to_pylist()]


def _fitted_text(column: pa.ChunkedArray, kind: HiveType, name: str) -> pa.ChunkedArray:
    trimmed = pc.utf8_rtrim(column, " ") if kind.kind == "char" else column
    longest = pc.max(pc.utf8_length(trimmed)).as_py()
    if longest is not None and longest > kind.length:
        raise UsageError(f"column {name}: a text of {longest} characters does not fit {kind}")
    return pc.utf8_rpad(trimmed, kind.length, " ") if kind.kind == "char" else column
