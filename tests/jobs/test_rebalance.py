"""Rebalances without and with Spark: rows, order, ROW__IDs and shares are those of Hive's query."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor.acid import stripes
from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import Refusal, SourceFile
from compactor.acid.rebalance import RebalancePlan, parse_order_by, shares
from compactor.acid.records import Event, Operation, RowId, merge
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import BeyondArrow, CorruptFile, JobError, UsageError, VerificationError
from compactor.jobs.checksum import verify_moved_rows
from compactor.jobs.planner import CompactionTarget, survey
from compactor.jobs.rebalance import Place, plan_rebalance, rebalance, run_rebalance, run_tasks, verify_rebalance
from compactor.jobs.session import SparkSessions
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc import rebalance as tasks
from compactor.orc.assembler import AcidStats, FileAssembler, Template, acid_template
from compactor.orc.reader import OrcSource
from compactor.orc.rewrite import ItemResult
from compactor.orc.types import acid_arrow_schema, arrow_type
from compactor.storage.calendar import to_proleptic
from tests.inline_each import inline
from tests.inline_rebalance import no_jvm
from tests.jobs.java_files import OrcFiles
from tests.orc.acid_files import FS, delete, insert, read_events, write_events, write_plain
from tests.orc.test_rewrite import far_future

COLUMNS = (("id", "int"), ("v", "string"))
BASE = "base_0000009_v0000050"
Row = tuple[Any, ...]


def target_of(location: Path, columns: tuple[tuple[str, str], ...] = COLUMNS) -> CompactionTarget:
    return CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=columns,
        input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        full_acid=True,
        bucketed=False,
    )


def snapshot(*, aborted: frozenset[int] = frozenset()) -> Snapshot:
    ids = ValidWriteIdList(table="d.t", high_water=9, aborted=aborted)
    return Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids)


def planned(
    target: CompactionTarget,
    seen: Snapshot | None = None,
    *,
    buckets: int | None = None,
    order_by: str | None = None,
) -> RebalancePlan:
    seen = seen or snapshot()
    made = plan_rebalance(target, survey(target, seen), seen, buckets=buckets, order_by=order_by, txn_id=50)
    assert isinstance(made, RebalancePlan)
    return made


def unsorted(_: RebalancePlan, places: Sequence[Place], masks: Mapping[Place, bytes]) -> list[SourceFile]:
    raise AssertionError(f"a rebalance without ORDER BY sorts {len(places)} stripes, {len(masks)} of them masked")


def carried_out(made: RebalancePlan) -> list[ItemResult]:
    results = rebalance(made, lambda given: list(run_tasks(given)), unsorted, no_jvm, lambda *_: None)
    verify_rebalance(made, results)
    return results


def written(location: Path) -> list[list[Event]]:
    """The events of each output file, in the files' order."""
    found = sorted(p for p in (location / BASE).iterdir() if not p.name.startswith(("_", ".")))
    assert [p.name for p in found] == [f"bucket_{i:05d}" for i in range(len(found))]
    return [read_events(p) for p in found]


def expected(rows: Sequence[tuple[int, Row]], buckets: int) -> list[list[Event]]:
    """Hive's query in plain Python. rows: (write id, values) in their new order."""
    return [
        [
            Event(
                operation=Operation.INSERT,
                row_id=RowId(rows[n][0], encode_bucket(b), n),
                current_write_id=rows[n][0],
                row=rows[n][1],
            )
            for n in range(first, stop)
        ]
        for b, (first, stop) in enumerate(shares(len(rows), buckets))
    ]


def skewed_table(location: Path) -> list[Event]:
    """A base with two buckets, one much larger, deltas on top, deletes and an aborted write; all events."""
    files: dict[str, list[Event]] = {
        "base_0000003/bucket_00000": [insert(w, i, (i, f"w{w}r{i}")) for w in (1, 2, 3) for i in range(40)],
        "base_0000003/bucket_00001": [
            insert(w, i, (i, f"w{w}b{i}"), bucket=encode_bucket(1)) for w in (1, 3) for i in range(5)
        ],
        "delta_0000004_0000004_0000/bucket_00000_0": [insert(4, i, (i, None)) for i in range(9)],
        "delta_0000005_0000006/bucket_00000": [insert(w, i, (i, f"w{w}s{i}")) for w in (5, 6) for i in range(30)],
        "delta_0000007_0000007_0001/bucket_00002_0": [
            insert(7, i, (i, f"x{i}"), bucket=encode_bucket(2, 1)) for i in range(3)
        ],
        "delete_delta_0000008_0000008_0000/bucket_00000_0": [
            delete(RowId(w, encode_bucket(0), i), by=8) for w in (1, 2, 5) for i in range(0, 40, 3 * w)
        ],
        "delete_delta_0000008_0000008_0000/bucket_00001_0": [delete(RowId(1, encode_bucket(1), 4), by=8)],
    }
    for name, events in files.items():
        write_events(location / name, events, stripe_rows=16)
    return [event for events in files.values() for event in events]


