"""ORC's compression framing: 3-byte little-endian header = length * 2 + is-original.

Source: ORC v1 specification, "Compression".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from isal import isal_zlib

from compactor.errors import CorruptFile, UnsupportedData
from compactor.orc import lzo
from compactor.orc import orc_proto_pb2 as pb

DEFAULT_BLOCK_SIZE = 256 * 1024

ENCODABLE = frozenset({pb.NONE, pb.ZLIB, pb.SNAPPY, pb.LZ4, pb.ZSTD})
"""Codecs that stripes can be encoded with."""
_DEFLATE_LEVEL = 2


def compression_kind(name: str) -> int:
    """ORC's number of a codec named as in `orc.compress` (NONE, ZLIB, SNAPPY, LZ4, ZSTD)."""
    try:
        return int(pb.CompressionKind.Value(name.upper()))
    except ValueError:
        raise UnsupportedData(f"orc.compress={name!r} is no ORC codec") from None


def decompress(kind: int, data: bytes, block_size: int) -> bytes:
    """Undo the framing; CorruptFile when the bytes do not fit it."""
    if kind == pb.NONE:
        return data
    out: list[bytes] = []
    position = 0
    while position < len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        chunk = data[position + 3 : position + 3 + (header >> 1)]
        position += 3 + (header >> 1)
        if position > len(data):
            raise CorruptFile("a compressed block reaches beyond the end of the file's tail")
        out.append(chunk if header & 1 else _inflate(kind, chunk, block_size))
    return b"".join(out)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A stream in compressed blocks.

    content: the framed blocks. starts: where each begins in `content`. size: bytes of the stream in every block but
    the last.
    """

    content: bytes
    starts: Sequence[int]
    size: int

    def place(self, offset: int) -> tuple[int, int]:
        """Where byte `offset` of the stream is: the start of its block, and the byte inside the decompressed block.

        The end of the stream is a place too, in the last block, as Java writes it.
        """
        if not self.starts:
            return 0, 0
        block = min(offset // self.size, len(self.starts) - 1)
        return self.starts[block], offset - block * self.size


def in_blocks(kind: int, data: bytes | memoryview, block_size: int) -> Blocks:
    """Apply the framing; a block that does not shrink is stored as it is."""
    out: list[bytes | memoryview | pa.Buffer] = []
    starts: list[int] = []
    position = 0
    pack = _PACKERS[kind]
    for start in range(0, len(data), block_size):
        block = data[start : start + block_size]
        packed = pack(block)
        original = len(packed) >= len(block)
        chosen = block if original else packed
        out += ((len(chosen) << 1 | original).to_bytes(3, "little"), chosen)
        starts.append(position)
        position += 3 + len(chosen)
    return Blocks(content=b"".join(out), starts=starts, size=block_size)


def compress(kind: int, data: bytes, block_size: int) -> bytes:
    """`data` in blocks of the codec, or as it is without one."""
    return data if kind == pb.NONE else in_blocks(kind, data, block_size).content


def _inflate(kind: int, chunk: bytes, block_size: int) -> bytes:
    try:
        match kind:
            case pb.ZLIB:
                return zlib.decompress(chunk, -15)
            case pb.SNAPPY:
                return bytes(pa.decompress(chunk, _snappy_length(chunk, block_size), codec="snappy", asbytes=True))
            case pb.ZSTD:
                with pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
                    return bytes(stream.read())
            case pb.LZ4:
                return _lz4(chunk, block_size)
            case pb.LZO:
                return lzo.decompressed(chunk, block_size)
            case _:
                raise UnsupportedData(f"ORC codec {pb.CompressionKind.Name(kind)} cannot be decoded here")
    except (zlib.error, pa.ArrowException, OSError) as error:
        raise CorruptFile(f"a block of the file's tail cannot be decompressed: {error}") from error


def _deflate(block: bytes | memoryview) -> bytes:
    return isal_zlib.compress(block, _DEFLATE_LEVEL, -15)


_PACKERS: dict[int, Callable[[bytes | memoryview], bytes | pa.Buffer]] = {
    pb.ZLIB: _deflate,
    pb.SNAPPY: pa.Codec("snappy").compress,
    pb.LZ4: pa.Codec("lz4_raw").compress,
    pb.ZSTD: pa.Codec("zstd", compression_level=1).compress,
}


def _snappy_length(chunk: bytes, block_size: int) -> int:
    """Snappy's leading varint: the length of the decompressed block. It is memory to be reserved, so it is not trusted."""
    length = shift = 0
    for byte in chunk:
        length |= (byte & 127) << shift
        if byte < 128:
            if length > block_size:
                break
            return length
        shift += 7
    raise CorruptFile("a snappy block of the file's tail claims no length, or more than a block holds")


def _lz4(chunk: bytes, block_size: int) -> bytes:
    """A raw LZ4 block; its length is only known to be at most `block_size`, so walk its sequences."""
    out = bytearray()
    at = 0
    while at < len(chunk):
        token = chunk[at]
        at += 1
        literals, at = _lz4_length(chunk, at, token >> 4)
        out += chunk[at : at + literals]
        at += literals
        if at > len(chunk):
            raise CorruptFile("an LZ4 block of the file's tail ends too early")
        if at == len(chunk):
            break
        offset = int.from_bytes(chunk[at : at + 2], "little")
        match_length, at = _lz4_length(chunk, at + 2, token & 15)
        if offset == 0 or offset > len(out) or len(out) > block_size:
            raise CorruptFile("an LZ4 block of the file's tail is damaged")
        for _ in range(match_length + 4):
            out.append(out[-offset])
    return bytes(out)


def _lz4_length(chunk: bytes, at: int, nibble: int) -> tuple[int, int]:
    length = nibble
    while nibble == 15:
        if at >= len(chunk):
            raise CorruptFile("an LZ4 block of the file's tail ends too early")
        length += chunk[at]
        at += 1
        if chunk[at - 1] != 255:
            break
    return length, at
