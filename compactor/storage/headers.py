"""Avro, SequenceFile and RCFile containers: what their headers say, which two files must share to become one.

Sources: Avro specification "Object Container Files"; Hadoop `SequenceFile.Reader.init`; Hive `RCFile.Reader.init`,
whose files are SequenceFiles under another magic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from compactor.errors import CorruptFile, UnsupportedData
from compactor.storage.filesystem import FileSystem, translated

SYNC_BYTES = 16
AVRO_MAGIC = b"Obj\x01"
_SEQUENCE, _RCFILE = b"SEQ", b"RCF"
_SEQUENCE_VERSION, _RCFILE_VERSION = 6, 1
_BUFFER = 1 << 20
_LONGEST = 1 << 30


class ContainerReader:
    """Reads a container file from its start; CorruptFile with its path where it ends too early."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._stream: Any = fs.open(path)
        self._buffered = BufferedReader(self._stream, _BUFFER)

    def __enter__(self) -> ContainerReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def at_end(self) -> bool:
        with translated(self.path):
            return not self._buffered.peek(1)

    def exactly(self, count: int) -> bytes:
        if not 0 <= count <= _LONGEST:
            raise CorruptFile(f"{self.path}: a length of {count} bytes")
        with translated(self.path):
            data = self._buffered.read(count)
        if len(data) != count:
            raise CorruptFile(f"{self.path} ends too early")
        return data

    def zigzag(self) -> int:
        """Avro's long."""
        value = shift = 0
        while True:
            (byte,) = self.exactly(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift > 63:
                raise CorruptFile(f"{self.path}: a number of more than 64 bits")

    def text(self) -> bytes:
        """Hadoop's Text: a length as WritableUtils.writeVInt writes it, then UTF-8."""
        first = int.from_bytes(self.exactly(1), "big", signed=True)
        if first >= -112:
            return self.exactly(first)
        # From -113 to -120: so many bytes follow; below, the length would be negative.
        return self.exactly(int.from_bytes(self.exactly(-112 - first if first >= -120 else -1), "big"))

    def int32(self) -> int:
        return int.from_bytes(self.exactly(4), "big", signed=True)


@dataclass(frozen=True, kw_only=True)
class AvroHeader:
    """metadata: `avro.schema`, `avro.codec` and what the writer added. sync: stands behind every block."""

    metadata: Mapping[bytes, bytes]
    sync: bytes


def avro_header(reader: ContainerReader) -> AvroHeader:
    """The header, which must come first; CorruptFile when the file is no Avro container."""
    if reader.exactly(len(AVRO_MAGIC)) != AVRO_MAGIC:
        raise CorruptFile(f"{reader.path} is no Avro file")
    metadata: dict[bytes, bytes] = {}
    while count := reader.zigzag():
        if count < 0:
            reader.zigzag()
        for _ in range(abs(count)):
            key = reader.exactly(reader.zigzag())
            metadata[key] = reader.exactly(reader.zigzag())
    return AvroHeader(metadata=metadata, sync=reader.exactly(SYNC_BYTES))


def avro_template(fs: FileSystem, path: str) -> bytes:
    """Equal in two files exactly when they have the same schema, codec and other metadata."""
    with ContainerReader(fs, path) as reader:
        metadata = avro_header(reader).metadata
    return _digest(part for pair in sorted(metadata.items()) for part in pair)


def hadoop_template(fs: FileSystem, path: str) -> bytes:
    """Equal in two SequenceFiles or RCFiles exactly when they have the same classes, compression and metadata."""
    with ContainerReader(fs, path) as reader:
        magic, (version,) = reader.exactly(3), reader.exactly(1)
        if magic not in (_SEQUENCE, _RCFILE):
            raise CorruptFile(f"{path} is neither a SequenceFile nor an RCFile")
        if version != (_SEQUENCE_VERSION if magic == _SEQUENCE else _RCFILE_VERSION):
            raise UnsupportedData(f"{path} has version {version} of its format")
        parts = [magic]
        if magic == _SEQUENCE:
            parts += [reader.text(), reader.text()]
        compressed = reader.exactly(1)
        parts.append(compressed)
        if magic == _SEQUENCE:
            parts.append(reader.exactly(1))
        if compressed != b"\0":
            parts.append(reader.text())
        pairs = sorted((reader.text(), reader.text()) for _ in range(reader.int32()))
        parts += [part for pair in pairs for part in pair]
    return _digest(parts)


def _digest(parts: Any) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
