"""Every table that a real Hive wrote: rows and ROW__IDs as Hive itself returned them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.partition_name import partition_values
from compactor.demo.hive_prints import printed_rows
from compactor.metastore.catalog import Column, Table, TableName
from compactor.storage.filesystem import open_location
from compactor.table.scan import Place, ScanBatch, read_task, scan_tasks
from tests.fixtures.hive_tables import EXPECTED, HiveTable, all_txns, hive_table, unpack


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("hive"))


def catalogue_table(fixture: HiveTable) -> Table:
    names = [*partition_values(fixture.partitions[0])] if fixture.partitions else []
    kinds = dict(EXPECTED[fixture.name]["result_columns"])
    parquet = fixture.name == "mm_part"
    return Table(
        id=1,
        name=TableName(database="fx", table=fixture.name),
        type="MANAGED_TABLE",
        owner="root",
        location=f"file:{fixture.location}",
        columns=tuple(Column(name=n, type=t) for n, t in fixture.columns),
        partition_columns=tuple(Column(name=n, type=kinds[n].lower()) for n in names),
        parameters=fixture.parameters,
        input_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"
        if parquet
        else "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        output_format=None,
        serde=None,
    )


def read_batches(fixture: HiveTable) -> list[ScanBatch]:
    table = catalogue_table(fixture)
    snapshot = Snapshot(txns=all_txns(), write_ids=fixture.write_ids)
    found = [
        Place(location=f"file:{fixture.location}/{name}", partition=name, values=tuple(partition_values(name).values()))
        for name in fixture.partitions
    ] or [Place(location=f"file:{fixture.location}")]
    return [
        batch
        for place in found
        for task in scan_tasks(table, place, snapshot, open_location)
        for batch in read_task(task, open_location)
    ]


def rows_of(batch: ScanBatch) -> list[list[Any]]:
    return [list(row) for row in printed_rows(pa.Table.from_batches([batch.rows]))]


def expected_rows(fixture: HiveTable) -> list[list[Any]]:
    """Hive's driver hands arrays over as bytes, which the file shows in hexadecimal."""
    kinds = [kind for _, kind in EXPECTED[fixture.name]["result_columns"]]

    def cell(value: Any, kind: str) -> Any:
        return bytes.fromhex(value).decode() if kind == "ARRAY" and value is not None else value

    return [[cell(v, k) for v, k in zip(row, kinds, strict=True)] for row in fixture.rows]


def by_text(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_table_of_hive_reads_as_hive_reads_it(name: str, warehouse: Path) -> None:
    fixture = hive_table(name, warehouse)
    found = [row for batch in read_batches(fixture) for row in rows_of(batch)]
    assert by_text(found) == by_text(expected_rows(fixture))


@pytest.mark.parametrize("name", sorted(n for n, e in EXPECTED.items() if e["row_ids"] is not None))
def test_row_ids_are_those_of_hive(name: str, warehouse: Path) -> None:
    fixture = hive_table(name, warehouse)
    found = []
    for batch in read_batches(fixture):
        assert batch.row_ids is not None
        ids = batch.row_ids
        found += zip(
            ids.write_id.tolist(),
            ids.bucket.tolist(),
            ids.row_id.tolist(),
            batch.rows.column("id").to_pylist(),
            strict=True,
        )
    assert fixture.row_ids is not None
    assert sorted(found) == sorted((w, b, r, key) for w, b, r, _, key in fixture.row_ids)
