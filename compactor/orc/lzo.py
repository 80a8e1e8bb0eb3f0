"""LZO1X blocks, which nothing in Python decompresses: an ORC file's tail is all that needs it, ORC C++ has its own.

Source: Linux "LZO stream format as understood by Linux's LZO decompressor" (lzo.rst), without its run-length version.
"""

from __future__ import annotations

from compactor.errors import CorruptFile

_END_DISTANCE = 1 << 14
_AFTER_LITERALS = 4
"""State after a run of literals; after a match it is the number of literals, 0 to 3, that came with it."""


def decompressed(chunk: bytes, block_size: int) -> bytes:
    """The block that `chunk` holds; CorruptFile when it holds none of at most `block_size` bytes."""
    block = _Block(chunk, block_size)
    try:
        block.run()
    except IndexError:
        raise CorruptFile("an LZO block of the file's tail ends too early") from None
    return bytes(block.out)


class _Block:
    """One block on its way: where the reader is in `chunk`, and what has come out."""

    def __init__(self, chunk: bytes, limit: int) -> None:
        self._chunk, self._limit = chunk, limit
        self._at = self._state = 0
        self.out = bytearray()

    def run(self) -> None:
        first = self._chunk[0]
        if first > 17:
            self._at = 1
            self._literals(first - 17)
            self._state = min(first - 17, _AFTER_LITERALS)
        while self._instruction(self._byte()):
            if len(self.out) > self._limit:
                raise CorruptFile("an LZO block of the file's tail holds more than a block")

    def _instruction(self, code: int) -> bool:
        """Carry out one instruction; False for the end."""
        if code < 16 and self._state == 0:
            self._literals(3 + self._length(code, 15))
            self._state = _AFTER_LITERALS
            return True
        last = code
        if code < 16:
            far = self._state == _AFTER_LITERALS
            distance = (self._byte() << 2) + (code >> 2) + (2049 if far else 1)
            length = 3 if far else 2
        elif code < 64:
            length = 2 + (self._length(code & 7, 7) if code < 32 else self._length(code & 31, 31))
            last = self._byte()
            near = (self._byte() << 6) + (last >> 2)
            distance = near + 1 if code >= 32 else _END_DISTANCE + ((code & 8) << 11) + near
            if code < 32 and distance == _END_DISTANCE:
                return False
        else:
            distance = (self._byte() << 3) + (code >> 2 & 7) + 1
            length = 3 + (code >> 5 & 1) if code < 128 else 5 + (code >> 5 & 3)
        self._match(distance, length)
        self._literals(last & 3)
        self._state = last & 3
        return True

    def _byte(self) -> int:
        self._at += 1
        return self._chunk[self._at - 1]

    def _length(self, bits: int, most: int) -> int:
        """A length in the bits of an instruction, or, where these are 0, in the bytes after it."""
        if bits:
            return bits
        length = most
        while (byte := self._byte()) == 0:
            length += 255
        return length + byte

    def _literals(self, count: int) -> None:
        if self._at + count > len(self._chunk):
            raise IndexError
        self.out += self._chunk[self._at : self._at + count]
        self._at += count

    def _match(self, distance: int, length: int) -> None:
        if distance > len(self.out) or len(self.out) + length > self._limit:
            raise CorruptFile("an LZO block of the file's tail is damaged")
        for _ in range(length):
            self.out.append(self.out[-distance])