@pytest.fixture(params=["stripes move", "stripes are encoded"])
def moving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """May the small stripes of these tests move as they are?"""
    moves: bool = request.param == "stripes move"
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", 0 if moves else 1 << 30)
    return moves


@pytest.mark.parametrize("buckets", [None, 1, 2, 7, 4000])
def test_all_live_rows_are_spread_in_the_order_of_their_row_ids(
    location: Path, buckets: int | None, moving: bool
) -> None:
    events = skewed_table(location)
    seen = snapshot(aborted=frozenset({6}))
    made = planned(target_of(location), seen, buckets=buckets)
    live = [(row_id.write_id, row) for row_id, row in merge(events, seen.write_ids)]
    results = carried_out(made)
    assert made.buckets == (buckets or 3)
    assert written(location) == expected(live, made.buckets)
    inserted = sum(e.operation is Operation.INSERT for e in events)
    assert sum(r.rows_invalid for r in results) == 30
    assert sum(r.rows_deleted for r in results) == inserted - 30 - len(live)
    assert (sum(r.stripes_copied for r in results) > 0) == (moving and buckets != 4000)
    assert sum(r.rows_in for r in results) == made.rows_in
    assert sum(r.rows_out for r in results) == len(live)


def test_the_row_ids_of_hives_own_test(location: Path) -> None:
    """TestRebalanceCompactor.testRebalanceCompactionOfPartitionedImplicitlyBucketedTable."""
    for bucket, name in enumerate("231"):
        rows = [insert(1, i, (i + 1, name), bucket=encode_bucket(bucket)) for i in range(4)]
        write_events(location / "base_0000001" / f"bucket_{bucket:05d}_0", rows)
    for write_id in range(2, 8):
        rows = [insert(write_id, 0, (write_id + 10, str(write_id + 10)))]
        write_events(location / f"delta_{write_id:07d}_{write_id:07d}_0000" / "bucket_00000_0", rows)
    carried_out(planned(target_of(location)))
    found = [[(e.row_id.write_id, e.row_id.bucket, e.row_id.row_id, e.row) for e in f] for f in written(location)]
    assert found == [
        [(1, 536870912, n, row) for n, row in enumerate([(1, "2"), (2, "2"), (3, "2"), (4, "2"), (1, "3"), (2, "3")])],
        [
            (1, 536936448, n, row)
            for n, row in enumerate([(3, "3"), (4, "3"), (1, "1"), (2, "1"), (3, "1"), (4, "1")], start=6)
        ],
        [(w, 537001984, w + 10, (w + 10, str(w + 10))) for w in range(2, 8)],
    ]


def test_files_of_before_the_table_was_transactional_and_loaded_ones_take_part(location: Path) -> None:
    plain = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "v": ["a", "b", "c"]})
    write_plain(location / "000000_0", plain)
    write_plain(location / "000001_0", plain.slice(2))
    write_plain(location / "delta_0000002_0000002_0000" / "000000_0", plain.slice(1))
    write_events(
        location / "delete_delta_0000003_0000003_0000" / "bucket_00000_0",
        [delete(RowId(0, encode_bucket(0), 1), by=3), delete(RowId(2, encode_bucket(0), 0), by=3)],
    )
    carried_out(planned(target_of(location)))
    live: list[tuple[int, Row]] = [(0, (1, "a")), (0, (3, "c")), (0, (3, "c")), (2, (3, "c"))]
    assert written(location) == expected(live, 2)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_table_without_rows_becomes_one_empty_file(location: Path, deleted: bool) -> None:
    rows = [insert(1, i, (i, "x")) for i in range(3)] if deleted else []
    write_events(location / "delta_0000001_0000001_0000" / "bucket_00000_0", rows)
    if deleted:
        gone = [delete(e.row_id, by=2) for e in rows]
        write_events(location / "delete_delta_0000002_0000002_0000" / "bucket_00000_0", gone)
    (result,) = carried_out(planned(target_of(location), buckets=4))
    assert written(location) == [[]]
    assert (result.rows_in, result.rows_deleted, result.rows_out) == (len(rows), len(rows), 0)


