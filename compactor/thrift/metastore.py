"""A worker's metastore over Hive's Thrift service: what replaces the one database transaction that publishes.

The service changes rows of the queue by their id alone, looks at neither their state nor their worker, and ends a
transaction in a call of its own. So each end of a claim is a sequence of calls, in an order in which a crash after any
of them loses nothing:

1. OURS?       `show_compact`: the row is working, for this claim's worker id (and, to publish, its transaction). All
               else is Fenced, and nothing was changed. This is done before every call that changes a row.
2. COMMIT      `commit_txn`, the only step that readers see, and the only one that Hive guards: it fails when the
               transaction was aborted, by a time-out, an operator or a revoke of ours. In the same database
               transaction Hive writes NEXT_TXN_ID and COMMIT_TIME into the row.
3. READY       step 1 again, then `mark_compacted` (w→r) or `mark_refused`.

Hive's own worker does 3 before 2. A crash between leaves an 'r' row whose transaction aborts, and cleaning of the table
can stand still for ever (HIVE-29572). In this order it leaves a 'w' row whose transaction is committed: output and
readers are as after a success, and no cleaner looks at the row before it is revoked like that of any dead worker.
Whoever claims it then finds the output as its base, has nothing to merge, and leaves the rest to the cleaner.

    a failure    `abort_txn`, step 1, `mark_failed`: whatever comes between, the output can never become visible
    given back   `abort_txn`, step 1, `mark_refused`, `compact2`: the service has no call w→i, so the request ends as
                 refused, which no failure breaker counts, and is made again
    unknown      the answer to `commit_txn` was lost: the row's NEXT_TXN_ID or the list of open transactions tell; else
                 a second `commit_txn`, which Hive answers like the first when that one arrived

What is weaker than on the database (`compactor.worker.metastore.DatabaseMetastore`): between step 1 and step 2 a
revoke by Hive, which aborts no transaction, and a second worker's snapshot could slip in, and then two outputs could
have one range (I3). A revoke of ours aborts and so cannot. A claim whose answer was lost stays working until it is
revoked. Statistics are not written: the only call for them, alter_table, replaces a whole table as it was read.

Sources: Hive `CompactionTxnHandler`, `CommitTxnFunction`, `AbortTxnFunction`, `ShowCompactHandler`, `Worker`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from compactor.acid.directory import Snapshot
from compactor.errors import CommitOutcomeUnknown, Fenced, NoSuchTransaction, TransactionAborted, WriteConflict
from compactor.metastore.catalog import CATALOG, Partition, Table, TableName
from compactor.metastore.compaction import Compaction
from compactor.metastore.compaction_rows import fenced
from compactor.metastore.locks import LockRequest
from compactor.metastore.queue import ReadyWithoutOutput, Refused
from compactor.metastore.txns import TxnState, TxnType
from compactor.thrift.client import MetastoreClient, api
from compactor.thrift.records import (
    compaction_info,
    compaction_of,
    is_aborted,
    lock_request,
    partition_of,
    same_again,
    table_of,
    txn_list_of,
    write_ids_of,
)

ABORTED_COMPACTION: Final = 50006
"""Hive's TxnErrorMsg.ABORT_COMPACTION_TXN: what SHOW TRANSACTIONS gives as the reason."""
_WORKING: Final = "working"
_RAW_METADATA: Final = "MANAGERAWMETADATA"
"""Lets the metastore describe tables as they are, not as a client without ACID could use them."""
_ALIVE: Final = 2


