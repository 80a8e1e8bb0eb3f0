"""Running plan items, with every row held against the plain-Python merge."""

from __future__ import annotations

import datetime as dt
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from compactor.acid import stripes
from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.records import Event, Operation, RowId, SyntheticIds, merge
from compactor.acid.schema import HiveType, parse_type
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CorruptFile, UnsupportedData, VerificationError
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc import rewrite
from compactor.orc.assembler import AcidStats, FileAssembler, Template
from compactor.orc.parts import NeedsJvm, PartResult
from compactor.orc.reader import OrcSource
from compactor.orc.rewrite import ItemResult, run_item
from compactor.orc.tail import stripe_length
from tests.orc.acid_files import (
    FS,
    ROW,
    delete,
    event_table,
    insert,
    read_events,
    source,
    write_events,
    write_plain,
)
from tests.orc.items import ALL, item_of

_B0, _B1 = 536870912, 536870913


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stripe is large enough to be copied."""
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", 0)


def run(
    root: Path,
    sources: list[SourceFile],
    deletes: list[SourceFile] | None = None,
    *,
    kind: ItemKind = ItemKind.ROWS,
    row_type: HiveType = ROW,
    valid: ValidWriteIdList = ALL,
    output: str = "out/bucket_00000",
) -> tuple[ItemResult, list[Event]]:
    """The result and the events of the output."""
    item = item_of(root, sources, deletes or (), kind=kind, row_type=row_type, valid=valid, output=output)
    (root / "out").mkdir(exist_ok=True)
    done = run_item(FS, str(root), item, row_type, valid)
    assert isinstance(done, ItemResult)
    return done, [] if kind is ItemKind.PLAIN else read_events(root / output)


@dataclass(frozen=True, kw_only=True)
class History:
    """Insert files of ascending write ids and delete files over their rows."""

    inserts: list[list[Event]]
    deletes: list[list[Event]]
    stripe_rows: int
    valid: ValidWriteIdList


@st.composite
def histories(draw: st.DrawFn) -> History:
    inserts: list[list[Event]] = []
    write_id = 0
    for _ in range(draw(st.integers(1, 3))):
        events = []
        for _ in range(draw(st.integers(1, 2))):
            write_id += 1
            for bucket in draw(st.sampled_from([[_B0], [_B0, _B1]])):
                rows = draw(st.integers(0, 6))
                values = draw(st.lists(st.none() | st.text("ab☃", max_size=3), min_size=rows, max_size=rows))
                events += [insert(write_id, i, (i, v), bucket=bucket) for i, v in enumerate(values)]
        inserts.append(events)
    rows = [e.row_id for part in inserts for e in part]
    deletes: list[list[Event]] = []
    for _ in range(draw(st.integers(0, 2))):
        write_id += 1
        chosen = draw(st.sets(st.sampled_from(rows))) if rows else set()
        deletes.append([delete(row, by=write_id) for row in sorted(chosen)])
    aborted = draw(st.frozensets(st.integers(1, write_id), max_size=2))
    return History(
        inserts=inserts,
        deletes=deletes,
        stripe_rows=draw(st.sampled_from([1, 2, 3, 100])),
        valid=ValidWriteIdList(table="d.t", high_water=write_id, aborted=aborted),
    )


def laid_out(root: Path, history: History) -> tuple[list[SourceFile], list[SourceFile]]:
    return (
        [write_events(root / f"i{n}" / "b", e, stripe_rows=history.stripe_rows) for n, e in enumerate(history.inserts)],
        [write_events(root / f"d{n}" / "b", e, stripe_rows=history.stripe_rows) for n, e in enumerate(history.deletes)],
    )


@pytest.fixture(params=["every stripe is large", "every stripe is small"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", 0 if "large" in request.param else 1 << 20)


@pytest.mark.usefixtures("sizes")
@given(history=histories())
@settings(max_examples=40)
def test_rows_are_those_of_the_oracle(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    root = tmp_path_factory.mktemp("t")
    done, found = run(root, *laid_out(root, history), valid=history.valid)
    events = [e for part in [*history.inserts, *history.deletes] for e in part]
    assert [(e.row_id, e.row) for e in found] == list(merge(events, history.valid))
    assert {e.operation for e in found} <= {Operation.INSERT}
    assert done.rows_in == done.rows_out + done.rows_deleted + done.rows_invalid
    with source(root / "out/bucket_00000") as file:
        index = file.tail.key_index()
        assert index is not None
        assert list(index) == [file.keys(s).at(-1) for s in range(file.stripes)]
        assert file.tail.footer.statistics[0].number_of_values == done.rows_out


@pytest.mark.usefixtures("sizes")
@given(history=histories())
@settings(max_examples=30)
def test_a_minor_compaction_changes_nothing_that_a_reader_sees(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    root = tmp_path_factory.mktemp("t")
    inserts, deletes = laid_out(root, history)
    _, rows = run(root, inserts, valid=history.valid)
    done, gone = run(root, deletes, kind=ItemKind.DELETES, valid=history.valid, output="out/deletes")
    events = [e for part in [*history.inserts, *history.deletes] for e in part]
    assert list(merge([*rows, *gone], history.valid)) == list(merge(events, history.valid))
    assert [(e.row_id, e.current_write_id) for e in gone] == sorted((e.row_id, e.current_write_id) for e in gone)
    assert done.rows_in == done.rows_out + done.rows_invalid


@pytest.mark.usefixtures("sizes")
@given(history=histories())
@settings(max_examples=10)
def test_running_an_item_twice_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, history: History
) -> None:
    root = tmp_path_factory.mktemp("t")
    inserts, deletes = laid_out(root, history)
    contents = set()
    for _ in range(2):
        run(root, inserts, deletes, valid=history.valid)
        contents.add((root / "out/bucket_00000").read_bytes())
    assert len(contents) == 1


def rows_of(write_id: int, count: int) -> list[Event]:
    return [insert(write_id, i, (i, f"w{write_id}r{i}")) for i in range(count)]


@pytest.mark.usefixtures("small")
def test_only_stripes_that_a_delete_hits_are_encoded(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 40), stripe_rows=10)
    gone = write_events(tmp_path / "d/b", [delete(RowId(1, _B0, 25), by=2)])
    done, found = run(tmp_path, [one], [gone])
    assert (done.stripes_copied, done.stripes_encoded, done.rows_deleted) == (3, 1, 1)
    assert [e.row_id.row_id for e in found] == [i for i in range(40) if i != 25]


@pytest.mark.usefixtures("small")
def test_a_stripe_that_is_deleted_as_a_whole_is_dropped(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 20), stripe_rows=10)
    gone = write_events(tmp_path / "d/b", [delete(RowId(1, _B0, i), by=2) for i in range(10)])
    done, _ = run(tmp_path, [one], [gone])
    assert (done.stripes_copied, done.stripes_encoded, done.rows_deleted) == (1, 0, 10)


def test_small_stripes_of_many_files_become_one(tmp_path: Path) -> None:
    files = [write_events(tmp_path / f"{w}/b", rows_of(w, 5), stripe_rows=2) for w in range(1, 9)]
    done, found = run(tmp_path, files)
    assert (done.stripes_copied, done.stripes_encoded) == (0, 1)
    assert found == [e for w in range(1, 9) for e in rows_of(w, 5)]


def test_large_pieces_become_several_stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "ENCODE_BYTES", 500)
    one = write_events(tmp_path / "a/b", rows_of(1, 40), stripe_rows=5)
    done, found = run(tmp_path, [one])
    assert done.stripes_encoded > 2
    assert found == rows_of(1, 40)


def test_an_item_without_sources_writes_an_empty_file(tmp_path: Path) -> None:
    done, found = run(tmp_path, [])
    assert (done.rows_out, found) == (0, [])
    with source(tmp_path / "out/bucket_00000") as file:
        assert file.tail.is_acid
        assert file.tail.key_index() == ()


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_files_whose_rows_overlap_are_never_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", size)
    two = [write_events(tmp_path / "a/b", rows_of(1, 9)), write_events(tmp_path / "c/b", rows_of(1, 3))]
    with pytest.raises(VerificationError, match="do not ascend"):
        run(tmp_path, two)
    assert list((tmp_path / "out").iterdir()) == []


def test_rows_out_of_order_inside_a_file_are_an_error(tmp_path: Path) -> None:
    two = [write_events(tmp_path / "a/b", rows_of(1, 9)[::-1]), write_events(tmp_path / "c/b", rows_of(2, 9))]
    with pytest.raises(VerificationError, match="do not ascend"):
        run(tmp_path, two)


def test_a_file_that_changed_since_the_plan_is_an_error(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 9))
    stale = SourceFile(path=one.path, size=one.size, rows=8)
    with pytest.raises(VerificationError, match="when the compaction was planned"):
        run(tmp_path, [stale])


def test_update_events_of_old_hives_are_refused(tmp_path: Path) -> None:
    old = Event(operation=Operation.UPDATE, row_id=RowId(1, _B0, 0), current_write_id=2, row=(1, "x"))
    one = write_events(tmp_path / "a/b", [old])
    with pytest.raises(UnsupportedData, match="Hive before 3"):
        run(tmp_path, [one])


def test_an_insert_among_deletes_is_corrupt(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 2))
    with pytest.raises(CorruptFile, match="no deletes"):
        run(tmp_path, [one], kind=ItemKind.DELETES)


def test_delete_events_are_merged_where_arrow_has_no_type_for_the_rows(tmp_path: Path) -> None:
    union = parse_type("struct<id:int,u:array<uniontype<int,struct<a:string>>>,v:string>")
    files = [write_events(tmp_path / f"d{by}/b", [delete(RowId(1, _B0, 9 - by), by=by)]) for by in (2, 3)]
    item = item_of(tmp_path, files, kind=ItemKind.DELETES, row_type=union)
    (tmp_path / "out").mkdir()
    assert isinstance(run_item(FS, str(tmp_path), item, union, ALL), ItemResult)
    with source(tmp_path / item.output) as file:
        assert file.tail.row_type == union
        assert [file.keys(0).at(n) for n in range(2)] == [RowId(1, _B0, 6), RowId(1, _B0, 7)]


@pytest.mark.usefixtures("small")
def test_a_stripe_whose_statistics_count_nothing_is_not_copied(tmp_path: Path) -> None:
    """Hive's streaming ingest writes such stripes; a copy would make Hive drop delete events."""
    write_events(tmp_path / "a/b", rows_of(1, 5))
    with source(tmp_path / "a/b") as old, FS.write_atomically(f"{tmp_path}/a/c") as stream:
        out = FileAssembler(stream, Template.of(old.tail))
        old.tail.metadata.stripe_stats[0].col_stats[0].number_of_values = 0
        out.copy(old, 0, old.keys(0).at(-1))
        out.finish(AcidStats(inserts=5))
    done, found = run(tmp_path, [SourceFile(path="a/c", size=1, rows=5)])
    assert (done.stripes_copied, done.stripes_encoded) == (0, 1)
    assert found == rows_of(1, 5)


