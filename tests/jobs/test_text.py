"""Joining text files: readers find the same lines, whatever the files end in and however they are compressed."""

from __future__ import annotations

import bz2
import gzip
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.errors import CorruptFile
from compactor.jobs.text import run_text_item, text_digest
from compactor.orc.rewrite import ItemResult
from compactor.storage.codecs import codec_of
from compactor.storage.filesystem import ArrowFileSystem

FS = ArrowFileSystem(pafs.LocalFileSystem())
_MARK = b"\xef\xbb\xbf"


def hadoop_blocks(codec: str, size: int) -> Callable[[bytes], bytes]:
    """As Hadoop's BlockCompressorStream writes them, in chunks of `size` bytes, which is also how they are read."""

    def compress(data: bytes) -> bytes:
        chunks = [pa.Codec(codec).compress(data[i : i + size], asbytes=True) for i in range(0, len(data), size)]
        return struct.pack(">I", len(data)) + b"".join(struct.pack(">I", len(c)) + c for c in chunks)

    return compress


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".deflate": zlib.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    ".snappy": hadoop_blocks("snappy", 3),
    ".lz4": hadoop_blocks("lz4_raw", 1000),
}


def lines(data: bytes) -> list[bytes]:
    """What LineRecordReader returns: it drops a mark at the start and knows three line ends."""
    return [a or b for a, b in re.findall(rb"([^\r\n]*)(?:\r\n|\n|\r)|([^\r\n]+)$", data.removeprefix(_MARK))]


def join(
    root: Path, texts: list[bytes], suffix: str = "", skipped: tuple[int, int] = (0, 0)
) -> tuple[ItemResult, bytes]:
    sources = []
    for number, text in enumerate(texts):
        path = root / f"{number}{suffix}"
        path.write_bytes(CODECS[suffix](text))
        sources.append(SourceFile(path=path.name, size=path.stat().st_size, rows=-1))
    output = f"000000_0{suffix}"
    item = PlanItem(
        kind=ItemKind.PLAIN, output=output, bucket=0, sources=tuple(sources), format="text", skipped=skipped
    )
    done = run_text_item(FS, str(root), item)
    with FS.open(f"{root}/{output}") as stream:
        return done, b"".join(codec_of(output).decode(stream))


@pytest.mark.parametrize("suffix", CODECS)
def test_a_missing_line_end_glues_no_lines_together(tmp_path: Path, suffix: str) -> None:
    done, text = join(tmp_path, [b"a\nb", b"c\r", b"\nd\r\n", b"e" * 5000, b"f"], suffix)
    assert text == b"a\nb\nc\r\n\nd\r\n" + b"e" * 5000 + b"\nf"
    assert (done.size, done.rows_out) == ((tmp_path / done.output).stat().st_size, -1)


@pytest.mark.parametrize("suffix", CODECS)
def test_only_the_first_byte_order_mark_stays(tmp_path: Path, suffix: str) -> None:
    _, text = join(tmp_path, [_MARK + b"a", _MARK + b"b\n", _MARK, b"c"], suffix)
    assert text == _MARK + b"a\nb\nc"
    _, text = join(tmp_path, [_MARK, b"a"], suffix)
    assert text == _MARK + b"a"


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".snappy", ".lz4"])
def test_compressed_files_are_copied_as_they_are(tmp_path: Path, suffix: str) -> None:
    done, _ = join(tmp_path, [b"a\n" * 4000, b"b\n" * 4000], suffix)
    pieces = [(tmp_path / f"{i}{suffix}").read_bytes() for i in range(2)]
    assert (tmp_path / done.output).read_bytes() == b"".join(pieces)
    assert (done.bytes_copied, done.bytes_encoded) == (done.size, 0)


def test_deflate_and_bzip2_become_one_stream_because_trino_reads_no_second_one(tmp_path: Path) -> None:
    done, _ = join(tmp_path, [b"a\n", b"b\n"], ".deflate")
    inflater = zlib.decompressobj()
    assert inflater.decompress((tmp_path / done.output).read_bytes()) == b"a\nb\n"
    assert (inflater.unused_data, done.bytes_copied) == (b"", 0)
    done, _ = join(tmp_path, [b"a\n", b"b\n"], ".bz2")
    decompressor = bz2.BZ2Decompressor()
    assert decompressor.decompress((tmp_path / done.output).read_bytes()) == b"a\nb\n"
    assert decompressor.unused_data == b""


