"""Values of a table's columns: the table's row type, its file format, and partition values as text and as Arrow.

Sources: Hive `HiveStringUtils`, `ObjectInspectorConverters` (partition values are kept as text),
`FileUtils.makePartName`.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.partition_name import DEFAULT_PARTITION
from compactor.acid.schema import STRINGS, HiveType, struct_of
from compactor.errors import UnsupportedData, UsageError
from compactor.metastore.catalog import Column, Table
from compactor.orc.types import arrow_type


class FileFormat(enum.Enum):
    """How the data files of a table are encoded."""

    ORC = "orc"
    """The only format of full-ACID tables."""
    PARQUET = "parquet"
    """Insert-only tables may use it."""


def file_format(table: Table, input_format: str | None = None) -> FileFormat:
    """From an input format, a partition's or by default the table's; UnsupportedData for formats such as text."""
    stored_as = input_format or table.input_format or ""
    name = stored_as.lower()
    if "orc" in name:
        return FileFormat.ORC
    if "parquet" in name and not table.is_full_acid:
        return FileFormat.PARQUET
    raise UnsupportedData(
        f"table {table.name} is stored as {stored_as}",
        hint="ORC tables, and insert-only Parquet tables, can be read and written",
    )


def table_type(columns: Sequence[Column]) -> HiveType:
    """Struct type of columns of the catalogue."""
    return struct_of(tuple((c.name, c.type) for c in columns))


def partition_array(value: str, kind: HiveType, count: int, column: str) -> pa.Array:
    """`count` times a partition value, typed.

    The default partition is null, except in a text column: there Hive 4 answers with the name itself.
    """
    wanted = arrow_type(kind)
    if value == DEFAULT_PARTITION and kind.kind not in STRINGS:
        return pa.nulls(count, wanted)
    try:
        scalar = pa.scalar(value, pa.string()) if kind.kind in STRINGS else pc.cast(pa.scalar(value), wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedData(f"partition value {column}={value!r} is no {kind}: {error}") from error
    return pa.repeat(scalar, count)


def partition_text(value: object, column: str) -> str:
    """The text that Hive keeps for a partition value; '' for null. UsageError for types that cannot partition."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 1e7:
            return f"{value:.1f}"
        case dt.datetime():
            fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
            return f"{value:%Y-%m-%d %H:%M:%S}{fraction}"
        case bytes() | list() | dict():
            raise UsageError(f"column {column}: a value of type {type(value).__name__} cannot be a partition value")
        case _:
            return str(value)
