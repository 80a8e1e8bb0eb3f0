"""What a worker is at: a claim on its way through the steps, and the ways in which it can end."""

from __future__ import annotations

import enum
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from compactor.acid.planning import CompactionPlan
from compactor.acid.price import Price
from compactor.acid.rebalance import RebalancePlan
from compactor.jobs.planner import CompactionTarget, Survey
from compactor.jobs.spark_wish import SparkWish
from compactor.metastore.compaction import Compaction
from compactor.orc.rewrite import ItemResult
from compactor.service.heartbeat import Heartbeat


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
    """How a claim ended."""

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
    """What became of one request.

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
class BatchResult:
    """What one cycle of the daemon did: the requests it took, in the order of the queue; none when it was empty."""

    results: tuple[WorkerResult, ...]

    @property
    def did_anything(self) -> bool:
        return bool(self.results)

    @property
    def failed(self) -> bool:
        return any(result.outcome is Outcome.FAILED for result in self.results)

    def describe(self) -> str:
        if len(self.results) < 2:
            return (self.results or (WorkerResult(outcome=Outcome.IDLE),))[0].describe()
        numbers = Counter(result.outcome.value for result in self.results)
        return f"{len(self.results)} compactions: " + ", ".join(f"{n} {outcome}" for outcome, n in numbers.items())


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claim that has its transaction.

    group: the name that its Spark job has when it runs alone. wish: how that job is to run.
    held: the heartbeat and all else that ends with the work; `close` it whatever happens.
    """

    claim: Compaction
    target: CompactionTarget
    txn_id: int
    heartbeat: Heartbeat
    group: str
    wish: SparkWish
    user: str
    held: ExitStack


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """Work that knows what lies there and what it will write. price: None for a rebalance."""

    work: Work
    surveyed: Survey
    plan: CompactionPlan | RebalancePlan
    price: Price | None = None
