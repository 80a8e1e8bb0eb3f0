"""Parquet files as lists of row groups: footers read, row groups copied as they are, a new footer written.

A copied row group keeps its pages, statistics, page indexes and bloom filters; only the offsets in its metadata
move. The footer keeps the template's schema, writer (`created_by`) and key-value metadata, by which readers decide what
timestamps, dates and old statistics mean. Source: Apache Parquet, `parquet.thrift` (field numbers) and "Page Index".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from compactor.errors import CorruptFile, UnsupportedData
from compactor.storage.filesystem import FileSystem, translated
from compactor.storage.thrift import Kind, Struct, ThriftError, ThriftList, parse, serialize

MAGIC = b"PAR1"
_COPY_BYTES = 8 << 20
_TAIL_BYTES = 64 << 10
_BLOOM_HEADER_BYTES = 256
# FileMetaData
_SCHEMA, _ROWS, _GROUPS, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION = 2, 3, 4, 5, 6, 7, 8
# SchemaElement
_TYPE, _TYPE_LENGTH, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _SCALE, _LOGICAL = 1, 2, 3, 4, 5, 6, 7, 10
# RowGroup
_CHUNKS, _UNCOMPRESSED, _GROUP_ROWS, _GROUP_OFFSET, _ORDINAL = 1, 2, 3, 5, 7
# ColumnChunk
_FILE, _CHUNK_OFFSET, _META, _OFFSET_INDEX, _COLUMN_INDEX, _CRYPTO = 1, 2, 3, 4, 6, 8
# ColumnMetaData
_PATH, _CODEC, _COMPRESSED, _DATA_PAGE, _INDEX_PAGE, _DICTIONARY, _BLOOM, _BLOOM_LENGTH = 3, 4, 7, 9, 10, 11, 14, 15
_INTERPRETED = re.compile(rb"writer\.|org\.apache\.spark\.|parquet\.|ARROW:")
"""Keys of metadata that readers let decide what values mean."""
_INT32, _INT64, _INT96 = 1, 2, 3
_DECIMAL = 5
_UNITS = {7: 1, 9: 1, 8: 2, 10: 2}
"""Unit (1 milliseconds, 2 microseconds) of the converted types TIME_MILLIS, TIMESTAMP_MILLIS, TIME_MICROS, ..."""
_TOO_SHORT = re.compile(rb"parquet-mr version 1\.[0-2]\.[0-8]\b")
"""Writers whose chunks are longer than they say (PARQUET-816)."""


@dataclass(frozen=True)
class Leaf:
    """A column of values. path: names down to it. stored: all that decides how its values and levels are written."""

    path: tuple[bytes, ...]
    stored: tuple[object, ...]

    @property
    def is_int96(self) -> bool:
        return self.stored[0] == _INT96

    @property
    def is_integer_decimal(self) -> bool:
        return self.stored[0] in (_INT32, _INT64) and self.stored[-1] is True


class Footer:
    """A file's footer. end: position in the file where it starts."""

    def __init__(self, path: str, metadata: Struct, end: int) -> None:
        self.path, self.end = path, end
        self.metadata = metadata

    @property
    def rows(self) -> int:
        return int(self.metadata.get(_ROWS))

    @property
    def groups(self) -> Sequence[Struct]:
        found: Sequence[Struct] = self.metadata.get(_GROUPS).items
        return found

    def group_rows(self, position: int) -> int:
        return int(self.groups[position].get(_GROUP_ROWS))

    def group_bytes(self, position: int) -> int:
        """Compressed bytes of a row group's columns."""
        return sum(int(chunk.get(_META).get(_COMPRESSED)) for chunk in self.groups[position].get(_CHUNKS))

    def decoded_bytes(self, position: int) -> int:
        """Uncompressed bytes of a row group."""
        return int(self.groups[position].get(_UNCOMPRESSED))

    @cached_property
    def signature(self) -> bytes:
        """Equal in two files exactly when their row groups may stand in one file."""
        shared = Struct({n: self.metadata.fields[n] for n in (_SCHEMA, _CREATED_BY, _COLUMN_ORDERS) if self._has(n)})
        digest = hashlib.sha256(serialize(shared))
        for pair in sorted((p.get(1), p.get(2, b"")) for p in self.metadata.get(_KEY_VALUES, ())):
            if _INTERPRETED.match(pair[0]):
                digest.update(b"".join(len(text).to_bytes(8, "big") + text for text in pair))
        return digest.digest()

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(_leaves(iter(self.metadata.get(_SCHEMA).items)))

    @cached_property
    def codecs(self) -> frozenset[int]:
        """CompressionCodec of all columns of all row groups."""
        return frozenset(int(c.get(_META).get(_CODEC)) for g in self.groups for c in g.get(_CHUNKS))

    @property
    def has_page_index(self) -> bool:
        return any(chunk.get(_COLUMN_INDEX) for group in self.groups[:1] for chunk in group.get(_CHUNKS))

    def check_copyable(self) -> None:
        """UnsupportedData when the file's row groups cannot be copied."""
        if self._has(_ENCRYPTION) or any(c.get(_CRYPTO) for g in self.groups for c in g.get(_CHUNKS)):
            raise UnsupportedData(f"{self.path} is encrypted", hint="encrypted files cannot be compacted")
        if any(chunk.get(_FILE) for group in self.groups for chunk in group.get(_CHUNKS)):
            raise UnsupportedData(f"{self.path} keeps its columns in other files")
        if _TOO_SHORT.match(self.metadata.get(_CREATED_BY, b"")):
            raise UnsupportedData(f"{self.path} was written by a Parquet library of before 2013")

    def _has(self, number: int) -> bool:
        return number in self.metadata.fields


