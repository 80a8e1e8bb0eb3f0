"""Encoding an Arrow table as one stripe of an ORC file.

1. Its columns are laid out without compression (`layout`): run lengths, dictionaries, row indexes, statistics.
2. Their streams are cut into blocks and compressed here: ISA-L deflates several times as fast as the zlib in ORC C++,
   into fewer bytes; LZ4 is really compressed; a block may be as small as Hive's 32 KB.
3. The row indexes follow their streams (`positions`).
4. The statistics get what the C++ writer leaves out (`statistics.complete`).

Sources: ORC v1 specification, "Stripes", "Compression"; ORC Java `TreeWriterBase`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.columns import LaidColumn
from compactor.orc.compression import compress, in_blocks
from compactor.orc.layout import INDEXES, ZONE, columns_of, written
from compactor.orc.positions import moved, recorded
from compactor.orc.statistics import complete
from compactor.orc.tail import OrcTail, read_tail
from compactor.orc.values import Content

DEFAULT_STRIDE = 10_000


@dataclass(frozen=True, kw_only=True)
class EncodedStripe:
    """A stripe that can stand at any offset of a file of its types and codec.

    information: lengths and rows; no offset yet. content: its bytes, in pieces.
    """

    information: pb.StripeInformation
    statistics: pb.StripeStatistics
    content: Sequence[Content]


def encode(
    table: pa.Table, *, compression: int, block_size: int, stride: int = DEFAULT_STRIDE, blooms: Collection[int] = ()
) -> EncodedStripe:
    """`table`, which has rows, as one stripe.

    compression: CompressionKind, one of `compression.ENCODABLE`. block_size: bytes of a block before compression.
    blooms: columns, numbered as in the file's types, that get bloom filters.
    Memory beside the table: the stripe, and a column without compression.
    """
    footer = pb.StripeFooter(writer_timezone=ZONE)
    statistics = pb.StripeStatistics()
    # By the area of the stripe that they belong to.
    indexes: list[tuple[pb.Stream, Content]] = []
    data: list[tuple[pb.Stream, Content]] = []
    on_disk: Counter[int] = Counter()
    for number, column in enumerate(columns_of(table, stride, blooms)):
        footer.columns.append(column.encoding)
        statistics.col_stats.append(column.statistics)
        for kind, content in _streams(column, compression, block_size):
            stream = pb.Stream(kind=kind, column=number, length=len(content))
            if kind in INDEXES:
                indexes.append((stream, content))
            else:
                data.append((stream, content))
                on_disk[number] += len(content)
    footer.streams.extend(stream for stream, _ in (*indexes, *data))
    packed_footer = compress(compression, footer.SerializeToString(), block_size)
    complete(statistics, on_disk)
    return EncodedStripe(
        information=pb.StripeInformation(
            index_length=sum(stream.length for stream, _ in indexes),
            data_length=on_disk.total(),
            footer_length=len(packed_footer),
            number_of_rows=table.num_rows,
        ),
        statistics=statistics,
        content=[*(content for _, content in (*indexes, *data)), packed_footer],
    )


def _streams(column: LaidColumn, compression: int, block_size: int) -> list[tuple[pb.Stream.Kind, Content]]:
    """The row index and the streams of a column, as they are in the stripe."""
    if compression == pb.NONE:
        return [(pb.Stream.ROW_INDEX, column.index.SerializeToString()), *column.streams.items()]
    blocks = {kind: in_blocks(compression, content, block_size) for kind, content in column.streams.items()}
    places = recorded(column.kind, column.encoding.kind, present=pb.Stream.PRESENT in blocks)
    index = moved(column.index, [(blocks[stream], after) for stream, after in places])
    packed = compress(compression, index.SerializeToString(), block_size)
    return [(pb.Stream.ROW_INDEX, packed), *((kind, found.content) for kind, found in blocks.items())]


def writer_tail(schema: pa.Schema) -> OrcTail:
    """The tail that pyarrow's writer gives an uncompressed file of `schema` without rows."""
    return read_tail(written(schema.empty_table(), DEFAULT_STRIDE, ()), "<empty>")
