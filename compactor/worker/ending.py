"""How a claim ends without a publication: refused, left to the cleaner, failed, or given back to the queue."""

from __future__ import annotations

import structlog

from compactor.acid.planning import Refusal
from compactor.errors import (
    CommitOutcomeUnknown,
    CompactorError,
    DatabaseUnavailable,
    Fenced,
    NoSuchTransaction,
    TransactionAborted,
    WriteConflict,
)
from compactor.metastore.compaction import Compaction
from compactor.metastore.queue import ReadyWithoutOutput, Refused
from compactor.service.signals import StopRequest
from compactor.worker.metastore import WorkerMetastore
from compactor.worker.work import Outcome, Work, WorkerResult

_log = structlog.get_logger(__name__)


class Endings:
    """Writes the end of a claim into the metastore."""

    def __init__(self, *, metastore: WorkerMetastore, stop: StopRequest) -> None:
        self._metastore, self._stop = metastore, stop

    def by_error(self, work: Work, error: Exception) -> WorkerResult:
        """The end that an error in steps 2 to 8 leads to.

        Raises it again when the database could not be asked: the row stays ours until it is revoked, and saying
        anything about it is impossible now.
        """
        match error:
            case WriteConflict():
                # Queued again it would lose again to the next update; whoever asked for it chooses a quieter hour.
                return self.fail(work.claim, work.txn_id, error)
            case Fenced() | TransactionAborted() | NoSuchTransaction():
                return self.give_back(work, Outcome.FENCED, error.message)
            case DatabaseUnavailable() | CommitOutcomeUnknown():
                raise error
            case CompactorError():
                if not work.heartbeat.trusted():
                    return self.give_back(work, Outcome.FENCED, error.message)
                if self._stop.interrupting.is_set():
                    return self.give_back(work, Outcome.RELEASED, "interrupted")
                return self.fail(work.claim, work.txn_id, error)
            case _:
                _log.error("compaction failed unexpectedly", exc_info=error)
                return self.fail(work.claim, work.txn_id, error)

    def refuse(self, claim: Compaction, txn_id: int | None, refusal: Refusal) -> WorkerResult:
        """Nothing to write. txn_id: None when no transaction was opened."""
        if refusal.leftovers and txn_id is not None:
            self._metastore.finish_without_output(claim, txn_id, outcome=ReadyWithoutOutput())
            return WorkerResult(outcome=Outcome.LEFT_TO_CLEANER, compaction=claim, reason=refusal.reason)
        self._metastore.finish_without_output(claim, txn_id, outcome=Refused(reason=refusal.reason))
        return WorkerResult(outcome=Outcome.REFUSED, compaction=claim, reason=refusal.reason)

    def fail(self, claim: Compaction, txn_id: int | None, error: Exception) -> WorkerResult:
        """The row tells what happened; the transaction is aborted, so that the output can never become visible."""
        reason = str(error) if isinstance(error, CompactorError) else f"{type(error).__name__}: {error}"
        try:
            self._metastore.fail(claim, message=reason, txn_id=txn_id)
        except Fenced as fenced:
            if txn_id is not None:
                self._metastore.abort(txn_id, reason="its claim was lost")
            return WorkerResult(outcome=Outcome.FENCED, compaction=claim, reason=f"{reason}; {fenced.message}")
        _log.error("compaction failed", reason=reason)
        return WorkerResult(outcome=Outcome.FAILED, compaction=claim, reason=reason, error=type(error).__name__)

    def give_back(self, work: Work, outcome: Outcome, reason: str) -> WorkerResult:
        """The work ends unfinished: abort our transaction and queue the row again, so that the next worker starts afresh.

        Left open, the transaction would hold its lock and the cleaner until it times out; a row without a recorded
        transaction would wait for the worker's time limit. The claim may be lost already: then the row is not touched.
        """
        self._metastore.give_back(work.claim, work.txn_id, reason=reason)
        return WorkerResult(outcome=outcome, compaction=work.claim, reason=reason)
