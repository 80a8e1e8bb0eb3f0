"""HIVE-25502: a dynamic-partition insert that was aborted early is known to the metastore only as "somewhere in this
table". Hive's cleaner then went through every partition and removed, along with the aborted directories, the obsolete
ones, although nobody had checked who still read them: queries failed, and where the newer files were not committed yet
the rows were gone.

For such a row, and for every clean-up without a compaction, our cleaner removes what is aborted and nothing else.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.settings import InitiatorSettings, Settings
from compactor.worker import Outcome
from tests.regressions.hive_rows import change_queue, keep_house_much_later, open_write
from tests.simulation.world import ORDERS, World, rows_of

MONDAY, SUNDAY = "day=monday", "day=sunday"


@pytest.fixture
def partitioned(world: World) -> World:
    world.create_table(partitioned=True)
    for n in range(3):
        world.insert({n: "monday"}, day="monday")
        world.insert({10 + n: "sunday"}, day="sunday")
    return world


def abort_a_dynamic_insert(world: World) -> int:
    """Files in a partition and in a directory that is none yet, and no word about either; the write id."""
    txn_id, write_id = open_write(world, ORDERS, dynamic=True)
    name = f"delta_{write_id:07d}_{write_id:07d}_0000"
    source = next((world.location() / MONDAY).glob("delta_*"))
    shutil.copytree(source, world.location() / MONDAY / name)
    shutil.copytree(source, world.location() / "day=new" / name)
    txns.abort_transactions(world.db, [txn_id])
    return write_id


def compact_partition(world: World, partition: str) -> None:
    world.request(CompactionType.MAJOR, partition=partition)
    assert world.worker().run_once().outcome is Outcome.PUBLISHED


def test_hives_row_for_the_whole_table_removes_nothing_that_a_reader_holds(partitioned: World) -> None:
    expected = partitioned.rows()
    with partitioned.reader() as before:
        compact_partition(partitioned, MONDAY)
        held = partitioned.only()
        write_id = abort_a_dynamic_insert(partitioned)
        # Hive's initiator asks for the table as a whole, its worker hands that on to the cleaner without a transaction.
        whole = partitioned.request(CompactionType.MINOR)
        change_queue(partitioned, whole, CQ_STATE="r", CQ_HIGHEST_WRITE_ID=write_id, CQ_NEXT_TXN_ID=1, CQ_COMMIT_TIME=1)
        obsolete = [n for n in partitioned.entries() if n.startswith(f"{MONDAY}/delta_") and f"{write_id:07d}" not in n]
        assert len(obsolete) == 3
        assert partitioned.clean().cleaned == 1
        assert partitioned.compaction(whole).state is CompactionState.SUCCEEDED
        assert partitioned.compaction(held.id).state is CompactionState.READY_FOR_CLEANING
        assert set(obsolete) <= set(partitioned.entries())
        assert rows_of(before) == expected
    left = partitioned.entries()
    assert not [name for name in left if f"{write_id:07d}_{write_id:07d}" in name]
    keep_house_much_later(partitioned)
    assert partitioned.rows() == expected


def test_a_cleanup_without_a_compaction_removes_nothing_that_a_reader_holds(partitioned: World) -> None:
    impatient = replace(
        partitioned, settings=Settings(initiator=InitiatorSettings(aborted_txn_threshold=0, delta_num_threshold=100))
    )
    expected = impatient.rows()
    with impatient.reader() as before:
        compact_partition(impatient, MONDAY)
        write_id = abort_a_dynamic_insert(impatient)
        entries = {name for name in impatient.entries() if f"{write_id:07d}_{write_id:07d}" not in name}
        result = impatient.clean()
        assert (result.cleaned, result.aborts_forgotten) == (0, 1)
        assert set(impatient.entries()) == entries
        assert rows_of(before) == expected
    assert impatient.clean().cleaned == 1
    keep_house_much_later(impatient)
    assert impatient.rows() == expected


def test_a_row_for_the_whole_table_leaves_the_partitions_their_candidates(partitioned: World) -> None:
    """Hive's markCleaned forgets the completed writes of every partition for it, and the initiator those partitions."""
    eager = replace(partitioned, settings=Settings(initiator=InitiatorSettings(delta_num_threshold=2)))
    write_id = abort_a_dynamic_insert(eager)
    whole = eager.request(CompactionType.MINOR)
    change_queue(eager, whole, CQ_STATE="r", CQ_HIGHEST_WRITE_ID=write_id, CQ_NEXT_TXN_ID=1, CQ_COMMIT_TIME=1)
    assert eager.clean().cleaned == 1
    assert sorted(str(r.partition) for r in eager.initiate().requested) == [MONDAY, SUNDAY]
