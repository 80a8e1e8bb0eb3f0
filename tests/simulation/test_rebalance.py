"""A rebalance from the request to the cleaner, and what may happen beside it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc
import pytest
from pyarrow import orc

from compactor.errors import LockNotAcquired, WriteConflict
from compactor.metastore import locks, queue, txns
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.schema import TXN_COMPONENTS
from compactor.settings import LockSettings
from compactor.storage.filesystem import open_location
from compactor.table.writer import TableWriter
from compactor.worker import Outcome, Step
from tests.simulation.world import HOST, ORDERS, World

Rows = dict[int, str]


@pytest.fixture
def rows(world: World) -> Rows:
    """A table with inserts and a delete; what a reader sees."""
    world.create_table()
    world.insert({n: f"r{n}" for n in range(10)})
    world.insert({n: f"r{n}" for n in range(10, 15)})
    world.delete(3, 12)
    return {n: f"r{n}" for n in range(15) if n not in {3, 12}}


def request(world: World, *, buckets: int | None = None) -> int:
    wish = CompactionRequest(
        table=ORDERS,
        type=CompactionType.REBALANCE,
        initiator_id=f"{HOST}-manual",
        initiator_version="0",
        buckets=buckets,
    )
    return queue.request_compaction(world.db, wish).id


def at(step: Step, action: Callable[[], object]) -> Callable[[Step], None]:
    def hook(done: Step) -> None:
        if done is step:
            action()

    return hook


def row_ids(world: World) -> list[tuple[int, int, int]]:
    with world.reader() as snapshot:
        found = snapshot.read(ORDERS, with_row_ids=True)
    return sorted(zip(*(found.column(n).to_pylist() for n in ("write_id", "bucket", "row_id")), strict=True))


def test_a_rebalance_is_published_and_cleaned_like_any_compaction(world: World, rows: Rows) -> None:
    request(world, buckets=3)
    result = world.worker().run_once()
    assert result.outcome is Outcome.PUBLISHED
    row = world.only()
    assert (row.state, row.type) == (CompactionState.READY_FOR_CLEANING, CompactionType.REBALANCE)
    assert row.commit_time is not None
    assert row.next_txn_id is not None
    assert not locks.show_locks(world.db)
    assert world.rows() == rows
    assert [r for _, _, r in row_ids(world)] == list(range(len(rows))), "numbered through all buckets"
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    (base,) = world.entries()
    counts = [orc.ORCFile(p).nrows for p in sorted((world.location() / base).glob("bucket_*"))]
    assert counts == [5, 5, 3]
    assert world.rows() == rows


def test_rows_are_updated_and_compacted_on_by_their_new_ids(world: World, rows: Rows) -> None:
    request(world, buckets=2)
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    world.delete(0, 7, 14)
    left = {n: v for n, v in rows.items() if n not in {0, 7, 14}}
    assert world.rows() == left
    world.clean()
    assert world.compact(CompactionType.MAJOR).outcome is Outcome.PUBLISHED
    assert world.rows() == left
    world.clean()
    assert world.rows() == left


def test_who_deletes_while_a_rebalance_runs_waits_for_it(world: World, rows: Rows) -> None:
    refused: list[str] = []

    def try_to_delete() -> None:
        impatient = TableWriter(world.db, open_location, ORDERS, user="ada", host=HOST, lock=LockSettings(retries=0))
        with pytest.raises(LockNotAcquired) as error:
            impatient.delete(pc.field("id") == 1)
        refused.append(error.value.message)

    request(world)
    assert world.worker(at_step=at(Step.WRITTEN, try_to_delete)).run_once().outcome is Outcome.PUBLISHED
    assert len(refused) == 1
    assert world.rows() == rows


def test_inserts_go_on_while_a_rebalance_runs(world: World, rows: Rows) -> None:
    request(world)
    inserting = world.worker(at_step=at(Step.PLANNED, lambda: world.insert({99: "new"})))
    assert inserting.run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == {**rows, 99: "new"}


def test_a_change_that_was_first_fails_the_rebalance_and_leaves_the_table_alone(world: World, rows: Rows) -> None:
    def change_without_a_lock() -> None:
        # As a program does whose locks are not the metastore's.
        (other,) = txns.open_transactions(world.db, user="u", host="h")
        with world.db.write() as conn:
            place = {"TC_DATABASE": ORDERS.database, "TC_TABLE": ORDERS.table, "TC_WRITEID": 9}
            conn.execute(TXN_COMPONENTS.insert().values(TC_TXNID=other, TC_OPERATION_TYPE=Operation.DELETE, **place))
        txns.commit_transaction(world.db, other)

    request(world)
    result = world.worker(at_step=at(Step.VERIFIED, change_without_a_lock)).run_once()
    assert (result.outcome, result.error) == (Outcome.FAILED, WriteConflict.__name__)
    row = world.only()
    assert row.state is CompactionState.FAILED
    assert "changed default.orders and committed first" in (row.error_message or "")
    assert not world.open_compaction_txns()
    assert world.rows() == rows
    world.clean()
    assert not [e for e in world.entries() if e.startswith("base_")], "the cleaner removes what was not published"
    assert world.rows() == rows


@pytest.mark.parametrize("step", [Step.SNAPSHOT_RECORDED, Step.PLANNED, Step.WRITTEN, Step.VERIFIED])
def test_a_rebalance_that_lost_its_claim_publishes_nothing_and_the_next_one_does(
    world: World, rows: Rows, step: Step
) -> None:
    def revoke() -> None:
        working = [row for row in world.compactions() if row.state is CompactionState.WORKING]
        assert queue.revoke_claims(world.db, [row.worker_id or "" for row in working])

    request(world, buckets=2)
    assert world.worker(at_step=at(step, revoke)).run_once().outcome is Outcome.FENCED
    assert world.rows() == rows
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == rows
    world.clean()
    assert len(world.entries()) == 1
    assert world.rows() == rows


def test_a_bucketed_table_is_refused_with_the_reason(world: World) -> None:
    world.create_table(buckets=2)
    world.insert({1: "a"})
    request(world)
    result = world.worker().run_once()
    assert result.outcome is Outcome.REFUSED
    assert "bucketed tables (CLUSTERED BY) are not rebalanced" in (world.only().error_message or "")


def test_a_second_rebalance_waits_for_the_next_write(world: World, rows: Rows) -> None:
    request(world)
    world.worker().run_once()
    world.clean()
    again = request(world)
    assert world.worker().run_once().outcome is Outcome.REFUSED
    assert "has the range that the output would have" in (world.compaction(again).error_message or "")
    world.insert({50: "later"})
    request(world)
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    assert world.rows() == {**rows, 50: "later"}
