"""What becomes of each stripe, and how the work is cut into parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.layout import encode_bucket
from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.stripes import (
    PART_BYTES,
    PART_EVENTS,
    SMALL_STRIPE_BYTES,
    Part,
    StripedSource,
    StripeFacts,
    StripeRun,
    StripeUse,
    key_ranges,
    parts_of,
    uses_of,
)

COPY, DECODE, COALESCE = StripeUse.COPY, StripeUse.DECODE, StripeUse.COALESCE
_ALL = ValidWriteIdList(table="d.t", high_water=1000)
_BIG, _SMALL = 8 << 20, 1000
_B0 = encode_bucket(0)


def stripe(write_id: int, *, size: int = _BIG, start: int = 0, rows: int = 100) -> StripeFacts:
    """A stripe of a file that Hive wrote: `rows` inserts of one write id from row id `start` on."""
    return StripeFacts(
        rows=rows,
        size=size,
        trusted=True,
        first=RowId(write_id, _B0, start),
        last=RowId(write_id, _B0, start + rows - 1),
        write_ids=(write_id, write_id),
        inserts_only=True,
    )


def source(
    *stripes: StripeFacts, fits: bool = True, hits: Sequence[int] | None = (), end: RowId | None = None
) -> StripedSource:
    """Hits are 0 where nothing else is said; None: nobody looked."""
    known = None if hits is None else tuple(hits) or (0,) * len(stripes)
    return StripedSource(stripes=stripes, fits=fits, hits=known, end=end)


def uses(*sources: StripedSource, write_ids: ValidWriteIdList = _ALL, acid: bool = True) -> list[StripeUse]:
    return [use for of_source in uses_of(sources, write_ids, acid=acid) for use in of_source]


def test_large_trusted_stripes_are_copied() -> None:
    assert uses(source(stripe(1), stripe(1, start=100)), source(stripe(2))) == [COPY] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"trusted": False},
        {"inserts_only": False},
        {"write_ids": None},
        {"write_ids": (2, 1001)},
        {"first": None},
        {"first": RowId(1, _B0, 99)},
    ],
    ids=["untrusted", "not only inserts", "write ids unknown", "above the high water mark", "no bound", "overlaps"],
)
def test_a_stripe_that_may_not_stand_as_it_is_is_decoded(change: dict[str, object]) -> None:
    doubtful = dataclasses.replace(stripe(2), **change)  # type: ignore[arg-type]
    assert uses(source(stripe(1)), source(doubtful), source(stripe(3))) == [COPY, DECODE, COPY]


def test_a_stripe_of_a_file_that_does_not_fit_is_decoded() -> None:
    assert uses(source(stripe(1)), source(stripe(2), fits=False)) == [COPY, DECODE]


def test_only_stripes_that_deletes_hit_are_decoded() -> None:
    three = [stripe(1, start=100 * i) for i in range(3)]
    assert uses(source(*three, hits=(0, 2, 0))) == [COPY, DECODE, COPY]


def test_where_nobody_looked_for_deletes_every_stripe_is_decoded() -> None:
    assert uses(source(stripe(1), hits=None)) == [DECODE]


@pytest.mark.parametrize("gap", ["open", "aborted"])
def test_an_invalid_write_id_inside_a_streaming_stripe_has_it_decoded(gap: str) -> None:
    missing = frozenset({3, 9})
    ids = dataclasses.replace(_ALL, open=missing) if gap == "open" else dataclasses.replace(_ALL, aborted=missing)
    streamed = dataclasses.replace(stripe(2), write_ids=(2, 4), last=RowId(4, _B0, 5))
    below = dataclasses.replace(stripe(5), write_ids=(5, 8), last=RowId(8, _B0, 5))
    assert uses(source(streamed), source(below), source(stripe(9)), write_ids=ids) == [DECODE, COPY, DECODE]


def test_after_a_stripe_whose_end_nobody_knows_the_next_one_is_decoded() -> None:
    unknown = dataclasses.replace(stripe(1), trusted=False, first=None, last=None)
    assert uses(source(unknown), source(stripe(2), stripe(2, start=100))) == [DECODE, DECODE, COPY]


def test_after_a_file_with_synthetic_row_ids_the_next_one_is_copied() -> None:
    plain = StripeFacts(rows=100, size=_BIG, trusted=True)
    original = source(plain, plain, fits=False, end=RowId(0, _B0, 199))
    assert uses(original, source(stripe(1))) == [DECODE, DECODE, COPY]


def test_a_file_that_starts_before_the_end_of_a_synthetic_one_is_decoded() -> None:
    loaded = source(StripeFacts(rows=9, size=_BIG, trusted=True), fits=False, end=RowId(5, _B0, 8))
    assert uses(loaded, source(stripe(4))) == [DECODE, DECODE]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([_SMALL, _SMALL], [COALESCE, COALESCE]),
        ([_BIG, _SMALL, _BIG], [COPY, COPY, COPY]),
        ([_SMALL], [COPY]),
        ([_BIG, _SMALL, _SMALL], [COPY, COALESCE, COALESCE]),
        ([SMALL_STRIPE_BYTES, SMALL_STRIPE_BYTES - 1], [COPY, COPY]),
    ],
)
def test_small_stripes_are_joined_when_they_have_a_neighbour_to_join(
    sizes: list[int], expected: list[StripeUse]
) -> None:
    assert uses(*(source(stripe(i + 1, size=size)) for i, size in enumerate(sizes))) == expected


def test_a_small_stripe_joins_a_neighbour_that_is_decoded() -> None:
    assert uses(source(stripe(1, size=_SMALL)), source(stripe(2), hits=(1,))) == [COALESCE, DECODE]


def test_stripes_without_row_ids_need_neither_bounds_nor_write_ids() -> None:
    plain = StripeFacts(rows=9, size=_BIG, trusted=True)
    untrusted = StripeFacts(rows=9, size=_BIG, trusted=False)
    assert uses(source(plain, untrusted, plain), acid=False) == [COPY, DECODE, COPY]


def cut(*sources: StripedSource, max_files: int = 500) -> tuple[Part, ...]:
    return parts_of(sources, _ALL, acid=True, max_files=max_files)


def big_file(stripes: int, hit: set[int], *, write_id: int = 1) -> StripedSource:
    facts = [stripe(write_id, start=100 * i) for i in range(stripes)]
    return source(*facts, hits=[int(i in hit) for i in range(stripes)])


def test_little_work_is_one_part_whatever_is_copied() -> None:
    (part,) = cut(big_file(100, {50, 51}))
    assert part.runs == (
        StripeRun(source=0, start=0, stop=50, use=COPY),
        StripeRun(source=0, start=50, stop=52, use=DECODE),
        StripeRun(source=0, start=52, stop=100, use=COPY),
    )


def test_an_item_without_sources_has_one_empty_part() -> None:
    assert cut() == (Part(),)


def test_much_work_is_cut_into_equal_parts() -> None:
    parts = cut(big_file(20, set(range(20))))
    assert [sum(r.stop - r.start for r in p.runs) for p in parts] == [7, 7, 6]


def test_a_long_stretch_of_copies_is_a_part_of_its_own() -> None:
    parts = cut(big_file(30, set(range(10)) | set(range(20, 30))))
    assert [[(r.use, r.stop - r.start) for r in p.runs] for p in parts] == [
        [(DECODE, 7)],
        [(DECODE, 3)],
        [(COPY, 10)],
        [(DECODE, 7)],
        [(DECODE, 3)],
    ]


def test_short_stretches_of_copies_do_not_end_a_part() -> None:
    parts = cut(big_file(40, set(range(0, 40, 2))))
    assert [sum(r.stop - r.start for r in p.runs if r.use is DECODE) for p in parts] == [7, 7, 6]


def test_no_part_reads_more_files_than_allowed() -> None:
    """Hive's partial minors, as stretches of one output."""
    tiny = [source(stripe(i + 1, size=_SMALL)) for i in range(1001)]
    parts = cut(*tiny, max_files=500)
    assert [len({r.source for r in p.runs}) for p in parts] == [500, 500, 1]


