"""Steps 2 to 4: a claim gets its transaction, its lock, its snapshot and its plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from compactor.acid.directory import Snapshot
from compactor.acid.planning import Depth, Refusal
from compactor.errors import (
    CommitOutcomeUnknown,
    CompactorError,
    DatabaseUnavailable,
    Fenced,
    LockNotAcquired,
    NoSuchObject,
)
from compactor.jobs.compaction import JobRunner
from compactor.jobs.planner import CompactionTarget, Survey, survey
from compactor.jobs.rebalance import plan_rebalance
from compactor.jobs.spark_wish import SparkWish, spark_wish
from compactor.metastore.compaction import Compaction, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.locks import LockComponent, LockRequest, LockType
from compactor.metastore.txns import TxnType
from compactor.service.heartbeat import Heartbeat
from compactor.service.offers import offer
from compactor.service.signals import StopRequest
from compactor.service.targets import target_of, why_never_compacted
from compactor.settings import Settings
from compactor.worker.ending import Endings
from compactor.worker.metastore import WorkerMetastore
from compactor.worker.work import Outcome, PlannedWork, Step, Work, WorkerResult

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """What the catalogue says about a claim; the fields are those of `Work`."""

    target: CompactionTarget
    user: str
    wish: SparkWish


class Preparing:
    """Takes claims to the point where their output can be written, or to their end."""

    def __init__(
        self,
        *,
        metastore: WorkerMetastore,
        runner: JobRunner,
        settings: Settings,
        host: str,
        stop: StopRequest,
        endings: Endings,
        at_step: Callable[[Step], None],
    ) -> None:
        self._metastore, self._runner, self._settings = metastore, runner, settings
        self._host, self._stop, self._endings, self._at_step = host, stop, endings, at_step

    def prepare(self, claim: Compaction) -> PlannedWork | WorkerResult:
        """Steps 2 to 4. The work that is returned holds a heartbeat; a claim that ends here holds nothing any more."""
        begun = self._begin(claim)
        if isinstance(begun, WorkerResult):
            return begun
        with ExitStack() as at_end:
            at_end.callback(begun.held.close)
            try:
                planned = self._plan(begun)
                if isinstance(planned, Refusal):
                    return self._endings.refuse(begun.claim, begun.txn_id, planned)
            except (DatabaseUnavailable, CommitOutcomeUnknown):
                raise
            except Exception as error:  # noqa: BLE001 -- whatever went wrong, the row must say so and the txn must end
                return self._endings.by_error(begun, error)
            # It goes on, and so does its heartbeat.
            at_end.pop_all()
            return planned

    def _begin(self, claim: Compaction) -> Work | WorkerResult:
        try:
            resolved = self._resolve(claim)
            if isinstance(resolved, Refusal):
                return self._endings.refuse(claim, None, resolved)
            txn_id = self._open_transaction(claim, resolved.user)
        except Fenced as error:
            return WorkerResult(outcome=Outcome.FENCED, compaction=claim, reason=error.message)
        except DatabaseUnavailable:
            # The row stays ours until it is revoked; saying anything about it is impossible now.
            raise
        except CompactorError as error:
            return self._endings.fail(claim, None, error)
        group = f"{self._host}-compactor-{claim.table}.{claim.partition or ''}".rstrip(".")
        heartbeat = Heartbeat(
            lambda: self._metastore.heartbeat(txn_id),
            timeout_s=self._settings.txn.timeout_s,
            on_lost=lambda: self._runner.cancel(group),
        )
        held = ExitStack()
        held.enter_context(heartbeat)
        return Work(
            claim=claim,
            target=resolved.target,
            txn_id=txn_id,
            heartbeat=heartbeat,
            group=group,
            wish=resolved.wish,
            user=resolved.user,
            held=held,
        )

    def _plan(self, work: Work) -> PlannedWork | Refusal:
        self._lock(work)
        self._at_step(Step.TRANSACTION_OPENED)
        snapshot = self._record_snapshot(work)
        self._at_step(Step.SNAPSHOT_RECORDED)
        surveyed = survey(work.target, snapshot)
        planned = _planned(work, surveyed, snapshot)
        if isinstance(planned, PlannedWork):
            self._at_step(Step.PLANNED)
            work.heartbeat.check()
        return planned

    def _resolve(self, claim: Compaction) -> _Resolved | Refusal:
        """What the catalogue says about the claim; or why it cannot be compacted."""
        try:
            table = self._metastore.table(claim.table)
            reason = why_never_compacted(table, claim.type, claim.partition)
            if reason:
                return Refusal(reason=reason, leftovers=False)
            partition = None if claim.partition is None else self._metastore.partition(table.name, claim.partition)
            target = target_of(table, partition, worker=self._settings.worker)
        except NoSuchObject as error:
            return Refusal(reason=error.message, leftovers=False)
        user = claim.run_as or self._settings.worker.run_as or table.owner or "compactor"
        wish, warnings = spark_wish(table.parameters, claim.properties, job_queue=self._settings.worker.job_queue)
        for warning in warnings:
            _log.warning(warning)
        return _Resolved(target=target, user=user, wish=wish)

    def _open_transaction(self, claim: Compaction, user: str) -> int:
        rebalance = claim.type is CompactionType.REBALANCE
        return self._metastore.open_transaction(
            kind=TxnType.REBALANCE_COMPACTION if rebalance else TxnType.COMPACTION,
            user=user,
            host=self._host,
            agent_info=claim.worker_id or "",
        )

    def _lock(self, work: Work) -> None:
        """SHARED_READ on the table or partition: nobody drops it meanwhile. No waiting: the queue is the waiting room.

        A rebalance takes EXCL_WRITE: nobody updates or deletes rows by the ids that it is about to change.
        """
        rebalance = work.claim.type is CompactionType.REBALANCE
        component = LockComponent(
            type=LockType.EXCL_WRITE if rebalance else LockType.SHARED_READ,
            database=work.claim.table.database,
            table=work.claim.table.table,
            partition=work.claim.partition,
            operation=Operation.SELECT,
        )
        request = LockRequest(
            txn_id=work.txn_id,
            user=work.user,
            host=self._host,
            agent_info=work.claim.worker_id or "",
            components=(component,),
        )
        in_the_way = self._metastore.lock_at_once(request)
        if in_the_way is not None:
            raise LockNotAcquired(
                f"{work.claim.object_name} is locked by {in_the_way}",
                hint="request the compaction again when the lock is released",
            )

    def _record_snapshot(self, work: Work) -> Snapshot:
        snapshot = self._metastore.snapshot(work.claim.table, work.txn_id)
        highest = snapshot.write_ids.high_water
        self._metastore.record_snapshot(work.claim, txn_id=work.txn_id, highest_write_id=highest, run_as=work.user)
        return snapshot


def _planned(work: Work, surveyed: Survey, snapshot: Snapshot) -> PlannedWork | Refusal:
    """Step 4, for every type of compaction that `why_never_compacted` lets through."""
    claim = work.claim
    if claim.type is CompactionType.REBALANCE:
        plan = plan_rebalance(
            work.target,
            surveyed,
            snapshot,
            buckets=claim.number_of_buckets,
            order_by=claim.order_by,
            txn_id=work.txn_id,
            compression=work.target.codec,
        )
        return plan if isinstance(plan, Refusal) else PlannedWork(work=work, surveyed=surveyed, plan=plan)
    depth = Depth.MAJOR if claim.type is CompactionType.MAJOR else Depth.MINOR
    made = offer(work.target, surveyed, snapshot, depth, txn_id=work.txn_id)
    if isinstance(made, Refusal):
        return made
    return PlannedWork(work=work, surveyed=surveyed, plan=made.plan, price=made.price)
