"""LZO blocks by the letter of the format; each instruction has a stream of its own."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import CorruptFile
from compactor.orc.lzo import decompressed

_END = b"\x11\x00\x00"
_LONG = bytes(range(256)) * 80


def long_literals(data: bytes) -> bytes:
    """The first instruction for more literals than a first byte can count."""
    rest = len(data) - 18
    return bytes(1 + (rest - 1) // 255) + bytes([(rest - 1) % 255 + 1]) + data


@pytest.mark.parametrize(
    ("stream", "block"),
    [
        (b"\x15abcd", b"abcd"),
        (b"\x01abcd", b"abcd"),
        (long_literals(_LONG), _LONG),
        (b"\x15abcd\x4d\x00x", b"abcdabcx"),
        (b"\x15abcd\xac\x00", b"abcdabcdab"),
        (b"\x15abcd\x25\x00\x00", b"abcdddddddd"),
        (b"\x15abcd\x20\x00\x05\x00\x00", b"abcd" + b"d" * 293),
        (b"\x13ab\x04\x00", b"abab"),
        (long_literals(_LONG) + b"\x00\x00", _LONG + _LONG[-2049:-2046]),
        (long_literals(_LONG) + b"\x11\x05\x00z", _LONG + _LONG[-16385:-16382] + b"z"),
        (b"\x15abcd\x4c\x00\x01wxyz", b"abcdabcwxyz"),
    ],
    ids=[
        "a few literals first",
        "literals by instruction",
        "very many literals",
        "a short match and a literal",
        "a longer match",
        "a match that overlaps itself",
        "a match of a length in bytes",
        "two bytes after literals",
        "three bytes from afar",
        "a match from very far",
        "literals after a match without any",
    ],
)
def test_a_stream_becomes_its_block(stream: bytes, block: bytes) -> None:
    assert decompressed(stream + _END, len(block)) == block


@pytest.mark.parametrize("stream", [b"", b"\x15abc", b"\x15abcd", b"\x15abcd\x4c"])
def test_a_stream_that_ends_too_early_is_corrupt(stream: bytes) -> None:
    with pytest.raises(CorruptFile, match="too early"):
        decompressed(stream, 1024)


def test_a_match_of_what_is_not_there_is_corrupt() -> None:
    with pytest.raises(CorruptFile, match="damaged"):
        decompressed(b"\x15abcd\x4c\x01" + _END, 1024)


def test_no_more_than_a_block_comes_out() -> None:
    with pytest.raises(CorruptFile):
        decompressed(b"\x15abcd\x20" + bytes(1000) + b"\x05\x00\x00" + _END, 1024)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_block_or_a_typed_error(stream: bytes) -> None:
    with contextlib.suppress(CorruptFile):
        assert isinstance(decompressed(stream, 1024), bytes)
