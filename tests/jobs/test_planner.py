"""From files on disk to a plan: tails, delete keys, formats, and the range that must not be written twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth, Refusal
from compactor.acid.records import Event, RowId
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import PART_EVENTS, StripeUse
from compactor.errors import CorruptFile, UnsupportedData
from compactor.jobs.planner import CompactionTarget, plan, read_delete_facts, read_facts, survey
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.delete_facts import MARK_EVENTS, hits, marks
from compactor.orc.facts import orc_facts
from compactor.orc.reader import OrcSource
from compactor.orc.types import acid_arrow_schema
from compactor.storage.readahead import read_ahead
from tests.orc.acid_files import FS, ROW, delete, insert, write_events, write_plain

_B0 = encode_bucket(0)
_ORC = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
_TEXT = "org.apache.hadoop.mapred.TextInputFormat"


def snapshot(high: int = 9, aborted: Sequence[int] = ()) -> Snapshot:
    ids = ValidWriteIdList(table="d.t", high_water=high, aborted=frozenset(aborted))
    return Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids)


def target(location: Path, *, input_format: str = _ORC, full_acid: bool = True, **more: object) -> CompactionTarget:
    return CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=(("id", "int"), ("v", "string")),
        input_format=input_format,
        full_acid=full_acid,
        bucketed=False,
        **more,  # type: ignore[arg-type]
    )


def planned(wanted: CompactionTarget, depth: Depth, seen: Snapshot | None = None) -> CompactionPlan | Refusal:
    seen = seen or snapshot()
    return plan(wanted, survey(wanted, seen), seen, depth, txn_id=50)


def made(wanted: CompactionTarget, depth: Depth, seen: Snapshot | None = None) -> CompactionPlan:
    found = planned(wanted, depth, seen)
    assert isinstance(found, CompactionPlan)
    return found


def rows(write_id: int, count: int, *, width: int = 10) -> list[Event]:
    return [insert(write_id, i, (i, "x" * width)) for i in range(count)]


def uses(found: CompactionPlan) -> list[tuple[int, int, StripeUse]]:
    return [(r.source, i, r.use) for p in found.items[0].parts for r in p.runs for i in range(r.start, r.stop)]


_COPY, _DECODE, _COALESCE = StripeUse.COPY, StripeUse.DECODE, StripeUse.COALESCE


def test_only_stripes_with_valid_deletes_are_decoded(tmp_path: Path) -> None:
    """Row 2 is deleted, row 7 was deleted by an aborted write, and row 99 never was."""
    write_events(tmp_path / "delta_1_1_0000" / "bucket_00000_0", rows(1, 10), stripe_rows=2)
    gone = [delete(RowId(1, _B0, 2), by=3), delete(RowId(1, _B0, 7), by=4), delete(RowId(1, _B0, 99), by=3)]
    write_events(tmp_path / "delete_delta_3_4" / "bucket_00000", gone)
    found = made(target(tmp_path), Depth.MAJOR, snapshot(aborted=[4]))
    assert uses(found) == [(0, i, _DECODE if i == 1 else _COALESCE) for i in range(5)]


def test_deletes_of_one_bucket_do_not_touch_another(tmp_path: Path) -> None:
    for bucket in (0, 1):
        events = [insert(1, i, (i, "v"), bucket=encode_bucket(bucket)) for i in range(4)]
        write_events(tmp_path / "delta_1_1_0000" / f"bucket_0000{bucket}_0", events)
    write_events(tmp_path / "delete_delta_2_2_0000" / "bucket_00001_0", [delete(RowId(1, encode_bucket(1), 1), by=2)])
    found = made(target(tmp_path), Depth.MAJOR)
    assert [[r.use for p in i.parts for r in p.runs] for i in found.items] == [[_COPY], [_DECODE]]


def test_a_minor_compaction_reads_no_delete_keys(tmp_path: Path) -> None:
    """A delete file is opened for its tail and a stripe's footer: its rows may be anything."""
    write_events(tmp_path / "delta_1_1_0000" / "bucket_00000_0", rows(1, 10))
    write_events(tmp_path / "delta_3_3_0000" / "bucket_00000_0", rows(3, 10))
    path = tmp_path / "delete_delta_2_2_0000" / "bucket_00000_0"
    write_events(path, [delete(RowId(1, _B0, i), by=2) for i in range(5)])
    content = bytearray(path.read_bytes())
    with OrcSource(FS, str(path)) as source:
        stripe = source.tail.footer.stripes[0]
    end = stripe.index_length + stripe.data_length
    content[3 : 3 + end] = b"\xff" * end
    path.write_bytes(content)
    assert uses(made(target(tmp_path), Depth.MINOR)) == [(0, 0, _COALESCE), (1, 0, _COALESCE)]
    with pytest.raises(CorruptFile):
        planned(target(tmp_path), Depth.MAJOR)


