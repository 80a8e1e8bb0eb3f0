"""Every role's real cycle on each database product, from the write to the removed file; only Spark is left out."""

from __future__ import annotations

import threading
from pathlib import Path

from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.settings import InitiatorSettings, Settings
from tests.simulation.world import ORDERS, World


def _world(db: Database, root: Path) -> World:
    return World(root=root, db=db, settings=Settings(initiator=InitiatorSettings(delta_num_threshold=1)))


def _directories(root: Path) -> list[str]:
    return sorted(entry.name for entry in (root / "warehouse" / "orders").iterdir())


def test_what_is_written_is_found_compacted_and_cleaned(db: Database, tmp_path: Path) -> None:
    world = _world(db, tmp_path)
    world.create_table()
    rows = world.fill()
    (requested,) = world.initiate().requested
    assert (requested.table, requested.type) == (ORDERS, CompactionType.MAJOR)
    assert world.initiate().requested == (), "it is queued already"
    world.worker().run_once()
    assert world.compaction(requested.id).state is CompactionState.READY_FOR_CLEANING
    assert world.rows() == rows
    world.clean()
    assert world.compaction(requested.id).state is CompactionState.SUCCEEDED
    assert len(_directories(tmp_path)) == 1
    world.keep_house()
    assert world.rows() == rows


def test_deltas_are_merged_and_an_aborted_write_is_removed(db: Database, tmp_path: Path) -> None:
    world = _world(db, tmp_path)
    world.create_table()
    rows = world.fill()
    world.insert_and_abort({77: "never"})
    world.compact(CompactionType.MINOR)
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    assert len(_directories(tmp_path)) == 2, "a delta and a delete delta"
    assert world.rows() == rows


def test_a_reader_keeps_its_files_until_it_ends(db: Database, tmp_path: Path) -> None:
    world = _world(db, tmp_path)
    world.create_table()
    world.fill()
    with world.reader():
        before = _directories(tmp_path)
        world.compact()
        world.clean()
        assert set(before) <= set(_directories(tmp_path))
    world.clean()
    assert len(_directories(tmp_path)) == 1


def test_writers_and_a_compactor_work_at_the_same_time(db: Database, tmp_path: Path) -> None:
    world = _world(db, tmp_path)
    world.create_table()
    errors: list[BaseException] = []

    def insert(first: int) -> None:
        try:
            for number in range(first, first + 5):
                world.insert({number: f"row {number}"})
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    writers = [threading.Thread(target=insert, args=(first,)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        world.compact(CompactionType.MINOR)
        world.clean()
    for writer in writers:
        writer.join()
    assert errors == []
    assert sorted(world.rows()) == [n for first in (0, 100, 200) for n in range(first, first + 5)]