@pytest.mark.usefixtures("small")
def test_a_file_without_a_key_index_is_copied_only_when_its_statistics_tell_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    mixed = [*rows_of(2, 5), *rows_of(3, 5)]
    orc.write_table(event_table(rows_of(1, 5), ROW), str(tmp_path / "a/b"))
    orc.write_table(event_table(mixed, ROW), str(tmp_path / "a/c"))
    done, found = run(tmp_path, [SourceFile(path="a/b", size=1, rows=5), SourceFile(path="a/c", size=1, rows=10)])
    assert (done.stripes_copied, done.stripes_encoded) == (1, 1)
    assert found == [*rows_of(1, 5), *mixed]


@pytest.mark.usefixtures("small")
def test_a_file_of_another_codec_is_encoded_in_the_codec_of_most_bytes(tmp_path: Path) -> None:
    big = write_events(tmp_path / "a/b", rows_of(1, 500), compression=pb.SNAPPY)
    little = write_events(tmp_path / "c/b", rows_of(2, 5), compression=pb.ZSTD)
    done, found = run(tmp_path, [big, little])
    assert (done.stripes_copied, done.stripes_encoded) == (1, 1)
    assert found == rows_of(1, 500) + rows_of(2, 5)
    with source(tmp_path / "out/bucket_00000") as file:
        assert file.tail.postscript.compression == pb.SNAPPY


