from __future__ import annotations

import pytest
import sqlalchemy as sa

from compactor.errors import ForeignDatabase
from compactor.metastore.catalog import get_database
from compactor.metastore.database import Database
from compactor.metastore.schema import (
    COMPACTOR_INSTALLATION,
    COMPACTOR_JOB_COST,
    INSTALLATION_VERSION,
    NEXT_COMPACTION_QUEUE_ID,
    NEXT_LOCK_ID,
    TXN_LOCK_TBL,
    TXNS,
    VERSION,
    InitOutcome,
    init_db,
    metadata,
)

TABLES = set(
    """
    TXNS TXN_COMPONENTS COMPLETED_TXN_COMPONENTS TXN_LOCK_TBL HIVE_LOCKS NEXT_LOCK_ID COMPACTION_QUEUE
    NEXT_COMPACTION_QUEUE_ID COMPLETED_COMPACTIONS COMPACTION_METRICS_CACHE TXN_TO_WRITE_ID NEXT_WRITE_ID
    MIN_HISTORY_LEVEL MIN_HISTORY_WRITE_ID WRITE_SET AUX_TABLE VERSION CTLGS DBS DATABASE_PARAMS TBLS TABLE_PARAMS SDS
    SD_PARAMS SERDES SERDE_PARAMS CDS COLUMNS_V2 BUCKETING_COLS SORT_COLS PARTITIONS PARTITION_KEYS PARTITION_KEY_VALS
    PARTITION_PARAMS TAB_COL_STATS PART_COL_STATS SEQUENCE_TABLE COMPACTOR_INSTALLATION COMPACTOR_JOB_COST
    """.split()  # noqa: SIM905 - a list of names reads best as words
)


def test_an_empty_database_gets_every_table_and_its_first_rows(empty_db: Database) -> None:
    assert init_db(empty_db, warehouse="file:/warehouse/") is InitOutcome.CREATED
    assert empty_db.table_names() >= TABLES
    assert {table.name for table in metadata.sorted_tables} == TABLES
    with empty_db.read() as conn:
        assert conn.scalar(sa.select(VERSION.c.SCHEMA_VERSION)) == "4.0.0"
        assert conn.scalar(sa.select(NEXT_LOCK_ID.c.NL_NEXT)) == 1
        assert conn.scalar(sa.select(NEXT_COMPACTION_QUEUE_ID.c.NCQ_NEXT)) == 1
        assert conn.scalar(sa.select(TXN_LOCK_TBL.c.TXN_LOCK)) == 1
        assert conn.execute(sa.select(TXNS.c.TXN_ID, TXNS.c.TXN_STATE)).all() == [(0, "c")]
    assert get_database(empty_db, "default").location == "file:/warehouse"


def test_making_it_again_changes_nothing(db: Database) -> None:
    with db.read() as conn:
        made = conn.execute(sa.select(COMPACTOR_INSTALLATION)).all()
    assert init_db(db, warehouse="file:/elsewhere") is InitOutcome.ALREADY_THERE
    assert get_database(db, "default").location != "file:/elsewhere"
    with db.read() as conn:
        assert conn.execute(sa.select(COMPACTOR_INSTALLATION)).all() == made


@pytest.mark.usefixtures("own_schema")
def test_a_database_of_the_first_release_gets_what_came_since_and_keeps_its_rows(db: Database) -> None:
    with db.write() as conn:
        COMPACTOR_JOB_COST.drop(conn)
        conn.execute(COMPACTOR_INSTALLATION.update().values(INSTALLATION_VERSION=1))
        created_at = conn.scalar(sa.select(COMPACTOR_INSTALLATION.c.CREATED_AT))
    assert init_db(db) is InitOutcome.UPGRADED
    assert db.table_names() >= TABLES
    with db.read() as conn:
        assert conn.execute(sa.select(COMPACTOR_INSTALLATION)).all() == [(INSTALLATION_VERSION, created_at)]
    assert init_db(db) is InitOutcome.ALREADY_THERE


def test_a_database_of_somebody_else_is_refused_and_left_alone(empty_db: Database) -> None:
    with empty_db.write() as conn:
        sa.Table("TXNS", sa.MetaData(), sa.Column("TXN_ID", sa.Integer)).create(conn)
    with pytest.raises(ForeignDatabase, match="TXNS"):
        init_db(empty_db)
    assert empty_db.table_names() == {"TXNS"}


def test_a_transaction_id_never_comes_back(db: Database) -> None:
    row = {"TXN_STATE": "o", "TXN_STARTED": 1, "TXN_LAST_HEARTBEAT": 1, "TXN_USER": "u", "TXN_HOST": "h"}
    with db.write() as conn:
        first = conn.execute(TXNS.insert().values(row)).inserted_primary_key
        conn.execute(TXNS.delete().where(TXNS.c.TXN_ID > 0))
        second = conn.execute(TXNS.insert().values(row)).inserted_primary_key
    assert first is not None
    assert second is not None
    assert second[0] == first[0] + 1
