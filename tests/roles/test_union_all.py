"""A UNION ALL into an insert-only table, as Hive lays it out: Trino misses its rows until a compaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionType
from compactor.table.ddl import create_table
from compactor.table.reader import open_snapshot
from compactor.worker import Outcome
from tests.orc.acid_files import write_plain
from tests.regressions.hive_rows import open_write
from tests.simulation.world import HOST, ORDERS, World, arrow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.create(tmp_path)
    create_table(made.db, ORDERS, (("id", "int"), ("item", "string")), insert_only=True)
    yield made
    made.db.dispose()


def union_all(world: World, *, overwrite: bool = False) -> None:
    txn_id, write_id = open_write(world, ORDERS)
    folder = f"base_{write_id:07d}" if overwrite else f"delta_{write_id:07d}_{write_id:07d}_0000"
    for branch in (1, 2):
        rows = arrow({10 * write_id + branch: f"branch {branch}"})
        write_plain(world.location() / folder / f"HIVE_UNION_SUBDIR_{branch}" / "000000_0", rows)
    txns.commit_transaction(world.db, txn_id)


def ids(world: World) -> list[int]:
    with open_snapshot(world.db, [ORDERS], user="bob", host=HOST) as snapshot:
        return sorted(snapshot.read(ORDERS).column("id").to_pylist())


@pytest.mark.parametrize("overwrite", [False, True], ids=["insert", "insert overwrite"])
def test_the_initiator_asks_at_once_for_the_compaction_that_lets_trino_see_the_rows(
    world: World, overwrite: bool
) -> None:
    union_all(world, overwrite=overwrite)
    assert ids(world) == [11, 12]
    (asked,) = world.initiate().requested
    assert asked.type is (CompactionType.MAJOR if overwrite else CompactionType.MINOR)
    assert "HIVE_UNION_SUBDIR_1" in asked.reason
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    while world.clean().did_anything:
        assert ids(world) == [11, 12]
    (directory,) = world.entries()
    assert [p.name for p in (world.location() / directory).iterdir()] == ["000000_0"]
    assert world.initiator().run_once().requested == ()
