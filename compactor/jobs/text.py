"""Joining text files of an insert-only table: all that Hive reads through TextInputFormat, JSON and CSV included.

A reader must find the same lines in the same order (Hadoop `LineRecordReader`, Hive `HiveContextAwareRecordReader`):

1. A file that does not end in a line feed gets one, or its last line and the next file's first would become one. A
   carriage return alone ends a line too, but becomes one end with a line feed that follows.
2. A byte order mark is no data at the start of a file, but is in the middle: only the first file keeps it.
3. Lines that the table skips at both ends of each file (`skip.header.line.count`, `skip.footer.line.count`) are
   kept once; a file that has nothing else adds nothing.
4. Compressed files stay compressed. Their bytes are copied where that codec's streams may follow each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import pyarrow as pa

from compactor.acid.planning import PlanItem
from compactor.errors import CorruptFile
from compactor.orc.rewrite import ItemResult
from compactor.storage.codecs import PLAIN, Codec, CodecError, codec_of
from compactor.storage.filesystem import FileSystem

_MARK = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")
_COPY_BYTES = 8 << 20


def run_text_item(fs: FileSystem, root: str, item: PlanItem) -> ItemResult:
    """Write the output of a text item below `root`. Lines are not counted: rows are -1. Memory: a few megabytes.

    Raises CorruptFile when a compressed file cannot be decompressed.
    """
    codec = codec_of(item.output)
    text = _Text(frame=_Frame(*item.skipped))
    copied = 0
    with fs.write_atomically(f"{root}/{item.output}") as stream:
        encoder = codec.encoder()
        for source in item.sources:
            path = f"{root}/{source.path}"
            if codec.joinable and text.frame.is_empty:
                marked, last = _ends(fs, path, codec)
                if not (marked and text.started):
                    copied += _copy(fs, path, codec, stream, text, last)
                    continue
            for piece in text.joined(_decoded(fs, path, codec)):
                stream.write(encoder.compress(piece))
            if codec.joinable:
                stream.write(encoder.flush())
                encoder = codec.encoder()
        tail = b"".join(text.frame.tail)
        if tail:
            stream.write(encoder.compress(tail))
        if tail or not codec.joinable:
            stream.write(encoder.flush())
        size = stream.tell()
    copied = size if codec is PLAIN else copied
    rows = -1 if item.sources else 0
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=rows,
        rows_out=rows,
        bytes_copied=copied,
        bytes_encoded=size - copied,
    )


def text_digest(fs: FileSystem, root: str, paths: Sequence[str], skipped: tuple[int, int]) -> bytes:
    """A digest of the lines that readers see in some files, one after the other, without their ends.

    paths: below `root`. skipped: lines that readers skip at the start and at the end of each file. Memory: a few
    megabytes. Raises CorruptFile.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        ahead: list[bytes] = []
        header, footer = skipped
        for lines in _lines(_unmarked(_decoded(fs, f"{root}/{path}", codec_of(path)))):
            ahead += lines[header:]
            header -= min(header, len(lines))
            seen = len(ahead) - footer
            for line in ahead[: max(seen, 0)]:
                text = line.rstrip(b"\r\n")
                digest.update(len(text).to_bytes(8, "big") + text)
            ahead = ahead[max(seen, 0) :]
    return digest.digest()


@dataclass
class _Frame:
    """Lines that readers skip at both ends of a file. tail: those that belong at the end of the output."""

    header: int
    footer: int
    tail: list[bytes] = field(default_factory=list)
    _headed: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.header or self.footer)

    def visible(self, decoded: Iterator[bytes]) -> Iterator[bytes]:
        """The lines of a file that readers see; before the very first of them all, the lines that they skip."""
        head, rest = _without_head(decoded, self.header)
        for piece in self._without_tail(rest) if self.footer else rest:
            yield piece if self._headed else head + piece
            self._headed = True

    def _without_tail(self, rest: Iterator[bytes]) -> Iterator[bytes]:
        held: list[bytes] = []
        seen = False
        for lines in _lines(rest):
            held += lines
            count = len(held) - self.footer
            if count > 0:
                seen = True
                yield b"".join(held[:count])
                held = held[count:]
        if seen:
            self.tail = held


@dataclass
class _Text:
    """What is written so far, as far as it matters to what comes next. ended: no line is without an end."""

    frame: _Frame
    started: bool = False
    ended: bool = True

    def joined(self, decoded: Iterator[bytes]) -> Iterator[bytes]:
        """The text of one more file as it belongs behind what is there."""
        first = True
        for chunk in self.frame.visible(_unmarked(decoded) if self.started else decoded):
            if first and not self.ended:
                yield b"\n"
            first = False
            self.saw(chunk)
            yield chunk

    def saw(self, chunk: bytes) -> None:
        # A mark alone is no line that would need an end.
        self.ended = chunk.endswith(b"\n") or (chunk == _MARK and not self.started)
        self.started = True


def _without_head(decoded: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """(The first `count` lines, the text after them); all of a text that has no more."""
    text = b""
    for chunk in decoded if count else ():
        text += chunk
        # A carriage return at the end of a chunk may be half of a line end.
        found = list(islice(_LINE.finditer(text, 0, len(text) - text.endswith(b"\r")), count))
        if len(found) == count:
            rest = text[found[-1].end() :]
            return text[: found[-1].end()], chain([rest] if rest else [], decoded)
    return text, decoded


def _lines(decoded: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines with their ends, those of a chunk together; the very last one may have no end."""
    rest = b""
    for chunk in decoded:
        text = rest + chunk
        lines = _LINE.findall(text, 0, len(text) - text.endswith(b"\r"))
        rest = text[sum(map(len, lines)) :]
        yield lines
    if rest:
        yield [rest]


def _unmarked(decoded: Iterator[bytes]) -> Iterator[bytes]:
    start = b""
    for chunk in decoded:
        start += chunk
        if len(start) >= len(_MARK):
            break
    start = start.removeprefix(_MARK)
    if start:
        yield start
    yield from decoded


def _ends(fs: FileSystem, path: str, codec: Codec) -> tuple[bool, bytes]:
    """(Does the text start with a byte order mark, the last piece of it)."""
    start = last = b""
    for chunk in _decoded(fs, path, codec):
        start += chunk[: len(_MARK)] if len(start) < len(_MARK) else b""
        last = chunk
    return start.startswith(_MARK), last


def _copy(fs: FileSystem, path: str, codec: Codec, out: pa.NativeFile, text: _Text, last: bytes) -> int:
    """Copy a compressed file, whose text ends in `last`, as it is. Returns the bytes copied."""
    if not last:
        return 0
    if not text.ended:
        encoder = codec.encoder()
        out.write(encoder.compress(b"\n") + encoder.flush())
    text.saw(last)
    copied = 0
    with fs.open(path) as stream:
        while chunk := stream.read(_COPY_BYTES):
            out.write(chunk)
            copied += len(chunk)
    return copied


def _decoded(fs: FileSystem, path: str, codec: Codec) -> Iterator[bytes]:
    with fs.open(path) as stream:
        try:
            yield from codec.decode(stream)
        except CodecError as error:
            raise CorruptFile(f"{path} cannot be decompressed: {error}") from error
