"""CREATE TABLE for transactional tables, with the parameters that Hive itself would set.

Source: Hive `TransactionalValidationListener`, `CreateTableDesc`; the catalogue rows of tables that Hive 4 made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compactor.acid.schema import parse_type
from compactor.errors import UsageError
from compactor.metastore import catalog_write
from compactor.metastore.catalog import Column, Table, TableName
from compactor.metastore.database import Database
from compactor.storage.filesystem import FilesystemOf, open_location
from compactor.table.values import FileFormat

_HIVE = "org.apache.hadoop.hive.ql.io."
_FORMATS = {
    FileFormat.ORC: (
        catalog_write.ORC_INPUT_FORMAT,
        catalog_write.ORC_OUTPUT_FORMAT,
        catalog_write.ORC_SERDE,
    ),
    FileFormat.PARQUET: (
        f"{_HIVE}parquet.MapredParquetInputFormat",
        f"{_HIVE}parquet.MapredParquetOutputFormat",
        f"{_HIVE}parquet.serde.ParquetHiveSerDe",
    ),
}


def create_table(
    db: Database,
    name: TableName,
    columns: Sequence[tuple[str, str]],
    *,
    partitioned_by: Sequence[tuple[str, str]] = (),
    clustered_by: Sequence[str] = (),
    buckets: int = 0,
    insert_only: bool = False,
    format: str = "orc",  # noqa: A002 - Hive's word: STORED AS a format
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    owner: str = "",
    filesystem_of: FilesystemOf = open_location,
) -> Table:
    """Create a transactional table and its directory.

    columns, partitioned_by: (name, Hive type). clustered_by with buckets: CLUSTERED BY … INTO n BUCKETS. format:
    `orc`, or `parquet` for an insert-only table. location: below the database's by default. properties win over
    the ones set here. Raises UsageError, FormatError for a type that is none, AlreadyExists, NoSuchObject.
    """
    stored_as = _format(format, insert_only=insert_only)
    names = _checked_names(name, [*columns, *partitioned_by])
    if bool(clustered_by) != (buckets > 0):
        raise UsageError(f"table {name}: clustered_by and buckets belong together")
    if unknown := [c for c in clustered_by if c.lower() not in names[: len(columns)]]:
        raise UsageError(f"table {name} has no column {', '.join(unknown)} to be clustered by")
    input_format, output_format, serde = _FORMATS[stored_as]
    table = catalog_write.create_table(
        db,
        name,
        columns=[Column(name=c, type=t) for c, t in columns],
        partition_columns=[Column(name=c, type=t) for c, t in partitioned_by],
        parameters={
            "transactional": "true",
            "transactional_properties": "insert_only" if insert_only else "default",
            "bucketing_version": "2",
            **(properties or {}),
        },
        location=location,
        input_format=input_format,
        output_format=output_format,
        serde=serde,
        bucket_columns=clustered_by,
        bucket_count=buckets or -1,
        owner=owner,
    )
    if table.location is not None:
        fs, root = filesystem_of(table.location)
        fs.create_directory(root)
    return table


def _format(name: str, *, insert_only: bool) -> FileFormat:
    try:
        stored_as = FileFormat(name.lower())
    except ValueError:
        raise UsageError(f"format {name!r} is not known", hint="allowed: orc, parquet") from None
    if stored_as is not FileFormat.ORC and not insert_only:
        raise UsageError(
            f"full-ACID tables are stored as ORC, not {name}", hint="insert_only=True allows other formats"
        )
    return stored_as


def _checked_names(table: TableName, columns: Sequence[tuple[str, str]]) -> list[str]:
    names = [name.lower() for name, _ in columns]
    if not columns or len(set(names)) != len(names):
        raise UsageError(f"table {table} needs columns, each with a name of its own: {', '.join(names)}")
    for _, kind in columns:
        parse_type(kind)
    return names
