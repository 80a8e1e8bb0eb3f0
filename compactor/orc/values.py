"""The values of a column as ORC's streams, and what its row index and statistics say of them, before compression.

Encodings, statistics and the order of additions are those of pyarrow's writer (ORC C++). Values that need more care than
speed are left to it: NaN, decimals over 64 bits, texts that are none.

Sources: ORC v1 specification, "Column Encodings", "Column Statistics"; ORC C++ `ColumnWriter`, `Statistics`; ORC Java
`TimestampTreeWriter`, because pyarrow writes fractions of seconds before 1970 as negative numbers, which Java misreads.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.runs import Int64Array, boolean_runs, byte_runs, integer_runs, varints, zigzag

Content = bytes | memoryview
DICTIONARY_THRESHOLD = 0.8
"""Build a dictionary when at most this share of a column's values is distinct."""
_SAMPLE = 10_000
"""Values that this is judged by, as ORC C++ judges by its first row group."""
_INT64 = 1 << 63
_NANOS = 1_000_000_000
_ORC_EPOCH = 1_420_070_400
"""Seconds of 2015-01-01 00:00:00 UTC, from which ORC counts."""
Summary = tuple[Any, Any, Any]
"""Minimum, maximum and sum of some values; 0 for what their type has not, None for a sum that overflows."""


class Values(abc.ABC):
    """The values of a column without its nulls.

    kind: Type.Kind. streams: not compressed, in the order of the stripe.
    """

    kind: int
    encoding: pb.ColumnEncoding
    streams: Mapping[pb.Stream.Kind, Content]

    @abc.abstractmethod
    def place(self, value: int) -> Sequence[int]:
        """The numbers of a row-index entry for the value at a position, or for the end."""

    @abc.abstractmethod
    def summary(self, start: int, stop: int) -> Summary:
        """Of the values of a range, of which there are some."""

    def total(self, summaries: Sequence[Summary]) -> Summary:
        """Of some ranges."""
        lows, highs, totals = zip(*summaries, strict=True)
        # One after the other: sum() rounds otherwise from Python 3.12 on.
        return min(lows), max(highs), None if None in totals else reduce(operator.add, totals)

    @abc.abstractmethod
    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        """Write a summary, None for no values, into statistics."""


class NeedsPyarrow(Exception):
    """The values cannot be laid out here."""


def values_of(array: pa.Array) -> Values:
    """`array` has no nulls. Raises NeedsPyarrow."""
    reader = _READERS.get(array.type.id)
    if reader is None:
        raise NeedsPyarrow
    return reader(array)


class _Integers(Values):
    """smallint, int, bigint."""

    def __init__(self, array: pa.Array) -> None:
        self.kind = _INTEGER_KINDS[array.type.id]
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT_V2)
        self._values = array.to_numpy().astype(np.int64, copy=False)
        self._runs = integer_runs(self._values, signed=True)
        self.streams = {pb.Stream.DATA: self._runs.content}

    def place(self, value: int) -> Sequence[int]:
        return self._runs.place(value)

    def summary(self, start: int, stop: int) -> Summary:
        chosen = self._values[start:stop]
        low, high = int(chosen.min()), int(chosen.max())
        return low, high, _sum(chosen, low, high)

    def total(self, summaries: Sequence[Summary]) -> Summary:
        low, high, total = super().total(summaries)
        if total is None or max(-low, high) * len(self._values) < _INT64:
            return low, high, total
        sums = accumulate(part for _, _, part in summaries)
        return low, high, total if all(-_INT64 <= part < _INT64 for part in sums) else None

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        if summary is None:
            into.int_statistics.sum = 0
            return
        into.int_statistics.minimum, into.int_statistics.maximum, total = summary
        if total is not None:
            into.int_statistics.sum = total


class _Bytes(_Integers):
    """tinyint."""

    def __init__(self, array: pa.Array) -> None:
        self.kind = pb.Type.BYTE
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT)
        values = array.to_numpy()
        self._values = values.astype(np.int64)
        self._runs = byte_runs(values.view(np.uint8))
        self.streams = {pb.Stream.DATA: self._runs.content}


class _Dates(_Integers):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array.view(pa.int32()))
        self.kind = pb.Type.DATE

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        into.date_statistics.SetInParent()
        if summary is not None:
            into.date_statistics.minimum, into.date_statistics.maximum, _ = summary


