"""HIVE-29567: the compactor created its output directory first and then read the table with a snapshot in which its
own transaction counted as committed. It took the empty base that it had just made for the table, selected nothing from
it, and published that: the table was lost.

Our snapshot keeps the compactor's own transaction open, so its output is invisible to itself until it has committed.
"""

from __future__ import annotations

import pytest

from compactor.acid.directory import Snapshot, directory_state
from compactor.acid.layout import ACID_VERSION_FILE, DeltaKind, base_name, delta_name
from compactor.metastore.compaction import CompactionType
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.storage.filesystem import open_location
from compactor.worker import Outcome, Step
from tests.simulation.world import ORDERS, World


def make_empty_output(world: World) -> str:
    """The directory that Hive's query compactor creates with its temporary table, before it has read a row."""
    (own,) = world.open_compaction_txns()
    row = world.only()
    highest = row.highest_write_id or 0
    if row.type is CompactionType.MAJOR:
        name = base_name(highest, own)
    else:
        name = delta_name(DeltaKind.INSERT, 1, highest, visibility_txn=own)
    (world.location() / name).mkdir()
    (world.location() / name / ACID_VERSION_FILE).write_text("2")
    return name


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_an_output_directory_that_is_there_already_is_not_taken_for_the_table(
    world: World, kind: CompactionType
) -> None:
    world.create_table()
    expected = world.fill()
    made: list[str] = []

    def make_it(step: Step) -> None:
        if step is Step.SNAPSHOT_RECORDED:
            made.append(make_empty_output(world))

    world.request(kind)
    assert world.worker(at_step=make_it).run_once().outcome is Outcome.PUBLISHED
    assert made[0] in world.entries()
    assert world.rows() == expected
    world.clean()
    assert world.rows() == expected


def test_hives_snapshot_would_have_taken_the_empty_directory(world: World) -> None:
    """The original situation: the list of an ordinary reader inside the compactor's transaction."""
    world.create_table()
    world.fill()
    chosen: list[str] = []

    def look(step: Step) -> None:
        if step is Step.SNAPSHOT_RECORDED:
            name = make_empty_output(world)
            (own,) = world.open_compaction_txns()
            txns = valid_txn_list(world.db, own_txn=own)
            fs, root = open_location(str(world.location()))
            seen = Snapshot(txns=txns, write_ids=valid_write_ids(world.db, ORDERS, txns))
            base = directory_state(fs.listing(root), seen).base
            assert base is not None
            assert base.name == name
            chosen.append(name)

    world.request()
    assert world.worker(at_step=look).run_once().outcome is Outcome.PUBLISHED
    assert chosen
