"""DROP as Hive does it for readers without locks: out of the catalogue, a row for the cleaner, the files stay."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from cleaner.service import Cleaner, CleanerResult
from compactor.acid.layout import base_name
from compactor.metastore.catalog import Column, TableName
from compactor.metastore.catalog_write import add_partition, create_table, drop_partition, drop_table
from compactor.metastore.compaction import CompactionState, CompactionType, format_properties
from compactor.metastore.compaction_rows import next_compaction_id
from compactor.metastore.schema import COMPACTION_QUEUE
from compactor.metastore.txns import TxnType, commit_transaction, open_transactions
from compactor.metastore.writeids import allocate_write_ids
from compactor.storage.filesystem import FilesystemOf, open_location
from tests.roles.world import World


def suffixed_table(world: World, name: str = "t", *, partitioned: bool = False, **parameters: str) -> TableName:
    """A table whose directory has the suffix that Hive gives with `hive.acid.createtable.softdelete`."""
    table = TableName(database="default", table=name)
    (txn_id,) = open_transactions(world.db, user="hive", host="hs2")
    create_table(
        world.db,
        table,
        columns=[Column(name="a", type="int")],
        partition_columns=[Column(name="p", type="string")] if partitioned else [],
        parameters={"transactional": "true", "soft_delete": "true"} | parameters,
        owner="hive",
        location=f"file:{world.warehouse}/{name}.v{txn_id:07d}",
    )
    commit_transaction(world.db, txn_id)
    world.location(table).mkdir(parents=True)
    return table


def begin_drop(world: World, table: TableName, partition: str | None = None) -> int:
    """What the metastore does in the transaction of a DROP, up to its commit; the transaction, still open."""
    (txn_id,) = open_transactions(world.db, kind=TxnType.SOFT_DELETE, user="hive", host="hs2")
    location = world.location(table, partition)
    write_id = 0
    if partition is None:
        drop_table(world.db, table)
    else:
        write_id = allocate_write_ids(world.db, [txn_id], table)[txn_id]
        drop_partition(world.db, table, partition)
    put_row(world, table, partition, f"file:{location}", txn_id=txn_id, write_id=write_id)
    if partition is not None:
        mark(location, write_id)
    return txn_id


def put_row(
    world: World, table: TableName, partition: str | None, location: str, *, txn_id: int | None, write_id: int
) -> None:
    """The row of `AcidEventListener`: no date yet."""
    with world.db.write() as conn:
        row = {
            "CQ_ID": next_compaction_id(conn),
            "CQ_DATABASE": table.database,
            "CQ_TABLE": table.table,
            "CQ_PARTITION": partition,
            "CQ_STATE": CompactionState.READY_FOR_CLEANING,
            "CQ_TYPE": CompactionType.MAJOR,
            "CQ_TBLPROPERTIES": format_properties({"ifPurge": "false", "location": location}),
            "CQ_TXN_ID": txn_id,
            "CQ_HIGHEST_WRITE_ID": write_id,
            "CQ_RUN_AS": "hive",
            "CQ_RETRY_RETENTION": 0,
        }
        conn.execute(sa.insert(COMPACTION_QUEUE).values(row))


def mark(location: Path, write_id: int) -> None:
    """The base with which Hive hides a dropped partition's rows (`HMSHandler.addTruncateBaseFile`)."""
    base = location / base_name(write_id)
    base.mkdir(parents=True)
    (base / "_metadata_acid").write_text('{"thisFileVersion":"0","dataFormat":"dropped"}')


def drop_softly(world: World, table: TableName, partition: str | None = None) -> Path:
    """A whole DROP; where its files are."""
    location = world.location(table, partition)
    commit_transaction(world.db, begin_drop(world, table, partition))
    return location


def recreate(world: World, table: TableName, value: str) -> str:
    """Add a partition again whose directory may still be there."""
    return add_partition(world.db, table, [value]).name


def clean(world: World, filesystem_of: FilesystemOf = open_location) -> CleanerResult:
    return Cleaner(world.db, filesystem_of, world.settings, world.metrics, "host").run_once()


def files(location: Path) -> list[str]:
    return sorted(str(path.relative_to(location)) for path in location.rglob("*") if path.is_file())
