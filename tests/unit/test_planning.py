"""Plans: when a compaction is worth doing, what its output is called, and what goes into each file."""

from __future__ import annotations

import pytest

from compactor.acid.directory import ListedFile, Listing, Snapshot, directory_state
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import (
    CompactionPlan,
    Depth,
    FileFacts,
    ItemKind,
    OutputOptions,
    files_of,
    plan_compaction,
    worth_doing,
)
from compactor.acid.schema import HiveType, parse_type
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import UnsupportedData

_TYPE = parse_type("struct<id:int,v:string>")


def listed(*paths: str, empty: tuple[str, ...] = ()) -> Listing:
    """Files by path and directories without a file, by name."""
    files = tuple(ListedFile(path=p, size=100) for p in paths)
    return Listing(directories=frozenset({f.directory for f in files if f.directory} | set(empty)), files=files)


def write_ids(high: int) -> ValidWriteIdList:
    return ValidWriteIdList(table="d.t", high_water=high)


def refusal(depth: Depth, *paths: str) -> str | None:
    listing = listed(*paths)
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=write_ids(50))
    found = worth_doing(depth, directory_state(listing, snapshot, whole_ranges=True), listing)
    return None if found is None else found.reason


def plan(
    depth: Depth,
    listing: Listing,
    *,
    high: int = 9,
    full_acid: bool = True,
    bucketed: bool = False,
    types: dict[str, HiveType] | None = None,
    formats: dict[str, str] | None = None,
    table_type: HiveType = _TYPE,
    file_format: str = "orc",
) -> CompactionPlan:
    """The plan over files of 10 rows each; `bucket_…` files have ACID columns, others have none."""
    ids = write_ids(high)
    state = directory_state(listing, Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids), whole_ranges=True)
    facts = {
        f.path: FileFacts(
            rows=10,
            row_type=(types or {}).get(f.path, _TYPE),
            acid=f.name.startswith("bucket"),
            format=(formats or {}).get(f.path, file_format),
        )
        for f in files_of(depth, state, listing)
    }
    return plan_compaction(
        depth,
        state,
        listing,
        facts,
        location="/w/t",
        table_type=table_type,
        write_ids=ids,
        txn_id=77,
        full_acid=full_acid,
        bucketed=bucketed,
        output=OutputOptions(file_format=file_format),
    )


_D1, _D2, _D3 = (f"delta_{i}_{i}_0000/bucket_00000" for i in (1, 2, 3))
_X2, _X3 = (f"delete_delta_{i}_{i}_0000/bucket_00000" for i in (2, 3))
_B1 = "base_1_v9/bucket_00000"


@pytest.mark.parametrize(
    ("depth", "paths", "worth"),
    [
        (Depth.MAJOR, [], False),
        (Depth.MAJOR, [_B1], False),
        (Depth.MAJOR, [_D1], False),
        (Depth.MAJOR, ["000000_0"], True),
        (Depth.MAJOR, [_B1, _D2], True),
        (Depth.MAJOR, [_B1, _X2], True),
        (Depth.MAJOR, [_D1, _D2], True),
        (Depth.MAJOR, [_D1, _X2], True),
        (Depth.MINOR, [], False),
        (Depth.MINOR, [_D1], False),
        (Depth.MINOR, ["000000_0", _D1], False),
        (Depth.MINOR, [_B1, _D2], False),
        (Depth.MINOR, [_D1, _X2], False),
        (Depth.MINOR, [_D1, _D2], True),
        (Depth.MINOR, [_X2, _X3], True),
        (Depth.MINOR, [_D1, _X2, _D3], True),
    ],
)
def test_a_compaction_is_worth_doing_when_hive_says_so(depth: Depth, paths: list[str], worth: bool) -> None:
    assert (refusal(depth, *paths) is None) is worth


def test_a_refusal_says_what_was_found() -> None:
    assert refusal(Depth.MAJOR, _B1) == (
        "nothing to gain from a major compaction: base_1_v9, 0 delta(s), 0 delete delta(s), 0 original file(s)"
    )


def test_a_refusal_tells_whether_something_is_left_for_the_cleaner() -> None:
    listing = listed(_B1, _D1)
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=write_ids(50))
    found = worth_doing(Depth.MAJOR, directory_state(listing, snapshot), listing)
    assert found is not None
    assert found.leftovers


def test_a_major_compaction_makes_a_base_up_to_the_high_water_mark() -> None:
    made = plan(Depth.MAJOR, listed(_B1, _D2, _X3), high=7)
    assert made.directories == ("base_0000007_v0000077",)
    (item,) = made.items
    assert item.output == "base_0000007_v0000077/bucket_00000"
    assert item.kind is ItemKind.ROWS
    assert [s.path for s in item.sources] == [_B1, _D2]
    assert [s.path for s in item.deletes] == [_X3]
    assert (item.rows_in, item.bytes_in, made.files_in, made.bytes_in) == (20, 300, 3, 300)


def test_a_minor_compaction_reaches_from_the_smallest_delta_to_the_high_water_mark() -> None:
    made = plan(Depth.MINOR, listed(_B1, _D2, _X3, "delta_4_4_0000/bucket_00000"), high=7)
    assert made.directories == ("delta_0000002_0000007_v0000077", "delete_delta_0000002_0000007_v0000077")
    rows, deletes = made.items
    assert (rows.kind, [s.path for s in rows.sources]) == (ItemKind.ROWS, [_D2, "delta_4_4_0000/bucket_00000"])
    assert rows.deletes == ()
    assert (deletes.kind, [s.path for s in deletes.sources]) == (ItemKind.DELETES, [_X3])


