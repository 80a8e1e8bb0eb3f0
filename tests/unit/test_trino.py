"""What Trino reads wrongly: deletes under names with attempt ids, bases without a visible file, rows in folders."""

from __future__ import annotations

import pytest

from compactor.acid.directory import DirectoryState, ListedFile, Listing, Snapshot, directory_state
from compactor.acid.planning import Depth, Refusal, worth_doing
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.trino import trino_blind, unseen_base, unseen_deletes, unseen_in_deltas


def found(*paths: str, empty: tuple[str, ...] = ()) -> tuple[DirectoryState, Listing]:
    """The state of a location with files of 100 bytes (0 after a `!`) and directories without a file."""
    files = tuple(ListedFile(path=p.removesuffix("!"), size=0 if p.endswith("!") else 100) for p in paths)
    listing = Listing(directories=frozenset({f.directory for f in files if f.directory} | set(empty)), files=files)
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=50))
    return directory_state(listing, snapshot, whole_ranges=True), listing


def verdict(depth: Depth, *paths: str) -> Refusal | None:
    return worth_doing(depth, *found(*paths))


_D1, _D2 = "delta_1_1_0000/bucket_00000_0", "delta_2_2_0000/bucket_00000_0"
_HIDDEN, _SEEN = "delete_delta_2_2_0000/bucket_00000_0", "delete_delta_2_2_0000/bucket_00000"
_EMPTY_BASE = "base_3_v9/_orc_acid_version"


def test_deletes_in_a_file_with_an_attempt_id_are_not_seen() -> None:
    assert unseen_deletes(*found(_D1, _HIDDEN)) == (
        f"Trino does not find the deletes in {_HIDDEN}, whose name has an attempt id"
    )


@pytest.mark.parametrize("paths", [(_D1,), (_D1, _SEEN), ("base_3_v9/bucket_00000", _HIDDEN)])
def test_deletes_that_are_found_or_were_applied_blind_nobody(paths: tuple[str, ...]) -> None:
    assert not trino_blind(*found(*paths))


@pytest.mark.parametrize("paths", [(_D1, _HIDDEN), (_HIDDEN,)], ids=["one delta + one delete delta", "a lone one"])
@pytest.mark.parametrize("depth", list(Depth))
def test_unseen_deletes_are_worth_what_hive_would_refuse(depth: Depth, paths: tuple[str, ...]) -> None:
    assert verdict(depth, *paths) is None


@pytest.mark.parametrize(
    ("depth", "paths"), [(Depth.MINOR, (_D1, _SEEN)), (Depth.MINOR, (_SEEN,)), (Depth.MAJOR, (_SEEN,))]
)
def test_deletes_that_trino_sees_are_worth_what_hive_says(depth: Depth, paths: tuple[str, ...]) -> None:
    assert verdict(depth, *paths) is not None


@pytest.mark.parametrize("older", [_D1, "000000_0", "base_2_v8/bucket_00000"])
@pytest.mark.parametrize("inside", ["_orc_acid_version", "_metadata_acid", ".hidden/bucket_00000"])
def test_a_base_without_a_visible_file_shows_what_it_replaced(older: str, inside: str) -> None:
    state, listing = found(older, f"base_3_v9/{inside}")
    assert unseen_base(state, listing) == (
        "Trino does not see base_3_v9, which has no visible file, and reads what it replaced"
    )
    assert worth_doing(Depth.MAJOR, state, listing) is None


def test_an_unseen_base_is_not_cured_by_a_minor_compaction() -> None:
    assert verdict(Depth.MINOR, _D1, _EMPTY_BASE) is not None


@pytest.mark.parametrize("file", ["bucket_00000", "bucket_00000!"], ids=["with bytes", "without"])
def test_a_base_with_a_visible_file_is_seen(file: str) -> None:
    assert not unseen_base(*found(_D1, f"base_3_v9/{file}"))


def test_an_unseen_base_with_nothing_older_hides_nothing() -> None:
    state, listing = found(_EMPTY_BASE)
    assert not unseen_base(state, listing)
    assert worth_doing(Depth.MAJOR, state, listing) is not None
    assert not unseen_base(*found(_EMPTY_BASE, "delta_4_4_0000/bucket_00000_0"))


def test_a_table_without_a_base_is_read_right() -> None:
    assert not trino_blind(*found(_D1, _D2))


_UNION = tuple(f"delta_4_4_0000/HIVE_UNION_SUBDIR_{n}/000000_0" for n in (1, 2))


@pytest.mark.parametrize("older", [(), (_D1,)], ids=["a lone delta", "beside another"])
@pytest.mark.parametrize("depth", list(Depth))
def test_rows_in_folders_of_a_delta_are_worth_a_compaction(depth: Depth, older: tuple[str, ...]) -> None:
    state, listing = found(*older, *_UNION)
    assert unseen_in_deltas(state, listing) == (f"Trino does not read {_UNION[0]}, which stands in a folder of its own")
    assert worth_doing(depth, state, listing) is None


def test_rows_in_folders_of_a_base_are_worth_a_major_compaction_only() -> None:
    state, listing = found("base_4/HIVE_UNION_SUBDIR_1/000000_0", "base_4/000000_0")
    assert "HIVE_UNION_SUBDIR_1" in unseen_base(state, listing)
    assert not unseen_in_deltas(state, listing)
    assert worth_doing(Depth.MAJOR, state, listing) is None
    assert worth_doing(Depth.MINOR, state, listing) is not None


def test_hidden_and_empty_files_in_folders_are_missed_by_nobody() -> None:
    assert not trino_blind(*found(_D1, "delta_4_4_0000/_tmp/000000_0", "delta_4_4_0000/HIVE_UNION_SUBDIR_1/000000_0!"))
