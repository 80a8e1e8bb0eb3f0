"""Directory states: the rules of AcidUtils.getAcidState, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.directory import (
    DirectoryState,
    ListedFile,
    Listing,
    Snapshot,
    directory_state,
)
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import NotEnoughHistory, UnparsableName


def listing(*names: str, compacted: tuple[str, ...] = ()) -> Listing:
    """Directories by name, each with a data file; a name with a file extension or digits first is a file."""
    directories = {
        n.partition("/")[0] for n in names if "/" in n or n.startswith(("base", "delta", "delete", "_", "."))
    }
    files = [ListedFile(path=n if "/" in n or n not in directories else f"{n}/bucket_00000", size=10) for n in names]
    return Listing(directories=frozenset(directories), files=tuple(files), compacted_bases=frozenset(compacted))


def state(
    *names: str,
    high: int = 100,
    opened: tuple[int, ...] = (),
    aborted: tuple[int, ...] = (),
    open_txns: tuple[int, ...] = (),
    aborted_txns: tuple[int, ...] = (),
    whole_ranges: bool = False,
    compacted: tuple[str, ...] = (),
) -> DirectoryState:
    ids = ValidWriteIdList(table="d.t", high_water=high, open=frozenset(opened), aborted=frozenset(aborted))
    txns = ValidTxnList(high_water=1000, open=frozenset(open_txns), aborted=frozenset(aborted_txns))
    if whole_ranges:
        ids = ids.for_compaction()
    snapshot = Snapshot(txns=txns, write_ids=ids)
    return directory_state(listing(*names, compacted=compacted), snapshot, whole_ranges=whole_ranges)


def current(found: DirectoryState) -> list[str]:
    return ([found.base.name] if found.base else []) + [d.name for d in found.deltas]


# --- bases


def test_the_highest_visible_base_wins_and_the_others_are_obsolete() -> None:
    found = state("base_5", "base_9_v20", "base_7_v15")
    assert current(found) == ["base_9_v20"]
    assert found.obsolete == ("base_5", "base_7_v15")
    assert found.obsolete_bases == ("base_5", "base_7_v15")


def test_a_compacted_base_wins_over_an_insert_overwrite_of_the_same_write_id() -> None:
    assert current(state("base_0000005", "base_0000005_v0000020")) == ["base_0000005_v0000020"]
    assert state("base_0000005", "base_0000005_v0000020").obsolete == ("base_0000005",)


def test_a_base_above_the_snapshot_is_neither_read_nor_obsolete() -> None:
    found = state("base_5_v9", "base_9_v20", high=7)
    assert current(found) == ["base_5_v9"]
    assert found.obsolete == ()


def test_a_compacted_base_with_an_open_write_below_is_not_used() -> None:
    found = state("base_3_v9", "base_7_v20", "delta_4_7_v15", high=8, opened=(5,))
    assert current(found) == ["base_3_v9", "delta_4_7_v15"]


def test_an_insert_overwrite_counts_when_its_own_write_id_is_valid() -> None:
    assert current(state("base_5", high=8, opened=(3,))) == ["base_5"]
    assert current(state("base_5", high=8, opened=(5,))) == []


def test_an_aborted_insert_overwrite_is_aborted() -> None:
    found = state("base_3", "base_5", aborted=(5,))
    assert current(found) == ["base_3"]
    assert found.aborted == ("base_5",)


def test_a_compacted_base_whose_last_write_id_is_aborted_is_used() -> None:
    assert current(state("base_5_v9", aborted=(5,))) == ["base_5_v9"]


def test_a_base_that_hive_2_marked_as_compacted_is_compacted() -> None:
    assert current(state("base_5", aborted=(5,), compacted=("base_5",))) == ["base_5"]
    assert state("base_5", aborted=(5,)).aborted == ("base_5",)


def test_a_snapshot_older_than_the_oldest_compacted_base_is_an_error() -> None:
    with pytest.raises(NotEnoughHistory, match="base_9_v20"):
        state("base_9_v20", "delta_10_10_0000", high=7)


def test_a_snapshot_older_than_the_first_insert_overwrite_is_none() -> None:
    assert current(state("base_9", "delta_1_1_0000", high=7)) == ["delta_1_1_0000"]


# --- visibility


def test_the_output_of_an_open_compaction_does_not_exist() -> None:
    found = state("delta_1_1_0000", "delta_2_2_0000", "base_2_v30", "delta_1_2_v31", open_txns=(30, 31))
    assert current(found) == ["delta_1_1_0000", "delta_2_2_0000"]
    assert (found.obsolete, found.aborted) == ((), ())


def test_the_output_of_a_compaction_of_the_future_does_not_exist() -> None:
    assert current(state("delta_1_1_0000", "base_1_v1001")) == ["delta_1_1_0000"]


def test_the_output_of_an_aborted_compaction_is_aborted() -> None:
    found = state("delta_1_1_0000", "base_1_v30", "delete_delta_1_1_v31", aborted_txns=(30, 31))
    assert current(found) == ["delta_1_1_0000"]
    assert found.aborted == ("base_1_v30", "delete_delta_1_1_v31")


# --- deltas


def test_deltas_above_the_base_are_read_in_order_and_those_below_are_obsolete() -> None:
    found = state("delta_7_7_0000", "base_5_v9", "delta_6_6_0000", "delta_5_5_0000", "delta_1_4")
    assert current(found) == ["base_5_v9", "delta_6_6_0000", "delta_7_7_0000"]
    assert found.obsolete == ("delta_1_4", "delta_5_5_0000")


def test_a_compacted_delta_covers_the_deltas_in_its_range() -> None:
    found = state("delta_1_1_0000", "delta_2_2_0000", "delta_1_2_v9", "delta_3_3_0000", "delete_delta_2_2_0001")
    assert current(found) == ["delta_1_2_v9", "delta_3_3_0000"]
    assert found.obsolete == ("delete_delta_2_2_0001", "delta_1_1_0000", "delta_2_2_0000")


def test_a_compacted_delta_of_one_write_id_covers_its_statements() -> None:
    found = state("delta_1_1_v9", "delta_1_1_0000", "delta_1_1_0001")
    assert current(found) == ["delta_1_1_v9"]
    assert found.obsolete == ("delta_1_1_0000", "delta_1_1_0001")


def test_all_statements_of_a_transaction_are_read() -> None:
    names = ["delete_delta_3_3_0000", "delta_3_3_0000", "delta_3_3_0001", "delete_delta_3_3_0002", "delta_3_3_0002"]
    assert current(state(*names)) == names


def test_a_delta_and_a_delete_delta_of_one_range_are_both_read() -> None:
    found = state("delta_1_5_v9", "delete_delta_1_5_v9")
    assert sorted(current(found)) == ["delete_delta_1_5_v9", "delta_1_5_v9"]
    assert [d.name for d in found.insert_deltas] == ["delta_1_5_v9"]
    assert [d.name for d in found.delete_deltas] == ["delete_delta_1_5_v9"]


def test_of_two_committed_twins_only_the_later_one_is_read() -> None:
    found = state("delta_1_5_v10", "delta_1_5_v12", "delete_delta_1_5_v10", "delete_delta_1_5_v12")
    assert sorted(current(found)) == ["delete_delta_1_5_v12", "delta_1_5_v12"]
    assert found.obsolete == ("delete_delta_1_5_v10", "delta_1_5_v10")


def test_a_streaming_delta_gives_way_to_its_compacted_twin() -> None:
    found = state("delta_1_5", "delta_1_5_v12")
    assert current(found) == ["delta_1_5_v12"]
    assert found.obsolete == ("delta_1_5",)


def test_an_aborted_delta_is_aborted() -> None:
    found = state("delta_1_1_0000", "delta_2_2_0000", "delete_delta_2_2_0000", aborted=(2,))
    assert current(found) == ["delta_1_1_0000"]
    assert found.aborted == ("delete_delta_2_2_0000", "delta_2_2_0000")
    assert not found.uncompacted_aborts


def test_a_partly_aborted_delta_is_read_and_its_aborts_are_remembered() -> None:
    found = state("delta_1_5", aborted=(3,))
    assert current(found) == ["delta_1_5"]
    assert found.uncompacted_aborts


def test_a_covered_delta_does_not_count_as_holding_aborts() -> None:
    assert not state("delta_1_5", "base_5_v9", aborted=(3,)).uncompacted_aborts


def test_an_open_delta_is_neither_read_nor_obsolete() -> None:
    found = state("delta_1_1_0000", "delta_2_2_0000", opened=(2,))
    assert current(found) == ["delta_1_1_0000"]
    assert (found.obsolete, found.aborted) == ((), ())


def test_a_reader_takes_a_delta_that_is_partly_above_its_snapshot() -> None:
    assert current(state("delta_1_5", high=3)) == ["delta_1_5"]


def test_a_compaction_takes_whole_ranges_only() -> None:
    assert current(state("delta_1_2", "delta_3_7", high=5, whole_ranges=True)) == ["delta_1_2"]


def test_a_delta_whose_part_above_the_base_is_invisible_is_left_alone() -> None:
    found = state("base_5", "delta_4_7", high=7, opened=(6, 7))
    assert current(found) == ["base_5"]
    assert found.obsolete == ()


def test_an_open_write_with_an_aborted_one_below_does_not_empty_a_minor_compaction() -> None:
    """Hive filters by the smallest open id here and selects nothing."""
    found = state("delta_1_1_0000", "delta_2_2_0000", "delta_4_4_0000", opened=(4,), aborted=(3,), whole_ranges=True)
    assert current(found) == ["delta_1_1_0000", "delta_2_2_0000"]


# --- originals and names


def test_original_files_are_read_without_a_base_and_obsolete_with_one() -> None:
    names = ["000000_0", "000000_0_copy_1", "1/000000_0", "delta_1_1_0000"]
    before = state(*names)
    assert [f.path for f in before.originals] == ["000000_0", "000000_0_copy_1", "1/000000_0"]
    after = state(*names, "base_1_v9")
    assert after.originals == ()
    assert after.obsolete == ("000000_0", "000000_0_copy_1", "1/000000_0", "delta_1_1_0000")


@pytest.mark.parametrize("name", ["_tmp/000000_0", ".staging/000000_0", "_SUCCESS", "000000_0_flush_length", "x.txt"])
def test_hidden_and_foreign_files_are_no_originals(name: str) -> None:
    assert state(name).originals == ()


def test_the_manifests_of_a_running_direct_insert_are_neither_read_nor_obsolete() -> None:
    manifest = "-tmp.delta_0000002_0000002_0001/000000_0.manifest"
    assert state(manifest).originals == ()
    assert state(manifest, "base_1_v9").obsolete == ()


def test_a_directory_that_only_looks_like_an_acid_one_is_an_error() -> None:
    with pytest.raises(UnparsableName, match="delta_7_3"):
        state("delta_7_3", "base_5_v9")


def test_data_files_leave_out_side_files_hidden_ones_and_empty_ones() -> None:
    names = ("bucket_00001_0", "bucket_00000", "bucket_00000_flush_length", "_orc_acid_version", "sub/.x.crc", "empty")
    files = tuple(ListedFile(path=f"base_1/{n}", size=0 if n == "empty" else 3) for n in names)
    found = Listing(directories=frozenset({"base_1"}), files=files)
    assert [f.name for f in found.data_files("base_1")] == ["bucket_00000", "bucket_00001_0"]
    assert found.bytes_in("base_1") == 6


# --- every write id is read once


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[str], ValidWriteIdList, list[int]]:
    """Deltas of single writes, then compactions of prefixes, some old ones cleaned; and the valid write ids."""
    top = draw(st.integers(1, 9))
    aborted = draw(st.frozensets(st.integers(1, top), max_size=3))
    names = [f"delta_{i}_{i}_0000" for i in range(1, top + 1)]
    for txn in range(draw(st.integers(0, 4))):
        low, high = sorted((draw(st.integers(1, top)), draw(st.integers(1, top))))
        names.append(draw(st.sampled_from([f"base_{high}_v{txn + 1}", f"delta_{low}_{high}_v{txn + 1}"])))
    ids = ValidWriteIdList(table="d.t", high_water=top, aborted=aborted)
    return names, ids, [i for i in range(1, top + 1) if ids.is_valid(i)]


@given(histories())
def test_whatever_was_compacted_the_current_directories_cover_each_valid_write(
    history: tuple[list[str], ValidWriteIdList, list[int]],
) -> None:
    names, ids, valid = history
    found = directory_state(listing(*names), Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids))
    base = found.base.write_id if found.base else 0
    covered = [i for d in found.deltas for i in range(d.min_write_id, d.max_write_id + 1) if i > base]
    assert set(valid) <= set(covered) | set(range(1, base + 1))
    assert not set(current(found)) & set(found.obsolete)
    assert not set(found.aborted) & set(current(found))
