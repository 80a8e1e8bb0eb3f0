"""Merged statistics: those of several stripes against those a writer makes of the same rows in one stripe."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.encode import encode
from compactor.orc.statistics import merge_file_statistics

_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "i": (pa.int64(), st.integers(-(10**12), 10**12)),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.float64(), st.integers(-1000, 1000).map(float)),
    "s": (pa.string(), st.text("aäz☃", max_size=4)),
    "n": (pa.decimal128(20, 3), st.integers(-(10**9), 10**9).map(lambda n: decimal.Decimal(n).scaleb(-3))),
    "t": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "x": (pa.binary(), st.binary(max_size=3)),
    "l": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    "m": (pa.timestamp("ns"), st.datetimes(dt.datetime(1980, 1, 1), dt.datetime(2100, 1, 1))),  # noqa: DTZ001
}
_ROWS = st.lists(st.fixed_dictionaries({n: st.none() | s for n, (_, s) in _COLUMNS.items()}), min_size=1, max_size=6)


def stripe_statistics(rows: list[dict[str, object]]) -> pb.StripeStatistics:
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in _COLUMNS.items()])
    table = pa.Table.from_pylist(rows, schema=schema)
    return encode(table, compression=pb.NONE, block_size=1 << 18).statistics


def comparable(statistics: pb.ColumnStatistics) -> dict[str, object]:
    """What must be equal whoever computed it: decimals are compared as numbers, not as their notations."""
    found: dict[str, object] = {"values": statistics.number_of_values, "null": statistics.has_null}
    for field, value in statistics.ListFields():
        # The C++ writer counts the elements of collections only where there are nulls among them.
        if field.name.endswith("_statistics") and field.name[:10] != "collection" and statistics.number_of_values:
            for inner, content in value.ListFields():
                number = decimal.Decimal(content) if field.name == "decimal_statistics" else content
                found[f"{field.name}.{inner.name}"] = list(content) if inner.name == "count" else number
    return found


@given(st.lists(_ROWS, min_size=1, max_size=3))
@settings(max_examples=25)
def test_merged_statistics_are_those_of_the_rows_in_one_stripe(stripes: list[list[dict[str, object]]]) -> None:
    parts = [stripe_statistics(rows) for rows in stripes]
    columns = len(parts[0].col_stats)
    whole = stripe_statistics([row for rows in stripes for row in rows])
    merged = merge_file_statistics(columns, parts)
    assert [comparable(m) for m in merged] == [comparable(w) for w in whole.col_stats]


def test_merging_does_not_change_the_stripes() -> None:
    parts = [stripe_statistics([{"i": i, "s": "x"}]) for i in range(3)]
    before = [p.SerializeToString() for p in parts]
    merge_file_statistics(len(parts[0].col_stats), parts)
    assert [p.SerializeToString() for p in parts] == before


def merged(*columns: pb.ColumnStatistics) -> pb.ColumnStatistics:
    return merge_file_statistics(1, [pb.StripeStatistics(col_stats=[c]) for c in columns])[0]


def integers(low: int, high: int, total: int | None) -> pb.ColumnStatistics:
    inner = pb.IntegerStatistics(minimum=low, maximum=high)
    if total is not None:
        inner.sum = total
    return pb.ColumnStatistics(number_of_values=2, has_null=False, int_statistics=inner)


def test_an_integer_sum_that_overflows_is_dropped() -> None:
    found = merged(integers(1, 5, (1 << 63) - 1), integers(-2, 3, 1)).int_statistics
    assert (found.minimum, found.maximum, found.HasField("sum")) == (-2, 5, False)


def test_an_unknown_sum_stays_unknown() -> None:
    assert not merged(integers(1, 5, None), integers(1, 5, 3), integers(1, 5, 3)).int_statistics.HasField("sum")


def strings(**bounds: str) -> pb.ColumnStatistics:
    return pb.ColumnStatistics(number_of_values=1, has_null=False, string_statistics=pb.StringStatistics(**bounds))


def test_a_bound_may_not_become_a_minimum() -> None:
    found = merged(strings(lower_bound="aaa", upper_bound="zzz"), strings(minimum="b", maximum="c")).string_statistics
    assert (found.lower_bound, found.upper_bound) == ("aaa", "zzz")
    assert not found.HasField("minimum")
    assert not found.HasField("maximum")


def test_an_exact_value_below_every_bound_is_the_minimum() -> None:
    found = merged(strings(lower_bound="m", upper_bound="n"), strings(minimum="a", maximum="z")).string_statistics
    assert (found.minimum, found.maximum) == ("a", "z")
    assert not found.HasField("lower_bound")
    assert not found.HasField("upper_bound")


def test_strings_are_compared_by_their_bytes() -> None:
    """As Java's Text does; UTF-16 would put an emoji before U+FFFD."""
    found = merged(strings(minimum="\ufffd", maximum="\ufffd"), strings(minimum="😀", maximum="😀")).string_statistics
    assert (found.minimum, found.maximum) == ("\ufffd", "😀")


