"""Compacting again what a compaction wrote over an aborted write: its stripes hold none of it and are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.records import Event
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import StripeUse
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.rebalance import ORC_INPUT_FORMAT
from compactor.jobs.verify import verify_output
from tests.jobs.compacted import direct_results
from tests.orc.acid_files import insert, read_events, write_events
from tests.properties.strategies import pad

COLUMNS = (("pad", "binary"), ("id", "int"))


def events(*write_ids: int) -> list[Event]:
    """Two rows a write id, large enough for a stripe of their own."""
    return [insert(w, i, (pad((w + i) % 8), 10 * w + i)) for w in write_ids for i in range(2)]


def compacted(location: Path) -> tuple[list[StripeUse], list[Event]]:
    """The uses of all stripes of a major compaction, and what it wrote; write id 2 is aborted."""
    target = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=COLUMNS,
        input_format=ORC_INPUT_FORMAT,
        full_acid=True,
        bucketed=False,
    )
    ids = ValidWriteIdList(table="d.t", high_water=5, aborted=frozenset([2]))
    seen = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids)
    made = plan(target, survey(target, seen), seen, Depth.MAJOR, txn_id=50)
    assert isinstance(made, CompactionPlan)
    verify_output(made, direct_results(made))
    (item,) = made.items
    uses = [run.use for part in item.parts for run in part.runs for _ in range(run.start, run.stop)]
    return uses, read_events(location / item.output)


@pytest.fixture
def later(location: Path) -> list[Event]:
    """Another delta, so that there is something to compact."""
    rows = events(5)
    write_events(location / "delta_0000005_0000005_0000/bucket_00000_0", rows, row_type=struct_of(COLUMNS))
    return rows


def test_a_stripe_that_spans_an_aborted_write_and_has_none_of_its_rows_is_copied(
    location: Path, later: list[Event]
) -> None:
    rows = events(1, 3, 4)
    write_events(location / "base_0000004_v0000009/bucket_00000", rows, row_type=struct_of(COLUMNS), stripe_rows=4)
    uses, found = compacted(location)
    assert uses[0] is StripeUse.COPY
    assert found == rows + later


def test_a_stripe_with_rows_of_the_aborted_write_is_decoded(location: Path, later: list[Event]) -> None:
    """As Hive's MergeCompactor copies them."""
    rows = events(1, 2, 3)
    write_events(location / "base_0000004_v0000009/bucket_00000", rows, row_type=struct_of(COLUMNS), stripe_rows=6)
    uses, found = compacted(location)
    assert uses[0] is StripeUse.DECODE
    assert found == events(1, 3) + later
