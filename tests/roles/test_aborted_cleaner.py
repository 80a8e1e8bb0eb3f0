from __future__ import annotations

from typing import Any

from cleaner.service import Cleaner
from compactor.acid.layout import DeltaKind, base_name
from compactor.errors import StorageError
from compactor.metastore.catalog import TableName
from compactor.metastore.catalog_write import drop_table
from compactor.metastore.compaction import CompactionType
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions
from compactor.metastore.writeids import allocate_write_ids
from compactor.settings import InitiatorSettings
from compactor.storage.filesystem import FileSystem, open_location
from tests.roles.world import Clock, World, Write

HOUR_MS = 3_600_000


def cleaner(world: World, *, clock: Clock | None = None, **changes: Any) -> Cleaner:
    """changes: settings of the section `initiator`, where Hive keeps the thresholds; two aborts are too many."""
    section = InitiatorSettings(**{"aborted_txn_threshold": 1} | changes)
    settings = world.settings.model_copy(update={"initiator": section})
    return Cleaner(world.db, open_location, settings, world.metrics, "host", clock=clock or Clock())


def streaming_batch(world: World, table: TableName) -> list[Write]:
    """Two transactions that share a delta; the first is aborted, the second still open."""
    txn_ids = open_transactions(world.db, count=2, user="u", host="h")
    ids = allocate_write_ids(world.db, txn_ids, table)
    writes = [Write(txn_id=txn_id, write_id=ids[txn_id]) for txn_id in txn_ids]
    for write in writes:
        world.lock(write.txn_id, table, None)
    world.put(world.location(table) / f"delta_{writes[0].write_id:07d}_{writes[1].write_id:07d}")
    abort_transactions(world.db, txn_ids[:1])
    return writes


def test_aborted_deltas_go_without_a_compaction_when_there_are_too_many(world: World) -> None:
    table = world.table()
    world.write(table)
    aborted = [world.aborted_write(table) for _ in range(2)]
    result = cleaner(world).run_once()
    assert (result.files_removed, result.aborts_forgotten) == (2, 2)
    assert world.entries(table) == ["delta_0000001_0000001_0000"]
    assert [world.components(write.txn_id) for write in aborted] == [0, 0]


def test_as_many_aborts_as_the_threshold_are_left_alone(world: World) -> None:
    table = world.table()
    world.aborted_write(table)
    assert not cleaner(world).run_once().did_anything
    assert len(world.entries(table)) == 1


def test_one_old_abort_is_enough(world: World) -> None:
    table = world.table()
    aborted = world.aborted_write(table)
    world.age([aborted.txn_id], by_ms=13 * HOUR_MS)
    assert cleaner(world).run_once().files_removed == 1


def test_a_negative_age_disables_that_threshold(world: World) -> None:
    table = world.table()
    world.age([world.aborted_write(table).txn_id], by_ms=13 * HOUR_MS)
    assert not cleaner(world, aborted_txn_time_threshold_s=-1).run_once().did_anything


def test_nothing_happens_when_aborts_are_left_to_compactions(world: World) -> None:
    table = world.table()
    for _ in range(2):
        world.aborted_write(table)
    assert not cleaner(world, clean_aborts_using_cleaner=False).run_once().did_anything


def test_obsolete_entries_stay_for_whoever_still_reads_them(world: World) -> None:
    """HIVE-25502."""
    table = world.table()
    world.write(table)
    world.put(world.location(table) / base_name(1))
    for _ in range(2):
        world.aborted_write(table)
    cleaner(world).run_once()
    assert world.entries(table) == ["base_0000001", "delta_0000001_0000001_0000"]


def test_an_aborted_insert_overwrite_goes(world: World) -> None:
    table = world.table()
    world.write(table)
    for _ in range(2):
        aborted = world.aborted_write(table)
        delta = world.location(table) / f"delta_{aborted.write_id:07d}_{aborted.write_id:07d}_0000"
        delta.rename(world.location(table) / base_name(aborted.write_id))
    cleaner(world).run_once()
    assert world.entries(table) == ["delta_0000001_0000001_0000"]


def test_aborted_delete_deltas_go_too(world: World) -> None:
    table = world.table()
    writes = [world.open_write(table, kind=DeltaKind.DELETE) for _ in range(2)]
    abort_transactions(world.db, [write.txn_id for write in writes])
    assert cleaner(world).run_once().files_removed == 2
    assert world.entries(table) == []


