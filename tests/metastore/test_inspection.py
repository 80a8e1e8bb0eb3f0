"""Metastore databases of other Hive releases: what is worked on, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from compactor.errors import SchemaNotSupported
from compactor.metastore import schema
from compactor.metastore.catalog import TableName
from compactor.metastore.catalog_schema import DBS, PART_COL_STATS, TAB_COL_STATS
from compactor.metastore.catalog_write import create_table
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.metastore.inspection import require_supported
from compactor.metastore.schema import metadata
from compactor.settings import InitiatorSettings, Settings
from tests.servers import drop_columns
from tests.simulation.world import World

pytestmark = pytest.mark.usefixtures("own_schema")

CATALOG_COLUMNS = {
    schema.COMPACTION_QUEUE: "CQ_CATALOG",
    schema.COMPLETED_COMPACTIONS: "CC_CATALOG",
    schema.COMPLETED_TXN_COMPONENTS: "CTC_CATALOG",
    schema.TXN_COMPONENTS: "TC_CATALOG",
    schema.WRITE_SET: "WS_CATALOG",
    schema.MIN_HISTORY_WRITE_ID: "MH_CATALOG",
    schema.HIVE_LOCKS: "HL_CATALOG",
    schema.TXN_TO_WRITE_ID: "T2W_CATALOG",
    schema.NEXT_WRITE_ID: "NWI_CATALOG",
}


def _add(db: Database, table: sa.Table, column: str, definition: str) -> None:
    with db.write() as conn:
        quote = conn.dialect.identifier_preparer.quote
        conn.exec_driver_sql(f"ALTER TABLE {quote(table.name)} ADD COLUMN {quote(column)} {definition}")


@pytest.fixture
def hives(db: Database) -> Database:
    """As Hive 4.0 makes it: without the tables of ours."""
    with db.write() as conn:
        for table in (schema.COMPACTOR_JOB_COST, schema.COMPACTOR_INSTALLATION):
            table.drop(conn)
    return db


def _works(db: Database, root: Path) -> None:
    """From the write to the removed files, with every role."""
    require_supported(db)
    world = World(root=root, db=db, settings=Settings(initiator=InitiatorSettings(delta_num_threshold=1)))
    world.create_table()
    rows = world.fill()
    (requested,) = world.initiate().requested
    world.worker().run_once()
    world.clean()
    world.keep_house()
    assert world.compaction(requested.id).state is CompactionState.SUCCEEDED
    assert world.rows() == rows


def test_every_role_works_on_the_tables_of_hive_4_0(hives: Database, tmp_path: Path) -> None:
    before = hives.table_names()
    _works(hives, tmp_path)
    assert hives.table_names() == before


def test_every_role_works_beside_the_catalogue_columns_of_the_4_3_line(hives: Database, tmp_path: Path) -> None:
    for table, column in CATALOG_COLUMNS.items():
        _add(hives, table, column, "VARCHAR(128) DEFAULT 'hive' NOT NULL")
    _works(hives, tmp_path)


def test_columns_that_nobody_must_fill_do_not_disturb(hives: Database, tmp_path: Path) -> None:
    for table in metadata.sorted_tables:
        if table.name in hives.table_names():
            _add(hives, table, "FROM_THE_FUTURE", "VARCHAR(10)")
    _works(hives, tmp_path)


def test_statistics_may_lack_what_hive_added_later(hives: Database, tmp_path: Path) -> None:
    with hives.write() as conn:
        for table in (TAB_COL_STATS, PART_COL_STATS):
            drop_columns(conn, table, "HISTOGRAM", "ENGINE")
    _works(hives, tmp_path)


def test_a_column_that_must_be_filled_is_named(hives: Database) -> None:
    _add(hives, schema.WRITE_SET, "WS_NEW", "INTEGER NOT NULL" if hives.file is None else "INTEGER NOT NULL DEFAULT 1")
    if hives.file is None:
        with pytest.raises(SchemaNotSupported, match=r"WRITE_SET\.WS_NEW.*newer release"):
            require_supported(hives)
    else:
        require_supported(hives)


def test_what_is_missing_is_named(hives: Database) -> None:
    with hives.write() as conn:
        drop_columns(conn, schema.COMPACTION_QUEUE, "CQ_TXN_ID", "CQ_COMMIT_TIME")
        schema.MIN_HISTORY_WRITE_ID.drop(conn)
    missing = r"COMPACTION_QUEUE\.CQ_COMMIT_TIME, COMPACTION_QUEUE\.CQ_TXN_ID.*no role"
    with pytest.raises(SchemaNotSupported, match=missing) as refusal:
        require_supported(hives)
    assert "MIN_HISTORY_WRITE_ID" in refusal.value.message


@pytest.mark.parametrize("names", [("TXNS", "NEXT_TXN_ID", "COMPACTION_QUEUE"), ("txns", "next_txn_id")])
def test_hive_3_is_refused_with_the_reason(empty_db: Database, names: tuple[str, ...]) -> None:
    with empty_db.write() as conn:
        for name in names:
            sa.Table(name, sa.MetaData(), sa.Column("ID", sa.Integer)).create(conn)
    with pytest.raises(SchemaNotSupported, match=r"Hive 3.*no role.*4\.0"):
        require_supported(empty_db)


def test_transactional_tables_of_another_catalogue_are_not_mixed_up_with_hives(hives: Database) -> None:
    _add(hives, schema.COMPACTION_QUEUE, "CQ_CATALOG", "VARCHAR(128) DEFAULT 'hive' NOT NULL")
    table = TableName(database="default", table="orders")
    create_table(hives, table, columns=(), parameters={"transactional": "true"})
    require_supported(hives)
    with hives.write() as conn:
        conn.execute(DBS.update().values(CTLG_NAME="spark"))
    with pytest.raises(SchemaNotSupported, match=r"spark\.default\.orders"):
        require_supported(hives)


def test_an_empty_database_is_none_of_our_business(empty_db: Database) -> None:
    require_supported(empty_db)