@pytest.mark.usefixtures("sizes")
def test_an_evolved_file_takes_the_tables_columns(tmp_path: Path) -> None:
    old_type = parse_type("struct<id:int,c:char(4),l:array<int>,s:struct<x:int>>")
    new_type = parse_type(
        "struct<id:bigint,renamed:string,l:array<bigint>,s:struct<x:int,y:string>,extra:decimal(9,2)>"
    )
    old = write_events(
        tmp_path / "a/b",
        [insert(1, 0, (1, "ab  ", [1, None], {"x": 1})), insert(1, 1, (None, None, None, None))],
        row_type=old_type,
    )
    row = (2, "z ", [5], {"x": 2, "y": "k"}, None)
    new = write_events(tmp_path / "c/b", [insert(2, 0, row)], row_type=new_type)
    _, found = run(tmp_path, [old, new], row_type=new_type)
    assert [e.row for e in found] == [
        (1, "ab", [1, None], {"x": 1, "y": None}, None),
        (None, None, None, None, None),
        row,
    ]


def test_a_lossy_conversion_is_refused(tmp_path: Path) -> None:
    one = write_events(tmp_path / "a/b", rows_of(1, 2))
    with pytest.raises(UnsupportedData, match="cannot be rewritten"):
        run(tmp_path, [one], row_type=parse_type("struct<id:smallint,v:string>"))


