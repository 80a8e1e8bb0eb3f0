"""What Hive's catalogue says about databases, tables and partitions; reading only, `catalog_write.py` changes it.

Names are lower case, as Hive stores them. Sources: Hive `ObjectStore`, `MetastoreDirectSqlUtils`,
`AcidUtils.isTransactionalTable`, `AcidUtils.isInsertOnlyTable`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from compactor.acid.partition_name import DEFAULT_PARTITION, partition_values
from compactor.errors import NoSuchObject, UsageError
from compactor.metastore.catalog_schema import (
    BUCKETING_COLS,
    COLUMNS_V2,
    DATABASE_PARAMS,
    DBS,
    PARTITION_KEY_VALS,
    PARTITION_KEYS,
    PARTITION_PARAMS,
    PARTITIONS,
    SDS,
    SERDES,
    SORT_COLS,
    TABLE_PARAMS,
    TBLS,
)
from compactor.metastore.database import Database, retried

CATALOG = "hive"
"""The only catalogue whose tables are compacted: Hive's default one."""

_NAMES_A_STATEMENT = 500


@dataclass(frozen=True, kw_only=True, order=True)
class TableName:
    """`database.table`, in lower case whatever was given."""

    database: str
    table: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", self.database.lower())
        object.__setattr__(self, "table", self.table.lower())

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `db.table`; UsageError when it is anything else."""
        database, dot, table = text.strip().partition(".")
        if not (database and dot and table) or "." in table:
            raise UsageError(f"{text!r} is no table name", hint="write it as database.table")
        return cls(database=database, table=table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column and its Hive type, for example `struct<a:int,b:array<string>>`."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class SortColumn:
    """One column of SORTED BY."""

    name: str
    ascending: bool = True


@dataclass(frozen=True, kw_only=True)
class CatalogDatabase:
    """A database of the catalogue.

    location: where external tables live. managed_location: where managed tables live, None when it is the same.
    """

    id: int
    name: str
    location: str
    managed_location: str | None
    parameters: Mapping[str, str]
    owner: str | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as the catalogue describes it.

    columns: without the partition columns. bucket_count: -1 when the table is not bucketed. type: MANAGED_TABLE,
    EXTERNAL_TABLE, VIRTUAL_VIEW or MATERIALIZED_VIEW. location: None for views.
    """

    id: int
    name: TableName
    type: str
    owner: str | None
    location: str | None
    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    input_format: str | None
    output_format: str | None
    serde: str | None
    bucket_columns: tuple[str, ...] = ()
    bucket_count: int = -1
    sort_columns: tuple[SortColumn, ...] = ()

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partition_columns)

    @property
    def is_transactional(self) -> bool:
        return self._parameter("transactional") == "true"

    @property
    def is_insert_only(self) -> bool:
        return self.is_transactional and self._parameter("transactional_properties") == "insert_only"

    @property
    def is_full_acid(self) -> bool:
        return self.is_transactional and not self.is_insert_only

    def _parameter(self, key: str) -> str:
        # Hive reads these two keys in lower and in upper case
        return self.parameters.get(key, self.parameters.get(key.upper(), "")).lower()


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition of a table.

    name: `p=x/q=y`, escaped. values: unescaped, in the order of the partition columns; NULL is DEFAULT_PARTITION.
    columns: what the files of this partition were declared with, which may lag behind the table's. input_format: its
    own; ALTER TABLE … SET FILEFORMAT changes the table's and those of partitions to come.
    """

    id: int
    name: str
    values: tuple[str, ...]
    location: str
    columns: tuple[Column, ...]
    parameters: Mapping[str, str]
    input_format: str | None


@retried
def get_database(db: Database, name: str) -> CatalogDatabase:
    """One database; NoSuchObject when the catalogue has none of that name."""
    with db.read() as conn:
        return database_row(conn, name)


@retried
def list_tables(db: Database, database: str | None = None) -> list[TableName]:
    """Names of all tables and views, sorted; database: only of this one, NoSuchObject when it does not exist."""
    query = (
        sa.select(DBS.c.NAME, TBLS.c.TBL_NAME)
        .join(DBS, DBS.c.DB_ID == TBLS.c.DB_ID)
        .where(DBS.c.CTLG_NAME == CATALOG)
        .order_by(DBS.c.NAME, TBLS.c.TBL_NAME)
    )
    with db.read() as conn:
        if database is not None:
            query = query.where(DBS.c.DB_ID == database_row(conn, database).id)
        return [TableName(database=row.NAME, table=row.TBL_NAME) for row in conn.execute(query)]


@retried
def get_table(db: Database, name: TableName) -> Table:
    """One table with its columns and parameters; NoSuchObject when the catalogue has none of that name."""
    with db.read() as conn:
        return table_row(conn, name)


@retried
def get_tables(db: Database, names: Collection[TableName]) -> dict[TableName, Table]:
    """Those of the tables that exist, in a few queries."""
    found: dict[TableName, Table] = {}
    with db.read() as conn:
        for database in sorted({name.database for name in names}):
            for some in _chunks(sorted(name.table for name in names if name.database == database)):
                wanted = sa.and_(DBS.c.NAME == database, TBLS.c.TBL_NAME.in_(some))
                found |= {table.name: table for table in _tables(conn, wanted)}
    return found


@retried
def get_partition(db: Database, table: TableName, name: str) -> Partition:
    """The partition with the (escaped) name; NoSuchObject when table or partition is unknown."""
    with db.read() as conn:
        found = _partitions(conn, table_row(conn, table), name)
    if not found:
        raise NoSuchObject(f"table {table} has no partition {name}")
    return found[0]


@retried
def list_partitions(db: Database, table: TableName) -> list[Partition]:
    """All partitions in the order of their names; empty when the table is not partitioned."""
    with db.read() as conn:
        return _partitions(conn, table_row(conn, table))


@retried
def find_partition(db: Database, table: TableName, spec: Mapping[str, str]) -> Partition:
    """The one partition that PARTITION (p='x', q='y') names; spec: column to unescaped value.

    UsageError when spec does not name exactly the partition columns, NoSuchObject when there is no such partition.
    """
    with db.read() as conn:
        found = table_row(conn, table)
        columns = [column.name for column in found.partition_columns]
        wanted = {column.lower(): value for column, value in spec.items()}
        if sorted(wanted) != sorted(columns):
            raise UsageError(
                f"partition ({', '.join(wanted)}) does not fit table {table}",
                hint=f"its partition columns are: {', '.join(columns) or 'none'}",
            )
        values = tuple(wanted[column] or DEFAULT_PARTITION for column in columns)
        for partition in _partitions(conn, found, values=values):
            return partition
    raise NoSuchObject(f"table {table} has no partition ({', '.join(f'{c}={v!r}' for c, v in wanted.items())})")


def database_row(conn: sa.Connection, name: str) -> CatalogDatabase:
    """`get_database` inside a transaction that is open already."""
    query = sa.select(DBS).where(DBS.c.NAME == name.lower(), DBS.c.CTLG_NAME == CATALOG)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NoSuchObject(f"database {name} does not exist")
    return CatalogDatabase(
        id=row.DB_ID,
        name=row.NAME,
        location=row.DB_LOCATION_URI,
        managed_location=row.DB_MANAGED_LOCATION_URI,
        parameters=_parameters(conn, DATABASE_PARAMS, DATABASE_PARAMS.c.DB_ID == row.DB_ID)[row.DB_ID],
        owner=row.OWNER_NAME,
    )


def table_row(conn: sa.Connection, name: TableName) -> Table:
    """`get_table` inside a transaction that is open already."""
    for found in _tables(conn, sa.and_(DBS.c.NAME == name.database, TBLS.c.TBL_NAME == name.table)):
        return found
    raise NoSuchObject(f"table {name} does not exist")


def _tables(conn: sa.Connection, where: sa.ColumnElement[bool]) -> list[Table]:
    """Tables that meet a condition on DBS and TBLS: a fixed number of queries, however many there are."""
    query = (
        sa.select(DBS.c.NAME, TBLS, SDS, SERDES.c.SLIB)
        .join(DBS, DBS.c.DB_ID == TBLS.c.DB_ID)
        .outerjoin(SDS, SDS.c.SD_ID == TBLS.c.SD_ID)
        .outerjoin(SERDES, SERDES.c.SERDE_ID == SDS.c.SERDE_ID)
        .where(DBS.c.CTLG_NAME == CATALOG, where)
    )
    rows = conn.execute(query).all()
    tables = [row.TBL_ID for row in rows]
    descriptors = [row.SD_ID for row in rows]
    keys = _children(conn, PARTITION_KEYS, PARTITION_KEYS.c.TBL_ID, tables)
    buckets = _children(conn, BUCKETING_COLS, BUCKETING_COLS.c.SD_ID, descriptors)
    sorting = _children(conn, SORT_COLS, SORT_COLS.c.SD_ID, descriptors)
    columns = _columns(conn, COLUMNS_V2.c.CD_ID.in_({row.CD_ID for row in rows}))
    parameters = _parameters(conn, TABLE_PARAMS, TABLE_PARAMS.c.TBL_ID.in_(tables))
    return [
        Table(
            id=row.TBL_ID,
            name=TableName(database=row.NAME, table=row.TBL_NAME),
            type=row.TBL_TYPE,
            owner=row.OWNER,
            location=row.LOCATION,
            columns=columns[row.CD_ID],
            partition_columns=tuple(Column(name=key.PKEY_NAME, type=key.PKEY_TYPE) for key in keys[row.TBL_ID]),
            parameters=parameters[row.TBL_ID],
            input_format=row.INPUT_FORMAT,
            output_format=row.OUTPUT_FORMAT,
            serde=row.SLIB,
            bucket_columns=tuple(bucket.BUCKET_COL_NAME for bucket in buckets[row.SD_ID]),
            bucket_count=-1 if row.NUM_BUCKETS is None else row.NUM_BUCKETS,
            sort_columns=tuple(SortColumn(name=by.COLUMN_NAME, ascending=by.ORDER == 1) for by in sorting[row.SD_ID]),
        )
        for row in rows
    ]


def _children(
    conn: sa.Connection, table: sa.Table, owner: sa.Column[int], ids: Collection[int]
) -> Mapping[int, list[sa.Row[Any]]]:
    """Owner's id to the rows of a list, in the list's order."""
    found: defaultdict[int, list[sa.Row[Any]]] = defaultdict(list)
    query = sa.select(table).where(owner.in_(ids)).order_by(owner, table.c.INTEGER_IDX)
    for row in conn.execute(query):
        found[row._mapping[owner]].append(row)
    return found


def _partitions(
    conn: sa.Connection, table: Table, name: str | None = None, *, values: tuple[str, ...] | None = None
) -> list[Partition]:
    """Partitions by name order: a fixed number of queries, however many there are."""
    wanted = [PARTITIONS.c.TBL_ID == table.id]
    if name is not None:
        wanted.append(PARTITIONS.c.PART_NAME == name)
    for index, value in enumerate(values or ()):
        key = PARTITION_KEY_VALS.alias()
        matching = sa.select(key.c.PART_ID).where(key.c.INTEGER_IDX == index, key.c.PART_KEY_VAL == value)
        wanted.append(PARTITIONS.c.PART_ID.in_(matching))
    query = (
        sa.select(PARTITIONS.c.PART_ID, PARTITIONS.c.PART_NAME, SDS.c.LOCATION, SDS.c.CD_ID, SDS.c.INPUT_FORMAT)
        .join(SDS, SDS.c.SD_ID == PARTITIONS.c.SD_ID)
        .where(*wanted)
        .order_by(PARTITIONS.c.PART_NAME)
    )
    ids = sa.select(PARTITIONS.c.PART_ID).where(*wanted)
    descriptors = sa.select(SDS.c.CD_ID).join(PARTITIONS, PARTITIONS.c.SD_ID == SDS.c.SD_ID).where(*wanted)
    columns = _columns(conn, COLUMNS_V2.c.CD_ID.in_(descriptors))
    parameters = _parameters(conn, PARTITION_PARAMS, PARTITION_PARAMS.c.PART_ID.in_(ids))
    return [
        Partition(
            id=row.PART_ID,
            name=row.PART_NAME,
            values=tuple(partition_values(row.PART_NAME).values()),
            location=row.LOCATION,
            columns=columns[row.CD_ID],
            parameters=parameters[row.PART_ID],
            input_format=row.INPUT_FORMAT,
        )
        for row in conn.execute(query)
    ]


def _columns(conn: sa.Connection, where: sa.ColumnElement[bool]) -> Mapping[int, tuple[Column, ...]]:
    """CD_ID to columns in their order; an unknown id has none."""
    columns: defaultdict[int, tuple[Column, ...]] = defaultdict(tuple)
    query = sa.select(COLUMNS_V2).where(where).order_by(COLUMNS_V2.c.CD_ID, COLUMNS_V2.c.INTEGER_IDX)
    for row in conn.execute(query):
        columns[row.CD_ID] += (Column(name=row.COLUMN_NAME, type=row.TYPE_NAME),)
    return columns


def _parameters(conn: sa.Connection, params: sa.Table, where: sa.ColumnElement[bool]) -> Mapping[int, dict[str, str]]:
    """Owner's id to its parameters; params: a *_PARAMS table. A NULL value reads as ''."""
    found: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for owner_id, key, value in conn.execute(sa.select(params).where(where)):
        found[owner_id][key] = "" if value is None else value
    return found


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _NAMES_A_STATEMENT):
        yield names[start : start + _NAMES_A_STATEMENT]
