"""Giving the rows of a stripe other row ids without decoding them.

A stripe of an ACID file holds the ACID columns 1 to 5 and, from column 6 on, the row. Nothing in the streams of one
column refers to another column: the ACID columns are encoded anew, the streams of the row are copied byte for byte,
and the stripe gets a footer that lists both. A stripe of a file without ACID columns is lifted under column 6 as it
is. Values that Arrow cannot hold come through, and a stripe costs little more than its copy.

Sources: ORC v1 specification, "Stripes" and "Types" (pre-order column numbers).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from google.protobuf.message import DecodeError

from compactor.errors import CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import Template
from compactor.orc.compression import compress, decompress
from compactor.orc.encode import EncodedStripe, encode
from compactor.orc.reader import OrcSource
from compactor.orc.tail import stripe_length

_ROW_COLUMN = 6
_INDEXES = frozenset({pb.Stream.ROW_INDEX, pb.Stream.BLOOM_FILTER, pb.Stream.BLOOM_FILTER_UTF8})
_Stream = tuple[pb.Stream, bytes]


def renumbered(source: OrcSource, stripe: int, ids: pa.Table, template: Template) -> EncodedStripe:
    """A stripe of `source` with the ACID columns `ids`, one row for each of its rows.

    template: the output's; it accepts the source, or would if that had ACID columns. Memory: the stripe as it is in the
    file. Raises CorruptFile.
    """
    acid = encode(ids, compression=template.compression, block_size=template.block_size, stride=template.stride)
    ours = _footer(template.compression, acid.content[-1], template.block_size, source.path)
    information = source.tail.footer.stripes[stripe]
    content = memoryview(source.stream.read_at(stripe_length(information), information.offset))
    footer_at = information.index_length + information.data_length
    theirs = _footer(template.compression, content[footer_at:], source.tail.block_size, source.path)
    shift = 0 if source.tail.is_acid else _ROW_COLUMN
    streams: list[_Stream] = [(s, bytes(c)) for s, c in zip(ours.streams, acid.content[:-1], strict=True)]
    at = 0
    for stream in theirs.streams:
        if stream.column + shift >= _ROW_COLUMN:
            moved = pb.Stream(kind=stream.kind, column=stream.column + shift, length=stream.length)
            streams.append((moved, bytes(content[at : at + stream.length])))
        at += stream.length
    if at != footer_at or len(content) != stripe_length(information):
        raise CorruptFile(f"{source.path}: the streams of stripe {stripe} do not fill it")
    first_row_column = _ROW_COLUMN - shift
    return _assembled(
        streams,
        columns=[*ours.columns[:_ROW_COLUMN], *theirs.columns[first_row_column:]],
        zone=theirs.writer_timezone,
        statistics=[
            *acid.statistics.col_stats[:_ROW_COLUMN],
            *source.tail.metadata.stripe_stats[stripe].col_stats[first_row_column:],
        ],
        rows=information.number_of_rows,
        template=template,
    )


def _assembled(
    streams: Sequence[_Stream],
    *,
    columns: Sequence[pb.ColumnEncoding],
    zone: str,
    statistics: Sequence[pb.ColumnStatistics],
    rows: int,
    template: Template,
) -> EncodedStripe:
    indexes = [s for s in streams if s[0].kind in _INDEXES]
    data = [s for s in streams if s[0].kind not in _INDEXES]
    footer = pb.StripeFooter(streams=[stream for stream, _ in (*indexes, *data)], columns=columns)
    if zone:
        footer.writer_timezone = zone
    packed = compress(template.compression, footer.SerializeToString(), template.block_size)
    return EncodedStripe(
        information=pb.StripeInformation(
            index_length=sum(stream.length for stream, _ in indexes),
            data_length=sum(stream.length for stream, _ in data),
            footer_length=len(packed),
            number_of_rows=rows,
        ),
        statistics=pb.StripeStatistics(col_stats=statistics),
        content=[*(content for _, content in (*indexes, *data)), packed],
    )


def _footer(kind: int, packed: bytes | memoryview, block_size: int, path: str) -> pb.StripeFooter:
    try:
        return pb.StripeFooter.FromString(decompress(kind, bytes(packed), block_size))
    except DecodeError as error:
        raise CorruptFile(f"{path}: a stripe footer is damaged: {error}") from error
