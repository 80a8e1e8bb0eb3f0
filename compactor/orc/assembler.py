"""Assembling an ORC file from stripes: raw copies of stripes of other files and freshly encoded ones.

A stripe is self-contained: its indexes, data, footer and encodings do not refer to anything outside it. A file is
its stripes plus a tail, and the tail is written here. Which stripes may stand in one file: `Template.accepts`.
Sources: ORC v1 specification; facts measured against ORC-Java, ORC-C++ and Hive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from compactor.acid.records import RowId
from compactor.acid.schema import HiveType
from compactor.errors import CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import DEFAULT_BLOCK_SIZE, ENCODABLE, compress
from compactor.orc.encode import DEFAULT_STRIDE, EncodedStripe, encode, writer_tail
from compactor.orc.reader import OrcSource
from compactor.orc.statistics import merge_file_statistics
from compactor.orc.tail import ACID_STATS, ACID_VERSION, KEY_INDEX, MAGIC, OrcTail, stripe_length
from compactor.orc.types import acid_type, to_orc
from compactor.storage.calendar import holds_dates, to_hybrid
from compactor.storage.ranges import append_range

_SHORTEST_STRIDE_OF_JAVA = 1000


@dataclass(frozen=True, kw_only=True)
class Template:
    """What all stripes of a file have in common, taken from a source's tail or from pyarrow's own.

    types: serialised type list. blooms: as in `OrcTail`. The other fields are those of postscript and footer.
    """

    types: tuple[bytes, ...]
    compression: int
    version: tuple[int, ...]
    writer: int
    writer_version: int
    stride: int
    calendar: int
    encrypted: bool
    blooms: tuple[tuple[int, int], ...]
    block_size: int = field(compare=False)
    software: str = field(compare=False)

    @classmethod
    def of(cls, tail: OrcTail) -> Template:
        footer, postscript = tail.footer, tail.postscript
        return cls(
            types=tuple(_normalised(t) for t in footer.types),
            compression=postscript.compression,
            version=tuple(postscript.version),
            writer=footer.writer,
            writer_version=postscript.writer_version,
            stride=footer.row_index_stride,
            calendar=footer.calendar,
            encrypted=footer.HasField("encryption"),
            blooms=tail.blooms,
            block_size=tail.block_size,
            software=footer.software_version,
        )

    @classmethod
    def like(cls, tail: OrcTail, file_type: HiveType) -> Template:
        """As `of`, for a file of `file_type` that we can encode stripes for."""
        found = cls.of(tail)
        types = _serialised(file_type)
        # We write the newer kind only. Columns of other types are not those that the filters are of.
        blooms = sorted({(column, pb.Stream.BLOOM_FILTER_UTF8) for column, _ in found.blooms if types == found.types})
        template = replace(found, types=types, encrypted=False, blooms=tuple(blooms))
        if template.compression not in ENCODABLE:
            template = replace(template, compression=pb.ZLIB)
        # orc-core writes no shorter stride (WriterImpl), and may have to write some of these columns.
        too_short = 0 < template.stride < _SHORTEST_STRIDE_OF_JAVA and _may_be_beyond_arrow(file_type)
        return replace(template, stride=DEFAULT_STRIDE) if too_short or not template.stride else template

    @classmethod
    def fresh(cls, file_type: HiveType, *, compression: int) -> Template:
        """For a file that takes nothing from another one: as pyarrow writes it, with our types."""
        # What is asked of pyarrow's tail depends on no type; Arrow has none for a union.
        own = cls.of(writer_tail(pa.schema([pa.field("any", pa.int32())])))
        return replace(own, types=_serialised(file_type), compression=compression, block_size=DEFAULT_BLOCK_SIZE)

    @property
    def proleptic(self) -> bool:
        """As `OrcTail.proleptic`."""
        return self.calendar == pb.PROLEPTIC_GREGORIAN

    def accepts(self, tail: OrcTail) -> bool:
        """May raw stripes of a file with this tail stand in a file of this template?

        Block size, time zone and encodings may differ: they are per stripe. Bloom filters are too, but orc-core asks
        those of the stripe before about a stripe that has none (`StripePlanner`, before that `RecordReaderImpl`), and
        so may lose rows. A row-index stride of 0 never fits: such files have no indexes and statistics of 0, which
        Hive would trust.
        """
        return not self.encrypted and self.stride > 0 and Template.of(tail) == self


@dataclass(frozen=True, kw_only=True)
class AcidStats:
    """Content of hive.acid.stats (OrcRecordUpdater's AcidStats)."""

    inserts: int = 0
    deletes: int = 0


class FileAssembler:
    """Writes one ORC file to `stream`: stripes in order, then `finish`.

    `finish` may be followed by more stripes and another `finish`: that is how a streaming file grows, each tail
    covering all stripes so far (Hive's writeIntermediateFooter).
    """

    def __init__(self, stream: pa.NativeFile, template: Template) -> None:
        self._stream = stream
        self._template = template
        self._stripes: list[pb.StripeInformation] = []
        self._statistics: list[pb.StripeStatistics] = []
        self._last_keys: list[RowId | None] = []
        self._block_size = template.block_size
        self._position = len(MAGIC)
        self.stripes_copied = self.stripes_encoded = 0
        self.bytes_copied = self.bytes_encoded = 0
        stream.write(MAGIC)

    @property
    def rows(self) -> int:
        return sum(s.number_of_rows for s in self._stripes)

    @property
    def stripes(self) -> int:
        return len(self._stripes)

    def copy(self, source: OrcSource, stripe: int, last_key: RowId | None) -> None:
        """Append a stripe as it is. The caller has checked `Template.accepts`."""
        information = source.tail.footer.stripes[stripe]
        length = stripe_length(information)
        self._register(information, source.tail.metadata.stripe_stats[stripe], last_key)
        self._block_size = max(self._block_size, source.tail.block_size)
        self.stripes_copied += 1
        self.bytes_copied += length
        copied = append_range(self._stream, source.stream, information.offset, length)
        if copied < length:
            raise CorruptFile(f"{source.path}: stripe {stripe} ends {length - copied} bytes too early")

    def append(self, table: pa.Table, last_key: RowId | None) -> None:
        """Encode `table` as one stripe and append it; an empty table adds nothing.

        Dates are given in the proleptic calendar, whichever the file's is.
        """
        if not table.num_rows:
            return
        stripe = encode(
            table if self._template.proleptic else _in_hybrid_calendar(table),
            compression=self._template.compression,
            block_size=self._template.block_size,
            stride=self._template.stride,
            blooms=[column for column, _ in self._template.blooms],
        )
        self._place(stripe, last_key)
        self.stripes_encoded += 1
        self.bytes_encoded += stripe_length(stripe.information)

    def lift(self, stripe: EncodedStripe, last_key: RowId | None, *, block_size: int) -> None:
        """Append a stripe made of streams of other files. block_size: the largest of their blocks."""
        self._block_size = max(self._block_size, block_size)
        self._place(stripe, last_key)
        self.stripes_copied += 1
        self.bytes_copied += stripe_length(stripe.information)

    def finish(self, acid: AcidStats | None) -> int:
        """Write the tail; returns the file's size so far. acid: None for files without ACID columns."""
        template = self._template
        footer = pb.Footer(
            header_length=len(MAGIC),
            content_length=self._position,
            stripes=self._stripes,
            types=[pb.Type.FromString(t) for t in template.types],
            metadata=list(self._user_metadata(acid)),
            number_of_rows=self.rows,
            statistics=merge_file_statistics(len(template.types), self._statistics),
            row_index_stride=template.stride,
            writer=template.writer,
        )
        if template.calendar:
            footer.calendar = template.calendar  # type: ignore[assignment]
        if template.software:
            footer.software_version = template.software
        metadata = pb.Metadata(stripe_stats=self._statistics)
        kind, block = template.compression, self._block_size
        packed_metadata = compress(kind, metadata.SerializeToString(), block)
        packed_footer = compress(kind, footer.SerializeToString(), block)
        postscript = pb.PostScript(
            footer_length=len(packed_footer),
            compression=kind,  # type: ignore[arg-type]
            version=template.version,
            metadata_length=len(packed_metadata),
            writer_version=template.writer_version,
            magic=MAGIC.decode(),
        )
        if kind != pb.NONE:
            postscript.compression_block_size = block
        packed_postscript = postscript.SerializeToString()
        tail = packed_metadata + packed_footer + packed_postscript + bytes([len(packed_postscript)])
        self._stream.write(tail)
        self._position += len(tail)
        return self._position

    def _place(self, stripe: EncodedStripe, last_key: RowId | None) -> None:
        self._register(stripe.information, stripe.statistics, last_key)
        for piece in stripe.content:
            self._stream.write(piece)

    def _register(self, information: pb.StripeInformation, statistics: pb.StripeStatistics, last: RowId | None) -> None:
        placed = pb.StripeInformation()
        placed.CopyFrom(information)
        placed.offset = self._position
        self._stripes.append(placed)
        self._statistics.append(statistics)
        self._last_keys.append(last)
        self._position += stripe_length(information)

    def _user_metadata(self, acid: AcidStats | None) -> Iterable[pb.UserMetadataItem]:
        if acid is None:
            return
        index = "".join(f"{k.write_id},{k.bucket},{k.row_id};" for k in self._last_keys if k is not None)
        yield pb.UserMetadataItem(name=ACID_VERSION, value=b"2")
        yield pb.UserMetadataItem(name=KEY_INDEX, value=index.encode())
        yield pb.UserMetadataItem(name=ACID_STATS, value=f"{acid.inserts},0,{acid.deletes}".encode())


def _in_hybrid_calendar(table: pa.Table) -> pa.Table:
    if not any(holds_dates(kind) for kind in table.schema.types):
        return table
    columns = [pa.chunked_array([to_hybrid(c) for c in column.chunks], column.type) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _normalised(node: pb.Type) -> bytes:
    """The C++ writer spells out a length, precision and scale of 0 where Java leaves them out."""
    bare = pb.Type()
    bare.CopyFrom(node)
    if not bare.maximum_length:
        bare.ClearField("maximum_length")
    if bare.kind != pb.Type.DECIMAL:
        bare.ClearField("precision")
        bare.ClearField("scale")
    return bare.SerializeToString(deterministic=True)


def _may_be_beyond_arrow(hive_type: HiveType) -> bool:
    """Can values of the type make the JVM write them?"""
    return hive_type.kind.startswith(("timestamp", "uniontype")) or any(
        _may_be_beyond_arrow(child) for _, child in hive_type.children
    )


def _serialised(file_type: HiveType) -> tuple[bytes, ...]:
    return tuple(t.SerializeToString(deterministic=True) for t in to_orc(file_type))


def acid_template(row_type: HiveType, *, compression: int) -> Template:
    return Template.fresh(acid_type(row_type), compression=compression)
