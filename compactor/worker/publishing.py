"""Steps 6 to 8: the output is verified, published in one database transaction, and its outcome is certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from compactor.acid.rebalance import RebalancePlan
from compactor.errors import CommitOutcomeUnknown, CompactorError, DatabaseUnavailable, Fenced
from compactor.jobs.checksum import verify_moved_rows, verify_rows
from compactor.jobs.engine import Engine
from compactor.jobs.rebalance import verify_rebalance
from compactor.jobs.stretches import Each
from compactor.jobs.verify import verify_output
from compactor.metastore.txns import TxnState
from compactor.orc.rewrite import ItemResult
from compactor.service.metrics import Metrics
from compactor.service.table_statistics import update_statistics
from compactor.settings import Settings
from compactor.worker.metastore import WorkerMetastore
from compactor.worker.work import Outcome, PlannedWork, Step, Work, WorkerResult

_log = structlog.get_logger(__name__)
_OUTCOME_ATTEMPTS = 8
_PUBLISH_ATTEMPTS = 5


class Publishing:
    """Takes written output to the point where everybody sees it."""

    def __init__(
        self,
        *,
        metastore: WorkerMetastore,
        engine: Engine,
        settings: Settings,
        metrics: Metrics,
        at_step: Callable[[Step], None],
    ) -> None:
        self._metastore, self._engine, self._settings = metastore, engine, settings.worker
        self._metrics, self._at_step = metrics, at_step

    def publish(self, planned: PlannedWork, results: Sequence[ItemResult]) -> WorkerResult:
        """Steps 6 to 8. Raises VerificationError, Fenced, WriteConflict, DatabaseUnavailable, CommitOutcomeUnknown."""
        work = planned.work
        self._verify(planned, results)
        self._at_step(Step.VERIFIED)
        work.heartbeat.check()
        self._publish(work)
        self._at_step(Step.PUBLISHED)
        self._metrics.published(
            work.claim.type.name.lower(),
            bytes_read=planned.plan.bytes_in,
            bytes_written=sum(r.size for r in results),
            # Text is not counted: its files have -1 rows.
            rows_written=sum(max(r.rows_out, 0) for r in results),
            rows_deleted=sum(r.rows_deleted for r in results),
            bytes_copied=sum(r.bytes_copied for r in results),
            bytes_encoded=sum(r.bytes_encoded for r in results),
        )
        self._update_statistics(planned, results)
        return WorkerResult(outcome=Outcome.PUBLISHED, compaction=work.claim, items=tuple(results))

    def _verify(self, planned: PlannedWork, results: Sequence[ItemResult]) -> None:
        plan, full = planned.plan, self._settings.verify == "full"
        if isinstance(plan, RebalancePlan):
            verify_rebalance(plan, results)
            notes = verify_moved_rows(self._each(planned.work), plan, results) if full else ()
        else:
            verify_output(plan, results)
            notes = verify_rows(self._each(planned.work), plan) if full else ()
        for note in notes:
            _log.warning("verified in part", reason=note)

    def _each(self, work: Work) -> Each:
        return self._engine.each(work.group, f"verification of compaction {work.claim.id}")

    def _update_statistics(self, planned: PlannedWork, results: Sequence[ItemResult]) -> None:
        """The compaction is published whatever happens here (Hive's StatsUpdater)."""
        work, db = planned.work, self._metastore.database
        if db is None:
            return
        try:
            update_statistics(
                db,
                self._settings,
                lambda: self._engine.each(work.group, f"statistics after compaction {work.claim.id}"),
                compaction=work.claim,
                target=work.target,
                surveyed=planned.surveyed,
                plan=planned.plan,
                results=results,
            )
        except CompactorError as error:
            self._metrics.statistics_failures.inc()
            _log.warning("the table's statistics are as before", error=error.message)

    def _publish(self, work: Work) -> None:
        for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
            try:
                self._metastore.publish(work.claim, work.txn_id)
            except (CommitOutcomeUnknown, DatabaseUnavailable) as error:
                self._metrics.retries.labels("publish").inc()
                _log.warning("publication interrupted, reading the outcome", attempt=attempt, error=error.message)
                state = self._outcome(work)
                if state is TxnState.COMMITTED:
                    return
                if state is None:
                    raise CommitOutcomeUnknown(f"transaction {work.txn_id} ended and was forgotten") from error
                if state is TxnState.ABORTED:
                    raise Fenced(f"transaction {work.txn_id} was aborted during publication") from error
                work.heartbeat.check()
            else:
                return
        raise DatabaseUnavailable(f"publication of compaction {work.claim.id} failed {_PUBLISH_ATTEMPTS} times")

    def _outcome(self, work: Work) -> TxnState | None:
        """The transaction's state, asked until the metastore answers; bounded, then the error goes up."""
        attempts = Retrying(
            retry=retry_if_exception_type((DatabaseUnavailable, CommitOutcomeUnknown)),
            stop=stop_after_attempt(_OUTCOME_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=10),
            reraise=True,
        )
        return attempts(self._metastore.settle, work.claim, work.txn_id)
