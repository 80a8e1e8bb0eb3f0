from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from compactor.acid.partition_name import DEFAULT_PARTITION
from compactor.errors import AlreadyExists, NoSuchObject, UsageError
from compactor.metastore.catalog import (
    Column,
    SortColumn,
    Table,
    TableName,
    find_partition,
    get_database,
    get_partition,
    get_table,
    list_partitions,
    list_tables,
)
from compactor.metastore.catalog_schema import CDS, COLUMNS_V2, PARTITIONS, SDS, SERDES, TBLS, metadata
from compactor.metastore.catalog_write import (
    add_partition,
    create_database,
    create_table,
    drop_partition,
    drop_table,
    set_columns,
    set_partition_parameters,
    set_table_parameters,
)
from compactor.metastore.database import Database

FLIGHTS = TableName(database="air", table="flights")
COLUMNS = (Column(name="id", type="int"), Column(name="v", type="string"))
ACID = {"transactional": "true", "transactional_properties": "default"}


@pytest.fixture
def flights(db: Database) -> Table:
    create_database(db, "air")
    return create_table(
        db,
        FLIGHTS,
        columns=COLUMNS,
        partition_columns=(Column(name="dt", type="string"), Column(name="n", type="int")),
        parameters=ACID,
        bucket_columns=("id",),
        bucket_count=4,
        sort_columns=(SortColumn(name="id", ascending=False),),
        owner="ann",
    )


def _counts(db: Database) -> dict[str, int]:
    with db.read() as conn:
        return {
            table.name: conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
            if table.name != "SEQUENCE_TABLE"
        }


def test_a_table_name_is_read_in_lower_case_and_written_with_a_dot() -> None:
    name = TableName.parse(" Air.Flights ")
    assert name == FLIGHTS
    assert str(name) == "air.flights"
    assert TableName(database="AIR", table="FLIGHTS") == FLIGHTS


@pytest.mark.parametrize("text", ["flights", "air.", ".flights", "a.b.c", ""])
def test_anything_else_is_no_table_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"database\.table"):
        TableName.parse(text)


def test_a_table_comes_back_as_it_was_created(db: Database, flights: Table, tmp_path: Path) -> None:
    assert get_table(db, FLIGHTS) == flights
    assert flights.name == FLIGHTS
    assert flights.location == f"file:{tmp_path}/warehouse/air.db/flights"
    assert flights.columns == COLUMNS
    assert [column.name for column in flights.partition_columns] == ["dt", "n"]
    assert flights.bucket_columns == ("id",)
    assert flights.bucket_count == 4
    assert flights.sort_columns == (SortColumn(name="id", ascending=False),)
    assert flights.owner == "ann"
    assert flights.input_format is not None
    assert flights.input_format.endswith("OrcInputFormat")
    assert flights.serde is not None
    assert flights.parameters["transactional"] == "true"


def test_a_managed_table_of_default_lives_in_the_warehouse(db: Database, tmp_path: Path) -> None:
    table = create_table(db, TableName(database="default", table="t"), columns=COLUMNS)
    assert table.location == f"file:{tmp_path}/warehouse/t"
    assert table.bucket_count == -1
    assert not table.is_partitioned


@pytest.mark.parametrize(
    ("parameters", "transactional", "insert_only"),
    [
        ({}, False, False),
        ({"transactional": "false"}, False, False),
        ({"transactional": "TRUE"}, True, False),
        ({"TRANSACTIONAL": "true"}, True, False),
        ({"transactional": "true", "transactional_properties": "insert_only"}, True, True),
        ({"transactional_properties": "insert_only"}, False, False),
    ],
)
def test_parameters_say_what_kind_of_table_it_is(
    db: Database, parameters: dict[str, str], transactional: bool, insert_only: bool
) -> None:
    table = create_table(db, TableName(database="default", table="t"), columns=COLUMNS, parameters=parameters)
    assert table.is_transactional is transactional
    assert table.is_insert_only is insert_only
    assert table.is_full_acid is (transactional and not insert_only)


