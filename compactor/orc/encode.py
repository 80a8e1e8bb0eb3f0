"""Encoding an Arrow table as one stripe of an ORC file.

1. pyarrow's writer (ORC C++) lays the stripe out without compression: run lengths, dictionaries, row indexes,
   statistics.
2. Its streams are cut into blocks and compressed here: ISA-L deflates several times as fast as the zlib in ORC C++,
   into fewer bytes; LZ4 is really compressed; a block may be as small as Hive's 32 KB.
3. The row indexes follow their streams (`positions`).
4. The statistics get what the C++ writer leaves out (`statistics.complete`).

Sources: ORC v1 specification, "Stripes", "Compression"; ORC Java `TreeWriterBase`.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import orc

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import Blocks, compress, in_blocks
from compactor.orc.nulls import hide_in_nulls
from compactor.orc.positions import moved, recorded
from compactor.orc.statistics import complete
from compactor.orc.tail import BLOOM_FILTERS, OrcTail, read_tail

_Key = tuple[int, int]
"""Of a stream: its column and its Stream.Kind."""
DEFAULT_STRIDE = 10_000
_DICTIONARY_THRESHOLD = 0.8
"""Build a dictionary when at most this share of a column's values is distinct; pyarrow's default is never."""

_BLOOM_FPP = 0.01
"""Share of values that a bloom filter takes for present although they are not: orc.bloom.filter.fpp's default."""
_INDEXES = (pb.Stream.ROW_INDEX, *BLOOM_FILTERS)
"""Kinds of streams in a stripe's index area."""


@dataclass(frozen=True, kw_only=True)
class EncodedStripe:
    """A stripe that can stand at any offset of a file of its types and codec.

    information: lengths and rows; no offset yet. content: its bytes, in pieces.
    """

    information: pb.StripeInformation
    statistics: pb.StripeStatistics
    content: Sequence[bytes]


def encode(
    table: pa.Table, *, compression: int, block_size: int, stride: int = DEFAULT_STRIDE, blooms: Collection[int] = ()
) -> EncodedStripe:
    """`table`, which has rows, as one stripe.

    compression: CompressionKind, one of `compression.ENCODABLE`. block_size: bytes of a block before compression.
    blooms: columns, numbered as in the file's types, that get bloom filters.
    Memory beside the table: twice the stripe without compression, and less than that once it is compressed.
    """
    _release()
    plain = _laid_out(table, stride, blooms)
    _release()
    tail = read_tail(plain, "<encoded in memory>")
    (information,) = tail.footer.stripes
    footer_at = information.offset + information.index_length + information.data_length
    footer = pb.StripeFooter.FromString(plain.read_at(information.footer_length, footer_at))
    plain.take(information.offset)
    raw = (((stream.column, stream.kind), plain.take(stream.length)) for stream in footer.streams)
    streams: dict[_Key, bytes]
    if compression == pb.NONE:
        streams = dict(raw)
    else:
        streams = _compressed(raw, [t.kind for t in tail.footer.types], footer, compression, block_size)

    on_disk: Counter[int] = Counter()
    for stream in footer.streams:
        stream.length = len(streams[stream.column, stream.kind])
        if stream.kind not in _INDEXES:
            on_disk[stream.column] += stream.length
    packed_footer = compress(compression, footer.SerializeToString(), block_size)
    statistics = tail.metadata.stripe_stats[0]
    complete(statistics, on_disk)
    return EncodedStripe(
        information=pb.StripeInformation(
            index_length=sum(s.length for s in footer.streams) - on_disk.total(),
            data_length=on_disk.total(),
            footer_length=len(packed_footer),
            number_of_rows=information.number_of_rows,
        ),
        statistics=statistics,
        content=[*(streams[stream.column, stream.kind] for stream in footer.streams), packed_footer],
    )


def _compressed(
    raw: Iterable[tuple[_Key, bytes]], kinds: Sequence[int], footer: pb.StripeFooter, compression: int, block_size: int
) -> dict[_Key, bytes]:
    """The streams in blocks of the codec, with row indexes to match.

    raw: every stream, one at a time. kinds: Type.Kind of every column.
    """
    indexes: dict[_Key, bytes] = {}
    data: dict[_Key, Blocks] = {}
    for key, content in raw:
        if key[1] == pb.Stream.ROW_INDEX:
            indexes[key] = content
        else:
            data[key] = in_blocks(compression, content, block_size)
    for (column, kind), content in indexes.items():
        present = (column, pb.Stream.PRESENT) in data
        places = recorded(kinds[column], footer.columns[column].kind, present=present)
        index = moved(pb.RowIndex.FromString(content), [(data[column, stream], after) for stream, after in places])
        indexes[column, kind] = compress(compression, index.SerializeToString(), block_size)
    return indexes | {key: blocks.content for key, blocks in data.items()}


def writer_tail(schema: pa.Schema) -> OrcTail:
    """The tail that pyarrow's writer gives an uncompressed file of `schema` without rows."""
    return read_tail(_laid_out(schema.empty_table(), DEFAULT_STRIDE, ()), "<empty>")


def _laid_out(table: pa.Table, stride: int, blooms: Collection[int]) -> _Spool:
    """`table` as an ORC file of at most one stripe, not compressed."""
    spool = _Spool()
    writer = orc.ORCWriter(
        pa.PythonFile(spool, mode="w"),
        compression="uncompressed",
        stripe_size=1 << 40,
        row_index_stride=stride,
        batch_size=8192,
        dictionary_key_size_threshold=_DICTIONARY_THRESHOLD,
        bloom_filter_columns=sorted(blooms),
        bloom_filter_fpp=_BLOOM_FPP,
    )
    writer.write(hide_in_nulls(table))
    writer.close()
    return spool


def _release() -> None:
    """Give back what reading, filtering and writing freed: malloc keeps as much again as a stripe needs.

    The C++ writer and reader allocate with malloc, which the system pool trims, whatever Arrow's own pool is.
    """
    pa.default_memory_pool().release_unused()
    pa.system_memory_pool().release_unused()


class _Spool(io.RawIOBase):
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
