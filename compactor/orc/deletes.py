"""The set of deleted row ids of a bucket, as sorted numpy arrays: 8 bytes a deleted row and two look-ups a stripe.

Source: Hive `VectorizedOrcAcidRowBatchReader.ColumnizedDeleteEventRegistry`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from compactor.acid.records import Operation, RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CorruptFile
from compactor.orc.reader import BoolArray, Int64Array, Keys, read_keys
from compactor.storage.filesystem import FileSystem


class DeleteSet:
    """Deleted rows, grouped by (write id, bucket property); the row ids of a group ascend."""

    def __init__(self, groups: dict[tuple[int, int], Int64Array]) -> None:
        self._groups = groups
        self._order = sorted(groups)
        self.count = sum(len(rows) for rows in groups.values())

    @classmethod
    def load(cls, fs: FileSystem, paths: Iterable[str], write_ids: ValidWriteIdList) -> DeleteSet:
        """The delete events of `paths` that a valid write id wrote.

        paths: delete files of one bucket. Memory: 8 bytes an event kept, 40 while a stripe is read.
        """
        found: dict[tuple[int, int], list[Int64Array]] = {}
        for path in paths:
            for keys in read_keys(fs, path):
                check_deletes(keys, path)
                keep = keys.visible(write_ids)
                _group(keys.write_id[keep], keys.bucket[keep], keys.row_id[keep], found)
        return cls({key: np.unique(np.concatenate(parts)) for key, parts in found.items()})

    def may_hit(self, first: RowId, last: RowId) -> bool:
        """Is any row id in [first, last] deleted? Bounds need not be rows that exist."""
        low, high = (first.write_id, first.bucket), (last.write_id, last.bucket)
        at = bisect.bisect_left(self._order, low)
        while at < len(self._order) and self._order[at] <= high:
            rows = self._groups[self._order[at]]
            start = np.searchsorted(rows, first.row_id) if self._order[at] == low else 0
            stop = np.searchsorted(rows, last.row_id, "right") if self._order[at] == high else len(rows)
            if stop > start:
                return True
            at += 1
        return False

    def survivors(self, keys: Keys) -> BoolArray:
        """True for each row that is not deleted."""
        keep: BoolArray = np.ones(len(keys), dtype=np.bool_)
        if not self.count or not len(keys):
            return keep
        for start, stop in _runs(keys.write_id, keys.bucket):
            deleted = self._groups.get((int(keys.write_id[start]), int(keys.bucket[start])))
            if deleted is None:
                continue
            rows = keys.row_id[start:stop]
            places = np.searchsorted(deleted, rows)
            places[places == len(deleted)] = 0
            keep[start:stop] = deleted[places] != rows
        return keep


def check_deletes(keys: Keys, path: str) -> None:
    """A delete delta holds delete events and nothing else."""
    if np.any(keys.operation != Operation.DELETE):
        raise CorruptFile(f"{path}: a delete delta with events that are no deletes")


def _group(
    write_id: Int64Array, bucket: Int64Array, row_id: Int64Array, found: dict[tuple[int, int], list[Int64Array]]
) -> None:
    for start, stop in _runs(write_id, bucket):
        found.setdefault((int(write_id[start]), int(bucket[start])), []).append(row_id[start:stop])


def _runs(write_id: Int64Array, bucket: Int64Array) -> list[tuple[int, int]]:
    """[start, stop) of the runs of rows with equal write id and bucket."""
    if not len(write_id):
        return []
    cuts = np.flatnonzero((np.diff(write_id) != 0) | (np.diff(bucket) != 0)) + 1
    starts = [0, *cuts.tolist()]
    return list(zip(starts, [*cuts.tolist(), len(write_id)], strict=True))
