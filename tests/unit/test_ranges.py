"""Stretches of files appended to other files, on local disks and elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from compactor.storage.filesystem import ArrowFileSystem
from compactor.storage.ranges import append_range

_LOCAL = ArrowFileSystem(pafs.LocalFileSystem())
_CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[pa.NativeFile]:
    (tmp_path / "source").write_bytes(_CONTENT)
    with _LOCAL.open(f"{tmp_path}/source") as stream:
        yield stream


def test_a_range_lands_between_what_is_written_before_and_after_it(source: pa.NativeFile, tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f") as target:
        target.write(b"before")
        assert append_range(target, source, 1000, 700_000) == 700_000
        target.write(b"between")
        assert append_range(target, source, 0, 10) == 10
        assert target.tell() == 6 + 700_000 + 7 + 10
    assert (tmp_path / "f").read_bytes() == b"before" + _CONTENT[1000:701_000] + b"between" + _CONTENT[:10]


def test_a_range_beyond_the_end_is_copied_as_far_as_it_goes(source: pa.NativeFile, tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f") as target:
        assert append_range(target, source, len(_CONTENT) - 7, 100) == 7
    assert (tmp_path / "f").read_bytes() == _CONTENT[-7:]


def test_the_files_may_lie_on_different_disks(source: pa.NativeFile, tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one disk only")
    target_path = memory / f"compactor-{os.getpid()}"
    try:
        with _LOCAL.write_atomically(str(target_path)) as target:
            assert append_range(target, source, 5, 300_000) == 300_000
        assert target_path.read_bytes() == _CONTENT[5:300_005]
    finally:
        target_path.unlink(missing_ok=True)


def test_files_need_no_descriptor(source: pa.NativeFile, tmp_path: Path) -> None:
    memory = pa.BufferOutputStream()
    assert append_range(memory, source, 3, 500) == 500
    with _LOCAL.write_atomically(f"{tmp_path}/f") as target:
        assert append_range(target, pa.BufferReader(memory.getvalue()), 1, 1000) == 499
    assert (tmp_path / "f").read_bytes() == _CONTENT[4:503]


def test_a_failing_disk_is_told(source: pa.NativeFile) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pa.OSFile(str(full), "wb") as target, pytest.raises(OSError, match="No space left"):
        append_range(target, source, 0, 10)


def test_what_was_reserved_and_not_written_is_given_back(source: pa.NativeFile, tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f", expected=50 << 20) as target:
        assert append_range(target, source, 0, 100_000) == 100_000
    found = (tmp_path / "f").stat()
    assert found.st_size == 100_000
    assert found.st_blocks * 512 < 1 << 20


def test_more_than_was_expected_may_come(source: pa.NativeFile, tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f", expected=10) as target:
        append_range(target, source, 0, 100_000)
    assert (tmp_path / "f").read_bytes() == _CONTENT[:100_000]


def test_no_room_for_what_is_expected_is_no_error_yet(tmp_path: Path) -> None:
    with _LOCAL.write_atomically(f"{tmp_path}/f", expected=1 << 60) as target:
        target.write(b"little")
    assert (tmp_path / "f").read_bytes() == b"little"
