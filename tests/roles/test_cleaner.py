from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from cleaner.service import Cleaner
from compactor.errors import StorageError
from compactor.metastore.catalog_write import (
    drop_partition,
    drop_table,
    set_partition_parameters,
    set_table_parameters,
)
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.queue import fail, publish
from compactor.metastore.schema import COMPACTION_QUEUE
from compactor.metastore.snapshots import open_reader
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions, transaction_state
from compactor.service.metrics import Metrics
from compactor.settings import CleanerSettings, Settings
from compactor.storage.filesystem import ArrowFileSystem, FileSystem, open_location
from tests.roles.world import World

HOUR_MS = 3_600_000


def cleaner(world: World, **changes: Any) -> Cleaner:
    """changes: settings of the section `cleaner`."""
    settings = world.settings.model_copy(update={"cleaner": CleanerSettings(**changes)})
    return Cleaner(world.db, open_location, settings, world.metrics, "host")


def test_after_a_major_only_its_base_is_left_and_the_row_succeeded(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    output = world.compact(table)
    result = cleaner(world).run_once()
    assert (result.cleaned, result.files_removed, result.bytes_removed) == (1, 3, 300)
    assert world.entries(table) == [output]
    assert world.only_row().state is CompactionState.SUCCEEDED
    assert world.metrics.registry.get_sample_value("compactor_files_removed_total") == 3


def test_a_row_whose_properties_nobody_can_read_waits_alone(world: World) -> None:
    broken, healthy = world.table("broken"), world.table("healthy")
    for table in (broken, healthy):
        world.write(table, times=2)
        world.compact(table)
    with world.db.write() as conn:
        rows = COMPACTION_QUEUE.c
        spoiled = COMPACTION_QUEUE.update().where(rows.CQ_TABLE == broken.table)
        conn.execute(spoiled.values(CQ_TBLPROPERTIES="1:9:short"))
    result = cleaner(world).run_once()
    assert (result.cleaned, result.retried) == (1, 1)
    (waiting,) = [row for row in world.rows() if row.table == broken]
    assert "no list of compaction properties" in str(waiting.error_message)
    assert len(world.entries(healthy)) == 1


def test_after_a_minor_the_base_and_the_new_delta_are_left(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    base = world.compact(table)
    cleaner(world).run_once()
    world.write(table, times=2)
    held, txn_id, minor = world.start_compaction(table, kind=CompactionType.MINOR, first=4)
    publish(world.db, held, txn_id)
    cleaner(world).run_once()
    assert world.entries(table) == sorted([base, minor])


def test_original_files_go_when_a_base_has_their_rows(world: World) -> None:
    table = world.table()
    (world.location(table) / "000000_0").write_bytes(b"x")
    (world.location(table) / "README").write_bytes(b"x")
    world.write(table)
    output = world.compact(table)
    cleaner(world).run_once()
    assert world.entries(table) == ["README", output]


def test_an_empty_base_is_kept(world: World) -> None:
    """HIVE-25492."""
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    (world.location(table) / output / "bucket_00000").unlink()
    publish(world.db, held, txn_id)
    cleaner(world).run_once()
    assert world.entries(table) == [output]


def test_a_second_cycle_has_nothing_to_do(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    role = cleaner(world)
    assert role.run_once().did_anything
    assert not role.run_once().did_anything


def test_a_reader_that_opened_before_the_publication_keeps_the_files_until_it_ends(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    reader = open_reader(world.db, [table], user="ann", host="h1")
    publish(world.db, held, txn_id)
    before = world.entries(table)
    result = cleaner(world).run_once()
    assert world.entries(table) == before
    (holder,) = result.held
    assert holder.blocker is not None
    assert holder.blocker.txn_id == reader.txn_id
    assert f"transaction {reader.txn_id} of ann@h1 is open" in holder.reason
    assert not result.did_anything
    commit_transaction(world.db, reader.txn_id)
    cleaner(world).run_once()
    assert world.entries(table) == [output]


def test_the_reader_whose_id_equals_next_txn_id_counts(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    (reader,) = open_transactions(world.db, user="u", host="h")
    publish(world.db, held, txn_id)
    assert world.only_row().next_txn_id == reader
    assert cleaner(world).run_once().cleaned == 0
    commit_transaction(world.db, reader)
    assert cleaner(world).run_once().cleaned == 1


def test_a_reader_that_opened_after_the_publication_keeps_nothing(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    open_reader(world.db, [table], user="u", host="h")
    assert cleaner(world).run_once().cleaned == 1


def test_a_declared_reader_of_another_table_keeps_nothing(world: World) -> None:
    table, other = world.table(), world.table("other")
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    open_reader(world.db, [other], user="u", host="h")
    publish(world.db, held, txn_id)
    assert cleaner(world).run_once().cleaned == 1


def test_a_reader_that_declared_nothing_keeps_every_tables_files(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    open_transactions(world.db, user="u", host="h")
    publish(world.db, held, txn_id)
    assert cleaner(world).run_once().cleaned == 0


def test_what_a_later_compaction_replaced_waits_for_its_own_readers(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    first = world.compact(table)
    world.write(table)
    held, txn_id, second = world.start_compaction(table)
    reader = open_reader(world.db, [table], user="u", host="h")
    publish(world.db, held, txn_id)
    cleaner(world).run_once()
    assert world.entries(table) == sorted([first, second, "delta_0000003_0000003_0000"])
    commit_transaction(world.db, reader.txn_id)
    cleaner(world).run_once()
    assert world.entries(table) == [second]


def test_what_a_later_insert_overwrite_replaced_stays_for_its_own_readers(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    output = world.compact(table)
    world.write(table)
    overwrite = world.location(table) / "base_0000003"
    (world.location(table) / "delta_0000003_0000003_0000").rename(overwrite)
    cleaner(world).run_once()
    assert world.entries(table) == sorted([output, overwrite.name])


def test_what_a_later_compaction_of_the_same_writes_replaced_stays_for_its_own_readers(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    minor = world.compact(table, kind=CompactionType.MINOR)
    first = world.only_row().id
    world.change_queue(first, CQ_TABLE="put_aside")
    held, txn_id, major = world.start_compaction(table)
    open_reader(world.db, [table], user="u", host="h")
    publish(world.db, held, txn_id)
    world.change_queue(first, CQ_TABLE=table.table)
    assert cleaner(world).run_once().cleaned == 1
    assert world.entries(table) == sorted([minor, major])


def test_nothing_of_another_partition_is_touched(world: World) -> None:
    table = world.table(partitioned=True)
    one, two = world.partition(table, "1"), world.partition(table, "2")
    world.write(table, one, times=2)
    world.write(table, two, times=2)
    before = world.entries(table, two)
    output = world.compact(table, one)
    cleaner(world).run_once()
    assert world.entries(table, one) == [output]
    assert world.entries(table, two) == before


def test_a_dropped_table_or_partition_ends_its_row(world: World) -> None:
    table, partitioned = world.table(), world.table("parts", partitioned=True)
    part = world.partition(partitioned, "1")
    world.write(table, times=2)
    world.write(partitioned, part, times=2)
    world.compact(table)
    world.compact(partitioned, part)
    drop_table(world.db, table)
    drop_partition(world.db, partitioned, part)
    assert cleaner(world).run_once().cleaned == 2
    assert {row.state for row in world.rows()} == {CompactionState.SUCCEEDED}


@pytest.mark.parametrize("key", ["no_cleanup", "NO_CLEANUP"])
def test_no_cleanup_on_the_table_refuses_and_leaves_the_files(world: World, key: str) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    set_table_parameters(world.db, table, {key: "true"})
    before = world.entries(table)
    assert cleaner(world).run_once().refused == 1
    assert world.entries(table) == before
    row = world.only_row()
    assert row.state is CompactionState.REFUSED
    assert "no_cleanup is set on the table" in str(row.error_message)


def test_no_cleanup_on_the_partition_refuses(world: World) -> None:
    table = world.table(partitioned=True)
    part = world.partition(table, "1")
    world.write(table, part, times=2)
    world.compact(table, part)
    set_partition_parameters(world.db, table, part, {"no_cleanup": "true"})
    assert cleaner(world).run_once().refused == 1
    assert "no_cleanup is set on the partition" in str(world.only_row().error_message)


def test_a_row_whose_transaction_is_aborted_fails_and_loses_only_its_own_output(world: World) -> None:
    """HIVE-29572: Hive writes 'r' before it commits."""
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    world.change_queue(held.id, CQ_STATE="r", CQ_WORKER_ID=None)
    abort_transactions(world.db, [txn_id])
    result = cleaner(world).run_once()
    assert (result.failed, result.cleaned) == (1, 0)
    assert output not in world.entries(table)
    assert len(world.entries(table)) == 2
    row = world.only_row()
    assert row.state is CompactionState.FAILED
    assert f"transaction {txn_id} is aborted" in str(row.error_message)
    world.compact(table)
    assert cleaner(world).run_once().cleaned == 1


def test_a_row_that_hive_marked_ready_before_its_commit_waits_for_the_commit(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    world.change_queue(held.id, CQ_STATE="r", CQ_WORKER_ID=None)
    before = world.entries(table)
    (holder,) = cleaner(world).run_once().held
    assert holder.reason == f"its own transaction {txn_id} has not ended"
    assert world.entries(table) == before


def test_a_committed_row_without_commit_facts_is_cleaned_after_every_present_reader(world: World) -> None:
    """Hive 4.0.1 leaves them empty after a rebalance."""
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    reader = open_reader(world.db, [table], user="u", host="h")
    publish(world.db, held, txn_id)
    world.change_queue(held.id, CQ_TYPE="r", CQ_NEXT_TXN_ID=None, CQ_COMMIT_TIME=None)
    assert cleaner(world).run_once().cleaned == 0
    commit_transaction(world.db, reader.txn_id)
    assert cleaner(world).run_once().cleaned == 1
    assert world.entries(table) == [output]


def test_what_hive_dropped_and_left_is_refused_with_its_location(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    world.change_queue(world.only_row().id, CQ_TBLPROPERTIES="1:8:location5:/w/t9")
    drop_table(world.db, table)
    assert cleaner(world).run_once().refused == 1
    assert "/w/t9" in str(world.only_row().error_message)


def test_a_dynamic_partition_row_takes_aborted_entries_and_never_obsolete_ones(world: World) -> None:
    """HIVE-25502."""
    table = world.table(partitioned=True)
    part = world.partition(table, "1")
    world.write(table, part, times=2)
    world.compact(table, part)
    kept = set(world.entries(table, part))
    cleaned_later = world.rows()[0]
    world.change_queue(cleaned_later.id, CQ_COMMIT_TIME=None, CQ_STATE="i")
    aborted = world.aborted_write(table, part)
    unregistered = world.location(table) / "p=2" / "delta_0000003_0000003_0000"
    world.put(unregistered)
    world.change_queue(cleaned_later.id, CQ_PARTITION=None, CQ_STATE="r", CQ_HIGHEST_WRITE_ID=aborted.write_id)
    result = cleaner(world).run_once()
    assert result.cleaned == 1
    assert set(world.entries(table, part)) == kept
    assert not unregistered.exists()


def test_rows_of_committed_writes_are_no_longer_known_and_newer_ones_are(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    world.compact(table)
    world.write(table)
    cleaner(world).run_once()
    with world.db.read() as conn:
        left = conn.exec_driver_sql('SELECT "CTC_WRITEID" FROM "COMPLETED_TXN_COMPONENTS"').scalars().all()
    assert left == [4]


def test_an_aborted_write_that_the_compaction_covered_is_removed_and_forgotten(world: World) -> None:
    table = world.table()
    world.write(table)
    aborted = world.aborted_write(table)
    world.write(table)
    output = world.compact(table)
    cleaner(world).run_once()
    assert world.entries(table) == [output]
    assert world.components(aborted.txn_id) == 0


def test_an_aborted_write_whose_rows_are_still_in_a_file_is_remembered(world: World) -> None:
    table = world.table()
    world.write(table)
    aborted = world.open_write(table)
    going_on = world.open_write(table)
    (world.location(table) / "delta_0000002_0000002_0000" / "bucket_00000").unlink()
    (world.location(table) / "delta_0000002_0000002_0000").rmdir()
    world.put(world.location(table) / "delta_0000002_0000003")
    abort_transactions(world.db, [aborted.txn_id])
    world.compact(table)
    commit_transaction(world.db, going_on.txn_id)
    assert cleaner(world).run_once().cleaned == 1
    assert "delta_0000002_0000003" in world.entries(table)
    assert world.components(aborted.txn_id) == 1


def test_a_failure_is_tried_again_later_with_growing_pauses_and_given_up_at_last(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    (world.location(table) / "delta_7_3").mkdir()
    role = cleaner(world, retry_max_attempts=2, retry_retention_s=300)
    for pause_ms in (300_000, 600_000):
        assert role.run_once().retried == 1
        row = world.only_row()
        assert (row.state, row.retry_retention) == (CompactionState.READY_FOR_CLEANING, pause_ms)
        waiting = role.run_once()
        assert (waiting.retried, waiting.did_anything) == (0, False)
        assert "delta_7_3" in waiting.held[0].reason
        world.change_queue(row.id, CQ_COMMIT_TIME=1, CQ_CLEANER_START=1)
    assert role.run_once().failed == 1
    row = world.only_row()
    assert row.state is CompactionState.FAILED
    assert "given up after 3 attempts" in str(row.error_message)
    assert "delta_7_3" in str(row.error_message)
    assert "delta_0000001_0000001_0000" in world.entries(table)


def test_a_missing_location_is_an_error_and_not_a_success(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    world.remove_location(table)
    assert cleaner(world).run_once().retried == 1
    assert "does not exist" in str(world.only_row().error_message)


def test_one_broken_table_does_not_keep_the_others_from_being_cleaned(world: World) -> None:
    broken, fine = world.table("broken"), world.table("fine")
    for table in (broken, fine):
        world.write(table, times=2)
        world.compact(table)

    def filesystem_of(location: str) -> tuple[FileSystem, str]:
        if location.endswith("broken"):
            raise StorageError("the store is down")
        return open_location(location)

    result = Cleaner(world.db, filesystem_of, world.settings, world.metrics, "host").run_once()
    assert (result.cleaned, result.retried) == (1, 1)


def test_files_are_kept_for_the_retention(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    role = cleaner(world, retention_s=3600)
    result = role.run_once()
    assert (result.cleaned, len(result.held)) == (0, 1)
    commit_time = world.only_row().commit_time
    assert commit_time is not None
    world.change_queue(world.only_row().id, CQ_COMMIT_TIME=commit_time - HOUR_MS)
    assert role.run_once().cleaned == 1


def test_an_entry_that_is_still_there_afterwards_keeps_the_row(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    result = Cleaner(world.db, _forgetful, world.settings, world.metrics, "host").run_once()
    assert (result.cleaned, len(result.held)) == (0, 1)
    assert "2 entries are still there" in result.held[0].reason
    assert world.only_row().retry_retention == 0
    assert cleaner(world).run_once().cleaned == 1


class Forgetful(ArrowFileSystem):
    """A real file system that says yes to a deletion and does nothing."""

    def delete_directory(self, path: str) -> None:
        assert Path(path).exists()


def _forgetful(location: str) -> tuple[FileSystem, str]:
    _, path = open_location(location)
    return Forgetful(LocalFileSystem()), path


def test_the_output_of_a_failed_compaction_goes_and_its_transaction_is_forgotten_after_the_quarantine(
    world: World,
) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, output = world.start_compaction(table)
    fail(world.db, held, message="the job failed", txn_id=txn_id)
    role = cleaner(world)
    result = role.run_once()
    assert result.files_removed == 1
    assert output not in world.entries(table)
    assert len(world.entries(table)) == 2
    assert not role.run_once().did_anything
    # A worker that wakes up now still writes into an aborted transaction, and its output goes too
    assert str(transaction_state(world.db, txn_id)) == "a"
    assert world.components(txn_id) == 1
    world.put(world.location(table) / output)
    world.age([txn_id], by_ms=25 * HOUR_MS)
    result = role.run_once()
    assert (result.files_removed, result.outputs_forgotten) == (1, 1)
    assert world.components(txn_id) == 0


def test_a_successful_compaction_does_not_end_the_quarantine_of_a_failed_one(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    held, txn_id, _ = world.start_compaction(table)
    fail(world.db, held, message="the job failed", txn_id=txn_id)
    output = world.compact(table)
    assert cleaner(world).run_once().cleaned == 1
    assert world.entries(table) == [output]
    assert world.components(txn_id) == 1


def test_the_output_of_a_running_compaction_is_not_touched(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    _, _, output = world.start_compaction(table)
    assert not cleaner(world).run_once().did_anything
    assert output in world.entries(table)


def test_the_output_of_a_transaction_that_nobody_knows_yet_is_not_touched(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    world.put(world.location(table) / "base_0000002_v0009999")
    cleaner(world).run_once()
    assert "base_0000002_v0009999" in world.entries(table)


def test_a_second_cleaner_waits_for_its_turn(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    world.compact(table)
    with mutex(world.db, MutexKey.CLEANER) as held:
        assert held is not None
        result = cleaner(world).run_once()
    assert (result.held_elsewhere, result.did_anything) == (True, False)
    assert world.only_row().state is CompactionState.READY_FOR_CLEANING


def test_cleaners_in_several_threads_clean_each_row_once(world: World) -> None:
    for number in range(3):
        table = world.table(f"t{number}")
        world.write(table, times=2)
        world.compact(table)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda role: role.run_once(), [cleaner(world, threads=2) for _ in range(3)]))
    assert sum(result.cleaned for result in results) == 3
    assert sum(result.files_removed for result in results) == 6
    assert {row.state for row in world.rows()} == {CompactionState.SUCCEEDED}


@pytest.mark.slow
def test_cleaners_in_two_processes_clean_each_row_once(world: World) -> None:
    table = world.table()
    world.write(table, times=2)
    output = world.compact(table)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_one_cycle, args=(world.settings,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert world.entries(table) == [output]
    assert world.only_row().state is CompactionState.SUCCEEDED


def _one_cycle(settings: Settings) -> None:
    db = Database.connect(settings.database_url)
    Cleaner(db, open_location, settings, Metrics(version="test"), "host").run_once()
    db.dispose()
