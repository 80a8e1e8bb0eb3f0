"""Every table that a real Hive wrote, compacted: rows and ROW__IDs stay those that Hive itself returned."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import orc
from pyarrow import parquet as pq

from compactor.acid.directory import Snapshot, directory_state
from compactor.acid.layout import Base, is_hidden, parse_bucket, parse_directory
from compactor.acid.planning import CompactionPlan, Depth, ItemKind, Refusal
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.verify import verify_output
from compactor.storage.filesystem import open_location
from tests.fixtures.hive_tables import EXPECTED, HiveTable, all_txns, hive_table, unpack
from tests.jobs.compacted import direct_results
from tests.table.test_hive_fixtures_read import by_text, expected_rows, read_batches, rows_of

_ORC = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
_PARQUET = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"
_FIRST_TXN = 9001
_FULL_ACID = sorted(n for n, e in EXPECTED.items() if e["row_ids"] is not None)
_RUNS = [[Depth.MINOR], [Depth.MAJOR], [Depth.MINOR, Depth.MAJOR]]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("hive"))


@pytest.fixture
def table(warehouse: Path, tmp_path: Path) -> Callable[[str], HiveTable]:
    """A copy of a table that a test may change."""

    def copied(name: str) -> HiveTable:
        origin, copy = hive_table(name, warehouse), hive_table(name, tmp_path)
        shutil.copytree(origin.location, copy.location)
        return copy

    return copied


def target(fixture: HiveTable, folder: Path) -> CompactionTarget:
    return CompactionTarget(
        name=f"fx.{fixture.name}",
        location=f"file:{folder}",
        columns=fixture.columns,
        input_format=_PARQUET if fixture.name == "mm_part" else _ORC,
        full_acid=fixture.full_acid,
        bucketed=fixture.name == "acid_bucketed",
    )


def compact(fixture: HiveTable, depth: Depth, txn_id: int) -> list[CompactionPlan]:
    """Compact every folder where there is something to gain, without Spark; the plans that were carried out."""
    snapshot = Snapshot(txns=all_txns(), write_ids=fixture.write_ids.for_compaction())
    plans: list[CompactionPlan] = []
    for folder in fixture.folders():
        place = target(fixture, folder)
        made = plan(place, survey(place, snapshot), snapshot, depth, txn_id=txn_id)
        if isinstance(made, Refusal):
            assert made.reason.startswith("nothing to gain")
            continue
        verify_output(made, direct_results(made))
        plans.append(made)
    return plans


def row_ids(fixture: HiveTable) -> list[tuple[Any, ...]]:
    found = []
    for batch in read_batches(fixture):
        ids = batch.row_ids
        assert ids is not None
        columns = (ids.write_id.tolist(), ids.bucket.tolist(), ids.row_id.tolist())
        found += zip(*columns, batch.rows.column("id").to_pylist(), strict=True)
    return sorted(found)


def hives_row_ids(fixture: HiveTable) -> list[tuple[Any, ...]]:
    assert fixture.row_ids is not None
    return sorted((w, b, r, key) for w, b, r, _, key in fixture.row_ids)


@pytest.mark.parametrize("depths", _RUNS, ids=lambda d: " then ".join(x.value for x in d))
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_rows_and_row_ids_stay_those_of_hive(table: Callable[[str], HiveTable], name: str, depths: list[Depth]) -> None:
    fixture = table(name)
    for step, depth in enumerate(depths):
        compact(fixture, depth, _FIRST_TXN + step)
        found = [row for batch in read_batches(fixture) for row in rows_of(batch)]
        assert by_text(found) == by_text(expected_rows(fixture))
        if fixture.row_ids is not None:
            assert row_ids(fixture) == hives_row_ids(fixture)


@pytest.mark.parametrize("name", _FULL_ACID)
def test_a_base_holds_exactly_the_rows_of_hive_for_any_reader(table: Callable[[str], HiveTable], name: str) -> None:
    """pyarrow alone, on whole files: nothing of ours decides which rows there are."""
    fixture = table(name)
    for made in compact(fixture, Depth.MAJOR, _FIRST_TXN):
        folder = Path(made.location.removeprefix("file:"))
        inside = f"{folder.relative_to(fixture.location)}/".removeprefix("./") if fixture.partitions else ""
        found = []
        for item in made.items:
            read = orc.ORCFile(str(folder / item.output)).read()
            assert set(read.column("operation").to_pylist()) <= {0}
            keys = [read.column(c).to_pylist() for c in ("originalTransaction", "bucket", "rowId")]
            assert list(zip(*keys, strict=True)) == sorted(zip(*keys, strict=True))
            found += [(*k, r["id"]) for *k, r in zip(*keys, read.column("row").to_pylist(), strict=True)]
        assert fixture.row_ids is not None
        assert sorted(found) == sorted((w, b, r, k) for w, b, r, f, k in fixture.row_ids if f.startswith(inside))


@pytest.mark.parametrize("depth", list(Depth))
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_outputs_are_named_as_hive_names_them(table: Callable[[str], HiveTable], name: str, depth: Depth) -> None:
    fixture = table(name)
    for made in compact(fixture, depth, _FIRST_TXN):
        folder = Path(made.location.removeprefix("file:"))
        for directory in made.directories:
            entry = parse_directory(directory)
            assert entry is not None
            assert entry.visibility_txn == _FIRST_TXN
            top = entry.write_id if isinstance(entry, Base) else entry.max_write_id
            assert top == fixture.write_ids.high_water
            visible = [p.name for p in (folder / directory).iterdir() if not is_hidden(p.name)]
            assert visible, "a base without a visible file is no base to Trino"
            assert all((b := parse_bucket(v)) and b.attempt is None for v in visible)
            version = folder / directory / "_orc_acid_version"
            assert (version.read_bytes() if version.exists() else None) == (b"2" if fixture.full_acid else None)


def test_after_a_major_compaction_only_the_base_is_current(table: Callable[[str], HiveTable]) -> None:
    fixture = table("orig_flat")
    (made,) = compact(fixture, Depth.MAJOR, _FIRST_TXN)
    fs, root = open_location(made.location)
    state = directory_state(fs.listing(root), Snapshot(txns=all_txns(), write_ids=fixture.write_ids))
    assert state.base is not None
    assert (state.base.name, state.deltas, state.originals) == (made.directories[0], (), ())
    assert "000000_0_copy_2" in state.obsolete


def test_a_table_whose_rows_are_all_deleted_becomes_an_empty_bucket(table: Callable[[str], HiveTable]) -> None:
    fixture = table("acid_part")
    empty = [m for m in compact(fixture, Depth.MAJOR, _FIRST_TXN) if m.location.endswith("n=2")]
    (item,) = (i for m in empty for i in m.items)
    read = orc.ORCFile(empty[0].location.removeprefix("file:") + "/" + item.output).read()
    expected = [r for r in fixture.row_ids or [] if r[3].startswith("dt=2024-01-01/n=2/")]
    assert read.num_rows == len(expected)
    assert item.output.endswith("/bucket_00000")


def test_a_second_compaction_of_the_same_range_is_refused(table: Callable[[str], HiveTable]) -> None:
    fixture = table("acid_flat")
    assert len(compact(fixture, Depth.MAJOR, _FIRST_TXN)) == 1
    assert compact(fixture, Depth.MAJOR, _FIRST_TXN + 1) == []


def test_an_insert_only_parquet_table_stays_parquet(table: Callable[[str], HiveTable]) -> None:
    fixture = table("mm_part")
    plans = compact(fixture, Depth.MAJOR, _FIRST_TXN)
    for made in plans:
        (item,) = made.items
        assert (item.kind, item.format) == (ItemKind.PLAIN, "parquet")
        assert pq.read_table(made.location.removeprefix("file:") + "/" + item.output).column_names == ["id", "v"]
    assert len(plans) == 2
