"""The seam to file systems: real directories, real limits, and an object store of pyarrow's own in memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from compactor.errors import (
    CompactorError,
    PathNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
    UnsafePath,
)
from compactor.storage.filesystem import ArrowFileSystem, open_location, translated

_LOCAL = ArrowFileSystem(pafs.LocalFileSystem())


@pytest.fixture
def store() -> pafs.FileSystem:
    """A file system without renames, as an object store is; like S3's, its streams appear when they are destroyed."""
    arrow = pafs._MockFileSystem()
    arrow.create_dir("b")
    return arrow


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# --- atomic writes


def test_a_written_file_appears_with_its_content(tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f") as stream:
        stream.write(b"abc")
        assert [n.startswith("_tmp.f.") for n in names(tmp_path)] == [True]
    assert (tmp_path / "f").read_bytes() == b"abc"
    assert names(tmp_path) == ["f"]


def test_a_file_replaces_an_older_one_of_its_name(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        with _LOCAL.write_atomically(f"{tmp_path}/f") as stream:
            stream.write(content)
    assert (tmp_path / "f").read_bytes() == b"new"


def fail_midway(fs: ArrowFileSystem, path: str, error: BaseException) -> None:
    with fs.write_atomically(path) as stream:
        stream.write(b"abc")
        raise error


class _Stop(BaseException):
    """Like KeyboardInterrupt."""


@pytest.mark.parametrize("error", [ValueError, CompactorError, _Stop])
def test_nothing_appears_when_the_block_fails(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        fail_midway(_LOCAL, f"{tmp_path}/f", error("no"))
    assert names(tmp_path) == []


def test_an_object_appears_with_its_content(store: pafs.FileSystem) -> None:
    with ArrowFileSystem(store).write_atomically("b/f") as stream:
        stream.write(b"x" * 3_000_000)
    assert store.get_file_info("b/f").size == 3_000_000


def test_no_object_appears_when_the_block_fails(store: pafs.FileSystem) -> None:
    with pytest.raises(_Stop):
        fail_midway(ArrowFileSystem(store), "b/f", _Stop())
    assert store.get_file_info("b/f").type == pafs.FileType.NotFound


class _FullStore(pafs.FileSystemHandler):
    """An object store that has no room."""

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    def get_type_name(self) -> str:
        return "full"

    def normalize_path(self, path: str) -> str:
        return path

    def _unused(self, *_: object) -> None:
        raise NotImplementedError

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = delete_root_dir_contents = _unused
    get_file_info = get_file_info_selector = move = open_append_stream = open_input_file = open_input_stream = _unused


def test_an_object_store_without_room_is_full() -> None:
    store = ArrowFileSystem(pafs.PyFileSystem(_FullStore()))
    with pytest.raises(StorageFull, match="b/f"), store.write_atomically("b/f") as stream:
        stream.write(b"abc")


def test_a_file_over_the_limit_of_its_process_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from compactor.errors import StorageError
        from compactor.storage.filesystem import open_location
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        fs, root = open_location(sys.argv[1])
        try:
            with fs.write_atomically(f"{root}/f") as stream:
                for _ in range(64):
                    stream.write(bytes(1 << 16))
        except StorageError as error:
            print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "StorageError\n"
    assert names(tmp_path) == []


def test_a_full_disk_is_full_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        with pytest.raises(StorageFull, match="no space left"), _LOCAL.write_atomically(f"{tmp_path}/f") as stream:
            stream.write(bytes(4 << 20))
        assert names(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_directory_that_cannot_be_written_is_read_only(tmp_path: Path) -> None:
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(StorageReadOnly), _LOCAL.write_atomically(f"{tmp_path}/f"):
            pass
        return
    # Permissions do not stop root; a read-only file system does.
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("root may not mount here")
    try:
        with pytest.raises(StorageReadOnly), _LOCAL.write_atomically(f"{tmp_path}/f"):
            pass
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, PathNotFound),
        (errno.EACCES, StorageReadOnly),
        (errno.EPERM, StorageReadOnly),
        (errno.EROFS, StorageReadOnly),
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EIO, StorageError),
    ],
)
def test_each_failure_of_the_system_has_its_error_and_names_the_path(number: int, kind: type[StorageError]) -> None:
    with pytest.raises(kind, match="/w/t") as caught, translated("/w/t"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind


# --- listings and single files


def test_a_listing_is_relative_and_sorted(tmp_path: Path) -> None:
    for name in ("delta_1_1_0000/bucket_00000", "delta_1_1_0000/sub/x", ".hidden/y", "000000_0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "base_5").mkdir()
    found = _LOCAL.listing(f"{tmp_path}/")
    assert found.directories == {"delta_1_1_0000", ".hidden", "base_5"}
    assert [(f.path, f.size) for f in found.files] == [
        (".hidden/y", 2),
        ("000000_0", 2),
        ("delta_1_1_0000/bucket_00000", 2),
        ("delta_1_1_0000/sub/x", 2),
    ]


def test_a_base_that_hive_2_compacted_is_told_from_the_others(tmp_path: Path) -> None:
    for name, kind in (("base_5", "compacted"), ("base_7", "raw")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_metadata_acid").write_text(f'{{"thisFileVersion":"0","dataFormat":"{kind}"}}')
    assert _LOCAL.listing(str(tmp_path)).compacted_bases == {"base_5"}


def test_a_missing_location_is_not_found(tmp_path: Path) -> None:
    missing = f"{tmp_path}/missing"
    for look in (_LOCAL.listing, _LOCAL.size, _LOCAL.open):
        with pytest.raises(PathNotFound, match="missing"):
            look(missing)
    assert not _LOCAL.exists(missing)
    _LOCAL.delete_file(missing)
    _LOCAL.delete_directory(missing)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        _LOCAL.size(str(tmp_path))
    with pytest.raises(StorageError):
        _LOCAL.open(str(tmp_path))


@pytest.mark.parametrize("path", ["", "/", "//"])
def test_the_root_is_never_deleted(path: str) -> None:
    with pytest.raises(UnsafePath):
        _LOCAL.delete_directory(path)


@pytest.mark.parametrize("name", ["dt=a b%3Ac%2Fd%3De%25", "n=ü☃", "a'b\"c", "x+y&z", "p=a#b"])
def test_odd_names_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    for location in (f"file:{tmp_path}/{name}", f"{tmp_path}/{name}/", f"file://{tmp_path}/{name}"):
        fs, root = open_location(location)
        fs.create_directory(root)
        with fs.write_atomically(f"{root}/f") as stream:
            stream.write(b"1")
        assert [f.path for f in fs.listing(root).files] == ["f"]
    assert names(tmp_path) == [name]


def test_directories_are_found_at_every_depth_empty_ones_too(tmp_path: Path, store: pafs.FileSystem) -> None:
    for arrow, root in ((pafs.LocalFileSystem(), str(tmp_path)), (store, "b")):
        filesystem = ArrowFileSystem(arrow)
        filesystem.create_directory(f"{root}/t/p=1/q=x/delta_1_1")
        filesystem.create_directory(f"{root}/t/p=2")
        found = {"p=1", "p=1/q=x", "p=1/q=x/delta_1_1", "p=2"}
        assert filesystem.directories(f"{root}/t") == filesystem.directories(f"{root}/t/") == found
        with pytest.raises(PathNotFound):
            filesystem.directories(f"{root}/nothing")


def test_only_an_empty_directory_goes_as_one(tmp_path: Path, store: pafs.FileSystem) -> None:
    for arrow, root in ((pafs.LocalFileSystem(), str(tmp_path)), (store, "b")):
        filesystem = ArrowFileSystem(arrow)
        filesystem.create_directory(f"{root}/t/inner")
        assert not filesystem.delete_empty_directory(f"{root}/t")
        assert filesystem.delete_empty_directory(f"{root}/t/inner")
        assert filesystem.delete_empty_directory(f"{root}/t/inner"), "gone already"
        assert filesystem.directories(f"{root}/t") == frozenset()
        with filesystem.write_atomically(f"{root}/t/f") as stream:
            stream.write(b"abc")
        assert not filesystem.delete_empty_directory(f"{root}/t")
        assert filesystem.exists(f"{root}/t/f")


def test_a_file_in_the_place_of_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with pytest.raises(StorageError):
        _LOCAL.delete_empty_directory(f"{tmp_path}/f")
    assert names(tmp_path) == ["f"]


# --- locations


@pytest.mark.parametrize(
    ("location", "path"), [("file:/w/t", "/w/t"), ("file:///w/t/", "/w/t"), ("/w/t//", "/w/t"), ("/", "/")]
)
def test_a_local_location_is_a_path(location: str, path: str) -> None:
    assert open_location(location)[1] == path


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_an_s3_location_keeps_the_characters_that_hive_wrote(scheme: str) -> None:
    fs, path = open_location(f"{scheme}://bucket/w/dt=a b%3Ac/?region=eu-north-1")
    assert path == "bucket/w/dt=a b%3Ac"
    assert isinstance(fs, ArrowFileSystem)


@pytest.mark.parametrize("location", ["w/t", "nosuch://x/y", "", "C:\\w"])
def test_a_location_that_cannot_be_opened_is_an_error_with_a_hint(location: str) -> None:
    with pytest.raises(StorageError, match="cannot be opened") as caught:
        open_location(location)
    assert "hdfs:" in caught.value.hint