def test_stripes_that_do_not_fit_into_memory_are_kept_in_a_file(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = skewed_table(location)
    monkeypatch.setattr(tasks, "HELD_BYTES", 1)
    monkeypatch.setattr(tasks, "ENCODE_BYTES", 700)
    carried_out(planned(target_of(location), buckets=2))
    live = [(row_id.write_id, row) for row_id, row in merge(events, snapshot().write_ids)]
    assert written(location) == expected(live, 2)
    with OrcSource(FS, str(location / BASE / "bucket_00000")) as source:
        assert source.stripes > 1
        assert source.tail.user_metadata["hive.acid.stats"] == f"{source.tail.rows},0,0".encode()
        assert len(source.tail.key_index() or ()) == source.stripes
    assert (location / BASE / "_orc_acid_version").read_bytes() == b"2"


def test_running_again_writes_equal_files(location: Path) -> None:
    skewed_table(location)
    made = planned(target_of(location), buckets=3)
    first = carried_out(made)
    before = [(location / r.output).read_bytes() for r in first]
    assert carried_out(made) == first
    assert [(location / r.output).read_bytes() for r in first] == before


def test_columns_that_were_added_since_are_null_in_old_rows(location: Path) -> None:
    write_events(location / "delta_0000001_0000001_0000" / "bucket_00000_0", [insert(1, 0, (1, "a"))])
    columns = (*COLUMNS, ("added", "bigint"))
    new = [insert(2, 0, (2, "b", 7))]
    write_events(location / "delta_0000002_0000002_0000" / "bucket_00000_0", new, row_type=struct_of(columns))
    carried_out(planned(target_of(location, columns)))
    assert written(location) == expected([(1, (1, "a", None)), (2, (2, "b", 7))], 1)


def refusal(target: CompactionTarget) -> str:
    made = plan_rebalance(target, survey(target, snapshot()), snapshot(), buckets=None, order_by=None, txn_id=50)
    assert isinstance(made, Refusal)
    return made.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bucketed": True}, "CLUSTERED BY"),
        ({"full_acid": False}, "insert-only"),
        ({"input_format": "org.example.Other"}, "org.example.Other"),
    ],
)
def test_tables_that_are_never_rebalanced_are_refused(location: Path, change: dict[str, Any], reason: str) -> None:
    skewed_table(location)
    assert reason in refusal(replace(target_of(location), **change))


def test_a_delete_above_the_high_water_mark_would_lose_its_rows(location: Path) -> None:
    skewed_table(location)
    late = [delete(RowId(3, encode_bucket(0), 0), by=12)]
    write_events(location / "delete_delta_0000012_0000012_0000" / "bucket_00000_0", late)
    assert "delete_delta_0000012_0000012_0000 names rows by the ids they would lose" in refusal(target_of(location))


def test_an_empty_location_has_nothing_to_rebalance(location: Path) -> None:
    location.mkdir(parents=True)
    assert refusal(target_of(location)) == "there are no files to rebalance"


@pytest.mark.parametrize(
    ("buckets", "order_by", "message"),
    [(0, None, "0 buckets"), (None, "nothing", "no such column"), (None, "id + 1", "not understood")],
)
def test_a_wrong_wish_is_an_error(location: Path, buckets: int | None, order_by: str | None, message: str) -> None:
    skewed_table(location)
    with pytest.raises(UsageError, match=message):
        planned(target_of(location), buckets=buckets, order_by=order_by)


def test_rows_that_two_files_claim_are_an_error(location: Path) -> None:
    skewed_table(location)
    twin = [insert(4, i, (i, "again")) for i in (7, 8, 9)]
    write_events(location / "delta_0000004_0000004_0000" / "bucket_00000_7", twin)
    with pytest.raises(VerificationError, match="occur in two files"):
        carried_out(planned(target_of(location)))


def test_the_error_of_a_task_comes_back_as_itself(location: Path) -> None:
    skewed_table(location)
    made = planned(target_of(location))
    damaged = location / "delta_0000004_0000004_0000" / "bucket_00000_0"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    with pytest.raises(CorruptFile, match="bucket_00000_0"):
        carried_out(made)


