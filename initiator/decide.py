"""Whether a table or partition gets a compaction, and which. Pure: measured values in, a decision with its reason out.

1. `eligible`: may this object be compacted automatically at all?
2. `breaker`: did the last attempts all fail, so that another one would only burn resources?
3. `thresholds`: the installation's limits, overridden by the table's.
4. `decide`: aborted writes first, then size, then number of deltas; every comparison is strict, as Hive's is.
5. `decide_for_trino`: what Trino would read wrong until it is compacted, which Hive's rules know nothing of.

Every outcome carries a sentence with the measured values, for `explain`, the history and the log.
Sources: Hive `InitiatorBase` (isEligibleForCompaction, checkForCompaction, determineCompactionType), `TableOptimizer`,
`CheckFailedCompactionsHandler`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, Listing
from compactor.acid.planning import Depth
from compactor.acid.trino import unseen_base, unseen_in_deltas
from compactor.errors import ConfigError

NO_AUTO_COMPACTION = "no_auto_compaction"
REPLICATION_PENDING = "hive.repl.first.inc.pending"
DELTA_NUM_OVERRIDE = "compactorthreshold.hive.compactor.delta.num.threshold"
DELTA_PCT_OVERRIDE = "compactorthreshold.hive.compactor.delta.pct.threshold"


@dataclass(frozen=True, kw_only=True)
class Initiate:
    """Ask for a compaction of this depth."""

    depth: Depth
    reason: str


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Leave the object alone in this cycle; nobody has to do anything about it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class DidNotInitiate:
    """Leave the object alone and tell the operator: the reason belongs into the history (state 'a')."""

    reason: str


Decision = Initiate | Skip | DidNotInitiate


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """What the catalogue says about a candidate.

    dynamic_partitions: the candidate is a partitioned table as a whole, which only aborted dynamic-partition inserts
    make it. compact_insert_only: whether this installation compacts insert-only tables.
    """

    database_parameters: Mapping[str, str]
    table_parameters: Mapping[str, str]
    transactional: bool
    insert_only: bool
    dynamic_partitions: bool
    compact_insert_only: bool


@dataclass(frozen=True, kw_only=True)
class AbortFacts:
    """Aborted writes of an object against the thresholds; the texts name the limits, e.g. "1000" and "12 h"."""

    too_many: bool = False
    has_old: bool = False
    count_limit: int
    age_limit_s: float


@dataclass(frozen=True, kw_only=True)
class PastCompaction:
    """One finished compaction. enqueue_time_ms: epoch ms, None when it is not known."""

    failed: bool
    enqueue_time_ms: int | None


@dataclass(frozen=True, kw_only=True)
class BreakerLimits:
    """failures: so many failures in a row stop the automatic requests. retry_after_s: until so long; ≤ 0: for good."""

    failures: int
    retry_after_s: float


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """delta_num: delta directories that are still fine. delta_pct: fraction of the base that deltas may reach."""

    delta_num: int
    delta_pct: float


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """A location as a compaction that starts now would find it. Sizes in bytes of data files.

    base_bytes: of the base, or of the original files when there is none. delta_bytes: bytes of each current delta
    directory, delete deltas among them. obsolete_bases, obsolete_deltas: entries that wait for the cleaner.
    """

    base_bytes: int
    delta_bytes: tuple[int, ...]
    has_base: bool
    originals: int
    obsolete_bases: int
    obsolete_deltas: int

    @property
    def deltas(self) -> int:
        return len(self.delta_bytes)

    @property
    def total_delta_bytes(self) -> int:
        return sum(self.delta_bytes)

    def small_deltas(self, fraction: float) -> int:
        """Deltas smaller than this fraction of the base (DeltaFilesMetricReporter); none while there is no base."""
        return sum(size < fraction * self.base_bytes for size in self.delta_bytes)


def eligible(facts: ObjectFacts, *, has_old_abort: bool = False) -> Skip | None:
    """None when the object may be compacted automatically (isEligibleForCompaction)."""
    for owner, parameters in (("database", facts.database_parameters), ("table", facts.table_parameters)):
        if _is_true(parameters.get(REPLICATION_PENDING, "")):
            return Skip(reason=f"the {owner} waits for its first incremental replication ({REPLICATION_PENDING})")
    if not facts.transactional:
        return Skip(reason="the table is not transactional")
    if forbidden := _no_auto_compaction(facts):
        return forbidden
    if facts.insert_only and not facts.compact_insert_only:
        return Skip(reason="insert-only tables are not compacted here (initiator.compact_insert_only = false)")
    if facts.dynamic_partitions and not has_old_abort:
        return Skip(reason="dynamic-partition writes are compacted in their partitions")
    return None


def breaker(newest_first: Sequence[PastCompaction], limits: BreakerLimits, *, now_ms: int) -> DidNotInitiate | None:
    """Stop after failures in a row, until the newest of them is old enough (CheckFailedCompactionsHandler).

    newest_first: finished compactions that succeeded or failed. now_ms: epoch ms of the database's clock.
    """
    last = newest_first[: limits.failures]
    if len(last) < limits.failures or not all(past.failed for past in last):
        return None
    newest_ms = max(past.enqueue_time_ms or 0 for past in last)
    if limits.retry_after_s > 0 and now_ms - newest_ms > limits.retry_after_s * 1000:
        return None
    again = (
        f"it is tried again {_duration(limits.retry_after_s)} after the newest of them"
        if limits.retry_after_s > 0
        else "it is not tried again by itself"
    )
    return DidNotInitiate(
        reason=f"the last {len(last)} compactions failed, {limits.failures} in a row are the limit; {again}. "
        "A compaction that is asked for by hand is not held back"
    )


def thresholds(defaults: Thresholds, parameters: Mapping[str, str]) -> Thresholds:
    """The limits of one table: its parameters win over the installation's.

    Raises ConfigError when a parameter is no number that makes sense as a limit.
    """
    number, fraction = parameters.get(DELTA_NUM_OVERRIDE), parameters.get(DELTA_PCT_OVERRIDE)
    return Thresholds(
        delta_num=defaults.delta_num if number is None else _delta_num(number),
        delta_pct=defaults.delta_pct if fraction is None else _delta_pct(fraction),
    )


def measure(state: DirectoryState, listing: Listing) -> Measurements:
    """What the decision and the delta metrics need of a directory state."""
    original_bytes = sum(f.size for f in state.originals)
    return Measurements(
        base_bytes=original_bytes if state.base is None else listing.bytes_in(state.base.name),
        delta_bytes=tuple(listing.bytes_in(delta.name) for delta in state.deltas),
        has_base=state.base is not None,
        originals=len(state.originals),
        obsolete_bases=len(state.obsolete_bases),
        obsolete_deltas=sum(name.startswith(("delta_", "delete_delta_")) for name in state.obsolete),
    )


def decide_on_aborts(aborts: AbortFacts) -> Initiate | None:
    """Too many aborted writes → major, old ones → minor; neither needs a look at the files."""
    if aborts.too_many:
        return Initiate(depth=Depth.MAJOR, reason=f"more than {aborts.count_limit} aborted transactions")
    if aborts.has_old:
        age = _duration(aborts.age_limit_s)
        return Initiate(depth=Depth.MINOR, reason=f"an aborted transaction is older than {age}")
    return None


def decide(measured: Measurements, limits: Thresholds) -> Initiate | Skip:
    """Size first, then number (determineCompactionType).

    A minor compaction is always possible here: files of LOAD DATA inside a delta get the row ids Hive gives them, and
    original files are left alone, so Hive's "minor unsupported" does not exist.
    """
    base, deltas = measured.base_bytes, measured.total_delta_bytes
    without_base = base == 0 and deltas > 0
    share = deltas / base if base > 0 else math.nan
    if share > limits.delta_pct:
        return Initiate(
            depth=Depth.MAJOR, reason=f"delta bytes are {_percent(share)} of the base > {_percent(limits.delta_pct)}"
        )
    if deltas == 0 and measured.obsolete_bases > 0:
        return Initiate(depth=Depth.MAJOR, reason=f"{measured.obsolete_bases} older base(s) besides the present one")
    if measured.deltas > limits.delta_num:
        number = f"{measured.deltas} deltas > {limits.delta_num}"
        if without_base:
            state = "an empty base" if measured.has_base else "no base"
            return Initiate(depth=Depth.MAJOR, reason=f"{number} and {state}")
        return Initiate(depth=Depth.MINOR, reason=number)
    size = "no base" if math.isnan(share) else f"delta bytes are {_percent(share)} of the base"
    return Skip(
        reason=f"{measured.deltas} deltas ≤ {limits.delta_num}, {size}"
        + ("" if math.isnan(share) else f" ≤ {_percent(limits.delta_pct)}")
    )


def decide_for_trino(state: DirectoryState, listing: Listing) -> Initiate | None:
    """The compaction that makes Trino read what Hive reads; None when it does already."""
    if reason := unseen_base(state, listing):
        return Initiate(depth=Depth.MAJOR, reason=reason)
    if reason := unseen_in_deltas(state, listing):
        return Initiate(depth=Depth.MINOR, reason=reason)
    return None


def _no_auto_compaction(facts: ObjectFacts) -> Skip | None:
    """A value on the database wins over the table's, even false over true (CompactorUtil.isNoAutoCompactSet)."""
    for owner, parameters in (("database", facts.database_parameters), ("table", facts.table_parameters)):
        value = parameters.get(NO_AUTO_COMPACTION, parameters.get(NO_AUTO_COMPACTION.upper()))
        if value is not None:
            return Skip(reason=f"{NO_AUTO_COMPACTION} is set on the {owner}") if _is_true(value) else None
    return None


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"


def _delta_num(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise _bad_override(DELTA_NUM_OVERRIDE, text, "a whole number, 0 or more")
    return number


def _delta_pct(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not (math.isfinite(fraction) and fraction >= 0):
        raise _bad_override(DELTA_PCT_OVERRIDE, text, "a fraction such as 0.1, 0 or more")
    return fraction


def _bad_override(key: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(
        f"table property {key} is {value!r}; allowed: {allowed}", hint="correct it with ALTER TABLE … SET TBLPROPERTIES"
    )


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.4g} %"


def _duration(seconds: float) -> str:
    """The largest unit that fits without a fraction: `7 d`, `12 h`, `90 s`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:g} s"
