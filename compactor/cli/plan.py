"""`compactor plan`: what compactions would cost and bring now, and which one the rules choose."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from compactor.acid.directory import Snapshot
from compactor.acid.partition_name import partition_values
from compactor.acid.planning import Depth, Refusal
from compactor.acid.price import Price, Scan
from compactor.acid.rates import Rates
from compactor.cli.installation import Installation
from compactor.cli.render import add_row, duration, print_json, say, size, table
from compactor.cli.trigger import DONE
from compactor.errors import UsageError
from compactor.jobs.planner import CompactionTarget, Survey, survey
from compactor.metastore import catalog, snapshots, writeids
from compactor.metastore.calibration import job_costs, known_rates
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionType
from compactor.service.offers import DEPTHS, Offer, offers, rebalance_offer
from compactor.service.targets import compaction_target, why_never_compacted
from compactor.settings import InitiatorSettings
from initiator.choose import Opinions, choose
from initiator.decide import Initiate, Skip, Thresholds, decide, decide_for_trino, measure, thresholds

_TYPES = {Depth.MINOR: CompactionType.MINOR, Depth.MAJOR: CompactionType.MAJOR}
_RULES = {
    "hive": "Hive's rule asks for",
    "cost": "The price asks for",
    "trino": "Trino needs",
    "initiator": "With these settings the initiator asks for",
}


@dataclass(frozen=True, kw_only=True)
class PlanWish:
    """Which compaction to plan. buckets, order_by: of a rebalance, as in `Wish`."""

    type: CompactionType
    buckets: int | None = None
    order_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A full scan as it is shown. files_opened: delete files count once for every data file of their bucket."""

    directories: int
    files: int
    files_opened: int
    bytes: int
    delete_events: int
    read_amplification: float

    @classmethod
    def of(cls, scan: Scan) -> _Reading:
        return cls(
            directories=scan.directories,
            files=scan.files,
            files_opened=scan.opens,
            bytes=scan.bytes,
            delete_events=scan.delete_events,
            read_amplification=round(scan.amplification, 3),
        )


