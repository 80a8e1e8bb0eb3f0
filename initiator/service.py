"""The initiator: looks for tables and partitions that compaction would help, and asks for it.

One cycle, under the Initiator mutex so that several initiators take turns:

1. Give back claims that are too old, and those whose transaction was aborted. Once, in the first cycle that this process
   gets to run: also those of workers of this host whose process is gone (`dead_workers`).
2. Candidates, page by page until there are no more (`initiator.candidates`).
3. Each is examined (`initiator.examine`); the decision itself is pure (`initiator.decide`).
4. Requests go through the same function as ALTER TABLE … COMPACT, which refuses what is already under way, so that
   even two cycles at once would not ask twice. Reasons for not asking that an operator must know go into the history.
5. The cycle's start time is kept beside the mutex, and only when the cycle got to its end.

Sources: Hive `Initiator`, `InitiatorBase`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from compactor.metastore.candidates import AbortThresholds, Candidate, record_full_look
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.delta_counts import DeltaMetric, record_delta_counts
from compactor.metastore.history import CompactionFilter, newest_outcome, record_not_initiated, show_compactions
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.queue import request_compactions, revoke_aborted, revoke_claims, revoke_timed_out
from compactor.metastore.snapshots import valid_txn_list
from compactor.service.metrics import Metrics
from compactor.settings import MetricsSettings, Settings
from compactor.storage.filesystem import FilesystemOf
from initiator.candidates import pages, since
from initiator.decide import DidNotInitiate, Initiate, Measurements, Skip
from initiator.examine import TYPES, Examination, Examiner, PricesOf

_log = structlog.get_logger(__name__)

REQUESTS_AT_ONCE = 500
"""Requests of one transaction; whoever else asks for a compaction waits for it."""


@dataclass(frozen=True, kw_only=True)
class Requested:
    """A request that was accepted: its id in the queue, and why it was made."""

    id: int
    table: TableName
    partition: str | None
    type: CompactionType
    reason: str


@dataclass(frozen=True, kw_only=True)
class NotInitiated:
    """An object that needs the operator's attention."""

    table: TableName
    partition: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class InitiatorResult:
    """What one cycle did.

    candidates: objects looked at; skipped: those with nothing to do, or already under way. revoked: compaction ids
    that went back to the queue. held_elsewhere: another initiator's cycle was running, so nothing was done.
    """

    candidates: int = 0
    skipped: int = 0
    requested: tuple[Requested, ...] = ()
    not_initiated: tuple[NotInitiated, ...] = ()
    revoked: tuple[int, ...] = ()
    held_elsewhere: bool = False

    @property
    def did_anything(self) -> bool:
        return bool(self.requested or self.revoked)

    def describe(self) -> str:
        if self.held_elsewhere:
            return "another initiator is at work"
        return (
            f"looked at {self.candidates} tables and partitions, requested {len(self.requested)} compactions, "
            f"did not initiate {len(self.not_initiated)}, gave back {len(self.revoked)} claims"
        )


@dataclass(kw_only=True)
class _Tally:
    """The result while the cycle runs."""

    candidates: int = 0
    skipped: int = 0
    requested: list[Requested] = field(default_factory=list)
    not_initiated: list[NotInitiated] = field(default_factory=list)


