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
from compactor.orc.deletes import DeleteSet, DeleteWindow
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


@given(
    st.lists(st.sets(_IDS), max_size=3),
    st.lists(_IDS, unique=True),
    st.integers(1, 5),
    st.integers(1, 6),
    st.booleans(),
)
def test_a_window_that_moves_forward_knows_every_deleted_row_of_each_stripe(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[set[RowId]],
    rows: list[RowId],
    stripe: int,
    events: int,
    limited: bool,
) -> None:
    folder = tmp_path_factory.mktemp("deletes")
    for position, deleted in enumerate(files):
        write_events(folder / str(position), [delete(row, by=5) for row in sorted(deleted)], stripe_rows=2)
    ordered = sorted(rows)
    paths = [str(folder / str(i)) for i in range(len(files))]
    window = DeleteWindow(FS, paths, _ALL, up_to=max(rows) if rows and limited else None, events=events)
    gone = set().union(*files)
    for start in range(0, len(ordered), stripe):
        part = ordered[start : start + stripe]
        held = window.covering(part[0], part[-1])
        assert held.survivors(keys_of(part)).tolist() == [row not in gone for row in part]
        assert held.count <= max(events, sum(part[0] <= row <= part[-1] for row in gone))


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