def test_tables_are_listed_by_name(db: Database, flights: Table) -> None:
    planes = TableName(database="air", table="a_planes")
    create_table(db, planes, columns=COLUMNS)
    create_table(db, TableName(database="default", table="z"), columns=COLUMNS)
    assert list_tables(db, "air") == [planes, FLIGHTS]
    assert [str(name) for name in list_tables(db)] == ["air.a_planes", "air.flights", "default.z"]
    with pytest.raises(NoSuchObject):
        list_tables(db, "sea")


def test_what_exists_cannot_be_created_again(db: Database, flights: Table) -> None:
    with pytest.raises(AlreadyExists):
        create_table(db, FLIGHTS, columns=COLUMNS)
    with pytest.raises(AlreadyExists):
        create_database(db, "AIR")
    assert create_database(db, "air", location="file:/x", if_not_exists=True).location != "file:/x"


def test_a_database_keeps_its_location_and_parameters(db: Database) -> None:
    made = create_database(db, "sea", location="s3://b/sea.db", parameters={"no_auto_compaction": "true"}, owner="bo")
    assert get_database(db, "SEA") == made
    assert made.location == "s3://b/sea.db"
    assert made.parameters == {"no_auto_compaction": "true"}
    table = create_table(db, TableName(database="sea", table="t"), columns=COLUMNS)
    assert table.location == "s3://b/sea.db/t"


def test_a_partition_is_named_and_escaped_as_hive_does(db: Database, flights: Table) -> None:
    partition = add_partition(db, FLIGHTS, ["a b:c/d=e%", "7"], parameters={"k": "v"})
    assert partition.name == "dt=a b%3Ac%2Fd%3De%25/n=7"
    assert partition.values == ("a b:c/d=e%", "7")
    assert partition.location == f"{flights.location}/{partition.name}"
    assert partition.columns == COLUMNS
    assert partition.parameters["k"] == "v"
    assert get_partition(db, FLIGHTS, partition.name) == partition
    assert find_partition(db, FLIGHTS, {"N": "7", "dt": "a b:c/d=e%"}) == partition


def test_a_missing_partition_value_is_the_default_partition(db: Database, flights: Table) -> None:
    partition = add_partition(db, FLIGHTS, ["", "1"])
    assert partition.name == f"dt={DEFAULT_PARTITION}/n=1"
    assert find_partition(db, FLIGHTS, {"dt": "", "n": "1"}) == partition


def test_partitions_are_listed_by_name_with_their_own_parameters(db: Database, flights: Table) -> None:
    for day in ("03", "01", "02"):
        add_partition(db, FLIGHTS, [day, "1"], parameters={"day": day})
    assert [(p.name, p.parameters["day"]) for p in list_partitions(db, FLIGHTS)] == [
        ("dt=01/n=1", "01"),
        ("dt=02/n=1", "02"),
        ("dt=03/n=1", "03"),
    ]


def test_a_partition_that_exists_is_returned_only_when_asked_for(db: Database, flights: Table) -> None:
    first = add_partition(db, FLIGHTS, ["x", "1"])
    with pytest.raises(AlreadyExists):
        add_partition(db, FLIGHTS, ["x", "1"])
    assert add_partition(db, FLIGHTS, ["x", "1"], location="file:/y", if_not_exists=True) == first


def test_a_specification_must_name_the_partition_columns_and_a_partition(db: Database, flights: Table) -> None:
    add_partition(db, FLIGHTS, ["x", "1"])
    with pytest.raises(UsageError, match="dt, n"):
        find_partition(db, FLIGHTS, {"dt": "x"})
    with pytest.raises(UsageError):
        add_partition(db, FLIGHTS, ["x"])
    with pytest.raises(NoSuchObject):
        find_partition(db, FLIGHTS, {"dt": "1", "n": "x"})
    with pytest.raises(NoSuchObject):
        get_partition(db, FLIGHTS, "dt=x/n=2")


