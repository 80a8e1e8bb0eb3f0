"""What Hive's soft DROP leaves is removed on each database product: held by readers, looked up in the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.metastore.catalog import Column, TableName
from compactor.metastore.catalog_write import create_table
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.metastore.locks import show_locks
from compactor.metastore.snapshots import open_reader
from compactor.metastore.txns import commit_transaction, open_transactions
from compactor.service.metrics import Metrics
from compactor.settings import Settings
from tests.roles.drops import clean, drop_softly, files, recreate, suffixed_table
from tests.roles.world import World


@pytest.fixture
def world(db: Database, tmp_path: Path) -> World:
    warehouse = tmp_path / "warehouse"
    settings = Settings(warehouse=f"file:{warehouse}")
    return World(db=db, warehouse=warehouse, settings=settings, metrics=Metrics(version="test"))


def states(world: World) -> list[CompactionState]:
    return [row.state for row in world.rows()]


def test_a_dropped_table_goes_when_its_readers_have_ended(world: World) -> None:
    table = suffixed_table(world, partitioned=True)
    world.write(table, world.partition(table, "50%_off"), times=2)
    declared = open_reader(world.db, [table], user="ann", host="h")
    (silent,) = open_transactions(world.db, user="bob", host="h")
    location = drop_softly(world, table)
    before = files(location)
    for reader in (declared.txn_id, silent):
        clean(world)
        assert states(world) == [CompactionState.READY_FOR_CLEANING]
        assert files(location) == before
        commit_transaction(world.db, reader)
    assert clean(world).files_removed == 2
    assert not location.exists()
    assert states(world) == [CompactionState.SUCCEEDED]


def test_a_dropped_partition_goes_and_one_that_was_created_again_keeps_its_rows(world: World) -> None:
    table = suffixed_table(world, partitioned=True)
    for value in ("1", "2"):
        world.write(table, world.partition(table, value), times=2)
    gone, again = drop_softly(world, table, "p=1"), drop_softly(world, table, "p=2")
    recreate(world, table, "2")
    write = world.write(table, "p=2")
    clean(world)
    assert not gone.exists()
    assert [path for path in files(again) if "delta" in path] == [
        f"delta_{write.write_id:07d}_{write.write_id:07d}_0000/bucket_00000"
    ]
    assert states(world) == [CompactionState.SUCCEEDED] * 2
    assert show_locks(world.db) == []


def test_nothing_goes_where_somebody_of_the_catalogue_lives(world: World) -> None:
    table = suffixed_table(world)
    world.write(table)
    location = drop_softly(world, table)
    squatter = TableName(database="default", table="squatter")
    create_table(world.db, squatter, columns=[Column(name="a", type="int")], location=f"hdfs://ns{location}/deeper")
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
