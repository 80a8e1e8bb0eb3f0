"""Tables that a real Hive wrote, with delete files that Trino does not find and bases that it does not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.acid.directory import Listing, Snapshot, directory_state
from compactor.acid.trino import trino_blind
from compactor.demo.hive_tables import expected_tables, load
from compactor.metastore import catalog
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.storage.filesystem import open_location
from compactor.worker import Outcome
from initiator.service import InitiatorResult
from tests.simulation.world import World


@pytest.fixture
def hive(tmp_path: Path) -> Iterator[World]:
    """Every table of the fixtures; Hive's own thresholds ask for hardly any of them."""
    world = World.create(tmp_path)
    load(world.db, tmp_path)
    yield world
    world.db.dispose()


def blind(world: World) -> dict[str, str]:
    """What Trino reads wrong: object → why."""
    found = {}
    for expected in expected_tables():
        name = TableName(database="fx", table=expected.name)
        partitions = catalog.list_partitions(world.db, name)
        places = {f"{name}/{p.name}": p.location for p in partitions} or {
            str(name): catalog.get_table(world.db, name).location
        }
        txns = valid_txn_list(world.db)
        snapshot = Snapshot(txns=txns, write_ids=valid_write_ids(world.db, name, txns).for_compaction())
        for place, location in places.items():
            listing = _listing(location)
            if why := trino_blind(directory_state(listing, snapshot, whole_ranges=True), listing):
                found[place] = why
    return found


def _listing(location: str | None) -> Listing:
    assert location is not None
    fs, root = open_location(location)
    return fs.listing(root)


def one_round(world: World) -> InitiatorResult:
    """The initiator once, every request carried out, everything cleaned."""
    result = world.initiate()
    worker = world.worker()
    while (done := worker.run_once()).outcome is not Outcome.IDLE:
        assert done.outcome is not Outcome.FAILED, done.describe()
    while world.clean().did_anything:
        pass
    return result


def test_one_round_cures_every_table_of_hive_and_none_is_asked_for_again(hive: World) -> None:
    wrong = blind(hive)
    assert len(wrong) >= 10
    first = one_round(hive)
    asked = {f"{r.table}/{r.partition}" if r.partition else str(r.table): r for r in first.requested}
    assert wrong.keys() <= asked.keys()
    assert all(why in asked[place].reason for place, why in wrong.items())
    assert blind(hive) == {}
    # A new initiator looks at everything, as after a restart.
    assert hive.initiate().requested == ()
    assert set(hive.states()) <= {CompactionState.SUCCEEDED, CompactionState.REFUSED}