def test_files_that_are_only_copied_are_cut_by_number_too() -> None:
    parts = cut(*(big_file(2, set(), write_id=i + 1) for i in range(5)), max_files=2)
    assert [len(p.runs) for p in parts] == [2, 2, 1]


_sources = st.lists(
    st.lists(st.tuples(st.integers(1, 3 * PART_BYTES // 2), st.booleans()), max_size=8), min_size=0, max_size=12
)


@given(shape=_sources, max_files=st.integers(1, 5))
def test_parts_cover_every_stripe_once_in_order(shape: list[list[tuple[int, bool]]], max_files: int) -> None:
    sources = [
        source(
            *(stripe(n + 1, size=size, start=100 * i) for i, (size, _) in enumerate(stripes)),
            hits=[int(hit) for _, hit in stripes],
        )
        for n, stripes in enumerate(shape)
    ]
    parts = cut(*sources, max_files=max_files)
    covered = [(r.source, i) for p in parts for r in p.runs for i in range(r.start, r.stop)]
    assert covered == [(n, i) for n, stripes in enumerate(shape) for i in range(len(stripes))]
    assert all(len({r.source for r in p.runs}) <= max_files for p in parts)
    assert len(parts) == 1 or all(p.runs for p in parts)
    for part in parts:
        work = [
            sources[r.source].stripes[i].size for r in part.runs if r.use is not COPY for i in range(r.start, r.stop)
        ]
        assert sum(work[:-1]) < PART_BYTES


def marks(*keys: int, events: int) -> list[tuple[RowId, int]]:
    return [(RowId(1, _B0, key), events) for key in keys]


def test_few_delete_events_are_one_range() -> None:
    assert key_ranges(marks(5, 9, events=PART_EVENTS // 2)) == (Part(),)
    assert key_ranges([]) == (Part(),)


def test_many_delete_events_are_cut_into_ranges_that_follow_each_other() -> None:
    parts = key_ranges(marks(*range(30), events=PART_EVENTS // 10))
    assert [(p.after and p.after.row_id, p.up_to and p.up_to.row_id) for p in parts] == [(None, 9), (9, 19), (19, None)]


def test_scattered_delete_files_are_cut_where_their_events_lie() -> None:
    """Ten files that each span the table: cutting at their last keys would leave nearly all in one range."""
    scattered = [mark for n in range(10) for mark in marks(*range(n, 1000, 10), events=PART_EVENTS // 500)]
    parts = key_ranges(scattered)
    assert [p.up_to and p.up_to.row_id for p in parts] == [499, None]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, PART_EVENTS)), max_size=30))
def test_ranges_of_delete_events_ascend_and_leave_no_gap(found: list[tuple[int, int]]) -> None:
    parts = key_ranges([(RowId(1, _B0, key), events) for key, events in found])
    assert parts[0].after is None
    assert parts[-1].up_to is None
    cuts = [p.up_to for p in parts[:-1]]
    assert cuts == [p.after for p in parts[1:]]
    assert cuts == sorted(set(cuts), key=lambda k: k or RowId(0, 0, 0))