def test_tails_read_once_serve_both_depths(tmp_path: Path) -> None:
    for write_id in (1, 2, 3):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    wanted, seen = target(tmp_path), snapshot()
    surveyed = survey(wanted, seen)
    facts = read_facts(wanted, surveyed, Depth.MAJOR)
    (tmp_path / "delta_2_2_0000" / "bucket_00000_0").write_bytes(b"gone since")
    for depth in Depth:
        assert isinstance(plan(wanted, surveyed, seen, depth, txn_id=50, facts=facts), CompactionPlan)


def test_codec_recompression_and_number_of_files_are_the_targets(tmp_path: Path) -> None:
    for write_id in (1, 2, 3, 4, 5):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    (kept,) = made(target(tmp_path), Depth.MAJOR).items
    assert (kept.compression, len(kept.parts)) == (pb.ZLIB, 1)
    (item,) = made(target(tmp_path, recompress=pb.ZSTD, max_num_delta=2), Depth.MAJOR).items
    assert (item.compression, len(item.parts)) == (pb.ZSTD, 3)


def test_a_table_whose_codec_nobody_encodes_gets_zlib(tmp_path: Path) -> None:
    for write_id in (2, 3):
        events = [delete(RowId(1, _B0, write_id), by=write_id)]
        write_events(tmp_path / f"delete_delta_{write_id}_{write_id}_0000" / "bucket_00000", events)
    assert [i.compression for i in made(target(tmp_path, codec=pb.LZO), Depth.MINOR).items] == [pb.ZLIB]


def test_a_streaming_file_without_a_commit_goes_into_nothing(tmp_path: Path) -> None:
    for write_id in (1, 2):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    write_events(tmp_path / "delta_3_4" / "bucket_00000", rows(3, 3))
    (tmp_path / "delta_3_4" / "bucket_00000_flush_length").write_bytes(bytes(8))
    (item,) = made(target(tmp_path), Depth.MAJOR).items
    assert [s.path.partition("/")[0] for s in item.sources] == ["delta_1_1_0000", "delta_2_2_0000"]


def test_originals_of_a_union_all_are_found_in_its_folders(tmp_path: Path) -> None:
    for folder in ("HIVE_UNION_SUBDIR_1", "HIVE_UNION_SUBDIR_2"):
        write_plain(tmp_path / folder / "000000_0", pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}))
    (item,) = made(target(tmp_path), Depth.MAJOR).items
    assert [s.synthetic and s.synthetic.first_row_id for s in item.sources] == [0, 2]
    assert {use for _, _, use in uses(made(target(tmp_path), Depth.MAJOR))} == {_DECODE}


def test_text_is_planned_by_its_codec_and_its_header(tmp_path: Path) -> None:
    for write_id, name in ((1, "000000_0"), (2, "000000_0.gz"), (3, "000000_0")):
        folder = tmp_path / f"delta_{write_id}_{write_id}_0000"
        folder.mkdir()
        (folder / name).write_bytes(b"id,v\n1,a\n")
    wanted = target(tmp_path, input_format=_TEXT, full_acid=False, properties={"skip.header.line.count": "1"})
    found = made(wanted, Depth.MAJOR)
    assert [(i.format, i.output.rpartition("/")[2], len(i.sources), i.skipped) for i in found.items] == [
        ("text", "000000_0", 2, (1, 0)),
        ("text", "000001_0.gz", 1, (1, 0)),
    ]


