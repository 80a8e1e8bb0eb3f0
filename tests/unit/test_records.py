"""The oracle itself, and the row ids that files without ACID columns get."""

from __future__ import annotations

from compactor.acid.directory import ListedFile
from compactor.acid.layout import encode_bucket
from compactor.acid.records import Event, Operation, RowId, merge, synthetic_ids
from compactor.acid.snapshot import ValidWriteIdList

_ALL = ValidWriteIdList(table="d.t", high_water=100)


def insert(write_id: int, row_id: int, value: str, *, bucket: int = 0) -> Event:
    identity = RowId(write_id, encode_bucket(bucket), row_id)
    return Event(operation=Operation.INSERT, row_id=identity, current_write_id=write_id, row=(value,))


def delete(write_id: int, row_id: int, *, by: int, bucket: int = 0) -> Event:
    identity = RowId(write_id, encode_bucket(bucket), row_id)
    return Event(operation=Operation.DELETE, row_id=identity, current_write_id=by)


def values(events: list[Event], valid: ValidWriteIdList = _ALL) -> list[object]:
    return [row[0] for _, row in merge(events, valid)]


def test_rows_come_in_the_order_of_write_id_bucket_and_row_id() -> None:
    events = [insert(2, 0, "d"), insert(1, 1, "b"), insert(1, 0, "c", bucket=1), insert(1, 0, "a")]
    assert values(events) == ["a", "b", "c", "d"]


def test_a_deleted_row_is_gone_wherever_the_event_stands() -> None:
    assert values([delete(1, 0, by=2), insert(1, 0, "a"), insert(1, 1, "b")]) == ["b"]


def test_an_event_of_an_invalid_write_id_did_not_happen() -> None:
    events = [insert(1, 0, "a"), delete(1, 0, by=2), insert(3, 0, "c"), insert(4, 0, "d")]
    valid = ValidWriteIdList(table="d.t", high_water=3, aborted=frozenset({2}))
    assert values(events, valid) == ["a", "c"]


def test_a_delete_of_the_same_number_in_another_bucket_hits_nothing() -> None:
    assert values([insert(1, 0, "a"), delete(1, 0, by=2, bucket=1)]) == ["a"]


def file(path: str) -> ListedFile:
    return ListedFile(path=path, size=1)


def test_rows_of_original_files_are_numbered_through_each_bucket() -> None:
    files = [(file("000001_0"), 7), (file("000000_0_copy_1"), 3), (file("000000_0"), 5), (file("1/000000_0"), 2)]
    ids = synthetic_ids(files)
    assert {p: (i.write_id, i.bucket, i.first_row_id) for p, i in ids.items()} == {
        "000000_0": (0, encode_bucket(0), 0),
        "000000_0_copy_1": (0, encode_bucket(0), 5),
        "1/000000_0": (0, encode_bucket(0), 8),
        "000001_0": (0, encode_bucket(1), 0),
    }


def test_the_eleventh_copy_comes_before_the_second_as_in_hive() -> None:
    names = ["000000_0", *(f"000000_0_copy_{i}" for i in range(1, 12))]
    ids = synthetic_ids([(file(n), 1) for n in names])
    in_order = sorted(ids, key=lambda n: ids[n].first_row_id)
    assert in_order[:5] == [
        "000000_0",
        "000000_0_copy_1",
        "000000_0_copy_10",
        "000000_0_copy_11",
        "000000_0_copy_2",
    ]


def test_loaded_files_take_the_write_id_and_the_statement_of_their_delta() -> None:
    ids = synthetic_ids([(file("delta_5_5_0002/000003_0"), 1)], write_id=5, statement_id=2)
    (only,) = ids.values()
    assert (only.write_id, only.bucket, only.first_row_id) == (5, encode_bucket(3, 2), 0)


def test_a_file_whose_name_tells_no_bucket_is_of_bucket_0() -> None:
    assert synthetic_ids([(file("data.orc"), 1)])["data.orc"].bucket == encode_bucket(0)
