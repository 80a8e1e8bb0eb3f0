"""Laying out a column without children: streams, row index and statistics, before compression.

pyarrow's writer (ORC C++) takes the values of a column one by one; whole arrays at a time take a fraction of that. What
comes out is what that writer makes, but for the cuts between runs.

Source: ORC v1 specification, "Row Index".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.runs import Runs, boolean_runs
from compactor.orc.values import Content, NeedsPyarrow, Values, values_of


@dataclass(frozen=True, kw_only=True)
class LaidColumn:
    """A column of a stripe before its streams are compressed.

    kind: Type.Kind. index: its places count bytes of `streams`, which are by Stream.Kind in the order of the stripe.
    """

    kind: int
    encoding: pb.ColumnEncoding
    statistics: pb.ColumnStatistics
    index: pb.RowIndex
    streams: Mapping[pb.Stream.Kind, Content]


def laid_out(array: pa.Array, stride: int) -> LaidColumn | None:
    """A column with at least one row; None when pyarrow's writer has to do it. stride: rows of a row group."""
    try:
        values = values_of(array.drop_null() if array.null_count else array)
        return _indexed(array, values, stride)
    except NeedsPyarrow:
        return None


def _indexed(array: pa.Array, values: Values, stride: int) -> LaidColumn:
    rows = np.arange(0, len(array) + stride, stride).clip(max=len(array))
    streams = dict(values.streams)
    bounds = rows
    present: Runs | None = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        present = boolean_runs(valid)
        streams = {pb.Stream.PRESENT: present.content, **streams}
        bounds = np.concatenate(([0], np.cumsum(valid)))[rows]
    index = pb.RowIndex()
    summaries: list[Any] = []
    for group in range(len(rows) - 1):
        start, stop = int(bounds[group]), int(bounds[group + 1])
        row = int(rows[group])
        places = [*([] if present is None else (*present.place(row // 8), row % 8)), *values.place(start)]
        found = [values.summary(start, stop)] if stop > start else []
        statistics = _described(values, found, stop - start, int(rows[group + 1]) - row)
        index.entry.add(positions=places, statistics=statistics.SerializeToString())
        summaries += found
    return LaidColumn(
        kind=values.kind,
        encoding=values.encoding,
        statistics=_described(values, summaries, int(bounds[-1]), len(array)),
        index=index,
        streams=streams,
    )


def structure(rows: int, stride: int) -> LaidColumn:
    """A struct without nulls, of so many rows: nothing but its row index and statistics."""
    index = pb.RowIndex()
    for start in range(0, rows, stride):
        group = pb.ColumnStatistics(number_of_values=min(stride, rows - start), has_null=False)
        index.entry.add(statistics=group.SerializeToString())
    return LaidColumn(
        kind=pb.Type.STRUCT,
        encoding=pb.ColumnEncoding(kind=pb.ColumnEncoding.DIRECT),
        statistics=pb.ColumnStatistics(number_of_values=rows, has_null=False),
        index=index,
        streams={},
    )


def _described(values: Values, summaries: list[Any], count: int, rows: int) -> pb.ColumnStatistics:
    """Statistics of `rows` rows of which `count` are not null."""
    statistics = pb.ColumnStatistics(number_of_values=count, has_null=count < rows)
    values.describe(values.total(summaries) if summaries else None, statistics)
    return statistics
