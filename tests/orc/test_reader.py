"""Reading files stripe by stripe: side files, synthetic ids and evolution."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.records import RowId, SyntheticIds
from compactor.acid.schema import parse_type
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CorruptFile, PathNotFound, UnsupportedData
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc import reader
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.facts import orc_facts
from compactor.orc.reader import Keys, OrcSource
from compactor.orc.tail import stripe_length
from tests.orc.acid_files import FS, ROW, event_table, insert, source, write_events, write_plain
from tests.orc.all_types import ALL_TYPES, all_types, write_stripes

_B0 = 536870912


def streaming_file(path: Path, commits: int) -> list[int]:
    """A file of as many transactions of two rows each, with a tail after each; the length at each commit."""
    lengths = []
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB))
        for write_id in range(1, commits + 1):
            rows = [insert(write_id, i, (i, str(i))) for i in range(2)]
            out.append(event_table(rows, ROW), rows[-1].row_id)
            lengths.append(out.finish(AcidStats(inserts=2 * write_id)))
    return lengths


def side_file(path: Path, *lengths: int, extra: bytes = b"") -> None:
    content = b"".join(n.to_bytes(8, "big") for n in lengths) + extra
    path.with_name(path.name + "_flush_length").write_bytes(content)


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_streaming_file_ends_where_its_side_file_says(tmp_path: Path, commits: int) -> None:
    lengths = streaming_file(tmp_path / "bucket_00000", 3)
    side_file(tmp_path / "bucket_00000", *lengths[:commits])
    with source(tmp_path / "bucket_00000") as file:
        assert file.tail.rows == 2 * commits
        keys = [file.keys(s) for s in range(file.stripes)]
        assert [k.at(1) for k in keys] == [RowId(w, _B0, 1) for w in range(1, commits + 1)]
        assert file.rows(commits - 1, ROW).to_pylist() == [{"id": 0, "v": "0"}, {"id": 1, "v": "1"}]
    assert orc_facts(FS, str(tmp_path / "bucket_00000")).rows == 2 * commits


def test_bytes_after_the_last_commit_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "bucket_00000"
    (length,) = streaming_file(path, 1)
    path.write_bytes(path.read_bytes() + b"half a stripe")
    side_file(path, length)
    with source(path) as file:
        assert file.tail.rows == 2


def test_half_a_length_at_the_end_of_a_side_file_does_not_count(tmp_path: Path) -> None:
    lengths = streaming_file(tmp_path / "bucket_00000", 2)
    side_file(tmp_path / "bucket_00000", lengths[0], extra=b"\0\0\0")
    with source(tmp_path / "bucket_00000") as file:
        assert file.tail.rows == 2


def test_a_file_shorter_than_what_was_committed_is_corrupt(tmp_path: Path) -> None:
    (length,) = streaming_file(tmp_path / "bucket_00000", 1)
    side_file(tmp_path / "bucket_00000", length + 1)
    with pytest.raises(CorruptFile, match="shorter than"):
        source(tmp_path / "bucket_00000")


def test_a_length_in_the_middle_of_a_stripe_is_corrupt(tmp_path: Path) -> None:
    (length,) = streaming_file(tmp_path / "bucket_00000", 1)
    side_file(tmp_path / "bucket_00000", length - 7)
    with pytest.raises(CorruptFile):
        source(tmp_path / "bucket_00000")


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PathNotFound):
        source(tmp_path / "bucket_00000")


def test_synthetic_ids_go_on_from_stripe_to_stripe(tmp_path: Path) -> None:
    count = 50_000
    table = pa.table({"id": pa.array(range(count), pa.int32()), "v": pa.array([f"{i * 7919:x}" for i in range(count)])})
    write_plain(tmp_path / "000000_0", table, stripe_size=64 * 1024, batch_size=1024)
    ids = SyntheticIds(write_id=4, bucket=_B0 + 2, first_row_id=100)
    with OrcSource(FS, str(tmp_path / "000000_0"), synthetic=ids) as file:
        assert file.stripes > 1
        keys = [file.keys(s) for s in range(file.stripes)]
        assert keys[0].at(0) == RowId(4, _B0 + 2, 100)
        assert np.concatenate([k.row_id for k in keys]).tolist() == list(range(100, 100 + count))
        assert {int(i) for k in keys for i in k.current_write_id} == {4}
        found = [r["id"] for s in range(file.stripes) for r in file.rows(s, ROW).to_pylist()]
        assert found == list(range(count))


def test_a_plain_files_facts_say_that_it_is_not_acid(tmp_path: Path) -> None:
    write_plain(tmp_path / "f", pa.table({"id": pa.array([1], pa.int32())}))
    facts = orc_facts(FS, str(tmp_path / "f"))
    assert (facts.acid, facts.rows, str(facts.row_type)) == (False, 1, "struct<id:int>")


def test_rows_without_a_row_id_are_corrupt(tmp_path: Path) -> None:
    table = event_table([insert(1, 0, (1, "a"))], ROW)
    write_plain(tmp_path / "f", table.set_column(3, "rowId", pa.array([None], pa.int64())))
    with source(tmp_path / "f") as file, pytest.raises(CorruptFile, match="without a row id"):
        file.keys(0)


@pytest.mark.parametrize(
    ("found", "value", "wanted", "expected"),
    [
        ("tinyint", -7, "bigint", -7),
        ("int", 7, "double", 7.0),
        ("float", 1.5, "double", 1.5),
        ("char(5)", "a b  ", "string", "a b"),
        ("char(5)", "ab   ", "varchar(5)", "ab"),
        ("varchar(5)", "ab ", "string", "ab "),
        ("string", "abcdef", "varchar(3)", "abc"),
        ("string", "äöü€😀x", "varchar(5)", "äöü€😀"),
        ("string", "ab ", "varchar(3)", "ab "),
        ("string", "abcdef", "char(3)", "abc"),
        ("string", "ä", "char(3)", "ä  "),
        ("varchar(9)", "abcdef", "varchar(3)", "abc"),
        ("char(6)", "ab    ", "char(3)", "ab "),
        ("char(3)", "abc", "char(5)", "abc  "),
        ("char(5)", "a b  ", "varchar(2)", "a "),
        ("array<string>", ["abc", None], "array<varchar(2)>", ["ab", None]),
        ("array<char(2)>", ["a ", None], "array<string>", ["a", None]),
        ("map<string,int>", [("k", 1), ("l", None)], "map<string,bigint>", [("k", 1), ("l", None)]),
        ("struct<a:int>", {"a": 1}, "struct<a:bigint,c:date>", {"a": 1, "c": None}),
        (
            "struct<a:int,b:string>",
            {"a": 1, "b": "x"},
            "struct<b:string,new:int,a:bigint>",
            {"b": "x", "new": None, "a": 1},
        ),
        (
            "struct<s:struct<a:int,b:int>>",
            {"s": {"a": 1, "b": 2}},
            "struct<s:struct<b:int,a:int>>",
            {"s": {"b": 2, "a": 1}},
        ),
        ("array<struct<a:int>>", [{"a": 1}, None], "array<struct<b:bigint,c:date>>", [{"b": 1, "c": None}, None]),
        ("struct<l:array<struct<a:int>>>", {"l": [{"a": 1}]}, "struct<l:array<struct<b:int>>>", {"l": [{"b": 1}]}),
    ],
)
def test_a_narrower_column_is_read_as_the_wider_one(
    tmp_path: Path, found: str, value: object, wanted: str, expected: object
) -> None:
    old, new = parse_type(f"struct<x:{found}>"), parse_type(f"struct<y:{wanted},z:int>")
    write_events(tmp_path / "f", [insert(1, 0, (value,)), insert(1, 1, (None,))], row_type=old)
    with source(tmp_path / "f") as file:
        assert file.rows(0, new).to_pylist() == [{"y": expected, "z": None}, {"y": None, "z": None}]


@pytest.mark.parametrize("bytes_together", [1, 200_000, 8 << 20])
def test_rows_of_a_large_stripe_are_the_same_however_many_columns_are_decoded_together(
    bytes_together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_TOGETHER_BYTES", bytes_together)
    table = all_types(15_000)
    keep = np.random.default_rng(1).random(15_000) > 0.01
    wanted = replace(ALL_TYPES, children=(*ALL_TYPES.children, ("added", parse_type("bigint"))))
    with source(write_stripes(tmp_path / "large", [table], compression=pb.NONE)) as file:
        assert stripe_length(file.tail.footer.stripes[0]) > 1 << 20
        found = file.rows(0, wanted, keep)
    expected = table.filter(pa.array(keep)).combine_chunks()
    for name, column in zip(table.column_names, expected.columns, strict=True):
        assert found.field(name).cast(column.type).equals(column.combine_chunks())
    assert found.field("added").null_count == len(found) == int(keep.sum())


def test_a_column_that_could_lose_values_is_not_read(tmp_path: Path) -> None:
    write_events(tmp_path / "f", [insert(1, 0, (1, "a"))])
    with source(tmp_path / "f") as file, pytest.raises(UnsupportedData, match="cannot be rewritten"):
        file.rows(0, parse_type("struct<id:int,v:int>"))


_ROWS = st.lists(st.builds(RowId, st.integers(1, 3), st.integers(0, 2), st.integers(0, 3)), max_size=6)


def keys_of(rows: list[RowId]) -> Keys:
    columns = np.array([[r.write_id, r.bucket, r.row_id] for r in rows], dtype=np.int64).reshape(-1, 3).T
    zero = np.zeros(len(rows), dtype=np.int64)
    return Keys(operation=zero, write_id=columns[0], bucket=columns[1], row_id=columns[2], current_write_id=columns[0])


@given(_ROWS)
def test_row_ids_ascend_exactly_when_python_says_so(rows: list[RowId]) -> None:
    assert keys_of(rows).ascending() is all(a < b for a, b in itertools.pairwise(rows))


@given(_ROWS, st.frozensets(st.integers(1, 3)), st.integers(1, 3))
def test_an_event_is_visible_when_its_write_id_is_valid(
    rows: list[RowId], exceptions: frozenset[int], high: int
) -> None:
    valid = ValidWriteIdList(table="d.t", high_water=high, aborted=exceptions)
    assert keys_of(rows).visible(valid).tolist() == [valid.is_valid(r.write_id) for r in rows]
