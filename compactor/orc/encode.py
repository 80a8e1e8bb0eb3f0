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

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import orc

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import compress, in_blocks
from compactor.orc.positions import moved, recorded
from compactor.orc.statistics import complete
from compactor.orc.tail import OrcTail, read_tail

_Streams = dict[tuple[int, int], bytes | memoryview]
"""Content by column and Stream.Kind."""
DEFAULT_STRIDE = 10_000
_DICTIONARY_THRESHOLD = 0.8
"""Build a dictionary when at most this share of a column's values is distinct; pyarrow's default is never."""


@dataclass(frozen=True, kw_only=True)
class EncodedStripe:
    """A stripe that can stand at any offset of a file of its types and codec.

    information: lengths and rows; no offset yet. content: its bytes, in pieces.
    """

    information: pb.StripeInformation
    statistics: pb.StripeStatistics
    content: Sequence[bytes | memoryview]


def encode(table: pa.Table, *, compression: int, block_size: int, stride: int = DEFAULT_STRIDE) -> EncodedStripe:
    """`table`, which has rows, as one stripe.

    compression: CompressionKind, one of `compression.ENCODABLE`. block_size: bytes of a block before compression.
    Memory: the table, the stripe without compression and the stripe.
    """
    plain = _laid_out(table, stride)
    tail = read_tail(pa.BufferReader(plain), "<encoded in memory>")
    (information,) = tail.footer.stripes
    content = memoryview(plain)[information.offset :]
    footer_at = information.index_length + information.data_length
    footer = pb.StripeFooter.FromString(bytes(content[footer_at : footer_at + information.footer_length]))
    streams = _streams(footer, content)
    if compression != pb.NONE:
        kinds = [t.kind for t in tail.footer.types]
        streams = _compressed(streams, kinds, footer, compression, block_size)

    on_disk: Counter[int] = Counter()
    for stream in footer.streams:
        stream.length = len(streams[stream.column, stream.kind])
        if stream.kind != pb.Stream.ROW_INDEX:
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
        content=[*streams.values(), packed_footer],
    )


def _streams(footer: pb.StripeFooter, content: memoryview) -> _Streams:
    """The streams of a stripe in their order; the indexes come first."""
    streams: _Streams = {}
    at = 0
    for stream in footer.streams:
        streams[stream.column, stream.kind] = content[at : at + stream.length]
        at += stream.length
    return streams


def _compressed(
    streams: _Streams, kinds: Sequence[int], footer: pb.StripeFooter, compression: int, block_size: int
) -> _Streams:
    """The streams in blocks of the codec, with row indexes to match. kinds: Type.Kind of every column."""
    data = {
        key: in_blocks(compression, raw, block_size) for key, raw in streams.items() if key[1] != pb.Stream.ROW_INDEX
    }
    found: _Streams = {}
    for key, raw in streams.items():
        column = key[0]
        if key in data:
            found[key] = data[key].content
        else:
            present = (column, pb.Stream.PRESENT) in data
            places = recorded(kinds[column], footer.columns[column].kind, present=present)
            index = moved(
                pb.RowIndex.FromString(bytes(raw)), [(data[column, stream], after) for stream, after in places]
            )
            found[key] = compress(compression, index.SerializeToString(), block_size)
    return found


def writer_tail(schema: pa.Schema) -> OrcTail:
    """The tail that pyarrow's writer gives an uncompressed file of `schema` without rows."""
    return read_tail(pa.BufferReader(_laid_out(schema.empty_table(), DEFAULT_STRIDE)), "<empty>")


def _laid_out(table: pa.Table, stride: int) -> pa.Buffer:
    """`table` as an ORC file of at most one stripe, not compressed."""
    sink = pa.BufferOutputStream()
    writer = orc.ORCWriter(
        sink,
        compression="uncompressed",
        stripe_size=1 << 40,
        row_index_stride=stride,
        batch_size=8192,
        dictionary_key_size_threshold=_DICTIONARY_THRESHOLD,
    )
    writer.write(table)
    writer.close()
    return sink.getvalue()