def test_the_range_of_a_minor_compaction_starts_with_a_delete_delta_if_that_is_smallest() -> None:
    made = plan(Depth.MINOR, listed(_B1, _X2, _D3, "delta_4_4_0000/bucket_00000"))
    assert made.directories[0] == "delta_0000002_0000009_v0000077"


def test_a_minor_compaction_of_deletes_alone_makes_no_delta() -> None:
    made = plan(Depth.MINOR, listed(_X2, _X3))
    assert made.directories == ("delete_delta_0000002_0000009_v0000077",)


def test_each_bucket_has_its_item_and_its_own_deletes() -> None:
    made = plan(
        Depth.MAJOR,
        listed(
            "delta_1_1_0000/bucket_00000_0",
            "delta_1_1_0000/bucket_00003_0",
            "delta_2_2_0000/bucket_00003_1",
            "delete_delta_3_3_0000/bucket_00003_0",
            "delete_delta_3_3_0000/bucket_00005_0",
        ),
    )
    assert [(i.bucket, len(i.sources), len(i.deletes)) for i in made.items] == [(0, 1, 0), (3, 2, 1)]
    assert [i.output.rpartition("/")[2] for i in made.items] == ["bucket_00000", "bucket_00003"]


def test_a_major_compaction_without_rows_still_has_a_file() -> None:
    made = plan(Depth.MAJOR, listed(_X2, _X3))
    assert [i.output for i in made.items] == ["base_0000009_v0000077/bucket_00000"]


def test_originals_get_row_ids_of_write_id_0() -> None:
    made = plan(Depth.MAJOR, listed("000000_0", "000000_0_copy_1", "000001_0", _D1))
    first, second = made.items
    assert [s.path for s in first.sources] == ["000000_0", "000000_0_copy_1", _D1]
    ids = [s.synthetic for s in first.sources]
    assert [(i.write_id, i.bucket, i.first_row_id) for i in ids if i] == [
        (0, encode_bucket(0), 0),
        (0, encode_bucket(0), 10),
    ]
    assert ids[2] is None
    assert [s.path for s in second.sources] == ["000001_0"]


def test_loaded_files_get_row_ids_of_their_delta_and_statement() -> None:
    made = plan(Depth.MAJOR, listed("delta_2_2_0003/000001_0", _D1))
    loaded = made.items[1].sources[0].synthetic
    assert loaded is not None
    assert (loaded.write_id, loaded.bucket, loaded.first_row_id) == (2, encode_bucket(1, 3), 0)


def test_statements_of_a_transaction_are_read_in_order() -> None:
    names = [f"delta_1_1_{s:04d}/bucket_00000" for s in (2, 0, 1)]
    (item,) = plan(Depth.MAJOR, listed(*names)).items
    assert [s.path for s in item.sources] == sorted(names)


def test_files_of_one_older_type_keep_it() -> None:
    wider = parse_type("struct<id:bigint,v:string,x:int>")
    assert plan(Depth.MAJOR, listed(_D1, _D2), table_type=wider).row_type == _TYPE


def test_files_of_several_types_become_the_tables() -> None:
    wider = parse_type("struct<id:bigint,v:string,x:int>")
    assert plan(Depth.MAJOR, listed(_D1, _D2), table_type=wider, types={_D2: wider}).row_type == wider


def test_files_that_could_lose_values_are_refused() -> None:
    with pytest.raises(UnsupportedData, match="rewriting would lose values"):
        plan(Depth.MAJOR, listed(_D1, _D2), types={_D2: parse_type("struct<id:string,v:string>")})


def test_an_acid_file_whose_name_tells_no_bucket_is_refused() -> None:
    ids = write_ids(9)
    listing = listed("delta_1_1_0000/part-1.orc", _D2)
    state = directory_state(listing, Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids))
    facts = {f.path: FileFacts(rows=1, row_type=_TYPE, acid=True) for f in listing.files}
    with pytest.raises(UnsupportedData, match="does not tell the bucket"):
        plan_compaction(
            Depth.MAJOR,
            state,
            listing,
            facts,
            location="/w/t",
            table_type=_TYPE,
            write_ids=ids,
            txn_id=7,
            full_acid=True,
            bucketed=False,
        )


_M1, _M2 = "delta_1_1_0000/000000_0", "delta_2_2_0000/000001_0"


def test_an_insert_only_table_becomes_one_file() -> None:
    made = plan(Depth.MAJOR, listed(_M1, _M2), full_acid=False)
    (item,) = made.items
    assert (item.kind, item.output) == (ItemKind.PLAIN, "base_0000009_v0000077/000000_0")
    assert [s.synthetic for s in item.sources] == [None, None]


def test_an_insert_only_minor_compaction_makes_a_delta() -> None:
    assert plan(Depth.MINOR, listed(_M1, _M2), full_acid=False).directories == ("delta_0000001_0000009_v0000077",)


def test_a_bucketed_insert_only_table_keeps_its_buckets() -> None:
    made = plan(Depth.MAJOR, listed(_M1, _M2), full_acid=False, bucketed=True)
    assert [i.output.rpartition("/")[2] for i in made.items] == ["000000_0", "000001_0"]


@pytest.mark.parametrize("bucketed", [True, False])
def test_an_insert_only_table_without_rows_still_has_a_file_of_its_format(bucketed: bool) -> None:
    empty = listed(empty=("base_2", "delta_3_3_0000"))
    (item,) = plan(Depth.MAJOR, empty, full_acid=False, bucketed=bucketed, file_format="parquet").items
    assert (item.output, item.format, item.sources) == ("base_0000009_v0000077/000000_0", "parquet", ())


def test_files_of_several_formats_in_one_place_are_refused() -> None:
    with pytest.raises(UnsupportedData, match="several formats in one place: orc, parquet"):
        plan(Depth.MAJOR, listed(_M1, _M2), full_acid=False, formats={_M2: "parquet"})
