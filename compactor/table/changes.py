"""Rows that an UPDATE, DELETE or MERGE changes, collected by place before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from compactor.acid.layout import decode_bucket
from compactor.metastore.catalog import Table
from compactor.orc.reader import Int64Array
from compactor.storage.filesystem import FilesystemOf
from compactor.table.files import prepare_directory, write_deletes
from compactor.table.scan import Place, RowIds


class Changes:
    """Deleted row ids and new rows of one statement. Memory: 24 bytes a deleted row and the new rows."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._deleted: dict[Place, list[RowIds]] = {}
        self._new: dict[Place, list[tuple[pa.Table, Int64Array]]] = {}
        self.deleted_rows = 0
        self.updated_rows = 0

    @property
    def partitions(self) -> list[str]:
        """Names of the partitions with changed rows; empty for an unpartitioned table."""
        return sorted(p.partition for p in self._deleted if p.partition is not None)

    def delete(self, place: Place, ids: RowIds) -> None:
        """Rows that go; the new versions of updated rows are not among them."""
        self._deleted.setdefault(place, []).append(ids)
        self.deleted_rows += len(ids)

    def update(self, place: Place, ids: RowIds, rows: pa.Table) -> None:
        """Rows that get a new version, `rows`, in the bucket where they are."""
        self.delete(place, ids)
        self._new.setdefault(place, []).append((rows, _bucket_numbers(ids)))
        self.updated_rows += len(ids)

    def updates(self) -> Iterator[tuple[Place, pa.Table, Int64Array]]:
        """(place, new rows, bucket number of each)."""
        for place, parts in self._new.items():
            yield place, pa.concat_tables([rows for rows, _ in parts]), np.concatenate([b for _, b in parts])

    def write_deletes(self, filesystem_of: FilesystemOf, directory: str, write_id: int) -> None:
        """Write the delete events of every place, each into the bucket file of the row it deletes."""
        for place, parts in self._deleted.items():
            fs, root = filesystem_of(place.location)
            prepare_directory(fs, f"{root}/{directory}", full_acid=True)
            ids = RowIds(
                write_id=np.concatenate([p.write_id for p in parts]),
                bucket=np.concatenate([p.bucket for p in parts]),
                row_id=np.concatenate([p.row_id for p in parts]),
            )
            buckets = _bucket_numbers(ids)
            for bucket in np.unique(buckets).tolist():
                chosen = ids.take(np.flatnonzero(buckets == bucket))
                write_deletes(fs, f"{root}/{directory}", self._table, chosen, bucket=bucket, write_id=write_id)


def _bucket_numbers(ids: RowIds) -> Int64Array:
    encoded, positions = np.unique(ids.bucket, return_inverse=True)
    decoded = np.array([decode_bucket(int(b)) for b in encoded], dtype=np.int64)
    found: Int64Array = decoded[positions]
    return found
