"""The worker's cycle: step 1, the claim, and step 5, the Spark job; the other steps are called from here.

1. Claim and prepare requests until one is large, the queue is empty, or the batch is full.
2. Write the small ones in one Spark job, because a job costs more than a small compaction; a large one alone.
3. Verify and publish each. One that fails, fails alone: when the shared job breaks as a whole, its compactions run
   again one by one, which is safe because a task's output is a function of its plan.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import structlog

from compactor.acid.planning import CompactionPlan
from compactor.acid.rates import JobCost
from compactor.acid.rebalance import RebalancePlan
from compactor.errors import CommitOutcomeUnknown, CompactorError, DatabaseUnavailable
from compactor.jobs.compaction import Job
from compactor.jobs.engine import Engine
from compactor.jobs.spark_wish import SparkWish
from compactor.metastore.calibration import known_rates, record_cost
from compactor.metastore.compaction import Compaction
from compactor.orc.rewrite import ItemResult
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from compactor.worker.ending import Endings
from compactor.worker.metastore import WorkerMetastore
from compactor.worker.preparing import Preparing
from compactor.worker.publishing import Publishing
from compactor.worker.work import BatchResult, Outcome, PlannedWork, Step, WorkerResult

_log = structlog.get_logger(__name__)
_GATHER_SECONDS = 5.0
"""Those that are ready wait no longer than this for others to share their job."""
SMALL_BYTES = 16 << 20
"""A compaction that reads no more than this is over in less time than a Spark job takes to start."""


class Worker:
    """Carries out compactions.

    engine: where the data plane runs. host: as in worker ids. on_progress: (compaction, tasks done, tasks
    in all) of a job that has one compaction. at_step: called after each step; tests stop or kill the process there.
    """

    def __init__(
        self,
        *,
        metastore: WorkerMetastore,
        engine: Engine,
        settings: Settings,
        metrics: Metrics,
        host: str,
        version: str,
        stop: StopRequest,
        on_progress: Callable[[Compaction, int, int], None] = lambda *_: None,
        at_step: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._metastore, self._engine, self._settings, self._metrics = metastore, engine, settings, metrics
        self._host, self._version, self._stop = host, version, stop
        self._on_progress, self._at_step = on_progress, at_step
        self._endings = Endings(metastore=metastore, stop=stop)
        self._preparing = Preparing(
            metastore=metastore,
            runner=engine.runner,
            settings=settings,
            host=host,
            stop=stop,
            endings=self._endings,
            at_step=at_step,
        )
        self._publishing = Publishing(
            metastore=metastore, engine=engine, settings=settings, metrics=metrics, at_step=at_step
        )
        for kind in ("major", "minor", "rebalance"):
            for outcome in (Outcome.PUBLISHED, Outcome.REFUSED, Outcome.LEFT_TO_CLEANER, Outcome.FENCED):
                # A series that appears with its first event hides that event from increase().
                metrics.compactions.labels(kind, outcome.value, "")

    def run_once(self) -> WorkerResult:
        """One request, from claim to publication; Outcome.IDLE when there is none."""
        results = self._cycle(limit=1).results
        return results[0] if results else WorkerResult(outcome=Outcome.IDLE)

    def run_batch(self) -> BatchResult:
        """As many requests as share a Spark job well, in the order of the queue."""
        return self._cycle(limit=self._settings.worker.batch)

    def _cycle(self, limit: int) -> BatchResult:
        batch = _Batch(limit=limit)
        try:
            self._gather(batch)
            for group in batch.groups():
                self._carry_out(group, batch)
        finally:
            batch.close()
        if batch.unknown:
            raise batch.unknown[0]
        return BatchResult(results=tuple(batch.results))

    def _gather(self, batch: _Batch) -> None:
        """Steps 1 to 4 of requests that go well together: small ones, and at most one that is large."""
        deadline = time.monotonic() + _GATHER_SECONDS
        while batch.has_room and time.monotonic() < deadline and not (batch.claimed and self._stop.draining.is_set()):
            try:
                claim = self._claim()
                if claim is None:
                    return
                batch.claimed[claim.id] = time.monotonic()
                with _logged(claim):
                    prepared = self._preparing.prepare(claim)
            except CompactorError as error:
                # What is gathered already is not given up because the next claim failed.
                batch.unknown.append(error)
                return
            if isinstance(prepared, WorkerResult):
                self._ended(prepared, batch)
            elif isinstance(prepared.plan, CompactionPlan) and prepared.plan.bytes_in <= SMALL_BYTES:
                batch.small.append(prepared)
            else:
                batch.large.append(prepared)

    def _claim(self) -> Compaction | None:
        worker = self._settings.worker
        claim = self._metastore.claim(
            worker_id=f"{self._host}-{os.getpid()}.{secrets.token_hex(4)}",
            worker_version=self._version,
            pools=worker.pools or None,
            pool_timeout_ms=int(worker.pool_timeout_s * 1000),
        )
        if claim is not None:
            self._at_step(Step.CLAIMED)
            _log.info(
                "compaction claimed",
                compaction=claim.id,
                object=claim.object_name,
                type=claim.type.name.lower(),
                worker=claim.worker_id,
            )
        return claim

    def _carry_out(self, group: Sequence[PlannedWork], batch: _Batch) -> None:
        """Steps 5 to 8 of compactions that share a Spark job."""
        for planned, outcome in zip(group, self._write(group), strict=True):
            try:
                with _logged(planned.work.claim):
                    self._ended(self._finish(planned, outcome), batch)
            except CompactorError as error:
                batch.unknown.append(error)

    def _write(self, group: Sequence[PlannedWork]) -> list[list[ItemResult] | Exception]:
        """Step 5: for each compaction what its tasks did, or why they did not."""
        alone = len(group) == 1
        first = group[0].work
        name = first.group if alone else f"{self._host}-compactor-{len(group)} compactions from {first.claim.id} on"
        kind = first.claim.type.name.lower()
        description = f"{kind} compaction {first.claim.id}" if alone else f"{len(group)} small compactions"
        files = sum(planned.plan.files_in for planned in group)
        started = time.monotonic()
        try:
            job_id = self._engine.runner.job_id()
            self._metastore.record_job([planned.work.claim for planned in group], job_id)
            with self._stop.on_interrupt(lambda: self._engine.runner.cancel(name)):
                # Starting the engine takes a while, and cancelling a job that has not begun does nothing.
                self._stop.check()
                outcomes = self._run(group, name=name, description=f"{description}, {files} files")
        except Exception as error:  # noqa: BLE001 -- each compaction ends by it, none is left without an end
            if alone or self._stop.interrupting.is_set():
                return [error] * len(group)
            self._metrics.retries.labels("shared job").inc()
            _log.warning("the shared Spark job failed, its compactions run one by one", job=name, error=str(error))
            return [outcome for planned in group for outcome in self._write([planned])]
        self._account(group, time.monotonic() - started)
        return list(outcomes)

    def _run(
        self, group: Sequence[PlannedWork], *, name: str, description: str
    ) -> Sequence[list[ItemResult] | CompactorError]:
        """The work itself. A rebalance is always alone."""
        first = group[0]

        def progress(done: int, total: int) -> None:
            if len(group) == 1:
                self._on_progress(first.work.claim, done, total)

        if isinstance(first.plan, RebalancePlan):

            def step() -> None:
                self._stop.check()
                first.work.heartbeat.check()

            wish = first.work.wish
            return [
                self._engine.rebalance(
                    first.plan, group=name, description=description, wish=wish, step=step, progress=progress
                )
            ]
        jobs = [Job(plan=p.plan, wish=p.work.wish) for p in group if isinstance(p.plan, CompactionPlan)]
        return self._engine.runner.run(jobs, group=name, description=description, progress=progress)

    def _account(self, group: Sequence[PlannedWork], seconds: float) -> None:
        """What a job took, beside what was predicted: the next prediction learns from it."""
        for planned in group:
            self._metrics.job_seconds.labels(planned.work.claim.type.name.lower()).observe(seconds / len(group))
        prices, db = [planned.price for planned in group if planned.price is not None], self._metastore.database
        if not prices or db is None:
            return
        try:
            cores = self._engine.cores()
            predicted = known_rates(db).predict(prices, cores=cores)
            record_cost(db, JobCost.of(prices, cores=cores, seconds=seconds))
        except CompactorError as error:
            # The job is done; a prediction is no reason to give it up.
            _log.warning("the job's cost is not recorded", error=error.message)
            return
        self._metrics.job_predicted_seconds.inc(predicted)
        _log.info("job done", seconds=round(seconds, 2), predicted_seconds=round(predicted, 2), compactions=len(group))

    def _finish(self, planned: PlannedWork, outcome: list[ItemResult] | Exception) -> WorkerResult:
        """Steps 6 to 8, or the end that an error leads to."""
        try:
            if isinstance(outcome, Exception):
                return self._endings.by_error(planned.work, outcome)
            self._at_step(Step.WRITTEN)
            return self._publishing.publish(planned, outcome)
        except (DatabaseUnavailable, CommitOutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 -- whatever went wrong, the row must say so and the txn must end
            return self._endings.by_error(planned.work, error)
        finally:
            planned.work.held.close()

    def _ended(self, result: WorkerResult, batch: _Batch) -> None:
        batch.results.append(result)
        if result.compaction is not None:
            kind = result.compaction.type.name.lower()
            seconds = time.monotonic() - batch.claimed[result.compaction.id]
            self._metrics.worker_cycle.labels(kind).observe(seconds)
            self._metrics.compactions.labels(kind, result.outcome.value, result.error).inc()


@dataclass(kw_only=True)
class _Batch:
    """The requests of one cycle. claimed: monotonic seconds, by id. unknown: ends that the database did not confirm."""

    limit: int
    claimed: dict[int, float] = field(default_factory=dict)
    small: list[PlannedWork] = field(default_factory=list)
    large: list[PlannedWork] = field(default_factory=list)
    results: list[WorkerResult] = field(default_factory=list)
    unknown: list[CompactorError] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        return len(self.claimed) < self.limit and not self.large

    def groups(self) -> list[list[PlannedWork]]:
        """Those that run in one Spark job: small ones with the same wish; the large one by itself."""
        by_wish: dict[SparkWish, list[PlannedWork]] = {}
        for planned in self.small:
            by_wish.setdefault(planned.work.wish, []).append(planned)
        return [*by_wish.values(), *([planned] for planned in self.large)]

    def close(self) -> None:
        """No heartbeat outlives the cycle, whatever ended it."""
        for planned in (*self.small, *self.large):
            planned.work.held.close()


def _logged(claim: Compaction) -> AbstractContextManager[None]:
    return structlog.contextvars.bound_contextvars(compaction=claim.id, object=claim.object_name)