@pytest.mark.parametrize("input_format", [_TEXT, "com.example.OwnInputFormat"])
def test_a_full_acid_table_is_orc_or_refused(tmp_path: Path, input_format: str) -> None:
    for write_id in (1, 2):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    found = planned(target(tmp_path, input_format=input_format), Depth.MAJOR)
    assert isinstance(found, Refusal)
    assert found.reason == f"tables read by {input_format} are not compacted"


@pytest.mark.parametrize(
    ("twin", "depth"),
    [
        ("base_0000009_v0000040", Depth.MAJOR),
        ("delta_0000001_0000009_v0000040", Depth.MINOR),
        ("delete_delta_0000001_0000009_v0000040", Depth.MINOR),
    ],
)
def test_a_range_that_was_committed_before_is_not_written_again(tmp_path: Path, twin: str, depth: Depth) -> None:
    """Two minors of one range would both be read (HIVE-29210); the twin's transaction is what makes it one."""
    for write_id in (1, 2, 9):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    write_events(tmp_path / "delete_delta_9_9_0001" / "bucket_00000", [delete(RowId(1, _B0, 0), by=9)])
    surveyed_before = survey(target(tmp_path), snapshot())
    (tmp_path / twin).mkdir()
    seen = snapshot()
    surveyed = survey(target(tmp_path), seen)
    found = plan(
        target(tmp_path),
        # The twin was committed after the state was judged and before the plan was made.
        type(surveyed)(fs=surveyed.fs, root=surveyed.root, listing=surveyed.listing, state=surveyed_before.state),
        seen,
        depth,
        txn_id=50,
    )
    assert isinstance(found, Refusal)
    assert found.reason == f"{twin} has the range that the output would have"


def test_the_output_of_an_open_or_aborted_compaction_is_no_twin(tmp_path: Path) -> None:
    for write_id in (1, 2):
        write_events(tmp_path / f"delta_{write_id}_{write_id}_0000" / "bucket_00000_0", rows(write_id, 3))
    (tmp_path / "base_0000009_v0000040").mkdir()
    ids = snapshot().write_ids
    for txns in (
        ValidTxnList(high_water=99, open=frozenset({40})),
        ValidTxnList(high_water=99, aborted=frozenset({40})),
    ):
        made(target(tmp_path), Depth.MAJOR, Snapshot(txns=txns, write_ids=ids))