class Initiator:
    """Runs cycles; `compactor.service.loop` decides when.

    filesystem_of: opens a metastore location. host: this machine's name as it stands in worker ids. version: of this
    program, for the queue. prices_of: what `choose = cost` decides by; planning is not the initiator's business.
    process_is_alive: whether a process id of this machine runs. clock: monotonic seconds.
    """

    def __init__(
        self,
        db: Database,
        filesystem_of: FilesystemOf,
        settings: Settings,
        metrics: Metrics,
        host: str,
        version: str,
        *,
        prices_of: PricesOf,
        process_is_alive: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._filesystem_of = filesystem_of
        self._settings = settings
        self._metrics = metrics
        self._host = host
        self._version = version
        self._prices_of = prices_of
        self._process_is_alive = process_is_alive or _process_is_alive
        self._clock = clock
        self._looked_for_dead_workers = False

    def run_once(self) -> InitiatorResult:
        """One cycle. MetastoreError when the database fails; nothing that was requested is lost by that."""
        with mutex(self._db, MutexKey.INITIATOR) as held:
            if held is None:
                self._metrics.waits.labels("initiator mutex").inc()
                return InitiatorResult(held_elsewhere=True)
            revoked = self._revoke()
            with self._db.read() as conn:
                started_ms = self._db.now(conn)
            since_ms = since(self._db, held.last_update, now_ms=started_ms)
            examiner = Examiner(
                db=self._db,
                filesystem_of=self._filesystem_of,
                settings=self._settings,
                txns=valid_txn_list(self._db, open_timeout_ms=int(self._settings.txn.open_timeout_s * 1000)),
                now_ms=started_ms,
                prices_of=self._prices_of,
            )
            tally = _Tally()
            with ThreadPoolExecutor(self._settings.initiator.threads, thread_name_prefix="initiator") as pool:
                for page in self._pages(since_ms):
                    self._act(list(examiner.examine(page, pool)), tally)
            if since_ms is None:
                record_full_look(self._db, started_ms)
            held.set_last_update(started_ms)
        return InitiatorResult(
            candidates=tally.candidates,
            skipped=tally.skipped,
            requested=tuple(tally.requested),
            not_initiated=tuple(tally.not_initiated),
            revoked=tuple(revoked),
        )

    def _pages(self, since_ms: int | None) -> Iterator[list[Candidate]]:
        limits = self._settings.initiator
        aborts = AbortThresholds(
            count=limits.aborted_txn_threshold, older_than_ms=int(limits.aborted_txn_time_threshold_s * 1000)
        )
        return pages(
            self._db,
            fetch_size=limits.fetch_size,
            since_ms=since_ms,
            aborts=None if limits.clean_aborts_using_cleaner else aborts,
        )

    def _act(self, page: Sequence[Examination], tally: _Tally) -> None:
        counted = {
            (examination.candidate.table, examination.candidate.partition): delta_counts(
                examination.measured, self._settings.metrics
            )
            for examination in page
            if examination.measured is not None
        }
        record_delta_counts(self._db, counted)
        wanted = [(e, e.decision) for e in page if isinstance(e.decision, Initiate)]
        for start in range(0, len(wanted), REQUESTS_AT_ONCE):
            self._request(wanted[start : start + REQUESTS_AT_ONCE], tally)
        for examination in page:
            self._count(examination, tally)

    def _count(self, examination: Examination, tally: _Tally) -> None:
        candidate, decision = examination.candidate, examination.decision
        tally.candidates += 1
        match decision:
            case Initiate():
                pass  # requested together with others
            case Skip():
                tally.skipped += 1
            case DidNotInitiate(reason=reason):
                tally.not_initiated.append(
                    NotInitiated(table=candidate.table, partition=candidate.partition, reason=reason)
                )
                self._record(candidate, reason)
            case _:
                assert_never(decision)

    def _request(self, wanted: Sequence[tuple[Examination, Initiate]], tally: _Tally) -> None:
        """In one transaction: each by itself, thousands of candidates would wait for as many commits."""
        requests = [
            CompactionRequest(
                table=examination.candidate.table,
                partition=examination.candidate.partition,
                type=TYPES[decision.depth],
                pool=examination.pool,
                run_as=examination.run_as,
                initiator_id=f"{self._host}-{os.getpid()}",
                initiator_version=self._version,
            )
            for examination, decision in wanted
        ]
        outcomes = request_compactions(self._db, requests)
        for (_, decision), request, outcome in zip(wanted, requests, outcomes, strict=True):
            if not outcome.accepted:
                tally.skipped += 1
                continue
            tally.requested.append(
                Requested(
                    id=outcome.id,
                    table=request.table,
                    partition=request.partition,
                    type=request.type,
                    reason=decision.reason,
                )
            )
            _log.info(
                "compaction requested",
                id=outcome.id,
                table=str(request.table),
                partition=request.partition,
                type=request.type.name.lower(),
                reason=decision.reason,
            )

    def _record(self, candidate: Candidate, reason: str) -> None:
        """Tell the history, unless the object's newest row says the same: a cycle adds no information by repeating."""
        newest = newest_outcome(self._db, candidate.table, candidate.partition)
        told = newest is not None and newest.state is CompactionState.DID_NOT_INITIATE
        if told and newest is not None and newest.error_message == reason:
            return
        _log.warning("compaction not initiated", table=str(candidate.table), partition=candidate.partition, why=reason)
        record_not_initiated(
            self._db,
            candidate.table,
            candidate.partition,
            # Hive's column wants a type even though none was chosen
            CompactionType.MINOR,
            reason,
            initiator_id=f"{self._host}-{os.getpid()}",
            initiator_version=self._version,
        )

    def _revoke(self) -> list[int]:
        revoked = revoke_timed_out(self._db, timeout_ms=int(self._settings.worker.timeout_s * 1000))
        revoked += revoke_aborted(self._db)
        if not self._looked_for_dead_workers:
            gone = dead_workers(_working(self._db), self._host, self._process_is_alive)
            revoked += revoke_claims(self._db, gone) if gone else []
            self._looked_for_dead_workers = True
        return revoked


def dead_workers(claims: Iterable[Compaction], host: str, process_is_alive: Callable[[int], bool]) -> list[str]:
    """Worker ids `<host>-<pid>.<random>` of this host whose process is gone.

    Hive gives back every claim of the host when a daemon starts, which takes the work of another daemon on the same
    host away. A process that does not exist cannot still be working; one that does may be another program by now, and
    then the claim's transaction times out. Worker ids of Hive name a thread and are left to its own time limit.

    One host name is taken for one space of process ids, and that is not always true: the containers of a Kubernetes pod
    share the name but, without `shareProcessNamespace`, not the ids, so a worker that lives in another container looks
    dead from here. Its claim is fenced and nothing breaks, but its work is lost. The silence of the transaction cannot
    tell the two cases apart: a worker beats every half time-out, minutes by default, and a transaction silent for longer
    is soon aborted anyway. So only the first cycle asks: after a crash and a restart the claim is free at once, a pod
    loses work at most once for each start of its initiator, and a worker that dies alone is left to the time-out.
    """
    gone = []
    for claim in claims:
        place, _, unique = (claim.worker_id or "").rpartition("-")
        pid, dot, _ = unique.partition(".")
        if place == host and dot and pid.isdecimal() and not process_is_alive(int(pid)):
            gone.append(claim.worker_id or "")
    return gone


def delta_counts(measured: Measurements, limits: MetricsSettings) -> dict[DeltaMetric, int]:
    """The counts that reach their threshold, for the metrics of the most crowded tables."""
    thresholds = {
        DeltaMetric.ACTIVE: (measured.deltas, limits.delta_metrics_threshold),
        DeltaMetric.SMALL: (measured.small_deltas(limits.small_delta_pct), limits.delta_metrics_threshold),
        DeltaMetric.OBSOLETE: (measured.obsolete_deltas, limits.obsolete_delta_metrics_threshold),
    }
    return {metric: count for metric, (count, threshold) in thresholds.items() if count >= threshold}


def _process_is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _working(db: Database) -> list[Compaction]:
    return show_compactions(db, filters=CompactionFilter(state=CompactionState.WORKING))
