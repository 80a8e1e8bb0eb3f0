"""Plans: when a compaction is worth doing, what its output is called, and what goes into each file."""

from __future__ import annotations

import dataclasses
from typing import Any

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
from compactor.acid.records import RowId
from compactor.acid.schema import HiveType, parse_type
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import PART_EVENTS, DeleteFacts, Part, StripeFacts, StripeUse
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
    more: dict[str, dict[str, Any]] | None = None,
    aborted: frozenset[int] = frozenset(),
    output: OutputOptions | None = None,
    deletes: DeleteFacts | None = None,
) -> CompactionPlan:
    """The plan over files of 10 rows each; `bucket_…` files have ACID columns, others have none.

    more: further facts of a file.
    """
    ids = dataclasses.replace(write_ids(high), aborted=aborted)
    state = directory_state(listing, Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids), whole_ranges=True)
    facts = {
        f.path: dataclasses.replace(
            FileFacts(
                rows=10,
                row_type=(types or {}).get(f.path, _TYPE),
                acid=f.name.startswith("bucket"),
                format=(formats or {}).get(f.path, file_format),
            ),
            **(more or {}).get(f.path, {}),
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
        output=output or OutputOptions(file_format=file_format),
        deletes=deletes,
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


def stripe(write_id: int, *, size: int = 8 << 20, row_id: int = 0) -> StripeFacts:
    return StripeFacts(
        rows=10,
        size=size,
        trusted=True,
        first=RowId(write_id, encode_bucket(0), row_id),
        last=RowId(write_id, encode_bucket(0), row_id + 9),
        write_ids=(write_id, write_id),
        inserts_only=True,
    )


def striped(write_id: int, *, template: bytes = b"t", compression: int = 5, stripes: int = 1) -> dict[str, Any]:
    """Facts of a file of large stripes that may all be copied, as far as the file goes."""
    facts = tuple(stripe(write_id, row_id=10 * i) for i in range(stripes))
    return {"stripes": facts, "template": template, "compression": compression}


def uses(made: CompactionPlan) -> list[tuple[int, StripeUse, int]]:
    """(source, use, stripes) of every run of the first item."""
    return [(r.source, r.use, r.stop - r.start) for p in made.items[0].parts for r in p.runs]


_COPY, _DECODE = StripeUse.COPY, StripeUse.DECODE


def test_the_template_is_the_one_with_the_most_bytes_to_copy() -> None:
    facts = {_D1: striped(1, template=b"a"), _D2: striped(2, template=b"b", stripes=2), _D3: striped(3, template=b"a")}
    made = plan(Depth.MAJOR, listed(_D1, _D2, _D3), more=facts | {_D3: striped(3, template=b"a", stripes=2)})
    (item,) = made.items
    assert (item.template, item.compression) == (0, 5)
    assert uses(made) == [(0, _COPY, 1), (1, _DECODE, 2), (2, _COPY, 2)]


def test_what_cannot_be_copied_does_not_choose_the_template() -> None:
    """Hive's streaming writes files without row indexes: large ones must not stand in the way of the others."""
    untrusted = {"stripes": (dataclasses.replace(stripe(1, size=1 << 30), trusted=False),), "template": b"stream"}
    made = plan(Depth.MAJOR, listed(_D1, _D2), more={_D1: untrusted, _D2: striped(2)})
    assert made.items[0].template == 1
    assert uses(made) == [(0, _DECODE, 1), (1, _COPY, 1)]


def test_files_that_no_output_can_follow_are_decoded_into_a_fresh_one() -> None:
    lzo = {_D1: striped(1, template=b"", compression=3), _D2: striped(2, template=b"", compression=3)}
    made = plan(Depth.MINOR, listed(_D1, _D2), more=lzo, output=OutputOptions(codec=1))
    assert (made.items[0].template, made.items[0].compression) == (None, 1)
    assert uses(made) == [(0, _DECODE, 1), (1, _DECODE, 1)]


def test_files_of_another_schema_never_give_or_take_a_raw_copy() -> None:
    wider = parse_type("struct<id:bigint,v:string,x:int>")
    facts = {_D1: striped(1, stripes=3), _D2: striped(2, template=b"new"), _D3: striped(3, stripes=3)}
    made = plan(Depth.MAJOR, listed(_D1, _D2, _D3), more=facts, table_type=wider, types={_D2: wider})
    assert made.items[0].template == 1
    assert uses(made) == [(0, _DECODE, 3), (1, _COPY, 1), (2, _DECODE, 3)]


def test_a_renamed_column_makes_another_schema() -> None:
    renamed = parse_type("struct<id:int,w:string>")
    made = plan(
        Depth.MAJOR,
        listed(_D1, _D2),
        more={_D1: striped(1), _D2: striped(2, template=b"new")},
        table_type=renamed,
        types={_D2: renamed},
    )
    assert made.row_type == renamed
    assert uses(made) == [(0, _DECODE, 1), (1, _COPY, 1)]


def test_columns_in_another_order_are_not_the_same_columns() -> None:
    swapped = parse_type("struct<v:string,id:int>")
    with pytest.raises(UnsupportedData, match="rewriting would lose values"):
        plan(Depth.MAJOR, listed(_D1, _D2), table_type=swapped, types={_D2: swapped})


def test_files_older_than_all_columns_of_the_table_are_copied_as_they_are() -> None:
    wider = parse_type("struct<id:bigint,v:string,x:int>")
    made = plan(Depth.MAJOR, listed(_D1, _D2), more={_D1: striped(1), _D2: striped(2)}, table_type=wider)
    assert uses(made) == [(0, _COPY, 1), (1, _COPY, 1)]


def test_the_schema_of_delete_files_does_not_count() -> None:
    """After ADD COLUMNS a delete is written in the new schema; the data files keep theirs."""
    wider = parse_type("struct<id:int,v:string,x:int>")
    made = plan(Depth.MAJOR, listed(_D1, _X2), more={_D1: striped(1)}, table_type=wider, types={_X2: wider})
    assert made.row_type == _TYPE


def test_when_no_file_has_the_tables_columns_the_output_is_a_fresh_one() -> None:
    table, other = parse_type("struct<id:bigint,v:string,x:int>"), parse_type("struct<id:bigint,v:string>")
    made = plan(
        Depth.MAJOR,
        listed(_D1, _D2),
        more={_D1: striped(1), _D2: striped(2)},
        table_type=table,
        types={_D2: other},
        output=OutputOptions(codec=2),
    )
    (item,) = made.items
    assert (item.template, item.compression) == (None, 2)
    assert {use for _, use, _ in uses(made)} == {_DECODE}


def test_deletes_decide_stripe_by_stripe_in_a_major_compaction() -> None:
    made = plan(
        Depth.MAJOR,
        listed(_D1, _X2),
        more={_D1: striped(1, stripes=4)},
        deletes=DeleteFacts(hits={_D1: (0, 3, 0, 0)}),
    )
    assert uses(made) == [(0, _COPY, 1), (0, _DECODE, 1), (0, _COPY, 2)]


def test_where_nobody_looked_every_stripe_beside_deletes_is_decoded() -> None:
    other = "delta_1_1_0000/bucket_00001"
    made = plan(Depth.MAJOR, listed(_D1, other, _X2), more={_D1: striped(1), other: striped(1)})
    assert uses(made) == [(0, _DECODE, 1)]
    assert [r.use for r in made.items[1].parts[0].runs] == [_COPY]


def test_a_minor_compaction_copies_whatever_the_deletes_are() -> None:
    made = plan(Depth.MINOR, listed(_D1, _X2, _D3), more={_D1: striped(1), _D3: striped(3)})
    assert uses(made) == [(0, _COPY, 1), (1, _COPY, 1)]


def test_an_aborted_write_id_inside_a_streaming_delta_has_its_stripe_decoded() -> None:
    streamed = "delta_1_4/bucket_00000"
    mixed = dataclasses.replace(stripe(3), write_ids=(2, 3))
    facts = {streamed: striped(1) | {"stripes": (stripe(1), mixed, stripe(4))}}
    made = plan(Depth.MAJOR, listed(streamed, "delta_5_5_0000/bucket_00000"), more=facts, aborted=frozenset({2}))
    assert uses(made) == [(0, _COPY, 1), (0, _DECODE, 1), (0, _COPY, 1)]


@pytest.mark.parametrize("name", ["000000_0", "delta_1_1_0000/000000_0"], ids=["original", "LOAD DATA"])
def test_files_without_row_ids_are_decoded_and_give_no_template(name: str) -> None:
    plain = StripeFacts(rows=10, size=1 << 30, trusted=True)
    made = plan(Depth.MAJOR, listed(name, _D2), more={name: {"stripes": (plain,), "template": b"t"}, _D2: striped(2)})
    assert made.items[0].template == 1
    assert uses(made) == [(0, _DECODE, 1), (1, _COPY, 1)]


def test_an_insert_only_file_is_copied_without_row_ids() -> None:
    plain = {"stripes": (StripeFacts(rows=10, size=8 << 20, trusted=True),), "template": b"t", "compression": 2}
    made = plan(Depth.MAJOR, listed(_M1, _M2), full_acid=False, more={_M1: plain, _M2: plain})
    assert uses(made) == [(0, _COPY, 1), (1, _COPY, 1)]
    assert (made.items[0].template, made.items[0].compression) == (0, 2)


def test_recompression_waits_until_every_stripe_of_a_file_is_encoded_anew() -> None:
    wish = OutputOptions(codec=1, recompress=5)
    facts = {_D1: striped(1, compression=2), _D2: striped(2, compression=2)}
    copied = plan(Depth.MAJOR, listed(_D1, _D2), more=facts, output=wish)
    assert copied.items[0].compression == 2
    hit = DeleteFacts(hits={_D1: (1,), _D2: (1,)})
    encoded = plan(Depth.MAJOR, listed(_D1, _D2, _X3), more=facts, output=wish, deletes=hit)
    assert (encoded.items[0].template, encoded.items[0].compression) == (0, 5)
    as_it_was = plan(Depth.MAJOR, listed(_D1, _D2, _X3), more=facts, deletes=hit)
    assert as_it_was.items[0].compression == 2


def test_recompression_to_no_compression_is_recompression() -> None:
    made = plan(Depth.MINOR, listed(_X2, _X3), output=OutputOptions(codec=1, recompress=0))
    assert made.items[0].compression == 0


def test_delete_events_have_the_tables_codec_and_one_part() -> None:
    made = plan(Depth.MINOR, listed(_X2, _X3), output=OutputOptions(codec=4))
    (item,) = made.items
    assert (item.kind, item.compression, item.parts) == (ItemKind.DELETES, 4, (Part(),))


def test_many_delete_events_become_ranges_of_row_ids() -> None:
    keys = [(RowId(1, encode_bucket(0), i), PART_EVENTS // 2) for i in range(4)]
    made = plan(
        Depth.MINOR, listed(_X2, _X3), deletes=DeleteFacts(marks={_X2: tuple(keys[::2]), _X3: tuple(keys[1::2])})
    )
    (item,) = made.items
    assert [p.up_to for p in item.parts] == [keys[1][0], None]


def test_a_part_reads_no_more_files_than_the_installation_allows() -> None:
    paths = [f"delta_{i}_{i}_0000/bucket_00000" for i in range(1, 6)]
    facts = {p: striped(i) for i, p in enumerate(paths, start=1)}
    made = plan(Depth.MINOR, listed(*paths), more=facts, output=OutputOptions(max_files=2))
    assert [len(p.runs) for p in made.items[0].parts] == [2, 2, 1]


def test_files_without_rows_go_into_nothing() -> None:
    """A streaming file of which nothing is committed knows no columns; an empty one may have any."""
    nothing = {"rows": 0, "row_type": parse_type("struct<a:string>")}
    made = plan(Depth.MAJOR, listed(_D1, _D2, _X3), more={_D2: nothing, _X3: nothing})
    (item,) = made.items
    assert (made.row_type, [s.path for s in item.sources], item.deletes) == (_TYPE, [_D1], ())


def test_a_truncated_table_stays_empty_with_a_file_for_every_reader() -> None:
    made = plan(Depth.MAJOR, listed(empty=("base_3", "delta_4_4_0000")))
    (item,) = made.items
    assert (item.output, item.sources, item.parts) == ("base_0000009_v0000077/bucket_00000", (), (Part(),))


def test_an_insert_overwrite_base_is_read_before_its_deltas_and_instead_of_what_is_older() -> None:
    made = plan(Depth.MAJOR, listed("base_2/bucket_00000_0", _D1, "delta_3_3_0000/bucket_00000_0"))
    assert [s.path for s in made.items[0].sources] == ["base_2/bucket_00000_0", "delta_3_3_0000/bucket_00000_0"]


def test_a_base_of_loaded_files_gives_them_row_ids_of_its_write_id() -> None:
    made = plan(Depth.MAJOR, listed("base_2/000000_0", "base_2/000000_0_copy_1", _D3))
    ids = [s.synthetic for s in made.items[0].sources]
    assert [(i.write_id, i.first_row_id) for i in ids if i] == [(2, 0), (2, 10)]


def test_the_statements_of_a_union_all_are_read_in_order() -> None:
    names = [f"delta_2_2_{s:04d}/bucket_00000_0" for s in (1, 2)]
    made = plan(Depth.MINOR, listed(_D1, *names))
    assert [s.path for s in made.items[0].sources] == [_D1, *names]


@pytest.mark.parametrize("folder", ["", "delta_1_1_0000/", "base_2/"])
def test_folders_of_a_union_all_are_read_like_their_parent(folder: str) -> None:
    names = [f"{folder}HIVE_UNION_SUBDIR_{n}/000000_0" for n in (1, 2)]
    made = plan(Depth.MAJOR, listed(*names, _D3), full_acid=False)
    assert [s.path for s in made.items[0].sources] == [*names, _D3]


def test_originals_of_a_union_all_get_row_ids_through_all_its_folders() -> None:
    names = ["HIVE_UNION_SUBDIR_1/000000_0", "HIVE_UNION_SUBDIR_1/000001_0", "HIVE_UNION_SUBDIR_2/000000_0"]
    made = plan(Depth.MAJOR, listed(*names))
    ids = [[s.synthetic and s.synthetic.first_row_id for s in i.sources] for i in made.items]
    assert ids == [[0, 10], [0]]


def test_acid_files_in_folders_of_a_union_all_find_their_bucket() -> None:
    made = plan(Depth.MAJOR, listed("delta_1_1_0001/HIVE_UNION_SUBDIR_1/bucket_00003_0", _D2))
    assert [i.bucket for i in made.items] == [0, 3]


@pytest.mark.parametrize("full_acid", [True, False])
def test_a_file_that_only_hive_would_read_is_not_hidden_behind_a_base(full_acid: bool) -> None:
    with pytest.raises(UnsupportedData, match="part-00000: the name does not tell the bucket"):
        plan(Depth.MAJOR, listed("part-00000", _D1), full_acid=full_acid)


@pytest.mark.parametrize("name", ["_SUCCESS", ".hive-staging_1/000000_0", "_tmp/part-00000"])
def test_a_file_that_nobody_reads_is_in_nobodys_way(name: str) -> None:
    assert plan(Depth.MAJOR, listed(name, _D1)).files_in == 1


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


_GZ = {"template": b".gz", "suffix": ".gz", "rows": -1, "skipped": (1, 0)}
_TEXT = {"rows": -1, "skipped": (1, 0)}


def test_files_that_cannot_become_one_become_several() -> None:
    third = "delta_3_3_0000/000000_0"
    facts = {_M1: _GZ, _M2: _TEXT, third: _GZ}
    made = plan(Depth.MAJOR, listed(_M1, _M2, third), full_acid=False, file_format="text", more=facts)
    assert [(i.output.rpartition("/")[2], len(i.sources), i.skipped, i.parts) for i in made.items] == [
        ("000000_0.gz", 2, (1, 0), ()),
        ("000001_0", 1, (1, 0), ()),
    ]


def test_files_of_a_bucket_that_cannot_become_one_keep_the_bucket() -> None:
    other = "delta_1_1_0000/000001_0"
    facts = {other: _GZ, _M2: _TEXT}
    made = plan(Depth.MAJOR, listed(other, _M2), full_acid=False, bucketed=True, file_format="text", more=facts)
    assert [(i.output.rpartition("/")[2], i.bucket) for i in made.items] == [
        ("000001_0.gz", 1),
        ("000001_0_copy_1", 1),
    ]