_INSTANT = parse_type("struct<ts:timestamp,tz:timestamp with local time zone,v:string>")


def test_both_kinds_of_timestamps_are_encoded_beside_missing_ones(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 2, 29, 12, 30, 1)  # noqa: DTZ001
    utc = moment.replace(tzinfo=dt.UTC)
    narrow = parse_type("struct<ts:timestamp>")
    old = write_events(tmp_path / "a/b", [insert(1, 0, (moment,))], row_type=narrow)
    new = write_events(tmp_path / "c/b", [insert(2, 0, (moment, utc, "x"))], row_type=_INSTANT)
    run(tmp_path, [old, new], row_type=_INSTANT)
    found = orc.ORCFile(str(tmp_path / "out/bucket_00000")).read().column("row").to_pylist()
    assert [r["ts"].to_pydatetime() for r in found] == [moment, moment]
    assert [None if r["tz"] is None else r["tz"].to_pydatetime() for r in found] == [None, utc]


_FAR = pa.struct([("id", pa.int32()), ("ts", pa.timestamp("us"))])
_FAR_TYPE = parse_type("struct<id:int,ts:timestamp>")


def far_future(path: Path) -> SourceFile:
    """Three rows of the year 9999, which 64-bit nanoseconds cannot hold, as another writer made them."""
    far = dt.datetime(9999, 12, 31)  # noqa: DTZ001
    rows = pa.array([{"id": i, "ts": far} for i in range(3)], type=_FAR)
    events = event_table([insert(1, i, (i, None)) for i in range(3)], _FAR_TYPE)
    made = write_plain(path.with_name("plain"), events.set_column(5, "row", rows), compression="zlib")
    with source(path.with_name("plain")) as old, FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, Template.of(old.tail))
        out.copy(old, 0, RowId(1, _B0, 2))
        out.finish(AcidStats(inserts=3))
    return SourceFile(path=f"{path.parent.name}/{path.name}", size=made.size, rows=3)


