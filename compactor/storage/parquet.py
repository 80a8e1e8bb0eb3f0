"""Parquet files of insert-only tables: columns match by name, as Hive reads them.

Sources: Hive `DataWritableReadSupport`; timestamps are INT96, as Hive and Spark write them. What a file says of its
writer decides what its values mean (Hive `ParquetRecordReaderBase`): INT96 of parquet-mr is UTC and belongs to the
zone in `writer.time.zone`, of any other writer it is what the clock showed; dates are in the hybrid calendar unless
`writer.date.proleptic` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.errors import CorruptFile, UnsupportedData
from compactor.storage.calendar import map_leaves, to_proleptic
from compactor.storage.filesystem import FileSystem

WRITER_PROPERTIES = {b"writer.date.proleptic": b"true"}
"""Key-value metadata of every file that we write."""
_UTC = frozenset({"UTC", "Z", "GMT", "Etc/UTC", "Etc/GMT"})


def parquet_rows(fs: FileSystem, path: str) -> int:
    """Number of rows, from the footer; CorruptFile when there is none."""
    with open_parquet(fs, path) as file:
        return int(file.metadata.num_rows)


def parquet_batches(fs: FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file as batches of `schema`, a row group at a time.

    A column that the file lacks is null. UnsupportedData for a column of another type, and for a timestamp outside
    1677-2262, which pyarrow would wrap around silently.
    """
    with open_parquet(fs, path) as file:
        int96 = any(file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema)))
        for group in range(file.num_row_groups):
            if int96:
                check_timestamps(fs, path, group, schema)
            yield from _by_name(read_group(file, path, group), schema, path).to_batches()


def write_parquet(stream: pa.NativeFile, rows: pa.Table, *, codec: str) -> None:
    """`rows` as a Parquet file. codec: as pyarrow names it, SNAPPY for example."""
    rows = rows.replace_schema_metadata(WRITER_PROPERTIES)
    pq.write_table(rows, stream, compression=codec, use_deprecated_int96_timestamps=True, version="1.0")


def open_parquet(fs: FileSystem, path: str, **options: str) -> pq.ParquetFile:
    """The file with its footer read; CorruptFile when it has none. options: of pyarrow's ParquetFile."""
    try:
        return pq.ParquetFile(fs.open(path), **options)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(f"{path}: no Parquet file, or truncated: {error}") from error


def read_group(file: pq.ParquetFile, path: str, group: int) -> pa.Table:
    """One row group, dates in the proleptic calendar and timestamps as the clock showed them.

    CorruptFile when its pages are damaged, UnsupportedData for a time zone that nobody knows.
    """
    try:
        table = file.read_row_group(group)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(f"{path}: row group {group} cannot be read: {error}") from error
    if not _proleptic(file):
        table = _mapped(table, to_proleptic)
    zone = writer_zone(file)
    if zone is None or zone in _UTC:
        return table
    try:
        return _mapped(table, lambda a: map_leaves(a, _is_naive, lambda t: _clock(t, zone)))
    except pa.ArrowInvalid as error:
        raise UnsupportedData(f"{path}: timestamps of time zone {zone}: {error}") from error


def writer_zone(file: pq.ParquetFile) -> str | None:
    """Zone that the INT96 timestamps of a file belong to; '' when it does not tell, None when there are none."""
    int96 = any(file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema)))
    if not int96 or not str(file.metadata.created_by or "").startswith("parquet-mr"):
        return None
    return _properties(file).get(b"writer.time.zone", b"").decode()


def _proleptic(file: pq.ParquetFile) -> bool:
    return _properties(file).get(b"writer.date.proleptic", b"").lower() == b"true"


def _properties(file: pq.ParquetFile) -> Mapping[bytes, bytes]:
    return file.metadata.metadata or {}


def _is_naive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _mapped(table: pa.Table, convert: Callable[[pa.Array], pa.Array]) -> pa.Table:
    columns = [pa.chunked_array([convert(c) for c in column.chunks], column.type) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _clock(moments: pa.Array, zone: str) -> pa.Array:
    """What a clock in `zone` showed at moments in UTC."""
    if not zone:
        return moments
    named = zone.removeprefix("GMT").removeprefix("UTC") if zone[3:4] in ("+", "-") else zone
    return pc.local_timestamp(pc.assume_timezone(moments, "UTC").cast(pa.timestamp(moments.type.unit, named)))


def check_timestamps(fs: FileSystem, path: str, group: int, schema: pa.Schema) -> None:
    """UnsupportedData when an INT96 timestamp of a row group does not fit into nanoseconds."""
    with open_parquet(fs, path, coerce_int96_timestamp_unit="us") as file:
        try:
            _by_name(read_group(file, path, group), schema, path)
        except UnsupportedData as error:
            raise UnsupportedData(f"{error.message} (timestamps outside 1677-2262 do not fit)") from error


def _by_name(found: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    by_name: Mapping[str, int] = {name.lower(): at for at, name in enumerate(found.column_names)}
    columns: list[pa.ChunkedArray] = []
    for field in schema:
        at = by_name.get(field.name.lower())
        if at is None:
            columns.append(pa.chunked_array([pa.nulls(found.num_rows, field.type)]))
            continue
        try:
            columns.append(found.column(at).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedData(f"{path}: column {field.name} cannot be read as {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()
