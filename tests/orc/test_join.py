"""Items in parts: the same rows as in one piece, the same bytes every time, and nothing left when a part fails."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.acid import stripes
from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.records import Event, RowId
from compactor.acid.stripes import Part
from compactor.errors import CorruptFile, VerificationError
from compactor.orc import rewrite
from compactor.orc.join import join_item
from compactor.orc.parts import NeedsJvm, PartResult, encodes, part_file
from compactor.orc.rewrite import ItemResult, run_item, write_part
from tests.orc.acid_files import FS, ROW, delete, insert, read_events, source, write_events, write_plain
from tests.orc.items import ALL, in_parts, item_of
from tests.orc.test_rewrite import History, histories, laid_out, plain, rows_of

_B0 = 536870912


def joined(root: Path, item: PlanItem) -> ItemResult:
    """The item written part by part."""
    (root / "out").mkdir(exist_ok=True)
    parts = [
        write_part(FS, str(root), item, number, ROW, ALL) if encodes(item, part) else None
        for number, part in enumerate(item.parts)
    ]
    return join_item(FS, str(root), item, parts, ROW)


def whole(root: Path, item: PlanItem) -> ItemResult:
    (root / "out").mkdir(exist_ok=True)
    done = run_item(FS, str(root), item, ROW, ALL)
    assert isinstance(done, ItemResult)
    return done


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stripe is large enough to be copied."""
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", 0)


@pytest.mark.usefixtures("small")
@given(history=histories(), size=st.integers(1, 3))
@settings(max_examples=40)
def test_an_item_in_parts_has_the_rows_of_the_item_in_one(
    tmp_path_factory: pytest.TempPathFactory, history: History, size: int
) -> None:
    root = tmp_path_factory.mktemp("t")
    item = item_of(root, *laid_out(root, history))
    one = whole(root, item)
    expected = read_events(root / item.output)
    many = joined(root, in_parts(item, size))
    assert read_events(root / item.output) == expected
    assert (many.rows_in, many.rows_out, many.rows_deleted, many.rows_invalid) == (
        one.rows_in,
        one.rows_out,
        one.rows_deleted,
        one.rows_invalid,
    )
    with source(root / item.output) as file:
        index = file.tail.key_index()
        assert index is not None
        assert list(index) == [file.keys(s).at(-1) for s in range(file.stripes)]


def two_files(root: Path) -> PlanItem:
    """Four stripes in each of two files; rows are deleted in the second stripe of the first file and all others of it."""
    files = [write_events(root / f"i{w}/b", rows_of(w, 40), stripe_rows=10) for w in (1, 2)]
    gone = [RowId(1, _B0, 15), *(RowId(2, _B0, i) for i in range(10, 20)), RowId(2, _B0, 39)]
    deletes = write_events(root / "d/b", [delete(row, by=3) for row in gone])
    return item_of(root, files, [deletes])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [1, 3, 8])
def test_parts_and_joins_write_the_same_bytes_every_time(tmp_path: Path, size: int) -> None:
    item = in_parts(two_files(tmp_path), size)
    contents = set()
    for _ in range(2):
        joined(tmp_path, item)
        contents.add(tuple((p.name, p.read_bytes()) for p in sorted((tmp_path / "out").iterdir())))
    assert len(contents) == 1


@pytest.mark.usefixtures("small")
def test_stripes_that_are_copied_do_not_travel_through_part_files(tmp_path: Path) -> None:
    item = in_parts(two_files(tmp_path), 4)
    done = joined(tmp_path, item)
    assert (done.stripes_copied, done.stripes_encoded) == (5, 2)
    assert (done.rows_in, done.rows_out, done.rows_deleted) == (80, 68, 12)
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["_part_00000_00000", "_part_00000_00001", "bucket_00000"]
    with source(tmp_path / part_file(item, 0)) as file:
        assert (file.stripes, file.tail.rows) == (1, 9)


@pytest.mark.usefixtures("small")
def test_a_part_of_which_no_row_survives_leaves_no_file(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 20), stripe_rows=10)
    gone = write_events(tmp_path / "d/b", [delete(RowId(1, _B0, i), by=2) for i in range(10)])
    item = in_parts(item_of(tmp_path, [one], [gone]))
    done = joined(tmp_path, item)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["bucket_00000"]
    assert (done.rows_in, done.rows_out, done.rows_deleted) == (20, 10, 10)


