from __future__ import annotations

from collections.abc import Collection

import pytest

from cleaner.obsolete import Removal, Why, aborted, output_of, replaced
from cleaner.row import RetryRule, cleaning_txns
from compactor.acid.directory import ListedFile, Listing, Snapshot
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import UnparsableName


def listing(*paths: str, empty: Collection[str] = ()) -> Listing:
    """Files of 10 bytes at the paths; empty: directories without files."""
    return Listing(
        directories=frozenset(p.partition("/")[0] for p in paths if "/" in p) | frozenset(empty),
        files=tuple(ListedFile(path=p, size=10) for p in sorted(paths)),
    )


def snapshot(
    *,
    write_ids: int,
    txns: int = 100,
    aborted_ids: Collection[int] = (),
    open_ids: Collection[int] = (),
    aborted_txns: Collection[int] = (),
    open_txns: Collection[int] = (),
) -> Snapshot:
    return Snapshot(
        txns=ValidTxnList(high_water=txns, open=frozenset(open_txns), aborted=frozenset(aborted_txns)),
        write_ids=ValidWriteIdList(
            table="db.t", high_water=write_ids, open=frozenset(open_ids), aborted=frozenset(aborted_ids)
        ),
    )


def names(removal: Removal) -> list[str]:
    return [entry.name for entry in removal.doomed]


DELTA_1 = "delta_0000001_0000001_0000/bucket_00000"
DELTA_2 = "delta_0000002_0000002_0000/bucket_00000"
DELTA_3 = "delta_0000003_0000003_0000/bucket_00000"


def test_after_a_major_the_deltas_it_covers_go_and_its_base_stays() -> None:
    removal = replaced(listing(DELTA_1, DELTA_2, "base_0000002_v0000007/bucket_00000"), snapshot(write_ids=2))
    assert names(removal) == ["delta_0000001_0000001_0000", "delta_0000002_0000002_0000"]
    assert {entry.why for entry in removal.doomed} == {Why.OBSOLETE}


def test_after_a_minor_the_deltas_it_covers_go() -> None:
    removal = replaced(listing(DELTA_1, DELTA_2, "delta_0000001_0000002_v0000007/bucket_00000"), snapshot(write_ids=2))
    assert names(removal) == ["delta_0000001_0000001_0000", "delta_0000002_0000002_0000"]


def test_an_empty_base_is_kept_and_hides_what_it_replaced() -> None:
    """HIVE-25492: without the base the deleted rows would be back."""
    removal = replaced(listing(DELTA_1, empty=["base_0000001_v0000007"]), snapshot(write_ids=1))
    assert names(removal) == ["delta_0000001_0000001_0000"]


def test_original_files_go_once_there_is_a_base_and_foreign_files_never() -> None:
    found = listing("000000_0", "1/000000_0", "notes.txt", "_SUCCESS", "base_0000001_v0000007/bucket_00000")
    assert names(replaced(found, snapshot(write_ids=1))) == ["000000_0", "1/000000_0"]


def test_what_a_later_compaction_replaced_stays_for_its_own_readers() -> None:
    found = listing(DELTA_1, DELTA_3, "base_0000001_v0000007/bucket_00000", "base_0000003_v0000020/bucket_00000")
    assert names(replaced(found, snapshot(write_ids=1, txns=10))) == ["delta_0000001_0000001_0000"]


def test_an_output_of_an_open_or_younger_transaction_is_neither_base_nor_garbage() -> None:
    found = listing(DELTA_1, "base_0000001_v0000007/bucket_00000")
    assert names(replaced(found, snapshot(write_ids=1, open_txns=[7]))) == []
    assert names(replaced(found, snapshot(write_ids=1, txns=6))) == []


def test_an_output_of_an_aborted_compaction_goes_and_makes_nothing_obsolete() -> None:
    found = listing(DELTA_1, "base_0000001_v0000007/bucket_00000")
    removal = replaced(found, snapshot(write_ids=1, aborted_txns=[7]))
    assert [(entry.name, entry.why) for entry in removal.doomed] == [("base_0000001_v0000007", Why.ABORTED)]


def test_clean_up_of_aborts_never_takes_an_obsolete_entry() -> None:
    """HIVE-25502: nobody knows whether what is obsolete is still being read."""
    found = listing(DELTA_1, DELTA_2, DELTA_3, "base_0000001_v0000007/bucket_00000")
    assert names(aborted(found, snapshot(write_ids=3, aborted_ids=[2]))) == ["delta_0000002_0000002_0000"]


