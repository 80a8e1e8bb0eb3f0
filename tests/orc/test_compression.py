"""ORC's compression framing under every codec."""

from __future__ import annotations

import contextlib
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import CorruptFile, UnsupportedData
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import ENCODABLE, compress, compression_kind, decompress

_CODECS = sorted(ENCODABLE)
_BLOCK = 1024


def framed(chunk: bytes) -> bytes:
    return (len(chunk) << 1).to_bytes(3, "little") + chunk


@given(st.sampled_from(_CODECS), st.binary(max_size=5000) | st.binary(max_size=30).map(lambda b: b * 200))
def test_what_was_compressed_comes_back(kind: int, data: bytes) -> None:
    assert decompress(kind, compress(kind, data, _BLOCK), _BLOCK) == data


@given(st.sampled_from(_CODECS), st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_frames_are_a_typed_error_or_bytes(kind: int, data: bytes) -> None:
    with contextlib.suppress(CorruptFile):
        assert isinstance(decompress(kind, data, _BLOCK), bytes)


@pytest.mark.parametrize("data", [b"", b"a" * 700, bytes(range(256)) * 3, b"abcabcabcabcabcd" * 40, b"x"])
def test_an_lz4_block_of_another_writer_is_understood(data: bytes) -> None:
    packed = pa.compress(data, codec="lz4_raw", asbytes=True)
    assert decompress(pb.LZ4, framed(packed), _BLOCK) == data


@pytest.mark.parametrize(
    "chunk",
    [
        b"\x50ab",  # five literals announced, two there
        b"\x10a\x00\x00",  # a match at distance 0
        b"\x10a\x09\x00",  # a match from before the block
        b"\xf0\xff",  # a length that goes on
        b"\x1fa\x01\x00" + b"\xff" * 9 + b"\x00" + b"\x10a\x01\x00",  # more than a block holds
    ],
)
def test_a_damaged_lz4_block_is_corrupt(chunk: bytes) -> None:
    with pytest.raises(CorruptFile):
        decompress(pb.LZ4, framed(chunk), _BLOCK)


@pytest.mark.parametrize("chunk", [b"\xff\xff\xff\xff\xff\x7fabc", b"\xff\xff", b"", b"\x81\x08a"])
def test_a_snappy_length_is_not_trusted(chunk: bytes) -> None:
    with pytest.raises(CorruptFile):
        decompress(pb.SNAPPY, framed(chunk), _BLOCK)


@pytest.mark.parametrize("kind", [k for k in _CODECS if k != pb.NONE])
def test_a_block_that_reaches_beyond_the_end_is_corrupt(kind: int) -> None:
    with pytest.raises(CorruptFile, match="beyond the end"):
        decompress(kind, b"\xff\xff\x00abc", _BLOCK)


def test_a_truncated_zlib_block_is_corrupt() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(b"abc" * 100) + packer.flush()
    with pytest.raises(CorruptFile, match="cannot be decompressed"):
        decompress(pb.ZLIB, framed(packed[:-4]), _BLOCK)


def test_a_block_that_does_not_shrink_is_stored() -> None:
    data = bytes(range(100))
    assert compress(pb.ZSTD, data, _BLOCK) == (100 << 1 | 1).to_bytes(3, "little") + data


def test_a_codec_that_nobody_writes_is_unsupported() -> None:
    with pytest.raises(UnsupportedData, match="BROTLI"):
        decompress(pb.BROTLI, framed(b"abc"), _BLOCK)


def test_lzo_is_only_read() -> None:
    assert decompress(pb.LZO, framed(b"\x15abcd\x11\x00\x00"), _BLOCK) == b"abcd"
    assert pb.LZO not in ENCODABLE


def test_codecs_are_named_as_in_the_table_property() -> None:
    assert [compression_kind(n) for n in ("none", "ZLIB", "snappy", "LZ4", "Zstd")] == [
        pb.NONE,
        pb.ZLIB,
        pb.SNAPPY,
        pb.LZ4,
        pb.ZSTD,
    ]
    with pytest.raises(UnsupportedData, match="gzip"):
        compression_kind("gzip")
