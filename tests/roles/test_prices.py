"""Prices are those of what this installation's worker would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.planning import Depth
from compactor.metastore.catalog import get_table
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.service.offers import prices_of
from compactor.settings import WorkerSettings
from tests.simulation.world import ORDERS, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.create(tmp_path)
    made.create_table()
    for n in range(6):
        made.insert({n: "item"})
    yield made
    made.db.dispose()


def test_the_workers_settings_count(world: World) -> None:
    txns = valid_txn_list(world.db)
    seen = Snapshot(txns=txns, write_ids=valid_write_ids(world.db, ORDERS, txns).for_compaction())
    table = get_table(world.db, ORDERS)
    usual = prices_of(world.db, table, None, seen)
    careful = prices_of(world.db, table, None, seen, worker=WorkerSettings(max_num_delta=2))
    assert usual[Depth.MAJOR].tasks == 1
    assert careful[Depth.MAJOR].tasks == 3
