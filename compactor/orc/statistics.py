"""Merging column statistics of stripes into those of a file, from protobuf alone.

The result equals what ORC-Java's ColumnStatisticsImpl.merge writes for the same rows. What is not known on both
sides is dropped, never guessed: a reader trusts statistics when it skips stripes.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactor.orc import orc_proto_pb2 as pb

_INT64 = 1 << 63
_DEFAULT_MIN_NANOS = 1
_DEFAULT_MAX_NANOS = 1_000_000


def merge_file_statistics(columns: int, stripes: Sequence[pb.StripeStatistics]) -> list[pb.ColumnStatistics]:
    """File statistics of `columns` columns from those of its stripes, in order."""
    merged: list[pb.ColumnStatistics] = []
    for column in range(columns):
        total = pb.ColumnStatistics(number_of_values=0, has_null=False)
        for position, stripe in enumerate(stripes):
            if position == 0:
                total.CopyFrom(stripe.col_stats[column])
            else:
                _merge(total, stripe.col_stats[column])
        merged.append(total)
    return merged


def complete(stripe: pb.StripeStatistics, bytes_on_disk: Mapping[int, int]) -> None:
    """Give the statistics of a stripe that the C++ writer made what Java's have."""
    for column, size in bytes_on_disk.items():
        if size:
            stripe.col_stats[column].bytes_on_disk = size


def _merge(into: pb.ColumnStatistics, other: pb.ColumnStatistics) -> None:
    had, adds = into.number_of_values, other.number_of_values
    if other.has_null or not other.HasField("has_null"):
        into.has_null = True
    into.number_of_values = had + adds
    if into.HasField("bytes_on_disk") and other.HasField("bytes_on_disk"):
        into.bytes_on_disk += other.bytes_on_disk
    else:
        into.ClearField("bytes_on_disk")
    if adds == 0:
        return
    for name, merge in _MERGERS.items():
        if not (into.HasField(name) or other.HasField(name)):
            continue
        if had == 0 and other.HasField(name):
            getattr(into, name).CopyFrom(getattr(other, name))
        elif had and into.HasField(name) and other.HasField(name):
            merge(getattr(into, name), getattr(other, name))
        else:
            into.ClearField(name)


def _least_and_greatest(into: Any, other: Any) -> None:
    for name, pick in (("minimum", min), ("maximum", max)):
        if into.HasField(name) and other.HasField(name):
            setattr(into, name, pick(getattr(into, name), getattr(other, name)))
        else:
            into.ClearField(name)


def _integer_sum(into: Any, other: Any) -> None:
    """Java drops the sum once it overflows a long."""
    if into.HasField("sum") and other.HasField("sum") and -_INT64 <= into.sum + other.sum < _INT64:
        into.sum += other.sum
    else:
        into.ClearField("sum")


def _integers(into: Any, other: Any) -> None:
    _least_and_greatest(into, other)
    _integer_sum(into, other)


def _doubles(into: Any, other: Any) -> None:
    _least_and_greatest(into, other)
    if into.HasField("sum") and other.HasField("sum"):
        into.sum += other.sum
    else:
        into.ClearField("sum")


def _strings(into: Any, other: Any) -> None:
    """A value over 1024 bytes is kept as a bound; a bound that is not exact may not become a minimum."""
    low = _pick_bound(into, other, "minimum", "lower_bound", min)
    high = _pick_bound(into, other, "maximum", "upper_bound", lambda *c: max(c, key=lambda b: (b[0], not b[1])))
    _set_bound(into, "minimum", "lower_bound", low)
    _set_bound(into, "maximum", "upper_bound", high)
    _integer_sum(into, other)


def _pick_bound(
    into: Any, other: Any, exact: str, bound: str, pick: Callable[..., tuple[bytes, bool]]
) -> tuple[bytes, bool] | None:
    ours, theirs = _bound(into, exact, bound), _bound(other, exact, bound)
    return pick(ours, theirs) if ours is not None and theirs is not None else None


def _bound(statistics: Any, exact: str, bound: str) -> tuple[bytes, bool] | None:
    for name in (exact, bound):
        if statistics.HasField(name):
            value = getattr(statistics, name)
            # The C++ writer takes a column's bytes as they are; what is no text comes back as bytes, and is no bound.
            return (value.encode(), name == exact) if isinstance(value, str) else None
    return None


def _set_bound(statistics: Any, exact: str, bound: str, value: tuple[bytes, bool] | None) -> None:
    statistics.ClearField(exact)
    statistics.ClearField(bound)
    if value is not None:
        setattr(statistics, exact if value[1] else bound, value[0].decode())


def _buckets(into: Any, other: Any) -> None:
    for position, count in enumerate(other.count):
        into.count[position] += count


def _decimals(into: Any, other: Any) -> None:
    for name, pick in (("minimum", min), ("maximum", max)):
        if into.HasField(name) and other.HasField(name):
            setattr(into, name, pick(getattr(into, name), getattr(other, name), key=decimal.Decimal))
        else:
            into.ClearField(name)
    if into.HasField("sum") and other.HasField("sum"):
        with decimal.localcontext(decimal.Context(prec=60)):
            total = decimal.Decimal(into.sum) + decimal.Decimal(other.sum)
        if len(total.as_tuple().digits) <= 38:
            into.sum = format(total, "f")
            return
    into.ClearField("sum")


def _timestamps(into: Any, other: Any) -> None:
    """Nanoseconds are stored plus one, so that 0 means absent."""
    _least_and_greatest(into, other)
    if not (into.HasField("minimum_utc") and other.HasField("minimum_utc")):
        for name in ("minimum_utc", "maximum_utc", "minimum_nanos", "maximum_nanos"):
            into.ClearField(name)
        return
    if _instant(other, "minimum", _DEFAULT_MIN_NANOS) < _instant(into, "minimum", _DEFAULT_MIN_NANOS):
        _take_instant(into, other, "minimum")
    if _instant(other, "maximum", _DEFAULT_MAX_NANOS) > _instant(into, "maximum", _DEFAULT_MAX_NANOS):
        _take_instant(into, other, "maximum")


def _instant(statistics: Any, side: str, default: int) -> tuple[int, int]:
    return getattr(statistics, f"{side}_utc"), getattr(statistics, f"{side}_nanos") or default


def _take_instant(into: Any, other: Any, side: str) -> None:
    setattr(into, f"{side}_utc", getattr(other, f"{side}_utc"))
    if other.HasField(f"{side}_nanos"):
        setattr(into, f"{side}_nanos", getattr(other, f"{side}_nanos"))
    else:
        into.ClearField(f"{side}_nanos")


def _collections(into: Any, other: Any) -> None:
    """The C++ writer leaves the bounds out of a stripe without null collections: unknown, not 0."""
    for name, pick in (("min_children", min), ("max_children", max)):
        if into.HasField(name) and other.HasField(name):
            setattr(into, name, pick(getattr(into, name), getattr(other, name)))
        else:
            into.ClearField(name)
    into.total_children += other.total_children


_MERGERS: dict[str, Callable[[Any, Any], None]] = {
    "int_statistics": _integers,
    "double_statistics": _doubles,
    "string_statistics": _strings,
    "bucket_statistics": _buckets,
    "decimal_statistics": _decimals,
    "date_statistics": _least_and_greatest,
    "binary_statistics": _integer_sum,
    "timestamp_statistics": _timestamps,
    "collection_statistics": _collections,
}
