"""Laying a table out as the columns of one stripe, before compression.

Columns of plain values go through `columns`. What that leaves alone, and whatever is nested, goes through pyarrow's
writer (ORC C++), a column at a time: each becomes a little file without compression, of which the column is taken.

Sources: ORC v1 specification, "Stripes"; "Types" (columns are numbered in pre-order).
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import orc

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.columns import LaidColumn, laid_out, structure
from compactor.orc.nulls import hide_in_nulls
from compactor.orc.tail import BLOOM_FILTERS, read_tail
from compactor.orc.values import DICTIONARY_THRESHOLD

ZONE = "GMT"
"""Of timestamps, whoever lays them out."""
INDEXES = (pb.Stream.ROW_INDEX, *BLOOM_FILTERS)
"""Kinds of streams in a stripe's index area."""
_BLOOM_FPP = 0.01
"""Share of values that a bloom filter takes for present although they are not: orc.bloom.filter.fpp's default."""


def columns_of(table: pa.Table, stride: int, blooms: Collection[int]) -> Iterator[LaidColumn]:
    """The columns of `table`, which has rows, one after the other in pre-order; the root is the first.

    stride: rows of a row group. blooms: numbers of columns that get bloom filters.
    """
    yield structure(table.num_rows, stride)
    yield from _fields(table.columns, 1, stride, blooms)


def _fields(
    fields: Sequence[pa.ChunkedArray], number: int, stride: int, blooms: Collection[int]
) -> Iterator[LaidColumn]:
    """Columns of the fields of a struct without nulls, the first of them with this number."""
    for field in fields:
        for column in _column(field, number, stride, blooms):
            yield column
            number += 1


def _column(field: pa.ChunkedArray, number: int, stride: int, blooms: Collection[int]) -> Iterator[LaidColumn]:
    kind = field.type
    if pa.types.is_struct(kind) and not field.null_count:
        yield structure(len(field), stride)
        children = [
            pa.chunked_array([chunk.field(at) for chunk in field.chunks], kind.field(at).type)
            for at in range(kind.num_fields)
        ]
        yield from _fields(children, number + 1, stride, blooms)
        return
    ours = None if number in blooms or pa.types.is_nested(kind) else laid_out(_whole(field), stride)
    if ours is not None:
        yield ours
    else:
        below = range(number, number + _size(kind))
        yield from _by_pyarrow(field, stride, [bloom - number + 1 for bloom in blooms if bloom in below])


def _whole(field: pa.ChunkedArray) -> pa.Array:
    return field.chunk(0) if field.num_chunks == 1 else pa.concat_arrays(field.chunks)


def _by_pyarrow(field: pa.ChunkedArray, stride: int, blooms: Collection[int]) -> Iterator[LaidColumn]:
    """A column and those below it. blooms: as in a file that has no other column."""
    spool = written(pa.Table.from_arrays([field], names=["column"]), stride, blooms)
    tail = read_tail(spool, "<encoded in memory>")
    (information,) = tail.footer.stripes
    footer_at = information.offset + information.index_length + information.data_length
    footer = pb.StripeFooter.FromString(spool.read_at(information.footer_length, footer_at))
    spool.take(information.offset)
    indexes: dict[int, dict[pb.Stream.Kind, bytes]] = {}
    streams: deque[pb.Stream] = deque(footer.streams)
    while streams and streams[0].kind in INDEXES:
        stream = streams.popleft()
        indexes.setdefault(stream.column, {})[stream.kind] = spool.take(stream.length)
    for column in range(1, len(tail.footer.types)):
        found = indexes[column]
        index = pb.RowIndex.FromString(found.pop(pb.Stream.ROW_INDEX))
        while streams and streams[0].column == column:
            stream = streams.popleft()
            found[stream.kind] = spool.take(stream.length)
        yield LaidColumn(
            kind=tail.footer.types[column].kind,
            encoding=footer.columns[column],
            statistics=tail.metadata.stripe_stats[0].col_stats[column],
            index=index,
            streams=found,
        )


def written(table: pa.Table, stride: int, blooms: Collection[int]) -> Spool:
    """`table` as pyarrow makes an ORC file of it, of at most one stripe, not compressed."""
    spool = Spool()
    writer = orc.ORCWriter(
        pa.PythonFile(spool, mode="w"),
        compression="uncompressed",
        stripe_size=1 << 40,
        row_index_stride=stride,
        batch_size=8192,
        dictionary_key_size_threshold=DICTIONARY_THRESHOLD,
        bloom_filter_columns=sorted(blooms),
        bloom_filter_fpp=_BLOOM_FPP,
    )
    writer.write(hide_in_nulls(table))
    writer.close()
    return spool


def _size(kind: pa.DataType) -> int:
    """Number of columns of a type."""
    return 1 + sum(_size(kind.field(at).type) for at in range(kind.num_fields))


class Spool(io.RawIOBase):
    """A file in memory that is written once, in pieces, and lets go of them as they are taken from its front.

    Arrow's own buffer doubles and copies as it grows: twice the file's size at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[bytes] = deque()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._pieces.append(piece)
        return len(piece)

    def size(self) -> int:
        """Bytes not yet taken."""
        return sum(map(len, self._pieces))

    def read_at(self, count: int, offset: int) -> bytes:
        """Bytes that stay, `offset` after the front."""
        found: list[bytes] = []
        for piece in self._pieces:
            found.append(piece[max(offset, 0) : max(offset + count, 0)])
            offset -= len(piece)
        return b"".join(found)

    def take(self, count: int) -> bytes:
        """The first bytes, which go."""
        found: list[bytes] = []
        while count:
            piece = self._pieces.popleft()
            if len(piece) > count:
                self._pieces.appendleft(piece[count:])
            found.append(piece[:count])
            count -= len(found[-1])
        return b"".join(found)
