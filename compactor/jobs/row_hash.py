"""A 64-bit hash of each row of an Arrow array, vectorised.

Equal values have equal hashes whatever array, slice or dictionary they stand in; all NaNs are equal, 0.0 and -0.0 are
not, a null differs from every value, and an empty list from a null one. The hash finds damage; it is no
defence against an adversary. Memory: some multiples of 8 bytes a value, and of `_BYTES_AT_ONCE` for text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_WEIGHT = np.uint64(0x5851F42D4C957F2D)
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_BYTES_AT_ONCE = 4 << 20
_Int64 = npt.NDArray[np.int64]


def mixed(values: Hashes) -> Hashes:
    """A bijection under which every bit depends on every bit (the finaliser of splitmix64)."""
    z = values + _NULL
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def joined(parts: Iterator[Hashes], count: int) -> Hashes:
    """One hash of several columns; their order counts. count: rows."""
    total: Hashes = np.full(count, _LENGTH, dtype=np.uint64)
    for part in parts:
        total = mixed(total * _WEIGHT + part)
    return total


def hash_rows(array: pa.Array) -> Hashes:
    """The hash of each element of an array of any type that a Hive column can have in Arrow."""
    values = _values(array)
    if array.null_count:
        values[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return values


def _values(array: pa.Array) -> Hashes:
    """Hashes of the elements; those of nulls are anything."""
    kind = array.type
    if pa.types.is_struct(kind):
        return joined((hash_rows(array.field(i)) for i in range(kind.num_fields)), len(array))
    if pa.types.is_map(kind):
        items = joined(iter((hash_rows(array.keys), hash_rows(array.items))), len(array.keys))
        return _lists(array.offsets, items)
    if pa.types.is_list(kind):
        return _lists(array.offsets, hash_rows(array.values))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(array)
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, dtype=np.uint64)
    return _fixed(array.cast(pa.uint8()) if pa.types.is_boolean(kind) else array)


def _fixed(array: pa.Array) -> Hashes:
    """Numbers, dates, timestamps and decimals, by their bytes."""
    kind = array.type
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=np.uint64)
    words = kind.bit_width // 64
    width = min(kind.bit_width, 64)
    raw = np.frombuffer(data, dtype=f"<u{width // 8}")
    raw = raw[array.offset * max(words, 1) : (array.offset + len(array)) * max(words, 1)]
    if pa.types.is_floating(kind):
        numbers = raw.view(f"<f{width // 8}")
        raw = np.where(np.isnan(numbers), np.array([np.nan], dtype=numbers.dtype).view(raw.dtype), raw)
    if words <= 1:
        return mixed(raw.astype(np.uint64))
    parts = raw.reshape(len(array), words)
    return joined((parts[:, i] for i in range(words)), len(array))


def _lists(offsets: pa.Array, items: Hashes) -> Hashes:
    return _folded(offsets.to_numpy().astype(np.int64), lambda start, stop: items[start:stop])


def _texts(array: pa.Array) -> Hashes:
    _, offsets_buffer, data = array.buffers()
    if not len(array) or offsets_buffer is None:
        return np.zeros(len(array), dtype=np.uint64)
    offsets = np.frombuffer(offsets_buffer, dtype="<i4")[array.offset : array.offset + len(array) + 1]
    raw = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    # A byte is not 0 after this, so that a longer text of zeros is another text.
    return _folded(offsets.astype(np.int64), lambda start, stop: raw[start:stop].astype(np.uint64) + np.uint64(1))


def _folded(offsets: _Int64, items: Callable[[int, int], Hashes]) -> Hashes:
    """One hash of each range [offsets[i], offsets[i + 1]) of items: a polynomial of them, and of their number.

    items: the values from start to stop; fetched in stretches of `_BYTES_AT_ONCE`, or of one range if that is longer.
    """
    count = len(offsets) - 1
    lengths = np.diff(offsets)
    result: Hashes = np.zeros(count, dtype=np.uint64)
    at = 0
    while at < count:
        until = int(np.searchsorted(offsets, offsets[at] + _BYTES_AT_ONCE, "right")) - 1
        until = min(max(until, at + 1), count)
        first, last = int(offsets[at]), int(offsets[until])
        filled = np.flatnonzero(lengths[at:until])
        if len(filled):
            starts = offsets[at:until][filled] - first
            position = np.arange(last - first) - np.repeat(starts, lengths[at:until][filled])
            terms = mixed(items(first, last) + position.astype(np.uint64) * _WEIGHT)
            result[at:until][filled] = np.add.reduceat(terms, starts)
        at = until
    return mixed(result + lengths.astype(np.uint64) * _LENGTH)
