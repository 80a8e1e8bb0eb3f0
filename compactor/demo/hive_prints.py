"""Arrow values as Hive's JDBC driver prints them: the form in which the demo's expected rows are kept."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa


def printed_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of a table; nested types as JSON, bytes as hexadecimal, decimals and times as text."""
    columns: list[list[Any]] = []
    for column in table.columns:
        # Python's datetime has no nanoseconds.
        values = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        columns.append([printed(value, column.type) for value in values])
    return list(zip(*columns, strict=True))


def printed(value: Any, kind: pa.DataType) -> Any:
    """One value; a timestamp comes as nanoseconds since 1970."""
    match value:
        case decimal.Decimal():
            return format(value, "f")
        case dt.date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case list() | dict():
            return json.dumps(_plain(value, kind), separators=(",", ":"))
        case int() if pa.types.is_timestamp(kind):
            seconds, nanos = divmod(value, 1_000_000_000)
            moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(seconds=seconds)
            return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{nanos:09d}".rstrip("0") if nanos else "")
        case _:
            return value


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {k: _plain(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind):
        return [_plain(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {f.name: _plain(value[f.name], f.type) for f in kind}
    return value
