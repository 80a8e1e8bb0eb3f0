"""Bad input: a typed error with a hint in the queue row, no data file touched, and the next table still compacted."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as po
import pytest
from pyarrow import fs as pafs

from compactor.errors import (
    CompactorError,
    CorruptFile,
    PathNotFound,
    StorageFull,
    StorageReadOnly,
    UnparsableName,
)
from compactor.jobs.compaction import JobRunner
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.storage.filesystem import ArrowFileSystem, open_location
from compactor.worker import Outcome, WorkerResult
from tests.inline_runner import InlineJobRunner
from tests.simulation.world import ORDERS, World, fingerprint

HEALTHY = TableName(database="default", table="healthy")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.create(tmp_path)
    made.create_table()
    made.fill()
    made.create_table(HEALTHY)
    made.fill(HEALTHY)
    yield made
    made.db.dispose()


def data_file(world: World) -> Path:
    return next(world.location().glob("delta_0000002_*/bucket_*"))


def truncate(world: World) -> None:
    whole = data_file(world).read_bytes()
    data_file(world).write_bytes(whole[: len(whole) // 2])


def cut_off_the_tail(world: World) -> None:
    data_file(world).write_bytes(data_file(world).read_bytes()[:-1])


def put_text_there(world: World) -> None:
    data_file(world).write_text("no ORC file at all, but long enough to look like one\n" * 20)


def put_other_columns_there(world: World) -> None:
    po.write_table(pa.table({"colour": ["red", "green"]}), data_file(world))


def overwrite_the_rows(world: World) -> None:
    damaged = bytearray(data_file(world).read_bytes())
    half = len(damaged) // 2
    damaged[3:half] = b"\xff" * (half - 3)
    data_file(world).write_bytes(damaged)


def add_an_unparsable_directory(world: World) -> None:
    (world.location() / "delta_12_oops").mkdir()


def remove_the_location(world: World) -> None:
    world.location().rename(world.root / "moved away")


BROKEN: list[tuple[Callable[[World], None], type[CompactorError]]] = [
    (truncate, CorruptFile),
    (cut_off_the_tail, CorruptFile),
    (put_text_there, CorruptFile),
    (overwrite_the_rows, CorruptFile),
    (add_an_unparsable_directory, UnparsableName),
    (remove_the_location, PathNotFound),
]


def healthy_table_is_still_compacted(world: World) -> None:
    expected = world.rows(HEALTHY)
    world.request(table=HEALTHY)
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    world.clean()
    assert world.rows(HEALTHY) == expected
    assert len(world.entries(HEALTHY)) == 1


def compact(world: World, runner: JobRunner | None = None) -> WorkerResult:
    world.request()
    return world.worker(runner=runner).run_once()


@pytest.mark.parametrize(("damage", "kind"), BROKEN, ids=lambda v: v.__name__)
def test_broken_input_fails_with_the_reason_and_touches_nothing(
    world: World, damage: Callable[[World], None], kind: type[CompactorError]
) -> None:
    damage(world)
    before = fingerprint(world.root / "warehouse")
    assert compact(world).outcome is Outcome.FAILED
    row = world.only()
    assert row.state is CompactionState.FAILED
    assert row.error_message
    assert row.error_message.count("hint: ") == 1
    assert "Traceback" not in row.error_message
    after = fingerprint(world.root / "warehouse")
    assert {path: after.get(path) for path in before} == before
    world.clean()
    assert fingerprint(world.root / "warehouse") == before
    healthy_table_is_still_compacted(world)


def test_a_file_with_other_columns_is_never_mixed_into_the_table(world: World) -> None:
    put_other_columns_there(world)
    before = fingerprint(world.location())
    assert compact(world).outcome is Outcome.FAILED
    assert "delta_0000002" in (world.only().error_message or "") or "colour" in (world.only().error_message or "")
    world.clean()
    assert fingerprint(world.location()) == before
    healthy_table_is_still_compacted(world)


def test_a_broken_table_does_not_keep_the_initiator_from_the_others(world: World) -> None:
    add_an_unparsable_directory(world)
    for n in range(12):
        world.insert({100 + n: "busy"}, HEALTHY)
    # The broken table wants attention too: its writes are as recent.
    result = world.initiate()
    assert [r.table for r in result.requested] == [HEALTHY]
    (told,) = result.not_initiated
    assert told.table == ORDERS
    assert "delta_12_oops" in told.reason


def test_files_that_are_not_ours_are_neither_read_nor_removed(world: World) -> None:
    (world.location() / "_SUCCESS").touch()
    (world.location() / ".hive-staging_1").mkdir()
    (world.location() / ".hive-staging_1" / "junk").write_text("junk")
    (world.location() / "delta_0000001_0000001_0000" / ".bucket_00000.crc").write_text("crc")
    expected = world.rows()
    assert compact(world).outcome is Outcome.PUBLISHED
    world.clean()
    assert world.rows() == expected
    assert (world.location() / "_SUCCESS").exists()
    assert (world.location() / ".hive-staging_1" / "junk").exists()


class FullDisk(ArrowFileSystem):
    """A local disk that is full after a few bytes of each file."""

    def __init__(self) -> None:
        super().__init__(pafs.LocalFileSystem())

    @contextmanager
    def write_atomically(self, path: str, **hints: Any) -> Iterator[Any]:
        with super().write_atomically(path, **hints) as stream:
            yield FullFile(stream)


class FullFile:
    """Takes the ORC header and nothing more."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        if self._stream.tell() + len(data) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def test_a_full_disk_fails_the_compaction_and_leaves_no_half_file(world: World) -> None:
    expected = world.rows()
    before = fingerprint(world.location())
    runner = InlineJobRunner(filesystem_of=lambda location: (FullDisk(), open_location(location)[1]))
    assert compact(world, runner).outcome is Outcome.FAILED
    message = world.only().error_message or ""
    assert "no space left" in message
    assert StorageFull.default_hint in message
    assert not list(world.location().rglob("*_tmp*"))
    world.clean()
    assert fingerprint(world.location()) == before
    assert world.rows() == expected
    healthy_table_is_still_compacted(world)
    assert compact(world).outcome is Outcome.PUBLISHED
    assert world.rows() == expected


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody, not even root, can write below a folder: by its mode, or by the immutable flag where root ignores that."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)
        return
    flagged = subprocess.run(["chattr", "+i", folder], capture_output=True, check=False)
    if flagged.returncode != 0:
        pytest.skip("root writes everywhere, and this file system has no immutable flag")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)


def test_a_read_only_location_fails_the_compaction_with_a_hint(world: World) -> None:
    expected = world.rows()
    before = fingerprint(world.location())
    with read_only(world.location()):
        assert compact(world).outcome is Outcome.FAILED
        message = world.only().error_message or ""
        assert StorageReadOnly.default_hint in message
        assert str(world.location()) in message
        healthy_table_is_still_compacted(world)
    assert fingerprint(world.location()) == before
    assert world.rows() == expected
    assert compact(world).outcome is Outcome.PUBLISHED
    assert world.rows() == expected
