from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event, func, select, update

import compactor
from compactor.errors import Fenced, MetastoreError, TransactionAborted
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import (
    Compaction,
    CompactionRequest,
    CompactionState,
    CompactionType,
    format_properties,
    parse_properties,
)
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.metastore.queue import (
    RequestOutcome,
    claim,
    fail,
    publish,
    record_job,
    record_snapshot,
    request_compaction,
    request_compactions,
    revoke_aborted,
    revoke_claims,
    revoke_silent,
    revoke_timed_out,
)
from compactor.metastore.schema import COMPACTION_QUEUE, HIVE_LOCKS, NEXT_COMPACTION_QUEUE_ID, TXN_COMPONENTS
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    commit_transaction,
    open_transactions,
    transaction_state,
)
from compactor.metastore.writeids import allocate_write_ids

ORDERS = TableName(database="shop", table="orders")
DAY = 24 * 60 * 60 * 1000


def wish(table: TableName = ORDERS, partition: str | None = None, **more: object) -> CompactionRequest:
    settings: dict[str, object] = {"type": CompactionType.MAJOR, "initiator_id": "vm-manual", "initiator_version": "1"}
    return CompactionRequest(table=table, partition=partition, **(settings | more))  # type: ignore[arg-type]


def take(db: Database, worker_id: str = "vm-1.a", **more: object) -> Compaction | None:
    return claim(db, worker_id=worker_id, worker_version="1", **more)  # type: ignore[arg-type]


def taken(db: Database, worker_id: str = "vm-1.a") -> Compaction:
    found = take(db, worker_id)
    assert found is not None
    return found


def compactor_txn(db: Database) -> int:
    return open_transactions(db, kind=TxnType.COMPACTION, user="u", host="vm")[0]


def write(db: Database, table: TableName = ORDERS, *, commit: bool = True) -> int:
    """A transaction with a write id of the table; its write id."""
    txn = open_transactions(db, user="u", host="vm")[0]
    write_id = allocate_write_ids(db, [txn], table)[txn]
    if commit:
        commit_transaction(db, txn)
    return write_id


def row(db: Database, compaction_id: int) -> Compaction:
    return show_compactions(db, filters=CompactionFilter(id=compaction_id))[0]


def age(db: Database, compaction_id: int, column: str, ms: int) -> None:
    """Let a time of a queue row lie further back."""
    with db.write() as conn:
        moved = update(COMPACTION_QUEUE).where(COMPACTION_QUEUE.c.CQ_ID == compaction_id)
        conn.execute(moved.values({column: COMPACTION_QUEUE.c[column] - ms}))


def test_a_request_appears_in_the_queue_with_everything_that_was_asked(db: Database) -> None:
    outcome = request_compaction(
        db,
        wish(
            partition="ds=1",
            type=CompactionType.REBALANCE,
            pool="etl",
            run_as="hive",
            properties={"compactor.x": "1", "empty": ""},
            buckets=3,
            order_by="order by id desc",
        ),
    )
    assert outcome == RequestOutcome(id=1, accepted=True, state=CompactionState.INITIATED)
    queued = row(db, 1)
    assert (queued.table, queued.partition, queued.object_name) == (ORDERS, "ds=1", "shop.orders/ds=1")
    assert (queued.type, queued.state) == (CompactionType.REBALANCE, CompactionState.INITIATED)
    assert (queued.pool, queued.run_as, queued.number_of_buckets) == ("etl", "hive", 3)
    assert (queued.order_by, queued.initiator_id, queued.initiator_version) == ("order by id desc", "vm-manual", "1")
    assert queued.properties == {"compactor.x": "1", "empty": ""}
    with db.read() as conn:
        assert queued.enqueue_time is not None
        assert 0 <= db.now(conn) - queued.enqueue_time < 10_000


def test_an_object_that_is_requested_or_worked_on_is_not_queued_again(db: Database) -> None:
    first = request_compaction(db, wish())
    again = request_compaction(db, wish(type=CompactionType.MINOR))
    assert (again.accepted, again.id, again.state) == (False, first.id, CompactionState.INITIATED)
    assert again.reason == "Compaction is already scheduled with state='initiated' and id=1"
    taken(db)
    assert request_compaction(db, wish()).state is CompactionState.WORKING
    assert len(show_compactions(db)) == 1


def test_partitions_and_tables_do_not_stand_in_each_others_way(db: Database) -> None:
    requests = [wish(), wish(partition="ds=1"), wish(partition="ds=2"), wish(TableName(database="shop", table="bills"))]
    assert all(request_compaction(db, request).accepted for request in requests)


def test_a_refused_request_uses_up_no_id(db: Database) -> None:
    request_compaction(db, wish())
    request_compaction(db, wish())
    assert request_compaction(db, wish(partition="ds=1")).id == 2


