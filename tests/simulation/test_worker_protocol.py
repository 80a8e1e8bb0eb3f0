"""Every way a worker's cycle can end, with the row, the transaction, the files and the readers after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from compactor.acid.planning import PlanItem
from compactor.errors import StorageError
from compactor.metastore import catalog_write, locks, queue, txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.service.signals import StopRequest
from compactor.worker import Outcome, Step
from tests.inline_runner import InlineJobRunner
from tests.simulation.world import HOST, ORDERS, World, fingerprint

BEFORE_PUBLICATION = [s for s in Step if s is not Step.PUBLISHED]
WITH_A_TRANSACTION = [s for s in BEFORE_PUBLICATION if s is not Step.CLAIMED]
BOTH_DEPTHS = [CompactionType.MINOR, CompactionType.MAJOR]


def at(step: Step, action: Callable[[], object]) -> Callable[[Step], None]:
    """A hook that acts when this step has just been done."""

    def hook(done: Step) -> None:
        if done is step:
            action()

    return hook


def revoke_all_claims(world: World) -> None:
    working = [row for row in world.compactions() if row.state is CompactionState.WORKING]
    assert queue.revoke_claims(world.db, [row.worker_id or "" for row in working])


def time_out_compactions(world: World) -> None:
    silent = world.open_compaction_txns()
    world.silence(silent)
    assert world.keep_house().timed_out_transactions == tuple(silent)


def abort_compactions(world: World) -> None:
    assert txns.abort_transactions(world.db, world.open_compaction_txns()).aborted


def assert_next_worker_finishes(world: World, expected: dict[int, str]) -> None:
    """Whatever happened, the same request can be carried out and cleaned, and nothing of the attempt is left."""
    assert world.rows() == expected
    assert not world.open_compaction_txns()
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == expected
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    assert len(world.entries()) == 1
    assert world.rows() == expected


@pytest.mark.parametrize("kind", BOTH_DEPTHS, ids=lambda k: k.name.lower())
@pytest.mark.parametrize("buckets", [0, 2])
def test_a_published_compaction_waits_for_the_cleaner_and_leaves_no_lock(
    world: World, kind: CompactionType, buckets: int
) -> None:
    world.create_table(buckets=buckets)
    expected = world.fill()
    result = world.compact(kind)
    assert result.outcome is Outcome.PUBLISHED
    row = world.only()
    assert row.state is CompactionState.READY_FOR_CLEANING
    assert row.worker_id is None
    assert row.highest_write_id == 4
    assert row.commit_time is not None
    assert row.txn_id is not None
    assert row.next_txn_id is not None
    assert row.next_txn_id >= row.txn_id
    assert not locks.show_locks(world.db)
    assert txns.transaction_state(world.db, row.txn_id) is txns.TxnState.COMMITTED
    assert world.rows() == expected
    world.clean()
    assert world.rows() == expected
    output = (
        {"base_0000004"} if kind is CompactionType.MAJOR else {"delta_0000001_0000004", "delete_delta_0000001_0000004"}
    )
    assert {e.rpartition("_v")[0] for e in world.entries()} == output


def test_an_empty_queue_is_an_idle_cycle(world: World) -> None:
    result = world.worker().run_once()
    assert result.outcome is Outcome.IDLE
    assert not result.did_anything


def test_a_table_with_nothing_to_gain_is_refused_with_the_reason_in_the_row(world: World) -> None:
    world.create_table()
    world.insert({1: "only"})
    result = world.compact()
    assert result.outcome is Outcome.REFUSED
    row = world.only()
    assert row.state is CompactionState.REFUSED
    assert row.error_message == result.reason
    assert "nothing to gain from a major compaction" in result.reason
    assert not world.open_compaction_txns()
    assert not locks.show_locks(world.db)


def test_a_table_that_is_not_transactional_is_refused(world: World) -> None:
    world.create_table(properties={"transactional": "false"})
    assert world.compact().outcome is Outcome.REFUSED
    assert world.only().error_message == "default.orders is not transactional"


def test_a_partitioned_table_without_a_partition_is_refused(world: World) -> None:
    world.create_table(partitioned=True)
    assert world.compact().outcome is Outcome.REFUSED
    assert "name the partition" in (world.only().error_message or "")


def test_aborted_directories_are_left_to_the_cleaner_when_there_is_nothing_to_compact(world: World) -> None:
    world.create_table()
    world.insert({1: "kept"})
    world.insert_and_abort({2: "aborted"})
    assert len(world.entries()) == 2
    result = world.compact()
    assert result.outcome is Outcome.LEFT_TO_CLEANER
    assert world.only().state is CompactionState.READY_FOR_CLEANING
    assert not world.open_compaction_txns()
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    assert world.entries() == ["delta_0000001_0000001_0000"]
    assert world.rows() == {1: "kept"}


def test_a_dropped_table_is_refused(world: World) -> None:
    world.create_table()
    world.fill()
    world.request()
    catalog_write.drop_table(world.db, ORDERS)
    assert world.worker().run_once().outcome is Outcome.REFUSED
    assert "default.orders" in (world.only().error_message or "")


def test_a_dropped_partition_is_refused(world: World) -> None:
    world.create_table(partitioned=True)
    world.insert({1: "one"}, day="monday")
    world.request(partition="day=monday")
    catalog_write.drop_partition(world.db, ORDERS, "day=monday")
    assert world.worker().run_once().outcome is Outcome.REFUSED
    assert "day=monday" in (world.only().error_message or "")


def test_a_location_that_vanishes_on_the_way_fails_the_compaction(world: World) -> None:
    world.create_table()
    world.fill()
    world.request()
    worker = world.worker(at_step=at(Step.SNAPSHOT_RECORDED, lambda: shutil.rmtree(world.location())))
    assert worker.run_once().outcome is Outcome.FAILED
    assert "does not exist" in (world.only().error_message or "")
    assert not world.open_compaction_txns()


def test_a_partition_is_compacted_alone(world: World) -> None:
    world.create_table(partitioned=True)
    for day in ("monday", "tuesday"):
        for n in range(3):
            world.insert({n + (10 if day == "tuesday" else 0): day}, day=day)
    expected = world.rows()
    world.request(partition="day=monday")
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    world.clean()
    assert world.rows() == expected
    assert [e.split("/")[0] for e in world.entries()] == ["day=monday"] + ["day=tuesday"] * 3


def test_an_exclusive_lock_fails_the_compaction_at_once(world: World) -> None:
    world.create_table()
    expected = world.fill()
    (dropper,) = txns.open_transactions(world.db, user="eve", host=HOST)
    component = locks.LockComponent(
        type=locks.LockType.EXCLUSIVE,
        database=ORDERS.database,
        table=ORDERS.table,
        partition=None,
        operation=Operation.SELECT,
    )
    request = locks.LockRequest(txn_id=dropper, user="eve", host=HOST, agent_info="", components=(component,))
    assert locks.acquire(world.db, request).state is locks.LockState.ACQUIRED
    before = fingerprint(world.location())
    assert world.compact().outcome is Outcome.FAILED
    row = world.only()
    assert row.state is CompactionState.FAILED
    assert f"locked by transaction {dropper}" in (row.error_message or "")
    assert not world.open_compaction_txns()
    assert [lock.txn_id for lock in locks.show_locks(world.db)] == [dropper]
    assert fingerprint(world.location()) == before
    txns.abort_transactions(world.db, [dropper])
    assert world.compact().outcome is Outcome.PUBLISHED
    assert world.rows() == expected


def test_an_error_while_writing_fails_the_row_and_the_half_written_output_goes_with_the_cleaner(world: World) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    before = fingerprint(world.location())

    def break_second_file(item: PlanItem) -> None:
        if item.bucket == 1:
            raise StorageError("the disk is on fire")

    world.request()
    result = world.worker(runner=InlineJobRunner(break_second_file)).run_once()
    assert result.outcome is Outcome.FAILED
    row = world.only()
    assert row.state is CompactionState.FAILED
    assert (row.error_message or "").startswith("the disk is on fire")
    after = fingerprint(world.location())
    assert {path: after[path] for path in before} == before
    assert set(after) > set(before), "the first bucket had been written"
    assert world.rows() == expected
    world.clean()
    assert fingerprint(world.location()) == before


def test_a_bug_in_the_job_is_told_in_the_row(world: World) -> None:
    world.create_table()
    expected = world.fill()

    def stumble(_: PlanItem) -> None:
        raise KeyError("bucket")

    world.request()
    assert world.worker(runner=InlineJobRunner(stumble)).run_once().outcome is Outcome.FAILED
    assert world.only().error_message == "KeyError: 'bucket'"
    assert not world.open_compaction_txns()
    assert world.rows() == expected


@pytest.mark.slow
@pytest.mark.parametrize("step", BEFORE_PUBLICATION, ids=lambda s: s.name.lower())
def test_a_revoked_claim_is_fenced_after_each_step(world: World, step: Step) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    world.request()
    worker = world.worker(at_step=at(step, lambda: revoke_all_claims(world)))
    assert worker.run_once().outcome is Outcome.FENCED
    assert world.only().state is CompactionState.INITIATED
    assert_next_worker_finishes(world, expected)
    assert len(list(world.location().rglob("bucket_*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("step", WITH_A_TRANSACTION, ids=lambda s: s.name.lower())
@pytest.mark.parametrize("end", [abort_compactions, time_out_compactions], ids=["abort", "time-out"])
def test_an_aborted_transaction_is_fenced_after_each_step_and_the_request_is_queued_again(
    world: World, step: Step, end: Callable[[World], None]
) -> None:
    world.create_table()
    expected = world.fill()
    world.request()
    assert world.worker(at_step=at(step, lambda: end(world))).run_once().outcome is Outcome.FENCED
    assert world.only().state is CompactionState.INITIATED
    assert_next_worker_finishes(world, expected)


@pytest.mark.slow
@pytest.mark.parametrize("step", BEFORE_PUBLICATION, ids=lambda s: s.name.lower())
def test_two_workers_on_one_request_publish_one_output(world: World, step: Step) -> None:
    """The first is paused after a step, its claim is given to a second one that finishes; then the first goes on."""
    world.create_table()
    expected = world.fill()
    world.request()
    seconds: list[Outcome] = []

    def overtake() -> None:
        revoke_all_claims(world)
        seconds.append(world.worker().run_once().outcome)

    first = world.worker(at_step=at(step, overtake)).run_once()
    assert (first.outcome, seconds) == (Outcome.FENCED, [Outcome.PUBLISHED])
    assert world.rows() == expected
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    assert len(world.entries()) == 1
    assert world.rows() == expected


@pytest.mark.parametrize(
    "step", [s for s in BEFORE_PUBLICATION if s.value <= Step.PLANNED.value], ids=lambda s: s.name.lower()
)
def test_an_interrupt_before_the_job_gives_the_request_back_without_running_it(world: World, step: Step) -> None:
    world.create_table()
    expected = world.fill()
    world.request()
    stop = StopRequest()
    before = fingerprint(world.location())
    worker = world.worker(stop=stop, at_step=at(step, stop.interrupt))
    assert worker.run_once().outcome is Outcome.RELEASED
    assert world.only().state is CompactionState.INITIATED
    assert fingerprint(world.location()) == before
    assert_next_worker_finishes(world, expected)


def test_an_interrupt_in_the_middle_of_the_job_gives_the_request_back(world: World) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    world.request()
    stop = StopRequest()
    started: list[int] = []

    def interrupt_at_second(item: PlanItem) -> None:
        started.append(item.bucket)
        if item.bucket == 1:
            stop.interrupt()

    result = world.worker(stop=stop, runner=InlineJobRunner(interrupt_at_second)).run_once()
    assert result.outcome is Outcome.RELEASED
    assert started == [0, 1]
    assert world.only().state is CompactionState.INITIATED
    assert_next_worker_finishes(world, expected)


@pytest.mark.parametrize("step", [Step.WRITTEN, Step.VERIFIED], ids=lambda s: s.name.lower())
def test_an_interrupt_after_the_job_is_too_late_to_waste_it(world: World, step: Step) -> None:
    world.create_table()
    expected = world.fill()
    world.request()
    stop = StopRequest()
    assert world.worker(stop=stop, at_step=at(step, stop.interrupt)).run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == expected
