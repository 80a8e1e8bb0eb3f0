"""What a plan costs and brings, and how past jobs teach what a byte costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.directory import DirectoryState, ListedFile, Listing, Snapshot, directory_state
from compactor.acid.planning import CompactionPlan, Depth, FileFacts, ItemKind, PlanItem, SourceFile
from compactor.acid.price import EVENT_BYTES, OPEN_BYTES, Price, price, scan_of
from compactor.acid.rates import DEFAULTS, JobCost, Rates, fit
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import Part, StripeFacts, StripeRun, StripeUse

ROW = struct_of([("id", "int")])
IDS = ValidWriteIdList(table="db.t", high_water=100)
BASE = "base_0000001/bucket_00000"
ONE, TWO = "delta_0000002_0000002_0000/bucket_00000", "delta_0000003_0000003_0000/bucket_00000"
GONE, MORE_GONE = "delete_delta_0000004_0000004_0000/bucket_00000", "delete_delta_0000005_0000005_0000/bucket_00000"
FILES = {BASE: (1000, 100), ONE: (200, 20), TWO: (300, 30), GONE: (50, 10), MORE_GONE: (70, 5)}
"""path → (bytes, rows)"""


def place(files: Mapping[str, tuple[int, int]]) -> tuple[DirectoryState, Listing, dict[str, FileFacts]]:
    listing = Listing(
        directories=frozenset(path.partition("/")[0] for path in files if "/" in path),
        files=tuple(ListedFile(path=path, size=size) for path, (size, _) in sorted(files.items())),
    )
    snapshot = Snapshot(txns=ValidTxnList(high_water=1000), write_ids=IDS)
    facts = {
        path: FileFacts(rows=rows, row_type=ROW, acid=True, stripes=halves(size, rows))
        for path, (size, rows) in files.items()
    }
    return directory_state(listing, snapshot, whole_ranges=True), listing, facts


def halves(size: int, rows: int) -> tuple[StripeFacts, StripeFacts]:
    return (
        StripeFacts(rows=rows // 2, size=size // 2, trusted=True),
        StripeFacts(rows=rows - rows // 2, size=size - size // 2, trusted=True),
    )


def sources(*paths: str, files: Mapping[str, tuple[int, int]] = FILES) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(path=path, size=files[path][0], rows=files[path][1]) for path in paths)


def rows_item(directory: str, data: Iterable[str], deletes: Iterable[str] = (), *parts: Part) -> PlanItem:
    return PlanItem(
        kind=ItemKind.ROWS,
        output=f"{directory}/bucket_00000",
        bucket=0,
        sources=sources(*data),
        deletes=sources(*deletes),
        parts=parts,
    )


def deletes_item(directory: str, *paths: str, parts: tuple[Part, ...] = ()) -> PlanItem:
    output = f"{directory}/bucket_00000"
    return PlanItem(kind=ItemKind.DELETES, output=output, bucket=0, sources=sources(*paths), parts=parts)


def plan_of(depth: Depth, *items: PlanItem) -> CompactionPlan:
    return CompactionPlan(
        depth=depth,
        location="file:/t",
        row_type=ROW,
        write_ids=IDS,
        directories=tuple(dict.fromkeys(item.output.partition("/")[0] for item in items)),
        items=items,
        full_acid=True,
    )


MAJOR = plan_of(Depth.MAJOR, rows_item("base_0000100_v0000009", (BASE, ONE, TWO), (GONE, MORE_GONE)))
MINOR = plan_of(
    Depth.MINOR,
    rows_item("delta_0000002_0000100_v0000009", (ONE, TWO)),
    deletes_item("delete_delta_0000002_0000100_v0000009", GONE, MORE_GONE),
)


def price_of(plan: CompactionPlan, files: Mapping[str, tuple[int, int]] = FILES) -> Price:
    state, listing, facts = place(files)
    return price(plan, state, listing, facts)


def test_stripes_and_their_bytes_are_counted_by_what_becomes_of_them() -> None:
    item = rows_item(
        "base_0000100_v0000009",
        (BASE, ONE, TWO),
        (GONE, MORE_GONE),
        Part(
            runs=(
                StripeRun(source=0, start=0, stop=1, use=StripeUse.COPY),
                StripeRun(source=0, start=1, stop=2, use=StripeUse.DECODE),
            )
        ),
        Part(
            runs=(
                StripeRun(source=1, start=0, stop=2, use=StripeUse.COALESCE),
                StripeRun(source=2, start=0, stop=2, use=StripeUse.COPY),
            )
        ),
    )
    priced = price_of(plan_of(Depth.MAJOR, item))
    assert (priced.stripes_copied, priced.stripes_decoded, priced.stripes_coalesced) == (3, 1, 2)
    assert (priced.bytes_copied, priced.bytes_encoded) == (500 + 300, 500 + 200)
    assert priced.tasks == 2
    assert (priced.rows_in, priced.delete_events) == (150, 15)


def test_the_delete_events_of_a_minor_are_encoded_anew() -> None:
    ranges = (Part(), Part(), Part())
    minor = replace(MINOR, items=(MINOR.items[0], replace(MINOR.items[1], parts=ranges)))
    priced = price_of(minor)
    assert (priced.bytes_copied, priced.bytes_encoded) == (500, 120)
    assert (priced.rows_in, priced.delete_events, priced.tasks) == (50, 15, 4)


def test_with_every_data_file_a_reader_opens_the_delete_files_of_its_bucket() -> None:
    state, listing, facts = place(FILES | {"delta_0000003_0000003_0000/bucket_00001": (10, 1)})
    scan = scan_of(state, listing, facts)
    assert (scan.directories, scan.files, scan.bytes, scan.delete_events) == (5, 6, 1630, 15)
    assert scan.opens == 3 * (1 + 2) + 1
    assert scan.work == 1630 + 10 * OPEN_BYTES + 15 * EVENT_BYTES


def test_a_major_leaves_one_file_without_the_deleted_rows_and_nothing_to_amplify() -> None:
    after = price_of(MAJOR).after
    assert (after.directories, after.files, after.opens, after.delete_events) == (1, 1, 1, 0)
    assert after.bytes == 1500 * 135 // 150
    assert after.amplification == 1.0


def test_a_minor_leaves_the_base_alone_and_keeps_the_deleted_rows() -> None:
    priced = price_of(MINOR)
    assert (priced.before.directories, priced.before.files, priced.before.opens) == (5, 5, 9)
    assert (priced.after.directories, priced.after.files, priced.after.opens) == (3, 3, 4)
    assert (priced.after.bytes, priced.after.delete_events) == (priced.before.bytes, 15)
    assert 1.0 < priced.after.amplification < priced.before.amplification
    assert priced.work_saved == 5 * OPEN_BYTES


def test_a_minor_of_the_first_deltas_only_leaves_the_others() -> None:
    some = plan_of(Depth.MINOR, rows_item("delta_0000002_0000003_v0000009", (ONE, TWO)))
    after = price_of(some).after
    assert (after.directories, after.files, after.delete_events) == (4, 4, 15)


def test_a_file_without_rows_that_goes_into_nothing_is_gone_afterwards() -> None:
    empty = "delta_0000003_0000003_0001/bucket_00000"
    after = price_of(MINOR, FILES | {empty: (90, 0)}).after
    assert (after.files, after.bytes) == (3, 1620)


def test_original_files_count_as_one_directory() -> None:
    originals = {"000000_0": (400, 40), "000001_0": (400, 40)}
    state, listing, facts = place(originals | {ONE: FILES[ONE]})
    scan = scan_of(state, listing, facts)
    assert (scan.directories, scan.files, scan.opens) == (2, 3, 3)


def test_a_lone_base_and_an_empty_place_are_not_amplified() -> None:
    assert scan_of(*place({BASE: FILES[BASE]})).amplification == 1.0
    assert scan_of(*place({})).amplification == 1.0


def test_a_file_whose_rows_nobody_counted_shrinks_by_nothing() -> None:
    state, listing, facts = place(FILES)
    facts[BASE] = replace(facts[BASE], rows=-1)
    assert price(MAJOR, state, listing, facts).after.bytes == 1500


def test_more_delete_events_than_rows_leave_an_empty_file() -> None:
    files = FILES | {GONE: (50, 1000)}
    item = replace(MAJOR.items[0], deletes=sources(GONE, MORE_GONE, files=files))
    assert price_of(plan_of(Depth.MAJOR, item), files).after.bytes == 0


def job(
    copied: float = 0, encoded: float = 0, *, tasks: int = 8, cores: int = 2, rates: Rates = DEFAULTS, factor: float = 1
) -> JobCost:
    seconds = rates.seconds(bytes_copied=int(copied), bytes_encoded=int(encoded), tasks=tasks, cores=cores)
    return JobCost(
        bytes_copied=int(copied), bytes_encoded=int(encoded), tasks=tasks, cores=cores, seconds=seconds * factor
    )


MIXED = [(c, e) for c in (1e5, 1e7, 1e9, 1e10) for e in (0, 1e6, 1e8, 1e9)]
SLOW = Rates(overhead_s=1.2, copy=250e6, encode=60e6)


def test_a_job_takes_its_overhead_and_the_time_of_its_bytes() -> None:
    assert DEFAULTS.seconds(bytes_copied=2_000_000_000, bytes_encoded=0, tasks=1, cores=2) == pytest.approx(2.3)
    assert DEFAULTS.seconds(bytes_copied=0, bytes_encoded=35_000_000, tasks=8, cores=2) == pytest.approx(1.3)


def test_encoding_is_no_faster_than_its_tasks_allow() -> None:
    assert DEFAULTS.seconds(bytes_copied=0, bytes_encoded=35_000_000, tasks=1, cores=64) == pytest.approx(2.3)


def test_compactions_that_share_a_job_share_its_overhead() -> None:
    prices = [replace(price_of(MAJOR), bytes_copied=copied, tasks=4) for copied in (1_000_000_000, 2_000_000_000)]
    assert JobCost.of(prices, cores=2, seconds=3.5) == JobCost(
        bytes_copied=3_000_000_000, bytes_encoded=0, tasks=8, cores=2, seconds=3.5
    )
    assert DEFAULTS.predict(prices, cores=2) == pytest.approx(3.3)


def test_without_jobs_the_rates_are_the_defaults() -> None:
    assert fit([]) == DEFAULTS


def test_enough_jobs_of_every_kind_teach_all_three_numbers() -> None:
    found = fit([job(c, e, rates=SLOW) for c, e in MIXED * 4])
    assert found.jobs == 64
    assert found.overhead_s == pytest.approx(SLOW.overhead_s, rel=0.15)
    assert found.copy == pytest.approx(SLOW.copy, rel=0.15)
    assert found.encode == pytest.approx(SLOW.encode, rel=0.15)


def test_a_few_jobs_that_waited_for_something_do_not_matter() -> None:
    jobs = [job(c, e, rates=SLOW) for c, e in MIXED * 4]
    stuck = [job(c, e, rates=SLOW, factor=40) for c, e in MIXED[:6]]
    calm, disturbed = fit(jobs), fit(jobs + stuck)
    assert disturbed.copy == pytest.approx(calm.copy, rel=0.15)
    assert disturbed.encode == pytest.approx(calm.encode, rel=0.15)


def test_what_no_job_tells_anything_about_stays_at_its_default() -> None:
    found = fit([job(1000, rates=Rates(overhead_s=2.0))] * 30)
    assert found.overhead_s == pytest.approx(2.0, rel=0.1)
    assert found.copy == pytest.approx(DEFAULTS.copy, rel=0.01)
    assert found.encode == DEFAULTS.encode


def test_one_job_moves_the_rates_only_a_little() -> None:
    found = fit([job(1e10, rates=Rates(copy=10e6))])
    assert DEFAULTS.copy / 4 < found.copy < DEFAULTS.copy


def test_times_on_more_cores_teach_the_rate_of_one() -> None:
    found = fit([job(0, e, tasks=64, cores=cores, rates=SLOW) for e in (1e8, 1e9, 1e10) for cores in (2, 16)] * 5)
    assert found.encode == pytest.approx(SLOW.encode, rel=0.15)


AMOUNT = st.integers(min_value=0, max_value=1 << 50)
ANY_JOB = st.builds(
    JobCost,
    bytes_copied=AMOUNT,
    bytes_encoded=AMOUNT,
    tasks=st.integers(min_value=0, max_value=10_000),
    cores=st.integers(min_value=1, max_value=1000),
    seconds=st.floats(min_value=0, max_value=1e7),
)


@given(st.lists(ANY_JOB, max_size=30))
def test_whatever_was_recorded_the_rates_stay_within_reason(costs: list[JobCost]) -> None:
    found = fit(costs)
    for value, default in (
        (found.overhead_s, DEFAULTS.overhead_s),
        (found.copy, DEFAULTS.copy),
        (found.encode, DEFAULTS.encode),
    ):
        assert math.isfinite(value)
        assert default / 51 < value < default * 51
