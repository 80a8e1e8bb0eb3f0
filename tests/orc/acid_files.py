"""Writes the ACID files that tests of the ORC room read, and reads any of them back with pyarrow alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import orc

from compactor.acid.planning import SourceFile
from compactor.acid.records import Event, Operation, RowId
from compactor.acid.schema import HiveType, parse_type
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, Template, acid_template
from compactor.orc.reader import OrcSource
from compactor.orc.types import acid_arrow_schema
from compactor.storage.filesystem import ArrowFileSystem

FS = ArrowFileSystem(pafs.LocalFileSystem())
ROW = parse_type("struct<id:int,v:string>")


def insert(write_id: int, row_id: int, row: tuple[Any, ...], *, bucket: int = 536870912) -> Event:
    return Event(operation=Operation.INSERT, row_id=RowId(write_id, bucket, row_id), current_write_id=write_id, row=row)


def delete(row_id: RowId, *, by: int) -> Event:
    return Event(operation=Operation.DELETE, row_id=row_id, current_write_id=by)


def event_table(events: Sequence[Event], row_type: HiveType) -> pa.Table:
    schema = acid_arrow_schema(row_type)
    names = [name for name, _ in row_type.children]
    columns = [
        [int(e.operation) for e in events],
        [e.row_id.write_id for e in events],
        [e.row_id.bucket for e in events],
        [e.row_id.row_id for e in events],
        [e.current_write_id for e in events],
        [None if e.row is None else dict(zip(names, e.row, strict=True)) for e in events],
    ]
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_events(
    path: Path,
    events: Sequence[Event],
    *,
    row_type: HiveType = ROW,
    stripe_rows: int = 10**9,
    compression: int = pb.ZLIB,
    template: Template | None = None,
) -> SourceFile:
    """An ACID file of stripes of `stripe_rows` events, with the key index that Hive writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, template or acid_template(row_type, compression=compression))
        for start in range(0, len(events), stripe_rows):
            part = events[start : start + stripe_rows]
            out.append(event_table(part, row_type), part[-1].row_id)
        deletes = sum(e.operation is Operation.DELETE for e in events)
        out.finish(AcidStats(inserts=len(events) - deletes, deletes=deletes))
    return SourceFile(path=f"{path.parent.name}/{path.name}", size=path.stat().st_size, rows=len(events))


def write_plain(path: Path, table: pa.Table, **options: Any) -> SourceFile:
    """A file without ACID columns, as pyarrow writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    orc.write_table(table, str(path), **options)
    return SourceFile(path=f"{path.parent.name}/{path.name}", size=path.stat().st_size, rows=table.num_rows)


def read_events(path: Path) -> list[Event]:
    """Every event of a file, by pyarrow's reader on the whole file."""
    table = orc.ORCFile(str(path)).read()
    plain = [column.to_pylist() for column in table.columns]
    return [
        Event(
            operation=Operation(operation),
            row_id=RowId(write_id, bucket, row_id),
            current_write_id=current,
            row=None if row is None else tuple(row.values()),
        )
        for operation, write_id, bucket, row_id, current, row in zip(*plain, strict=True)
    ]


def read_all(paths: Iterable[Path]) -> list[Event]:
    return [event for path in paths for event in read_events(path)]


def source(path: Path) -> OrcSource:
    return OrcSource(FS, str(path))