class _Booleans(Values):
    kind: int = pb.Type.BOOLEAN

    def __init__(self, array: pa.Array) -> None:
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT)
        self._values = array.to_numpy(zero_copy_only=False)
        self._runs = boolean_runs(self._values)
        self.streams = {pb.Stream.DATA: self._runs.content}

    def place(self, value: int) -> Sequence[int]:
        return *self._runs.place(value // 8), value % 8

    def summary(self, start: int, stop: int) -> Summary:
        return 0, 0, int(np.count_nonzero(self._values[start:stop]))

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        into.bucket_statistics.count.append(0 if summary is None else summary[2])


class _Floats(Values):
    """float, double."""

    def __init__(self, array: pa.Array) -> None:
        self.kind = pb.Type.FLOAT if array.type == pa.float32() else pb.Type.DOUBLE
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT)
        self._values = array.to_numpy()
        if np.isnan(self._values).any():
            # It is no minimum or maximum unless it comes first.
            raise NeedsPyarrow
        self.streams = {pb.Stream.DATA: memoryview(self._values).cast("B")}

    def place(self, value: int) -> Sequence[int]:
        return (value * self._values.itemsize,)

    def summary(self, start: int, stop: int) -> Summary:
        chosen = self._values[start:stop].astype(np.float64, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            # One after the other: numpy's sum takes pairs, which rounds otherwise. Of equal zeros the first one counts.
            total = float(np.cumsum(chosen)[-1])
        return float(chosen[chosen.argmin()]), float(chosen[chosen.argmax()]), total

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        found = into.double_statistics
        if summary is None:
            found.sum = 0.0
        else:
            found.minimum, found.maximum, found.sum = summary


class _Decimals(Values):
    """decimal, as long as the values without their point fit in 64 bits."""

    kind: int = pb.Type.DECIMAL

    def __init__(self, array: pa.Array) -> None:
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT_V2)
        self._scale = array.type.scale
        words = np.frombuffer(array.buffers()[1], dtype=np.int64).reshape(-1, 2)[array.offset :][: len(array)]
        self._values = np.ascontiguousarray(words[:, 0])
        if np.any(self._values >> 63 != words[:, 1]):
            raise NeedsPyarrow
        content, lengths = varints(zigzag(self._values))
        self._offsets = np.concatenate(([0], np.cumsum(lengths)))
        self._scales = integer_runs(np.full(len(array), self._scale), signed=True)
        self.streams = {pb.Stream.DATA: content, pb.Stream.SECONDARY: self._scales.content}

    def place(self, value: int) -> Sequence[int]:
        return int(self._offsets[value]), *self._scales.place(value)

    def summary(self, start: int, stop: int) -> Summary:
        chosen = self._values[start:stop]
        # Neither half can overflow.
        total = (int((chosen >> 32).sum()) << 32) + int((chosen & 0xFFFFFFFF).sum())
        return int(chosen.min()), int(chosen.max()), total

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        found = into.decimal_statistics
        if summary is None:
            found.sum = self._text(0)
        else:
            found.minimum, found.maximum, found.sum = map(self._text, summary)

    def _text(self, unscaled: int) -> str:
        """Without zeros at the end of the fraction."""
        digits = str(abs(unscaled)).rjust(self._scale + 1, "0")
        point = len(digits) - self._scale
        fraction = digits[point:].rstrip("0")
        return ("-" if unscaled < 0 else "") + digits[:point] + ("." + fraction if fraction else "")


class _Timestamps(Values):
    """timestamp, timestamp with local time zone: seconds and nanoseconds."""

    def __init__(self, array: pa.Array) -> None:
        if array.type.unit != "ns":
            raise NeedsPyarrow
        self.kind = pb.Type.TIMESTAMP if array.type.tz is None else pb.Type.TIMESTAMP_INSTANT
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT_V2)
        self._values = array.view(pa.int64()).to_numpy()
        seconds = self._values // _NANOS
        nanos = self._values - seconds * _NANOS
        # As ORC has always had it, a fraction before 1970 counts from the second after it, which cannot be the first of 1970.
        fractions = (seconds < 0) & (nanos > 999_999)
        if np.any(fractions & (seconds == -1)):
            raise NeedsPyarrow
        seconds += fractions
        self._seconds = integer_runs(seconds - _ORC_EPOCH, signed=True)
        self._nanos = integer_runs(_without_zeros(nanos), signed=False)
        self.streams = {pb.Stream.DATA: self._seconds.content, pb.Stream.SECONDARY: self._nanos.content}

    def place(self, value: int) -> Sequence[int]:
        return *self._seconds.place(value), *self._nanos.place(value)

    def summary(self, start: int, stop: int) -> Summary:
        chosen = self._values[start:stop]
        return int(chosen.min()), int(chosen.max()), 0

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        found = into.timestamp_statistics
        found.SetInParent()
        if summary is not None:
            (found.minimum_utc, low), (found.maximum_utc, high) = (divmod(at, 1_000_000) for at in summary[:2])
            # Stored plus one, and not at all where they are what readers take them for.
            if low > 0:
                found.minimum_nanos = low + 1
            if high < 999_999:
                found.maximum_nanos = high + 1