def read_footer(fs: FileSystem, path: str) -> Footer:
    """The footer of a Parquet file; CorruptFile when there is none, UnsupportedData when it is encrypted."""
    with fs.open(path) as stream:
        return footer_of(stream, path)


def footer_of(stream: pa.NativeFile, path: str) -> Footer:
    """`read_footer` of an open file, which is left where it was."""
    with translated(path):
        size = stream.size()
        tail = bytes(stream.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0)))
        if tail[-4:] == b"PARE":
            raise UnsupportedData(f"{path} is encrypted", hint="encrypted files cannot be compacted")
        length = int.from_bytes(tail[-8:-4], "little")
        if size < 12 or tail[-4:] != MAGIC or length > size - 12:
            raise CorruptFile(f"{path}: no Parquet file, or truncated")
        data = tail[-8 - length : -8] if length <= len(tail) - 8 else bytes(stream.read_at(length, size - 8 - length))
    try:
        metadata, _ = parse(data)
        footer = Footer(path, metadata, size - 8 - length)
        _ = footer.rows, footer.signature, footer.leaves, [footer.group_bytes(i) for i in range(len(footer.groups))]
    except (ThriftError, AttributeError, TypeError, StopIteration, KeyError) as error:
        raise CorruptFile(f"{path}: the footer cannot be read: {error}") from error
    return footer


def _leaves(elements: Iterator[Struct]) -> Iterator[Leaf]:
    """The leaves of a schema, whose elements are a tree in depth-first order; its root is no column."""
    for _ in range(next(elements).get(_CHILDREN, 0)):
        yield from _below(elements, (), ())


def _below(elements: Iterator[Struct], path: tuple[bytes, ...], levels: tuple[int, ...]) -> Iterator[Leaf]:
    element = next(elements)
    path, levels = (*path, element.get(_NAME)), (*levels, element.get(_REPETITION))
    children = element.get(_CHILDREN, 0)
    if not children:
        length, scale = element.get(_TYPE_LENGTH, 0), element.get(_SCALE, 0)
        decimal = element.get(_CONVERTED) == _DECIMAL
        yield Leaf(path=path, stored=(element.get(_TYPE), length, levels, _unit(element), scale, decimal))
    for _ in range(children):
        yield from _below(elements, path, levels)


def _unit(element: Struct) -> int:
    logical = element.get(_LOGICAL)
    time = logical.get(7) or logical.get(8) if logical is not None else None
    return next(iter(time.get(2).fields)) if time is not None else _UNITS.get(element.get(_CONVERTED), 0)


