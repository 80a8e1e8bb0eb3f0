"""The set of deleted rows against a Python set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CorruptFile
from compactor.orc.deletes import DeleteSet
from compactor.orc.reader import Keys
from tests.orc.acid_files import FS, delete, insert, write_events

_IDS = st.builds(RowId, st.integers(1, 4), st.sampled_from([536870912, 536870913, 536936448]), st.integers(0, 12))
_ALL = ValidWriteIdList(table="d.t", high_water=99)


def delete_set(deleted: set[RowId]) -> DeleteSet:
    groups: dict[tuple[int, int], list[int]] = {}
    for row in sorted(deleted):
        groups.setdefault((row.write_id, row.bucket), []).append(row.row_id)
    return DeleteSet({key: np.array(rows, dtype=np.int64) for key, rows in groups.items()})


def keys_of(rows: list[RowId]) -> Keys:
    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    writes = column([r.write_id for r in rows])
    return Keys(
        operation=np.zeros(len(rows), dtype=np.int64),
        write_id=writes,
        bucket=column([r.bucket for r in rows]),
        row_id=column([r.row_id for r in rows]),
        current_write_id=writes,
    )


@given(st.sets(_IDS), st.lists(_IDS))
def test_survivors_are_the_rows_that_are_not_in_the_set(deleted: set[RowId], rows: list[RowId]) -> None:
    assert delete_set(deleted).survivors(keys_of(rows)).tolist() == [r not in deleted for r in rows]


@given(st.sets(_IDS), _IDS, _IDS)
def test_a_range_is_hit_exactly_when_a_deleted_row_lies_in_it(deleted: set[RowId], one: RowId, other: RowId) -> None:
    first, last = min(one, other), max(one, other)
    assert delete_set(deleted).may_hit(first, last) is any(first <= row <= last for row in deleted)


@given(st.sets(_IDS), _IDS)
def test_a_lower_bound_that_is_no_row_hits_no_less(deleted: set[RowId], last: RowId) -> None:
    bound = RowId(last.write_id, -(1 << 62), -(1 << 62))
    expected = any(row.write_id == last.write_id and row <= last for row in deleted)
    assert delete_set(deleted).may_hit(bound, last) is expected


@given(st.lists(st.lists(st.tuples(_IDS, st.integers(1, 6))), min_size=1, max_size=3), st.sets(st.integers(1, 6)))
def test_events_of_files_are_loaded_unless_their_write_id_is_invalid(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[RowId, int]]], aborted: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("deletes")
    for position, events in enumerate(files):
        write_events(folder / str(position), [delete(row, by=by) for row, by in sorted(events)], stripe_rows=3)
    valid = ValidWriteIdList(table="d.t", high_water=5, aborted=frozenset(i for i in aborted if i <= 5))
    loaded = DeleteSet.load(FS, [str(folder / str(i)) for i in range(len(files))], valid)
    expected = {row for events in files for row, by in events if valid.is_valid(by)}
    every = [RowId(w, b, r) for w in range(1, 5) for b in (536870912, 536870913, 536936448) for r in range(13)]
    assert [r for r, alive in zip(every, loaded.survivors(keys_of(every)), strict=True) if not alive] == sorted(
        expected
    )
    assert loaded.count == len(expected)


def test_an_insert_in_a_delete_delta_is_corrupt(tmp_path: Path) -> None:
    write_events(tmp_path / "f", [insert(1, 0, (1, "a"))])
    with pytest.raises(CorruptFile, match="no deletes"):
        DeleteSet.load(FS, [str(tmp_path / "f")], _ALL)


def test_no_files_delete_nothing() -> None:
    empty = DeleteSet.load(FS, [], _ALL)
    assert empty.count == 0
    assert empty.survivors(keys_of([RowId(1, 536870912, 0)])).tolist() == [True]
    assert not empty.may_hit(RowId(0, 0, 0), RowId(9, 1 << 30, 9))
