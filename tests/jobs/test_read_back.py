"""Compacted tables read by Spark's ORC reader and by orc-core: rows, order, seeks, predicates, blooms and metadata.

Tables are large enough for each use of a stripe: what is copied has more than a megabyte.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth, ItemKind
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.records import Event, Operation, RowId, merge
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import StripeUse
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.rebalance import plan_rebalance, run_rebalance, verify_rebalance
from compactor.jobs.session import SparkSessions
from compactor.jobs.verify import verify_output
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import acid_template
from tests.jobs.java_files import OrcFiles, in_time_zone
from tests.jobs.orc_search import OrcSearch
from tests.orc.acid_files import delete, event_table, insert, read_events, source, write_events, write_plain

pytestmark = pytest.mark.slow
COLUMNS = (
    ("id", "bigint"),
    ("name", "string"),
    ("at", "timestamp"),
    ("price", "decimal(9,2)"),
    ("day", "date"),
    ("gap", "int"),
    ("st", "struct<a:int,b:array<string>>"),
    ("pad", "string"),
)
ROW = struct_of(COLUMNS)
STRIDE, STRIPE = 1000, 4000
B0 = encode_bucket(0)
START = dt.datetime(2001, 2, 3, 4, 5, 6, 789000)  # noqa: DTZ001
_NOISE = random.Random(7).randbytes(1 << 20).hex()


def row(number: int) -> tuple[Any, ...]:
    """`number` counts the rows of a table; values grow with it. `gap` is null in the upper half of each stripe."""
    return (
        number,
        f"name {number:08d}",
        START + dt.timedelta(minutes=number),
        decimal.Decimal(number).scaleb(-2),
        dt.date(1990, 1, 1) + dt.timedelta(days=number),
        number if number % STRIPE < STRIPE // 2 else None,
        None if number % 7 == 0 else {"a": number, "b": [str(number), None]},
        _NOISE[number * 613 % 2_000_000 :][:600],
    )


def events(write_id: int, first: int, count: int) -> list[Event]:
    return [insert(write_id, i, row(first + i)) for i in range(count)]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="1g", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    # java.sql.Timestamp, of which predicates are made, is a time of the machine's zone.
    with in_time_zone(made, "UTC"):
        yield made
    made.stop()


@pytest.fixture(scope="module")
def search(sessions: SparkSessions) -> OrcSearch:
    return OrcSearch(sessions)


def target(location: Path, *, full_acid: bool = True) -> CompactionTarget:
    return CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=COLUMNS,
        input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        full_acid=full_acid,
        bucketed=False,
    )


def snapshot(high_water: int = 9, *, aborted: frozenset[int] = frozenset()) -> Snapshot:
    ids = ValidWriteIdList(table="d.t", high_water=high_water, aborted=aborted)
    return Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids)


def compacted(
    sessions: SparkSessions, place: CompactionTarget, depth: Depth, seen: Snapshot | None = None
) -> CompactionPlan:
    seen = seen or snapshot()
    made = plan(place, survey(place, seen), seen, depth, txn_id=50)
    assert isinstance(made, CompactionPlan)
    (results,) = SparkJobRunner(sessions).run(
        [Job(plan=made)], group="read back", description="a test", progress=lambda *_: None
    )
    assert isinstance(results, list), results
    verify_output(made, results)
    return made


def uses(made: CompactionPlan) -> set[StripeUse]:
    return {run.use for item in made.items for part in item.parts for run in part.runs}


# --- orc-core: seeks, predicates, bloom filters, metadata

CODECS = {"NONE": pb.NONE, "ZLIB": pb.ZLIB, "SNAPPY": pb.SNAPPY, "ZSTD": pb.ZSTD}
COPIED, MIXED, ENCODED = "copied", "mixed", "encoded"
_HITS: dict[str, list[int]] = {
    COPIED: [],
    MIXED: [STRIPE + 10, STRIPE + 11, STRIPE + 900],
    ENCODED: list(range(3, 2 * STRIPE, 97)),
}
"""Row ids that are deleted in each of the two deltas, of two stripes each."""


def hive_table(location: Path, search: OrcSearch, codec: str, pattern: str, blooms: Sequence[str] = ()) -> list[Event]:
    """Two large deltas as Hive writes them, unless all is to be copied a small one of ours, and deletes; all events.

    blooms: `orc.bloom.filter.columns`.
    """
    template = replace(acid_template(ROW, compression=pb.NONE), stride=STRIDE)
    found: list[Event] = []
    for write_id in (1, 2):
        rows = events(write_id, 10_000 * write_id, 2 * STRIPE)
        name = f"delta_{write_id:07d}_{write_id:07d}_0000/bucket_00000_0"
        ours = location.parent / "ours" / name
        write_events(ours, rows, row_type=ROW, stripe_rows=STRIPE, template=template)
        (location / name).parent.mkdir(parents=True)
        search.rewrite(ours, location / name, compression=codec, block=32 << 10, stride=STRIDE, blooms=blooms)
        found += [*rows, *(delete(RowId(write_id, B0, i), by=4) for i in _HITS[pattern])]
    if pattern != COPIED:
        small = events(3, 30_000, 20)
        write_events(location / "delta_0000003_0000003_0000/bucket_00000_0", small, row_type=ROW)
        gone = [e for e in found if e.row is None]
        write_events(location / "delete_delta_0000004_0000004_0000/bucket_00000_0", gone, row_type=ROW)
        found += small
    return found


@pytest.mark.parametrize("pattern", [COPIED, MIXED, ENCODED])
@pytest.mark.parametrize("codec", list(CODECS))
def test_orc_core_finds_every_row_of_a_compacted_file(
    sessions: SparkSessions, search: OrcSearch, tmp_path: Path, codec: str, pattern: str
) -> None:
    found = hive_table(tmp_path / "t", search, codec, pattern)
    made = compacted(sessions, target(tmp_path / "t"), Depth.MAJOR)
    path = tmp_path / "t" / made.items[0].output
    expected = [
        Event(operation=Operation.INSERT, row_id=row_id, current_write_id=row_id.write_id, row=values)
        for row_id, values in merge(found, snapshot().write_ids)
    ]
    assert read_events(path) == expected
    assert (StripeUse.COPY in uses(made)) == (pattern != ENCODED)
    assert (StripeUse.DECODE in uses(made)) == (pattern != COPIED)
    rows = [e.row or () for e in expected]
    _seeks(path, search, rows)
    _predicates(path, search, rows)
    _metadata(path, codec, len(expected))


@pytest.mark.parametrize("codec", list(CODECS))
def test_bloom_filters_of_copied_stripes_are_kept_and_used(
    sessions: SparkSessions, search: OrcSearch, tmp_path: Path, codec: str
) -> None:
    found = hive_table(tmp_path / "t", search, codec, COPIED, ["id", "name"])
    made = compacted(sessions, target(tmp_path / "t"), Depth.MAJOR)
    path = tmp_path / "t" / made.items[0].output
    rows = [values for _, values in merge(found, snapshot().write_ids)]
    _seeks(path, search, rows)
    _predicates(path, search, rows)
    # It lies between the smallest and the largest name of a row group, so only a bloom filter tells that it is none.
    assert search.search(path, "equals", "name", "STRING", "name 00010100x") == {}


def test_encoded_stripes_have_the_bloom_filters_of_the_copied_ones_before_them(
    sessions: SparkSessions, search: OrcSearch, tmp_path: Path
) -> None:
    found = hive_table(tmp_path / "t", search, "ZLIB", MIXED, ["id", "name"])
    made = compacted(sessions, target(tmp_path / "t"), Depth.MAJOR)
    rows = [values for _, values in merge(found, snapshot().write_ids)]
    _predicates(tmp_path / "t" / made.items[0].output, search, rows)


def _seeks(path: Path, search: OrcSearch, rows: Sequence[tuple[Any, ...]]) -> None:
    """To the borders of stripes and of row groups, and to the rows before and after them."""
    with source(path) as file:
        sizes = [file.stripe_rows(stripe) for stripe in range(file.stripes)]
    starts = [0, *itertools.accumulate(sizes)]
    borders = [first + at for first, size in zip(starts, sizes, strict=False) for at in range(0, size, STRIDE)]
    wanted = {border + by for border in (*borders, len(rows)) for by in (-1, 0, 1)} & {*range(len(rows))}
    found = search.seeks(path, sorted(wanted))
    assert wanted <= found.keys()
    assert found == {number: rows[number][0] for number in found}


def _predicates(path: Path, search: OrcSearch, rows: Sequence[tuple[Any, ...]]) -> None:
    """What a reader with a predicate reads has every hit, holds the right rows, and is less than all."""
    low, high, last = row(11_400), row(11_420), rows[-5]
    asked: list[tuple[str, str, str, list[Any]]] = [
        ("equals", "id", "LONG", [low[0]]),
        ("equals", "name", "STRING", [last[1]]),
        ("equals", "at", "TIMESTAMP", [low[2]]),
        ("equals", "price", "DECIMAL", [high[3]]),
        ("between", "id", "LONG", [low[0], high[0]]),
        ("between", "name", "STRING", [low[1], high[1]]),
        ("between", "at", "TIMESTAMP", [low[2], high[2]]),
        ("between", "day", "DATE", [low[4], high[4]]),
        ("between", "price", "DECIMAL", [low[3], high[3]]),
        ("in", "id", "LONG", [low[0], last[0]]),
        ("in", "name", "STRING", [high[1], last[1], "nobody"]),
        ("is null", "gap", "LONG", []),
    ]
    for operator, column, kind, values in asked:
        at = [name for name, _ in COLUMNS].index(column)
        hits = {
            number
            for number, values_of in enumerate(rows)
            if (values_of[at] is None if operator == "is null" else values_of[at] is not None)
            and (
                operator == "is null"
                or (values[0] <= values_of[at] <= values[1] if operator == "between" else values_of[at] in values)
            )
        }
        read = search.search(path, operator, column, kind, *values)
        assert hits, (operator, column)
        assert hits <= read.keys(), (operator, column)
        assert all(rows[number][0] == value for number, value in read.items()), (operator, column)
        assert len(read) < len(rows) * (0.8 if operator == "is null" else 0.3), (operator, column)


def _metadata(path: Path, codec: str, rows: int) -> None:
    with source(path) as file:
        tail = file.tail
        assert tail.key_index() == tuple(file.keys(stripe).at(-1) for stripe in range(file.stripes))
        assert tail.user_metadata["hive.acid.stats"] == f"{rows},0,0".encode()
        assert tail.user_metadata["hive.acid.version"] == b"2"
        assert tail.postscript.compression == CODECS[codec]
        assert (tail.postscript.version[:], tail.footer.row_index_stride) == ([0, 12], STRIDE)
        assert tail.footer.number_of_rows == tail.footer.statistics[0].number_of_values == rows
        # That of the sources, which orc-core wrote: readers take it for the bugs that a file may have.
        assert (tail.footer.writer, tail.postscript.writer_version) == (0, 9)


# --- Spark's own reader, for every kind of compaction


def three_deltas(location: Path) -> list[Event]:
    """Two large deltas and a small one, with a cluster of deletes in the second stripe of the first."""
    found: list[Event] = []
    for write_id, count in ((1, 2 * STRIPE), (2, STRIPE), (3, 30)):
        rows = events(write_id, 10_000 * write_id, count)
        name = f"delta_{write_id:07d}_{write_id:07d}_0000/bucket_00000_0"
        write_events(location / name, rows, row_type=ROW, stripe_rows=STRIPE)
        found += rows
    gone = [delete(RowId(1, B0, i), by=4) for i in range(STRIPE + 5, STRIPE + 25)]
    write_events(location / "delete_delta_0000004_0000004_0000/bucket_00000_0", gone, row_type=ROW)
    return [*found, *gone]


def plain(first: int, count: int) -> pa.Table:
    """Rows as a file without ACID columns has them."""
    struct = event_table(events(1, first, count), ROW).column("row").combine_chunks()
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)])


def originals(location: Path) -> list[Event]:
    """A table of before it was transactional, with a delete of some of its rows."""
    write_plain(location / "000000_0", plain(0, 900))
    write_plain(location / "000000_0_copy_1", plain(900, 300))
    gone = [delete(RowId(0, B0, i), by=4) for i in range(890, 910)]
    write_events(location / "delete_delta_0000004_0000004_0000/bucket_00000_0", gone, row_type=ROW)
    return [*(insert(0, i, row(i)) for i in range(1200)), *gone]


def loaded(location: Path) -> list[Event]:
    """LOAD DATA beside an insert that is too large to be encoded anew."""
    large = events(1, 10_000, STRIPE)
    write_events(location / "delta_0000001_0000001_0000/bucket_00000_0", large, row_type=ROW)
    write_plain(location / "delta_0000002_0000002_0000/000000_0", plain(0, 700))
    gone = [delete(RowId(2, B0, i), by=3) for i in range(0, 700, 3)]
    write_events(location / "delete_delta_0000003_0000003_0000/bucket_00000_0", gone, row_type=ROW)
    return [*large, *(insert(2, i, row(i)) for i in range(700)), *gone]


KEYS = ["operation", "originalTransaction", "bucket", "rowId", "currentTransaction"]
VALUES = ["id", "name", "unix_micros(at) at", "price", "day", "gap", "st", "pad"]
PREDICATES = [
    "row.id = 10017",
    "row.id between 12300 and 12350",
    "row.name in ('name 00000905', 'name 00010020', 'name 00020700')",
    "row.at >= timestamp '2001-02-10 00:00:00' and row.at < timestamp '2001-02-11 00:00:00'",
    "row.gap is null and row.price > 121.5",
    "row.st.a is null",
    "row.day = date '2017-05-18' or rowId = 3",
]


def _as_spark_has_it(values: tuple[Any, ...]) -> list[Any]:
    moment = (values[2] - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001
    st = None if values[6] is None else Row(a=values[6]["a"], b=values[6]["b"])
    return [*values[:2], moment, *values[3:6], st, values[7]]


def _found(frame: DataFrame) -> list[list[Any]]:
    """Keys and values of every row, in the order of the only file."""
    assert frame.rdd.getNumPartitions() >= 1
    expressions = [*KEYS, *(f"row.{v}" if "(" not in v else v.replace("at)", "row.at)") for v in VALUES)]
    return [list(found) for found in frame.selectExpr(*expressions).collect()]


def _hash(frame: DataFrame, predicate: str) -> tuple[int, int]:
    """Rows and a checksum of all their columns, of which the reader must not leave one out."""
    hashed = frame.where(predicate).selectExpr("count(*) n", f"sum(xxhash64({', '.join([*KEYS, 'row'])}) % 1000003) h")
    (found,) = hashed.collect()
    return found.n, found.h or 0


def _pushed_down_or_not(sessions: SparkSessions, path: Path) -> None:
    spark = sessions.get()
    hits = []
    for predicate in PREDICATES:
        found = set()
        for pushed in ("true", "false"):
            spark.conf.set("spark.sql.orc.filterPushdown", pushed)
            found.add(_hash(spark.read.orc(str(path)), predicate))
        assert len(found) == 1, predicate
        hits.append(found.pop()[0])
    assert any(hits)


@pytest.mark.parametrize("build", [three_deltas, originals, loaded], ids=lambda build: build.__name__)
@pytest.mark.parametrize("depth", list(Depth), ids=lambda depth: depth.value)
def test_spark_reads_what_was_compacted(sessions: SparkSessions, tmp_path: Path, build: Any, depth: Depth) -> None:
    known = build(tmp_path)
    if depth is Depth.MINOR:
        # There must be something to gain.
        more = events(5, 40_000, 5)
        write_events(tmp_path / "delta_0000005_0000005_0000/bucket_00000_0", more, row_type=ROW)
        write_events(
            tmp_path / "delete_delta_0000006_0000006_0000/bucket_00000_0", [delete(RowId(5, B0, 0), by=6)], row_type=ROW
        )
        known = [*known, *more, delete(RowId(5, B0, 0), by=6)]
    made = compacted(sessions, target(tmp_path), depth)
    if depth is Depth.MAJOR:
        expected = [(row_id, values) for row_id, values in merge(known, snapshot().write_ids)]
    else:
        expected = [(e.row_id, e.row) for e in known if e.row is not None and e.row_id.write_id]
    spark = sessions.get()
    for item in made.items:
        frame = spark.read.orc(str(tmp_path / item.output))
        if item.kind is ItemKind.ROWS:
            wanted = [[0, i.write_id, i.bucket, i.row_id, i.write_id, *_as_spark_has_it(v)] for i, v in expected]
            assert _found(frame) == wanted
            _pushed_down_or_not(sessions, tmp_path / item.output)
        else:
            gone = sorted((e.row_id, e.current_write_id) for e in known if e.row is None)
            keys = [[2, i.write_id, i.bucket, i.row_id, by] for i, by in gone]
            assert [list(r)[:5] for r in frame.selectExpr(*KEYS, "row").collect()] == keys


def test_spark_reads_a_compacted_insert_only_table(sessions: SparkSessions, tmp_path: Path) -> None:
    firsts = (0, 5000, 9000)
    for write_id, first in enumerate(firsts, start=1):
        name = f"delta_{write_id:07d}_{write_id:07d}_0000/000000_0"
        write_plain(tmp_path / name, plain(first, 10 if first == 5000 else STRIPE), row_index_stride=STRIDE)
    made = compacted(sessions, target(tmp_path, full_acid=False), Depth.MAJOR)
    assert uses(made) == {StripeUse.COPY}
    spark = sessions.get()
    frame = spark.read.orc(str(tmp_path / made.items[0].output))
    wanted = [_as_spark_has_it(row(first + i)) for first in firsts for i in range(10 if first == 5000 else STRIPE)]
    assert [list(found) for found in frame.selectExpr(*VALUES).collect()] == wanted
    for predicate in ("id = 9017", "name between 'name 00005001' and 'name 00005003'", "gap is null", "st is null"):
        spark.conf.set("spark.sql.orc.filterPushdown", "true")
        pushed = frame.where(predicate).selectExpr("xxhash64(*) h").collect()
        spark.conf.set("spark.sql.orc.filterPushdown", "false")
        assert (
            pushed
            == spark.read.orc(str(tmp_path / made.items[0].output))
            .where(predicate)
            .selectExpr("xxhash64(*) h")
            .collect()
        )
        assert pushed


def test_spark_reads_a_rebalanced_table(sessions: SparkSessions, tmp_path: Path) -> None:
    known = three_deltas(tmp_path)
    place = target(tmp_path)
    made = plan_rebalance(place, survey(place, snapshot()), snapshot(), buckets=3, order_by=None, txn_id=50)
    assert isinstance(made, RebalancePlan)
    results = run_rebalance(sessions, made, group="rebalance", description="a test", progress=lambda *_: None)
    verify_rebalance(made, results)
    live = list(merge(known, snapshot().write_ids))
    wanted = []
    at = 0
    for bucket, result in enumerate(results):
        for row_id, values in live[at : at + result.rows_out]:
            key = [0, row_id.write_id, encode_bucket(bucket), len(wanted), row_id.write_id]
            wanted.append([*key, *_as_spark_has_it(values)])
        at += result.rows_out
    spark = sessions.get()
    assert len(results) == 3
    assert [r for result in results for r in _found(spark.read.orc(str(tmp_path / result.output)))] == wanted
    _pushed_down_or_not(sessions, tmp_path / made.directory)


# --- streaming deltas as Hive wrote them: without row indexes, with a side file of committed lengths


@pytest.mark.parametrize("stride", [0, STRIDE])
def test_a_streaming_delta_keeps_what_was_committed_and_valid(
    sessions: SparkSessions, tmp_path: Path, stride: int
) -> None:
    """One file is whole, of the second a transaction is aborted, the third has a tail that nobody committed."""
    files = OrcFiles(sessions)
    schema = "struct<operation:int,originalTransaction:bigint,bucket:int,rowId:bigint,currentTransaction:bigint,row:struct<n:int,s:string>>"
    ranges = {(1, 2): "", (3, 5): "", (6, 7): "tail"}
    expected = []
    for (low, high), end in ranges.items():
        rows = [
            [0, w, B0, i, w, [w * 100 + i, _NOISE[i * 9001 % 2_080_000 :][:9000]]]
            for w in range(low, high + 1)
            for i in range(300)
        ]
        path = files.write(
            tmp_path / f"delta_{low:07d}_{high:07d}/bucket_00000", schema, rows, stride=stride, stripe_rows=300
        )
        expected += [((w, B0, i), values) for _, w, _, i, _, values in rows if w != 4]
        if end:
            committed = path.stat().st_size
            with path.open("ab") as stream:
                stream.write(b"rows of a transaction that is still open")
            path.with_name("bucket_00000_flush_length").write_bytes(committed.to_bytes(8, "big"))
    seen = snapshot(7, aborted=frozenset([4]))
    place = replace(target(tmp_path), columns=(("n", "int"), ("s", "string")))
    for depth, txn in ((Depth.MINOR, 50), (Depth.MAJOR, 51)):
        made = plan(place, survey(place, seen), seen, depth, txn_id=txn)
        assert isinstance(made, CompactionPlan)
        (results,) = SparkJobRunner(sessions).run(
            [Job(plan=made)], group="streaming", description="a test", progress=lambda *_: None
        )
        assert isinstance(results, list), results
        verify_output(made, results)
        # Without row indexes nothing may be copied; what a compaction wrote has them.
        assert (results[0].stripes_copied > 0) == bool(stride or depth is Depth.MAJOR)
        found = files.read(tmp_path / made.items[0].output)
        assert [((w, b, i), values) for _, w, b, i, _, values in found] == expected
        if depth is Depth.MINOR:
            more = [[0, 8, B0, 0, 8, [800, "x"]]]
            files.write(tmp_path / "delta_0000008_0000008_0000/bucket_00000_0", schema, more, stride=STRIDE)
            expected.append(((8, B0, 0), [800, "x"]))
            seen = snapshot(8, aborted=frozenset([4]))
