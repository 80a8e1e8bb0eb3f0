"""A 64-bit hash of each row of an Arrow array, vectorised.

Equal values have equal hashes whatever array, slice or dictionary they stand in; all NaNs are equal, 0.0 and -0.0 are
not, a null differs from every value, and an empty list from a null one. The hash finds damage; it is no
defence against an adversary. Memory: some multiples of 8 bytes a value, and of `_BYTES_AT_ONCE` for text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_WEIGHT = np.uint64(0x5851F42D4C957F2D)
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_BYTES_AT_ONCE = 4 << 20
_FIRST_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)
"""Masks of the first n bytes of a little-endian word."""
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
    bounds = offsets.to_numpy().astype(np.int64)
    return _folded(np.diff(bounds), items[bounds[0] : bounds[-1]])


def _texts(array: pa.Array) -> Hashes:
    _, offsets_buffer, data = array.buffers()
    result: Hashes = np.zeros(len(array), dtype=np.uint64)
    if not len(array) or offsets_buffer is None:
        return result
    offsets = np.frombuffer(offsets_buffer, dtype="<i4")[array.offset : array.offset + len(array) + 1].astype(np.int64)
    raw = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    at = 0
    while at < len(array):
        until = int(np.searchsorted(offsets, offsets[at] + _BYTES_AT_ONCE, "right")) - 1
        until = min(max(until, at + 1), len(array))
        bounds = offsets[at : until + 1]
        result[at:until] = _folded_texts(bounds - bounds[0], raw[bounds[0] : bounds[-1]])
        at = until
    return mixed(result + np.diff(offsets).astype(np.uint64) * _LENGTH)


def _folded_texts(offsets: _Int64, raw: npt.NDArray[np.uint8]) -> Hashes:
    """Of texts that lie one after the other; taken as words of 8 bytes, the last one of a text filled up with zeros."""
    lengths = np.diff(offsets)
    counts = (lengths + 7) >> 3
    text = np.repeat(np.arange(len(lengths)), counts)
    within = (np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)) << 3
    padded = np.concatenate([raw, np.zeros(8, dtype=np.uint8)])
    every_word = np.ndarray(len(raw) + 1, dtype="<u8", buffer=padded, strides=(1,))
    words = every_word[offsets[text] + within] & _FIRST_BYTES[np.minimum(lengths[text] - within, 8)]
    return _folded(counts, words)


def _folded(counts: _Int64, items: Hashes) -> Hashes:
    """One hash of each run of items; the order of a run counts. counts: lengths of the runs, which lie side by side."""
    result: Hashes = np.zeros(len(counts), dtype=np.uint64)
    filled = np.flatnonzero(counts)
    if len(filled):
        starts = (np.cumsum(counts) - counts)[filled]
        place = (np.arange(len(items)) - np.repeat(starts, counts[filled])).astype(np.uint64)
        result[filled] = np.add.reduceat(mixed(mixed(items) + place * _WEIGHT), starts)
    return mixed(result + counts.astype(np.uint64) * _LENGTH)
