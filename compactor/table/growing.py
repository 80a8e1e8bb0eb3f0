"""A file that grows while others read it: Hive's streaming files.

    bucket_NNNNN                 stripes, a tail, more stripes, a tail over all stripes so far, …
    bucket_NNNNN_flush_length    8 bytes a flush, big-endian: how long the file was; the last entry counts

1. The first flush writes the side file, then the data file as a whole under its final name: whoever sees the data
   file sees a complete one.
2. A later flush appends to the data file and syncs it, then appends its new length to the side file and syncs that.
   Until then readers end where the entry before says. A torn append changes nothing for them.
3. The side file goes when the file is complete.

Sources: Hive `OrcRecordUpdater.flush`, `OrcAcidUtils.getLastFlushLength`.
"""

from __future__ import annotations

import os

from compactor.acid.layout import flush_length_file
from compactor.errors import UsageError
from compactor.storage.filesystem import FileSystem, translated

_ENTRY_BYTES = 8


def appendable(location: str) -> bool:
    """Can files at a metastore location be appended to and synced? Only those of a local file system here."""
    return location.startswith(("/", "file:"))


class GrowingFile:
    """One data file of a delta. growing: False for a file that is flushed once and needs no side file.

    path: inside the file system; for a growing file that is a path of this machine.
    """

    def __init__(self, fs: FileSystem, path: str, *, growing: bool) -> None:
        self._fs = fs
        self._path = path
        self._growing = growing
        self._waiting: list[bytes] = []
        self._length = 0
        self._flushes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes for the next flush; nobody sees them before it."""
        self._waiting.append(bytes(data))

    def flush(self) -> None:
        """Put everything written so far on disk and let readers see it; what was written must end with a tail.

        StorageError; the bytes then wait for the next flush, which writes over what a torn append left behind.
        """
        data = b"".join(self._waiting)
        length = self._length + len(data)
        if self._length and not self._growing:
            raise UsageError(f"{self._path} was written as a whole and cannot grow")
        if self._length:
            _append(self._path, data, at=self._length)
        if self._growing:
            side = flush_length_file(self._path)
            _append(side, length.to_bytes(_ENTRY_BYTES, "big"), at=self._flushes * _ENTRY_BYTES)
        if not self._length:
            with self._fs.write_atomically(self._path) as stream:
                stream.write(data)
        self._waiting = []
        self._length = length
        self._flushes += 1

    def complete(self) -> None:
        """Remove the side file unless a torn append follows the last flush: then readers still need it."""
        if self._growing and self._length and self._fs.size(self._path) == self._length:
            self._fs.delete_file(flush_length_file(self._path))


def _append(path: str, data: bytes, *, at: int) -> None:
    """Write `data` behind the first `at` bytes, drop what followed them, and sync."""
    with translated(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate(at)
            file.seek(at)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