def test_values_that_pyarrow_cannot_hold_are_left_to_the_jvm(location: Path) -> None:
    far_table(location)
    made = planned(target_of(location, FAR))
    with pytest.raises(JobError, match="there is no JVM here"):
        carried_out(made)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda r: [replace(r[0], rows_deleted=r[0].rows_deleted + 1), *r[1:]], "neither written nor deleted"),
        (lambda r: [replace(r[0], size=r[0].size + 1), *r[1:]], "0 promised|promised"),
        (lambda r: r[:-1], "promised"),
        (lambda r: [r[1], r[0], *r[2:]], "buckets were written"),
        (
            lambda r: [replace(r[0], rows_out=r[0].rows_out + 1), replace(r[1], rows_out=r[1].rows_out - 1), *r[2:]],
            "its share",
        ),
    ],
)
def test_output_that_is_not_as_promised_is_found(
    location: Path, wrong: Callable[[list[ItemResult]], list[ItemResult]], message: str
) -> None:
    skewed_table(location)
    made = planned(target_of(location), buckets=3)
    results = carried_out(made)
    with pytest.raises(VerificationError, match=message):
        verify_rebalance(made, wrong(results))


def test_two_buckets_that_were_swapped_are_found(location: Path) -> None:
    skewed_table(location)
    made = planned(target_of(location), buckets=2)
    one, two = carried_out(made)
    first, second = (location / one.output).read_bytes(), (location / two.output).read_bytes()
    (location / one.output).write_bytes(second)
    (location / two.output).write_bytes(first)
    sized = [replace(one, size=two.size, rows_in=two.rows_out, rows_out=two.rows_out), two]
    with pytest.raises(VerificationError):
        verify_rebalance(made, sized)


EVERY_TYPE = (
    ("id", "int"),
    ("b", "boolean"),
    ("t", "tinyint"),
    ("s", "smallint"),
    ("l", "bigint"),
    ("f", "float"),
    ("d", "double"),
    ("text", "string"),
    ("raw", "binary"),
    ("day", "date"),
    ("ts", "timestamp"),
    ("tz", "timestamp with local time zone"),
    ("dec", "decimal(38,10)"),
    ("c", "char(6)"),
    ("vc", "varchar(9)"),
    ("items", "array<timestamp>"),
    ("pairs", "map<string,array<date>>"),
    ("nested", "struct<a:int,b:struct<c:string,d:array<decimal(5,2)>>>"),
)


def a_row_of_every_type(n: int) -> Row:
    if n % 5 == 4:
        return (n, *([None] * (len(EVERY_TYPE) - 1)))
    day = dt.date(1300 + n, 2, 3)
    return (
        n,
        n % 2 == 0,
        n % 100,
        -n,
        n << 40,
        n / 4,
        n / 8,
        "z\u00e9"[n % 2] * (n % 7),
        bytes([255 - n % 256, 0, n % 256]),
        day,
        pa.scalar(-(10**18) - 7 * n, pa.timestamp("ns")),
        pa.scalar(10**18 + 7 * n, pa.timestamp("ns", tz="UTC")),
        Decimal(n) / 7 + Decimal(10) ** 20,
        "c" * (n % 5) + "      "[n % 5 :],
        "v " * (n % 3),
        [pa.scalar(n, pa.timestamp("ns")), None],
        [(f"k{n}", [day, None]), ("empty", [])],
        {"a": n, "b": {"c": str(n), "d": [Decimal("1.50"), None]}},
    )


def test_unions_are_left_to_the_jvm(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2], pa.int32()), pa.array(["a", "b"])])
    write_plain(tmp_path / "t/000000_0", pa.table({"u": union}))
    with OrcSource(FS, f"{tmp_path}/t/000000_0") as file, pytest.raises(BeyondArrow, match="uniontype"):
        tasks.live_rows(file, 0, file.tail.row_type, None)


