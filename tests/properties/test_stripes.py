"""Random tables, compacted: every row, column, ROW__ID and their order are those of the plain-Python merge.

Outputs are read by pyarrow alone, on whole files.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from pyarrow import orc

from compactor.acid.directory import Snapshot
from compactor.acid.layout import decode_bucket
from compactor.acid.planning import CompactionPlan, Depth, ItemKind, PlanItem, Refusal
from compactor.acid.records import Event, RowId, merge
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidTxnList
from compactor.acid.stripes import StripeUse
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.verify import verify_output
from tests.jobs.compacted import direct_results
from tests.orc.acid_files import insert, read_events, source
from tests.properties.strategies import (
    AcidTable,
    File,
    Row,
    Style,
    acid_tables,
    insert_only_tables,
    read_as,
    write_file,
)

Rows = list[tuple[RowId, Row]]
Check = Callable[[AcidTable, Path], None]
EXAMPLES = [pytest.param(5, id="a few"), pytest.param(100, id="many", marks=pytest.mark.slow)]
PLAIN = Style(codec=1, stripe_rows=2, block=1 << 16, large=False, foreign=False)


def explore(examples: int, check: Check, tables: SearchStrategy[AcidTable] | None = None) -> None:
    """Hold `examples` random tables (full-ACID ones by default), each in a place of its own, against `check`."""

    @given(table=acid_tables() if tables is None else tables)
    @settings(max_examples=examples)
    def explored(table: AcidTable) -> None:
        with tempfile.TemporaryDirectory() as place:
            table.lay_out(Path(place))
            check(table, Path(place))

    explored()


def planned(
    table: AcidTable,
    root: Path,
    depth: Depth,
    *,
    txn_id: int = 50,
    max_num_delta: int = 500,
    seen: int = 99,
    full_acid: bool = True,
) -> CompactionPlan | None:
    """None when there is nothing to gain. seen: transactions above it have not committed."""
    target = CompactionTarget(
        name="d.t",
        location=f"file:{root}",
        columns=table.columns,
        input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        full_acid=full_acid,
        bucketed=False,
        max_num_delta=max_num_delta,
    )
    snapshot = Snapshot(txns=ValidTxnList(high_water=seen), write_ids=table.write_ids)
    made = plan(target, survey(target, snapshot), snapshot, depth, txn_id=txn_id)
    if isinstance(made, Refusal):
        assert made.reason.startswith("nothing to gain")
        return None
    return made


def carried_out(made: CompactionPlan) -> None:
    verify_output(made, direct_results(made))


def events_of(table: AcidTable, made: CompactionPlan, root: Path) -> Iterator[tuple[PlanItem, list[Event]]]:
    """The events of each output with rows as the table's columns show them, held against the file's key index."""
    wanted = struct_of(table.columns)
    for item in made.items:
        with source(root / item.output) as file:
            found = file.tail.row_type
            ends = [file.keys(stripe).at(-1) for stripe in range(file.stripes)]
            assert list(file.tail.key_index() or ()) == ends
        yield (
            item,
            [
                event if event.row is None else replace(event, row=read_as(event.row, found, wanted))
                for event in read_events(root / item.output)
            ],
        )


def rows_of(table: AcidTable, made: CompactionPlan, root: Path) -> Rows:
    """The rows of a base, bucket by bucket; all of them must be inserts of their own write id, in order."""
    rows: Rows = []
    for item, events in events_of(table, made, root):
        assert all((e.operation, e.current_write_id) == (0, e.row_id.write_id) for e in events)
        assert all(decode_bucket(e.row_id.bucket) == item.bucket for e in events)
        rows += [(e.row_id, e.row or ()) for e in events]
    return rows


def oracle(table: AcidTable) -> Rows:
    """The rows that a reader sees, bucket by bucket, as bases hold them."""
    rows = list(merge(table.events(), table.write_ids))
    return sorted(rows, key=lambda row: (decode_bucket(row[0].bucket), row[0]))


def every_stripe_encoded(made: CompactionPlan) -> CompactionPlan:
    """The same where nothing is copied: a stripe that would be has no row to lose."""

    def encoded(item: PlanItem) -> PlanItem:
        return replace(
            item,
            parts=tuple(
                replace(
                    part,
                    runs=tuple(
                        replace(run, use=StripeUse.COALESCE) if run.use is StripeUse.COPY else run for run in part.runs
                    ),
                )
                for part in item.parts
            ),
        )

    return replace(made, items=tuple(map(encoded, made.items)))


def is_delta(file: File) -> bool:
    return file.directory.startswith(("delta_", "delete_delta_"))


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_major_compaction_has_every_row_of_the_oracle_in_order(examples: int) -> None:
    def check(table: AcidTable, root: Path) -> None:
        made = planned(table, root, Depth.MAJOR)
        if made is not None:
            carried_out(made)
            assert rows_of(table, made, root) == oracle(table)

    explore(examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_minor_compaction_keeps_every_event_of_the_deltas(examples: int) -> None:
    def check(table: AcidTable, root: Path) -> None:
        made = planned(table, root, Depth.MINOR)
        if made is None:
            return
        carried_out(made)
        inserts: list[Event] = []
        deletes: list[Event] = []
        for item, events in events_of(table, made, root):
            assert all((e.operation == 2) == (item.kind is ItemKind.DELETES) for e in events)
            kept = [(e.row_id, e.current_write_id) for e in events]
            assert kept == sorted(kept)
            (deletes if item.kind is ItemKind.DELETES else inserts).extend(events)
        valid = [e for e in table.events(of=is_delta) if table.write_ids.is_valid(e.current_write_id)]
        assert sorted(inserts, key=lambda e: e.row_id) == sorted(
            (e for e in valid if e.operation == 0), key=lambda e: e.row_id
        )
        keys = Counter((e.row_id, e.current_write_id) for e in valid if e.operation == 2)
        assert Counter((e.row_id, e.current_write_id) for e in deletes) == keys

    explore(examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_compactions_of_compacted_files_change_nothing(examples: int) -> None:
    """A minor, a major of its output, and a major of that base with one more insert on top."""

    def check(table: AcidTable, root: Path) -> None:
        for txn_id, depth in ((50, Depth.MINOR), (51, Depth.MAJOR)):
            made = planned(table, root, depth, txn_id=txn_id)
            if made is not None:
                carried_out(made)
                if depth is Depth.MAJOR:
                    assert rows_of(table, made, root) == oracle(table)
        top = table.write_ids.high_water + 1
        row = (b"x", *[None] * (len(table.columns) - 1))
        more = File(
            path=f"delta_{top:07d}_{top:07d}_0000/bucket_00000_0",
            events=(insert(top, 0, row), insert(top, 1, row)),
            columns=table.columns,
            style=PLAIN,
        )
        write_file(root / more.path, more)
        later = replace(table, files=(*table.files, more), write_ids=replace(table.write_ids, high_water=top))
        made = planned(later, root, Depth.MAJOR, txn_id=52)
        if made is not None:
            carried_out(made)
            assert rows_of(later, made, root) == oracle(later)

    explore(examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_copied_encoded_and_parted_outputs_are_equal_tables(examples: int) -> None:
    def check(table: AcidTable, root: Path) -> None:
        copied = planned(table, root, Depth.MAJOR, txn_id=50, seen=49)
        if copied is None:
            return
        encoded = planned(table, root, Depth.MAJOR, txn_id=51, seen=49)
        parted = planned(table, root, Depth.MAJOR, txn_id=52, seen=49, max_num_delta=1)
        assert encoded is not None
        assert parted is not None
        plans = [copied, every_stripe_encoded(encoded), parted]
        for made in plans:
            carried_out(made)
        assert not list(root.rglob("_part_*"))
        for first, *others in zip(*(made.items for made in plans), strict=True):
            expected = orc.ORCFile(str(root / first.output)).read()
            for other in others:
                found = orc.ORCFile(str(root / other.output)).read()
                assert found.schema == expected.schema
                assert found.equals(expected)

    explore(examples, check)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_an_insert_only_compaction_has_the_valid_rows_in_order(examples: int) -> None:
    def check(table: AcidTable, root: Path) -> None:
        wanted = struct_of(table.columns)
        expected = [e.row for e in table.events() if table.write_ids.is_valid(e.current_write_id)]
        for txn_id, max_num_delta in ((50, 500), (51, 1)):
            made = planned(
                table, root, Depth.MAJOR, txn_id=txn_id, seen=49, max_num_delta=max_num_delta, full_acid=False
            )
            if made is None:
                return
            carried_out(made)
            (item,) = made.items
            with source(root / item.output) as file:
                found = file.tail.row_type
            rows = orc.ORCFile(str(root / item.output)).read().to_pylist()
            assert [read_as(tuple(row.values()), found, wanted) for row in rows] == expected

    explore(examples, check, insert_only_tables())
