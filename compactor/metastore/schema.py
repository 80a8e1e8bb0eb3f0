"""The transaction and compaction tables as Hive 4.0 defines them, and `init_db`, which makes a database of our own.

Names, types and lengths follow Hive's hive-schema-4.0.0 scripts; the catalogue's tables stand in
`catalog_schema.py`. Times are epoch milliseconds of the database's clock, except CTC_TIMESTAMP. Indexes are Hive's,
and a few more that our own keyset scans and guards need. DDL is run only by `init_db`, and only on an empty database.
"""

from __future__ import annotations

import enum

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from compactor.errors import ForeignDatabase
from compactor.metastore.catalog_schema import (
    BIGINT,
    CTLGS,
    DBS,
    SEQUENCE_TABLE,
    VERSION,
    identifier,
    letter,
    long,
    metadata,
    table,
    text,
)
from compactor.metastore.database import Database, retried
from compactor.metastore.dialects import Message, alone, dialect_of

SCHEMA_VERSION = "4.0.0"
"""The Hive schema whose tables these are, as VERSION says it."""

INSTALLATION_VERSION = 3
"""Version of what `init_db` makes. 1: Hive's tables. 2: COMPACTOR_JOB_COST. 3: indexes by time and state."""

TXNS = table(
    "TXNS",
    sa.Column("TXN_ID", BIGINT, primary_key=True, autoincrement=True),
    letter("TXN_STATE"),
    long("TXN_STARTED"),
    long("TXN_LAST_HEARTBEAT"),
    text("TXN_USER", 128, null=False),
    text("TXN_HOST", 128, null=False),
    text("TXN_AGENT_INFO", 128),
    text("TXN_META_INFO", 128),
    sa.Column("TXN_HEARTBEAT_COUNT", sa.Integer),
    sa.Column("TXN_TYPE", sa.Integer),
    sa.Index("TXN_STATE_IDX", "TXN_STATE", "TXN_ID", unique=True),
    # a transaction id must never come back, not even after the newest row was cleaned away
    sqlite_autoincrement=True,
)

TXN_COMPONENTS = table(
    "TXN_COMPONENTS",
    long("TC_TXNID", sa.ForeignKey("TXNS.TXN_ID")),
    identifier("TC_DATABASE", 128, null=False),
    identifier("TC_TABLE", 256),
    text("TC_PARTITION", 767),
    letter("TC_OPERATION_TYPE"),
    long("TC_WRITEID", null=True),
    sa.Index("TC_TXNID_INDEX", "TC_TXNID"),
    sa.Index("TXN_COMPONENTS_OBJECT", "TC_DATABASE", "TC_TABLE", "TC_PARTITION"),
)

COMPLETED_TXN_COMPONENTS = table(
    "COMPLETED_TXN_COMPONENTS",
    long("CTC_TXNID"),
    identifier("CTC_DATABASE", 128, null=False),
    identifier("CTC_TABLE", 256),
    text("CTC_PARTITION", 767),
    sa.Column(
        "CTC_TIMESTAMP",
        sa.DateTime().with_variant(mysql.TIMESTAMP(), "mysql"),
        nullable=False,
        server_default=sa.func.current_timestamp(),
    ),
    long("CTC_WRITEID", null=True),
    letter("CTC_UPDATE_DELETE"),
    sa.Index("COMPLETED_TXN_COMPONENTS_IDX", "CTC_DATABASE", "CTC_TABLE", "CTC_PARTITION"),
    sa.Index("COMPLETED_TXN_COMPONENTS_TIME", "CTC_TIMESTAMP"),
)

TXN_LOCK_TBL = table("TXN_LOCK_TBL", long("TXN_LOCK", key=True))