def test_timestamps_that_cannot_be_decoded_are_copied_as_a_whole(tmp_path: Path) -> None:
    far = far_future(tmp_path / "a/b")
    near = write_events(tmp_path / "c/b", [insert(2, 0, (7, None))], row_type=_FAR_TYPE)
    done, _ = run_unread(tmp_path, [far, near])
    assert isinstance(done, ItemResult)
    assert (done.stripes_copied, done.stripes_encoded, done.rows_out) == (1, 1, 4)
    with source(tmp_path / "out/bucket_00000") as file, source(tmp_path / "a/b") as old:
        assert raw_stripe(tmp_path / "out/bucket_00000", file, 0) == raw_stripe(tmp_path / "a/b", old, 0)


def test_a_delete_among_timestamps_that_cannot_be_decoded_is_left_to_the_jvm(tmp_path: Path) -> None:
    far = far_future(tmp_path / "a/b")
    gone = write_events(tmp_path / "d/b", [delete(RowId(1, _B0, 1), by=2)], row_type=_FAR_TYPE)
    done, item = run_unread(tmp_path, [far], [gone])
    assert isinstance(done, PartResult)
    assert (done.rows_in, done.rows_deleted, done.rows_invalid) == (3, 1, 0)
    (piece,) = done.pieces
    assert isinstance(piece, NeedsJvm)
    assert piece.rows == 2
    (stripe,) = piece.stripes
    assert (stripe.path, stripe.stripe, stripe.synthetic) == (far.path, 0, None)
    assert np.unpackbits(np.frombuffer(zlib.decompress(stripe.keep), np.uint8), count=3).tolist() == [1, 0, 1]
    assert not (tmp_path / item.output).exists()


def run_unread(
    root: Path, sources: list[SourceFile], deletes: list[SourceFile] | None = None
) -> tuple[ItemResult | PartResult, PlanItem]:
    """As `run`, for output that pyarrow cannot read either."""
    item = item_of(root, sources, deletes or (), row_type=_FAR_TYPE)
    (root / "out").mkdir()
    done = run_item(FS, str(root), item, _FAR_TYPE, ALL)
    return done, item


def raw_stripe(path: Path, file: OrcSource, stripe: int) -> bytes:
    information = file.tail.footer.stripes[stripe]
    return path.read_bytes()[information.offset : information.offset + stripe_length(information)]


def plain(ids: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32()), "v": pa.array([str(i) for i in ids])})


def test_rows_without_acid_columns_get_the_row_ids_of_the_plan(tmp_path: Path) -> None:
    first = write_plain(tmp_path / "a/000000_0", plain([1, 2]), stripe_size=1)
    second = write_plain(tmp_path / "a/000000_0_copy_1", plain([3]))
    files = [
        SourceFile(
            path=f.path,
            size=f.size,
            rows=f.rows,
            synthetic=SyntheticIds(write_id=0, bucket=_B0, first_row_id=start),
        )
        for f, start in ((first, 0), (second, 2))
    ]
    gone = write_events(tmp_path / "d/b", [delete(RowId(0, _B0, 1), by=1)])
    done, found = run(tmp_path, files, [gone])
    assert [(e.row_id, e.row) for e in found] == [(RowId(0, _B0, 0), (1, "1")), (RowId(0, _B0, 2), (3, "3"))]
    assert done.stripes_copied == 0


@pytest.mark.usefixtures("sizes")
def test_an_insert_only_item_joins_its_files(tmp_path: Path) -> None:
    files = [write_plain(tmp_path / f"{n}/000000_0", plain([n, n + 10])) for n in range(3)]
    done, _ = run(tmp_path, files, kind=ItemKind.PLAIN, output="out/000000_0")
    found = orc.ORCFile(str(tmp_path / "out/000000_0")).read()
    assert found.column("id").to_pylist() == [0, 10, 1, 11, 2, 12]
    assert (done.rows_in, done.rows_out) == (6, 6)