def test_files_that_hold_several_streams_are_read_to_their_end(tmp_path: Path) -> None:
    for suffix in (".gz", ".bz2", ".zst", ".deflate"):
        compress = CODECS[suffix]
        (tmp_path / f"0{suffix}").write_bytes(compress(b"a\n" * 10**6) + compress(b"") + compress(b"b"))
        with FS.open(f"{tmp_path}/0{suffix}") as stream:
            assert b"".join(codec_of(suffix).decode(stream)) == b"a\n" * 10**6 + b"b"


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        ((1, 0), b"h1\na\nf1\nb\nf2\n"),
        ((0, 1), b"h1\na\nh2\nb\nf2\n"),
        ((1, 1), b"h1\na\nb\nf2\n"),
        ((3, 2), b""),
    ],
)
def test_lines_that_readers_skip_are_kept_once(
    tmp_path: Path, suffix: str, skipped: tuple[int, int], expected: bytes
) -> None:
    _, text = join(tmp_path, [b"h0\n", b"h1\na\nf1", b"h2\nb\nf2\n"], suffix, skipped)
    assert text == expected


def test_a_file_without_lines_of_its_own_adds_nothing(tmp_path: Path) -> None:
    _, text = join(tmp_path, [b"h\n", b"h\n", b"h\nx", b"h", b"h\ny\nz"], skipped=(1, 0))
    assert text == b"h\nx\ny\nz"


_TEXT = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"bc", _MARK]), max_size=12).map(b"".join)


@given(
    texts=st.lists(_TEXT.filter(bool), max_size=5),
    suffix=st.sampled_from(list(CODECS)),
    header=st.integers(0, 2),
    footer=st.integers(0, 2),
)
def test_readers_find_the_same_lines(tmp_path: Path, texts: list[bytes], suffix: str, header: int, footer: int) -> None:
    def visible(data: bytes) -> list[bytes]:
        found = lines(data)[header:]
        return found[: len(found) - footer] if footer else found

    done, text = join(tmp_path, texts, suffix, (header, footer))
    assert visible(text) == [line for t in texts for line in visible(t)]
    names = [f"{number}{suffix}" for number in range(len(texts))]
    before = text_digest(FS, str(tmp_path), names, (header, footer))
    assert before == text_digest(FS, str(tmp_path), [done.output], (header, footer))


@pytest.mark.parametrize("wrong", [b"h\na\nb", b"h\na\nb\nd", b"h\nb\na\nc", b"h\na\nb\nc\n\n", b"h\na\nbc"])
def test_other_lines_have_another_digest(tmp_path: Path, wrong: bytes) -> None:
    for name, data in (("right", b"h\na\nb\nc"), ("same", b"H\ra\r\nb\nc\n"), ("wrong", wrong)):
        (tmp_path / name).write_bytes(data)
    right, same, other = (text_digest(FS, str(tmp_path), [name], (1, 0)) for name in ("right", "same", "wrong"))
    assert right == same != other


@pytest.mark.parametrize("suffix", [s for s in CODECS if s])
def test_a_file_that_ends_too_early_is_corrupt(tmp_path: Path, suffix: str) -> None:
    good = CODECS[suffix](b"some text\n" * 500)
    (tmp_path / f"0{suffix}").write_bytes(good[:-3])
    source = SourceFile(path=f"0{suffix}", size=len(good) - 3, rows=-1)
    item = PlanItem(kind=ItemKind.PLAIN, output=f"000000_0{suffix}", bucket=0, sources=(source,), format="text")
    with pytest.raises(CorruptFile, match=f"0{suffix}"):
        run_text_item(FS, str(tmp_path), item)
    assert not (tmp_path / item.output).exists()


def test_without_any_file_the_output_is_empty(tmp_path: Path) -> None:
    done, text = join(tmp_path, [])
    assert (done.size, done.rows_out, text) == (0, 0, b"")
