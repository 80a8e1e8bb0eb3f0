"""Which depth a compaction gets when prices decide (`initiator.choose = cost`). Pure.

Hive's thresholds still say *when* an object is compacted; the price says *how*. Deletes that are scattered over a table
touch nearly every stripe, so that a major compaction encodes all of it anew; a minor copies every stripe and merges the
delete events alone.

1. A major compaction that is overdue is done whatever it costs: the delete events are `DEAD_SHARE` of the rows, or the
   deltas `DELTA_SHARE` of the base. So it is put off, but never for good.
2. Else the depth with the largest net gain in core seconds:

       expected scans × work saved a scan / SCAN_RATE  −  predicted seconds on one core

   The work of a scan is that of `acid.price`. Of two equal ones the major wins, since it leaves less to do later.
3. Neither gains anything: nothing is asked for until the thresholds are exceeded with more to gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactor.acid.planning import Depth
from compactor.acid.price import Price
from compactor.acid.rates import Rates
from initiator.decide import Initiate, Measurements, Skip

DEAD_SHARE = 0.1
"""Share of rows that delete events may name before a major compaction is due, as Hive's default for bytes of deltas."""
DELTA_SHARE = 0.5
"""Bytes of deltas, as a share of the base, from which on merging them again and again costs more than a new base."""
SCAN_RATE = 60e6
"""Bytes that a reader decodes in a second of one core, as measured with ZLIB."""


@dataclass(frozen=True, kw_only=True)
class Opinions:
    """What each rule says of an object. cost: None when no price was asked for; trino: None when it reads all right."""

    hive: Initiate | Skip
    cost: Initiate | Skip | None
    trino: Initiate | None

    def verdict(self) -> Initiate | Skip:
        """What is done: Hive's rule or the price's, and whatever Trino needs beyond that."""
        chosen = self.cost or self.hive
        if self.trino is None:
            return chosen
        if isinstance(chosen, Initiate):
            # A major also cures what a minor would.
            depth = Depth.MAJOR if Depth.MAJOR in (chosen.depth, self.trino.depth) else Depth.MINOR
            return Initiate(depth=depth, reason=f"{chosen.reason}; {self.trino.reason}")
        return self.trino


def choose(
    wanted: Initiate | Skip, prices: Mapping[Depth, Price], measured: Measurements, rates: Rates, *, scans: int
) -> Initiate | Skip:
    """The depth to ask for, where Hive's rule says `wanted`.

    prices: of the depths that are worth doing; without any, what is wanted is for the cleaner, and stays as it is.
    scans: full scans that are expected before the next compaction.
    """
    if isinstance(wanted, Skip) or not prices:
        return wanted
    if overdue := _overdue(prices.get(Depth.MAJOR), measured):
        return Initiate(depth=Depth.MAJOR, reason=f"{wanted.reason}; {overdue}")
    gains = {depth: _gain(price, scans) - _cost(price, rates) for depth, price in prices.items()}
    best = max(gains, key=lambda depth: (gains[depth], depth is Depth.MAJOR))
    told = ", ".join(
        f"a {depth.value} costs {_cost(price, rates):.1f} core seconds and saves {_gain(price, scans):.1f}"
        for depth, price in prices.items()
    )
    reason = f"{wanted.reason}; in {scans} scans {told}"
    return Initiate(depth=best, reason=reason) if gains[best] > 0 else Skip(reason=f"put off: {reason}")


def _overdue(major: Price | None, measured: Measurements) -> str:
    """Why a major compaction may wait no longer; empty when it may."""
    if major is None:
        return ""
    if major.delete_events > 0 and major.delete_events >= DEAD_SHARE * major.rows_in:
        return f"{major.delete_events} delete events on {major.rows_in} rows ≥ {DEAD_SHARE:.0%}"
    if measured.base_bytes > 0 and measured.total_delta_bytes >= DELTA_SHARE * measured.base_bytes:
        share = measured.total_delta_bytes / measured.base_bytes
        return f"delta bytes are {share:.0%} of the base ≥ {DELTA_SHARE:.0%}"
    return ""


def _gain(price: Price, scans: int) -> float:
    return scans * price.work_saved / SCAN_RATE


def _cost(price: Price, rates: Rates) -> float:
    return rates.predict([price], cores=1)
