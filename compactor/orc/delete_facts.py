"""What the delete files of a bucket say before anything is compacted, from their key columns alone.

Where deletes fall decides which stripes are decoded and which copied, so it is looked up key by key: a delete event
hits a stripe when it lies between the stripe's first and last row id. Memory: a few stripes of delete events, however
many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.stripes import StripeFacts
from compactor.orc.reader import Int64Array, Keys, OrcSource
from compactor.storage.filesystem import FileSystem
from compactor.storage.readahead import read_ahead

MARK_EVENTS = 1 << 14
"""Delete events that a mark stands for: parts of a million are cut right to within 2 %."""
_BATCH_EVENTS = 1 << 20
_THREADS = 4
"""Delete stripes in memory at once: 40 bytes an event each."""
_SIGN = np.uint64(1 << 63)

_Packed = npt.NDArray[np.bytes_]


def hits(
    fs: FileSystem,
    root: str,
    data: Mapping[str, Sequence[StripeFacts]],
    deletes: Mapping[str, int],
    write_ids: ValidWriteIdList,
) -> dict[str, tuple[int, ...]]:
    """For each stripe of `data` the delete events of valid write ids between its first and last row id.

    data: stripes by path of a data file; a stripe that does not know its bounds counts 0. deletes: number of stripes
    by path of a delete file of the same bucket. Paths are relative to root. Raises CorruptFile, StorageError.
    """
    flat = [stripe for stripes in data.values() for stripe in stripes]
    bounds = [(at, s.first, s.last) for at, s in enumerate(flat) if s.first is not None and s.last is not None]
    firsts, lasts = _packed_ids([first for _, first, _ in bounds]), _packed_ids([last for _, _, last in bounds])
    found = np.zeros(len(bounds), dtype=np.int64)

    def valid_keys(place: tuple[str, int]) -> _Packed:
        keys = _keys(fs, root, place)
        keep = keys.visible(write_ids)
        return _packed(keys.write_id[keep], keys.bucket[keep], keys.row_id[keep])

    for events in _batches(read_ahead(valid_keys, _places(deletes), threads=_THREADS)):
        found += np.searchsorted(events, lasts, "right") - np.searchsorted(events, firsts, "left")
    counts = np.zeros(len(flat), dtype=np.int64)
    counts[[at for at, _, _ in bounds]] = found
    each = iter(counts.tolist())
    return {path: tuple(next(each) for _ in stripes) for path, stripes in data.items()}


def marks(fs: FileSystem, root: str, deletes: Mapping[str, int]) -> dict[str, tuple[tuple[RowId, int], ...]]:
    """By delete file: row ids of some events in order, each with the number of events up to it since the one before.

    deletes: as in `hits`. At most `MARK_EVENTS` events lie between two marks.
    """

    def chosen(place: tuple[str, int]) -> tuple[str, list[tuple[RowId, int]]]:
        keys = _keys(fs, root, place)
        positions = [*range(MARK_EVENTS - 1, len(keys) - 1, MARK_EVENTS), len(keys) - 1]
        counts = np.diff(positions, prepend=-1).tolist()
        return place[0], [(keys.at(at), count) for at, count in zip(positions, counts, strict=True)]

    found: dict[str, list[tuple[RowId, int]]] = {path: [] for path in deletes}
    for path, more in read_ahead(chosen, _places(deletes), threads=_THREADS):
        found[path] += more
    return {path: tuple(pairs) for path, pairs in found.items()}


def _places(deletes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((path, stripe) for path, stripes in deletes.items() for stripe in range(stripes))


def _keys(fs: FileSystem, root: str, place: tuple[str, int]) -> Keys:
    path, stripe = place
    with OrcSource(fs, f"{root}/{path}") as source:
        return source.keys(stripe)


def _batches(stripes: Iterable[_Packed]) -> Iterator[_Packed]:
    """Sorted keys of several small stripes together, so that looking up costs little with thousands of delete deltas."""
    pending: list[_Packed] = []
    count = 0
    for stripe in stripes:
        pending.append(stripe)
        count += len(stripe)
        if count >= _BATCH_EVENTS:
            yield _sorted(pending)
            pending, count = [], 0
    if count:
        yield _sorted(pending)


def _sorted(pending: Sequence[_Packed]) -> _Packed:
    # The stripes are sorted each, which a stable sort makes use of.
    return np.sort(np.concatenate(pending), kind="stable")


def _packed_ids(ids: Sequence[RowId]) -> _Packed:
    columns = np.array([(i.write_id, i.bucket, i.row_id) for i in ids], dtype=np.int64).reshape(len(ids), 3)
    return _packed(columns[:, 0], columns[:, 1], columns[:, 2])


def _packed(write_id: Int64Array, bucket: Int64Array, row_id: Int64Array) -> _Packed:
    """Row ids as byte strings that compare as the row ids do; numpy can search those and no tuples."""
    columns = np.empty((len(row_id), 3), dtype=">u8")
    for at, column in enumerate((write_id, bucket, row_id)):
        columns[:, at] = column.view(np.uint64) ^ _SIGN
    return columns.view("S24").reshape(len(row_id))
