"""DataFrames over ACID tables, in one Spark session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from compactor.errors import UsageError
from compactor.jobs.session import SparkSessions
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.reader import TableReader, open_snapshot
from compactor.table.spark import insert_dataframe, read_dataframe
from compactor.table.writer import TableWriter
from tests.table.conftest import Oracle

pytestmark = pytest.mark.slow
TIMESTAMP = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001 - Hive's timestamps have no zone


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    sessions = SparkSessions(
        master="local[2]",
        app_name="tables",
        driver_memory="1g",
        conf={"spark.sql.shuffle.partitions": "2"},
        cache=tmp_path_factory.mktemp("java"),
    )
    yield sessions.get()
    sessions.stop()


def test_a_frame_holds_what_the_snapshot_sees(
    db: Database, name: TableName, writer: TableWriter, spark: SparkSession
) -> None:
    columns = [
        ("id", "int"),
        ("a", "array<int>"),
        ("m", "map<string,int>"),
        ("s", "struct<x:int>"),
        ("ts", "timestamp"),
    ]
    create_table(db, name, columns, partitioned_by=[("p", "string")])
    row = {"id": 1, "a": [1], "m": [("k", 1)], "s": {"x": 1}, "ts": TIMESTAMP}
    types = pa.schema([("m", pa.map_(pa.string(), pa.int32()))])
    for p in ("x", "y"):
        arrays = {k: pa.array([v, None], types.field(k).type if k == "m" else None) for k, v in row.items()}
        writer.insert(pa.table(arrays), partition={"p": p})
    with open_snapshot(db, [name], user="b", host="h") as snapshot:
        frame = read_dataframe(spark, snapshot, name)
        narrow = read_dataframe(spark, snapshot, name, partitions=["p=x"], columns=["id"], with_row_ids=True)
        writer.delete(pc.field("id") == 1)
        assert frame.count() == 4
        found = frame.where("id = 1 and p = 'y'").collect()
        assert [r.asDict(recursive=True) for r in found] == [row | {"m": {"k": 1}, "p": "y"}]
        assert sorted(tuple(r) for r in narrow.where("id is not null").collect()) == [(1, 536870912, 0, 1)]


def test_an_empty_table_is_an_empty_frame(db: Database, name: TableName, spark: SparkSession) -> None:
    create_table(db, name, [("id", "int")])
    with open_snapshot(db, [name], user="b", host="h") as snapshot:
        assert read_dataframe(spark, snapshot, name).collect() == []


def test_executors_write_the_bucket_files_and_the_driver_commits(
    db: Database, name: TableName, writer: TableWriter, spark: SparkSession, oracle: Oracle
) -> None:
    create_table(
        db, name, [("id", "int"), ("v", "string")], partitioned_by=[("p", "int")], clustered_by=["id"], buckets=4
    )
    frame = spark.range(100).selectExpr("cast(id as int) as id", "concat('v', id) as v", "cast(id % 3 as int) as p")
    assert insert_dataframe(spark, frame, writer) == 1
    by_spark = {row[4 - 2]: (row[0], row[1].bucket) for row in oracle(name)}
    writer.insert_overwrite(TableReader(db, open_location, name, user="b", host="h").read())
    by_pyarrow = {row[2]: (row[0], row[1].bucket) for row in oracle(name)}
    assert len(by_spark) == 100
    assert by_spark == by_pyarrow


def test_a_plain_table_gets_a_file_a_task(
    db: Database, name: TableName, writer: TableWriter, spark: SparkSession, oracle: Oracle
) -> None:
    create_table(db, name, [("id", "bigint")])
    insert_dataframe(spark, spark.range(10).repartition(2), writer)
    assert sorted(row[2] for row in oracle(name)) == list(range(10))
    assert {(row[1].bucket >> 16) & 0xFFF for row in oracle(name)} == {0, 1}


def test_a_frame_with_other_columns_is_refused(
    db: Database, name: TableName, writer: TableWriter, spark: SparkSession, tmp_path: Path
) -> None:
    create_table(db, name, [("id", "bigint"), ("v", "string")])
    with pytest.raises(UsageError, match="needs id, v"):
        insert_dataframe(spark, spark.range(10), writer)
    assert not list((tmp_path / "warehouse" / "t").iterdir())
