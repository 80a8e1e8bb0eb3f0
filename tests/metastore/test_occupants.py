"""Who lives at a location: asked before files are removed that the catalogue has forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.metastore.catalog import Column, TableName
from compactor.metastore.catalog_schema import DBS, SDS
from compactor.metastore.catalog_write import add_partition, create_database, create_table
from compactor.metastore.database import Database
from compactor.metastore.occupants import Place, occupants

SALES = TableName(database="shop", table="sales")


def table(db: Database, name: TableName, location: str, *, partitioned: bool = False) -> None:
    create_table(
        db,
        name,
        columns=[Column(name="a", type="int")],
        partition_columns=[Column(name="p", type="string")] if partitioned else [],
        parameters={"transactional": "true"},
        owner="hive",
        location=location,
    )


@pytest.fixture
def shop(db: Database, tmp_path: Path) -> str:
    """A database with one partitioned table; the location of the database."""
    create_database(db, "shop", location=f"file:{tmp_path}/shop.db")
    location = f"file:{tmp_path}/shop.db"
    table(db, SALES, f"{location}/sales", partitioned=True)
    add_partition(db, SALES, ["1"])
    add_partition(db, SALES, ["50%_off"])
    return location


def names(db: Database, location: str) -> list[str]:
    return sorted(occupant.name for occupant in occupants(db, location))


def test_whoever_lives_there_below_or_above_is_found(db: Database, shop: str) -> None:
    partitions = ["shop.sales/p=1", "shop.sales/p=50%25_off"]
    assert names(db, f"{shop}/sales") == ["shop.sales", *partitions]
    assert names(db, f"{shop}/sales/p=1") == ["shop.sales", "shop.sales/p=1"]
    assert names(db, f"{shop}/sales/p=1/deeper") == ["shop.sales", "shop.sales/p=1"]
    assert names(db, f"{shop}/sales/p=50%25_off") == ["shop.sales", "shop.sales/p=50%25_off"]
    assert names(db, shop) == ["database shop", "shop.sales", *partitions]


def test_nobody_lives_where_only_a_name_is_alike(db: Database, shop: str) -> None:
    for near in ("sales.v0000012", "sale", "sales_", "old/sales", "sales.v0000012/p=1"):
        assert names(db, f"{shop}/{near}") == []
    assert names(db, f"{shop}/s_les") == names(db, f"{shop}/s%s") == []


def test_a_location_is_recognised_however_it_is_spelt(db: Database, shop: str) -> None:
    path = shop.removeprefix("file:")
    for other in (path, f"file://{path}/", f"file:{path}//sales/..", f"hdfs://namenode:8020{path}"):
        assert "shop.sales" in names(db, other)
    table(db, TableName(database="shop", table="odd"), f"hdfs://ns/{path}//odd/")
    assert names(db, f"{shop}/odd") == names(db, f"{shop}/odd/delta") == ["shop.odd"]


def test_two_buckets_are_two_places(db: Database, shop: str) -> None:
    table(db, TableName(database="shop", table="cloud"), "s3a://bucket/shop/cloud")
    assert names(db, "s3://bucket/shop/cloud/p=1") == ["shop.cloud"]
    assert names(db, "s3://other/shop/cloud") == []
    assert names(db, "gs://bucket/shop/cloud") == []


@pytest.mark.parametrize("location", ["s3://bucket", "s3a://bucket/"])
def test_a_table_in_the_root_of_a_bucket_is_above_everything_in_it(db: Database, shop: str, location: str) -> None:
    table(db, TableName(database="shop", table="all"), location)
    assert names(db, "s3://bucket/any/where.v0000012") == ["shop.all"]
    assert names(db, "s3://other/any/where.v0000012") == []


def test_a_database_is_asked_for_both_of_its_locations(db: Database, shop: str) -> None:
    with db.write() as conn:
        conn.execute(DBS.update().where(DBS.c.NAME == "shop").values(DB_MANAGED_LOCATION_URI=f"{shop}/managed"))
    assert names(db, f"{shop}/managed") == ["database shop"]
    assert names(db, f"{shop}/managed/below") == []


def test_what_has_no_location_lives_nowhere(db: Database, shop: str) -> None:
    with db.write() as conn:
        conn.execute(SDS.update().values(LOCATION=None))
    assert names(db, f"{shop}/sales") == []


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/w/t", ("", "", ("w", "t"))),
        ("file:/w/t/", ("file", "", ("w", "t"))),
        ("file:///w//./t", ("file", "", ("w", "t"))),
        ("hdfs://h:8020/w/x/../t", ("hdfs", "h:8020", ("w", "t"))),
        ("S3A://bucket/w", ("s3", "bucket", ("w",))),
        ("s3://bucket", ("s3", "bucket", ())),
        ("/w/p=a:b", ("", "", ("w", "p=a:b"))),
        ("/..", ("", "", ())),
    ],
)
def test_locations_are_taken_apart(location: str, place: tuple[str, str, tuple[str, ...]]) -> None:
    read = Place.of(location)
    assert (read.scheme, read.authority, read.parts) == place
