"""Run-length encoding of whole arrays: integers (version 2), bytes and booleans, as ORC's streams hold them.

An encoder that looks at one value after the other, as those of ORC do, spends most of a stripe's time. Here the values
are cut into runs of equal length, numpy finds the encoding of all runs at once, and those of one width are packed
together. Runs never reach over the cuts, so that they are a little longer in bytes than they could be.

Sources: ORC v1 specification, "Run Length Encoding"; ORC Java `RunLengthIntegerWriterV2`, whose encodings are chosen
here with the aligned widths of its strategy SPEED.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]
_ByteArray = npt.NDArray[np.uint8]
_BoolArray = npt.NDArray[np.bool_]

_RUN = 512
"""Values of an integer run, the most there can be."""
_BYTE_RUN = 128
"""Bytes of a byte run: as many as a literal run can have."""
_SHORTEST_REPEAT = 3
_DIRECT, _PATCHED, _DELTA = 1, 2, 3
_ALIGNED = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Widths in bits that an encoding can have; their codes are their positions."""
_LARGEST = np.uint64(1 << 62)
"""Differences from here on may not fit in 64 bits with a sign."""
_PATCHED_SHARE = 0.05
_GAP_BITS, _LONGEST_GAP = 8, 255
_PATCH_BITS, _BASE_LIMIT, _PATCHES = 56, 1 << 55, 31
"""The most that patched runs are used for: bits of a patch, size of the base, entries of the list."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A stream of runs. starts: where each begins in `content`. size: values of every run but the last."""

    content: bytes
    starts: Sequence[int]
    size: int

    def place(self, value: int) -> tuple[int, int]:
        """Where a value is: the first byte of its run, and the number of values before it in the run."""
        run, inside = divmod(value, self.size)
        return (self.starts[run], inside) if run < len(self.starts) else (len(self.content), 0)


def integer_runs(values: Int64Array, *, signed: bool) -> Runs:
    """Integers in version 2 of the encoding; without a sign none may be negative."""
    whole = len(values) // _RUN * _RUN
    pieces = _encoded(values[:whole].reshape(-1, _RUN), signed=signed) if whole else []
    if whole < len(values):
        pieces += _encoded(values[whole:].reshape(1, -1), signed=signed)
    return _joined(pieces, _RUN)


def byte_runs(values: _ByteArray) -> Runs:
    whole = len(values) // _BYTE_RUN * _BYTE_RUN
    blocks = values[:whole].reshape(-1, _BYTE_RUN)
    same = (blocks == blocks[:, :1]).all(axis=1)
    literals = np.insert(blocks, 0, 256 - _BYTE_RUN, axis=1)
    repeat = bytes([_BYTE_RUN - _SHORTEST_REPEAT])
    pieces = [
        repeat + block[:1].tobytes() if repeats else literal.tobytes()
        for block, literal, repeats in zip(blocks, literals, same, strict=True)
    ]
    rest = values[whole:].tobytes()
    if len(rest) >= _SHORTEST_REPEAT and rest.count(rest[:1]) == len(rest):
        pieces.append(bytes([len(rest) - _SHORTEST_REPEAT]) + rest[:1])
    elif rest:
        pieces.append(bytes([256 - len(rest)]) + rest)
    return _joined(pieces, _BYTE_RUN)


def boolean_runs(values: _BoolArray) -> Runs:
    """Bits in runs of bytes; `place` counts bytes of eight values."""
    return byte_runs(np.packbits(values))


