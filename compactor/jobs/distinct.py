"""Distinct values and lengths of columns, counted by Spark tasks that read the files once.

Each task keeps the `_SMALLEST` smallest hashes that it met of every column. What remains of all tasks' hashes tells the
number of distinct values: exactly when there are fewer, else from how densely they lie (k minimum values, a standard
error of 1/sqrt(k), 1.6 %). Memory and what travels to the driver: 32 KB a column and task.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.schema import HiveType
from compactor.jobs.row_hash import Hashes, hash_rows
from compactor.jobs.stretches import Each, Stretch, stretches_of
from compactor.orc.reader import OrcSource
from compactor.storage.filesystem import open_location

_SMALLEST = 4096


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Of one column. values: distinct ones, without null. longest, average_length: characters of text, bytes of
    binary, 0 of anything else; the average is over all rows, a null counting as 0 (Hive's `avg(coalesce(length, 0))`).
    """

    values: int
    longest: int
    average_length: float


@dataclass(frozen=True, kw_only=True)
class _Sketch:
    """smallest: hashes, ascending."""

    rows: int
    smallest: Hashes
    longest: int
    characters: int

    def plus(self, other: _Sketch) -> _Sketch:
        return _Sketch(
            rows=self.rows + other.rows,
            smallest=np.unique(np.concatenate([self.smallest, other.smallest]))[:_SMALLEST],
            longest=max(self.longest, other.longest),
            characters=self.characters + other.characters,
        )

    def distinct(self) -> Distinct:
        count = len(self.smallest)
        if count == _SMALLEST:
            count = round((count - 1) / ((int(self.smallest[-1]) + 1) / 2**64))
        average = self.characters / self.rows if self.rows else 0.0
        return Distinct(values=count, longest=self.longest, average_length=average)


@dataclass(frozen=True, kw_only=True)
class _Task:
    location: str
    stretch: Stretch
    row_type: HiveType
    positions: tuple[int, ...]


def count_distinct(
    each: Each,
    location: str,
    paths: Sequence[str],
    row_type: HiveType,
    wanted: Collection[str],
) -> dict[str, Distinct]:
    """Of the wanted columns of ORC files that hold live rows only.

    each: where to run, such as `OnSpark`. paths: relative to the location. row_type: struct of the table's columns. Raises BeyondArrow for values that
    pyarrow cannot hold, CorruptFile, JobError.
    """
    fs, root = open_location(location)
    positions = tuple(p for p, (name, _) in enumerate(row_type.children) if name in wanted)
    tasks = [
        _Task(location=location, stretch=stretch, row_type=row_type, positions=positions)
        for path in paths
        for stretch in stretches_of(fs, root, path)
    ]
    found = each(tasks, sketches_of, size=lambda task: task.stretch.size)
    names = [row_type.children[p][0] for p in positions]
    if not found:
        return {name: Distinct(values=0, longest=0, average_length=0.0) for name in names}
    return {
        name: reduce(_Sketch.plus, (sketches[at] for sketches in found)).distinct() for at, name in enumerate(names)
    }


def sketches_of(task: _Task) -> list[_Sketch]:
    """On an executor: a sketch of each wanted column of a stretch."""
    fs, root = open_location(task.location)
    total: list[_Sketch] = []
    with OrcSource(fs, f"{root}/{task.stretch.path}") as source:
        for stripe in range(task.stretch.start, task.stretch.stop):
            rows = source.rows(stripe, task.row_type)
            found = [_sketch(rows.field(position)) for position in task.positions]
            total = [one.plus(other) for one, other in zip(total, found, strict=True)] if total else found
    return total


def _sketch(column: pa.Array) -> _Sketch:
    present = column.drop_null()
    lengths = (
        pc.utf8_length(present)
        if pa.types.is_string(column.type)
        else pc.binary_length(present)
        if pa.types.is_binary(column.type)
        else pa.array([], pa.int64())
    )
    return _Sketch(
        rows=len(column),
        smallest=np.unique(hash_rows(present))[:_SMALLEST],
        longest=pc.max(lengths).as_py() or 0,
        characters=pc.sum(lengths).as_py() or 0,
    )
