"""The set of deleted row ids of a bucket, as sorted numpy arrays: 8 bytes a deleted row and two look-ups a stripe.

Source: Hive `VectorizedOrcAcidRowBatchReader.ColumnizedDeleteEventRegistry`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import numpy as np

from compactor.acid.records import Operation, RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CorruptFile
from compactor.orc.facts import stripe_facts
from compactor.orc.order import may_lie_within
from compactor.orc.reader import BoolArray, Int64Array, Keys, OrcSource
from compactor.storage.filesystem import FileSystem

_Groups = dict[tuple[int, int], Int64Array]
WINDOW_EVENTS = 2_000_000
_FIRST, _LAST = RowId(-1, -1, -1), RowId(sys.maxsize, sys.maxsize, sys.maxsize)


class DeleteSet:
    """Deleted rows, grouped by (write id, bucket property); the row ids of a group ascend."""

    def __init__(self, groups: dict[tuple[int, int], Int64Array]) -> None:
        self._groups = groups
        self.count = sum(len(rows) for rows in groups.values())

    @classmethod
    def load(cls, fs: FileSystem, paths: Iterable[str], write_ids: ValidWriteIdList) -> DeleteSet:
        """The delete events of `paths` that a valid write id wrote.

        paths: delete files of one bucket. Memory: 8 bytes an event kept, 40 while a stripe is read.
        """
        return DeleteWindow(fs, paths, write_ids, events=sys.maxsize).covering(_FIRST, _LAST)

    def survivors(self, keys: Keys) -> BoolArray:
        """True for each row that is not deleted."""
        keep: BoolArray = np.ones(len(keys), dtype=np.bool_)
        if not self.count or not len(keys):
            return keep
        for start, stop in _runs(keys.write_id, keys.bucket):
            deleted = self._groups.get((int(keys.write_id[start]), int(keys.bucket[start])))
            if deleted is None or not len(deleted):
                continue
            rows = keys.row_id[start:stop]
            places = np.searchsorted(deleted, rows)
            places[places == len(deleted)] = 0
            keep[start:stop] = deleted[places] != rows
        return keep


class DeleteWindow:
    """The deletes around the place that a task has got to, so that memory does not grow with the number of deletes.

    paths: delete files of one bucket. up_to: no row after this one will be asked for. events: how many deleted rows
    are held, and twice as many while they are read.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: Iterable[str],
        write_ids: ValidWriteIdList,
        *,
        up_to: RowId | None = None,
        events: int = WINDOW_EVENTS,
    ) -> None:
        self._fs, self._paths, self._write_ids = fs, list(paths), write_ids
        self._up_to, self._events = up_to, events
        self._held = DeleteSet({})
        self._covered: tuple[RowId, RowId] | None = None if self._paths else (_FIRST, _LAST)

    def covering(self, first: RowId, last: RowId) -> DeleteSet:
        """The deletes of rows in [first, last] and of as many later ones as may be held."""
        if self._covered is None or not self._covered[0] <= first <= last <= self._covered[1]:
            # What was held goes before its successor comes.
            self._held, self._covered = DeleteSet({}), None
            groups, bound = self._load(first, last)
            self._held, self._covered = DeleteSet(groups), (first, bound)
        return self._held

    def _load(self, first: RowId, last: RowId) -> tuple[_Groups, RowId]:
        """Deleted rows from `first` on, and the row up to which there are no others; at least `last`."""
        after = RowId(first.write_id, first.bucket, first.row_id - 1)
        bound = _LAST if self._up_to is None else max(self._up_to, last)
        groups: _Groups = {}
        fresh: dict[tuple[int, int], list[Int64Array]] = {}
        count = 0
        for path in self._paths:
            with OrcSource(self._fs, path) as source:
                for stripe, facts in enumerate(stripe_facts(source.tail)):
                    if not may_lie_within(facts, after, bound):
                        continue
                    keys = source.keys(stripe)
                    check_deletes(keys, path)
                    keys = keys.chosen(keys.visible(self._write_ids) & keys.within(after, bound))
                    _group(keys, fresh)
                    count += len(keys)
                    if count > self._events:
                        groups, bound = _cut(_merged(groups, fresh), self._events, last, bound)
                        fresh, count = {}, 0
        return _cut(_merged(groups, fresh), self._events, last, bound)


def check_deletes(keys: Keys, path: str) -> None:
    """A delete delta holds delete events and nothing else."""
    if np.any(keys.operation != Operation.DELETE):
        raise CorruptFile(f"{path}: a delete delta with events that are no deletes")


def _group(keys: Keys, found: dict[tuple[int, int], list[Int64Array]]) -> None:
    for start, stop in _runs(keys.write_id, keys.bucket):
        key = int(keys.write_id[start]), int(keys.bucket[start])
        found.setdefault(key, []).append(keys.row_id[start:stop])


def _merged(groups: _Groups, fresh: Mapping[tuple[int, int], list[Int64Array]]) -> _Groups:
    merged = {key: np.unique(np.concatenate([*parts, *_known(groups, key)])) for key, parts in fresh.items()}
    return groups | merged


def _known(groups: _Groups, key: tuple[int, int]) -> list[Int64Array]:
    return [groups[key]] if key in groups else []


def _cut(groups: _Groups, events: int, last: RowId, bound: RowId) -> tuple[_Groups, RowId]:
    """The first `events` rows, but all up to `last`; and the row up to which there are no others."""
    left = events
    for (write_id, bucket), rows in sorted(groups.items()):
        if len(rows) > left:
            # The row that is one too many marks the end of what is known.
            bound = max(last, RowId(write_id, bucket, int(rows[left]) - 1))
            break
        left -= len(rows)
    else:
        return groups, bound
    kept: _Groups = {}
    for key, rows in groups.items():
        if key < (bound.write_id, bound.bucket):
            kept[key] = rows
        elif key == (bound.write_id, bound.bucket):
            # A copy, so that the rest can be freed.
            kept[key] = rows[: np.searchsorted(rows, bound.row_id, "right")].copy()
    return kept, bound


def _runs(write_id: Int64Array, bucket: Int64Array) -> list[tuple[int, int]]:
    """[start, stop) of the runs of rows with equal write id and bucket."""
    if not len(write_id):
        return []
    cuts = np.flatnonzero((np.diff(write_id) != 0) | (np.diff(bucket) != 0)) + 1
    starts = [0, *cuts.tolist()]
    return list(zip(starts, [*cuts.tolist(), len(write_id)], strict=True))