def test_parameters_are_set_replaced_and_removed_one_by_one(db: Database, flights: Table) -> None:
    set_table_parameters(db, FLIGHTS, {"a": "1", "transactional": None})
    set_table_parameters(db, FLIGHTS, {"a": "2"})
    parameters = get_table(db, FLIGHTS).parameters
    assert parameters["a"] == "2"
    assert "transactional" not in parameters
    assert parameters["transactional_properties"] == "default"
    partition = add_partition(db, FLIGHTS, ["x", "1"], parameters={"a": "1", "b": "1"})
    set_partition_parameters(db, FLIGHTS, partition.name, {"a": "2", "b": None})
    assert get_partition(db, FLIGHTS, partition.name).parameters["a"] == "2"
    assert "b" not in get_partition(db, FLIGHTS, partition.name).parameters
    with pytest.raises(NoSuchObject):
        set_partition_parameters(db, FLIGHTS, "dt=y/n=1", {"a": "1"})


def test_old_partitions_keep_their_columns_unless_the_change_cascades(db: Database, flights: Table) -> None:
    old = add_partition(db, FLIGHTS, ["x", "1"])
    wider = (*COLUMNS, Column(name="w", type="double"))
    set_columns(db, FLIGHTS, wider)
    assert get_table(db, FLIGHTS).columns == wider
    assert get_partition(db, FLIGHTS, old.name).columns == COLUMNS
    assert add_partition(db, FLIGHTS, ["y", "1"]).columns == wider
    set_columns(db, FLIGHTS, wider, cascade=True)
    assert {p.columns for p in list_partitions(db, FLIGHTS)} == {wider}
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(CDS)) == 1


def test_dropping_a_table_leaves_nothing_behind(db: Database) -> None:
    before = _counts(db)
    create_table(db, TableName(database="default", table="t"), columns=COLUMNS, partition_columns=(COLUMNS[1],))
    name = TableName(database="default", table="t")
    add_partition(db, name, ["x"])
    set_columns(db, name, COLUMNS[:1])
    drop_table(db, name)
    assert _counts(db) == before
    with pytest.raises(NoSuchObject):
        get_table(db, name)


def test_dropping_a_partition_leaves_the_table_and_its_columns(db: Database, flights: Table) -> None:
    partition = add_partition(db, FLIGHTS, ["x", "1"])
    other = add_partition(db, FLIGHTS, ["y", "1"])
    drop_partition(db, FLIGHTS, partition.name)
    assert list_partitions(db, FLIGHTS) == [other]
    assert get_table(db, FLIGHTS) == flights
    with pytest.raises(NoSuchObject):
        drop_partition(db, FLIGHTS, partition.name)


def test_ids_go_on_after_those_that_a_hive_metastore_took(db: Database) -> None:
    seconds = {"CREATE_TIME": 1, "LAST_ACCESS_TIME": 0}
    with db.write() as conn:
        conn.execute(CDS.insert().values(CD_ID=40))
        conn.execute(COLUMNS_V2.insert().values(CD_ID=40, COLUMN_NAME="c", TYPE_NAME="int", INTEGER_IDX=0))
        conn.execute(SERDES.insert().values(SERDE_ID=41))
        flags = {"IS_COMPRESSED": False, "IS_STOREDASSUBDIRECTORIES": False}
        conn.execute(SDS.insert().values(SD_ID=42, NUM_BUCKETS=-1, SERDE_ID=41, CD_ID=40, LOCATION="file:/t", **flags))
        row = {"TBL_ID": 43, "DB_ID": 1, "SD_ID": 42, "RETENTION": 0, "TBL_NAME": "old", "TBL_TYPE": "MANAGED_TABLE"}
        conn.execute(TBLS.insert().values(row | seconds))
        conn.execute(PARTITIONS.insert().values(PART_ID=44, PART_NAME="p=x", SD_ID=42, TBL_ID=43, **seconds))
    table = create_table(db, TableName(database="default", table="new"), columns=COLUMNS)
    assert table.id == 44
    assert get_table(db, TableName(database="default", table="old")).columns == (Column(name="c", type="int"),)
