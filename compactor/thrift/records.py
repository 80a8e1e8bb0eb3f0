"""Hive's Thrift structs as our own records, and back."""

from __future__ import annotations

from typing import Any

from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.metastore.catalog import Column, Partition, SortColumn, Table, TableName
from compactor.metastore.compaction import (
    Compaction,
    CompactionState,
    CompactionType,
    format_properties,
    parse_properties,
)
from compactor.metastore.locks import LockRequest, LockType
from compactor.thrift.client import api

_TYPES = {
    CompactionType.MINOR: api.CompactionType.MINOR,
    CompactionType.MAJOR: api.CompactionType.MAJOR,
    CompactionType.REBALANCE: api.CompactionType.REBALANCE,
    CompactionType.ABORT_TXN_CLEANUP: api.CompactionType.ABORT_TXN_CLEANUP,
}
_TYPE_OF = {number: kind for kind, number in _TYPES.items()}
_LOCK_TYPES = {
    LockType.SHARED_READ: api.LockType.SHARED_READ,
    LockType.SHARED_WRITE: api.LockType.SHARED_WRITE,
    LockType.EXCL_WRITE: api.LockType.EXCL_WRITE,
    LockType.EXCLUSIVE: api.LockType.EXCLUSIVE,
}


def compaction_of(struct: Any, *, worker_id: str, worker_version: str) -> Compaction:
    """A claim, as `find_next_compact2` returns it to the worker that made it. The initiator's name is not in it."""
    return Compaction(
        id=struct.id,
        table=TableName(database=struct.dbname, table=struct.tablename),
        partition=struct.partitionname,
        type=_TYPE_OF[struct.type],
        state=CompactionState.WORKING,
        properties=parse_properties(struct.properties),
        worker_id=worker_id,
        enqueue_time=struct.enqueueTime or None,
        start=struct.start or None,
        end=None,
        run_as=struct.runas,
        highest_write_id=None,
        txn_id=None,
        next_txn_id=None,
        commit_time=None,
        error_message=None,
        initiator_id=None,
        initiator_version=None,
        worker_version=worker_version,
        pool=struct.poolname or None,
        job_id=None,
        cleaner_start=None,
        retry_retention=struct.retryRetention or 0,
        number_of_buckets=struct.numberOfBuckets or None,
        order_by=struct.orderByClause,
        meta_info=None,
    )


def compaction_info(claim: Compaction, **changes: Any) -> Any:
    """The struct that names a claim in calls that change its row; changes: highestWriteId, runas, errorMessage."""
    fields = {
        "id": claim.id,
        "dbname": claim.table.database,
        "tablename": claim.table.table,
        "partitionname": claim.partition,
        "type": _TYPES[claim.type],
        "runas": claim.run_as,
        "properties": format_properties(claim.properties),
        "state": CompactionState.WORKING.value,
        "workerId": claim.worker_id,
        "start": claim.start,
        "enqueueTime": claim.enqueue_time,
        "poolname": claim.pool,
        "numberOfBuckets": claim.number_of_buckets,
        "orderByClause": claim.order_by,
    }
    return api.CompactionInfoStruct(**(fields | changes))


def same_again(claim: Compaction, row: Any) -> Any:
    """The request that puts a claim into the queue anew; row: the claim as `show_compact` has it."""
    return api.CompactionRequest(
        dbname=claim.table.database,
        tablename=claim.table.table,
        partitionname=claim.partition,
        type=_TYPES[claim.type],
        runas=claim.run_as,
        properties=dict(claim.properties) or None,
        initiatorId=row.initiatorId,
        initiatorVersion=row.initiatorVersion,
        poolName=claim.pool,
        numberOfBuckets=claim.number_of_buckets,
        orderByClause=claim.order_by,
    )


