"""The worker: takes one request from the queue and carries it out. The commit protocol, step by step:

1. CLAIM        A guarded UPDATE i→w with a worker id unique to the claim. One row changed: it is ours.
2. TRANSACTION  Open one of type COMPACTION, heartbeat it, take a SHARED_READ lock at once or give up.
3. SNAPSHOT     Our own transaction counts as open, so that our own unfinished output can never be taken for the base
                (HIVE-29567). Highest write id, transaction id and a TXN_COMPONENTS row 'c' are recorded.
4. PLAN         From the listing and the file tails. Nothing worth doing: refused, with the reason.
5. WRITE        The Spark job writes `base_N_vT` or `delta_x_N_vT` (+ delete_delta), where T is our transaction: the
                name is unique, and invisible to every reader until T commits. Files appear atomically.
6. VERIFY       Files, sizes, row accounting and key index against the plan, before anybody can see them.
7. PUBLISH      One database transaction: TXNS o→c, queue w→r with NEXT_TXN_ID and COMMIT_TIME; every UPDATE guarded,
                every row count checked. Not one row: we were fenced, and nothing has changed.
8. OUTCOME      A connection lost during step 7 says nothing. Read the transaction's state: committed is success,
                aborted is failure, open is step 7 again.

Invariants: I2 no crash between two steps loses, doubles or resurrects a row; I3 two committed outputs never have the
same range; I4 every change of state is guarded. The worker deletes nothing: the output of an aborted transaction is
found by its TXN_COMPONENTS row and removed by the cleaner (I6).
"""

from __future__ import annotations

import enum
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth, Refusal
from compactor.errors import (
    CommitOutcomeUnknown,
    CompactorError,
    DatabaseUnavailable,
    Fenced,
    LockNotAcquired,
    NoSuchObject,
    NoSuchTransaction,
    TransactionAborted,
)
from compactor.jobs.compaction import Job, JobRunner
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.verify import verify_output
from compactor.metastore import catalog, locks, queue, snapshots, txns, writeids
from compactor.metastore.compaction import Compaction, CompactionType
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.orc.compression import compression_kind
from compactor.orc.rewrite import ItemResult
from compactor.service.heartbeat import Heartbeat
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest
from compactor.service.targets import compaction_target, why_never_compacted
from compactor.settings import Settings

_log = structlog.get_logger(__name__)
_OUTCOME_ATTEMPTS = 8
_PUBLISH_ATTEMPTS = 5


class Step(enum.Enum):
    """Places where a crash is rehearsed; `at_step` is called when the step has just been done."""

    CLAIMED = 1
    TRANSACTION_OPENED = 2
    SNAPSHOT_RECORDED = 3
    PLANNED = 4
    WRITTEN = 5
    VERIFIED = 6
    PUBLISHED = 7


