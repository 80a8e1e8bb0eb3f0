"""Parquet files of insert-only tables: columns match by name, as Hive reads them.

Source: Hive `DataWritableReadSupport`; timestamps are INT96, as Hive and Spark write them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.errors import CorruptFile, UnsupportedData
from compactor.storage.filesystem import FileSystem


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
    pq.write_table(rows, stream, compression=codec, use_deprecated_int96_timestamps=True, version="1.0")


def open_parquet(fs: FileSystem, path: str, **options: str) -> pq.ParquetFile:
    """The file with its footer read; CorruptFile when it has none. options: of pyarrow's ParquetFile."""
    try:
        return pq.ParquetFile(fs.open(path), **options)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(f"{path}: no Parquet file, or truncated: {error}") from error


def read_group(file: pq.ParquetFile, path: str, group: int) -> pa.Table:
    """One row group; CorruptFile when its pages are damaged."""
    try:
        return file.read_row_group(group)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(f"{path}: row group {group} cannot be read: {error}") from error


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
