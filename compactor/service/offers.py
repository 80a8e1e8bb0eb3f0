"""What the compactions of a place would do now, with their prices; nothing is touched.

`compactor plan` shows it, and an initiator with `choose = cost` decides by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth, FileFacts, Refusal
from compactor.acid.price import Price, Scan, price, price_of_rebalance, scan_of
from compactor.acid.rebalance import RebalancePlan
from compactor.jobs.planner import CompactionTarget, Survey, plan, read_facts, survey
from compactor.jobs.rebalance import plan_rebalance
from compactor.metastore.catalog import Table
from compactor.metastore.compaction import CompactionType
from compactor.metastore.database import Database
from compactor.service.targets import compaction_target, why_never_compacted
from compactor.settings import WorkerSettings

DEPTHS = (Depth.MINOR, Depth.MAJOR)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A compaction that is worth doing."""

    plan: CompactionPlan | RebalancePlan
    price: Price


@dataclass(frozen=True, kw_only=True)
class Offers:
    """scan: a full scan as things are. of: what each depth would do, or why it would be refused."""

    scan: Scan
    of: Mapping[Depth, Offer | Refusal]

    @property
    def prices(self) -> dict[Depth, Price]:
        """Those that are worth doing."""
        return {depth: made.price for depth, made in self.of.items() if isinstance(made, Offer)}


def offers(target: CompactionTarget, surveyed: Survey, snapshot: Snapshot) -> Offers:
    """Plan both depths from tails that are read once; raises as `plan` does."""
    facts = read_facts(target, surveyed, Depth.MAJOR)
    # The transaction that would compact does not exist yet; its id only decides the output's name.
    txn_id = snapshot.txns.high_water + 1
    made = {depth: offer(target, surveyed, snapshot, depth, txn_id=txn_id, facts=facts) for depth in DEPTHS}
    return Offers(scan=scan_of(surveyed.state, surveyed.listing, facts), of=made)


def prices_of(
    db: Database, table: Table, partition: str | None, snapshot: Snapshot, *, worker: WorkerSettings | None = None
) -> dict[Depth, Price]:
    """What the initiator asks: prices of what is worth doing; empty for what is never compacted.

    worker: how the worker would write it; None: the defaults.
    """
    if any(why_never_compacted(table, kind, partition) for kind in (CompactionType.MINOR, CompactionType.MAJOR)):
        return {}
    target = compaction_target(db, table, partition, worker=worker)
    return offers(target, survey(target, snapshot), snapshot).prices


def offer(
    target: CompactionTarget,
    surveyed: Survey,
    snapshot: Snapshot,
    depth: Depth,
    *,
    txn_id: int,
    facts: Mapping[str, FileFacts] | None = None,
) -> Offer | Refusal:
    """A plan with its price; arguments and errors as of `plan`."""
    known = read_facts(target, surveyed, depth) if facts is None else facts
    made = plan(target, surveyed, snapshot, depth, txn_id=txn_id, facts=known)
    if isinstance(made, Refusal):
        return made
    return Offer(plan=made, price=price(made, surveyed.state, surveyed.listing, known))


def rebalance_offer(
    target: CompactionTarget, surveyed: Survey, snapshot: Snapshot, *, buckets: int | None, order_by: str | None
) -> Offer | Refusal:
    """What a rebalance would do; arguments and errors as of `plan_rebalance`."""
    facts = read_facts(target, surveyed, Depth.MAJOR)
    made = plan_rebalance(
        target,
        surveyed,
        snapshot,
        buckets=buckets,
        order_by=order_by,
        txn_id=snapshot.txns.high_water + 1,
        compression=target.codec,
        facts=facts,
    )
    if isinstance(made, Refusal):
        return made
    return Offer(plan=made, price=price_of_rebalance(made, surveyed.state, surveyed.listing, facts))