class ParquetAssembler:
    """Writes a Parquet file from row groups of others. template: gives the footer all but the row groups."""

    def __init__(self, stream: pa.NativeFile, template: Footer) -> None:
        self._out = stream
        self._template = template
        self._groups: list[Struct] = []
        self._indexes: list[tuple[Struct, int, bytes]] = []
        self.rows = 0
        self._out.write(MAGIC)

    def copy(self, source: pa.NativeFile, footer: Footer, position: int) -> None:
        """Copy a row group of a file with the template's signature. Memory: 8 MB, and its page indexes to the end."""
        group = footer.groups[position].copy()
        start = self._out.tell()
        chunks = [self._chunk(source, footer, chunk.copy()) for chunk in group.get(_CHUNKS)]
        for chunk in chunks:
            self._bloom_filter(source, footer, chunk.get(_META))
        group.change(_CHUNKS, ThriftList(Kind.STRUCT, chunks))
        if group.get(_GROUP_OFFSET) is not None:
            group.change(_GROUP_OFFSET, start)
        if group.get(_ORDINAL) is not None:
            group.fields.pop(_ORDINAL)
        self._groups.append(group)
        self.rows += int(group.get(_GROUP_ROWS))

    def append(self, encoded: pa.Buffer) -> bool:
        """Copy all row groups of a file in memory; False, and nothing is written, if they are stored in another way."""
        footer = footer_of(pa.BufferReader(encoded), "rows encoded anew")
        if [leaf.stored for leaf in footer.leaves] != [leaf.stored for leaf in self._template.leaves]:
            return False
        for group in footer.groups:
            for chunk, leaf in zip(group.get(_CHUNKS), self._template.leaves, strict=True):
                chunk.get(_META).change(_PATH, ThriftList(Kind.BINARY, list(leaf.path)))
        for position in range(len(footer.groups)):
            self.copy(pa.BufferReader(encoded), footer, position)
        return True

    def finish(self) -> None:
        """Write page indexes and footer."""
        for chunk, number, data in self._indexes:
            chunk.change(number, self._out.tell())
            self._out.write(data)
        metadata = self._template.metadata.copy()
        metadata.change(_ROWS, self.rows)
        metadata.change(_GROUPS, ThriftList(Kind.STRUCT, self._groups))
        data = serialize(metadata)
        self._out.write(data + len(data).to_bytes(4, "little") + MAGIC)

    def _chunk(self, source: pa.NativeFile, footer: Footer, chunk: Struct) -> Struct:
        meta = chunk.get(_META).copy()
        chunk.change(_META, meta)
        # Some writers set 0 where there is no dictionary.
        start = min(offset for offset in (meta.get(_DICTIONARY), meta.get(_DATA_PAGE)) if offset)
        shift = self._out.tell() - start
        self._copy(source, footer, start, meta.get(_COMPRESSED))
        for struct, numbers in ((meta, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY)), (chunk, (_CHUNK_OFFSET,))):
            for number in numbers:
                if struct.get(number):
                    struct.change(number, struct.get(number) + shift)
        if chunk.get(_COLUMN_INDEX):
            data = self._bytes(source, footer, chunk.get(_COLUMN_INDEX), chunk.get(_COLUMN_INDEX + 1))
            self._indexes.append((chunk, _COLUMN_INDEX, data))
        if chunk.get(_OFFSET_INDEX):
            data = self._bytes(source, footer, chunk.get(_OFFSET_INDEX), chunk.get(_OFFSET_INDEX + 1))
            moved = _shifted(data, shift, footer.path)
            chunk.change(_OFFSET_INDEX + 1, len(moved))
            self._indexes.append((chunk, _OFFSET_INDEX, moved))
        return chunk

    def _bloom_filter(self, source: pa.NativeFile, footer: Footer, meta: Struct) -> None:
        offset = meta.get(_BLOOM)
        if not offset:
            return
        length = meta.get(_BLOOM_LENGTH)
        if length is None:
            # Older writers leave it out; the filter's own header tells.
            header, size = _parsed(bytes(source.read_at(_BLOOM_HEADER_BYTES, offset)), footer.path)
            length = size + header.get(1)
        meta.change(_BLOOM, self._out.tell())
        self._copy(source, footer, offset, length)

    def _copy(self, source: pa.NativeFile, footer: Footer, start: int, length: int) -> None:
        for at in range(start, start + length, _COPY_BYTES):
            self._out.write(self._bytes(source, footer, at, min(_COPY_BYTES, start + length - at)))

    def _bytes(self, source: pa.NativeFile, footer: Footer, start: int, length: int) -> bytes:
        if not 0 < start <= start + length <= footer.end:
            raise CorruptFile(f"{footer.path}: the footer tells of bytes {start} to {start + length}, where none are")
        with translated(footer.path):
            return bytes(source.read_at(length, start))


def _shifted(offset_index: bytes, shift: int, path: str) -> bytes:
    """An OffsetIndex whose pages have moved by `shift` bytes."""
    index, _ = _parsed(offset_index, path)
    for page in index.get(1):
        page.change(1, page.get(1) + shift)
    return serialize(index)


def _parsed(data: bytes, path: str) -> tuple[Struct, int]:
    try:
        return parse(data)
    except ThriftError as error:
        raise CorruptFile(f"{path}: {error}") from error