@dataclass(frozen=True, kw_only=True)
class _PlanRow:
    """A plan as it is shown. output: directories that would be written; after: a full scan then, None if refused."""

    compaction: str
    verdict: str
    files_in: int = 0
    bytes_in: int = 0
    rows_in: int = 0
    delete_events: int = 0
    bytes_copied: int = 0
    bytes_encoded: int = 0
    stripes_copied: int = 0
    stripes_decoded: int = 0
    stripes_coalesced: int = 0
    predicted_seconds: float | None = None
    output: tuple[str, ...] = ()
    after: _Reading | None = None

    @classmethod
    def of(cls, name: str, made: Offer | Refusal, rates: Rates, cores: int) -> _PlanRow:
        if isinstance(made, Refusal):
            return cls(compaction=name, verdict=f"refused: {made.reason}")
        price = made.price
        return cls(
            compaction=name,
            verdict="worth doing",
            files_in=made.plan.files_in,
            bytes_in=made.plan.bytes_in,
            rows_in=price.rows_in,
            delete_events=price.delete_events,
            bytes_copied=price.bytes_copied,
            bytes_encoded=price.bytes_encoded,
            stripes_copied=price.stripes_copied,
            stripes_decoded=price.stripes_decoded,
            stripes_coalesced=price.stripes_coalesced,
            predicted_seconds=round(rates.predict([price], cores=cores), 3),
            output=made.plan.directories,
            after=_Reading.of(price.after),
        )


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What one rule asks for. compaction: None when it asks for nothing."""

    compaction: str | None
    reason: str

    @classmethod
    def of(cls, decision: Initiate | Skip) -> _Choice:
        return cls(compaction=decision.depth.value if isinstance(decision, Initiate) else None, reason=decision.reason)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """Everything that is shown. now: None for what is never compacted. choices: by rule."""

    now: _Reading | None
    rows: tuple[_PlanRow, ...]
    choices: Mapping[str, _Choice]
    cores: int
    rates: Rates


def show_plan(
    installation: Installation, console: Console, name: str, *, wish: PlanWish | None = None, as_json: bool
) -> int:
    """What a minor and a major compaction would do now. wish: only this one; a rebalance is shown only then."""
    text, _, partition = name.partition("/")
    found, partition_name = _find(installation, TableName.parse(text), partition or None)
    target = compaction_target(installation.db, found, partition_name, worker=installation.settings.worker)
    txns = snapshots.valid_txn_list(installation.db)
    ids = writeids.valid_write_ids(installation.db, found.name, txns).for_compaction()
    look = _look(installation, found, partition_name, target, Snapshot(txns=txns, write_ids=ids), wish)
    rows = [row for row in look.rows if wish is None or row.compaction == wish.type.name.lower()]
    if as_json:
        about = {"object": target.name, "location": target.location, "now": look.now}
        print_json(console, about | {"plans": rows, "choices": look.choices})
        return DONE
    say(console, f"{target.name} at {target.location}, up to write id {ids.high_water}")
    if look.now is not None:
        _print_table(console, look.now, rows)
    for row in rows:
        output = f", writes {' and '.join(row.output)}" if row.output else ""
        say(console, f"{row.compaction}: {row.verdict}{output}")
    if any(row.after for row in rows):
        jobs = look.rates.jobs
        learnt = f"from the last {jobs} jobs here" if jobs else "at default rates, as no job is recorded yet"
        say(console, f"Predicted for {look.cores} cores, {learnt}.")
    for rule, choice in look.choices.items():
        say(console, f"{_RULES[rule]} {_words(choice)}.")
    return DONE


def _words(choice: _Choice) -> str:
    return f"{f'a {choice.compaction}' if choice.compaction else 'nothing'}: {choice.reason}"


def _look(
    installation: Installation,
    found: catalog.Table,
    partition: str | None,
    target: CompactionTarget,
    snapshot: Snapshot,
    wish: PlanWish | None,
) -> _Look:
    rates, cores = known_rates(installation.db), _cores(installation)
    reasons = {d: why_never_compacted(found, _TYPES[d], partition) for d in DEPTHS}
    never = {d: Refusal(reason=reason, leftovers=False) for d, reason in reasons.items() if reason}
    made: Mapping[Depth, Offer | Refusal] = never
    now, choices = None, {}
    rows: list[_PlanRow] = []
    if wish is not None and wish.type is CompactionType.REBALANCE:
        offered_rebalance = _rebalance(found, partition, target, snapshot, wish)
        rows.append(_PlanRow.of("rebalance", offered_rebalance, rates, cores))
    if len(never) < len(DEPTHS):
        # Elsewhere there may lie files that cannot be surveyed at all.
        surveyed = survey(target, snapshot)
        offered = offers(target, surveyed, snapshot)
        now, made = _Reading.of(offered.scan), {**offered.of, **never}
        choices = _choices(installation.settings.initiator, found, surveyed, offered.prices, rates)
    rows += (_PlanRow.of(d.value, made[d], rates, cores) for d in DEPTHS)
    return _Look(now=now, rows=tuple(rows), choices=choices, cores=cores, rates=rates)


def _rebalance(
    found: catalog.Table, partition: str | None, target: CompactionTarget, snapshot: Snapshot, wish: PlanWish
) -> Offer | Refusal:
    if never := why_never_compacted(found, CompactionType.REBALANCE, partition):
        return Refusal(reason=never, leftovers=False)
    surveyed = survey(target, snapshot)
    return rebalance_offer(target, surveyed, snapshot, buckets=wish.buckets, order_by=wish.order_by)


def _choices(
    limits: InitiatorSettings, found: catalog.Table, surveyed: Survey, prices: Mapping[Depth, Price], rates: Rates
) -> dict[str, _Choice]:
    """By rule: `hive`, `cost`, `trino` where it needs something, and what an initiator with these settings does."""
    own = thresholds(
        Thresholds(delta_num=limits.delta_num_threshold, delta_pct=limits.delta_pct_threshold), found.parameters
    )
    measured = measure(surveyed.state, surveyed.listing)
    hive = decide(measured, own)
    cost = choose(hive, prices, measured, rates, scans=limits.expected_scans)
    trino = decide_for_trino(surveyed.state, surveyed.listing)
    counted = Opinions(
        hive=hive, cost=cost if limits.choose == "cost" else None, trino=trino if limits.trino_safe else None
    )
    spoken = {"hive": hive, "cost": cost, "trino": trino, "initiator": counted.verdict()}
    return {rule: _Choice.of(decision) for rule, decision in spoken.items() if decision is not None}


def _cores(installation: Installation) -> int:
    """Cores that the last job had; before the first one those of a local Spark."""
    costs = job_costs(installation.db)
    if costs:
        return costs[0].cores
    local = re.fullmatch(r"local\[(\d+)(?:,.*)?\]", installation.settings.spark.master)
    return int(local[1]) if local else os.cpu_count() or 1


def _print_table(console: Console, now: _Reading, rows: Sequence[_PlanRow]) -> None:
    """A line a measure, a column a compaction; what is refused has nothing to show."""
    names = ["now", *(row.compaction for row in rows)]
    made = table("", "", *names, right=names)
    if any(row.after for row in rows):
        for label, field, form in _COSTS:
            add_row(made, label, "", *(form(getattr(row, field)) if row.after else "" for row in rows))
        made.add_section()
    for label, field, form in _READING:
        add_row(made, label, *(form(getattr(r, field)) if r else "" for r in (now, *(row.after for row in rows))))
    console.print(made)


def _count(number: int) -> str:
    return f"{number:,}"


_COSTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("bytes copied", "bytes_copied", size),
    ("bytes re-encoded", "bytes_encoded", size),
    ("stripes copied", "stripes_copied", _count),
    ("stripes decoded", "stripes_decoded", _count),
    ("stripes coalesced", "stripes_coalesced", _count),
    ("delete events read", "delete_events", _count),
    ("predicted time", "predicted_seconds", lambda seconds: duration(round(seconds * 1000))),
)
_READING: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("directories to list", "directories", _count),
    ("files", "files", _count),
    ("files opened by a scan", "files_opened", _count),
    ("bytes to read", "bytes", size),
    ("delete events to hold", "delete_events", _count),
    ("read amplification", "read_amplification", lambda ratio: f"{ratio:.2f}"),
)


def _find(installation: Installation, name: TableName, partition: str | None) -> tuple[catalog.Table, str | None]:
    """The table a user named, and the partition as the catalogue spells it."""
    db = installation.db
    found = catalog.get_table(db, name)
    if found.is_partitioned and partition is None:
        known = ", ".join(p.name for p in catalog.list_partitions(db, name)[:5])
        raise UsageError(f"{name} is partitioned", hint=f"name a partition, as in {name}/{known or 'p=x'}")
    return found, catalog.find_partition(db, name, partition_values(partition)).name if partition else None