class Outcome(enum.Enum):
    """How a worker's cycle ended."""

    IDLE = "idle"
    """Nothing was queued."""
    PUBLISHED = "published"
    """The output is visible; the cleaner takes over."""
    REFUSED = "refused"
    """Nothing worth doing; the reason is in the row."""
    LEFT_TO_CLEANER = "left to the cleaner"
    """Nothing to compact, but old directories wait for the cleaner."""
    FAILED = "failed"
    """An error; the reason is in the row, the table is unchanged."""
    FENCED = "fenced"
    """The claim was revoked or the transaction aborted meanwhile; nothing was published."""
    RELEASED = "released"
    """Interrupted on request; the row is queued again."""


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """What one cycle did.

    compaction: None when the queue was empty. reason: for everything but success. error: class of the error, if any.
    """

    outcome: Outcome
    compaction: Compaction | None = None
    reason: str = ""
    error: str = ""
    items: tuple[ItemResult, ...] = ()

    @property
    def did_anything(self) -> bool:
        return self.outcome is not Outcome.IDLE

    def describe(self) -> str:
        if self.compaction is None:
            return "no compaction is queued"
        kind = self.compaction.type.name.lower()
        text = f"{kind} compaction {self.compaction.id} of {self.compaction.object_name}: {self.outcome.value}"
        if self.items:
            copied, encoded = sum(i.bytes_copied for i in self.items), sum(i.bytes_encoded for i in self.items)
            text += f", {len(self.items)} file(s), {copied} bytes copied, {encoded} encoded"
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A claim on its way through the steps."""

    claim: Compaction
    target: CompactionTarget
    depth: Depth
    txn_id: int
    heartbeat: Heartbeat
    group: str
    codec: int
    user: str


class Worker:
    """Carries out compactions, one at a time.

    runner: where the data plane runs. host: as in worker ids. on_progress: (compaction, items done, items in all).
    at_step: called after each step; tests stop or kill the process there.
    """

    def __init__(
        self,
        *,
        db: Database,
        runner: JobRunner,
        settings: Settings,
        metrics: Metrics,
        host: str,
        version: str,
        stop: StopRequest,
        on_progress: Callable[[Compaction, int, int], None] = lambda *_: None,
        at_step: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._db, self._runner, self._settings, self._metrics = db, runner, settings, metrics
        self._host, self._version, self._stop = host, version, stop
        self._on_progress, self._at_step = on_progress, at_step
        for kind in ("major", "minor"):
            for outcome in (Outcome.PUBLISHED, Outcome.REFUSED, Outcome.LEFT_TO_CLEANER, Outcome.FENCED):
                # A series that appears with its first event hides that event from increase().
                metrics.compactions.labels(kind, outcome.value, "")

    def run_once(self) -> WorkerResult:
        """One request, from claim to publication; Outcome.IDLE when there is none."""
        worker = self._settings.worker
        claim = queue.claim(
            self._db,
            worker_id=f"{self._host}-{os.getpid()}.{secrets.token_hex(4)}",
            worker_version=self._version,
            pools=worker.pools or None,
            pool_timeout_ms=int(worker.pool_timeout_s * 1000),
        )
        if claim is None:
            return WorkerResult(outcome=Outcome.IDLE)
        self._at_step(Step.CLAIMED)
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(compaction=claim.id, object=claim.object_name):
            _log.info("compaction claimed", type=claim.type.name.lower(), worker=claim.worker_id)
            result = self._carry_out(claim)
        kind = claim.type.name.lower()
        self._metrics.worker_cycle.labels(kind).observe(time.monotonic() - started)
        self._metrics.compactions.labels(kind, result.outcome.value, result.error).inc()
        return result

    def _carry_out(self, claim: Compaction) -> WorkerResult:
        try:
            resolved = self._resolve(claim)
            if isinstance(resolved, Refusal):
                return self._refuse(claim, None, resolved)
            target, depth, codec, user = resolved
            txn_id = self._open_transaction(claim, user)
        except Fenced as error:
            return WorkerResult(outcome=Outcome.FENCED, compaction=claim, reason=error.message)
        except DatabaseUnavailable:
            # The row stays ours until it is revoked; saying anything about it is impossible now.
            raise
        except CompactorError as error:
            return self._fail(claim, None, error)
        group = f"{self._host}-compactor-{claim.table}.{claim.partition or ''}".rstrip(".")
        heartbeat = Heartbeat(
            lambda: txns.heartbeat(self._db, txn_id),
            timeout_s=self._settings.txn.timeout_s,
            on_lost=lambda: self._runner.cancel(group),
        )
        work = _Work(
            claim=claim,
            target=target,
            depth=depth,
            txn_id=txn_id,
            heartbeat=heartbeat,
            group=group,
            codec=codec,
            user=user,
        )
        with heartbeat, self._stop.on_interrupt(lambda: self._runner.cancel(group)):
            return self._guarded(work)

    def _guarded(self, work: _Work) -> WorkerResult:
        """Steps 2 to 8 with every way they can end."""
        try:
            return self._compact(work)
        except (Fenced, TransactionAborted, NoSuchTransaction) as error:
            return self._give_back(work, Outcome.FENCED, error.message)
        except (DatabaseUnavailable, CommitOutcomeUnknown):
            raise
        except CompactorError as error:
            if not work.heartbeat.trusted():
                return self._give_back(work, Outcome.FENCED, error.message)
            if self._stop.interrupting.is_set():
                return self._give_back(work, Outcome.RELEASED, "interrupted")
            return self._fail(work.claim, work.txn_id, error)
        except Exception as error:  # noqa: BLE001 -- whatever went wrong, the row must say so and the txn must end
            _log.exception("compaction failed unexpectedly")
            return self._fail(work.claim, work.txn_id, error)

    def _compact(self, work: _Work) -> WorkerResult:
        self._lock(work)
        self._at_step(Step.TRANSACTION_OPENED)
        snapshot = self._record_snapshot(work)
        self._at_step(Step.SNAPSHOT_RECORDED)
        surveyed = survey(work.target, snapshot)
        planned = plan(work.target, surveyed, snapshot, work.depth, txn_id=work.txn_id)
        if isinstance(planned, Refusal):
            return self._refuse(work.claim, work.txn_id, planned)
        self._at_step(Step.PLANNED)
        work.heartbeat.check()
        results = self._write(work, planned)
        self._at_step(Step.WRITTEN)
        verify_output(planned, results)
        self._at_step(Step.VERIFIED)
        work.heartbeat.check()
        self._publish(work)
        self._at_step(Step.PUBLISHED)
        self._metrics.published(
            work.claim.type.name.lower(),
            bytes_read=planned.bytes_in,
            bytes_written=sum(r.size for r in results),
            rows_written=sum(r.rows_out for r in results),
            rows_deleted=sum(r.rows_deleted for r in results),
        )
        return WorkerResult(outcome=Outcome.PUBLISHED, compaction=work.claim, items=tuple(results))

    def _resolve(self, claim: Compaction) -> tuple[CompactionTarget, Depth, int, str] | Refusal:
        """The claim's table or partition, how deep, codec and user; or why it cannot be compacted."""
        try:
            table = catalog.get_table(self._db, claim.table)
            reason = why_never_compacted(table, claim.type, claim.partition)
            if reason:
                return Refusal(reason=reason, leftovers=False)
            target = compaction_target(self._db, table, claim.partition)
        except NoSuchObject as error:
            return Refusal(reason=error.message, leftovers=False)
        depth = Depth.MAJOR if claim.type is CompactionType.MAJOR else Depth.MINOR
        user = claim.run_as or self._settings.worker.run_as or table.owner or "compactor"
        return target, depth, compression_kind(table.parameters.get("orc.compress", "ZLIB")), user

    def _open_transaction(self, claim: Compaction, user: str) -> int:
        (txn_id,) = txns.open_transactions(
            self._db,
            kind=txns.TxnType.COMPACTION,
            user=user,
            host=self._host,
            agent_info=claim.worker_id or "",
        )
        return txn_id

    def _lock(self, work: _Work) -> None:
        """SHARED_READ on the table or partition: nobody drops it meanwhile. No waiting: the queue is the waiting room."""
        component = locks.LockComponent(
            type=locks.LockType.SHARED_READ,
            database=work.claim.table.database,
            table=work.claim.table.table,
            partition=work.claim.partition,
            operation=Operation.SELECT,
        )
        request = locks.LockRequest(
            txn_id=work.txn_id,
            user=work.user,
            host=self._host,
            agent_info=work.claim.worker_id or "",
            components=(component,),
        )
        response = locks.acquire(self._db, request)
        if response.state is not locks.LockState.ACQUIRED:
            holder = f" by transaction {response.blocked_by.txn_id}" if response.blocked_by is not None else ""
            raise LockNotAcquired(
                f"{work.claim.object_name} is locked{holder}",
                hint="request the compaction again when the lock is released",
            )

    def _record_snapshot(self, work: _Work) -> Snapshot:
        valid = snapshots.valid_txn_list_for_compactor(self._db, work.txn_id)
        ids = writeids.valid_write_ids(self._db, work.claim.table, valid).for_compaction()
        queue.record_snapshot(
            self._db, work.claim, txn_id=work.txn_id, highest_write_id=ids.high_water, run_as=work.user
        )
        return Snapshot(txns=valid, write_ids=ids)

    def _write(self, work: _Work, planned: CompactionPlan) -> list[ItemResult]:
        queue.record_job(self._db, work.claim, self._runner.job_id())
        # Starting the engine takes a while, and cancelling a job that has not begun does nothing.
        self._stop.check()
        started = time.monotonic()
        (results,) = self._runner.run(
            [Job(plan=planned, compression=work.codec)],
            group=work.group,
            description=f"{work.depth.value} compaction {work.claim.id}, {planned.files_in} files",
            progress=lambda done, total: self._on_progress(work.claim, done, total),
        )
        if isinstance(results, CompactorError):
            raise results
        self._metrics.job_seconds.labels(work.claim.type.name.lower()).observe(time.monotonic() - started)
        return results

    def _publish(self, work: _Work) -> None:
        for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
            try:
                queue.publish(self._db, work.claim, work.txn_id)
            except (CommitOutcomeUnknown, DatabaseUnavailable) as error:
                self._metrics.retries.labels("publish").inc()
                _log.warning("publication interrupted, reading the outcome", attempt=attempt, error=error.message)
                state = self._outcome(work.txn_id)
                if state is txns.TxnState.COMMITTED:
                    return
                if state is None:
                    raise CommitOutcomeUnknown(f"transaction {work.txn_id} ended and was forgotten") from error
                if state is txns.TxnState.ABORTED:
                    raise Fenced(f"transaction {work.txn_id} was aborted during publication") from error
                work.heartbeat.check()
            else:
                return
        raise DatabaseUnavailable(f"publication of compaction {work.claim.id} failed {_PUBLISH_ATTEMPTS} times")

    def _outcome(self, txn_id: int) -> txns.TxnState | None:
        """The transaction's state, asked until the database answers; bounded, then the error goes up."""
        attempts = Retrying(
            retry=retry_if_exception_type(DatabaseUnavailable),
            stop=stop_after_attempt(_OUTCOME_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=10),
            reraise=True,
        )
        return attempts(txns.transaction_state, self._db, txn_id)

    def _refuse(self, claim: Compaction, txn_id: int | None, refusal: Refusal) -> WorkerResult:
        if refusal.leftovers and txn_id is not None:
            queue.finish_without_output(self._db, claim, txn_id, outcome=queue.ReadyWithoutOutput())
            return WorkerResult(outcome=Outcome.LEFT_TO_CLEANER, compaction=claim, reason=refusal.reason)
        queue.finish_without_output(self._db, claim, txn_id, outcome=queue.Refused(reason=refusal.reason))
        return WorkerResult(outcome=Outcome.REFUSED, compaction=claim, reason=refusal.reason)

    def _fail(self, claim: Compaction, txn_id: int | None, error: Exception) -> WorkerResult:
        """The row tells what happened; the transaction is aborted, so that the output can never become visible."""
        reason = str(error) if isinstance(error, CompactorError) else f"{type(error).__name__}: {error}"
        try:
            queue.fail(self._db, claim, message=reason, txn_id=txn_id)
        except Fenced as fenced:
            if txn_id is not None:
                txns.abort_transactions(self._db, [txn_id], reason="its claim was lost")
            return WorkerResult(outcome=Outcome.FENCED, compaction=claim, reason=f"{reason}; {fenced.message}")
        _log.error("compaction failed", reason=reason)
        return WorkerResult(outcome=Outcome.FAILED, compaction=claim, reason=reason, error=type(error).__name__)

    def _give_back(self, work: _Work, outcome: Outcome, reason: str) -> WorkerResult:
        """The work ends unfinished: abort our transaction and queue the row again, so that the next worker starts afresh.

        Left open, the transaction would hold its lock and the cleaner until it times out; a row without a recorded
        transaction would wait for the worker's time limit. The claim may be lost already: then the row is not touched.
        """
        txns.abort_transactions(self._db, [work.txn_id], reason=reason)
        queue.revoke_claims(self._db, [work.claim.worker_id or ""])
        return WorkerResult(outcome=outcome, compaction=work.claim, reason=reason)