def write_deletes(path: Path, keys: np.ndarray, *, by: int, stripe_rows: int) -> None:
    """Delete events of rows of write id 1, by row id; a million of them in a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = acid_arrow_schema(ROW)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, acid_template(ROW, compression=pb.ZSTD))
        for start in range(0, len(keys), stripe_rows):
            part = keys[start : start + stripe_rows]
            same = np.ones(len(part), dtype=np.int64)
            columns = [same * 2, same, same * _B0, part, same * by]
            arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=False)]
            table = pa.Table.from_arrays([*arrays, pa.nulls(len(part), schema.field("row").type)], schema=schema)
            out.append(table, RowId(1, _B0, int(part[-1])))
        out.finish(AcidStats(deletes=len(keys)))


def test_more_delete_events_than_a_task_sorts_become_ranges_of_equal_size(tmp_path: Path) -> None:
    """Scattered over the whole table by each of three transactions, as an hourly DELETE does."""
    each = PART_EVENTS // 2
    for write_id in (2, 3, 4):
        keys = np.arange(write_id, 3 * each + write_id, 3)
        path = tmp_path / f"delete_delta_{write_id}_{write_id}_0000" / "bucket_00000_0"
        write_deletes(path, keys, by=write_id, stripe_rows=200_000)
    (item,) = made(target(tmp_path), Depth.MINOR).items
    low, high = item.parts
    assert (low.after, high.up_to) == (None, None)
    assert low.up_to == high.after
    assert low.up_to is not None
    assert abs(low.up_to.row_id - 3 * each // 2) < 4 * MARK_EVENTS


def test_marks_count_every_event_once(tmp_path: Path) -> None:
    keys = np.arange(2 * MARK_EVENTS + 5)
    write_deletes(tmp_path / "f", keys, by=2, stripe_rows=MARK_EVENTS + 3)
    found = marks(FS, str(tmp_path), {"f": 2})["f"]
    assert [(key.row_id, count) for key, count in found] == [
        (MARK_EVENTS - 1, MARK_EVENTS),
        (MARK_EVENTS + 2, 3),
        (2 * MARK_EVENTS + 2, MARK_EVENTS),
        (2 * MARK_EVENTS + 4, 2),
    ]


_ids = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), unique=True, max_size=25)


@settings(max_examples=40, deadline=None)
@given(data=_ids.filter(bool), gone=st.lists(st.tuples(_ids, st.integers(4, 7)), max_size=4), size=st.integers(1, 6))
def test_hits_are_the_valid_deletes_within_the_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[tuple[int, int]],
    gone: list[tuple[list[tuple[int, int]], int]],
    size: int,
) -> None:
    root = tmp_path_factory.mktemp("hits")
    valid = ValidWriteIdList(table="d.t", high_water=6, aborted=frozenset({5}))
    write_events(root / "data", [insert(w, r, (r, "v")) for w, r in sorted(data)], stripe_rows=size)
    names: dict[str, int] = {}
    for number, (ids, by) in enumerate(gone):
        write_events(root / f"x{number}", [delete(RowId(w, _B0, r), by=by) for w, r in sorted(ids)], stripe_rows=4)
        names[f"x{number}"] = len(orc_facts(FS, str(root / f"x{number}")).stripes)
    stripes = orc_facts(FS, str(root / "data")).stripes
    found = hits(FS, str(root), {"data": stripes}, names, valid)["data"]
    keys = [RowId(w, _B0, r) for ids, by in gone if valid.is_valid(by) for w, r in ids]
    expected = [
        sum(s.first <= k <= s.last for k in keys) for s in stripes if s.first is not None and s.last is not None
    ]
    assert list(found) == expected
    deleted = {(w, r) for ids, by in gone if valid.is_valid(by) for w, r in ids}
    for number, stripe in enumerate(found):
        assert stripe or not deleted & set(sorted(data)[number * size : (number + 1) * size])


def test_stripes_that_do_not_know_their_bounds_are_not_looked_up(tmp_path: Path) -> None:
    write_plain(tmp_path / "plain", pa.table({"id": [1]}))
    write_deletes(tmp_path / "x", np.arange(5), by=2, stripe_rows=5)
    facts = orc_facts(FS, str(tmp_path / "plain"))
    assert hits(FS, str(tmp_path), {"plain": facts.stripes}, {"x": 1}, snapshot().write_ids) == {"plain": (0,)}


def test_a_plan_asks_only_for_the_delete_facts_it_needs(tmp_path: Path) -> None:
    write_events(tmp_path / "delta_1_1_0000" / "bucket_00000", rows(1, 3))
    write_events(tmp_path / "delete_delta_2_2_0000" / "bucket_00000", [delete(RowId(1, _B0, 0), by=2)])
    wanted, seen = target(tmp_path), snapshot()
    surveyed = survey(wanted, seen)
    facts = read_facts(wanted, surveyed, Depth.MAJOR)
    major = read_delete_facts(surveyed, facts, Depth.MAJOR, seen.write_ids)
    minor = read_delete_facts(surveyed, facts, Depth.MINOR, seen.write_ids)
    assert (major.hits, major.marks) == ({"delta_1_1_0000/bucket_00000": (1,)}, {})
    assert (minor.hits, minor.marks) == ({}, {})


def test_files_are_read_ahead_in_order_and_by_several_threads() -> None:
    together = threading.Barrier(4, timeout=60)

    def read(number: int) -> int:
        together.wait()
        return number * 2

    assert list(read_ahead(read, range(8), threads=4)) == [n * 2 for n in range(8)]


def test_no_more_is_read_ahead_than_there_are_threads() -> None:
    begun: list[int] = []
    reading = read_ahead(begun.append, range(100), threads=3)
    next(reading)
    del reading
    assert len(begun) <= 4


def test_what_reading_ahead_raises_comes_in_its_place() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise UnsupportedData("the third")
        return number

    found: list[int] = []
    with pytest.raises(UnsupportedData, match="the third"):
        found.extend(read_ahead(read, range(100), threads=2))
    assert found == [0, 1]