HIVE_LOCKS = table(
    "HIVE_LOCKS",
    long("HL_LOCK_EXT_ID", key=True),
    long("HL_LOCK_INT_ID", key=True),
    long("HL_TXNID"),
    identifier("HL_DB", 128, null=False),
    identifier("HL_TABLE", 256),
    text("HL_PARTITION", 767),
    letter("HL_LOCK_STATE"),
    letter("HL_LOCK_TYPE"),
    long("HL_LAST_HEARTBEAT"),
    long("HL_ACQUIRED_AT", null=True),
    text("HL_USER", 128, null=False),
    text("HL_HOST", 128, null=False),
    sa.Column("HL_HEARTBEAT_COUNT", sa.Integer),
    text("HL_AGENT_INFO", 128),
    long("HL_BLOCKEDBY_EXT_ID", null=True),
    long("HL_BLOCKEDBY_INT_ID", null=True),
    sa.Index("HL_TXNID_INDEX", "HL_TXNID"),
)

NEXT_LOCK_ID = table("NEXT_LOCK_ID", long("NL_NEXT", key=True))


def _compaction_columns(prefix: str) -> list[sa.Column[int] | sa.Column[str] | sa.Column[bytes]]:
    """The columns that COMPACTION_QUEUE (CQ_) and COMPLETED_COMPACTIONS (CC_) share."""
    return [
        long(f"{prefix}_ID", key=True),
        identifier(f"{prefix}_DATABASE", 128, null=False),
        identifier(f"{prefix}_TABLE", 256, null=False),
        text(f"{prefix}_PARTITION", 767),
        letter(f"{prefix}_STATE"),
        letter(f"{prefix}_TYPE"),
        text(f"{prefix}_TBLPROPERTIES", 2048),
        text(f"{prefix}_WORKER_ID", 128),
        long(f"{prefix}_ENQUEUE_TIME", null=True),
        long(f"{prefix}_START", null=True),
        text(f"{prefix}_RUN_AS", 128),
        long(f"{prefix}_HIGHEST_WRITE_ID", null=True),
        sa.Column(f"{prefix}_META_INFO", sa.LargeBinary),
        text(f"{prefix}_HADOOP_JOB_ID", 32),
        sa.Column(f"{prefix}_ERROR_MESSAGE", Message),
        long(f"{prefix}_NEXT_TXN_ID", null=True),
        long(f"{prefix}_TXN_ID", null=True),
        long(f"{prefix}_COMMIT_TIME", null=True),
        text(f"{prefix}_INITIATOR_ID", 128),
        text(f"{prefix}_INITIATOR_VERSION", 128),
        text(f"{prefix}_WORKER_VERSION", 128),
        text(f"{prefix}_POOL_NAME", 128),
        sa.Column(f"{prefix}_NUMBER_OF_BUCKETS", sa.Integer),
        text(f"{prefix}_ORDER_BY", 4000),
    ]


COMPACTION_QUEUE = table(
    "COMPACTION_QUEUE",
    *_compaction_columns("CQ"),
    long("CQ_CLEANER_START", null=True),
    long("CQ_RETRY_RETENTION", default=0),
    sa.Index("COMPACTION_QUEUE_STATE", "CQ_STATE", "CQ_ID"),
    sa.Index("COMPACTION_QUEUE_OBJECT", "CQ_DATABASE", "CQ_TABLE", "CQ_PARTITION"),
)

NEXT_COMPACTION_QUEUE_ID = table("NEXT_COMPACTION_QUEUE_ID", long("NCQ_NEXT", key=True))

COMPLETED_COMPACTIONS = table(
    "COMPLETED_COMPACTIONS",
    *_compaction_columns("CC"),
    long("CC_END", null=True),
    sa.Index("COMPLETED_COMPACTIONS_RES", "CC_DATABASE", "CC_TABLE", "CC_PARTITION"),
    sa.Index("COMPLETED_COMPACTIONS_STATE", "CC_STATE", "CC_ID"),
    sa.Index("COMPLETED_COMPACTIONS_END", "CC_END"),
)

COMPACTION_METRICS_CACHE = table(
    "COMPACTION_METRICS_CACHE",
    identifier("CMC_DATABASE", 128, null=False),
    identifier("CMC_TABLE", 256, null=False),
    text("CMC_PARTITION", 767),
    text("CMC_METRIC_TYPE", 128, null=False),
    sa.Column("CMC_METRIC_VALUE", sa.Integer, nullable=False),
    sa.Column("CMC_VERSION", sa.Integer, nullable=False),
    sa.Index("COMPACTION_METRICS_CACHE_OBJECT", "CMC_DATABASE", "CMC_TABLE", "CMC_PARTITION"),
)

