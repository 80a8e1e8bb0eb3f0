"""Tables whose columns changed: which stripes stay as they are, and what each column of a compacted file holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.schema import HiveType, struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import StripeUse
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.verify import verify_output
from tests.jobs.compacted import direct_results
from tests.orc.acid_files import insert, read_events, source, write_events, write_plain
from tests.properties.strategies import pad

OLD = (("pad", "binary"), ("id", "int"), ("v", "varchar(5)"))
RENAMED = (("pad", "binary"), ("number", "int"), ("v", "varchar(5)"))
WIDENED = (("pad", "binary"), ("number", "bigint"), ("v", "string"), ("extra", "decimal(9,2)"))
_ORC = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
_PARQUET = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"


def target(location: Path, columns: tuple[tuple[str, str], ...], *, parquet: bool = False) -> CompactionTarget:
    return CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=columns,
        input_format=_PARQUET if parquet else _ORC,
        full_acid=not parquet,
        bucketed=False,
    )


def compacted(place: CompactionTarget, depth: Depth = Depth.MAJOR) -> CompactionPlan:
    seen = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=9))
    made = plan(place, survey(place, seen), seen, depth, txn_id=50)
    assert isinstance(made, CompactionPlan)
    verify_output(made, direct_results(made))
    return made


def delta(location: Path, write_id: int, columns: tuple[tuple[str, str], ...]) -> None:
    """Six rows in two stripes, each of them large enough to be copied."""
    rows = [
        insert(write_id, i, (pad(i % 8), 10 * write_id + i, f"v{i}", *[None] * (len(columns) - 3))) for i in range(6)
    ]
    folder = f"delta_{write_id:07d}_{write_id:07d}_0000"
    write_events(location / folder / "bucket_00000_0", rows, row_type=struct_of(columns), stripe_rows=3)


def result(location: Path, made: CompactionPlan) -> tuple[HiveType, list[tuple[object, ...]], dict[int, StripeUse]]:
    """Columns of the output, its rows without `pad`, and the use of each source."""
    (item,) = made.items
    with source(location / item.output) as file:
        found = file.tail.row_type
    uses = {run.source: run.use for part in item.parts for run in part.runs}
    return found, [(e.row or ())[1:] for e in read_events(location / item.output)], uses


@pytest.mark.parametrize("depth", list(Depth))
def test_files_of_different_schemas_never_share_a_raw_copy(location: Path, depth: Depth) -> None:
    for write_id, columns in enumerate((OLD, WIDENED, RENAMED, WIDENED), start=1):
        delta(location, write_id, columns)
    found, rows, uses = result(location, compacted(target(location, WIDENED), depth))
    assert found == struct_of(WIDENED)
    assert uses == {0: StripeUse.DECODE, 1: StripeUse.COPY, 2: StripeUse.DECODE, 3: StripeUse.COPY}
    assert rows == [(10 * w + i, f"v{i}", None) for w in (1, 2, 3, 4) for i in range(6)]


def test_a_partition_older_than_its_table_is_copied_as_it_is(location: Path) -> None:
    for write_id in (1, 2):
        delta(location, write_id, OLD)
    found, rows, uses = result(location, compacted(target(location, WIDENED)))
    assert found == struct_of(OLD)
    assert set(uses.values()) == {StripeUse.COPY}
    assert rows == [(10 * w + i, f"v{i}") for w in (1, 2) for i in range(6)]


def test_an_older_partition_that_gets_rows_of_today_takes_todays_columns(location: Path) -> None:
    for write_id in (1, 2):
        delta(location, write_id, OLD)
    older = compacted(target(location, WIDENED))
    delta(location, 10, WIDENED)
    place = target(location, WIDENED)
    seen = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=10))
    made = plan(place, survey(place, seen), seen, Depth.MAJOR, txn_id=51)
    assert isinstance(made, CompactionPlan)
    assert made.items[0].sources[0].path == older.items[0].output
    verify_output(made, direct_results(made))
    found, rows, uses = result(location, made)
    assert found == struct_of(WIDENED)
    assert uses == {0: StripeUse.DECODE, 1: StripeUse.COPY}
    assert rows == [(10 * w + i, f"v{i}", None) for w in (1, 2, 10) for i in range(6)]


@pytest.mark.parametrize("newest", [OLD, RENAMED])
def test_a_renamed_column_keeps_its_values(location: Path, newest: tuple[tuple[str, str], ...]) -> None:
    for write_id, columns in enumerate((OLD, RENAMED, OLD), start=1):
        delta(location, write_id, columns)
    found, rows, uses = result(location, compacted(target(location, newest)))
    assert found == struct_of(newest)
    assert [uses[n] is StripeUse.COPY for n in range(3)] == [newest is OLD, newest is RENAMED, newest is OLD]
    assert rows == [(10 * w + i, f"v{i}") for w in (1, 2, 3) for i in range(6)]


def test_columns_of_insert_only_parquet_files_are_found_by_name_in_any_order(location: Path) -> None:
    tables = [
        pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}),
        pa.table({"v": ["c", "d"], "id": pa.array([3, 4], pa.int32())}),
        pa.table({"id": pa.array([5], pa.int32()), "v": ["e"]}),
        pa.table({"v": ["f"], "extra": [1.5], "id": pa.array([6], pa.int32())}),
    ]
    for write_id, table in enumerate(tables, start=1):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "000000_0")
    made = compacted(target(location, (("id", "int"), ("v", "string"), ("extra", "double")), parquet=True))
    files = [pq.read_table(location / item.output) for item in made.items]
    assert [f.column_names for f in files] == [["id", "v"], ["v", "id"], ["v", "extra", "id"]]
    rows = [(r["id"], r["v"], r.get("extra")) for f in files for r in f.to_pylist()]
    assert sorted(rows) == [
        (1, "a", None),
        (2, "b", None),
        (3, "c", None),
        (4, "d", None),
        (5, "e", None),
        (6, "f", 1.5),
    ]


def test_strings_of_load_data_become_the_varchar_and_char_of_the_table(location: Path) -> None:
    """Files that were moved in have string columns; Hive cuts and pads them when it reads."""
    columns = (("id", "int"), ("code", "char(4)"), ("label", "varchar(3)"))
    folder = location / "delta_0000001_0000001_0000"
    loaded = pa.table(
        {"id": pa.array([1, 2, 3], pa.int32()), "code": ["ab", "abcdef", None], "label": ["xyz!", "", None]}
    )
    write_plain(folder / "000000_0", loaded)
    rows = [insert(2, 0, (4, "abcd", "abc"))]
    write_events(location / "delta_0000002_0000002_0000/bucket_00000", rows, row_type=struct_of(columns))
    made = compacted(target(location, columns))
    (item,) = made.items
    with source(location / item.output) as file:
        assert file.tail.row_type == struct_of(columns)
    assert [e.row for e in read_events(location / item.output)] == [
        (1, "ab  ", "xyz"),
        (2, "abcd", ""),
        (3, None, None),
        (4, "abcd", "abc"),
    ]


def test_strings_of_load_data_stay_strings_as_long_as_nothing_else_is_there(location: Path) -> None:
    for write_id in (1, 2):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        write_plain(folder / "000000_0", pa.table({"label": ["a long text"]}))
    made = compacted(target(location, (("label", "varchar(3)"),)))
    assert [e.row for e in read_events(location / made.items[0].output)] == [("a long text",)] * 2
