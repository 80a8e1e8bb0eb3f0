"""Row identity, row order and the reading merge in plain Python: the oracle that every other reader is tested by.

Sources: Hive `RecordIdentifier`, `OrcRawRecordMerger` (ReaderKey.compareTo), `VectorizedOrcAcidRowBatchReader`
(split update: deletes are a set of row ids), `OrcRawRecordMerger.OriginalReaderPair` (synthetic ids).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compactor.acid.directory import ListedFile
from compactor.acid.layout import encode_bucket, parse_bucket
from compactor.acid.snapshot import ValidWriteIdList


class Operation(enum.IntEnum):
    """The `operation` column of an ACID event."""

    INSERT = 0
    """The row exists from its write id on."""
    UPDATE = 1
    """Written only by Hive before 3.0; split update writes a delete and an insert."""
    DELETE = 2
    """The row named by the event is gone from the event's current write id on."""


@dataclass(frozen=True, order=True)
class RowId:
    """ROW__ID. The order is the order of rows in every ACID file: write id, bucket property, row id."""

    write_id: int
    bucket: int
    row_id: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """One row of an ACID file.

    row_id: the identity of the row the event is about. current_write_id: who wrote the event. row: the column
    values, None in a delete.
    """

    operation: Operation
    row_id: RowId
    current_write_id: int
    row: tuple[object, ...] | None = None


def merge(events: Iterable[Event], valid: ValidWriteIdList) -> Iterator[tuple[RowId, tuple[object, ...]]]:
    """The rows that a snapshot sees, in row order.

    events: those of the base, the current deltas and the current delete deltas, in any order. An event of a
    write id that is not valid did not happen.
    """
    inserted: dict[RowId, tuple[object, ...]] = {}
    deleted: set[RowId] = set()
    for event in events:
        if not valid.is_valid(event.current_write_id):
            continue
        if event.operation is Operation.DELETE:
            deleted.add(event.row_id)
        elif event.row is not None:
            inserted[event.row_id] = event.row
    for row_id in sorted(inserted.keys() - deleted):
        yield row_id, inserted[row_id]


@dataclass(frozen=True, kw_only=True)
class SyntheticIds:
    """ROW__IDs of a file without ACID columns: (write_id, bucket, first_row_id + position in the file).

    write_id: 0 for an original file, the delta's for LOAD DATA. bucket: the encoded bucket property.
    """

    write_id: int
    bucket: int
    first_row_id: int


def synthetic_ids(
    files: Iterable[tuple[ListedFile, int]], *, write_id: int = 0, statement_id: int = 0
) -> dict[str, SyntheticIds]:
    """ROW__IDs that Hive gives to the rows of files without ACID columns, by file path.

    files: (file, rows) of one directory. Rows are numbered through all files of a bucket, in the order of the paths
    as text, so `000000_0_copy_10` comes before `000000_0_copy_2` (OriginalReaderPairToRead; AcidUtils.getAcidState
    sorts by URI and warns that another order loses data).
    """
    next_row: dict[int, int] = {}
    ids: dict[str, SyntheticIds] = {}
    for file, rows in sorted(files, key=lambda f: f[0].path):
        parsed = parse_bucket(file.name)
        bucket = parsed.bucket if parsed is not None else 0
        first = next_row.get(bucket, 0)
        next_row[bucket] = first + rows
        ids[file.path] = SyntheticIds(write_id=write_id, bucket=encode_bucket(bucket, statement_id), first_row_id=first)
    return ids