TXN_TO_WRITE_ID = table(
    "TXN_TO_WRITE_ID",
    long("T2W_TXNID", key=True),
    identifier("T2W_DATABASE", 128, null=False, key=True),
    identifier("T2W_TABLE", 256, null=False, key=True),
    long("T2W_WRITEID"),
    sa.Index("TBL_TO_TXN_ID_IDX", "T2W_DATABASE", "T2W_TABLE", "T2W_TXNID", unique=True),
    sa.Index("TBL_TO_WRITE_ID_IDX", "T2W_DATABASE", "T2W_TABLE", "T2W_WRITEID", unique=True),
)

NEXT_WRITE_ID = table(
    "NEXT_WRITE_ID",
    identifier("NWI_DATABASE", 128, null=False, key=True),
    identifier("NWI_TABLE", 256, null=False, key=True),
    long("NWI_NEXT"),
)

MIN_HISTORY_WRITE_ID = table(
    "MIN_HISTORY_WRITE_ID",
    long("MH_TXNID", sa.ForeignKey("TXNS.TXN_ID"), key=True),
    identifier("MH_DATABASE", 128, null=False, key=True),
    identifier("MH_TABLE", 256, null=False, key=True),
    long("MH_WRITEID", key=True),
)

MIN_HISTORY_LEVEL = table(
    "MIN_HISTORY_LEVEL",
    long("MHL_TXNID", key=True),
    long("MHL_MIN_OPEN_TXNID"),
    sa.Index("MIN_HISTORY_LEVEL_IDX", "MHL_MIN_OPEN_TXNID"),
)

WRITE_SET = table(
    "WRITE_SET",
    identifier("WS_DATABASE", 128, null=False),
    identifier("WS_TABLE", 256, null=False),
    text("WS_PARTITION", 767),
    long("WS_TXNID"),
    long("WS_COMMIT_ID"),
    letter("WS_OPERATION_TYPE"),
    sa.Index("WRITE_SET_OBJECT", "WS_DATABASE", "WS_TABLE", "WS_COMMIT_ID"),
)

AUX_TABLE = table(
    "AUX_TABLE",
    text("MT_KEY1", 128, null=False, key=True),
    long("MT_KEY2", key=True),
    text("MT_COMMENT", 255),
)

COMPACTOR_INSTALLATION = table(
    "COMPACTOR_INSTALLATION",
    sa.Column("INSTALLATION_VERSION", sa.Integer, primary_key=True, autoincrement=False),
    long("CREATED_AT"),
)
"""Marks a database that `init_db` made; no table of ours exists in any other."""

COMPACTOR_JOB_COST = table(
    "COMPACTOR_JOB_COST",
    sa.Column("JC_ID", BIGINT, primary_key=True, autoincrement=True),
    long("JC_RECORDED_AT"),
    long("JC_BYTES_COPIED"),
    long("JC_BYTES_ENCODED"),
    long("JC_TASKS"),
    long("JC_CORES"),
    long("JC_MILLIS"),
    # the newest rows are told by their ids, which must grow
    sqlite_autoincrement=True,
)
"""What the last Spark jobs did and took (`metastore.calibration`)."""

_ADDED = {2: (COMPACTOR_JOB_COST,)}
"""Tables that a version of the installation added."""

_INDEXED = {3: (COMPLETED_TXN_COMPONENTS, COMPLETED_COMPACTIONS, COMPACTION_METRICS_CACHE)}
"""Tables to which a version of the installation added indexes."""


class InitOutcome(enum.Enum):
    """What `init_db` did."""

    CREATED = "created"
    """The database was empty and now holds every table and its first rows."""
    ALREADY_THERE = "already there"
    """The database was made by an earlier `init_db`; nothing was changed."""
    UPGRADED = "upgraded"
    """The database was made by an earlier release; it got the tables that came since."""


