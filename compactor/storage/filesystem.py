"""The one seam to file systems: local disks, S3, GCS, ABFS and HDFS through pyarrow.

A location is what the metastore stores: `file:/w/t`, `/w/t`, `s3://bucket/t`, `hdfs://host:8020/t`. Every failure
is a typed StorageError; nothing else leaves this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs as pafs

from compactor.acid.directory import ListedFile, Listing
from compactor.acid.layout import METADATA_FILE
from compactor.errors import PathNotFound, StorageError, StorageFull, StorageReadOnly, UnsafePath
from compactor.storage.ranges import release, reserve

_BUFFER = 1 << 20
_URI_SAFE = "/:@!$&'()*+,;=~[]"


class FileSystem(Protocol):
    """What the compactor asks of a file system; paths are inside the file system, without a scheme."""

    def listing(self, path: str) -> Listing:
        """Everything below `path`; PathNotFound when it does not exist."""

    def directories(self, path: str) -> frozenset[str]:
        """Every directory below `path`, relative to it; PathNotFound when `path` does not exist."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes of a file; PathNotFound when there is none."""

    def open(self, path: str) -> pa.NativeFile:
        """Random-access reader; PathNotFound when there is none."""

    def write_atomically(
        self, path: str, *, expected: int = 0, durable: bool = True
    ) -> contextlib.AbstractContextManager[pa.NativeFile]:
        """A stream whose content appears under `path` as a whole when the block ends well, and never otherwise.

        expected: about how many bytes will come, if that is known. durable: it survives a power cut from then on.
        """

    def create_directory(self, path: str) -> None: ...

    def delete_file(self, path: str) -> None: ...

    def delete_directory(self, path: str) -> None:
        """Remove a directory and all below it; nothing happens when it is gone already."""

    def delete_empty_directory(self, path: str) -> bool:
        """Remove a directory that holds nothing; False when it holds something. Gone already counts as removed.

        One step on a local disk; elsewhere a look and then a removal.
        """


FilesystemOf = Callable[[str], tuple[FileSystem, str]]
"""From a metastore location to its file system and the path inside it, such as `open_location`."""


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn what pyarrow raises into a StorageError that names the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathNotFound(f"{path} does not exist") from error
    except PermissionError as error:
        raise StorageReadOnly(f"no permission for {path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left writing {path}") from error
        if error.errno == errno.EROFS:
            raise StorageReadOnly(f"{path} is on a read-only file system") from error
        raise StorageError(f"{path}: {error}") from error


