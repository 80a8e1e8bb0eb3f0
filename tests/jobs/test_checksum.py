"""`verify = full` passes what is right and finds every kind of wrong row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.records import Event, RowId
from compactor.acid.schema import parse_type
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import CorruptFile, VerificationError
from compactor.jobs import stretches
from compactor.jobs.checksum import Checksum, verify_rows
from compactor.jobs.execution import prepare_directories
from compactor.jobs.parquet import run_parquet_item
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.session import SparkSessions
from compactor.jobs.stretches import OnSpark
from compactor.storage.filesystem import open_location
from tests.inline_each import inline
from tests.jobs.compacted import direct_results, planned, two_bucket_table
from tests.orc.acid_files import delete, insert, read_events, write_events

B0 = encode_bucket(0)
Tamper = Callable[[list[Event]], list[Event]]


@pytest.fixture(params=[Depth.MAJOR, Depth.MINOR])
def written(request: pytest.FixtureRequest, location: Path) -> CompactionPlan:
    two_bucket_table(location)
    made = planned(location, request.param)
    direct_results(made)
    return made


def tampered(location: Path, made: CompactionPlan, change: Tamper) -> None:
    """Write the first output file again with other events, as well-formed as before."""
    path = location / made.items[0].output
    write_events(path, change(read_events(path)), stripe_rows=4)


def changed(events: list[Event]) -> list[Event]:
    return [replace(events[0], row=(99, "w1r0")), *events[1:]]


def swapped(events: list[Event]) -> list[Event]:
    one, other, *rest = events
    return [replace(one, row=other.row), replace(other, row=one.row), *rest]


def resurrected(events: list[Event]) -> list[Event]:
    back = insert(2, 3, (3, "w2r3"))
    return sorted([*(e for e in events if e.row_id != back.row_id), back], key=lambda e: e.row_id)


def rewritten_by_another(events: list[Event]) -> list[Event]:
    return [replace(events[0], current_write_id=2), *events[1:]]


def test_the_output_of_a_good_run_passes_whatever_its_stripes(location: Path, written: CompactionPlan) -> None:
    assert verify_rows(inline, written) == ()
    tampered(location, written, lambda events: events)
    assert verify_rows(inline, written) == ()


@pytest.mark.parametrize(
    "change",
    [
        changed,
        swapped,
        rewritten_by_another,
        lambda events: events[1:],
        lambda events: events[:-1],
        lambda events: [*events, insert(4, 0, (0, "new"))],
        lambda events: [replace(events[0], row=(None, "w1r0")), *events[1:]],
        lambda events: [replace(events[0], row=(0, None)), *events[1:]],
        lambda events: [replace(events[0], row_id=RowId(1, B0 + 1, 0)), *events[1:]],
    ],
    ids=[
        "changed",
        "swapped",
        "rewritten",
        "first lost",
        "last lost",
        "invented",
        "number to null",
        "text to null",
        "other bucket",
    ],
)
def test_a_wrong_row_is_found(location: Path, written: CompactionPlan, change: Tamper) -> None:
    tampered(location, written, change)
    with pytest.raises(VerificationError, match=r"are not the .* live rows of its sources"):
        verify_rows(inline, written)


def test_a_deleted_row_that_came_back_is_found_after_a_major_compaction(location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    direct_results(made)
    tampered(location, made, resurrected)
    with pytest.raises(VerificationError, match="its 15 rows are not the 14 live rows"):
        verify_rows(inline, made)


def test_a_lost_or_changed_delete_event_is_found_after_a_minor_compaction(location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MINOR)
    direct_results(made)
    path = location / made.items[-1].output
    for events in ([], [delete(RowId(2, B0, 2), by=4)], [delete(RowId(2, B0, 3), by=3)]):
        write_events(path, events)
        with pytest.raises(VerificationError, match="delete_delta"):
            verify_rows(inline, made)


def test_rows_out_of_order_are_found(location: Path, written: CompactionPlan) -> None:
    tampered(location, written, lambda events: [events[1], events[0], *events[2:]])
    with pytest.raises(VerificationError, match="do not ascend"):
        verify_rows(inline, written)


def test_two_lists_of_rows_that_overlap_do_not_ascend() -> None:
    one = Checksum(rows=1, first=(1, B0, 0, 1), last=(1, B0, 5, 1))
    assert one.then(replace(one, first=(1, B0, 6, 1), last=(1, B0, 7, 1))).ascending
    assert not one.then(replace(one, first=(1, B0, 4, 1), last=(1, B0, 7, 1))).ascending
    assert Checksum().then(one) == one


def test_aborted_writes_are_not_live(location: Path) -> None:
    two_bucket_table(location)
    events = [insert(write_id, 0, (0, "s")) for write_id in (5, 6, 7)]
    write_events(location / "delta_0000005_0000007" / "bucket_00000", events)
    ids = ValidWriteIdList(table="d.t", high_water=7, aborted=frozenset({6}))
    made = acid_plan(location, Depth.MAJOR, (("id", "int"), ("v", "string")), ids)
    direct_results(made)
    assert verify_rows(inline, made) == ()
    with pytest.raises(VerificationError, match="its 16 rows are not the 17 live rows"):
        verify_rows(inline, replace(made, write_ids=replace(ids, aborted=frozenset())))


def test_a_large_file_is_read_in_many_stretches(
    location: Path, written: CompactionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 1)
    tampered(location, written, lambda events: events)
    assert verify_rows(inline, written) == ()
    tampered(location, written, swapped)
    with pytest.raises(VerificationError):
        verify_rows(inline, written)


def acid_plan(
    location: Path,
    depth: Depth,
    columns: tuple[tuple[str, str], ...],
    write_ids: ValidWriteIdList,
    *,
    full_acid: bool = True,
    input_format: str = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
) -> CompactionPlan:
    target = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=columns,
        input_format=input_format,
        full_acid=full_acid,
        bucketed=False,
    )
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=write_ids)
    made = plan(target, survey(target, snapshot), snapshot, depth, txn_id=50)
    assert isinstance(made, CompactionPlan)
    return made


TYPES = {
    "b": "boolean",
    "d": "double",
    "m": "decimal(20,4)",
    "t": "timestamp",
    "x": "date",
    "l": "array<struct<a:int,b:string>>",
    "p": "map<string,bigint>",
}
ROWS: list[tuple[Any, ...]] = [
    (
        True,
        1.5,
        Decimal("1.5000"),
        datetime.fromisoformat("2020-01-02T03:04:05.678901"),
        date(2020, 1, 1),
        [{"a": 1, "b": "x"}],
        [],
    ),
    (None, float("nan"), None, None, None, None, None),
    (False, -0.0, Decimal(-7), datetime.fromisoformat("1900-01-01"), date(1999, 12, 31), [], [("k", 1), ("l", None)]),
]


@pytest.mark.parametrize("column", range(len(TYPES)))
def test_a_change_in_a_column_of_any_type_is_found(location: Path, column: int) -> None:
    row_type = parse_type(f"struct<{','.join(f'{n}:{t}' for n, t in TYPES.items())}>")
    for write_id in (1, 2, 3):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        write_events(folder / "bucket_00000", [insert(write_id, i, r) for i, r in enumerate(ROWS)], row_type=row_type)
    made = acid_plan(location, Depth.MAJOR, tuple(TYPES.items()), ValidWriteIdList(table="d.t", high_water=3))
    direct_results(made)
    assert verify_rows(inline, made) == ()
    values = list(ROWS[0])
    values[column] = ROWS[2][column]
    rows = [tuple(values) if i == 4 else ROWS[i % 3] for i in range(9)]
    rows[4] = (*ROWS[1][:column], ROWS[2][column], *ROWS[1][column + 1 :])
    events = [insert(i // 3 + 1, i % 3, row) for i, row in enumerate(rows)]
    write_events(location / made.items[0].output, events, row_type=row_type)
    with pytest.raises(VerificationError, match="9 rows are not the 9 live rows"):
        verify_rows(inline, made)


@pytest.fixture(params=["orc", "parquet"])
def plain(request: pytest.FixtureRequest, location: Path) -> tuple[CompactionPlan, Callable[[pa.Table], None]]:
    """An insert-only table of two files, compacted; and a function that replaces the output."""
    kind = request.param
    save = {"orc": orc.write_table, "parquet": parquet.write_table}[kind]
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        folder.mkdir(parents=True)
        save(pa.table({"id": [write_id, 5, None], "v": ["a", None, "c"]}), str(folder / "000000_0"))
    classes = {
        "orc": "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        "parquet": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    }
    ids = ValidWriteIdList(table="d.t", high_water=2)
    columns = (("id", "bigint"), ("v", "string"))
    made = acid_plan(location, Depth.MAJOR, columns, ids, full_acid=False, input_format=classes[kind])
    if kind == "parquet":
        prepare_directories(made)
        run_parquet_item(*open_location(made.location), made.items[0], made.row_type)
    else:
        direct_results(made)
    return made, lambda table: save(table, str(location / made.items[0].output))


def test_rows_without_a_row_id_keep_their_values_and_places(
    plain: tuple[CompactionPlan, Callable[[pa.Table], None]],
) -> None:
    made, save = plain
    assert verify_rows(inline, made) == ()
    ids, texts = [1, 5, None, 2, 5, None], ["a", None, "c", "a", None, "c"]
    save(pa.table({"id": pa.array(ids, pa.int64()), "v": texts}))
    assert verify_rows(inline, made) == ()
    for wrong in ([1, 5, None, 2, 5, 0], [2, 5, None, 1, 5, None], [5, 1, None, 2, 5, None]):
        save(pa.table({"id": pa.array(wrong, pa.int64()), "v": texts}))
        with pytest.raises(VerificationError):
            verify_rows(inline, made)
    save(pa.table({"id": pa.array(ids[:5], pa.int64()), "v": texts[:5]}))
    with pytest.raises(VerificationError, match="5 rows are not the 6"):
        verify_rows(inline, made)


def test_values_beyond_arrow_are_left_out_and_named_and_all_others_compared(location: Path) -> None:
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        folder.mkdir(parents=True)
        late = pa.array([253402300799, 0], pa.timestamp("s"))
        orc.write_table(pa.table({"id": [write_id, 5], "at": late, "v": ["a", "b"]}), str(folder / "000000_0"))
    ids = ValidWriteIdList(table="d.t", high_water=2)
    columns = (("id", "bigint"), ("at", "timestamp"), ("v", "string"))
    made = acid_plan(location, Depth.MAJOR, columns, ids, full_acid=False)
    direct_results(made)
    output = made.items[0].output
    assert verify_rows(inline, made) == (f"{output}: not compared, for values that pyarrow cannot hold: at",)
    late = pa.array([253402300799] * 4, pa.timestamp("s"))
    orc.write_table(pa.table({"id": [1, 5, 2, 6], "at": late, "v": ["a", "b"] * 2}), str(location / output))
    with pytest.raises(VerificationError):
        verify_rows(inline, made)


def test_what_is_no_file_is_corrupt(location: Path, written: CompactionPlan) -> None:
    (location / written.items[0].output).write_bytes(b"nothing that could be read")
    with pytest.raises(CorruptFile):
        verify_rows(inline, written)


def test_formats_that_arrow_does_not_read_are_named(written: CompactionPlan) -> None:
    item = replace(written.items[0], format="avro")
    assert verify_rows(inline, replace(written, items=(item,))) == (
        f"{item.output}: its rows are not compared, pyarrow cannot read them (avro)",
    )


def test_lines_of_text_are_compared(location: Path) -> None:
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        folder.mkdir(parents=True)
        (folder / "000000_0").write_bytes(b"header\n" + f"{write_id},a\n{write_id},b".encode())
    target = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=(("n", "int"), ("s", "string")),
        input_format="org.apache.hadoop.mapred.TextInputFormat",
        full_acid=False,
        bucketed=False,
        properties={"skip.header.line.count": "1"},
    )
    seen = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=2))
    made = plan(target, survey(target, seen), seen, Depth.MAJOR, txn_id=50)
    assert isinstance(made, CompactionPlan)
    direct_results(made)
    assert verify_rows(inline, made) == ()
    output = location / made.items[0].output
    output.write_bytes(output.read_bytes().replace(b"2,a", b"2,A"))
    with pytest.raises(VerificationError, match="its lines are not those of its sources"):
        verify_rows(inline, made)


@pytest.mark.slow
def test_spark_tasks_find_what_is_wrong(
    location: Path, tmp_path: Path, written: CompactionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "_FILES_A_TASK", 1)
    sessions = SparkSessions(master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path)
    try:
        each = OnSpark(sessions=sessions, group="verify", description="checksums")
        assert verify_rows(each, written) == ()
        tampered(location, written, changed)
        with pytest.raises(VerificationError, match=r"are not the .* live rows"):
            verify_rows(each, written)
        (location / written.items[0].sources[0].path).write_bytes(b"nothing that could be read")
        with pytest.raises(CorruptFile):
            verify_rows(each, written)
    finally:
        sessions.stop()
