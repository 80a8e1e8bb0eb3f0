"""Is this a metastore database that we can work on? Asked once, before any role begins; nothing is changed.

Hive's releases differ. 4.0 to 4.2 have the tables of `schema.py`. The 4.3 line adds columns for the catalogue, with
the default 'hive', which a program that does not know them may leave out. Hive 3 has other tables: no record of which
transaction a compaction ran in and when it was published, ids from NEXT_TXN_ID, lower-case names on PostgreSQL; its
readers do not know directories with a visibility id (`base_5_v12`), so nothing of what we write could be read there.

Sources: Hive's schema and upgrade scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from compactor.errors import SchemaNotSupported
from compactor.metastore.catalog import CATALOG
from compactor.metastore.catalog_schema import DBS, PART_COL_STATS, TAB_COL_STATS, TABLE_PARAMS, TBLS, metadata
from compactor.metastore.database import MARKER_TABLES, Database, retried
from compactor.metastore.schema import COMPACTOR_INSTALLATION, COMPACTOR_JOB_COST

OURS = frozenset({COMPACTOR_INSTALLATION.name, COMPACTOR_JOB_COST.name})
"""Tables that only a database of `init_db` has."""
MAY_LACK: Mapping[str, frozenset[str]] = {
    table.name: frozenset({"ENGINE", "HISTOGRAM", "BIT_VECTOR"}) for table in (TAB_COL_STATS, PART_COL_STATS)
}
"""Columns that are used where they are there (`statistics`)."""
_HIVE_3 = "NEXT_TXN_ID"
_UPGRADE = "upgrade the schema with Hive's schematool to 4.0 or newer; until then no role can work on it"


@retried
def require_supported(db: Database) -> None:
    """SchemaNotSupported when Hive's tables are there but not as we need them; says what is missing and what to do.

    A database without them passes: that it is not initialised is for others to say.
    """
    with db.read() as conn:
        inspector = sa.inspect(conn)
        names = frozenset(inspector.get_table_names())
        if _HIVE_3 in names or {_HIVE_3.lower(), "txns"} <= names:
            raise SchemaNotSupported(
                "the metastore database has the schema of Hive 3: it does not record when a compaction was published, "
                "and Hive 3 cannot read what we write",
                hint="no role can work on it; upgrade Hive and its schema to 4.0 or newer",
            )
        if not names >= MARKER_TABLES:
            return
        _require_all(inspector, names)
        if any(column["name"].endswith("_CATALOG") for column in inspector.get_columns("COMPACTION_QUEUE")):
            _require_one_catalog(conn)


def _require_all(inspector: sa.Inspector, names: frozenset[str]) -> None:
    missing: list[str] = []
    unknown: list[str] = []
    for table in metadata.sorted_tables:
        if table.name not in names:
            missing += [] if table.name in OURS else [table.name]
            continue
        known = {column.name for column in table.columns}
        found = {column["name"]: column for column in inspector.get_columns(table.name)}
        missing += [f"{table.name}.{name}" for name in sorted(known - found.keys() - MAY_LACK.get(table.name, set()))]
        unknown += [
            f"{table.name}.{name}"
            for name, column in found.items()
            if name not in known and not column["nullable"] and column["default"] is None
        ]
    if missing:
        raise SchemaNotSupported(f"the metastore database lacks {_some(missing)}", hint=_UPGRADE)
    if unknown:
        raise SchemaNotSupported(
            f"the metastore database has columns that must be filled and that this release does not know: "
            f"{_some(unknown)}",
            hint="use a newer release of the compactor; until then no role can work on it",
        )


def _require_one_catalog(conn: sa.Connection) -> None:
    """Tables are told by database and name alone: two of one name in different catalogues would be taken for one."""
    transactional = (
        sa.select(DBS.c.CTLG_NAME, DBS.c.NAME, TBLS.c.TBL_NAME)
        .join(TBLS, TBLS.c.DB_ID == DBS.c.DB_ID)
        .join(TABLE_PARAMS, TABLE_PARAMS.c.TBL_ID == TBLS.c.TBL_ID)
        .where(DBS.c.CTLG_NAME != CATALOG, TABLE_PARAMS.c.PARAM_KEY == "transactional")
        .limit(5)
    )
    elsewhere = [".".join(row) for row in conn.execute(transactional)]
    if elsewhere:
        raise SchemaNotSupported(
            f"there are transactional tables outside the catalogue '{CATALOG}': {_some(elsewhere)}",
            hint="this release knows only that catalogue; with others in use no role can work safely",
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