class _Blobs(Values):
    """binary."""

    kind: int = pb.Type.BINARY

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        content, offsets = _content(array)
        self._offsets = (offsets - offsets[0]).astype(np.int64)
        self._lengths = integer_runs(np.diff(self._offsets), signed=False)
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT_V2)
        self.streams: Mapping[pb.Stream.Kind, Content] = {
            pb.Stream.LENGTH: self._lengths.content,
            pb.Stream.DATA: content,
        }

    def place(self, value: int) -> Sequence[int]:
        return int(self._offsets[value]), *self._lengths.place(value)

    def summary(self, start: int, stop: int) -> Summary:
        return 0, 0, int(self._offsets[stop] - self._offsets[start])

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        into.binary_statistics.sum = 0 if summary is None else summary[2]


class _Texts(_Blobs):
    """string, each value for itself."""

    kind: int = pb.Type.STRING

    def summary(self, start: int, stop: int) -> Summary:
        extremes = pc.min_max(self._array.slice(start, stop - start))
        low, high = _text(extremes["min"].as_buffer()), _text(extremes["max"].as_buffer())
        return low, high, int(self._offsets[stop] - self._offsets[start])

    def describe(self, summary: Summary | None, into: pb.ColumnStatistics) -> None:
        found = into.string_statistics
        if summary is None:
            found.sum = 0
        else:
            found.minimum, found.maximum, found.sum = summary


class _Words(_Texts):
    """string, each value as its word's number in a sorted dictionary."""

    def __init__(self, array: pa.Array) -> None:
        found = array.dictionary_encode()
        order = pc.array_sort_indices(found.dictionary)
        words = found.dictionary.take(order)
        numbers = np.empty(len(order), dtype=np.int64)
        numbers[order.to_numpy()] = np.arange(len(order))
        self._values = numbers[found.indices.to_numpy()]
        self._words = words
        content, offsets = _content(words)
        self._word_lengths = np.diff(offsets).astype(np.int64)
        self._runs = integer_runs(self._values, signed=False)
        self.encoding = pb.ColumnEncoding(kind=pb.ColumnEncoding.DICTIONARY_V2, dictionary_size=len(words))
        self.streams = {
            pb.Stream.DATA: self._runs.content,
            pb.Stream.DICTIONARY_DATA: content,
            pb.Stream.LENGTH: integer_runs(self._word_lengths, signed=False).content,
        }

    def place(self, value: int) -> Sequence[int]:
        return self._runs.place(value)

    def summary(self, start: int, stop: int) -> Summary:
        chosen = self._values[start:stop]
        low, high = (_text(self._words[int(at)].as_buffer()) for at in (chosen.min(), chosen.max()))
        return low, high, int(self._word_lengths[chosen].sum())


def _strings(array: pa.Array) -> _Texts:
    """With a dictionary when the first values repeat."""
    first = array.slice(0, _SAMPLE)
    return _Words(array) if len(first.unique()) <= DICTIONARY_THRESHOLD * len(first) else _Texts(array)


def _content(array: pa.Array) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """The bytes of all values, and where each begins and the last one ends in Arrow's buffer."""
    _, offsets_buffer, data = array.buffers()
    if not len(array) or data is None:
        return memoryview(b""), np.zeros(len(array) + 1, dtype=np.int32)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[array.offset :][: len(array) + 1]
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])], offsets


def _text(value: pa.Buffer) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise NeedsPyarrow from None


def _sum(values: Int64Array, low: int, high: int) -> int | None:
    """None when adding one value after the other overflows on the way, as in `IntegerColumnStatisticsImpl`."""
    if max(-low, high) * len(values) < _INT64:
        return int(values.sum())
    with np.errstate(over="ignore"):
        sums = np.cumsum(values)
    before = np.concatenate(([0], sums[:-1]))
    return None if np.any((before ^ sums) & (values ^ sums) < 0) else int(sums[-1])


def _without_zeros(nanos: Int64Array) -> Int64Array:
    """Nanoseconds as ORC stores them: where two or more decimal zeros end them, without these, their number less one
    in the lowest three bits."""
    rest, zeros = nanos, np.zeros(len(nanos), dtype=np.int64)
    for _ in range(8):
        ends_in_zero = (rest != 0) & (rest % 10 == 0)
        if not ends_in_zero.any():
            break
        rest, zeros = np.where(ends_in_zero, rest // 10, rest), zeros + ends_in_zero
    return np.where(zeros >= 2, rest << 3 | zeros - 1, nanos << 3)


_INTEGER_KINDS = {pa.int16().id: pb.Type.SHORT, pa.int32().id: pb.Type.INT, pa.int64().id: pb.Type.LONG}
_READERS: Mapping[int, Callable[[pa.Array], Values]] = {
    pa.bool_().id: _Booleans,
    pa.int8().id: _Bytes,
    pa.int16().id: _Integers,
    pa.int32().id: _Integers,
    pa.int64().id: _Integers,
    pa.float32().id: _Floats,
    pa.float64().id: _Floats,
    pa.date32().id: _Dates,
    pa.timestamp("ns").id: _Timestamps,
    pa.decimal128(18, 2).id: _Decimals,
    pa.string().id: _strings,
    pa.binary().id: _Blobs,
}