def test_an_object_that_waits_for_cleaning_is_queued_again_only_when_something_was_written(db: Database) -> None:
    write_id = write(db)
    request_compaction(db, wish())
    claimed, txn = taken(db), compactor_txn(db)
    record_snapshot(db, claimed, txn_id=txn, highest_write_id=write_id)
    publish(db, claimed, txn)
    refused = request_compaction(db, wish())
    assert (refused.accepted, refused.id, refused.state) == (False, claimed.id, CompactionState.READY_FOR_CLEANING)
    write(db, commit=False)
    assert not request_compaction(db, wish()).accepted, "an open write cannot be compacted yet"
    write(db)
    assert not request_compaction(db, wish()).accepted, "nor can anything above it"
    abort_transactions(db, [txn + 1])
    assert request_compaction(db, wish()).accepted


def test_racing_initiators_queue_one_row_an_object(db: Database) -> None:
    objects = [f"ds={day}" for day in range(5)] * 4
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda partition: request_compaction(db, wish(partition=partition)), objects))
    assert sum(outcome.accepted for outcome in outcomes) == 5
    assert {(o.partition, o.state) for o in show_compactions(db)} == {
        (partition, CompactionState.INITIATED) for partition in objects
    }
    assert {outcome.id for outcome in outcomes} == set(range(1, 6))


ANOTHER_PROCESS = """
import sys
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.queue import claim, request_compaction

db, worker = Database.connect(sys.argv[1]), sys.argv[2]
for day in range(10):
    accepted = request_compaction(db, CompactionRequest(
        table=TableName(database="shop", table="orders"), partition=f"ds={day}", type=CompactionType.MAJOR,
        initiator_id=worker, initiator_version="1")).accepted
    if accepted:
        print("requested", day)
while (claimed := claim(db, worker_id=worker, worker_version="1")) is not None:
    print("claimed", claimed.partition.removeprefix("ds="))
"""


def test_two_processes_request_and_claim_everything_exactly_once(db: Database, database_url: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(compactor.__file__).parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS, database_url, worker],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in ("a-1.x", "b-1.x")
    ]
    said = "".join(process.communicate(timeout=60)[0] for process in processes).splitlines()
    assert [process.returncode for process in processes] == [0, 0]
    claimed = [line for line in said if line.startswith("claimed")]
    requested = [line for line in said if line.startswith("requested")]
    assert sorted(requested) == sorted(f"requested {day}" for day in range(10))
    assert sorted(claimed) == sorted(f"claimed {day}" for day in range(10))


def test_many_requests_are_judged_one_by_one(db: Database) -> None:
    running = request_compaction(db, wish(partition="ds=1")).id
    assert claim(db, worker_id="h-1.abcdefgh", worker_version="1") is not None
    wishes = [
        wish(partition="ds=2"),
        wish(partition="ds=1"),
        wish(partition="ds=2"),
        wish(partition=None),
        wish(partition="DS=2"),
    ]
    outcomes = request_compactions(db, wishes)
    assert [outcome.accepted for outcome in outcomes] == [True, False, False, True, True]
    new = [outcome.id for outcome in outcomes if outcome.accepted]
    assert new == sorted(set(new)), "in the order in which they were asked for"
    again, twice = outcomes[1], outcomes[2]
    assert (again.id, again.state) == (running, CompactionState.WORKING)
    assert again.reason == f"Compaction is already scheduled with state='working' and id={running}"
    assert (twice.id, twice.state) == (outcomes[0].id, CompactionState.INITIATED)
    assert {row.id: row.partition for row in show_compactions(db)} == {
        running: "ds=1",
        outcomes[0].id: "ds=2",
        outcomes[3].id: None,
        outcomes[4].id: "DS=2",
    }


def test_no_request_at_all_changes_nothing(db: Database) -> None:
    assert request_compactions(db, []) == []


def test_many_requests_cost_as_many_statements_as_two(db: Database) -> None:
    sent: list[str] = []

    def count(_conn: object, _cursor: object, sql: str, *_: object) -> None:
        sent.append(sql)

    event.listen(db.engine, "before_cursor_execute", count)
    try:
        request_compactions(db, [wish(partition=f"a={number}") for number in range(2)])
        few = len(sent)
        request_compactions(db, [wish(partition=f"b={number}") for number in range(200)])
    finally:
        event.remove(db.engine, "before_cursor_execute", count)
    assert len(sent) - few <= few


def test_a_worker_takes_the_oldest_request(db: Database) -> None:
    for day in range(3):
        request_compaction(db, wish(partition=f"ds={day}"))
    claimed = taken(db)
    assert (claimed.id, claimed.partition, claimed.state) == (1, "ds=0", CompactionState.WORKING)
    assert (claimed.worker_id, claimed.worker_version) == ("vm-1.a", "1")
    assert claimed.start is not None
    assert claimed == row(db, 1)
    assert [taken(db).id, taken(db).id] == [2, 3]
    assert take(db) is None