def typed_file(path: Path, write_id: int, rows: Sequence[Row]) -> list[RowId]:
    """An ACID file of EVERY_TYPE; the row ids."""
    row_type = struct_of(EVERY_TYPE)
    columns = [pa.array([row[i] for row in rows], arrow_type(kind)) for i, (_, kind) in enumerate(row_type.children)]
    ids = [RowId(write_id, encode_bucket(0), i) for i in range(len(rows))]
    struct = pa.StructArray.from_arrays(columns, fields=list(arrow_type(row_type)))
    keys = [[0] * len(rows), [write_id] * len(rows), [encode_bucket(0)] * len(rows), range(len(rows))]
    schema = acid_arrow_schema(row_type)
    arrays = [
        pa.array(list(values), f.type) for values, f in zip([*keys, [write_id] * len(rows)], schema, strict=False)
    ]
    table = pa.Table.from_arrays([*arrays, struct], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, acid_template(row_type, compression=pb.ZSTD))
        for start in range(0, len(rows), 40):
            part = ids[start : start + 40]
            out.append(table.slice(start, 40), part[-1])
        out.finish(AcidStats(inserts=len(rows)))
    return ids


def whole(paths: Sequence[Path]) -> pa.Table:
    """The rows of files, as pyarrow's own reader returns them."""
    tables = [orc.ORCFile(str(p)).read(columns=["row"]) for p in paths]
    return pa.Table.from_struct_array(pa.concat_tables(tables).column("row").combine_chunks())


def outputs(location: Path, results: Sequence[ItemResult]) -> list[Path]:
    return [location / r.output for r in results]


def lives(row: int) -> bool:
    """Is a row of the first file of `typed_table` left? No row of its last stripes was deleted."""
    return row % 10 > 0 or row >= 80


def typed_table(location: Path) -> list[Row]:
    rows = [a_row_of_every_type(n * 7919 % 131) for n in range(131)]
    source = location / "delta_0000001_0000001_0000" / "bucket_00000_0"
    typed_file(source, 1, rows)
    typed_file(location / "delta_0000002_0000002_0000" / "bucket_00000_0", 2, rows[:3])
    gone = [delete(RowId(1, encode_bucket(0), i), by=3) for i in range(0, 80, 10)]
    write_events(
        location / "delete_delta_0000003_0000003_0000" / "bucket_00000_0", gone, row_type=struct_of(EVERY_TYPE)
    )
    return [r for i, r in enumerate(rows) if lives(i)] + rows[:3]


def test_values_of_every_type_are_what_they_were(location: Path, moving: bool) -> None:
    typed_table(location)
    first, second = (location / f"delta_000000{n}_000000{n}_0000" / "bucket_00000_0" for n in (1, 2))
    live = pa.concat_tables([whole([first]).filter([lives(i) for i in range(131)]), whole([second])])
    results = carried_out(planned(target_of(location, EVERY_TYPE), buckets=4))
    assert whole(outputs(location, results)).equals(live)
    assert any(r.stripes_copied for r in results) == moving


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


def on_spark(sessions: SparkSessions, made: RebalancePlan) -> list[ItemResult]:
    steps: list[tuple[int, int]] = []
    results = run_rebalance(
        sessions, made, group="vm-compactor-d.t", description="a test", progress=lambda *s: steps.append(s)
    )
    assert steps[0][0] == 0
    assert steps[-1] == (steps[0][1], steps[0][1])
    verify_rebalance(made, results)
    return results


Tamper = Callable[[list[Event]], list[Event]]


@pytest.mark.parametrize(
    "change",
    [
        lambda events: [replace(events[0], row=(99, "other")), *events[1:]],
        lambda events: [replace(events[0], row=events[1].row), *events[1:]],
        lambda events: [
            replace(events[0], row_id=replace(events[0].row_id, write_id=2), current_write_id=2),
            *events[1:],
        ],
        lambda events: events[:-1],
    ],
    ids=["changed", "doubled", "of another write", "lost"],
)
def test_full_verification_finds_wrong_rows_wherever_they_went(location: Path, change: Tamper) -> None:
    skewed_table(location)
    made = planned(target_of(location), buckets=3)
    results = carried_out(made)
    assert verify_moved_rows(inline, made, results) == ()
    path = location / results[0].output
    write_events(path, change(read_events(path)), stripe_rows=4)
    with pytest.raises(VerificationError, match=r"are not the .* live rows"):
        verify_moved_rows(inline, made, results)