def table_of(struct: Any) -> Table:
    """A table of the catalogue."""
    storage = struct.sd
    return Table(
        id=struct.id or 0,
        name=TableName(database=struct.dbName, table=struct.tableName),
        type=struct.tableType,
        owner=struct.owner,
        location=storage.location,
        columns=_columns(storage.cols),
        partition_columns=_columns(struct.partitionKeys),
        parameters=struct.parameters or {},
        input_format=storage.inputFormat,
        output_format=storage.outputFormat,
        serde=None if storage.serdeInfo is None else storage.serdeInfo.serializationLib,
        bucket_columns=tuple(storage.bucketCols or ()),
        bucket_count=storage.numBuckets if storage.numBuckets is not None else -1,
        sort_columns=tuple(SortColumn(name=o.col, ascending=o.order == 1) for o in storage.sortCols or ()),
    )


def partition_of(struct: Any, name: str) -> Partition:
    """A partition; name: as it was asked for. Its number is not told over Thrift."""
    return Partition(
        id=0,
        name=name,
        values=tuple(struct.values),
        location=struct.sd.location,
        columns=_columns(struct.sd.cols),
        parameters=struct.parameters or {},
        input_format=struct.sd.inputFormat,
    )


def txn_list_of(response: Any, own_txn: int) -> ValidTxnList:
    """The snapshot of a compaction's transaction, itself among the open ones (`createValidTxnListForCompactor`)."""
    top = min(own_txn, response.txn_high_water_mark)
    opened, aborted = _split(response.open_txns, response.abortedBits)
    return ValidTxnList(
        high_water=top,
        open=frozenset(i for i in opened if i <= top) | {own_txn},
        aborted=frozenset(i for i in aborted if i <= top),
    )


def is_aborted(response: Any, txn_id: int) -> bool | None:
    """True: aborted, False: open, None: neither, by an answer of `get_open_txns`."""
    opened, aborted = _split(response.open_txns, response.abortedBits)
    return True if txn_id in aborted else False if txn_id in opened else None


def write_ids_of(struct: Any) -> ValidWriteIdList:
    """The writes of a table that a snapshot sees (`TxnCommonUtils.createValidReaderWriteIdList`)."""
    opened, aborted = _split(struct.invalidWriteIds, struct.abortedBits)
    return ValidWriteIdList(
        table=struct.fullTableName, high_water=struct.writeIdHighWaterMark, open=opened, aborted=aborted
    )


def lock_request(request: LockRequest) -> Any:
    """Locks that are asked for together.

    Who locks EXCL_WRITE says UPDATE: that makes a rebalance take part in write conflicts (our own database
    transaction adds that component when the snapshot is recorded; over Thrift it comes with the lock, as in Hive).
    """
    operations = api.DataOperationType
    components = [
        api.LockComponent(
            type=_LOCK_TYPES[c.type],
            level=api.LockLevel.PARTITION if c.partition else api.LockLevel.TABLE if c.table else api.LockLevel.DB,
            dbname=c.database,
            tablename=c.table,
            partitionname=c.partition,
            operationType=operations.UPDATE if c.type is LockType.EXCL_WRITE else operations.SELECT,
            isTransactional=True,
            isDynamicPartitionWrite=False,
        )
        for c in request.components
    ]
    return api.LockRequest(
        component=components,
        txnid=request.txn_id,
        user=request.user,
        hostname=request.host,
        agentInfo=request.agent_info,
    )


def _columns(fields: Any) -> tuple[Column, ...]:
    return tuple(Column(name=f.name, type=f.type) for f in fields or ())


def _split(ids: list[int], aborted_bits: bytes) -> tuple[frozenset[int], frozenset[int]]:
    """Open and aborted ids: bit i of a Java BitSet, which ends with its last set bit, says that the i-th is aborted."""
    known = ids[: 8 * len(aborted_bits)]
    aborted = frozenset(number for place, number in enumerate(known) if aborted_bits[place >> 3] >> (place & 7) & 1)
    return frozenset(ids) - aborted, aborted
