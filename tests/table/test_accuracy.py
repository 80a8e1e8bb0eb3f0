"""Our writers keep no statistics, so Hive must not answer queries from those that were accurate before them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.acid.column_statistics import ACCURATE
from compactor.metastore.catalog import TableName, get_table, list_partitions
from compactor.metastore.catalog_write import set_partition_parameters, set_table_parameters
from compactor.metastore.database import Database
from compactor.table.ddl import create_table
from compactor.table.streaming import StreamingIngest
from compactor.table.writer import TableWriter

COLUMNS = [("id", "int"), ("v", "string")]
FLAGS = '{"BASIC_STATS":"true"}'
ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


@pytest.fixture
def flat(db: Database, name: TableName, writer: TableWriter) -> TableName:
    create_table(db, name, COLUMNS)
    writer.insert(ROWS)
    set_table_parameters(db, name, {ACCURATE: FLAGS, "numRows": "2"})
    return name


def accurate_partitions(db: Database, name: TableName) -> set[str]:
    return {p.name for p in list_partitions(db, name) if ACCURATE in p.parameters}


def test_an_insert_takes_the_accuracy_and_leaves_the_number(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.insert(ROWS)
    parameters = get_table(db, flat).parameters
    assert ACCURATE not in parameters
    assert parameters["numRows"] == "2"


def test_a_delete_takes_the_accuracy(db: Database, flat: TableName, writer: TableWriter) -> None:
    writer.delete(pc.field("id") == 1)
    assert ACCURATE not in get_table(db, flat).parameters


def test_a_statement_that_fails_leaves_it(db: Database, flat: TableName, writer: TableWriter) -> None:
    def transaction() -> None:
        with writer.transaction() as txn:
            txn.insert(ROWS)
            raise ValueError("the caller's error")

    with pytest.raises(ValueError, match="the caller's error"):
        transaction()
    assert get_table(db, flat).parameters[ACCURATE] == FLAGS


def test_a_streaming_commit_takes_the_accuracy(db: Database, flat: TableName, writer: TableWriter) -> None:
    with StreamingIngest(writer, batch_size=2) as ingest:
        ingest.write(ROWS)
        assert get_table(db, flat).parameters[ACCURATE] == FLAGS
        ingest.commit()
        assert ACCURATE not in get_table(db, flat).parameters


def test_only_partitions_that_were_written_lose_it(db: Database, name: TableName, writer: TableWriter) -> None:
    create_table(db, name, COLUMNS, partitioned_by=[("p", "string")])
    writer.insert(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "p": ["x", "y", "z"]}))
    for partition in ("p=x", "p=y", "p=z"):
        set_partition_parameters(db, name, partition, {ACCURATE: FLAGS})
    writer.insert(pa.table({"id": [1], "v": ["a"], "p": ["x"]}))
    assert accurate_partitions(db, name) == {"p=y", "p=z"}
    with StreamingIngest(writer, partition={"p": "z"}) as ingest:
        ingest.write(ROWS)
        ingest.commit()
    assert accurate_partitions(db, name) == {"p=y"}
    writer.insert_overwrite(ROWS, partition={"p": "y"})
    assert accurate_partitions(db, name) == set()