@retried
def init_db(db: Database, *, warehouse: str = "/user/hive/warehouse") -> InitOutcome:
    """Create all tables in an empty database, with the catalogue 'hive' and the database 'default'.

    warehouse: location (URI or absolute path) of the database 'default'; databases created later get
    `<warehouse>/<name>.db`. Calling again changes nothing, but adds what the database of an earlier release lacks and
    completes what broke off: MariaDB and MySQL commit each table by itself, so COMPACTOR_INSTALLATION is made first
    and gets its row last. ForeignDatabase when the database holds other tables: a Hive metastore's schema is never
    touched.
    """
    with db.write() as conn, alone(conn, "hive-compactor init-db"):
        present = set(sa.inspect(conn).get_table_names())
        if COMPACTOR_INSTALLATION.name in present:
            installed: int | None = conn.scalar(sa.select(COMPACTOR_INSTALLATION.c.INSTALLATION_VERSION))
            if installed is not None:
                return _upgrade(conn, installed)
        elif present:
            some = ", ".join(sorted(present)[:5])
            raise ForeignDatabase(f"the database is not empty: {len(present)} tables ({some}, …)")
        metadata.create_all(conn, tables=[COMPACTOR_INSTALLATION])
        metadata.create_all(conn)
        _insert_first_rows(conn, warehouse=warehouse.rstrip("/") or "/", now=db.now(conn))
    return InitOutcome.CREATED


def _upgrade(conn: sa.Connection, installed: int) -> InitOutcome:
    missing = [table for version, tables in _ADDED.items() if version > installed for table in tables]
    indexed = [table for version, tables in _INDEXED.items() if version > installed for table in tables]
    if not missing and not indexed:
        return InitOutcome.ALREADY_THERE
    metadata.create_all(conn, tables=missing)
    for owner in indexed:
        present = dialect_of(conn).index_names(conn, owner)
        for index in owner.indexes:
            if index.name not in present:
                index.create(conn)
    conn.execute(COMPACTOR_INSTALLATION.update().values(INSTALLATION_VERSION=INSTALLATION_VERSION))
    return InitOutcome.UPGRADED


def _insert_first_rows(conn: sa.Connection, *, warehouse: str, now: int) -> None:
    seconds = now // 1000
    conn.execute(VERSION.insert().values(VER_ID=1, SCHEMA_VERSION=SCHEMA_VERSION, VERSION_COMMENT="hive-compactor"))
    conn.execute(COMPACTOR_INSTALLATION.insert().values(INSTALLATION_VERSION=INSTALLATION_VERSION, CREATED_AT=now))
    # Hive's first row of TXNS: transaction 0, committed, so that MAX(TXN_ID) always has an answer
    conn.execute(
        TXNS.insert().values(
            TXN_ID=0, TXN_STATE="c", TXN_STARTED=0, TXN_LAST_HEARTBEAT=0, TXN_USER="", TXN_HOST="", TXN_TYPE=0
        )
    )
    conn.execute(TXN_LOCK_TBL.insert().values(TXN_LOCK=1))
    conn.execute(NEXT_LOCK_ID.insert().values(NL_NEXT=1))
    conn.execute(NEXT_COMPACTION_QUEUE_ID.insert().values(NCQ_NEXT=1))
    conn.execute(
        CTLGS.insert().values(
            CTLG_ID=1, NAME="hive", DESC="Default catalog for Hive", LOCATION_URI=warehouse, CREATE_TIME=seconds
        )
    )
    conn.execute(
        DBS.insert().values(
            DB_ID=1,
            DESC="Default Hive database",
            DB_LOCATION_URI=warehouse,
            NAME="default",
            OWNER_NAME="public",
            OWNER_TYPE="ROLE",
            CTLG_NAME="hive",
            CREATE_TIME=seconds,
            TYPE="NATIVE",
        )
    )
    conn.execute(
        SEQUENCE_TABLE.insert().values(SEQUENCE_NAME="org.apache.hadoop.hive.metastore.model.MDatabase", NEXT_VAL=2)
    )
