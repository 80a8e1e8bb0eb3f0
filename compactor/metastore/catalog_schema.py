"""The catalogue's tables as Hive 4.0 defines them: databases, tables, partitions, columns, statistics.

Names, types and lengths follow Hive's hive-schema-4.0.0 scripts. `schema.py` adds the transaction tables to the same
MetaData. On MariaDB and MySQL names compare byte by byte, as in Hive's script; unlike there they do so in the
transaction tables too, and partition names, parameters and messages may hold any character, not only those of latin1.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

metadata = sa.MetaData()
"""Every table of this package."""

_MYSQL_KEY_LENGTH = 767
"""Up to this length a column may stand in a key, of at most 3072 bytes on MariaDB and MySQL."""

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite numbers rows by itself only in a column declared INTEGER."""


def long(name: str, *args: Any, null: bool = False, key: bool = False, default: int | None = None) -> sa.Column[int]:
    """A 64-bit column; null: NULL allowed; key: part of the primary key; default: set by the database."""
    server_default = None if default is None else str(default)
    return sa.Column(
        name, BIGINT, *args, nullable=null, primary_key=key, autoincrement=False, server_default=server_default
    )


def table(name: str, *items: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    """A table of Hive's; MariaDB and MySQL get Hive's engine, and names that differ in case are different."""
    return sa.Table(
        name, metadata, *items, mysql_engine="InnoDB", mysql_charset="latin1", mysql_collate="latin1_bin", **options
    )


def identifier(name: str, length: int, *, null: bool = True, key: bool = False) -> sa.Column[str]:
    """A column for names that Hive allows letters, digits and '_' in: databases and tables."""
    return sa.Column(name, sa.String(length), nullable=null, primary_key=key)


def text(name: str, length: int | None = None, *, null: bool = True, key: bool = False) -> sa.Column[str]:
    """A string column of at most `length` characters of any kind; None: unlimited."""
    kind: sa.types.TypeEngine[str]
    if length is None:
        kind = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
    else:
        # three bytes a character, so that database, table and partition fit into one key
        charset = "utf8mb3" if length == _MYSQL_KEY_LENGTH else "utf8mb4"
        wide = mysql.VARCHAR(length, charset=charset, collation=f"{charset}_bin")
        kind = sa.String(length).with_variant(wide, "mysql")
    return sa.Column(name, kind, nullable=null, primary_key=key)


def flag(name: str, *, default: bool | None = None) -> sa.Column[bool]:
    """A truth value that must be there."""
    kind = sa.Boolean().with_variant(mysql.BIT(1), "mysql")
    return sa.Column(name, kind, nullable=False, server_default=None if default is None else sa.false())


def letter(name: str) -> sa.Column[str]:
    """Hive's char(1) codes."""
    return sa.Column(name, sa.CHAR(1), nullable=False)


def _ref(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column)


def _params(name: str, owner: str, owner_id: str, key_length: int = 256) -> sa.Table:
    return table(
        name,
        long(owner_id, _ref(f"{owner}.{owner_id}"), key=True),
        text("PARAM_KEY", key_length, null=False, key=True),
        text("PARAM_VALUE"),
    )


SEQUENCE_TABLE = table("SEQUENCE_TABLE", text("SEQUENCE_NAME", 255, key=True), long("NEXT_VAL"))

VERSION = table(
    "VERSION", long("VER_ID", key=True), text("SCHEMA_VERSION", 127, null=False), text("VERSION_COMMENT", 255)
)

CTLGS = table(
    "CTLGS",
    long("CTLG_ID", key=True),
    sa.Column("NAME", sa.String(256), unique=True),
    text("DESC", 4000),
    text("LOCATION_URI", 4000, null=False),
    long("CREATE_TIME", null=True),
)

DBS = table(
    "DBS",
    long("DB_ID", key=True),
    text("DESC", 4000),
    text("DB_LOCATION_URI", 4000, null=False),
    identifier("NAME", 128),
    text("OWNER_NAME", 128),
    text("OWNER_TYPE", 10),
    sa.Column("CTLG_NAME", sa.String(256), nullable=False, server_default="hive"),
    long("CREATE_TIME", null=True),
    text("DB_MANAGED_LOCATION_URI", 4000),
    sa.Column("TYPE", sa.String(32), nullable=False, server_default="NATIVE"),
    text("DATACONNECTOR_NAME", 128),
    text("REMOTE_DBNAME", 128),
    sa.UniqueConstraint("NAME", "CTLG_NAME", name="UNIQUE_DATABASE"),
)

DATABASE_PARAMS = _params("DATABASE_PARAMS", "DBS", "DB_ID", key_length=180)

CDS = table("CDS", long("CD_ID", key=True))

COLUMNS_V2 = table(
    "COLUMNS_V2",
    long("CD_ID", _ref("CDS.CD_ID"), key=True),
    text("COMMENT", 4000),
    text("COLUMN_NAME", 767, null=False, key=True),
    text("TYPE_NAME"),
    sa.Column("INTEGER_IDX", sa.Integer, nullable=False),
)

SERDES = table(
    "SERDES",
    long("SERDE_ID", key=True),
    text("NAME", 128),
    text("SLIB", 4000),
    text("DESCRIPTION", 4000),
    text("SERIALIZER_CLASS", 4000),
    text("DESERIALIZER_CLASS", 4000),
    sa.Column("SERDE_TYPE", sa.Integer),
)

SERDE_PARAMS = _params("SERDE_PARAMS", "SERDES", "SERDE_ID")

SDS = table(
    "SDS",
    long("SD_ID", key=True),
    text("INPUT_FORMAT", 4000),
    flag("IS_COMPRESSED"),
    text("LOCATION", 4000),
    long("NUM_BUCKETS"),
    text("OUTPUT_FORMAT", 4000),
    long("SERDE_ID", _ref("SERDES.SERDE_ID"), null=True),
    long("CD_ID", _ref("CDS.CD_ID"), null=True),
    flag("IS_STOREDASSUBDIRECTORIES"),
    sa.Index("SDS_N49", "SERDE_ID"),
    sa.Index("SDS_N50", "CD_ID"),
)

SD_PARAMS = _params("SD_PARAMS", "SDS", "SD_ID")

BUCKETING_COLS = table(
    "BUCKETING_COLS",
    long("SD_ID", _ref("SDS.SD_ID"), key=True),
    text("BUCKET_COL_NAME", 256),
    long("INTEGER_IDX", key=True),
)

SORT_COLS = table(
    "SORT_COLS",
    long("SD_ID", _ref("SDS.SD_ID"), key=True),
    text("COLUMN_NAME", 767),
    long("ORDER"),
    long("INTEGER_IDX", key=True),
)

TBLS = table(
    "TBLS",
    long("TBL_ID", key=True),
    long("CREATE_TIME"),
    long("DB_ID", _ref("DBS.DB_ID"), null=True),
    long("LAST_ACCESS_TIME"),
    text("OWNER", 767),
    text("OWNER_TYPE", 10),
    long("RETENTION"),
    long("SD_ID", _ref("SDS.SD_ID"), null=True),
    identifier("TBL_NAME", 256),
    text("TBL_TYPE", 128),
    text("VIEW_EXPANDED_TEXT"),
    text("VIEW_ORIGINAL_TEXT"),
    flag("IS_REWRITE_ENABLED", default=False),
    long("WRITE_ID", null=True, default=0),
    sa.UniqueConstraint("TBL_NAME", "DB_ID", name="UNIQUETABLE"),
    sa.Index("TBLS_N49", "DB_ID"),
    sa.Index("TBLS_N50", "SD_ID"),
)

TABLE_PARAMS = _params("TABLE_PARAMS", "TBLS", "TBL_ID")

PARTITIONS = table(
    "PARTITIONS",
    long("PART_ID", key=True),
    long("CREATE_TIME"),
    long("LAST_ACCESS_TIME"),
    text("PART_NAME", 767),
    long("SD_ID", _ref("SDS.SD_ID"), null=True),
    long("TBL_ID", _ref("TBLS.TBL_ID"), null=True),
    long("WRITE_ID", null=True, default=0),
    # Hive's constraint names the columns the other way round; this order also serves "all partitions of a table"
    sa.UniqueConstraint("TBL_ID", "PART_NAME", name="UNIQUEPARTITION"),
    sa.Index("PARTITIONS_N50", "SD_ID"),
)

PARTITION_KEYS = table(
    "PARTITION_KEYS",
    long("TBL_ID", _ref("TBLS.TBL_ID"), key=True),
    text("PKEY_COMMENT", 4000),
    text("PKEY_NAME", 128, null=False, key=True),
    text("PKEY_TYPE", 767, null=False),
    long("INTEGER_IDX"),
)

PARTITION_KEY_VALS = table(
    "PARTITION_KEY_VALS",
    long("PART_ID", _ref("PARTITIONS.PART_ID"), key=True),
    text("PART_KEY_VAL", 256),
    long("INTEGER_IDX", key=True),
)

PARTITION_PARAMS = _params("PARTITION_PARAMS", "PARTITIONS", "PART_ID")


def _column_statistics(name: str, owner: str, owner_id: str, *extra: sa.Column[Any]) -> sa.Table:
    return table(
        name,
        long("CS_ID", key=True),
        text("CAT_NAME", 256),
        identifier("DB_NAME", 128),
        identifier("TABLE_NAME", 256),
        *extra,
        text("COLUMN_NAME", 767),
        text("COLUMN_TYPE", 128),
        long(owner_id, _ref(f"{owner}.{owner_id}")),
        long("LONG_LOW_VALUE", null=True),
        long("LONG_HIGH_VALUE", null=True),
        sa.Column("DOUBLE_LOW_VALUE", sa.Double),
        sa.Column("DOUBLE_HIGH_VALUE", sa.Double),
        text("BIG_DECIMAL_LOW_VALUE", 4000),
        text("BIG_DECIMAL_HIGH_VALUE", 4000),
        long("NUM_NULLS"),
        long("NUM_DISTINCTS", null=True),
        sa.Column("BIT_VECTOR", sa.LargeBinary),
        sa.Column("HISTOGRAM", sa.LargeBinary),
        sa.Column("AVG_COL_LEN", sa.Double),
        long("MAX_COL_LEN", null=True),
        long("NUM_TRUES", null=True),
        long("NUM_FALSES", null=True),
        long("LAST_ANALYZED"),
        text("ENGINE", 128, null=False),
        sa.Index(f"{name}_N49", owner_id),
    )


TAB_COL_STATS = _column_statistics("TAB_COL_STATS", "TBLS", "TBL_ID")
PART_COL_STATS = _column_statistics("PART_COL_STATS", "PARTITIONS", "PART_ID", text("PARTITION_NAME", 767))