def test_a_delta_with_committed_and_aborted_writes_stays_and_so_does_the_memory_of_its_aborts() -> None:
    removal = aborted(listing("delta_0000001_0000003/bucket_00000"), snapshot(write_ids=3, aborted_ids=[2]))
    assert names(removal) == []
    assert removal.forgettable == frozenset()


def test_aborts_are_forgotten_when_no_file_can_hold_their_rows() -> None:
    removal = aborted(listing(DELTA_1, DELTA_2), snapshot(write_ids=3, aborted_ids=[2, 3]))
    assert names(removal) == ["delta_0000002_0000002_0000"]
    assert removal.forgettable == {2, 3}


def test_a_compactions_output_holds_no_aborted_rows_whatever_its_name_covers() -> None:
    found = listing(DELTA_1, DELTA_2, DELTA_3, "delta_0000001_0000003_v0000009/bucket_00000")
    removal = replaced(found, snapshot(write_ids=3, aborted_ids=[2]))
    assert len(removal.doomed) == 3
    assert removal.forgettable == {2}


def test_removing_an_aborted_compactions_output_forgets_no_aborted_write_inside_its_range() -> None:
    found = listing("delta_0000001_0000003/bucket_00000", "delta_0000001_0000003_v0000009/bucket_00000")
    removal = replaced(found, snapshot(write_ids=3, aborted_ids=[2], aborted_txns=[9]))
    assert names(removal) == ["delta_0000001_0000003_v0000009"]
    assert removal.forgettable == frozenset()


def test_aborts_in_a_streaming_batch_that_goes_on_above_the_compaction_are_remembered() -> None:
    """HIVE-24481: forgetting write 2 would bring its rows back, for the delta is read on."""
    found = listing(DELTA_1, "delta_0000002_0000005/bucket_00000", "base_0000002_v0000009/bucket_00000")
    removal = replaced(found, snapshot(write_ids=2, aborted_ids=[2]))
    assert names(removal) == ["delta_0000001_0000001_0000"]
    assert removal.forgettable == frozenset()


def test_an_aborted_insert_overwrite_base_goes() -> None:
    found = listing(DELTA_1, "base_0000002/bucket_00000")
    removal = aborted(found, snapshot(write_ids=2, aborted_ids=[2]))
    assert names(removal) == ["base_0000002"]
    assert removal.forgettable == {2}


def test_the_output_of_one_transaction_is_found_by_its_name_alone() -> None:
    found = listing(
        DELTA_1,
        "base_0000001_v0000007/bucket_00000",
        "delete_delta_0000001_0000001_v0000007/bucket_00000",
        "base_0000001_v0000070/bucket_00000",
    )
    assert names(output_of(found, 7)) == ["base_0000001_v0000007", "delete_delta_0000001_0000001_v0000007"]
    assert names(output_of(found, 0)) == []


def test_hidden_and_empty_files_of_a_directory_are_counted_with_it() -> None:
    found = Listing(
        directories=frozenset({"delta_0000001_0000001", "base_0000001_v0000007"}),
        files=(
            ListedFile(path="delta_0000001_0000001/_orc_acid_version", size=1),
            ListedFile(path="delta_0000001_0000001/bucket_00000", size=0),
            ListedFile(path="delta_0000001_0000001/bucket_00001", size=9),
        ),
    )
    (entry,) = replaced(found, snapshot(write_ids=1)).doomed
    assert (len(entry.files), entry.bytes) == (3, 10)


def test_a_name_that_only_looks_like_an_acid_directory_stops_everything() -> None:
    with pytest.raises(UnparsableName):
        replaced(listing("delta_7_3/bucket_00000"), snapshot(write_ids=9))


def test_cleaning_sees_no_transaction_above_the_publication() -> None:
    now = ValidTxnList(high_water=50, open=frozenset({5, 40}), aborted=frozenset({6, 41}))
    assert cleaning_txns(now, 30) == ValidTxnList(high_water=30, open=frozenset({5}), aborted=frozenset({6}))


def test_pauses_between_attempts_double_until_the_last_one() -> None:
    rule = RetryRule(first_ms=300_000, max_attempts=5)
    pauses: list[int] = []
    pause = rule.next_pause_ms(0)
    while pause is not None:
        pauses.append(pause)
        pause = rule.next_pause_ms(pause)
    assert pauses == [300_000, 600_000, 1_200_000, 2_400_000, 4_800_000]


def test_without_attempts_the_first_failure_is_the_last() -> None:
    assert RetryRule(first_ms=300_000, max_attempts=0).next_pause_ms(0) is None