def test_a_delta_that_a_committed_write_shares_stays_and_its_abort_is_remembered(world: World) -> None:
    table = world.table()
    first, _ = streaming_batch(world, table)
    other = world.aborted_write(table)
    # The second transaction of the batch is open: everything above its write id is left alone for now
    result = cleaner(world).run_once()
    assert (result.files_removed, result.aborts_forgotten) == (0, 0)
    assert (world.components(first.txn_id), world.components(other.txn_id)) == (1, 1)


def test_exactly_the_write_ids_that_no_file_holds_are_forgotten(world: World) -> None:
    table = world.table()
    gone = world.aborted_write(table)
    first, second = streaming_batch(world, table)
    commit_transaction(world.db, second.txn_id)
    result = cleaner(world).run_once()
    assert (result.files_removed, result.aborts_forgotten) == (1, 1)
    assert world.components(gone.txn_id) == 0
    assert world.components(first.txn_id) == 1
    assert world.entries(table) == ["delta_0000002_0000003"]


def test_aborts_that_cannot_be_forgotten_yet_are_not_looked_at_in_every_cycle(world: World) -> None:
    table = world.table()
    first, second = streaming_batch(world, table)
    world.age([first.txn_id], by_ms=13 * HOUR_MS)
    commit_transaction(world.db, second.txn_id)
    opened: list[str] = []

    def filesystem_of(location: str) -> tuple[FileSystem, str]:
        opened.append(location)
        return open_location(location)

    clock = Clock()
    role = Cleaner(world.db, filesystem_of, world.settings, world.metrics, "host", clock=clock)
    role.run_once()
    role.run_once()
    assert len(opened) == 1
    clock.now += 301
    role.run_once()
    assert len(opened) == 2


def test_dynamic_partition_aborts_are_found_in_every_partition_and_in_directories_that_are_none(world: World) -> None:
    table = world.table(partitioned=True)
    part = world.partition(table, "1")
    world.write(table, part)
    txn_ids = open_transactions(world.db, count=2, user="u", host="h")
    write_ids = allocate_write_ids(world.db, txn_ids, table)
    for txn_id in txn_ids:
        world.lock(txn_id, table, None, dynamic=True)
        name = f"delta_{write_ids[txn_id]:07d}_{write_ids[txn_id]:07d}_0000"
        world.put(world.location(table, part) / name)
        world.put(world.location(table) / "p=new" / name)
    abort_transactions(world.db, txn_ids)
    result = cleaner(world).run_once()
    assert (result.files_removed, result.aborts_forgotten) == (4, 2)
    assert world.entries(table, part) == ["delta_0000001_0000001_0000"]


def test_aborts_of_a_dropped_table_are_forgotten(world: World) -> None:
    table = world.table()
    aborted = [world.aborted_write(table) for _ in range(2)]
    drop_table(world.db, table)
    assert cleaner(world).run_once().aborts_forgotten == 2
    assert [world.components(write.txn_id) for write in aborted] == [0, 0]


def test_an_error_is_noted_and_the_object_waits_while_others_go_on(world: World) -> None:
    broken, fine = world.table("broken"), world.table("fine")
    for table in (broken, fine):
        for _ in range(2):
            world.aborted_write(table)

    def filesystem_of(location: str) -> tuple[FileSystem, str]:
        if location.endswith("broken"):
            raise StorageError("the store is down")
        return open_location(location)

    settings = world.settings.model_copy(update={"initiator": InitiatorSettings(aborted_txn_threshold=1)})
    role = Cleaner(world.db, filesystem_of, settings, world.metrics, "host", clock=Clock())
    result = role.run_once()
    assert result.aborts_forgotten == 2
    (error,) = result.errors
    assert error.startswith("aborted writes of default.broken: the store is down (hint: ")
    assert role.run_once().errors == ()
    (note,) = world.rows()
    assert (note.type, note.retry_retention) == (CompactionType.ABORT_TXN_CLEANUP, 300_000)
    world.change_queue(note.id, CQ_COMMIT_TIME=1)
    assert role.run_once().errors == result.errors
    assert world.only_row().retry_retention == 600_000
    world.change_queue(world.only_row().id, CQ_COMMIT_TIME=1)
    assert cleaner(world).run_once().aborts_forgotten == 2
    assert world.rows() == []
