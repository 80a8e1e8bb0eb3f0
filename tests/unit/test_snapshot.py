"""Snapshots: Hive's string forms, and range validity against counting id by id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.snapshot import NO_OPEN, RangeValidity, ValidTxnList, ValidWriteIdList
from compactor.errors import FormatError

_IDS = st.frozensets(st.integers(1, 14), max_size=8)


@st.composite
def write_id_lists(draw: st.DrawFn) -> ValidWriteIdList:
    high = draw(st.integers(0, 14))
    exceptions = draw(_IDS)
    opened = draw(st.frozensets(st.sampled_from(sorted(exceptions)), max_size=8)) if exceptions else frozenset()
    return ValidWriteIdList(
        table="d.t",
        high_water=high,
        open=frozenset(i for i in opened if i <= high),
        aborted=frozenset(i for i in exceptions - opened if i <= high),
    )


def share(ids: list[bool]) -> RangeValidity:
    if all(ids):
        return RangeValidity.ALL
    return RangeValidity.SOME if any(ids) else RangeValidity.NONE


@given(write_id_lists(), st.integers(1, 16), st.integers(0, 6))
def test_range_validity_is_what_counting_the_ids_says(ids: ValidWriteIdList, low: int, width: int) -> None:
    expected = share([ids.is_valid(i) for i in range(low, low + width + 1)])
    assert ids.range_validity(low, low + width) is expected


@given(write_id_lists(), st.integers(1, 16), st.integers(0, 6))
def test_range_aborted_is_what_counting_the_ids_says(ids: ValidWriteIdList, low: int, width: int) -> None:
    assert ids.range_aborted(low, low + width) is share([ids.is_aborted(i) for i in range(low, low + width + 1)])


def test_a_wide_range_is_counted_through_the_exceptions() -> None:
    ids = ValidWriteIdList(table="d.t", high_water=10**12, aborted=frozenset({5}))
    assert ids.range_validity(1, 10**12) is RangeValidity.SOME
    assert ids.range_aborted(1, 10**12) is RangeValidity.SOME


def test_the_part_of_a_range_above_the_high_water_mark_is_not_valid() -> None:
    ids = ValidWriteIdList(table="d.t", high_water=5)
    assert ids.range_validity(4, 6) is RangeValidity.SOME
    assert ids.range_validity(6, 9) is RangeValidity.NONE


def test_a_transaction_list_prints_as_hive_prints_it() -> None:
    txns = ValidTxnList(high_water=12, open=frozenset({7, 9}), aborted=frozenset({3}))
    assert txns.to_string() == "12:7:7,9:3"
    assert ValidTxnList(high_water=12).to_string() == f"12:{NO_OPEN}::"


def test_a_write_id_list_prints_as_hive_prints_it() -> None:
    ids = ValidWriteIdList(table="d.t", high_water=12, open=frozenset({9, 7}), aborted=frozenset({3, 1}))
    assert ids.to_string() == "d.t:12:7:7,9:1,3"
    assert ValidWriteIdList(table="d.t", high_water=0).to_string() == "d.t:0:9223372036854775807::"


@given(write_id_lists())
def test_a_printed_write_id_list_reads_back(ids: ValidWriteIdList) -> None:
    assert ValidWriteIdList.parse(ids.to_string()) == ids


@given(st.integers(0, 20), _IDS)
def test_a_printed_transaction_list_reads_back(high: int, opened: frozenset[int]) -> None:
    txns = ValidTxnList(high_water=high, open=opened)
    assert ValidTxnList.parse(txns.to_string()) == txns


@pytest.mark.parametrize("text", ["", "1:2:3", "x:1::", "5:9:a:", "5:9::1,b", "d.t:5:9::"])
def test_text_that_is_no_transaction_list_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError, match="no snapshot string"):
        ValidTxnList.parse(text)


@pytest.mark.parametrize("text", ["", "5:9::", "d.t:x:1::", "d.t:5:9:1:2:3"])
def test_text_that_is_no_write_id_list_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError, match="no snapshot string"):
        ValidWriteIdList.parse(text)


def test_a_base_with_an_open_write_below_it_is_not_valid() -> None:
    ids = ValidWriteIdList(table="d.t", high_water=9, open=frozenset({4}))
    assert ids.is_valid_base(3)
    assert not ids.is_valid_base(4)
    assert not ids.is_valid_base(7)
    assert not ValidWriteIdList(table="d.t", high_water=9).is_valid_base(10)


def test_a_compaction_stops_below_the_first_open_write() -> None:
    ids = ValidWriteIdList(table="d.t", high_water=9, open=frozenset({6, 8}), aborted=frozenset({2, 7}))
    assert ids.for_compaction() == ValidWriteIdList(table="d.t", high_water=5, aborted=frozenset({2}))


@given(write_id_lists())
def test_a_compaction_sees_no_open_write_and_nothing_a_reader_does_not(ids: ValidWriteIdList) -> None:
    compaction = ids.for_compaction()
    assert not compaction.open
    assert all(ids.is_valid(i) for i in range(1, 16) if compaction.is_valid(i))


@given(write_id_lists(), st.integers(0, 16))
def test_capping_changes_nothing_below_the_cap(ids: ValidWriteIdList, cap: int) -> None:
    capped = ids.capped(cap)
    assert [capped.is_valid(i) for i in range(1, 17)] == [ids.is_valid(i) and i <= cap for i in range(1, 17)]


def test_an_aborted_transaction_is_neither_open_nor_valid() -> None:
    txns = ValidTxnList(high_water=9, open=frozenset({5}), aborted=frozenset({3}))
    assert [txns.is_valid(i) for i in (0, 2, 3, 5, 9, 10)] == [True, True, False, False, True, False]
    assert txns.is_aborted(3)
    assert txns.min_open == 5