def test_bounds_that_are_no_text_are_dropped() -> None:
    garbage = pb.StringStatistics.FromString(b"\n\x02\xff\xfe\x12\x02\xff\xff")
    column = pb.ColumnStatistics(number_of_values=1, has_null=False, string_statistics=garbage)
    found = merged(column, strings(minimum="a", maximum="b")).string_statistics
    assert not found.HasField("minimum")
    assert not found.HasField("maximum")


def decimals(low: str, high: str, total: str) -> pb.ColumnStatistics:
    inner = pb.DecimalStatistics(minimum=low, maximum=high, sum=total)
    return pb.ColumnStatistics(number_of_values=1, has_null=False, decimal_statistics=inner)


def test_decimals_are_compared_as_numbers() -> None:
    found = merged(decimals("9.5", "10", "19.5"), decimals("-10", "9.75", "-0.25")).decimal_statistics
    assert (found.minimum, found.maximum, decimal.Decimal(found.sum)) == ("-10", "10", decimal.Decimal("19.25"))


def test_a_decimal_sum_over_38_digits_is_dropped() -> None:
    big = "9" * 38
    assert not merged(decimals(big, big, big), decimals(big, big, big)).decimal_statistics.HasField("sum")


def instants(low: tuple[int, int], high: tuple[int, int]) -> pb.ColumnStatistics:
    """(milliseconds, nanoseconds plus one)."""
    inner = pb.TimestampStatistics(minimum_utc=low[0], minimum_nanos=low[1], maximum_utc=high[0], maximum_nanos=high[1])
    return pb.ColumnStatistics(number_of_values=1, has_null=False, timestamp_statistics=inner)


@pytest.mark.parametrize("order", [1, -1])
def test_timestamps_of_one_millisecond_are_told_apart_by_their_nanoseconds(order: int) -> None:
    parts = [instants((5, 3), (9, 8)), instants((5, 2), (9, 400))][::order]
    found = merged(*parts).timestamp_statistics
    assert (found.minimum_utc, found.minimum_nanos, found.maximum_utc, found.maximum_nanos) == (5, 2, 9, 400)


def test_a_timestamp_without_utc_bounds_has_none_after_merging() -> None:
    old = pb.ColumnStatistics(
        number_of_values=1, has_null=False, timestamp_statistics=pb.TimestampStatistics(minimum=1, maximum=2)
    )
    found = merged(instants((5, 3), (9, 8)), old).timestamp_statistics
    assert not found.HasField("minimum_utc")
    assert not found.HasField("maximum_nanos")


def collections(**counts: int) -> pb.ColumnStatistics:
    inner = pb.CollectionStatistics(**counts)
    return pb.ColumnStatistics(number_of_values=1, has_null=False, collection_statistics=inner)