@pytest.mark.usefixtures("small")
def test_parts_whose_rows_overlap_are_never_joined(tmp_path: Path) -> None:
    files = [write_events(tmp_path / f"{n}/b", rows_of(1, 9)) for n in range(2)]
    with pytest.raises(VerificationError, match="do not ascend"):
        joined(tmp_path, in_parts(item_of(tmp_path, files)))
    assert not (tmp_path / "out/bucket_00000").exists()


def test_a_part_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "ENCODE_BYTES", 200)
    files = [write_events(tmp_path / f"{w}/b", rows_of(w, 9)) for w in (1, 2)]
    item = item_of(tmp_path, files)
    (tmp_path / "out").mkdir()
    with source(tmp_path / "2/b") as file:
        (stripe,) = file.tail.footer.stripes
    content = bytearray((tmp_path / "2/b").read_bytes())
    data = stripe.offset + stripe.index_length
    content[data : data + stripe.data_length] = bytes(stripe.data_length)
    (tmp_path / "2/b").write_bytes(content)
    with pytest.raises(CorruptFile, match="stripe 0"):
        write_part(FS, str(tmp_path), item, 0, ROW, ALL)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_that_was_never_written_is_found(tmp_path: Path) -> None:
    item = in_parts(two_files(tmp_path), 4)
    (tmp_path / "out").mkdir()
    missing = NeedsJvm(output=part_file(item, 0), rows=1, stripes=())
    parts = [PartResult(pieces=(missing,), rows_in=0, rows_deleted=0, rows_invalid=0), None]
    with pytest.raises(VerificationError, match="never written"):
        join_item(FS, str(tmp_path), item, parts, ROW)


@pytest.mark.usefixtures("small")
def test_a_part_file_of_another_kind_is_not_joined(tmp_path: Path) -> None:
    item = in_parts(two_files(tmp_path), 4)
    (tmp_path / "out").mkdir()
    write_plain(tmp_path / part_file(item, 0), plain([1, 2]))
    missing = NeedsJvm(output=part_file(item, 0), rows=2, stripes=())
    parts = [PartResult(pieces=(missing,), rows_in=2, rows_deleted=0, rows_invalid=0).completed(), None]
    with pytest.raises(VerificationError, match="cannot stand in"):
        join_item(FS, str(tmp_path), item, parts, ROW)


def test_delete_events_in_ranges_of_row_ids_are_those_of_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "DELETES_A_STRIPE", 3)
    rows = [RowId(w, _B0, i) for w in (1, 2) for i in range(10)]
    files: list[SourceFile] = [
        write_events(tmp_path / "x/b", [delete(r, by=5) for r in rows[::2]], stripe_rows=2),
        write_events(tmp_path / "y/b", [delete(r, by=6) for r in rows[1::2]], stripe_rows=4),
        write_events(tmp_path / "z/b", [delete(r, by=7) for r in rows[::5]]),
    ]
    item = item_of(tmp_path, files, kind=ItemKind.DELETES)
    one = whole(tmp_path, item)
    expected: list[Event] = read_events(tmp_path / item.output)
    assert len(expected) == 24
    cuts = [None, RowId(1, _B0, 3), RowId(1, _B0, 4), RowId(2, _B0, 5), None]
    ranges = tuple(Part(after=a, up_to=b) for a, b in itertools.pairwise(cuts))
    many = joined(tmp_path, PlanItem(**{**vars(item), "parts": ranges}))
    assert read_events(tmp_path / item.output) == expected
    assert (many.rows_in, many.rows_out) == (one.rows_in, one.rows_out) == (24, 24)


def test_a_large_stripe_becomes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "ENCODE_BYTES", 1000)
    one = write_events(tmp_path / "a/b", rows_of(1, 200))
    gone = write_events(tmp_path / "d/b", [delete(RowId(1, _B0, 7), by=2)])
    done = whole(tmp_path, item_of(tmp_path, [one], [gone]))
    assert done.stripes_encoded > 5
    assert [e.row_id.row_id for e in read_events(tmp_path / "out/bucket_00000")] == [i for i in range(200) if i != 7]


def test_inserts_of_a_part_count_in_its_acid_statistics(tmp_path: Path) -> None:
    files = [write_events(tmp_path / f"{w}/b", [insert(w, 0, (1, "a"))]) for w in (1, 2)]
    item = item_of(tmp_path, files)
    joined(tmp_path, item)
    for name in (part_file(item, 0), item.output):
        with source(tmp_path / name) as file:
            assert file.tail.user_metadata["hive.acid.stats"] == b"2,0,0"
