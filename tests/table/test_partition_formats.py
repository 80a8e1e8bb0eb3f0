"""A partition keeps the format it was made with: ALTER TABLE … SET FILEFORMAT changes only those to come."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyarrow import orc

from compactor.metastore.catalog import find_partition, get_table
from compactor.metastore.catalog_schema import SDS, TBLS
from compactor.metastore.compaction import CompactionType
from compactor.table.ddl import create_table
from compactor.worker import Outcome
from tests.simulation.world import ORDERS, World

_PARQUET = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An insert-only table with an ORC partition from before SET FILEFORMAT PARQUET, and a Parquet one from after it."""
    made = World.create(tmp_path)
    create_table(
        made.db, ORDERS, (("id", "int"), ("item", "string")), partitioned_by=(("day", "string"),), insert_only=True
    )
    made.insert({1: "one"}, day="before")
    with made.db.write() as conn:
        of_table = sa.select(TBLS.c.SD_ID).where(TBLS.c.TBL_ID == get_table(made.db, ORDERS).id).scalar_subquery()
        conn.execute(SDS.update().where(SDS.c.SD_ID == of_table).values(INPUT_FORMAT=_PARQUET))
    made.insert({2: "two"}, day="before")
    made.insert({10: "ten"}, day="after")
    made.insert({11: "eleven"}, day="after")
    return made


def files(world: World, day: str) -> list[Path]:
    return sorted(p for p in (world.location() / f"day={day}").rglob("0*") if p.is_file())


def test_each_partition_knows_its_own_format(world: World) -> None:
    assert "orc" in str(find_partition(world.db, ORDERS, {"day": "before"}).input_format).lower()
    assert find_partition(world.db, ORDERS, {"day": "after"}).input_format == _PARQUET


def test_writers_keep_to_the_format_of_the_partition_and_readers_read_both(world: World) -> None:
    assert [orc.ORCFile(str(path)).nrows for path in files(world, "before")] == [1, 1]
    assert [pq.read_metadata(path).num_rows for path in files(world, "after")] == [1, 1]
    assert world.rows() == {1: "one", 2: "two", 10: "ten", 11: "eleven"}


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_partitions_of_different_formats_are_compacted_each_in_its_own(world: World, kind: CompactionType) -> None:
    for day in ("before", "after"):
        world.request(kind, partition=f"day={day}")
        assert world.worker().run_once().outcome is Outcome.PUBLISHED
    while world.clean().did_anything:
        assert world.rows() == {1: "one", 2: "two", 10: "ten", 11: "eleven"}
    (before,) = files(world, "before")
    (after,) = files(world, "after")
    assert orc.ORCFile(str(before)).nrows == 2
    assert pq.read_metadata(after).num_rows == 2


def test_an_insert_overwrite_keeps_to_the_format_of_the_partition(world: World) -> None:
    rows = pa.table({"id": pa.array([5], pa.int32()), "item": pa.array(["five"])})
    for day in ("before", "after"):
        world.writer().insert_overwrite(rows, partition={"day": day})
    assert orc.ORCFile(str(files(world, "before")[0])).nrows == 1
    assert pq.read_metadata(files(world, "after")[0]).num_rows == 1