def test_sizes_of_collections_are_merged_only_when_both_sides_know() -> None:
    both = merged(
        collections(min_children=2, max_children=3, total_children=5),
        collections(min_children=1, max_children=2, total_children=3),
    ).collection_statistics
    assert (both.min_children, both.max_children, both.total_children) == (1, 3, 8)
    one = merged(collections(min_children=2, max_children=3), collections(total_children=0)).collection_statistics
    assert not one.HasField("min_children")
    assert not one.HasField("max_children")
    assert not one.HasField("total_children")


def test_sizes_that_the_writer_forgot_are_unknown() -> None:
    (_, lists, _) = stripe_of({"l": [[1, 2], [3]]}, pa.list_(pa.int32()))
    assert lists.HasField("collection_statistics")
    assert not lists.collection_statistics.HasField("total_children")


def stripe_of(column: dict[str, list[object]], kind: pa.DataType) -> list[pb.ColumnStatistics]:
    ((name, values),) = column.items()
    table = pa.table({name: pa.array(values, kind)})
    return list(encode(table, compression=pb.NONE, block_size=1 << 18).statistics.col_stats)


def sized(*sizes: int) -> pb.StripeStatistics:
    columns = [pb.ColumnStatistics(number_of_values=1, has_null=False) for _ in sizes]
    for column, size in zip(columns, sizes, strict=True):
        if size:
            column.bytes_on_disk = size
    return pb.StripeStatistics(col_stats=columns)


def test_bytes_on_disk_add_up_and_a_missing_size_is_0() -> None:
    found = merge_file_statistics(3, [sized(0, 5, 0), sized(0, 6, 7)])
    assert [c.bytes_on_disk for c in found] == [0, 11, 7]
    assert not found[0].HasField("bytes_on_disk")


def test_bytes_on_disk_are_unknown_when_a_stripe_tells_none() -> None:
    found = merge_file_statistics(2, [sized(0, 5), sized(0, 0)])
    assert not any(c.HasField("bytes_on_disk") for c in found)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("a" * 1024, None, None),
        ("a" * 1025, "a" * 1024, "a" * 1023 + "b"),
        ("é" * 600, "é" * 512, "é" * 511 + "ê"),
        ("ab" + "☃" * 400, "ab" + "☃" * 340, "ab" + "☃" * 339 + "☄"),
        ("a" * 1020 + "\U0010ffff" * 2, "a" * 1020 + "\U0010ffff", None),
        ("a" * 1021 + "\ud7ff" * 2, "a" * 1021 + "\ud7ff", None),
    ],
)
def test_a_text_of_over_1024_bytes_is_kept_as_a_bound(value: str, low: str | None, high: str | None) -> None:
    found = stripe_of({"s": [value]}, pa.string())[1].string_statistics
    assert found.sum == len(value.encode())
    assert (found.minimum, found.maximum) == (("", "") if low else (value, value))
    assert (found.lower_bound or None, found.upper_bound or None) == (low, high)


def test_a_stripe_of_nulls_changes_nothing_but_the_nulls() -> None:
    nulls = pb.ColumnStatistics(number_of_values=0, has_null=True)
    for parts in ((integers(1, 5, 6), nulls), (nulls, integers(1, 5, 6))):
        found = merged(*parts)
        assert (found.number_of_values, found.has_null) == (2, True)
        assert (found.int_statistics.minimum, found.int_statistics.sum) == (1, 6)


def test_a_writer_that_does_not_tell_of_nulls_may_have_some() -> None:
    silent = pb.ColumnStatistics(number_of_values=1)
    assert merged(integers(1, 5, 6), silent).has_null


def test_bytes_on_disk_are_added_only_when_both_sides_know() -> None:
    known = pb.ColumnStatistics(number_of_values=1, has_null=False, bytes_on_disk=7)
    unknown = pb.ColumnStatistics(number_of_values=1, has_null=False)
    assert merged(known, known).bytes_on_disk == 14
    assert not merged(known, unknown).HasField("bytes_on_disk")


def test_statistics_of_no_stripes_count_nothing() -> None:
    assert [(s.number_of_values, s.has_null) for s in merge_file_statistics(2, [])] == [(0, False), (0, False)]
