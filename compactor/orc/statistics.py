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
_LONGEST = 1024
_NO_CHARACTERS = (0xD800, 0x110000)


def merge_file_statistics(columns: int, stripes: Sequence[pb.StripeStatistics]) -> list[pb.ColumnStatistics]:
    """File statistics of `columns` columns from those of its stripes, in order."""
    sized = all(any(c.HasField("bytes_on_disk") for c in stripe.col_stats) for stripe in stripes)
    merged: list[pb.ColumnStatistics] = []
    for column in range(columns):
        total = pb.ColumnStatistics(number_of_values=0, has_null=False)
        for position, stripe in enumerate(stripes):
            if position == 0:
                total.CopyFrom(stripe.col_stats[column])
            else:
                _merge(total, stripe.col_stats[column])
        total.ClearField("bytes_on_disk")
        # Java leaves out a size of 0; a stripe without any size is one whose writer did not count.
        if sized and (size := sum(stripe.col_stats[column].bytes_on_disk for stripe in stripes)):
            total.bytes_on_disk = size
        merged.append(total)
    return merged


def complete(stripe: pb.StripeStatistics, bytes_on_disk: Mapping[int, int]) -> None:
    """Make the statistics that the C++ writer gave a stripe those that Java would have.

    bytes_on_disk: by column, of all streams but the indexes. What still differs: the C++ writer takes the fields of a
    struct that is null for nulls, where Java does not count them; sizes of collections are unknown where nothing is
    null (the C++ writer forgets them, Java writes sizes of its batches). Both make readers skip less, never more.
    """
    for column, statistics in enumerate(stripe.col_stats):
        if bytes_on_disk.get(column):
            statistics.bytes_on_disk = bytes_on_disk[column]
        if statistics.HasField("string_statistics"):
            _shorten(statistics.string_statistics)
            if not statistics.number_of_values:
                statistics.string_statistics.ClearField("sum")
        if statistics.HasField("collection_statistics"):
            _forget_unknown(statistics.collection_statistics)


def _shorten(statistics: pb.StringStatistics) -> None:
    """Turn a minimum or maximum of over 1024 bytes into a bound of that length (StringStatisticsImpl.updateString)."""
    for exact, bound, shortened in (
        ("minimum", "lower_bound", _below),
        ("maximum", "upper_bound", _above),
    ):
        value = getattr(statistics, exact)
        if isinstance(value, str) and len(value.encode()) > _LONGEST:
            statistics.ClearField(exact)
            if limit := shortened(value):
                setattr(statistics, bound, limit)


def _below(value: str) -> str:
    """The longest beginning of `value` that has at most 1024 bytes."""
    return value.encode()[:_LONGEST].decode(errors="ignore")


def _above(value: str) -> str:
    """A text that is greater than all that begin as `value` does; none when there is no greater character."""
    beginning = _below(value)
    following = ord(beginning[-1]) + 1
    return beginning[:-1] + chr(following) if following not in _NO_CHARACTERS else ""


def _merge(into: pb.ColumnStatistics, other: pb.ColumnStatistics) -> None:
    had, adds = into.number_of_values, other.number_of_values
    if other.has_null or not other.HasField("has_null"):
        into.has_null = True
    into.number_of_values = had + adds
    children = into.collection_statistics.total_children + other.collection_statistics.total_children
    for name, merge in _MERGERS.items():
        if adds == 0 or not (into.HasField(name) or other.HasField(name)):
            continue
        if had == 0 and other.HasField(name):
            getattr(into, name).CopyFrom(getattr(other, name))
        elif had and into.HasField(name) and other.HasField(name):
            merge(getattr(into, name), getattr(other, name))
        else:
            into.ClearField(name)
    if into.HasField("collection_statistics") and into.collection_statistics.HasField("total_children"):
        # Java's batches have a size even when all their collections are null.
        into.collection_statistics.total_children = children


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
    """The C++ writer forgets the sizes in a stripe without null collections: unknown, though it says 0."""
    for name, pick in (("min_children", min), ("max_children", max)):
        if into.HasField(name) and other.HasField(name):
            setattr(into, name, pick(getattr(into, name), getattr(other, name)))
        else:
            into.ClearField(name)
    _forget_unknown(into)


def _forget_unknown(statistics: pb.CollectionStatistics) -> None:
    if not statistics.HasField("min_children"):
        statistics.ClearField("total_children")


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