class ThriftMetastore:
    """`compactor.worker.metastore.WorkerMetastore` over Thrift. heartbeat_timeout_s: for the answer to one heartbeat."""

    database = None

    def __init__(self, client: MetastoreClient, *, heartbeat_timeout_s: float) -> None:
        self._client, self._heartbeat_timeout_s = client, heartbeat_timeout_s

    def is_alive(self) -> bool:
        """Does the service answer, and say that it works? DatabaseUnavailable when it does not answer."""
        return bool(self._client.call("getStatus", repeatable=True) == _ALIVE)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def claim(
        self, *, worker_id: str, worker_version: str, pools: Collection[str] | None, pool_timeout_ms: int
    ) -> Compaction | None:
        """The metastore's own setting says when the default pool takes what a labelled one left, not pool_timeout_ms."""
        for pool in [None] if pools is None else sorted(pools):
            request = api.FindNextCompactRequest(workerId=worker_id, workerVersion=worker_version, poolName=pool)
            found = self._client.call("find_next_compact2", request).ci
            if found is not None:
                return compaction_of(found, worker_id=worker_id, worker_version=worker_version)
        return None

    def table(self, name: TableName) -> Table:
        request = api.GetTableRequest(
            dbName=name.database,
            tblName=name.table,
            catName=CATALOG,
            capabilities=api.ClientCapabilities(values=[api.ClientCapability.INSERT_ONLY_TABLES]),
            processorCapabilities=[_RAW_METADATA],
            processorIdentifier="hive-compactor",
        )
        return table_of(self._client.call("get_table_req", request, repeatable=True).table)

    def partition(self, table: TableName, name: str) -> Partition:
        found = self._client.call("get_partition_by_name", table.database, table.table, name, repeatable=True)
        return partition_of(found, name)

    def open_transaction(self, *, kind: TxnType, user: str, host: str, agent_info: str) -> int:
        request = api.OpenTxnRequest(num_txns=1, user=user, hostname=host, agentInfo=agent_info, txn_type=int(kind))
        (txn_id,) = self._client.call("open_txns", request).txn_ids
        return int(txn_id)

    def heartbeat(self, txn_id: int) -> None:
        request = api.HeartbeatRequest(txnid=txn_id)
        self._client.call("heartbeat", request, repeatable=True, timeout_s=self._heartbeat_timeout_s)

    def lock_at_once(self, request: LockRequest) -> str | None:
        response = self._client.call("lock", lock_request(request))
        return None if response.state == api.LockState.ACQUIRED else response.errorMessage or "an earlier lock"

    def snapshot(self, table: TableName, txn_id: int) -> Snapshot:
        valid = txn_list_of(self._client.call("get_open_txns", repeatable=True), txn_id)
        request = api.GetValidWriteIdsRequest(fullTableNames=[str(table)], validTxnList=valid.to_string())
        (found,) = self._client.call("get_valid_write_ids", request, repeatable=True).tblValidWriteIds
        return Snapshot(txns=valid, write_ids=write_ids_of(found).for_compaction())

    def record_snapshot(self, claim: Compaction, *, txn_id: int, highest_write_id: int, run_as: str) -> None:
        self._require_ours(claim)
        info = compaction_info(claim, highestWriteId=highest_write_id, runas=run_as)
        self._client.call("update_compactor_state", info, txn_id)

    def record_job(self, claims: Sequence[Compaction], job_id: str) -> None:
        for claim in claims:
            self._require_ours(claim)
            self._client.call("set_hadoop_jobid", job_id[:32], claim.id, repeatable=True)

    def publish(self, claim: Compaction, txn_id: int) -> None:
        self._require_ours(claim, txn_id)
        self._commit(claim, txn_id)
        self._mark_ready(claim)

    def settle(self, claim: Compaction, txn_id: int) -> TxnState | None:
        state = self._state(claim, txn_id)
        if state is TxnState.COMMITTED:
            self._mark_ready(claim)
        return state

    def finish_without_output(
        self, claim: Compaction, txn_id: int | None, *, outcome: Refused | ReadyWithoutOutput
    ) -> None:
        self._require_ours(claim)
        if txn_id is not None:
            self._commit(claim, txn_id)
        if isinstance(outcome, Refused):
            self._mark_refused(claim, outcome.reason)
        else:
            self._mark_ready(claim)

    def fail(self, claim: Compaction, *, message: str, txn_id: int | None) -> None:
        if txn_id is not None:
            self.abort(txn_id, reason=message)
        self._require_ours(claim)
        self._client.call("mark_failed", compaction_info(claim, errorMessage=message))

    def abort(self, txn_id: int, *, reason: str) -> None:
        """Hive has a number for the reason; ours is in the row's message and in the log."""
        try:
            self._client.call(
                "abort_txn", api.AbortTxnRequest(txnid=txn_id, errorCode=ABORTED_COMPACTION), repeatable=True
            )
        except NoSuchTransaction:
            # It is committed, or was aborted and forgotten.
            return

    def give_back(self, claim: Compaction, txn_id: int, *, reason: str) -> None:
        self.abort(txn_id, reason=reason)
        row = self._row(claim)
        if _is_ours(row, claim):
            self._mark_refused(claim, f"given back: {reason}; the same compaction is requested again")
            self._client.call("compact2", same_again(claim, row))

    def _row(self, claim: Compaction) -> Any:
        """The claim's row of queue or history, None when it is gone."""
        found = self._client.call("show_compact", api.ShowCompactRequest(id=claim.id), repeatable=True).compacts
        return found[0] if found else None

    def _require_ours(self, claim: Compaction, txn_id: int | None = None) -> None:
        """Step 1. txn_id: the row must have it, because step 2 finds the row by it; None: the worker id says enough."""
        row = self._row(claim)
        if not _is_ours(row, claim) or txn_id not in {None, row.txnId}:
            raise fenced(claim)

    def _commit(self, claim: Compaction, txn_id: int) -> None:
        """Step 2."""
        try:
            self._client.call("commit_txn", _commit_request(txn_id))
        except WriteConflict:
            raise
        except (TransactionAborted, NoSuchTransaction) as error:
            raise Fenced(
                f"transaction {txn_id} of compaction {claim.id} of {claim.object_name} is no longer open",
                hint="it was aborted by a time-out, a revoke or an operator; nothing was published",
            ) from error

    def _mark_ready(self, claim: Compaction) -> None:
        """Step 3; nothing to do when the row went on without us, as after a call whose answer was lost."""
        if _is_ours(self._row(claim), claim):
            self._client.call("mark_compacted", compaction_info(claim))

    def _mark_refused(self, claim: Compaction, reason: str) -> None:
        self._client.call("mark_refused", compaction_info(claim, errorMessage=reason))

    def _state(self, claim: Compaction, txn_id: int) -> TxnState | None:
        row = self._row(claim)
        if row is not None and row.txnId == txn_id and row.nextTxnId:
            return TxnState.COMMITTED
        aborted = is_aborted(self._client.call("get_open_txns", repeatable=True), txn_id)
        if aborted is not None:
            return TxnState.ABORTED if aborted else TxnState.OPEN
        try:
            self._client.call("commit_txn", _commit_request(txn_id), repeatable=True)
        except TransactionAborted:
            return TxnState.ABORTED
        except (NoSuchTransaction, CommitOutcomeUnknown):
            return None
        return TxnState.COMMITTED


def _commit_request(txn_id: int) -> Any:
    """Asks for the check of write conflicts, which Hive leaves out unless told that locks alone did not keep them out.

    A rebalance needs it: a transaction that took its snapshot before and its lock afterwards must find it.
    """
    return api.CommitTxnRequest(txnid=txn_id, exclWriteEnabled=False)


def _is_ours(row: Any, claim: Compaction) -> bool:
    return row is not None and row.state == _WORKING and row.workerid == claim.worker_id
