"""Tables that a real Hive 4.0.1 wrote: files, metastore rows, and the rows and ROW__IDs that Hive returned."""

from __future__ import annotations

import datetime as dt
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from compactor.errors import StorageError
from compactor.metastore.catalog_schema import metadata
from compactor.metastore.database import Database

_ROOT = "@ROOT@"
_PLACES = (
    Path(__file__).parent / "hive-4.0.1",
    Path(__file__).parents[2] / "tests" / "fixtures" / "hive-4.0.1",
)
"""In an installed wheel, in a checkout."""


@dataclass(frozen=True, kw_only=True)
class ExpectedTable:
    """What Hive said of a table.

    rows: SELECT * ORDER BY id, values as JSON has them. row_ids: [write id, bucket, row id, file, id] of each row,
    None for an insert-only table. columns: (name, Hive type), partition columns not among them.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    row_ids: tuple[tuple[Any, ...], ...] | None
    result_types: tuple[str, ...]

    def printed_rows(self) -> list[tuple[Any, ...]]:
        """`rows` in the form of `hive_prints`: Hive's driver hands arrays over as bytes, kept in hexadecimal."""
        return [
            tuple(
                bytes.fromhex(value).decode() if kind == "ARRAY" and value is not None else value
                for value, kind in zip(row, self.result_types, strict=True)
            )
            for row in self.rows
        ]


@cache
def folder() -> Path:
    """Where the fixture lies; StorageError when this installation has none."""
    for place in _PLACES:
        if place.is_dir():
            return place
    raise StorageError("the tables of the demo are not installed", hint="run it from a checkout: make demo")


@cache
def expected_tables() -> tuple[ExpectedTable, ...]:
    """All tables, by name."""
    described = json.loads((folder() / "expected.json").read_text(encoding="utf-8"))
    return tuple(
        ExpectedTable(
            name=name,
            columns=tuple((n, t) for n, t in said["columns"]),
            rows=tuple(tuple(row) for row in said["rows"]),
            row_ids=None if said["row_ids"] is None else tuple(tuple(r) for r in said["row_ids"]),
            result_types=tuple(kind for _, kind in said["result_columns"]),
        )
        for name, said in sorted(described.items())
    )


def load(db: Database, root: Path) -> None:
    """Unpack the files below `root` and put Hive's metastore rows into a database fresh from `init_db`.

    Rows that `init_db` made itself (catalogue, counters) give way to Hive's.
    """
    with tarfile.open(folder() / "warehouse.tar.gz") as archive:
        # As an attribute: Python before 3.11.4 knows no filter, and takes no argument of that name.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(root)  # noqa: S202 -- an archive of our own, and filtered
    rows: dict[str, list[dict[str, Any]]] = json.loads((folder() / "metastore.json").read_text(encoding="utf-8"))
    tables = [t for t in metadata.sorted_tables if t.name in rows]
    with db.write() as conn:
        for table in reversed(tables):
            conn.execute(table.delete())
        for table in tables:
            values = [_row(table, row, root) for row in rows[table.name]]
            if values:
                conn.execute(table.insert(), values)


def _row(table: sa.Table, row: dict[str, Any], root: Path) -> dict[str, Any]:
    known: Sequence[str] = [c.name for c in table.columns]
    return {name: _value(table.c[name], value, root) for name, value in row.items() if name in known}


def _value(column: sa.Column[Any], value: Any, root: Path) -> Any:
    if isinstance(value, str) and isinstance(column.type, sa.DateTime):
        return dt.datetime.fromisoformat(value)
    return value.replace(_ROOT, str(root)) if isinstance(value, str) else value
