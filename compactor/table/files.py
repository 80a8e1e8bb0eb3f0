"""Writing the files of one transaction: insert events, delete events, and rows of insert-only tables.

    delta_W_W_ssss/bucket_NNNNN          rows of statement s, row ids 0, 1, … in their order
    delete_delta_W_W_ssss/bucket_NNNNN   in the bucket of the deleted row, ordered by its row id
    base_W/bucket_NNNNN                  rows of an insert overwrite
    delta_W_W_ssss/00000N_0              rows of an insert-only table

A file's content is a function of its arguments and it appears under its final name as a whole, so writing it twice
does no harm. Nobody sees a directory before its transaction commits.
Sources: Hive `OrcRecordUpdater`, `AcidOutputFormat`; no attempt id in names, see `acid.layout.bucket_file`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import numpy as np
import pyarrow as pa

from compactor.acid.layout import (
    ACID_VERSION_CONTENT,
    ACID_VERSION_FILE,
    bucket_file,
    encode_bucket,
    insert_only_file,
)
from compactor.acid.records import Operation, RowId
from compactor.acid.schema import HiveType
from compactor.metastore.catalog import Table
from compactor.orc.assembler import AcidStats, FileAssembler, Template, acid_template
from compactor.orc.compression import compression_kind
from compactor.orc.reader import Int64Array
from compactor.orc.types import acid_arrow_schema, arrow_type
from compactor.storage.filesystem import FileSystem
from compactor.storage.parquet import write_parquet
from compactor.table.scan import RowIds
from compactor.table.values import FileFormat, file_format, table_type

STRIPE_BYTES = 48 << 20
"""Decoded bytes that become one stripe, 8-16 MB once encoded: what a compaction would make of them."""


def orc_codec(table: Table) -> int:
    """ORC's number of the table's `orc.compress`, ZLIB by default; UnsupportedData for a codec ORC does not know."""
    return compression_kind(table.parameters.get("orc.compress", "ZLIB"))


def prepare_directory(fs: FileSystem, path: str, *, full_acid: bool) -> None:
    """Create a delta or base directory with its `_orc_acid_version` (OrcAcidVersion.writeVersionFile)."""
    fs.create_directory(path)
    if full_acid:
        with fs.write_atomically(f"{path}/{ACID_VERSION_FILE}") as stream:
            stream.write(ACID_VERSION_CONTENT)


def write_buckets(
    fs: FileSystem,
    directory: str,
    table: Table,
    rows: pa.Table,
    buckets: Int64Array,
    *,
    write_id: int,
    statement_id: int,
    input_format: str | None = None,
) -> None:
    """One file a bucket below `directory`. buckets: bucket number of each row. input_format: None: the table's.

    No rows still make one file: to Trino a base without a visible file is no base.
    """
    for bucket in np.unique(buckets).tolist() or [0]:
        chosen = rows.take(pa.array(np.flatnonzero(buckets == bucket)))
        if table.is_full_acid:
            _write_acid(fs, directory, table, chosen, bucket=bucket, write_id=write_id, statement_id=statement_id)
        else:
            stored_as = file_format(table, input_format)
            _write_plain(fs, f"{directory}/{insert_only_file(bucket)}", table, chosen, stored_as)


def _write_acid(
    fs: FileSystem, directory: str, table: Table, rows: pa.Table, *, bucket: int, write_id: int, statement_id: int
) -> None:
    row_type = table_type(table.columns)
    events = insert_events(rows, row_type, write_id=write_id, bucket=bucket, statement_id=statement_id)
    with fs.write_atomically(f"{directory}/{bucket_file(bucket)}") as stream:
        _write_events(stream, events, row_type, table)


def write_deletes(fs: FileSystem, directory: str, table: Table, deleted: RowIds, *, bucket: int, write_id: int) -> None:
    """One file of delete events below `directory`. deleted: row ids of rows of this bucket, in any order."""
    order = np.lexsort((deleted.row_id, deleted.bucket, deleted.write_id))
    ids = deleted.take(order)
    row_type = table_type(table.columns)
    count = len(ids)
    events = pa.Table.from_arrays(
        [
            pa.array(np.full(count, Operation.DELETE, dtype=np.int32)),
            pa.array(ids.write_id),
            pa.array(ids.bucket, pa.int32()),
            pa.array(ids.row_id),
            pa.array(np.full(count, write_id, dtype=np.int64)),
            pa.nulls(count, arrow_type(row_type)),
        ],
        schema=acid_arrow_schema(row_type),
    )
    with fs.write_atomically(f"{directory}/{bucket_file(bucket)}") as stream:
        _write_events(stream, events, row_type, table)


def insert_events(
    rows: pa.Table, row_type: HiveType, *, write_id: int, bucket: int, statement_id: int, first_row_id: int = 0
) -> pa.Table:
    """`rows` as insert events with consecutive row ids."""
    count = rows.num_rows
    written = pa.array(np.full(count, write_id, dtype=np.int64))
    struct = rows.combine_chunks().to_struct_array().combine_chunks() if count else []
    return pa.Table.from_arrays(
        [
            pa.array(np.full(count, Operation.INSERT, dtype=np.int32)),
            written,
            pa.array(np.full(count, encode_bucket(bucket, statement_id), dtype=np.int32)),
            pa.array(np.arange(first_row_id, first_row_id + count, dtype=np.int64)),
            written,
            pa.array(struct, arrow_type(row_type)) if not count else struct,
        ],
        schema=acid_arrow_schema(row_type),
    )


def last_key(events: pa.Table) -> RowId:
    """Row id of the last event; there must be one."""
    last = events.num_rows - 1
    return RowId(*(events.column(name)[last].as_py() for name in ("originalTransaction", "bucket", "rowId")))


def stripes_of(rows: pa.Table) -> Iterator[pa.Table]:
    """`rows` cut into pieces of about STRIPE_BYTES; none for an empty table."""
    if not rows.num_rows:
        return
    count = max(1, int(STRIPE_BYTES * rows.num_rows / max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)


def _write_events(stream: pa.NativeFile, events: pa.Table, row_type: HiveType, table: Table) -> None:
    assembler = FileAssembler(stream, acid_template(row_type, compression=orc_codec(table)))
    for stripe in stripes_of(events):
        assembler.append(stripe, last_key(stripe))
    deletes = bool(events.num_rows) and events.column("operation")[0].as_py() == Operation.DELETE
    stats = AcidStats(deletes=events.num_rows) if deletes else AcidStats(inserts=events.num_rows)
    assembler.finish(stats)


def _write_plain(fs: FileSystem, path: str, table: Table, rows: pa.Table, stored_as: FileFormat) -> None:
    with fs.write_atomically(path) as stream:
        match stored_as:
            case FileFormat.PARQUET:
                write_parquet(stream, rows, codec=table.parameters.get("parquet.compression", "SNAPPY"))
            case FileFormat.ORC:
                assembler = FileAssembler(
                    stream, Template.fresh(table_type(table.columns), compression=orc_codec(table))
                )
                for stripe in stripes_of(rows):
                    assembler.append(stripe, None)
                assembler.finish(None)
            case _:
                assert_never(stored_as)