def varints(values: _UInt64Array) -> tuple[bytes, Int64Array]:
    """Base-128 numbers, the lowest seven bits first, one after the other; and the length of each in bytes."""
    if not len(values):
        return b"", np.zeros(0, dtype=np.int64)
    longest = max(-(-int(values.max()).bit_length() // 7), 1)
    groups = np.empty((len(values), longest), dtype=np.uint8)
    lengths = np.ones(len(values), dtype=np.int64)
    rest = values
    for at in range(longest):
        groups[:, at] = rest & np.uint64(127)
        rest = rest >> np.uint64(7)
        more = rest != 0
        groups[:, at] |= more.view(np.uint8) << 7
        lengths += more
    return groups[np.arange(longest) < lengths[:, None]].tobytes(), lengths


def zigzag(values: Int64Array) -> _UInt64Array:
    """The sign as the lowest bit."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _joined(pieces: Sequence[bytes], size: int) -> Runs:
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    starts = np.cumsum(lengths) - lengths
    return Runs(content=b"".join(pieces), starts=starts.tolist(), size=size)


def _encoded(blocks: Int64Array, *, signed: bool) -> list[bytes]:
    """A run for every row of `blocks`."""
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    pieces: list[bytes] = [b""] * len(blocks)
    left = np.ones(len(blocks), dtype=np.bool_)
    narrow = high.view(np.uint64) - low.view(np.uint64) < _LARGEST
    first, last = blocks[:, 0], blocks[:, -1]
    # What ascends or descends begins and ends with its extremes.
    maybe = narrow & (np.minimum(first, last) == low) & (np.maximum(first, last) == high)
    if blocks.shape[1] > 1 and maybe.any():
        left &= ~_deltas(blocks, np.flatnonzero(maybe), pieces, signed=signed)
    extremes = np.maximum(zigzag(low), zigzag(high)) if signed else high.view(np.uint64)
    widths = np.array(_ALIGNED)[np.searchsorted(_bounds(_ALIGNED), extremes)]
    if blocks.shape[1] == _RUN:
        # Where one value in twenty is large, the mean is small: no other run is worth the sorting.
        mean = blocks.mean(axis=1) - low
        skewed = left & narrow & (widths > 8) & (mean < 0.3 * (high - low))
        if skewed.any():
            left &= ~_patched(blocks, np.flatnonzero(skewed), low, widths, pieces)
    for width in np.unique(widths[left]).tolist():
        rows = np.flatnonzero(left & (widths == width))
        chosen = blocks if len(rows) == len(blocks) else blocks[rows]
        packed = _packed(zigzag(chosen) if signed else chosen.view(np.uint64), width)
        header = _header(_DIRECT, width, blocks.shape[1])
        for row, content in zip(rows.tolist(), packed, strict=True):
            pieces[row] = header + content.tobytes()
    return pieces


def _deltas(blocks: Int64Array, rows: npt.NDArray[np.intp], pieces: list[bytes], *, signed: bool) -> _BoolArray:
    """Encode those of `rows` that ascend or descend; returns which did."""
    chosen = blocks[rows]
    count = blocks.shape[1]
    steps = np.diff(chosen, axis=1)
    least, greatest = steps.min(axis=1), steps.max(axis=1)
    # The sign of the first step is that of all, so it may not be 0.
    ordered = ((least >= 0) | (greatest <= 0)) & (steps[:, 0] != 0)
    sizes = np.maximum(np.abs(least), np.abs(greatest))
    widths = np.array(_ALIGNED)[np.searchsorted(_bounds(_ALIGNED), sizes.view(np.uint64))]
    # One bit has no code here: its place is that of equal steps.
    widths = np.where(least == greatest, 0, np.where(ordered, np.maximum(widths, 2), -1))
    bases = (zigzag(chosen[:, 0]) if signed else chosen[:, 0]).tolist()
    starts = [_varint(base) + _varint(step) for base, step in zip(bases, zigzag(steps[:, 0]).tolist(), strict=True)]
    for width in np.unique(widths[widths >= 0]).tolist():
        same = np.flatnonzero(widths == width)
        header = _header(_DELTA, width or 1, count)
        packed = _packed(np.abs(steps[same, 1:]).view(np.uint64), width) if width else np.empty((len(same), 0))
        for at, content in zip(same.tolist(), packed, strict=True):
            pieces[rows[at]] = header + starts[at] + content.tobytes()
    done = np.zeros(len(blocks), dtype=np.bool_)
    done[rows[widths >= 0]] = True
    return done


def _patched(
    blocks: Int64Array, rows: npt.NDArray[np.intp], low: Int64Array, direct: Int64Array, pieces: list[bytes]
) -> _BoolArray:
    """Encode those of `rows` that are smaller as short numbers with patches for the few long ones; which were."""
    above = (blocks[rows] - low[rows, None]).view(np.uint64)
    count = blocks.shape[1]
    kth = count - 1 - int(count * _PATCHED_SHARE)
    common = np.partition(above, kth, axis=1)[:, kth]
    widths = np.array(_WIDTHS)[np.searchsorted(_bounds(_WIDTHS), common)]
    bases = low[rows]
    worth = (widths + 2 <= direct[rows]) & (bases > -_BASE_LIMIT) & (bases < _BASE_LIMIT)
    done = np.zeros(len(blocks), dtype=np.bool_)
    for width in np.unique(widths[worth]).tolist():
        same = np.flatnonzero(worth & (widths == width))
        values = above[same]
        packed = _packed(values & np.uint64((1 << width) - 1), width)
        patches = values >> np.uint64(width)
        of, places = np.nonzero(patches)
        found = list(zip(places.tolist(), patches[of, places].tolist(), strict=True))
        ends = np.searchsorted(of, np.arange(len(same) + 1)).tolist()
        for at, row in enumerate(rows[same].tolist()):
            listed = _patch_list(found[ends[at] : ends[at + 1]])
            if listed is not None:
                patch_width, entries, content = listed
                base = int(low[row])
                size = (abs(base).bit_length() + 1 + 7) // 8
                stored = abs(base) | (1 << size * 8 - 1 if base < 0 else 0)
                codes = (size - 1) << 5 | _WIDTHS.index(patch_width), (_GAP_BITS - 1) << 5 | entries
                head = _header(_PATCHED, width, count) + bytes(codes) + stored.to_bytes(size, "big")
                pieces[row], done[row] = head + packed[at].tobytes() + content, True
    return done


def _patch_list(patches: Sequence[tuple[int, int]]) -> tuple[int, int, bytes] | None:
    """Width of a patch, number of entries, and the entries; None when the list would be too long.

    patches: place in the run and higher bits, of the values that have any.
    """
    width = _closest(max((patch for _, patch in patches), default=0).bit_length())
    if width > _PATCH_BITS:
        return None
    size = _closest(width + _GAP_BITS)
    content = entries = before = 0
    for place, patch in patches:
        while place - before > _LONGEST_GAP:
            content = content << size | _LONGEST_GAP << width
            before += _LONGEST_GAP
            entries += 1
        content = content << size | (place - before) << width | patch
        before = place
        entries += 1
    if not 0 < entries <= _PATCHES:
        return None
    bits = entries * size
    return width, entries, (content << -bits % 8).to_bytes((bits + 7) // 8, "big")


def _closest(bits: int) -> int:
    return int(_WIDTHS[bisect_left(_WIDTHS, bits)])


def _bounds(widths: Sequence[int]) -> _UInt64Array:
    """The largest number of each width."""
    return np.array([(1 << width) - 1 for width in widths], dtype=np.uint64)


def _header(encoding: int, width: int, count: int) -> bytes:
    code = _WIDTHS.index(width)
    return bytes([encoding << 6 | code << 1 | (count - 1) >> 8, count - 1 & 255])


def _packed(values: _UInt64Array, width: int) -> _ByteArray:
    """The lowest `width` bits of every value of a row, the highest of them first; rows end at whole bytes.

    values: none has higher bits.
    """
    if width % 8 == 0:
        return _bytes_of(values, width // 8)
    count = values.shape[1]
    if count % 8:
        values = np.pad(values, ((0, 0), (0, 8 - count % 8)))
    if width <= 16:
        # Two values in a word, then four; eight are one word or the low bits of two.
        for bits in (width, 2 * width):
            values = values[:, 0::2] << np.uint64(bits) | values[:, 1::2]
        low, high = values[:, 1::2], values[:, 0::2]
        words = np.empty((*low.shape, 2), dtype=">u8")
        words[:, :, 1] = high << np.uint64(4 * width) | low
        words[:, :, 0] = high >> np.uint64(64 - 4 * width)
        packed = words.view(np.uint8)[:, :, 16 - width :]
    else:
        each = np.unpackbits(_bytes_of(values, 4).reshape(*values.shape, 4), axis=2)
        packed = np.packbits(each[:, :, 32 - width :].reshape(len(values), -1), axis=1)
    return np.ascontiguousarray(packed).reshape(len(values), -1)[:, : -(-count * width // 8)]


def _bytes_of(values: _UInt64Array, size: int) -> _ByteArray:
    """The lowest `size` bytes of every value of a row, the highest of them first."""
    word = next(word for word in (1, 2, 4, 8) if size <= word)
    whole = values.astype(f">u{word}").view(np.uint8).reshape(*values.shape, word)
    return np.ascontiguousarray(whole[:, :, word - size :]).reshape(len(values), -1)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