def test_full_verification_of_an_order_does_not_ask_for_the_write_ids_that_it_gave_up(location: Path) -> None:
    skewed_table(location)
    made = planned(target_of(location), buckets=1)
    results = carried_out(made)
    path = location / results[0].output
    given = [replace(e, row_id=replace(e.row_id, write_id=7), current_write_id=7) for e in read_events(path)]
    write_events(path, given)
    with pytest.raises(VerificationError):
        verify_moved_rows(inline, made, results)
    ordered = replace(made, order_by=parse_order_by("id"))
    assert verify_moved_rows(inline, ordered, results) == ()


@pytest.mark.slow
def test_spark_writes_byte_for_byte_what_is_written_without_it(sessions: SparkSessions, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for location in (here, there):
        skewed_table(location)
    results = on_spark(sessions, planned(target_of(there), buckets=3))
    assert results == carried_out(planned(target_of(here), buckets=3))
    assert [p.read_bytes() for p in outputs(here, results)] == [p.read_bytes() for p in outputs(there, results)]


@pytest.mark.slow
def test_rows_are_ordered_as_asked_for_and_all_get_the_highest_write_id(
    sessions: SparkSessions, location: Path
) -> None:
    events = skewed_table(location)
    made = planned(target_of(location), buckets=4, order_by="ORDER BY id DESC, v NULLS FIRST")
    live = [row for _, row in merge(events, snapshot().write_ids)]
    # Rows that are equal in every key keep the order of their row ids.
    by_text = sorted(live, key=lambda r: (r[1] is not None, r[1] or ""))
    in_order = sorted(by_text, key=lambda r: -r[0])
    results = on_spark(sessions, made)
    assert written(location) == expected([(7, row) for row in in_order], 4)
    assert not [p for p in (location / BASE).iterdir() if p.name.startswith("_part_")]
    assert sum(r.rows_deleted for r in results) > 0


@pytest.mark.slow
def test_values_of_every_type_survive_a_sort(sessions: SparkSessions, location: Path, moving: bool) -> None:
    rows = typed_table(location)
    made = planned(target_of(location, EVERY_TYPE), buckets=3, order_by="id")
    sources = [location / f"delta_000000{n}_000000{n}_0000" / "bucket_00000_0" for n in (1, 2)]
    live = pa.concat_tables([whole(sources[:1]).filter([lives(i) for i in range(131)]), whole(sources[1:])])
    in_order = live.take(sorted(range(len(rows)), key=lambda i: rows[i][0]))
    results = on_spark(sessions, made)
    found = whole(outputs(location, results))
    assert found.schema == in_order.schema
    assert found.equals(in_order)


@pytest.mark.slow
@pytest.mark.parametrize("column", [name for name, kind in EVERY_TYPE if "<" not in kind])
@pytest.mark.parametrize("descending", [False, True])
def test_every_type_with_an_order_is_ordered_as_hive_does(
    sessions: SparkSessions, location: Path, column: str, descending: bool
) -> None:
    rows = typed_table(location)
    at = [name for name, _ in EVERY_TYPE].index(column)

    def comparable(value: Any) -> Any:
        if isinstance(value, pa.Scalar):
            return value.value
        text = value.rstrip(" ") if column == "c" else value
        return text.encode() if isinstance(text, str) else text

    filled = sorted((r for r in rows if r[at] is not None), key=lambda r: comparable(r[at]), reverse=descending)
    wanted = [comparable(r[at]) for r in filled]
    nulls = [None] * (len(rows) - len(filled))
    results = on_spark(
        sessions,
        planned(target_of(location, EVERY_TYPE), buckets=2, order_by=f"{column} {'DESC' if descending else 'ASC'}"),
    )
    values = pa.chunked_array([to_proleptic(c) for c in whole(outputs(location, results)).column(column).chunks])
    kept = [None if not v.is_valid else comparable(v if "timestamp" in str(v.type) else v.as_py()) for v in values]
    assert kept == (nulls + wanted if descending else wanted + nulls)


@pytest.mark.slow
@pytest.mark.parametrize("order_by", [None, "id"])
def test_the_typed_error_of_a_task_crosses_spark(sessions: SparkSessions, location: Path, order_by: str | None) -> None:
    skewed_table(location)
    made = planned(target_of(location), order_by=order_by)
    damaged = location / "delta_0000004_0000004_0000" / "bucket_00000_0"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    with pytest.raises(CorruptFile, match="bucket_00000_0"):
        on_spark(sessions, made)


@pytest.mark.slow
def test_sparks_own_reader_reads_a_rebalanced_base(sessions: SparkSessions, location: Path) -> None:
    events = skewed_table(location)
    on_spark(sessions, planned(target_of(location), buckets=3, order_by="v, id"))
    frame = sessions.get().read.orc(str(location / BASE)).selectExpr("rowId n", "row.id", "row.v", "*")
    found = sorted((r.n, r.id, r.v) for r in frame.collect())
    live = [row for _, row in merge(events, snapshot().write_ids)]
    in_order = sorted(sorted(live, key=lambda r: r[0]), key=lambda r: (r[1] is None, r[1] or ""))
    assert [(i, v) for _, i, v in found] == in_order
    assert [n for n, _, _ in found] == list(range(len(live)))


FAR = (("id", "int"), ("ts", "timestamp"))


def far_table(location: Path) -> None:
    """Three rows of the year 9999, one of them deleted, and a row that Arrow can hold."""
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        folder.mkdir(parents=True)
    far_future(location / "delta_0000001_0000001_0000" / "bucket_00000_0")
    (location / "delta_0000001_0000001_0000" / "plain").unlink()
    near = location / "delta_0000002_0000002_0000" / "bucket_00001_0"
    write_events(near, [insert(2, 0, (7, None), bucket=encode_bucket(1))], row_type=struct_of(FAR))
    gone = [delete(RowId(1, encode_bucket(0), 1), by=3)]
    write_events(location / "delete_delta_0000003_0000003_0000" / "bucket_00000_0", gone, row_type=struct_of(FAR))


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_what_arrow_cannot_hold_is_spread_by_the_jvm(sessions: SparkSessions, location: Path, buckets: int) -> None:
    far_table(location)
    results = on_spark(sessions, planned(target_of(location, FAR), buckets=buckets))
    assert not list(location.rglob("_part_*"))
    frame = sessions.get().read.orc(str(location / BASE))
    text = ["originalTransaction w", "bucket b", "rowId n", "row.id", "cast(row.ts as string) ts", "*"]
    found = sorted((r.w, r.b, r.n, r.id, r.ts) for r in frame.selectExpr(*text).collect())
    rows = [(1, 0, "9999-12-31 00:00:00"), (1, 2, "9999-12-31 00:00:00"), (2, 7, None)]
    assert found == [(w, encode_bucket(n // -(-3 // buckets)), n, i, ts) for n, (w, i, ts) in enumerate(rows)]
    assert sum(r.rows_deleted for r in results) == 1


@pytest.mark.slow
def test_java_finds_rows_of_moved_stripes_through_their_indexes(sessions: SparkSessions, location: Path) -> None:
    """orc-core reads by the row indexes and bloom filters of streams that were moved."""
    java = OrcFiles(sessions)
    schema = "struct<operation:int,originalTransaction:bigint,bucket:int,rowId:bigint,currentTransaction:bigint,row:{}>"
    rows = [[0, 1, encode_bucket(0), n, 1, [n, f"text {n}"]] for n in range(25_000)]
    source = location / "delta_0000001_0000001_0000" / "bucket_00000_0"
    plain = java.write(location / "plain", schema.format("struct<id:int,v:string>"), rows, stripe_rows=9_000)
    source.parent.mkdir(parents=True)
    with OrcSource(FS, str(plain)) as old, FS.write_atomically(str(source)) as stream:
        out, end = FileAssembler(stream, Template.of(old.tail)), 0
        for stripe in range(old.stripes):
            end += old.stripe_rows(stripe)
            out.copy(old, stripe, RowId(1, encode_bucket(0), end - 1))
        out.finish(AcidStats(inserts=end))
    plain.unlink()
    made = planned(target_of(location), buckets=2)
    made = replace(made, movable={(0, n): rows for n, rows in enumerate(made.stripes[0])})
    results = on_spark(sessions, made)
    assert sum(r.stripes_copied for r in results) >= 2
    found = [row for path in outputs(location, results) for row in java.read(path)]
    assert found == [[0, 1, encode_bucket(n // 12_500), n, 1, [n, f"text {n}"]] for n in range(25_000)]
    frame = sessions.get().read.orc(str(location / BASE))
    for wanted in (0, 999, 8_999, 9_000, 12_499, 12_500, 24_999):
        (one,) = frame.where(f"row.id = {wanted}").select("*").collect()
        assert (one.rowId, one.row.v) == (wanted, f"text {wanted}")
        (same,) = frame.where(f"rowId = {wanted}").select("*").collect()
        assert same.row.id == wanted
