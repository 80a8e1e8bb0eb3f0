"""One situation for each function that writes into the metastore: what must be there, and the call itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from compactor.acid.column_statistics import ColumnStatistics, TableStatistics
from compactor.acid.rates import JobCost
from compactor.acid.snapshot import ValidWriteIdList
from compactor.metastore import (
    abandoned,
    aborting,
    calibration,
    candidates,
    catalog_write,
    deadlocks,
    delta_counts,
    history,
    housekeeping,
    intents,
    locks,
    queue,
    ready,
    schema,
    seeding,
    snapshots,
    statistics,
    time_outs,
    txns,
    undated,
    writeids,
)
from compactor.metastore.catalog import Column, TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.delta_counts import DeltaMetric
from compactor.metastore.history import HistoryRetention
from compactor.metastore.locks import LockComponent, LockRequest, LockType
from compactor.metastore.queue import Refused

Call = Callable[[Database], object]
Case = Callable[[Database], Call]

T = TableName(database="shop", table="orders")
COLUMNS = (Column(name="id", type="int"),)
WHO = {"user": "u", "host": "h"}
CASES: dict[str, Case] = {}

ELSEWHERE = {
    "init_db": "a test of its own: MariaDB commits each table by itself",
    "mutex": "test_mutex.py: it is held by a connection, and a cut one lets go",
    "acquire": "two calls, each in its own database transaction: enqueue and check",
    "wait_for": "calls check until the lock is free",
    "open_reader": "calls open_declared",
}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def _txn(db: Database, kind: txns.TxnType = txns.TxnType.DEFAULT) -> int:
    return txns.open_transactions(db, kind=kind, **WHO)[0]


def _table(db: Database, *, partitioned: bool = False) -> None:
    catalog_write.create_database(db, "shop")
    keys = (Column(name="p", type="string"),) if partitioned else ()
    catalog_write.create_table(db, T, columns=COLUMNS, partition_columns=keys, parameters={"transactional": "true"})
    if partitioned:
        catalog_write.add_partition(db, T, ["x"])


def _lock(db: Database, txn_id: int, type_: LockType = LockType.SHARED_READ, table: str = "orders") -> int:
    component = LockComponent(database="shop", table=table, type=type_, operation=Operation.INSERT if txn_id else None)
    return locks.enqueue(db, LockRequest(txn_id=txn_id, components=(component,), **WHO))


def _write(db: Database) -> tuple[int, int]:
    txn = _txn(db)
    write_id = writeids.allocate_write_ids(db, [txn], T)[txn]
    _lock(db, txn)
    return txn, write_id


def _request(kind: CompactionType = CompactionType.MAJOR) -> CompactionRequest:
    return CompactionRequest(table=T, type=kind, initiator_id="i", initiator_version="1")


def _claim(db: Database) -> Compaction:
    queue.request_compaction(db, _request())
    claimed = queue.claim(db, worker_id="h-1.abcdefgh", worker_version="1")
    assert claimed is not None
    return claimed


def _working(db: Database) -> tuple[Compaction, int]:
    claimed, txn = _claim(db), _txn(db, txns.TxnType.COMPACTION)
    queue.record_snapshot(db, claimed, txn_id=txn, highest_write_id=7)
    return claimed, txn


def _ready(db: Database) -> Compaction:
    written, _ = _write(db)
    txns.commit_transaction(db, written)
    claimed, txn = _working(db)
    queue.publish(db, claimed, txn)
    (row,) = history.show_compactions(db)
    return row


def _set(db: Database, table: sa.Table, **values: Any) -> None:
    with db.write() as conn:
        conn.execute(table.update().values(values))


@case
def open_transactions(db: Database) -> Call:
    return lambda db: txns.open_transactions(db, count=3, **WHO)


@case
def commit_transaction(db: Database) -> Call:
    txn, _ = _write(db)
    return lambda db: txns.commit_transaction(db, txn)


@case
def abort_transactions(db: Database) -> Call:
    ids = [_write(db)[0], _write(db)[0]]
    return lambda db: txns.abort_transactions(db, ids)


@case
def abort_transactions_by_id(db: Database) -> Call:
    ids = [_write(db)[0], _write(db)[0]]
    return lambda db: aborting.abort_transactions_by_id(db, ids)


@case
def heartbeat(db: Database) -> Call:
    txn = _txn(db)
    return lambda db: txns.heartbeat(db, txn)


@case
def heartbeat_range(db: Database) -> Call:
    low, high = _txn(db), _txn(db)
    return lambda db: time_outs.heartbeat_range(db, low, high)


@case
def time_out_transactions(db: Database) -> Call:
    _write(db)
    _write(db)
    _set(db, schema.TXNS, TXN_LAST_HEARTBEAT=0)
    return lambda db: time_outs.time_out_transactions(db, timeout_ms=1000)


@case
def time_out_locks(db: Database) -> Call:
    _lock(db, 0)
    _lock(db, 0)
    _set(db, schema.HIVE_LOCKS, HL_LAST_HEARTBEAT=1)
    return lambda db: time_outs.time_out_locks(db, timeout_ms=1000)


@case
def allocate_write_ids(db: Database) -> Call:
    ids = [_txn(db), _txn(db)]
    return lambda db: writeids.allocate_write_ids(db, ids, T)


@case
def seed_write_id(db: Database) -> Call:
    return lambda db: writeids.seed_write_id(db, T)


@case
def ensure_txn_ids_above(db: Database) -> Call:
    return lambda db: seeding.ensure_txn_ids_above(db, 1000)


@case
def enqueue(db: Database) -> Call:
    txn = _txn(db)
    return lambda db: _lock(db, txn)


@case
def check(db: Database) -> Call:
    lock = _lock(db, _txn(db))
    return lambda db: locks.check(db, lock)


@case
def unlock(db: Database) -> Call:
    lock = _lock(db, 0)
    return lambda db: locks.unlock(db, lock)


@case
def end_deadlocks(db: Database) -> Call:
    first, second = _txn(db), _txn(db)
    for txn, table in ((first, "a"), (second, "b")):
        locks.check(db, _lock(db, txn, LockType.EXCL_WRITE, table))
    for txn, table in ((first, "b"), (second, "a")):
        locks.check(db, _lock(db, txn, LockType.EXCL_WRITE, table))
    return deadlocks.end_deadlocks


@case
def add_dynamic_partitions(db: Database) -> Call:
    txn, write_id = _write(db)
    return lambda db: intents.add_dynamic_partitions(db, txn, write_id, T, ["p=x", "p=y"], Operation.INSERT)


@case
def open_declared(db: Database) -> Call:
    return lambda db: snapshots.open_declared(db, [T], kind=txns.TxnType.READ_ONLY, **WHO)


@case
def request_compaction(db: Database) -> Call:
    return lambda db: queue.request_compaction(db, _request())


@case
def request_compactions(db: Database) -> Call:
    wishes = [_request(), replace(_request(), partition="p=1"), _request()]
    return lambda db: queue.request_compactions(db, wishes)


@case
def claim(db: Database) -> Call:
    queue.request_compaction(db, _request())
    return lambda db: queue.claim(db, worker_id="h-1.abcdefgh", worker_version="1")


@case
def record_snapshot(db: Database) -> Call:
    claimed, txn = _claim(db), _txn(db, txns.TxnType.COMPACTION)
    return lambda db: queue.record_snapshot(db, claimed, txn_id=txn, highest_write_id=7, run_as="u")


@case
def record_job(db: Database) -> Call:
    claimed = _claim(db)
    return lambda db: queue.record_job(db, [claimed], "job")


@case
def publish(db: Database) -> Call:
    claimed, txn = _working(db)
    return lambda db: queue.publish(db, claimed, txn)


@case
def finish_without_output(db: Database) -> Call:
    claimed, txn = _working(db)
    return lambda db: queue.finish_without_output(db, claimed, txn, outcome=Refused(reason="why"))


@case
def fail(db: Database) -> Call:
    claimed, txn = _working(db)
    return lambda db: queue.fail(db, claimed, message="why", txn_id=txn)


@case
def revoke_claims(db: Database) -> Call:
    claimed, _ = _working(db)
    return lambda db: queue.revoke_claims(db, [claimed.worker_id or ""])


@case
def revoke_timed_out(db: Database) -> Call:
    _working(db)
    _set(db, schema.COMPACTION_QUEUE, CQ_START=1)
    return lambda db: queue.revoke_timed_out(db, timeout_ms=1000)


@case
def revoke_aborted(db: Database) -> Call:
    _, txn = _working(db)
    txns.abort_transactions(db, [txn])
    return queue.revoke_aborted


@case
def revoke_silent(db: Database) -> Call:
    _claim(db)
    _set(db, schema.COMPACTION_QUEUE, CQ_START=1)
    return lambda db: queue.revoke_silent(db, timeout_ms=1000)


@case
def abort_compactions(db: Database) -> Call:
    wanted = queue.request_compaction(db, _request()).id
    return lambda db: aborting.abort_compactions(db, [wanted])


@case
def date_publications(db: Database) -> Call:
    _ready(db)
    _set(db, schema.COMPACTION_QUEUE, CQ_NEXT_TXN_ID=None, CQ_COMMIT_TIME=None)
    return undated.date_publications


@case
def mark_cleaner_start(db: Database) -> Call:
    row = _ready(db)
    return lambda db: ready.mark_cleaner_start(db, [row])


@case
def clear_cleaner_start(db: Database) -> Call:
    row = _ready(db)
    ready.mark_cleaner_start(db, [row])
    return lambda db: ready.clear_cleaner_start(db, row)


@case
def mark_cleaned(db: Database) -> Call:
    row = _ready(db)
    return lambda db: ready.mark_cleaned(db, [ready.Cleaned(compaction=row)])


@case
def cleaner_retry(db: Database) -> Call:
    row = _ready(db)
    return lambda db: ready.cleaner_retry(db, row, retention_ms=1, message="why")


@case
def refuse_cleaning(db: Database) -> Call:
    row = _ready(db)
    return lambda db: ready.refuse_cleaning(db, row, "why")


@case
def fail_ready(db: Database) -> Call:
    row = _ready(db)
    return lambda db: ready.fail_ready(db, row, "why")


@case
def mark_aborts_cleaned(db: Database) -> Call:
    txns.abort_transactions(db, [_write(db)[0]])
    return lambda db: ready.mark_aborts_cleaned(db, T, None, highest_write_id=9, uncompacted_aborts=False)


@case
def retry_aborts(db: Database) -> Call:
    return lambda db: ready.retry_aborts(db, T, None, retention_ms=1, message="why")


@case
def forget_abandoned(db: Database) -> Call:
    _, txn = _working(db)
    txns.abort_transactions(db, [txn])
    return lambda db: abandoned.forget_abandoned(db, txn)


@case
def record_not_initiated(db: Database) -> Call:
    return lambda db: history.record_not_initiated(db, T, None, CompactionType.MAJOR, "why")


@case
def purge_history(db: Database) -> Call:
    for _ in range(3):
        history.record_not_initiated(db, T, None, CompactionType.MAJOR, "why")
    keep = HistoryRetention(did_not_initiate=1)
    assert keep.of(CompactionState.DID_NOT_INITIATE) == 1
    return lambda db: history.purge_history(db, keep)


@case
def clean_empty_transactions(db: Database) -> Call:
    txns.abort_transactions(db, [_txn(db), _txn(db)])
    _txn(db)
    _set(db, schema.TXNS, TXN_STARTED=1)
    return housekeeping.clean_empty_transactions


@case
def clean_write_id_map(db: Database) -> Call:
    for _ in range(2):
        txns.commit_transaction(db, _write(db)[0])
    _txn(db)
    return housekeeping.clean_write_id_map


@case
def clean_write_sets(db: Database) -> Call:
    row = {"WS_DATABASE": "shop", "WS_TABLE": "orders", "WS_TXNID": 0, "WS_COMMIT_ID": 0, "WS_OPERATION_TYPE": "u"}
    with db.write() as conn:
        conn.execute(schema.WRITE_SET.insert().values(row))
    _txn(db)
    return housekeeping.clean_write_sets


@case
def clean_duplicate_completed_components(db: Database) -> Call:
    for _ in range(3):
        txns.commit_transaction(db, _write(db)[0])
    return housekeeping.clean_duplicate_completed_components


@case
def record_delta_counts(db: Database) -> Call:
    return lambda db: delta_counts.record_delta_counts(db, {(T, None): {DeltaMetric.ACTIVE: 4, DeltaMetric.SMALL: 2}})


@case
def record_full_look(db: Database) -> Call:
    return lambda db: candidates.record_full_look(db, 5)


@case
def record_cost(db: Database) -> Call:
    cost = JobCost(bytes_copied=1, bytes_encoded=1, tasks=1, cores=1, seconds=1.0)
    return lambda db: calibration.record_cost(db, cost)


@case
def create_database(db: Database) -> Call:
    return lambda db: catalog_write.create_database(db, "shop", parameters={"a": "b"})


@case
def create_table(db: Database) -> Call:
    catalog_write.create_database(db, "shop")
    return lambda db: catalog_write.create_table(db, T, columns=COLUMNS, parameters={"transactional": "true"})


@case
def add_partition(db: Database) -> Call:
    _table(db, partitioned=True)
    return lambda db: catalog_write.add_partition(db, T, ["y"])


@case
def drop_table(db: Database) -> Call:
    _table(db, partitioned=True)
    return lambda db: catalog_write.drop_table(db, T)


@case
def drop_partition(db: Database) -> Call:
    _table(db, partitioned=True)
    return lambda db: catalog_write.drop_partition(db, T, "p=x")


@case
def set_table_parameters(db: Database) -> Call:
    _table(db)
    return lambda db: catalog_write.set_table_parameters(db, T, {"a": "b", "transactional": None})


@case
def set_partition_parameters(db: Database) -> Call:
    _table(db, partitioned=True)
    return lambda db: catalog_write.set_partition_parameters(db, T, "p=x", {"a": "b", "c": "d"})


@case
def set_columns(db: Database) -> Call:
    _table(db, partitioned=True)
    wider = (*COLUMNS, Column(name="v", type="string"))
    return lambda db: catalog_write.set_columns(db, T, wider, cascade=True)


@case
def record_statistics(db: Database) -> Call:
    _table(db)
    row = _ready(db)
    values = {"NUM_NULLS": 0, "LONG_LOW_VALUE": 1, "LONG_HIGH_VALUE": 2, "NUM_DISTINCTS": 2}
    found = TableStatistics(
        files=1,
        size=1,
        rows=1,
        exact=True,
        raw_data_size=1,
        columns=(ColumnStatistics(name="id", type="int", values=values, complete=True, answers=True),),
    )
    seen = ValidWriteIdList(table=str(T), high_water=1, open=frozenset(), aborted=frozenset())
    return lambda db: statistics.record_statistics(db, T, None, found, compaction_id=row.id, write_ids=seen)


@case
def forget_accuracy(db: Database) -> Call:
    _table(db)
    catalog_write.set_table_parameters(db, T, {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'})
    return lambda db: statistics.forget_accuracy(db, T, [], 1)
