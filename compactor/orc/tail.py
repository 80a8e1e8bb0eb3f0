"""The tail of an ORC file: postscript, footer and stripe statistics.

Source: ORC v1 specification, "File Tail"; Hive `OrcRecordUpdater` (hive.acid.* user metadata).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from google.protobuf.message import DecodeError

from compactor.acid.records import RowId
from compactor.acid.schema import HiveType
from compactor.errors import CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import DEFAULT_BLOCK_SIZE, ENCODABLE, decompress
from compactor.orc.types import from_orc

MAGIC = b"ORC"
KEY_INDEX = "hive.acid.key.index"
ACID_STATS = "hive.acid.stats"
ACID_VERSION = "hive.acid.version"
ACID_COLUMNS = ("operation", "originalTransaction", "bucket", "rowId", "currentTransaction", "row")
BLOOM_FILTERS = (pb.Stream.BLOOM_FILTER, pb.Stream.BLOOM_FILTER_UTF8)
_FIRST_READ = 16 * 1024


class Readable(Protocol):
    """The part of pyarrow's NativeFile that reading a tail needs."""

    def size(self) -> int: ...

    def read_at(self, nbytes: int, offset: int) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class OrcTail:
    """A parsed tail. path: for messages. size: bytes of the file.

    blooms: (column, Stream.Kind) of the bloom filters in the first stripe, which stands for all that its writer wrote.
    """

    path: str
    size: int
    postscript: pb.PostScript
    footer: pb.Footer
    metadata: pb.Metadata
    blooms: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        return self.footer.number_of_rows

    @property
    def block_size(self) -> int:
        return self.postscript.compression_block_size or DEFAULT_BLOCK_SIZE

    @property
    def user_metadata(self) -> dict[str, bytes]:
        return {item.name: item.value for item in self.footer.metadata}

    @property
    def is_acid(self) -> bool:
        """The file has the six ACID columns (OrcInputFormat.isOriginal, negated)."""
        root = self.footer.types[0] if self.footer.types else pb.Type()
        return root.kind == pb.Type.STRUCT and tuple(root.field_names) == ACID_COLUMNS

    @property
    def proleptic(self) -> bool:
        """Which calendar dates count in; a file that does not say so counts in the hybrid one (ORC `ReaderImpl`)."""
        return self.footer.calendar == pb.PROLEPTIC_GREGORIAN

    @property
    def row_type(self) -> HiveType:
        """Type of the table's columns, without the ACID columns."""
        whole = from_orc(self.footer.types)
        return whole.children[5][1] if self.is_acid else whole

    def key_index(self) -> tuple[RowId, ...] | None:
        """Last row id of every stripe; None when the file has no index or not exactly one entry a stripe."""
        raw = self.user_metadata.get(KEY_INDEX)
        if raw is None:
            return None
        try:
            keys = tuple(RowId(*map(int, entry.split(","))) for entry in raw.decode("ascii").split(";") if entry)
        except (ValueError, TypeError) as error:
            raise CorruptFile(f"{self.path}: {KEY_INDEX} cannot be read: {error}") from error
        return keys if len(keys) == len(self.footer.stripes) else None


def read_tail(source: Readable, path: str) -> OrcTail:
    """Parse the tail with one or two reads; CorruptFile for a truncated, foreign or damaged file."""
    size = source.size()
    first = min(size, _FIRST_READ)
    buffer = bytes(source.read_at(first, size - first))
    if size < len(MAGIC) + 2 or len(buffer) != first:
        raise CorruptFile(f"{path}: {size} bytes are too few for an ORC file")
    postscript_length = buffer[-1]
    try:
        postscript = pb.PostScript.FromString(buffer[-1 - postscript_length : -1])
    except DecodeError as error:
        raise CorruptFile(f"{path}: no ORC file, or truncated: its last bytes are no postscript") from error
    if postscript.magic != MAGIC.decode():
        raise CorruptFile(f"{path}: no ORC file, or truncated: the magic 'ORC' is missing")
    tail_length = 1 + postscript_length + postscript.footer_length + postscript.metadata_length
    if tail_length > size:
        raise CorruptFile(f"{path}: truncated: the tail claims {tail_length} of {size} bytes")
    if tail_length > first:
        buffer = bytes(source.read_at(tail_length, size - tail_length))
    footer_end = len(buffer) - 1 - postscript_length
    footer_start = footer_end - postscript.footer_length
    block = postscript.compression_block_size or DEFAULT_BLOCK_SIZE
    try:
        footer = pb.Footer.FromString(decompress(postscript.compression, buffer[footer_start:footer_end], block))
        stripes_start = footer_start - postscript.metadata_length
        metadata = pb.Metadata.FromString(decompress(postscript.compression, buffer[stripes_start:footer_start], block))
    except DecodeError as error:
        raise CorruptFile(f"{path}: the ORC footer is damaged: {error}") from error
    tail = OrcTail(path=path, size=size, postscript=postscript, footer=footer, metadata=metadata)
    _check(tail)
    return replace(tail, blooms=_blooms(source, tail))


def _blooms(source: Readable, tail: OrcTail) -> tuple[tuple[int, int], ...]:
    if not tail.footer.stripes or not tail.footer.stripes[0].index_length:
        return ()
    if tail.postscript.compression not in ENCODABLE:
        # Its stripes cannot stand in a file of ours, so nobody asks.
        return ()
    first = tail.footer.stripes[0]
    raw = bytes(source.read_at(first.footer_length, first.offset + first.index_length + first.data_length))
    try:
        footer = pb.StripeFooter.FromString(decompress(tail.postscript.compression, raw, tail.block_size))
    except DecodeError as error:
        raise CorruptFile(f"{tail.path}: the footer of the first stripe is damaged: {error}") from error
    return tuple(sorted((s.column, s.kind) for s in footer.streams if s.kind in BLOOM_FILTERS))


def _check(tail: OrcTail) -> None:
    stripes = tail.footer.stripes
    if not tail.footer.types:
        raise CorruptFile(f"{tail.path}: the ORC footer names no types")
    # The type list is walked once here, so that nobody meets a broken one later.
    if tail.row_type.kind != "struct":
        raise CorruptFile(f"{tail.path}: the columns are of type {tail.row_type}, not a struct")
    if any(len(s.col_stats) not in (0, len(tail.footer.types)) for s in tail.metadata.stripe_stats):
        raise CorruptFile(f"{tail.path}: the statistics are not of the footer's {len(tail.footer.types)} types")
    if sum(s.number_of_rows for s in stripes) != tail.rows:
        raise CorruptFile(f"{tail.path}: the footer's {tail.rows} rows are not the sum of its stripes' rows")
    if any(stripe_end(s) > tail.size for s in stripes):
        raise CorruptFile(f"{tail.path}: truncated: a stripe ends beyond the file's {tail.size} bytes")


def stripe_end(stripe: pb.StripeInformation) -> int:
    return stripe.offset + stripe_length(stripe)


def stripe_length(stripe: pb.StripeInformation) -> int:
    """Bytes of a stripe: indexes, data and footer, which always lie together."""
    return stripe.index_length + stripe.data_length + stripe.footer_length
