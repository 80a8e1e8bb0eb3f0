from __future__ import annotations

from pyarrow.fs import LocalFileSystem

from cleaner.abandoned import AbandonedOutputs
from compactor.errors import StorageReadOnly
from compactor.metastore.queue import fail
from compactor.storage.filesystem import ArrowFileSystem, FileSystem, open_location
from tests.roles.world import Clock, World

DAY_S = 86_400.0


class WriteProtected(ArrowFileSystem):
    """A real file system below which nothing can be removed until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())
        self.protected = True
        self.tries = 0

    def delete_directory(self, path: str) -> None:
        self.tries += 1
        if self.protected:
            raise StorageReadOnly(f"{path} is on a read-only file system")
        super().delete_directory(path)

    def of(self, location: str) -> tuple[FileSystem, str]:
        return self, open_location(location)[1]


def test_an_output_that_cannot_be_removed_rests_longer_after_each_failure(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    fail(world.db, held, message="the job failed", txn_id=txn_id)
    disk, clock = WriteProtected(), Clock()
    role = AbandonedOutputs(world.db, disk.of, quarantine_s=DAY_S, pause_s=300.0, clock=clock)
    for pause_s in (300.0, 600.0, 1200.0):
        (error,) = role.run_once().errors
        assert "read-only" in error
        tries = disk.tries
        clock.now += pause_s - 1
        assert role.run_once().errors == ()
        assert disk.tries == tries
        clock.now += 1
    disk.protected = False
    assert role.run_once().removed.files == 1
    assert output not in world.entries(table)


def test_a_quarantine_ends_only_when_the_output_could_be_removed_at_last(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    fail(world.db, held, message="the job failed", txn_id=txn_id)
    disk, clock = WriteProtected(), Clock()
    role = AbandonedOutputs(world.db, disk.of, quarantine_s=0.0, pause_s=300.0, clock=clock)
    assert len(role.run_once().errors) == 1
    assert role.run_once().forgotten == ()
    disk.protected = False
    assert role.run_once().forgotten == ()
    clock.now += 300
    assert role.run_once().forgotten == (txn_id,)
