"""The cleaner: removes what compactions replaced and what aborted transactions left behind.

One cycle, under the Cleaner mutex so that several cleaners, Hive's among them, take turns:

1. Rows in 'ready for cleaning' that nobody holds any more, several at a time (`cleaner.row`) and page by page
   (`cleaner.page`). Those that Hive published without saying when get their bound first (`metastore.undated`).
2. Rows that are held: nothing happens to them, but the result says who holds each, and the log does once.
3. Outputs of aborted compactions (`cleaner.abandoned`), then aborted writes over a threshold (`cleaner.aborted`).

Sources: Hive `Cleaner`, `CompactionCleaner`, `AbortedTxnCleaner`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog

from cleaner.abandoned import AbandonedOutcome, AbandonedOutputs
from cleaner.aborted import AbortedOutcome, AbortedTxnCleaner
from cleaner.drain import HeldBy, held
from cleaner.facts import Facts, facts_of
from cleaner.page import clean_page
from cleaner.remover import Removed
from cleaner.row import RetryRule, RowOutcome, Verdict, clean_row
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.ready import ready_to_clean
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.undated import date_publications
from compactor.service.metrics import Metrics
from compactor.settings import Settings
from compactor.storage.filesystem import FilesystemOf

_log = structlog.get_logger(__name__)

ROWS_A_CYCLE = 1000
"""Rows that one cycle cleans at most, so that a cycle ends, and the process can."""

ROWS_A_PAGE = 100
"""Rows that are started and ended together, and have to be looked at again when the process dies in between."""


@dataclass(frozen=True, kw_only=True)
class CleanerResult:
    """What one cycle did.

    cleaned, retried, refused, failed: rows of the queue. held: rows that have to wait, and for whom. aborts_forgotten:
    components of aborted writes; outputs_forgotten: aborted compactions. errors: one sentence for each object outside
    of the queue that went wrong. files_removed, bytes_removed: of everything. held_elsewhere: another cleaner was at work.
    """

    cleaned: int = 0
    held: tuple[HeldBy, ...] = ()
    retried: int = 0
    refused: int = 0
    failed: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    aborts_forgotten: int = 0
    outputs_forgotten: int = 0
    errors: tuple[str, ...] = ()
    held_elsewhere: bool = False

    @property
    def did_anything(self) -> bool:
        """Whether anything changed; waiting for somebody, or for a retry that is not due, is nothing."""
        rows = self.cleaned + self.retried + self.refused + self.failed
        return bool(rows or self.files_removed or self.aborts_forgotten or self.outputs_forgotten)

    def describe(self) -> str:
        if self.held_elsewhere:
            return "another cleaner is at work"
        text = (
            f"cleaned {self.cleaned}, held {len(self.held)}, retried {self.retried}, refused {self.refused}, "
            f"failed {self.failed}; removed {self.files_removed} files, {self.bytes_removed} bytes"
        )
        return text + (f"; {len(self.errors)} objects with aborted data went wrong" if self.errors else "")


class Cleaner:
    """Runs cycles; `compactor.service.loop` decides when.

    filesystem_of: opens a metastore location. host: this machine's name, for the log. clock: monotonic seconds.
    """

    def __init__(
        self,
        db: Database,
        filesystem_of: FilesystemOf,
        settings: Settings,
        metrics: Metrics,
        host: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._log = _log.bind(host=host)
        self._open_timeout_ms = int(settings.txn.open_timeout_s * 1000)
        self._retry = RetryRule(
            first_ms=int(settings.cleaner.retry_retention_s * 1000), max_attempts=settings.cleaner.retry_max_attempts
        )
        self._abandoned = AbandonedOutputs(
            db,
            filesystem_of,
            quarantine_s=settings.worker.timeout_s,
            pause_s=settings.cleaner.retry_retention_s,
            clock=clock,
        )
        self._aborted = AbortedTxnCleaner(db, filesystem_of, settings, clock=clock)
        self._waiting: dict[int, HeldBy] = {}
        self._reached = 0

    def run_once(self) -> CleanerResult:
        """One cycle. MetastoreError when the database fails; what was removed by then is found removed next time."""
        with mutex(self._db, MutexKey.CLEANER) as mine:
            if mine is None:
                self._metrics.waits.labels("cleaner mutex").inc()
                return CleanerResult(held_elsewhere=True)
            date_publications(self._db)
            due = self._due()
            with ThreadPoolExecutor(self._settings.cleaner.threads, thread_name_prefix="cleaner") as pool:
                pages = [due[start : start + ROWS_A_PAGE] for start in range(0, len(due), ROWS_A_PAGE)]
                outcomes = [outcome for page in pages for outcome in self._clean_page(page, pool)]
            txns = valid_txn_list(self._db, open_timeout_ms=self._open_timeout_ms)
            waiting = held(self._db, {row.id for row in due}, txns)
            abandoned = self._abandoned.run_once()
            with_aborts = self._settings.initiator.clean_aborts_using_cleaner
            aborts = self._aborted.run_once() if with_aborts else AbortedOutcome()
        return self._result(outcomes, waiting, abandoned, aborts)

    def _due(self) -> list[Compaction]:
        """The next page of rows, where the last cycle ended: rows that never get done leave others their turn (I9)."""
        retention_ms = int(self._settings.cleaner.retention_s * 1000)
        due = ready_to_clean(self._db, retention_ms=retention_ms, limit=ROWS_A_CYCLE, after=self._reached)
        if self._reached and not due:
            due = ready_to_clean(self._db, retention_ms=retention_ms, limit=ROWS_A_CYCLE)
        self._reached = due[-1].id if len(due) == ROWS_A_CYCLE else 0
        return due

    def _clean_page(self, page: Sequence[Compaction], pool: Executor) -> Iterator[RowOutcome]:
        facts = facts_of(self._db, page, open_timeout_ms=self._open_timeout_ms)
        for outcome in clean_page(self._db, page, partial(self._clean_row, facts), pool, self._clock):
            log = self._log.bind(id=outcome.compaction.id, object=outcome.compaction.object_name)
            if outcome.verdict in {Verdict.RETRY, Verdict.REFUSED, Verdict.FAILED}:
                log.warning("compaction not cleaned", outcome=outcome.verdict.value, why=outcome.reason)
            elif outcome.verdict is Verdict.CLEANED:
                log.info("compaction cleaned", files=outcome.removed.files, bytes=outcome.removed.bytes)
            yield outcome

    def _clean_row(self, facts: Facts, compaction: Compaction) -> RowOutcome:
        began = self._clock()
        outcome = clean_row(self._db, self._filesystem_of, facts, compaction, self._retry)
        self._metrics.cleaner_cycle.labels(compaction.type.name.lower()).observe(self._clock() - began)
        return outcome

    def _result(
        self,
        outcomes: Sequence[RowOutcome],
        waiting: Sequence[HeldBy],
        abandoned: AbandonedOutcome,
        aborts: AbortedOutcome,
    ) -> CleanerResult:
        verdicts = Counter(outcome.verdict for outcome in outcomes)
        removed = sum((outcome.removed for outcome in outcomes), start=Removed())
        removed += abandoned.removed + aborts.removed
        self._metrics.files_removed.inc(removed.files)
        self._metrics.bytes_removed.inc(removed.bytes)
        self._metrics.retries.labels("clean").inc(verdicts[Verdict.RETRY])
        holders = [outcome.holder for outcome in outcomes if outcome.holder is not None]
        holders += waiting
        self._tell(holders)
        for holder in holders:
            self._metrics.waits.labels("other" if holder.blocker is None else "reader").inc()
        errors = abandoned.errors + aborts.errors
        for error in errors:
            self._log.warning("aborted data not removed", why=error)
        return CleanerResult(
            cleaned=verdicts[Verdict.CLEANED],
            held=tuple(holders),
            retried=verdicts[Verdict.RETRY],
            refused=verdicts[Verdict.REFUSED],
            failed=verdicts[Verdict.FAILED],
            files_removed=removed.files,
            bytes_removed=removed.bytes,
            aborts_forgotten=aborts.forgotten,
            outputs_forgotten=len(abandoned.forgotten),
            errors=errors,
        )

    def _tell(self, holders: Sequence[HeldBy]) -> None:
        """Log who holds a row when that changes and when it is over: cycles are seconds apart, readers last for hours."""
        waiting = {holder.compaction.id: holder for holder in holders}
        for compaction_id, holder in waiting.items():
            before = self._waiting.get(compaction_id)
            if before is None or before.reason != holder.reason:
                log = self._log.bind(id=compaction_id, object=holder.compaction.object_name)
                log.info("compaction waits to be cleaned", why=holder.reason)
        for compaction_id, holder in self._waiting.items():
            if compaction_id not in waiting:
                log = self._log.bind(id=compaction_id, object=holder.compaction.object_name)
                log.info("compaction waits no longer", was=holder.reason)
        self._waiting = waiting
