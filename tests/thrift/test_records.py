"""What Hive's structs say, as our own records."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.snapshot import ValidTxnList
from compactor.metastore.catalog import Column, SortColumn, TableName
from compactor.metastore.compaction import Compaction, CompactionState, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.locks import LockComponent, LockRequest, LockType
from compactor.thrift.client import api
from compactor.thrift.records import (
    compaction_info,
    compaction_of,
    is_aborted,
    lock_request,
    same_again,
    table_of,
    txn_list_of,
    write_ids_of,
)


def bit_set(flags: list[bool]) -> bytes:
    """Java's BitSet.toByteArray: little-endian, without the zero bytes at its end."""
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def open_txns(high_water: int, txns: dict[int, bool]) -> Any:
    ids = sorted(txns)
    bits = bit_set([txns[i] for i in ids])
    return api.GetOpenTxnsResponse(txn_high_water_mark=high_water, open_txns=ids, abortedBits=bits)


@given(txns=st.dictionaries(st.integers(1, 60), st.booleans(), max_size=40), own=st.integers(1, 60))
def test_a_compactions_snapshot_ends_with_itself_and_holds_itself_open(txns: dict[int, bool], own: int) -> None:
    txns |= {own: False}
    snapshot = txn_list_of(open_txns(60, txns), own)
    assert snapshot == ValidTxnList(
        high_water=own,
        open=frozenset(i for i, aborted in txns.items() if i <= own and not aborted),
        aborted=frozenset(i for i, aborted in txns.items() if i <= own and aborted),
    )
    assert not snapshot.is_valid(own)


def test_a_transaction_is_open_aborted_or_neither() -> None:
    response = open_txns(9, {3: False, 5: True})
    assert [is_aborted(response, i) for i in (3, 5, 7)] == [False, True, None]


def test_the_writes_of_a_table_are_split_into_open_and_aborted() -> None:
    struct = api.TableValidWriteIds(
        fullTableName="d.t",
        writeIdHighWaterMark=20,
        invalidWriteIds=[2, 5, 9],
        abortedBits=bit_set([True, False, True]),
    )
    ids = write_ids_of(struct)
    assert (ids.high_water, ids.open, ids.aborted) == (20, {5}, {2, 9})


def claim(**changes: Any) -> Compaction:
    struct = api.CompactionInfoStruct(
        id=4,
        dbname="d",
        tablename="t",
        partitionname="p=1",
        type=api.CompactionType.REBALANCE,
        properties="1:1:k1:v",
        poolname="night",
        numberOfBuckets=3,
        orderByClause="a DESC",
        runas="ada",
    )
    found = compaction_of(struct, worker_id="h-1.abcdefgh", worker_version="0")
    return dataclasses.replace(found, **changes)


def test_a_claim_carries_everything_that_was_asked_for() -> None:
    found = claim()
    assert (found.id, found.object_name, found.type) == (4, "d.t/p=1", CompactionType.REBALANCE)
    assert (found.state, found.worker_id, found.run_as) == (CompactionState.WORKING, "h-1.abcdefgh", "ada")
    assert (found.pool, found.number_of_buckets, found.order_by) == ("night", 3, "a DESC")
    assert found.properties == {"k": "v"}


def test_a_request_that_is_made_again_is_the_same() -> None:
    row = api.ShowCompactResponseElement(initiatorId="bob-manual", initiatorVersion="4.0.1")
    request = same_again(claim(), row)
    assert (request.dbname, request.tablename, request.partitionname) == ("d", "t", "p=1")
    assert (request.type, request.properties, request.poolName) == (api.CompactionType.REBALANCE, {"k": "v"}, "night")
    assert (request.numberOfBuckets, request.orderByClause, request.runas) == (3, "a DESC", "ada")
    assert (request.initiatorId, request.initiatorVersion) == ("bob-manual", "4.0.1")


def test_a_claim_survives_the_way_to_hive_and_back() -> None:
    struct = compaction_info(claim())
    assert compaction_of(struct, worker_id="h-1.abcdefgh", worker_version="0") == claim()


def test_a_table_is_described_as_in_the_catalogue() -> None:
    columns = [api.FieldSchema(name="id", type="int"), api.FieldSchema(name="v", type="string")]
    storage = api.StorageDescriptor(
        cols=columns,
        location="file:/w/t",
        inputFormat="in",
        outputFormat="out",
        numBuckets=2,
        serdeInfo=api.SerDeInfo(serializationLib="serde"),
        bucketCols=["id"],
        sortCols=[api.Order(col="v", order=0)],
    )
    table = table_of(
        api.Table(
            dbName="d",
            tableName="t",
            owner="ada",
            sd=storage,
            partitionKeys=[api.FieldSchema(name="p", type="date")],
            parameters={"transactional": "true"},
            tableType="MANAGED_TABLE",
            id=9,
        )
    )
    assert (table.id, table.name, table.location) == (9, TableName(database="d", table="t"), "file:/w/t")
    assert table.columns == (Column(name="id", type="int"), Column(name="v", type="string"))
    assert table.partition_columns == (Column(name="p", type="date"),)
    assert (table.bucket_columns, table.bucket_count) == (("id",), 2)
    assert table.sort_columns == (SortColumn(name="v", ascending=False),)
    assert (table.input_format, table.output_format, table.serde) == ("in", "out", "serde")
    assert table.is_full_acid


def test_a_rebalance_locks_as_an_update_and_takes_part_in_conflicts() -> None:
    def request(kind: LockType) -> Any:
        component = LockComponent(database="d", table="t", partition="p=1", type=kind, operation=Operation.SELECT)
        (sent,) = lock_request(LockRequest(txn_id=3, user="u", host="h", components=(component,))).component
        return sent.type, sent.level, sent.operationType

    level, operations = api.LockLevel.PARTITION, api.DataOperationType
    assert request(LockType.SHARED_READ) == (api.LockType.SHARED_READ, level, operations.SELECT)
    assert request(LockType.EXCL_WRITE) == (api.LockType.EXCL_WRITE, level, operations.UPDATE)
