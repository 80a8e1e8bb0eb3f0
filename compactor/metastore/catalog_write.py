"""Changes of the catalogue: what CREATE, ALTER and DROP write. Directories are the caller's business.

New ids come from SEQUENCE_TABLE, as DataNucleus takes them, so that a Hive metastore can work on the same database.
Sources: Hive `ObjectStore`, `HMSHandler.create_table_core`, `HiveAlterHandler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from compactor.acid.partition_name import DEFAULT_PARTITION, partition_name
from compactor.errors import AlreadyExists, MetastoreError, NoSuchObject, UsageError
from compactor.metastore.catalog import (
    CATALOG,
    CatalogDatabase,
    Column,
    Partition,
    SortColumn,
    Table,
    TableName,
    database_row,
    get_database,
    get_partition,
    get_table,
    table_row,
)
from compactor.metastore.catalog_schema import (
    BUCKETING_COLS,
    CDS,
    COLUMNS_V2,
    CTLGS,
    DATABASE_PARAMS,
    DBS,
    PART_COL_STATS,
    PARTITION_KEY_VALS,
    PARTITION_KEYS,
    PARTITION_PARAMS,
    PARTITIONS,
    SD_PARAMS,
    SDS,
    SEQUENCE_TABLE,
    SERDE_PARAMS,
    SERDES,
    SORT_COLS,
    TAB_COL_STATS,
    TABLE_PARAMS,
    TBLS,
)
from compactor.metastore.database import Database, retried

ORC_INPUT_FORMAT = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
ORC_OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat"
ORC_SERDE = "org.apache.hadoop.hive.ql.io.orc.OrcSerde"
MANAGED_TABLE = "MANAGED_TABLE"

_MODEL = "org.apache.hadoop.hive.metastore.model."


@retried
def create_database(
    db: Database,
    name: str,
    *,
    location: str | None = None,
    parameters: Mapping[str, str] | None = None,
    owner: str = "",
    if_not_exists: bool = False,
) -> CatalogDatabase:
    """Add a database. location: `<warehouse>/<name>.db` by default.

    AlreadyExists unless if_not_exists, which returns the one that is there, unchanged.
    """
    name = name.lower()
    with db.write() as conn:
        existing = conn.scalar(sa.select(DBS.c.DB_ID).where(DBS.c.NAME == name, DBS.c.CTLG_NAME == CATALOG))
        if existing is not None and not if_not_exists:
            raise AlreadyExists(f"database {name} exists already")
        if existing is None:
            db_id = _next_id(conn, "MDatabase", DBS.c.DB_ID)
            conn.execute(
                DBS.insert().values(
                    DB_ID=db_id,
                    NAME=name,
                    DB_LOCATION_URI=location or f"{_warehouse(conn)}/{name}.db",
                    OWNER_NAME=owner,
                    OWNER_TYPE="USER",
                    CTLG_NAME=CATALOG,
                    CREATE_TIME=db.now(conn) // 1000,
                    TYPE="NATIVE",
                )
            )
            _put(conn, DATABASE_PARAMS, db_id, parameters or {})
    return get_database(db, name)


@retried
def create_table(
    db: Database,
    name: TableName,
    *,
    columns: Sequence[Column],
    partition_columns: Sequence[Column] = (),
    parameters: Mapping[str, str] | None = None,
    location: str | None = None,
    input_format: str = ORC_INPUT_FORMAT,
    output_format: str = ORC_OUTPUT_FORMAT,
    serde: str = ORC_SERDE,
    bucket_columns: Sequence[str] = (),
    bucket_count: int = -1,
    sort_columns: Sequence[SortColumn] = (),
    owner: str = "",
    table_type: str = MANAGED_TABLE,
) -> Table:
    """Add a table. location: below the database's managed location by default.

    A transactional table is one whose parameters say `transactional=true`. AlreadyExists, or NoSuchObject when the
    database is unknown.
    """
    with db.write() as conn:
        database = database_row(conn, name.database)
        taken = sa.select(TBLS.c.TBL_ID).where(TBLS.c.DB_ID == database.id, TBLS.c.TBL_NAME == name.table)
        if conn.scalar(taken) is not None:
            raise AlreadyExists(f"table {name} exists already")
        seconds = db.now(conn) // 1000
        sd_id = _insert_descriptor(
            conn,
            cd_id=_insert_columns(conn, columns),
            location=location or f"{_table_root(conn, database)}/{name.table}",
            formats=(input_format, output_format, serde),
            bucket_count=bucket_count,
        )
        _insert_layout(conn, sd_id, bucket_columns, sort_columns)
        table_id = _next_id(conn, "MTable", TBLS.c.TBL_ID)
        conn.execute(
            TBLS.insert().values(
                TBL_ID=table_id,
                CREATE_TIME=seconds,
                DB_ID=database.id,
                LAST_ACCESS_TIME=0,
                OWNER=owner,
                OWNER_TYPE="USER",
                RETENTION=0,
                SD_ID=sd_id,
                TBL_NAME=name.table,
                TBL_TYPE=table_type,
                IS_REWRITE_ENABLED=False,
                WRITE_ID=0,
            )
        )
        for index, column in enumerate(partition_columns):
            conn.execute(
                PARTITION_KEYS.insert().values(
                    TBL_ID=table_id, PKEY_NAME=column.name.lower(), PKEY_TYPE=column.type, INTEGER_IDX=index
                )
            )
        _put(conn, TABLE_PARAMS, table_id, {"transient_lastDdlTime": str(seconds)} | dict(parameters or {}))
    return get_table(db, name)


@retried
def add_partition(
    db: Database,
    table: TableName,
    values: Sequence[str],
    *,
    location: str | None = None,
    parameters: Mapping[str, str] | None = None,
    if_not_exists: bool = False,
) -> Partition:
    """Add a partition. values: unescaped, one a partition column; '' is NULL. location: `<table>/<name>` by default.

    It shares the table's columns as they are now. AlreadyExists unless if_not_exists, which returns the one that is
    there; UsageError when the number of values does not fit.
    """
    with db.write() as conn:
        found = table_row(conn, table)
        if len(values) != len(found.partition_columns):
            raise UsageError(f"table {table} has {len(found.partition_columns)} partition columns, got {len(values)}")
        name = partition_name([column.name for column in found.partition_columns], values)
        exists = _partition_id(conn, found.id, name) is not None
        if exists and not if_not_exists:
            raise AlreadyExists(f"table {table} has a partition {name} already")
        if not exists:
            seconds = db.now(conn) // 1000
            of_table = sa.select(SDS).join(TBLS, TBLS.c.SD_ID == SDS.c.SD_ID).where(TBLS.c.TBL_ID == found.id)
            descriptor = conn.execute(of_table).one()
            sd_id = _insert_descriptor(
                conn,
                cd_id=descriptor.CD_ID,
                location=location or f"{found.location}/{name}",
                formats=(found.input_format, found.output_format, found.serde),
                bucket_count=found.bucket_count,
            )
            _insert_layout(conn, sd_id, found.bucket_columns, found.sort_columns)
            part_id = _next_id(conn, "MPartition", PARTITIONS.c.PART_ID)
            conn.execute(
                PARTITIONS.insert().values(
                    PART_ID=part_id,
                    CREATE_TIME=seconds,
                    LAST_ACCESS_TIME=0,
                    PART_NAME=name,
                    SD_ID=sd_id,
                    TBL_ID=found.id,
                    WRITE_ID=0,
                )
            )
            for index, value in enumerate(values):
                conn.execute(
                    PARTITION_KEY_VALS.insert().values(
                        PART_ID=part_id, PART_KEY_VAL=value or DEFAULT_PARTITION, INTEGER_IDX=index
                    )
                )
            _put(conn, PARTITION_PARAMS, part_id, {"transient_lastDdlTime": str(seconds)} | dict(parameters or {}))
    return get_partition(db, table, name)


@retried
def drop_table(db: Database, name: TableName) -> None:
    """Remove a table, its partitions and their statistics from the catalogue; NoSuchObject when there is none."""
    with db.write() as conn:
        table = table_row(conn, name)
        for part_id in conn.scalars(sa.select(PARTITIONS.c.PART_ID).where(PARTITIONS.c.TBL_ID == table.id)).all():
            _delete_partition(conn, part_id)
        sd_id = conn.execute(sa.select(TBLS.c.SD_ID).where(TBLS.c.TBL_ID == table.id)).scalar_one()
        for owned in (TAB_COL_STATS, TABLE_PARAMS, PARTITION_KEYS, TBLS):
            conn.execute(owned.delete().where(owned.c.TBL_ID == table.id))
        _delete_descriptor(conn, sd_id)


@retried
def drop_partition(db: Database, table: TableName, name: str) -> None:
    """Remove one partition from the catalogue; NoSuchObject when table or partition is unknown."""
    with db.write() as conn:
        part_id = _partition_id(conn, table_row(conn, table).id, name)
        if part_id is None:
            raise NoSuchObject(f"table {table} has no partition {name}")
        _delete_partition(conn, part_id)


@retried
def set_table_parameters(db: Database, table: TableName, parameters: Mapping[str, str | None]) -> None:
    """ALTER TABLE … SET TBLPROPERTIES: the named parameters change, None removes one, the others stay."""
    with db.write() as conn:
        _put(conn, TABLE_PARAMS, table_row(conn, table).id, parameters)


@retried
def set_partition_parameters(db: Database, table: TableName, name: str, parameters: Mapping[str, str | None]) -> None:
    """The named parameters of a partition change, None removes one, the others stay."""
    with db.write() as conn:
        part_id = _partition_id(conn, table_row(conn, table).id, name)
        if part_id is None:
            raise NoSuchObject(f"table {table} has no partition {name}")
        _put(conn, PARTITION_PARAMS, part_id, parameters)


@retried
def set_columns(db: Database, table: TableName, columns: Sequence[Column], *, cascade: bool = False) -> None:
    """ALTER TABLE … ADD/REPLACE/CHANGE COLUMNS: the table gets new columns; cascade: its partitions too.

    Without cascade existing partitions keep the columns their files were written with (HiveAlterHandler).
    """
    with db.write() as conn:
        table_id = table_row(conn, table).id
        descriptors = list(conn.scalars(sa.select(TBLS.c.SD_ID).where(TBLS.c.TBL_ID == table_id)))
        if cascade:
            descriptors += conn.scalars(sa.select(PARTITIONS.c.SD_ID).where(PARTITIONS.c.TBL_ID == table_id))
        cd_id = _insert_columns(conn, columns)
        for sd_id in descriptors:
            old = conn.execute(sa.select(SDS.c.CD_ID).where(SDS.c.SD_ID == sd_id)).scalar_one()
            conn.execute(SDS.update().where(SDS.c.SD_ID == sd_id).values(CD_ID=cd_id))
            _delete_unused_columns(conn, old)


def _warehouse(conn: sa.Connection) -> str:
    location = conn.execute(sa.select(CTLGS.c.LOCATION_URI).where(CTLGS.c.NAME == CATALOG)).scalar_one()
    return str(location).rstrip("/")


def _table_root(conn: sa.Connection, database: CatalogDatabase) -> str:
    # Hive keeps managed tables of `default` in the warehouse itself, whatever the database's own location says
    if database.managed_location is None and database.name == "default":
        return _warehouse(conn)
    return (database.managed_location or database.location).rstrip("/")


def _next_id(conn: sa.Connection, model: str, column: sa.Column[int]) -> int:
    """The next id of a DataNucleus class; the first one is above every id that is there."""
    name = _MODEL + model
    sequence = SEQUENCE_TABLE.c
    query = sa.select(sequence.NEXT_VAL).where(sequence.SEQUENCE_NAME == name).with_for_update()
    following = conn.scalar(query)
    if following is None:
        following = (conn.scalar(sa.select(sa.func.max(column))) or 0) + 1
        conn.execute(SEQUENCE_TABLE.insert().values(SEQUENCE_NAME=name, NEXT_VAL=following + 1))
    else:
        taken = SEQUENCE_TABLE.update().where(sequence.SEQUENCE_NAME == name, sequence.NEXT_VAL == following)
        if conn.execute(taken.values(NEXT_VAL=following + 1)).rowcount != 1:
            raise MetastoreError(f"id {following} of {model} was taken by someone else under our lock")
    return following


def _insert_columns(conn: sa.Connection, columns: Sequence[Column]) -> int:
    cd_id = _next_id(conn, "MColumnDescriptor", CDS.c.CD_ID)
    conn.execute(CDS.insert().values(CD_ID=cd_id))
    for index, column in enumerate(columns):
        conn.execute(
            COLUMNS_V2.insert().values(
                CD_ID=cd_id, COLUMN_NAME=column.name.lower(), TYPE_NAME=column.type, INTEGER_IDX=index
            )
        )
    return cd_id


def _insert_descriptor(
    conn: sa.Connection,
    *,
    cd_id: int,
    location: str,
    formats: tuple[str | None, str | None, str | None],
    bucket_count: int,
) -> int:
    """A storage descriptor with its serde; formats: input format, output format, serde library."""
    input_format, output_format, serde = formats
    serde_id = _next_id(conn, "MSerDeInfo", SERDES.c.SERDE_ID)
    conn.execute(SERDES.insert().values(SERDE_ID=serde_id, SLIB=serde, SERDE_TYPE=0))
    _put(conn, SERDE_PARAMS, serde_id, {"serialization.format": "1"})
    sd_id = _next_id(conn, "MStorageDescriptor", SDS.c.SD_ID)
    conn.execute(
        SDS.insert().values(
            SD_ID=sd_id,
            INPUT_FORMAT=input_format,
            IS_COMPRESSED=False,
            LOCATION=location,
            NUM_BUCKETS=bucket_count,
            OUTPUT_FORMAT=output_format,
            SERDE_ID=serde_id,
            CD_ID=cd_id,
            IS_STOREDASSUBDIRECTORIES=False,
        )
    )
    return sd_id


def _insert_layout(conn: sa.Connection, sd_id: int, buckets: Sequence[str], sort: Sequence[SortColumn]) -> None:
    for index, bucket in enumerate(buckets):
        conn.execute(BUCKETING_COLS.insert().values(SD_ID=sd_id, BUCKET_COL_NAME=bucket.lower(), INTEGER_IDX=index))
    for index, column in enumerate(sort):
        order = 1 if column.ascending else 0
        conn.execute(
            SORT_COLS.insert().values(SD_ID=sd_id, COLUMN_NAME=column.name.lower(), ORDER=order, INTEGER_IDX=index)
        )


def _put(conn: sa.Connection, params: sa.Table, owner_id: int, parameters: Mapping[str, str | None]) -> None:
    owner = params.columns[0]
    for key, value in parameters.items():
        conn.execute(params.delete().where(owner == owner_id, params.c.PARAM_KEY == key))
        if value is not None:
            conn.execute(params.insert().values({owner.name: owner_id, "PARAM_KEY": key, "PARAM_VALUE": value}))


def _partition_id(conn: sa.Connection, table_id: int, name: str) -> int | None:
    parts = PARTITIONS.c
    return conn.scalar(sa.select(parts.PART_ID).where(parts.TBL_ID == table_id, parts.PART_NAME == name))


def _delete_partition(conn: sa.Connection, part_id: int) -> None:
    sd_id = conn.execute(sa.select(PARTITIONS.c.SD_ID).where(PARTITIONS.c.PART_ID == part_id)).scalar_one()
    for owned in (PART_COL_STATS, PARTITION_PARAMS, PARTITION_KEY_VALS, PARTITIONS):
        conn.execute(owned.delete().where(owned.c.PART_ID == part_id))
    _delete_descriptor(conn, sd_id)


def _delete_descriptor(conn: sa.Connection, sd_id: int) -> None:
    row = conn.execute(sa.select(SDS.c.CD_ID, SDS.c.SERDE_ID).where(SDS.c.SD_ID == sd_id)).one()
    for owned in (BUCKETING_COLS, SORT_COLS, SD_PARAMS, SDS):
        conn.execute(owned.delete().where(owned.c.SD_ID == sd_id))
    for owned in (SERDE_PARAMS, SERDES):
        conn.execute(owned.delete().where(owned.c.SERDE_ID == row.SERDE_ID))
    _delete_unused_columns(conn, row.CD_ID)


def _delete_unused_columns(conn: sa.Connection, cd_id: int) -> None:
    """Partitions share their table's columns: they go with the last storage descriptor that points to them."""
    if conn.scalar(sa.select(SDS.c.SD_ID).where(SDS.c.CD_ID == cd_id).limit(1)) is None:
        for owned in (COLUMNS_V2, CDS):
            conn.execute(owned.delete().where(owned.c.CD_ID == cd_id))
