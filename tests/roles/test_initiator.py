from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa

from cleaner.service import Cleaner
from compactor.acid.layout import METADATA_FILE, DeltaKind, base_name, delta_name
from compactor.errors import StorageError
from compactor.metastore.catalog import TableName
from compactor.metastore.catalog_write import drop_table, set_table_parameters
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.queue import Refused, claim, finish_without_output, publish
from compactor.metastore.txns import TxnState, abort_transactions, commit_transaction, transaction_state
from compactor.service.metrics import DeltaCount, Metrics
from compactor.service.offers import prices_of
from compactor.service.queue_statistics import read_statistics
from compactor.settings import InitiatorSettings, MetricsSettings, Settings
from compactor.storage.filesystem import FileSystem, open_location
from compactor.table.writer import TableWriter
from initiator.service import Initiator
from tests.roles.world import World

DAY_MS = 86_400_000


def initiator(world: World, **changes: Any) -> Initiator:
    """changes: settings of the section `initiator`; more than two deltas are too many unless it says otherwise."""
    section = InitiatorSettings(**{"delta_num_threshold": 2} | changes)
    settings = world.settings.model_copy(update={"initiator": section})
    return Initiator(world.db, open_location, settings, world.metrics, "host", "1.0", prices_of=prices_of)


def test_a_table_with_more_deltas_than_the_threshold_and_no_base_gets_a_major(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    result = initiator(world).run_once()
    (requested,) = result.requested
    assert (requested.table, requested.type, requested.reason) == (
        table,
        CompactionType.MAJOR,
        "3 deltas > 2 and no base",
    )
    row = world.only_row()
    assert (row.id, row.state, row.type) == (requested.id, CompactionState.INITIATED, CompactionType.MAJOR)
    assert (row.run_as, row.initiator_version) == ("hive", "1.0")
    assert result.did_anything


def test_a_table_with_a_base_and_many_small_deltas_gets_a_minor(world: World) -> None:
    table = world.table()
    world.put(world.location(table) / "base_0000001", 100_000)
    world.write(table, times=4, size=1)
    initiator(world).run_once()
    assert world.only_row().type is CompactionType.MINOR


def test_a_table_below_the_thresholds_is_left_alone(world: World) -> None:
    world.write(world.table(), times=2)
    result = initiator(world).run_once()
    assert (result.candidates, result.skipped, result.did_anything) == (1, 1, False)
    assert world.rows() == []


def test_a_table_that_nobody_wrote_is_no_candidate(world: World) -> None:
    world.table()
    assert initiator(world).run_once().candidates == 0


def test_each_partition_is_a_candidate_of_its_own(world: World) -> None:
    table = world.table(partitioned=True)
    busy, quiet = world.partition(table, "busy"), world.partition(table, "quiet")
    world.write(table, busy, times=3)
    world.write(table, quiet)
    initiator(world).run_once()
    assert world.only_row().partition == busy


def test_deltas_of_an_open_writer_and_above_it_do_not_count(world: World) -> None:
    table = world.table()
    world.write(table, times=1)
    writer = world.open_write(table)
    world.write(table, times=4)
    role = initiator(world)
    assert role.run_once().requested == ()
    commit_transaction(world.db, writer.txn_id)
    assert len(role.run_once().requested) == 1


def test_what_is_requested_or_running_is_not_requested_again(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    role = initiator(world)
    role.run_once()
    assert role.run_once().requested == ()
    claim(world.db, worker_id="other-1.a", worker_version="0")
    assert role.run_once().requested == ()
    assert len(world.rows()) == 1


def test_what_was_written_during_a_compaction_is_seen_after_it_without_another_write(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    _, txn_id, _ = world.start_compaction(table)
    world.write(table, times=3)
    role = initiator(world)
    assert role.run_once().requested == ()
    abort_transactions(world.db, [txn_id])
    result = role.run_once()
    assert len(result.revoked) == 1
    world.change_queue(result.revoked[0], CQ_STATE="r")
    # So late that these writes no longer count as new
    with mutex(world.db, MutexKey.INITIATOR) as held:
        assert held is not None
        held.set_last_update(held.last_update + DAY_MS)
    assert len(role.run_once().requested) == 1


def test_ready_for_cleaning_blocks_only_while_there_is_nothing_new(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    world.compact(table)
    role = initiator(world)
    assert role.run_once().requested == ()
    world.write(table, times=3)
    assert len(role.run_once().requested) == 1


@pytest.mark.parametrize("key", ["no_auto_compaction", "NO_AUTO_COMPACTION"])
def test_no_auto_compaction_on_the_table_is_obeyed(world: World, key: str) -> None:
    world.write(world.table(**{key: "true"}), times=3)
    assert initiator(world).run_once().skipped == 1
    assert world.rows() == []


def test_no_auto_compaction_on_the_database_wins_over_the_table(world: World) -> None:
    world.database("d", no_auto_compaction="false")
    world.write(world.table(no_auto_compaction="true"), times=3)
    table = world.table(database="d", no_auto_compaction="true")
    world.write(table, times=3)
    initiator(world).run_once()
    assert world.only_row().table == table


def test_the_table_may_override_the_thresholds(world: World) -> None:
    table = world.table(**{"compactorthreshold.hive.compactor.delta.num.threshold": "1"})
    world.write(table, times=2)
    (requested,) = initiator(world).run_once().requested
    assert requested.reason == "2 deltas > 1 and no base"


def test_a_wrong_override_goes_into_the_history_once_and_the_cycle_goes_on(world: World) -> None:
    broken = world.table("broken", **{"compactorthreshold.hive.compactor.delta.num.threshold": "lots"})
    fine = world.table("fine")
    world.write(broken, times=3)
    world.write(fine, times=3)
    role = initiator(world)
    result = role.run_once()
    assert [r.table for r in result.requested] == [fine]
    assert "'lots'" in result.not_initiated[0].reason
    role.run_once()
    (row,) = world.rows(CompactionState.DID_NOT_INITIATE)
    assert row.table == broken
    assert "compactorthreshold.hive.compactor.delta.num.threshold is 'lots'" in str(row.error_message)


def test_a_name_that_does_not_parse_is_recorded_and_the_cycle_goes_on(world: World) -> None:
    broken, fine = world.table("broken"), world.table("fine")
    world.write(broken, times=3)
    world.write(fine, times=3)
    (world.location(broken) / "delta_7_3").mkdir()
    assert [r.table for r in initiator(world).run_once().requested] == [fine]
    (row,) = world.rows(CompactionState.DID_NOT_INITIATE)
    assert "delta_7_3" in str(row.error_message)


def test_a_missing_directory_is_recorded_and_the_cycle_goes_on(world: World) -> None:
    broken, fine = world.table("broken"), world.table("fine")
    world.write(broken, times=3)
    world.write(fine, times=3)
    world.remove_location(broken)
    assert [r.table for r in initiator(world).run_once().requested] == [fine]
    (row,) = world.rows(CompactionState.DID_NOT_INITIATE)
    assert "does not exist" in str(row.error_message)


def test_storage_that_fails_is_recorded_and_the_cycle_goes_on(world: World) -> None:
    broken, fine = world.table("broken"), world.table("fine")
    world.write(broken, times=3)
    world.write(fine, times=3)

    def filesystem_of(location: str) -> tuple[FileSystem, str]:
        if location.endswith("broken"):
            raise StorageError("the store is down")
        return open_location(location)

    role = Initiator(world.db, filesystem_of, world.settings, world.metrics, "host", "1.0", prices_of=prices_of)
    assert [r.table for r in role.run_once().requested] == [fine]
    (row,) = world.rows(CompactionState.DID_NOT_INITIATE)
    assert row.error_message == f"the store is down (hint: {StorageError.default_hint})"


def test_a_dropped_table_is_no_concern_of_anybody(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    drop_table(world.db, table)
    result = initiator(world).run_once()
    assert (result.skipped, result.not_initiated) == (1, ())
    assert world.rows() == []


def test_two_failures_stop_the_requests_and_say_so_in_the_history(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    world.fail(table, times=2)
    result = initiator(world).run_once()
    assert result.requested == ()
    (row,) = world.rows(CompactionState.DID_NOT_INITIATE)
    assert "the last 2 compactions failed" in str(row.error_message)


def test_after_the_retry_time_one_more_compaction_is_tried(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    world.fail(table, times=2, ago_ms=8 * DAY_MS)
    assert len(initiator(world).run_once().requested) == 1


def test_a_failure_is_looked_at_again_without_a_new_write(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    world.fail(table)
    with mutex(world.db, MutexKey.INITIATOR) as held:
        assert held is not None
        held.set_last_update(held.last_update + 10 * DAY_MS)
    assert len(initiator(world).run_once().requested) == 1


def test_insert_only_tables_follow_the_switch(world: World) -> None:
    world.write(world.table(transactional_properties="insert_only"), times=3)
    assert initiator(world, compact_insert_only=False).run_once().requested == ()
    assert len(initiator(world).run_once().requested) == 1


def test_the_pool_comes_from_the_table_and_else_from_the_database(world: World) -> None:
    world.database("d", **{"hive.compactor.worker.pool": "of_database"})
    plain = world.table("plain", database="d")
    own = world.table("own", database="d", **{"hive.compactor.worker.pool": "of_table"})
    world.write(plain, times=3)
    world.write(own, times=3)
    initiator(world).run_once()
    assert {row.table.table: row.pool for row in world.rows()} == {"plain": "of_database", "own": "of_table"}


def test_no_candidate_starves_when_there_are_more_than_a_page_of_them(world: World) -> None:
    """HIVE-30026."""
    table = world.table(partitioned=True)
    names = [world.partition(table, f"v{number:02}") for number in range(7)]
    set_table_parameters(world.db, table, {"compactorthreshold.hive.compactor.delta.num.threshold": "0"})
    for name in names:
        world.write(table, name)
    result = initiator(world, fetch_size=2).run_once()
    assert result.candidates == 7
    assert [row.partition for row in world.rows()] == names


def test_aborts_are_the_cleaners_business_unless_the_switch_says_otherwise(world: World) -> None:
    table = world.table()
    for _ in range(3):
        world.aborted_write(table)
    assert initiator(world, aborted_txn_threshold=2).run_once().candidates == 0
    result = initiator(world, aborted_txn_threshold=2, clean_aborts_using_cleaner=False).run_once()
    (requested,) = result.requested
    assert (requested.type, requested.reason) == (CompactionType.MAJOR, "more than 2 aborted transactions")


def test_an_old_abort_leads_to_a_minor(world: World) -> None:
    table = world.table()
    world.age([world.aborted_write(table).txn_id], by_ms=13 * 3_600_000)
    (requested,) = initiator(world, clean_aborts_using_cleaner=False).run_once().requested
    assert (requested.type, requested.reason) == (CompactionType.MINOR, "an aborted transaction is older than 12 h")


def test_claims_of_a_dead_process_of_this_host_go_back_and_their_transaction_is_aborted(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    held, txn_id, _ = world.start_compaction(table, worker_id=f"host-{_dead_pid()}.abc")
    result = initiator(world).run_once()
    assert result.revoked == (held.id,)
    assert transaction_state(world.db, txn_id) is TxnState.ABORTED
    assert world.only_row().state is CompactionState.INITIATED


@pytest.mark.parametrize("worker", ["host-{alive}.abc", "other-{dead}.abc", "host-{dead}", "host-2-{dead}.abc"])
def test_claims_of_living_processes_other_hosts_and_hive_are_kept(world: World, worker: str) -> None:
    table = world.table()
    world.write(table, times=3)
    world.start_compaction(table, worker_id=worker.format(alive=os.getpid(), dead=_dead_pid()))
    assert initiator(world).run_once().revoked == ()
    assert world.only_row().state is CompactionState.WORKING


def test_only_the_first_cycle_takes_a_missing_process_for_a_dead_worker(world: World) -> None:
    """It may live in another container of the same pod; taking its work away in every cycle would let none finish."""
    table = world.table()
    world.write(table, times=3)
    role = initiator(world)
    with mutex(world.db, MutexKey.INITIATOR):
        assert role.run_once().held_elsewhere
    first, _, _ = world.start_compaction(table, worker_id=f"host-{_dead_pid()}.abc")
    assert role.run_once().revoked == (first.id,), "a cycle that had to wait is not the first"
    again = claim(world.db, worker_id=f"host-{_dead_pid()}.def", worker_version="0")
    assert again is not None
    assert role.run_once().revoked == ()
    assert world.only_row().state is CompactionState.WORKING
    assert initiator(world).run_once().revoked == (first.id,)


def test_claims_that_are_too_old_go_back_in_every_cycle(world: World) -> None:
    table = world.table()
    world.write(table)
    role = initiator(world)
    role.run_once()
    held, _, _ = world.start_compaction(table)
    world.change_queue(held.id, CQ_START=1)
    assert role.run_once().revoked == (held.id,)


def test_a_second_initiator_waits_for_its_turn(world: World) -> None:
    world.write(world.table(), times=3)
    with mutex(world.db, MutexKey.INITIATOR) as held:
        assert held is not None
        result = initiator(world).run_once()
    assert (result.held_elsewhere, result.did_anything) == (True, False)
    assert world.rows() == []
    assert len(initiator(world).run_once().requested) == 1


def test_the_time_of_the_cycle_is_kept_only_when_it_got_to_its_end(world: World) -> None:
    def unreachable(location: str) -> tuple[FileSystem, str]:
        raise RuntimeError(location)

    world.write(world.table(), times=3)
    role = Initiator(world.db, unreachable, world.settings, world.metrics, "host", "1.0", prices_of=prices_of)
    with pytest.raises(RuntimeError):
        role.run_once()
    assert _last_cycle(world.db) == 0
    initiator(world).run_once()
    assert _last_cycle(world.db) > 0


def test_delta_counts_are_kept_for_the_metrics_until_the_object_is_cleaned(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    crowded = world.settings.model_copy(update={"metrics": MetricsSettings(delta_metrics_threshold=3)})
    role = Initiator(world.db, open_location, crowded, world.metrics, "host", "1.0", prices_of=prices_of)
    role.run_once()
    (shown,) = _active_deltas(world)
    assert (shown.table, shown.partition, shown.count) == ("t", "", 3)
    world.change_queue(world.only_row().id, CQ_STATE="r")
    Cleaner(world.db, open_location, crowded, world.metrics, "host").run_once()
    assert _active_deltas(world) == ()


def test_few_deltas_are_not_kept_for_the_metrics(world: World) -> None:
    world.write(world.table(), times=2)
    Initiator(world.db, open_location, world.settings, world.metrics, "host", "1.0", prices_of=prices_of).run_once()
    assert _active_deltas(world) == ()


def _active_deltas(world: World) -> tuple[DeltaCount, ...]:
    return read_statistics(world.db, top=10, delta_threshold=1, obsolete_delta_threshold=1).active_deltas


def delete_like_hive(world: World, table: TableName) -> str:
    """A committed DELETE whose file has an attempt id, as Hive 4 names it; the file's path."""
    written = world.open_write(table, kind=DeltaKind.DELETE)
    directory = delta_name(DeltaKind.DELETE, written.write_id, written.write_id, statement_id=0)
    file = world.location(table) / directory / "bucket_00000"
    file.rename(file.with_name("bucket_00000_0"))
    commit_transaction(world.db, written.txn_id)
    return f"{directory}/bucket_00000_0"


def compact_deletes(world: World, table: TableName) -> None:
    """A published minor compaction of everything, with its delete events under their new name."""
    held, txn_id, output = world.start_compaction(table, kind=CompactionType.MINOR)
    world.put(world.location(table) / f"delete_{output}")
    publish(world.db, held, txn_id)


def truncate_like_hive(world: World, table: TableName) -> None:
    """A base with nothing but the file that says so, which Trino does not see."""
    written = world.open_write(table)
    directory = world.location(table) / base_name(written.write_id)
    (world.location(table) / delta_name(DeltaKind.INSERT, written.write_id, written.write_id, statement_id=0)).rename(
        directory
    )
    (directory / "bucket_00000").rename(directory / METADATA_FILE)
    commit_transaction(world.db, written.txn_id)


def test_one_delete_that_trino_does_not_find_gets_a_minor_and_the_reason_names_it(world: World) -> None:
    table = world.table()
    world.put(world.location(table) / "base_0000001", 100_000)
    world.write(table, size=1)
    file = delete_like_hive(world, table)
    (requested,) = initiator(world).run_once().requested
    assert (requested.table, requested.type) == (table, CompactionType.MINOR)
    assert file in requested.reason
    assert "Trino" in requested.reason


def test_what_trino_reads_wrong_is_nobodys_business_when_the_switch_says_so(world: World) -> None:
    table = world.table()
    delete_like_hive(world, table)
    assert initiator(world, trino_safe=False).run_once().requested == ()
    assert len(initiator(world).run_once().requested) == 1


def test_a_delete_that_trino_finds_gets_nothing(world: World) -> None:
    table = world.table()
    world.write(table)
    commit_transaction(world.db, world.open_write(table, kind=DeltaKind.DELETE).txn_id)
    assert initiator(world).run_once().requested == ()


def test_after_the_minor_trino_needs_nothing_more_before_the_cleaning_and_after_it(world: World) -> None:
    table = world.table()
    world.put(world.location(table) / "base_0000001", 100_000)
    world.write(table, size=1)
    delete_like_hive(world, table)
    compact_deletes(world, table)
    assert initiator(world).run_once().requested == ()
    Cleaner(world.db, open_location, world.settings, world.metrics, "host").run_once()
    assert initiator(world).run_once().requested == ()
    delete_like_hive(world, table)
    assert len(initiator(world).run_once().requested) == 1


@pytest.mark.parametrize("kind", [CompactionType.MINOR, CompactionType.MAJOR])
def test_a_refused_compaction_is_not_asked_for_again_until_somebody_writes(world: World, kind: CompactionType) -> None:
    table = world.table()
    world.write(table)
    if kind is CompactionType.MINOR:
        delete_like_hive(world, table)
    else:
        truncate_like_hive(world, table)
    assert [r.type for r in initiator(world).run_once().requested] == [kind]
    held = claim(world.db, worker_id="other-1.a", worker_version="0")
    assert held is not None
    finish_without_output(world.db, held, None, outcome=Refused(reason="such tables are never compacted"))
    assert initiator(world).run_once().requested == ()


def test_a_base_that_trino_does_not_see_gets_a_major_until_what_it_replaced_is_gone(world: World) -> None:
    table = world.table()
    world.write(table)
    truncate_like_hive(world, table)
    (requested,) = initiator(world).run_once().requested
    assert (requested.type, "base_0000002" in requested.reason) == (CompactionType.MAJOR, True)
    world.change_queue(requested.id, CQ_STATE="r", CQ_HIGHEST_WRITE_ID=2)
    assert initiator(world).run_once().requested == ()


def test_no_auto_compaction_holds_for_trino_too(world: World) -> None:
    table = world.table(no_auto_compaction="true")
    delete_like_hive(world, table)
    assert initiator(world).run_once().requested == ()


def orders(world: World) -> TableName:
    """A table with four deltas and a delete that PySpark could read: prices come from real files."""
    table = world.table()
    writer = TableWriter(world.db, open_location, table, user="ada", host="h")
    for first in range(0, 40, 10):
        writer.insert(pa.table({"a": pa.array(range(first, first + 10), pa.int32())}))
    return table


def test_prices_decide_between_minor_and_major_when_asked_to(world: World) -> None:
    table = orders(world)
    (requested,) = initiator(world, choose="cost").run_once().requested
    assert (requested.table, requested.type) == (table, CompactionType.MAJOR)
    assert requested.reason.startswith("4 deltas > 2 and no base; in 100 scans a minor costs 0.3 core seconds")


def test_prices_put_off_what_nobody_would_gain_by(world: World) -> None:
    orders(world)
    result = initiator(world, choose="cost", expected_scans=1).run_once()
    assert (result.candidates, result.skipped, result.requested) == (1, 1, ())
    assert len(initiator(world, expected_scans=1).run_once().requested) == 1


def test_many_deletes_make_a_major_due_whatever_it_costs(world: World) -> None:
    table = orders(world)
    writer = TableWriter(world.db, open_location, table, user="ada", host="h")
    writer.delete(pc.field("a").isin([1, 11, 21, 31]))
    (requested,) = initiator(world, choose="cost", expected_scans=1).run_once().requested
    assert requested.type is CompactionType.MAJOR
    assert "4 delete events on 40 rows ≥ 10%" in requested.reason


def test_initiators_in_several_threads_make_one_request(world: World) -> None:
    world.write(world.table(), times=3)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda role: role.run_once(), [initiator(world) for _ in range(4)]))
    assert sum(len(result.requested) for result in results) == 1
    assert len(world.rows()) == 1


def test_several_objects_at_a_time_are_examined_with_more_threads(world: World) -> None:
    for number in range(6):
        world.write(world.table(f"t{number}"), times=3)
    assert len(initiator(world, threads=3).run_once().requested) == 6


@pytest.mark.slow
def test_initiators_in_two_processes_make_one_request(world: World) -> None:
    world.write(world.table(), times=3)
    _in_processes(_one_cycle, world.settings)
    assert len(world.rows()) == 1


def _one_cycle(settings: Settings) -> None:
    db = Database.connect(settings.database_url)
    Initiator(db, open_location, settings, Metrics(version="test"), "host", "1.0", prices_of=prices_of).run_once()
    db.dispose()


def _in_processes(work: Callable[[Settings], None], settings: Settings) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(settings,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]


def _last_cycle(db: Database) -> int:
    with mutex(db, MutexKey.INITIATOR) as held:
        assert held is not None
        return held.last_update


def _dead_pid() -> int:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.pid is not None
    return process.pid


def test_what_a_cycle_writes_does_not_grow_with_what_it_requests(world: World) -> None:
    sent: list[str] = []
    begun = []

    def keep(_conn: object, _cursor: object, sql: str, *_: object) -> None:
        sent.append(sql)

    for objects in (2, 30):
        table = world.table(f"t{objects}", partitioned=True)
        for number in range(objects):
            world.write(table, world.partition(table, str(number)), times=3)
        sent.clear()
        sa.event.listen(world.db.engine, "before_cursor_execute", keep)
        assert len(initiator(world).run_once().requested) == objects
        sa.event.remove(world.db.engine, "before_cursor_execute", keep)
        begun.append(sent.count("BEGIN IMMEDIATE"))
    few, many = begun
    assert many <= few