def test_threads_never_claim_the_same_request(db: Database) -> None:
    for day in range(20):
        request_compaction(db, wish(partition=f"ds={day}"))
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda n: take(db, f"vm-1.{n}"), range(24)))
    ids = [claimed.id for claimed in claims if claimed is not None]
    assert sorted(ids) == list(range(1, 21))


def test_a_labelled_pool_takes_only_its_own_requests(db: Database) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b", pool="etl"))
    claimed = take(db, pools={"etl", "night"})
    assert claimed is not None
    assert claimed.partition == "b"
    assert take(db, pools={"etl"}) is None
    assert take(db, pools=set()) is None


def test_the_default_pool_leaves_labelled_requests_until_their_pool_had_its_time(db: Database) -> None:
    queued = request_compaction(db, wish(pool="etl"))
    assert take(db) is None
    age(db, queued.id, "CQ_ENQUEUE_TIME", DAY // 2 + 1000)
    assert take(db, pool_timeout_ms=DAY) is None
    claimed = take(db)
    assert claimed is not None
    assert claimed.id == queued.id


def test_the_default_pool_touches_no_row_that_is_not_requested(db: Database) -> None:
    request_compaction(db, wish(pool="etl"))
    assert take(db, pools={"etl"}) is not None
    age(db, 1, "CQ_ENQUEUE_TIME", 2 * DAY)
    assert take(db) is None, "Hive's condition without parentheses finds this row"


def test_the_snapshot_is_recorded_with_a_component_of_the_transaction(db: Database) -> None:
    request_compaction(db, wish(partition="ds=1"))
    claimed, txn = taken(db), compactor_txn(db)
    record_snapshot(db, claimed, txn_id=txn, highest_write_id=7, run_as="hive")
    record_job(db, [claimed], "application_1_0001")
    seen = row(db, claimed.id)
    assert (seen.txn_id, seen.highest_write_id, seen.run_as) == (txn, 7, "hive")
    assert seen.job_id == "application_1_0001"
    with db.read() as conn:
        components = conn.execute(select(TXN_COMPONENTS)).all()
    assert [tuple(component) for component in components] == [(txn, "shop", "orders", "ds=1", "c", 7)]


def test_a_snapshot_without_an_open_transaction_changes_nothing(db: Database) -> None:
    request_compaction(db, wish())
    claimed, txn = taken(db), compactor_txn(db)
    abort_transactions(db, [txn])
    with pytest.raises(TransactionAborted):
        record_snapshot(db, claimed, txn_id=txn, highest_write_id=7)
    assert row(db, claimed.id).txn_id is None


def test_a_lost_claim_can_record_nothing(db: Database) -> None:
    request_compaction(db, wish())
    lost, txn = taken(db), compactor_txn(db)
    assert revoke_timed_out(db, timeout_ms=-1) == [lost.id]
    successor = taken(db, "vm-2.b")
    with pytest.raises(Fenced, match=r"compaction 1 of shop\.orders is no longer working held by vm-1\.a"):
        record_snapshot(db, lost, txn_id=txn, highest_write_id=7)
    with pytest.raises(Fenced):
        record_job(db, [lost], "job_1")
    with pytest.raises(Fenced):
        fail(db, lost, message="too late", txn_id=txn)
    assert row(db, lost.id) == successor
    assert transaction_state(db, txn) is TxnState.OPEN, "a fenced step changes nothing at all"


@pytest.mark.parametrize("state", ["i", "r"])
def test_a_row_that_is_not_being_worked_on_is_no_claim_although_it_bears_our_name(db: Database, state: str) -> None:
    request_compaction(db, wish())
    claimed, txn = taken(db), compactor_txn(db)
    with db.write() as conn:
        conn.execute(update(COMPACTION_QUEUE).values(CQ_STATE=state))
    with pytest.raises(Fenced):
        record_snapshot(db, claimed, txn_id=txn, highest_write_id=7)
    with pytest.raises(Fenced):
        fail(db, claimed, message="no", txn_id=txn)


def test_revoking_a_claim_aborts_its_transaction_at_once(db: Database) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b"))
    ours, theirs, txn = taken(db, "vm-1.a"), taken(db, "vm2-1.a"), compactor_txn(db)
    record_snapshot(db, ours, txn_id=txn, highest_write_id=7)
    record_job(db, [ours], "job_1")
    assert revoke_claims(db, ["VM-1.a"]) == []
    assert revoke_claims(db, ["vm-1.a"]) == [ours.id]
    seen = row(db, ours.id)
    assert (seen.state, seen.worker_id, seen.start) == (CompactionState.INITIATED, None, None)
    assert (seen.txn_id, seen.highest_write_id, seen.job_id) == (None, None, None)
    assert transaction_state(db, txn) is TxnState.ABORTED
    assert row(db, theirs.id).worker_id == "vm2-1.a"
    with db.read() as conn:
        kept = conn.scalars(select(TXN_COMPONENTS.c.TC_TXNID)).all()
        assert conn.scalar(select(func.count()).select_from(HIVE_LOCKS)) == 0
    assert kept == [txn], "its output may lie about; the component stays until that is removed"


def test_only_the_claims_of_the_named_workers_are_revoked(db: Database) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b"))
    dead, alive = taken(db, "vm-1.a"), taken(db, "vm-1.b")
    assert revoke_claims(db, []) == []
    assert revoke_claims(db, ["vm-1.a", "vm-9.z"]) == [dead.id]
    assert row(db, alive.id).worker_id == "vm-1.b"


def test_a_claim_is_revoked_when_its_time_is_over(db: Database) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b"))
    old, txn = taken(db), compactor_txn(db)
    taken(db)
    record_snapshot(db, old, txn_id=txn, highest_write_id=7)
    age(db, old.id, "CQ_START", DAY + 1000)
    assert revoke_timed_out(db, timeout_ms=DAY) == [old.id]
    assert revoke_timed_out(db, timeout_ms=DAY) == []
    assert transaction_state(db, txn) is TxnState.ABORTED


def test_a_claim_whose_transaction_was_aborted_is_given_back(db: Database) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b"))
    dead, txn, alive = taken(db), compactor_txn(db), taken(db)
    record_snapshot(db, dead, txn_id=txn, highest_write_id=7)
    record_snapshot(db, alive, txn_id=compactor_txn(db), highest_write_id=7)
    assert revoke_aborted(db) == []
    abort_transactions(db, [txn])
    assert revoke_aborted(db) == [dead.id]
    assert row(db, dead.id).state is CompactionState.INITIATED
    assert row(db, alive.id).state is CompactionState.WORKING


@pytest.mark.parametrize(("worker_id", "given_back"), [("vm-7.0a1b2c3d", True), ("vm-44", False)])
def test_a_claim_of_ours_that_never_opened_a_transaction_is_given_back(
    db: Database, worker_id: str, given_back: bool
) -> None:
    request_compaction(db, wish(partition="a"))
    request_compaction(db, wish(partition="b"))
    silent, busy = taken(db, worker_id), taken(db, "vm-8.0a1b2c3d")
    record_snapshot(db, busy, txn_id=compactor_txn(db), highest_write_id=7)
    assert revoke_silent(db, timeout_ms=60_000) == []
    age(db, silent.id, "CQ_START", 61_000)
    age(db, busy.id, "CQ_START", 61_000)
    assert revoke_silent(db, timeout_ms=60_000) == ([silent.id] if given_back else [])
    assert row(db, busy.id).state is CompactionState.WORKING


def test_a_missing_id_row_is_reported_as_an_incomplete_schema(db: Database) -> None:
    with db.write() as conn:
        conn.execute(NEXT_COMPACTION_QUEUE_ID.delete())
    with pytest.raises(MetastoreError, match="NEXT_COMPACTION_QUEUE_ID"):
        request_compaction(db, wish())


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, None),
        ({"a": "b"}, "1:1:a1:b"),
        ({"a": "", "k:1": "2:3"}, "2:1:a0:3:k:13:2:3"),
        ({"ключ": "значение"}, "1:4:ключ8:значение"),
        ({"emoji": "🙂"}, "1:5:emoji2:🙂"),
    ],
)
def test_properties_have_hives_own_form(properties: dict[str, str], text: str | None) -> None:
    assert format_properties(properties) == text
    assert parse_properties(text) == properties


@pytest.mark.parametrize("text", ["x", "1", "1:", "1:3:ab", "2:1:a1:b", "1:-1:a1:b"])
def test_properties_that_hive_did_not_write_are_a_typed_error(text: str) -> None:
    with pytest.raises(MetastoreError):
        parse_properties(text)


def test_zeros_of_hives_history_mean_not_set(db: Database) -> None:
    request_compaction(db, wish())
    with db.write() as conn:
        conn.execute(
            update(COMPACTION_QUEUE).values(
                CQ_COMMIT_TIME=0, CQ_NEXT_TXN_ID=0, CQ_TXN_ID=0, CQ_NUMBER_OF_BUCKETS=0, CQ_CLEANER_START=-1
            )
        )
    seen = row(db, 1)
    assert (seen.commit_time, seen.next_txn_id, seen.txn_id, seen.number_of_buckets) == (None, None, None, None)
    assert seen.cleaner_start is None
