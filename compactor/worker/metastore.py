"""What a worker asks of a metastore, and the way to ask it of the metastore's database.

The other way is Hive's Thrift service: `compactor.thrift.metastore`. The worker's steps are written once, against
`WorkerMetastore`. All methods raise DatabaseUnavailable when the metastore does not answer, CommitOutcomeUnknown when
it broke off in the middle of a change, and the errors they name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from compactor.acid.directory import Snapshot
from compactor.metastore import catalog, locks, queue, snapshots, txns, writeids
from compactor.metastore.catalog import Partition, Table, TableName
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.locks import LockRequest, LockState
from compactor.metastore.open_rules import HIVES_RULES, OpenRules
from compactor.metastore.queue import ReadyWithoutOutput, Refused
from compactor.metastore.txns import TxnState, TxnType


class WorkerMetastore(Protocol):
    """A worker's metastore, in the order of its steps."""

    @property
    def database(self) -> Database | None:
        """For what no Thrift call can do: statistics that never lie, and what jobs cost. None: it goes unrecorded."""

    def claim(
        self, *, worker_id: str, worker_version: str, pools: Collection[str] | None, pool_timeout_ms: int
    ) -> Compaction | None:
        """Step 1: take the oldest request, i→w; None when there is none. Arguments as of `queue.claim`."""

    def table(self, name: TableName) -> Table:
        """A table of the catalogue; NoSuchObject."""

    def partition(self, table: TableName, name: str) -> Partition:
        """A partition by its escaped name `p=x/q=y`; NoSuchObject."""

    def open_transaction(self, *, kind: TxnType, user: str, host: str, agent_info: str) -> int:
        """Step 2: a transaction of a compaction's type."""

    def heartbeat(self, txn_id: int) -> None:
        """Say that the owner is alive; TransactionAborted, NoSuchTransaction."""

    def lock_at_once(self, request: LockRequest) -> str | None:
        """None when all was free, else who is in the way. TransactionAborted, NoSuchTransaction."""

    def snapshot(self, table: TableName, txn_id: int) -> Snapshot:
        """Step 3: what a compaction by this transaction, which counts as open (HIVE-29567), may merge."""

    def record_snapshot(self, claim: Compaction, *, txn_id: int, highest_write_id: int, run_as: str) -> None:
        """Write down transaction, high water and the component 'c'; Fenced, TransactionAborted, NoSuchTransaction."""

    def record_job(self, claims: Sequence[Compaction], job_id: str) -> None:
        """Show which Spark job works on these claims; Fenced when one of them is lost."""

    def publish(self, claim: Compaction, txn_id: int) -> None:
        """Step 7: the transaction o→c and the row w→r. Fenced, WriteConflict."""

    def settle(self, claim: Compaction, txn_id: int) -> TxnState | None:
        """Step 8: what became of the transaction of a publication that broke off; None when nobody knows any more.

        COMMITTED: everything that belongs to the publication is done. OPEN: it may be tried again.
        """

    def finish_without_output(
        self, claim: Compaction, txn_id: int | None, *, outcome: Refused | ReadyWithoutOutput
    ) -> None:
        """End a claim that wrote no file, its transaction commits; Fenced. txn_id None: none was opened."""

    def fail(self, claim: Compaction, *, message: str, txn_id: int | None) -> None:
        """End a claim that went wrong, its transaction is aborted; Fenced when the claim is lost."""

    def abort(self, txn_id: int, *, reason: str) -> None:
        """Make sure that the transaction will never commit; does nothing when it ended already."""

    def give_back(self, claim: Compaction, txn_id: int, *, reason: str) -> None:
        """Abort the transaction and queue the request again; the row is not touched when the claim is lost."""


class DatabaseMetastore:
    """The metastore's own database: every change of a step is one database transaction, guarded and checked (I4)."""

    def __init__(self, db: Database, rules: OpenRules = HIVES_RULES) -> None:
        self._db = db
        self._rules = rules

    @property
    def database(self) -> Database:
        return self._db

    def claim(
        self, *, worker_id: str, worker_version: str, pools: Collection[str] | None, pool_timeout_ms: int
    ) -> Compaction | None:
        return queue.claim(
            self._db, worker_id=worker_id, worker_version=worker_version, pools=pools, pool_timeout_ms=pool_timeout_ms
        )

    def table(self, name: TableName) -> Table:
        return catalog.get_table(self._db, name)

    def partition(self, table: TableName, name: str) -> Partition:
        return catalog.get_partition(self._db, table, name)

    def open_transaction(self, *, kind: TxnType, user: str, host: str, agent_info: str) -> int:
        opened = txns.open_transactions(
            self._db, kind=kind, user=user, host=host, agent_info=agent_info, rules=self._rules
        )
        return opened[0]

    def heartbeat(self, txn_id: int) -> None:
        txns.heartbeat(self._db, txn_id)

    def lock_at_once(self, request: LockRequest) -> str | None:
        response = locks.acquire(self._db, request)
        if response.state is LockState.ACQUIRED:
            return None
        return "an earlier lock" if response.blocked_by is None else f"transaction {response.blocked_by.txn_id}"

    def snapshot(self, table: TableName, txn_id: int) -> Snapshot:
        timeout_ms = self._rules.open_timeout_ms
        valid = snapshots.valid_txn_list_for_compactor(self._db, txn_id, open_timeout_ms=timeout_ms)
        return Snapshot(txns=valid, write_ids=writeids.valid_write_ids(self._db, table, valid).for_compaction())

    def record_snapshot(self, claim: Compaction, *, txn_id: int, highest_write_id: int, run_as: str) -> None:
        queue.record_snapshot(self._db, claim, txn_id=txn_id, highest_write_id=highest_write_id, run_as=run_as)

    def record_job(self, claims: Sequence[Compaction], job_id: str) -> None:
        queue.record_job(self._db, claims, job_id)

    def publish(self, claim: Compaction, txn_id: int) -> None:
        queue.publish(self._db, claim, txn_id)

    def settle(self, claim: Compaction, txn_id: int) -> TxnState | None:
        # The row changed with the transaction or not at all.
        return txns.transaction_state(self._db, txn_id)

    def finish_without_output(
        self, claim: Compaction, txn_id: int | None, *, outcome: Refused | ReadyWithoutOutput
    ) -> None:
        queue.finish_without_output(self._db, claim, txn_id, outcome=outcome)

    def fail(self, claim: Compaction, *, message: str, txn_id: int | None) -> None:
        queue.fail(self._db, claim, message=message, txn_id=txn_id)

    def abort(self, txn_id: int, *, reason: str) -> None:
        txns.abort_transactions(self._db, [txn_id], reason=reason)

    def give_back(self, claim: Compaction, txn_id: int, *, reason: str) -> None:
        self.abort(txn_id, reason=reason)
        queue.revoke_claims(self._db, [claim.worker_id or ""])