class ArrowFileSystem:
    """FileSystem over any pyarrow file system."""

    def __init__(self, arrow: pafs.FileSystem) -> None:
        self._arrow = arrow
        self._local = isinstance(arrow, pafs.LocalFileSystem)
        # An object store cannot rename, but shows an object only when its upload is complete.
        self._rename = isinstance(arrow, pafs.LocalFileSystem | pafs.HadoopFileSystem)

    def listing(self, path: str) -> Listing:
        root = path.rstrip("/")
        with translated(path):
            infos = self._arrow.get_file_info(pafs.FileSelector(root, recursive=True))
        directories: set[str] = set()
        files: list[ListedFile] = []
        for info in infos:
            relative = info.path[len(root) :].lstrip("/")
            if info.type == pafs.FileType.File:
                files.append(ListedFile(path=relative, size=info.size))
                if "/" in relative:
                    directories.add(relative.partition("/")[0])
            elif info.type == pafs.FileType.Directory and "/" not in relative:
                directories.add(relative)
        return Listing(
            directories=frozenset(directories),
            files=tuple(sorted(files)),
            compacted_bases=frozenset(self._compacted_bases(root, files)),
        )

    def directories(self, path: str) -> frozenset[str]:
        root = path.rstrip("/")
        with translated(path):
            infos = self._arrow.get_file_info(pafs.FileSelector(root, recursive=True))
        found = (info.path[len(root) :].strip("/") for info in infos if info.type == pafs.FileType.Directory)
        return frozenset(found)

    def exists(self, path: str) -> bool:
        with translated(path):
            return bool(self._arrow.get_file_info(path).type != pafs.FileType.NotFound)

    def size(self, path: str) -> int:
        with translated(path):
            info = self._arrow.get_file_info(path)
        if info.type != pafs.FileType.File:
            raise PathNotFound(f"{path} is no file")
        return int(info.size)

    def open(self, path: str) -> pa.NativeFile:
        with translated(path):
            return pa.OSFile(path, "rb") if self._local else self._arrow.open_input_file(path)

    def write_atomically(
        self, path: str, *, expected: int = 0, durable: bool = True
    ) -> contextlib.AbstractContextManager[pa.NativeFile]:
        return self._renamed(path, expected, durable) if self._rename else self._uploaded(path)

    @contextlib.contextmanager
    def _renamed(self, path: str, expected: int, durable: bool) -> Iterator[pa.NativeFile]:
        folder, _, name = path.rpartition("/")
        # Readers, Hive's and ours, ignore names that begin with '_'.
        target = f"{folder}/_tmp.{name}.{uuid.uuid4().hex}"
        with translated(path):
            # An OSFile has a descriptor, by which `ranges` copies between files.
            stream = (
                pa.OSFile(target, "wb") if self._local else self._arrow.open_output_stream(target, buffer_size=_BUFFER)
            )
        try:
            with translated(path):
                if expected:
                    reserve(stream, expected)
                yield stream
                if expected:
                    release(stream)
                stream.close()
                # What is published must survive a power cut: first the content, then the name.
                if durable:
                    self._sync(target)
                self._arrow.move(target, path)
                if durable:
                    self._sync(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                stream.close()
            with contextlib.suppress(OSError):
                self._arrow.delete_file(target)
            raise

    @contextlib.contextmanager
    def _uploaded(self, path: str) -> Iterator[pa.NativeFile]:
        """Write to a local file, then upload it.

        pyarrow cannot give an upload up: whatever becomes of its stream, what was written so far appears. So the
        upload starts when there is nothing left to fail but the upload.
        """
        with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
            local = f"{folder}/content"
            with translated(path):
                with pa.OSFile(local, "wb") as stream:
                    yield stream
                with pa.OSFile(local, "rb") as content, self._arrow.open_output_stream(path) as upload:
                    while chunk := content.read(_BUFFER):
                        upload.write(chunk)

    def create_directory(self, path: str) -> None:
        with translated(path):
            self._arrow.create_dir(path, recursive=True)
            self._sync(path.rpartition("/")[0] or "/")

    def delete_file(self, path: str) -> None:
        with contextlib.suppress(PathNotFound), translated(path):
            self._arrow.delete_file(path)

    def delete_directory(self, path: str) -> None:
        if not path.strip("/"):
            raise UnsafePath("the root of a file system is never deleted")
        with contextlib.suppress(PathNotFound), translated(path):
            self._arrow.delete_dir(path)

    def delete_empty_directory(self, path: str) -> bool:
        if not self._local:
            with translated(path):
                if self._arrow.get_file_info(pafs.FileSelector(path, allow_not_found=True)):
                    return False
            self.delete_directory(path)
            return True
        with contextlib.suppress(PathNotFound), translated(path):
            try:
                Path(path).rmdir()
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    def _sync(self, path: str) -> None:
        """Force a local file or directory to disk; other file systems acknowledge only what is safe."""
        if self._local:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _compacted_bases(self, root: str, files: list[ListedFile]) -> Iterator[str]:
        """Bases that a Hive 2 compaction marked in `_metadata_acid` (AcidUtils.MetaDataFile.isCompacted)."""
        for file in files:
            if file.name == METADATA_FILE and file.directory.startswith("base_"):
                with self.open(f"{root}/{file.path}") as stream:
                    if b'"compacted"' in stream.read():
                        yield file.directory


def open_location(location: str) -> tuple[FileSystem, str]:
    """The file system of a metastore location and the path inside it.

    Hive writes a location with characters such as '%' and ' ' as they are: no URI decoding, as in Hadoop's Path.
    Raises StorageError for a scheme that pyarrow does not know.
    """
    if location.startswith("/"):
        return ArrowFileSystem(pafs.LocalFileSystem()), _plain(location)
    scheme, _, rest = location.partition(":")
    if scheme == "file":
        return ArrowFileSystem(pafs.LocalFileSystem()), _plain("/" + rest.lstrip("/"))
    # pyarrow's options may follow a '?'; in Hive's own names that character is escaped.
    rest, mark, options = rest.partition("?")
    uri = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme) + ":" + quote(rest, safe=_URI_SAFE) + mark + options
    try:
        arrow, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise StorageError(
            f"location {location!r} cannot be opened: {error}",
            hint="file:, s3:, gs:, abfs: and hdfs: locations are understood",
        ) from error
    return ArrowFileSystem(arrow), path.rstrip("/")


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"
