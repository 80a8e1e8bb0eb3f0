"""What tails tell of a table after a compaction is what Hive counted, and never more than they know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor.acid.column_statistics import ColumnStatistics, TableStatistics
from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.records import Event, RowId
from compactor.acid.schema import parse_type
from compactor.acid.snapshot import ValidWriteIdList
from compactor.jobs import distinct, statistics, stretches
from compactor.jobs.distinct import Distinct, count_distinct
from compactor.jobs.planner import CompactionTarget, Survey, plan, survey
from compactor.jobs.rebalance import plan_rebalance, rebalance, run_tasks
from compactor.jobs.session import SparkSessions
from compactor.jobs.statistics import CurrentFiles, current_files, gather, raw_data_size
from compactor.jobs.stretches import OnSpark
from compactor.orc.rewrite import ItemResult
from tests.fixtures.hive_tables import EXPECTED, HiveTable, all_txns, hive_table, unpack
from tests.inline_each import inline
from tests.inline_rebalance import no_jvm
from tests.jobs.compacted import direct_results
from tests.orc.acid_files import delete, insert, source, write_events

ORC = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
B0 = encode_bucket(0)
HIVE = sorted(n for n, e in EXPECTED.items() if not e["partitions"] and n != "acid_empty")
Columns = tuple[tuple[str, str], ...]


class Compacted:
    """A location with its plan carried out."""

    def __init__(
        self, location: Path, depth: Depth, columns: Columns, ids: ValidWriteIdList, *, full_acid: bool = True
    ) -> None:
        target = CompactionTarget(
            name="d.t",
            location=f"file:{location}",
            columns=columns,
            input_format=ORC,
            full_acid=full_acid,
            bucketed=False,
        )
        snapshot = Snapshot(txns=all_txns(), write_ids=ids.for_compaction())
        self.columns, self.location = columns, location
        self.surveyed: Survey = survey(target, snapshot)
        made = plan(target, self.surveyed, snapshot, depth, txn_id=50)
        assert isinstance(made, CompactionPlan)
        self.plan = made
        self.results: list[ItemResult] = direct_results(made)

    def files(self) -> CurrentFiles:
        return current_files(self.plan, self.results, self.surveyed.state, self.surveyed.listing)

    def gathered(
        self, found: dict[str, Distinct] | None = None, wanted: Sequence[str] | None = None
    ) -> TableStatistics:
        names = [n for n, _ in self.columns] if wanted is None else wanted
        return gather(self.files(), columns=self.columns, wanted=names, distinct=found)

    def column(self, name: str, found: dict[str, Distinct] | None = None) -> ColumnStatistics:
        (column,) = self.gathered(found, [name]).columns
        return column

    def scannable(self) -> tuple[str, ...]:
        return self.files().of_live_rows


def one_column(location: Path, kind: str, values: Sequence[Any], *, more: Sequence[Any] = ()) -> Compacted:
    """A table of one column, written in three deltas and compacted; more: the values of the last one."""
    row_type = parse_type(f"struct<c:{kind}>")
    for write_id, rows in ((1, values), (2, values), (3, more or values)):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        write_events(
            folder / "bucket_00000", [insert(write_id, i, (r,)) for i, r in enumerate(rows)], row_type=row_type
        )
    return Compacted(location, Depth.MAJOR, (("c", kind),), ValidWriteIdList(table="d.t", high_water=3))


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("hive"))


def hives(name: str, root: Path) -> HiveTable:
    return hive_table(name, unpack(root))


@pytest.mark.parametrize("name", HIVE)
def test_after_a_major_compaction_numrows_is_what_hive_counted(tmp_path: Path, name: str) -> None:
    table = hives(name, tmp_path)
    done = Compacted(table.location, Depth.MAJOR, table.columns, table.write_ids, full_acid=table.full_acid)
    found = done.gathered()
    assert found.exact
    assert found.rows == len(table.rows)
    if name not in ("acid_load", "orig_flat"):
        # These two Hive itself does not call accurate.
        assert found.rows == int(table.parameters["numRows"])
    outputs = [table.location / item.output for item in done.plan.items]
    assert (found.files, found.size) == (len(outputs), sum(p.stat().st_size for p in outputs))


@pytest.mark.parametrize("name", ["acid_flat", "acid_multi", "acid_bucketed", "acid_aborted", "acid_iow", "orig_flat"])
def test_after_a_minor_compaction_inserts_minus_deletes_are_hives_rows_but_not_called_exact(
    tmp_path: Path, name: str
) -> None:
    table = hives(name, tmp_path)
    done = Compacted(table.location, Depth.MINOR, table.columns, table.write_ids)
    found = done.gathered()
    assert (found.rows, found.exact, found.raw_data_size, found.columns) == (len(table.rows), False, None, ())
    assert done.scannable() == ()
    after = survey(
        CompactionTarget(
            name="d.t",
            location=f"file:{table.location}",
            columns=table.columns,
            input_format=ORC,
            full_acid=True,
            bucketed=False,
        ),
        Snapshot(txns=all_txns(), write_ids=table.write_ids.for_compaction()),
    )
    current = [*after.state.originals]
    names = [after.state.base.name] if after.state.base is not None else []
    for directory in (*names, *(delta.name for delta in after.state.deltas)):
        current += after.listing.data_files(directory)
    assert (found.files, found.size) == (len(current), sum(f.size for f in current))


@pytest.mark.parametrize("name", ["acid_flat", "acid_bucketed", "acid_aborted", "acid_iow", "acid_load", "mm_flat"])
def test_files_and_sizes_are_counted_as_hive_counts_them(warehouse: Path, name: str) -> None:
    table = hive_table(name, warehouse)
    surveyed = survey(
        CompactionTarget(
            name="d.t",
            location=f"file:{table.location}",
            columns=table.columns,
            input_format=ORC,
            full_acid=table.full_acid,
            bucketed=False,
        ),
        Snapshot(txns=all_txns(), write_ids=table.write_ids.for_compaction()),
    )
    nothing = CompactionPlan(
        depth=Depth.MINOR,
        location=f"file:{table.location}",
        row_type=parse_type("struct<id:int>"),
        write_ids=table.write_ids,
        directories=(),
        items=(),
        full_acid=table.full_acid,
    )
    found = gather(current_files(nothing, [], surveyed.state, surveyed.listing), columns=(), wanted=())
    assert (found.files, found.size) == (int(table.parameters["numFiles"]), int(table.parameters["totalSize"]))


def test_raw_data_size_is_orcs(warehouse: Path) -> None:
    """Hive's writer counts 4 bytes a row less than ORC's reader, which a later `analyze … noscan` asks."""
    table = hive_table("mm_flat", warehouse)
    sizes = [raw_data_size(source(path).tail) for path in sorted(table.location.glob("delta_*/0*"))]
    assert sum(sizes) == int(table.parameters["rawDataSize"]) + 4 * len(table.rows)


def test_raw_data_size_of_an_acid_file_is_that_of_its_rows(tmp_path: Path) -> None:
    rows = [(i, "x" * i) for i in range(10)]
    acid = write_events(tmp_path / "d" / "acid", [insert(1, i, row) for i, row in enumerate(rows)])
    ids, texts = (list(column) for column in zip(*rows, strict=True))
    orc.write_table(pa.table({"id": pa.array(ids, pa.int32()), "v": texts}), str(tmp_path / "d" / "plain"))
    assert acid.rows == 10
    found = raw_data_size(source(tmp_path / "d" / "acid").tail)
    assert found == raw_data_size(source(tmp_path / "d" / "plain").tail) == 10 * (4 + 4 + 32 + 12 + 40 + 4)


@pytest.mark.parametrize(
    ("kind", "values", "more", "expected", "answers"),
    [
        ("int", [5, None, -3], [7], {"NUM_NULLS": 2, "LONG_LOW_VALUE": -3, "LONG_HIGH_VALUE": 7}, True),
        ("bigint", [None], [None], {"NUM_NULLS": 3, "LONG_LOW_VALUE": None, "LONG_HIGH_VALUE": None}, True),
        (
            "date",
            [date(1970, 1, 3)],
            [date(1582, 10, 15), None],
            {"NUM_NULLS": 1, "LONG_LOW_VALUE": -141427, "LONG_HIGH_VALUE": 2},
            True,
        ),
        ("double", [1.5, None], [-2.0], {"NUM_NULLS": 2, "DOUBLE_LOW_VALUE": -2.0, "DOUBLE_HIGH_VALUE": 1.5}, True),
        ("double", [1.5, float("nan")], [2.0], {"NUM_NULLS": 0}, False),
        (
            "decimal(30,2)",
            [Decimal("-5.25")],
            [Decimal("1000000000000000000000.50")],
            {
                "NUM_NULLS": 0,
                "BIG_DECIMAL_LOW_VALUE": "-5.25",
                "BIG_DECIMAL_HIGH_VALUE": "1000000000000000000000.5",
            },
            True,
        ),
        ("boolean", [True, None, True], [False], {"NUM_NULLS": 2, "NUM_TRUES": 4, "NUM_FALSES": 1}, True),
        (
            "timestamp",
            [datetime.fromisoformat("1970-01-01T00:00:01.5")],
            [datetime.fromisoformat("1969-12-31T23:59:59.5")],
            {"NUM_NULLS": 0, "LONG_LOW_VALUE": -1, "LONG_HIGH_VALUE": 1},
            False,
        ),
        ("string", ["a", None], ["b"], {"NUM_NULLS": 2}, False),
        ("binary", [b"a", None], [b"b"], {"NUM_NULLS": 2}, False),
        ("array<int>", [[1], None], [[2]], {"NUM_NULLS": 2}, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bounds_and_nulls_come_from_the_tails(
    location: Path, kind: str, values: list[Any], more: list[Any], expected: dict[str, Any], answers: bool
) -> None:
    column = one_column(location, kind, values, more=more).column("c")
    found = dict(column.values)
    if "BIG_DECIMAL_HIGH_VALUE" in found:
        found["BIG_DECIMAL_HIGH_VALUE"] = str(found["BIG_DECIMAL_HIGH_VALUE"]).rstrip("0")
    assert found == expected
    assert (column.answers, column.type) == (answers, kind)
    assert column.complete is (kind == "boolean")


def test_dates_from_before_the_gregorian_calendar_have_no_bounds_in_a_hybrid_file(location: Path) -> None:
    values = one_column(location, "date", [date(1582, 10, 4)]).column("c").values
    assert values == {"NUM_NULLS": 0}


def test_a_column_that_is_younger_than_the_files_is_null_in_them(location: Path) -> None:
    done = one_column(location, "int", [1, 2])
    done.columns = (("c", "int"), ("young", "int"))
    assert done.column("young").values == {"NUM_NULLS": 6, "LONG_LOW_VALUE": None, "LONG_HIGH_VALUE": None}


def test_a_column_of_another_kind_in_the_files_has_no_bounds(location: Path) -> None:
    done = one_column(location, "int", [1, 2])
    done.columns = (("c", "string"),)
    assert done.column("c").values == {"NUM_NULLS": 0}


def test_only_what_is_wanted_is_said(location: Path) -> None:
    assert one_column(location, "int", [1, 2]).gathered(wanted=[]).columns == ()


def test_statistics_that_do_not_count_every_row_are_not_used(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = one_column(location, "int", [1, 2])
    assert done.gathered().raw_data_size == 6 * 8
    monkeypatch.setattr(statistics, "_trusted", lambda tail: False)
    found = done.gathered()
    assert (found.rows, found.exact, found.raw_data_size) == (6, True, None)
    assert found.columns[0].values == {}


def test_a_minor_compaction_without_deletes_is_exact_beside_its_base(location: Path) -> None:
    write_events(location / "base_0000001" / "bucket_00000", [insert(1, 0, (7, "a")), insert(1, 1, (9, None))])
    for write_id in (2, 3, 4):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        write_events(folder / "bucket_00000", [insert(write_id, 0, (write_id, "b"))])
    ids = ValidWriteIdList(table="d.t", high_water=4)
    done = Compacted(location, Depth.MINOR, (("id", "int"), ("v", "string")), ids)
    found = done.gathered()
    assert (found.files, found.rows, found.exact) == (2, 5, True)
    assert done.column("id").values == {"NUM_NULLS": 0, "LONG_LOW_VALUE": 2, "LONG_HIGH_VALUE": 9}
    assert done.column("v").values == {"NUM_NULLS": 1}
    assert [path.partition("/")[0] for path in done.scannable()] == ["base_0000001", "delta_0000002_0000004_v0000050"]


def test_an_empty_table_has_one_file_and_no_rows(location: Path) -> None:
    write_events(location / "delta_0000001_0000001_0000" / "bucket_00000", [insert(1, 0, (7, "a"))])
    gone = [delete(RowId(1, B0, 0), by=2)]
    write_events(location / "delete_delta_0000002_0000002_0000" / "bucket_00000", gone)
    done = Compacted(location, Depth.MAJOR, (("id", "int"),), ValidWriteIdList(table="d.t", high_water=2))
    found = done.gathered()
    assert (found.files, found.rows, found.exact, found.raw_data_size) == (1, 0, True, 0)


def test_a_rebalanced_table_is_its_new_base(location: Path) -> None:
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        write_events(folder / "bucket_00000", [insert(write_id, i, (i, "a")) for i in range(3)])
    write_events(location / "delete_delta_0000003_0000003_0000" / "bucket_00000", [delete(RowId(1, B0, 0), by=3)])
    columns = (("id", "int"), ("v", "string"))
    target = CompactionTarget(
        name="d.t", location=f"file:{location}", columns=columns, input_format=ORC, full_acid=True, bucketed=False
    )
    snapshot = Snapshot(txns=all_txns(), write_ids=ValidWriteIdList(table="d.t", high_water=3))
    surveyed = survey(target, snapshot)
    made = plan_rebalance(target, surveyed, snapshot, buckets=2, order_by=None, txn_id=50)
    assert isinstance(made, RebalancePlan)
    results = rebalance(made, lambda tasks: list(run_tasks(tasks)), lambda *_: [], no_jvm, lambda *_: None)
    files = current_files(made, results, surveyed.state, surveyed.listing)
    found = gather(files, columns=columns, wanted=["id"])
    assert (found.files, found.rows, found.exact) == (2, 5, True)
    assert found.columns[0].values == {"NUM_NULLS": 0, "LONG_LOW_VALUE": 0, "LONG_HIGH_VALUE": 2}


@pytest.mark.parametrize("rows", [6, -1])
def test_formats_without_tails_of_ours_count_what_was_written(location: Path, rows: int) -> None:
    done = one_column(location, "int", [1, 2])
    done.plan = replace(done.plan, items=tuple(replace(i, format="text") for i in done.plan.items))
    done.results = [replace(r, rows_out=rows) for r in done.results]
    found = done.gathered()
    assert (found.rows, found.exact) == ((6, True) if rows == 6 else (None, False))
    assert (found.files, found.raw_data_size, done.scannable()) == (1, None, ())


def counted(done: Compacted, each: Any = inline) -> Distinct:
    row_type = parse_type(f"struct<c:{done.columns[0][1]}>")
    return count_distinct(each, done.plan.location, done.scannable(), row_type, ["c"])["c"]


def test_distinct_values_and_lengths_complete_what_the_tails_cannot_tell(location: Path) -> None:
    done = one_column(location, "string", ["ä", "bbb", None], more=["bbb", ""])
    found = counted(done)
    assert found == Distinct(values=3, longest=3, average_length=11 / 8)
    column = done.column("c", {"c": found})
    expected = {"NUM_NULLS": 2, "NUM_DISTINCTS": 3, "BIT_VECTOR": None, "AVG_COL_LEN": 11 / 8, "MAX_COL_LEN": 3}
    assert (column.values, column.complete, column.answers) == (expected, True, False)


def test_bytes_are_measured_and_not_counted_by_value(location: Path) -> None:
    done = one_column(location, "binary", [b"ab", b"c"])
    column = done.column("c", {"c": counted(done)})
    assert (column.values, column.complete) == ({"NUM_NULLS": 0, "AVG_COL_LEN": 1.5, "MAX_COL_LEN": 2}, True)


def test_numbers_are_complete_with_their_distinct_values(location: Path) -> None:
    done = one_column(location, "int", [5, None, 5])
    column = done.column("c", {"c": counted(done)})
    assert column.complete
    assert column.values["NUM_DISTINCTS"] == 1


def test_many_distinct_values_are_estimated_within_a_few_percent(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 1)
    done = one_column(location, "int", range(30_000), more=range(20_000, 60_000))
    assert abs(counted(done).values / 60_000 - 1) < 5 / distinct._SMALLEST**0.5


def test_no_rows_have_no_distinct_values(location: Path) -> None:
    empty: list[Event] = []
    write_events(location / "base_0000001" / "bucket_00000", empty)
    found = count_distinct(
        inline, f"file:{location}", ["base_0000001/bucket_00000"], parse_type("struct<c:int>"), ["c"]
    )
    assert found == {"c": Distinct(values=0, longest=0, average_length=0.0)}


@pytest.mark.slow
def test_spark_counts_distinct_values_and_orc_core_agrees_on_the_raw_size(location: Path, tmp_path: Path) -> None:
    done = one_column(location, "string", [f"v{i % 500}" for i in range(3000)])
    sessions = SparkSessions(master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path)
    try:
        found = counted(done, OnSpark(sessions=sessions, group="distinct", description="distinct"))
        assert found.values == 500
        jvm: Any = sessions.get().sparkContext._jvm
        for kind, path in (("acid", location / done.plan.items[0].output), ("plain", tmp_path / "plain.orc")):
            if kind == "plain":
                table = {
                    "i": pa.array([1, None], pa.int32()),
                    "l": pa.array([1, 2], pa.int64()),
                    "f": pa.array([1.0, 2.0], pa.float32()),
                    "d": [1.0, None],
                    "s": ["abc", None],
                    "y": [b"xy", b""],
                    "t": [datetime.fromisoformat("2020-01-01"), None],
                    "x": [date(2020, 1, 1)] * 2,
                    "n": [Decimal("1.5"), None],
                    "b": [True, False],
                    "a": [[1, 2], []],
                }
                orc.write_table(pa.table(table), str(path))
            options = jvm.org.apache.orc.OrcFile.readerOptions(jvm.org.apache.hadoop.conf.Configuration())
            reader = jvm.org.apache.orc.OrcFile.createReader(jvm.org.apache.hadoop.fs.Path(f"file:{path}"), options)
            tail = source(path).tail
            acid = tail.rows * (4 + 4 + 8 + 4 + 8 + 8) if kind == "acid" else 0
            assert raw_data_size(tail) == reader.getRawDataSize() - acid
    finally:
        sessions.stop()
