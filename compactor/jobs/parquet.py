"""Joining Parquet files of an insert-only table, row group by row group.

Columns match by name, as Hive reads Parquet. INT96 timestamps stay INT96, with every nanosecond; one that a 64-bit
count of nanoseconds cannot hold (before 1677, after 2262) is UnsupportedData, never a wrapped-around value. So is one
that parquet-mr wrote in a zone other than UTC: Hive would take it for a time of day if another library wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.acid.planning import FileFacts, PlanItem
from compactor.acid.schema import HiveType
from compactor.errors import UnsupportedData
from compactor.orc.rewrite import ENCODE_BYTES, ItemResult
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import FileSystem
from compactor.storage.parquet import WRITER_PROPERTIES, check_rewritable, check_timestamps, open_parquet, read_group


def parquet_facts(fs: FileSystem, path: str, table_type: HiveType) -> FileFacts:
    """Row count from the footer; the columns are checked by name when the files are joined."""
    with open_parquet(fs, path) as file:
        return FileFacts(rows=file.metadata.num_rows, row_type=table_type, acid=False, format="parquet")


def run_parquet_item(fs: FileSystem, root: str, item: PlanItem, row_type: HiveType) -> ItemResult:
    """Write the output file of an insert-only Parquet item below `root`. Memory: one row group and `ENCODE_BYTES`.

    row_type: columns of the file when there is no source to take them from. Raises CorruptFile, UnsupportedData.
    """
    paths = [f"{root}/{s.path}" for s in item.sources]
    schema, int96 = _common_schema(fs, paths) if paths else (_empty_schema(row_type), False)
    rows = groups = 0
    with fs.write_atomically(f"{root}/{item.output}") as stream:
        with pq.ParquetWriter(
            stream,
            schema.with_metadata(WRITER_PROPERTIES),
            compression=_codec(fs, paths),
            use_deprecated_int96_timestamps=int96,
            version="2.6",
        ) as writer:
            pending: list[pa.Table] = []
            for path in paths:
                with open_parquet(fs, path) as file:
                    for group in range(file.num_row_groups):
                        if int96:
                            check_timestamps(fs, path, group, schema)
                        table = _aligned(read_group(file, path, group), schema, path)
                        rows += table.num_rows
                        pending.append(table)
                        if sum(t.nbytes for t in pending) >= ENCODE_BYTES:
                            writer.write_table(pa.concat_tables(pending))
                            groups += 1
                            pending = []
            if pending:
                writer.write_table(pa.concat_tables(pending))
                groups += 1
        size = stream.tell()
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=rows,
        rows_out=rows,
        rows_deleted=0,
        rows_invalid=0,
        stripes_copied=0,
        stripes_encoded=groups,
        bytes_copied=0,
        bytes_encoded=size,
    )


def _common_schema(fs: FileSystem, paths: Sequence[str]) -> tuple[pa.Schema, bool]:
    """(columns of all files, whether timestamps are INT96); UnsupportedData when the files disagree."""
    schemas: list[pa.Schema] = []
    physical: set[str] = set()
    for path in paths:
        with open_parquet(fs, path) as file:
            check_rewritable(file, path)
            schemas.append(file.schema_arrow.remove_metadata())
            physical |= {
                file.schema.column(i).physical_type
                for i in range(len(file.schema))
                if _is_timestamp(file.schema.column(i))
            }
    if "INT96" in physical and len(physical) > 1:
        raise UnsupportedData(f"timestamps are stored as {' and '.join(sorted(physical))} in one place")
    try:
        # Later files come later in the table's history: their column order is the table's.
        return pa.unify_schemas([schemas[-1], *schemas[:-1]], promote_options="permissive"), "INT96" in physical
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedData(f"the Parquet files have columns of different types: {error}") from error


def _is_timestamp(column: pq.ColumnSchema) -> bool:
    return column.physical_type == "INT96" or "TIMESTAMP" in str(column.logical_type).upper()


def _empty_schema(row_type: HiveType) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(child)) for name, child in row_type.children])


def _aligned(table: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    try:
        columns = [
            table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
            for f in schema
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedData(f"{path}: values would be lost in the columns of the other files: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _codec(fs: FileSystem, paths: Sequence[str]) -> str:
    for path in paths:
        with open_parquet(fs, path) as file:
            if file.num_row_groups and file.metadata.row_group(0).num_columns:
                codec = str(file.metadata.row_group(0).column(0).compression)
                return "NONE" if codec == "UNCOMPRESSED" else codec
    return "SNAPPY"
