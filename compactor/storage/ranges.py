"""Copying a stretch of one open file to the end of another, without its bytes passing through Python.

Between local files the kernel copies: copy_file_range shares extents where the file system can (XFS, Btrfs) and copies
on the server where it is remote (NFS 4.2, CephFS), sendfile does the rest. Any other pair of files is read and written.
"""

from __future__ import annotations

import errno
import io
import os

import pyarrow as pa

_PIECE = 8 << 20
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
"""What copy_file_range answers for pairs of files, or kernels, that it does not serve."""


def append_range(target: pa.NativeFile, source: pa.NativeFile, offset: int, length: int) -> int:
    """Append `length` bytes of `source` from `offset` on; returns how many there were before its end."""
    ours, theirs = _descriptor(target), _descriptor(source)
    copied = 0 if ours is None or theirs is None else _in_kernel(ours, theirs, offset, length)
    while copied < length:
        piece = source.read_at(min(length - copied, _PIECE), offset + copied)
        if not piece:
            break
        target.write(piece)
        copied += len(piece)
    return copied


def _descriptor(file: pa.NativeFile) -> int | None:
    """Of an unbuffered local file (pyarrow.OSFile); other files have none."""
    try:
        return int(file.fileno())
    except io.UnsupportedOperation:
        return None


def _in_kernel(target: int, source: int, offset: int, length: int) -> int:
    """Bytes copied, which may be fewer than there are."""
    copied = 0
    for copy in (_by_range, _by_sendfile):
        try:
            while copied < length and (count := copy(target, source, offset + copied, length - copied)):
                copied += count
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    return copied


def _by_range(target: int, source: int, offset: int, length: int) -> int:
    return os.copy_file_range(source, target, length, offset_src=offset)


def _by_sendfile(target: int, source: int, offset: int, length: int) -> int:
    return os.sendfile(target, source, offset, length)
