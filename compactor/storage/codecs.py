"""The compression of text files, which readers choose by the end of a file's name (Hadoop CompressionCodecFactory).

gzip, zstd and Hadoop's blocks of Snappy and LZ4 may follow each other in one file. So may deflate and bzip2 for Hadoop, but
Trino stops at the end of the first stream, without an error: files of those must be one stream.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol, cast

import pyarrow as pa

_CHUNK = 1 << 20
_HADOOP_BLOCK = 128 << 10
_ZLIB_LEVEL = 6


class Encoder(Protocol):
    """Compresses one stream, piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes:
        """What ends the stream."""


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How text is compressed. suffix: end of the file's name. joinable: streams of it may follow each other in a file.

    decode: what a file holds, in pieces; raises CodecError. encoder: for a new stream.
    """

    suffix: str
    joinable: bool
    decode: Callable[[pa.NativeFile], Iterator[bytes]]
    encoder: Callable[[], Encoder]


class CodecError(Exception):
    """The bytes are not what the codec writes, or end too early."""


def codec_of(name: str) -> Codec:
    """The codec of a file, by its name; plain text when no codec claims the name."""
    return next((c for c in _CODECS if name.endswith(c.suffix)), PLAIN)


class _Identity:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def _chunks(stream: pa.NativeFile) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield bytes(chunk)


def _inflate(wbits: int) -> Callable[[pa.NativeFile], Iterator[bytes]]:
    def decode(stream: pa.NativeFile) -> Iterator[bytes]:
        inflater = zlib.decompressobj(wbits)
        fresh = True
        for chunk in _chunks(stream):
            rest = chunk
            while rest:
                if inflater.eof:
                    inflater, fresh = zlib.decompressobj(wbits), True
                try:
                    data = inflater.decompress(rest)
                except zlib.error as error:
                    raise CodecError(str(error)) from error
                fresh, rest = False, inflater.unused_data
                if data:
                    yield data
        if not fresh and not inflater.eof:
            raise CodecError("the compressed stream ends too early")

    return decode


def _bunzip(stream: pa.NativeFile) -> Iterator[bytes]:
    try:
        with bz2.BZ2File(cast("IO[bytes]", stream)) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (OSError, EOFError) as error:
        raise CodecError(str(error)) from error


def _unzstd(stream: pa.NativeFile) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(stream, "zstd") as file:
            while chunk := file.read(_CHUNK):
                yield bytes(chunk)
    except (OSError, pa.ArrowException) as error:
        raise CodecError(str(error)) from error


class _Zstd:
    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._stream = pa.CompressedOutputStream(self._sink, "zstd")

    def compress(self, data: bytes, /) -> bytes:
        self._stream.write(data)
        return b""

    def flush(self) -> bytes:
        self._stream.close()
        return bytes(self._sink.getvalue())


def _blocks(name: str, length: Callable[[bytes, int], int]) -> Callable[[pa.NativeFile], Iterator[bytes]]:
    """Hadoop's BlockCompressorStream: length of a block, then its chunks, each behind its compressed length."""

    def decode(stream: pa.NativeFile) -> Iterator[bytes]:
        codec = pa.Codec(name)
        while header := stream.read(4):
            left = _uint32(header)
            while left:
                chunk = stream.read(_uint32(stream.read(4)))
                size = length(bytes(chunk), left)
                if not 0 < size <= left:
                    raise CodecError(f"a chunk of {size} bytes in a block that has {left} left")
                try:
                    yield bytes(codec.decompress(chunk, decompressed_size=size))
                except (OSError, pa.ArrowException) as error:
                    raise CodecError(str(error)) from error
                left -= size

    return decode


def _uint32(data: bytes) -> int:
    if len(data) != 4:
        raise CodecError("the file ends inside a block")
    return int.from_bytes(data, "big")


def _snappy_length(chunk: bytes, _left: int) -> int:
    """Every Snappy chunk starts with its length as a varint."""
    value = 0
    for position, byte in enumerate(chunk[:5]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value
    raise CodecError("a chunk that is no Snappy")


def _lz4_length(chunk: bytes, _left: int) -> int:
    """The sum of what the sequences of an LZ4 block say of themselves (LZ4 block format)."""
    total = at = 0
    try:
        while True:
            token = chunk[at]
            literals, at = _lz4_count(chunk, at + 1, token >> 4)
            total += literals
            at += literals
            if at >= len(chunk):
                return total
            matched, at = _lz4_count(chunk, at + 2, token & 15)
            total += matched + 4
    except IndexError:
        raise CodecError("a chunk that is no LZ4") from None


def _lz4_count(chunk: bytes, at: int, nibble: int) -> tuple[int, int]:
    value = nibble
    more = nibble == 15
    while more:
        value += chunk[at]
        more = chunk[at] == 255
        at += 1
    return value, at


class _Blocks:
    def __init__(self, name: str) -> None:
        self._codec = pa.Codec(name)

    def compress(self, data: bytes, /) -> bytes:
        parts: list[bytes] = []
        for start in range(0, len(data), _HADOOP_BLOCK):
            block = data[start : start + _HADOOP_BLOCK]
            chunk = self._codec.compress(block, asbytes=True)
            parts += [struct.pack(">II", len(block), len(chunk)), chunk]
        return b"".join(parts)

    def flush(self) -> bytes:
        return b""


PLAIN = Codec(suffix="", joinable=False, decode=_chunks, encoder=_Identity)
_CODECS = (
    Codec(
        suffix=".gz",
        joinable=True,
        decode=_inflate(31),
        encoder=lambda: zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, 31),
    ),
    Codec(suffix=".deflate", joinable=False, decode=_inflate(15), encoder=lambda: zlib.compressobj(_ZLIB_LEVEL)),
    Codec(suffix=".bz2", joinable=False, decode=_bunzip, encoder=bz2.BZ2Compressor),
    Codec(suffix=".zst", joinable=True, decode=_unzstd, encoder=_Zstd),
    Codec(suffix=".snappy", joinable=True, decode=_blocks("snappy", _snappy_length), encoder=lambda: _Blocks("snappy")),
    Codec(suffix=".lz4", joinable=True, decode=_blocks("lz4_raw", _lz4_length), encoder=lambda: _Blocks("lz4_raw")),
)
