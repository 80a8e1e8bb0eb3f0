"""Statistics of tables and partitions in the metastore: read what is there, write what a compaction found out.

The law: Hive must never answer a query from a wrong number. Statistics belong to a write id (TBLS.WRITE_ID,
PARTITIONS.WRITE_ID), and a reader trusts them when it sees that write. So one database transaction looks at what was
written since the compaction's snapshot, at who still reads an older state, and changes what may be changed; the row
of NEXT_WRITE_ID is locked meanwhile, which keeps new writers from starting in between. A compaction allocates no
write id, and like Hive's `analyze table … noscan` it never disturbs statistics that a newer write keeps.

Sources: Hive `StatsUpdater`, `BasicStatsTask`, `ObjectStore.updateTableColumnStatistics`, `ObjectStore.alterTable`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.acid.column_statistics import (
    ACCURATE,
    DDL_TIME,
    NUM_FILES,
    NUM_ROWS,
    RAW_DATA_SIZE,
    TOTAL_SIZE,
    Accuracy,
    Change,
    ColumnStatistics,
    Recorded,
    TableStatistics,
    accuracy_after,
    decide,
)
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import NoSuchObject
from compactor.metastore.catalog import CATALOG, TableName
from compactor.metastore.catalog_schema import (
    DBS,
    PART_COL_STATS,
    PARTITION_PARAMS,
    PARTITIONS,
    SEQUENCE_TABLE,
    TAB_COL_STATS,
    TABLE_PARAMS,
    TBLS,
)
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTION_QUEUE, NEXT_WRITE_ID, TXN_TO_WRITE_ID, TXNS
from compactor.metastore.txns import COMPACTION_TYPES, TxnState

ENGINE = "hive"
"""Hive keeps statistics by engine; those of its own planner are the ones that answer queries."""
_NAMES_A_STATEMENT = 500


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A table or partition: its row, its parameters and its column statistics. owner: name of the id column."""

    id: int
    owner: str
    rows: sa.Table
    params: sa.Table
    columns: sa.Table
    names: Mapping[str, str]
    write_id: int


@retried
def columns_with_statistics(db: Database, table: TableName, partition: str | None) -> frozenset[str]:
    """Names of the columns that Hive has statistics of (HMSHandler.findColumnsWithStats); NoSuchObject."""
    with db.read() as conn:
        place = _place(conn, table, partition)
        return frozenset(conn.scalars(sa.select(place.columns.c.COLUMN_NAME).where(_rows_of(conn, place))))


@retried
def record_statistics(
    db: Database,
    table: TableName,
    partition: str | None,
    statistics: TableStatistics,
    *,
    compaction_id: int,
    write_ids: ValidWriteIdList,
) -> Change:
    """Write what a compaction found out, as far as that cannot mislead anybody.

    compaction_id: its published row of COMPACTION_QUEUE. write_ids: of its snapshot, nothing open among them.
    NoSuchObject when table or partition are gone.
    """
    with db.write() as conn:
        settled = _settled(conn, table, write_ids)
        place = _place(conn, table, partition)
        found, accuracy = _recorded(conn, place, write_ids)
        only_new = settled and _only_new_readers(conn, compaction_id)
        change = decide(found, statistics, settled=settled, only_new_readers=only_new)
        new = {NUM_FILES: statistics.files, TOTAL_SIZE: statistics.size, DDL_TIME: db.now(conn) // 1000}
        written: Collection[str] = ()
        if change is not Change.SIZES:
            new[NUM_ROWS] = statistics.rows or 0
            if statistics.raw_data_size is not None:
                new[RAW_DATA_SIZE] = statistics.raw_data_size
            _write_columns(conn, place, statistics.columns, now=new[DDL_TIME])
            written = [column.name for column in statistics.columns if column.answers]
        after = accuracy_after(change, accuracy, written, only_new_readers=only_new)
        flags: dict[str, str | None] = {} if after == accuracy else {ACCURATE: after.to_string()}
        _put(conn, place, {**{key: str(value) for key, value in new.items()}, **flags})
        if change is Change.MADE_ACCURATE:
            newest = next((i for i in range(write_ids.high_water, 0, -1) if write_ids.is_valid(i)), 0)
            key = place.rows.c[place.owner]
            conn.execute(place.rows.update().where(key == place.id).values(WRITE_ID=newest))
        return change


@retried
def forget_accuracy(db: Database, table: TableName, partitions: Collection[str], write_id: int) -> None:
    """A write that keeps no statistics is about to commit: Hive must count for itself from then on.

    Where statistics were accurate it leaves its write id, as a write of Hive's does, so that a concurrent one that
    does not see it cannot call its own accurate. partitions: those that were written; none of an unpartitioned table.
    A transaction that aborts afterwards has made nothing wrong.
    """
    with db.write() as conn:
        table_id, _ = _table(conn, table)
        _disown(conn, TBLS, TABLE_PARAMS, TBLS.c.TBL_ID, [table_id], write_id)
        names = sorted(partitions)
        for start in range(0, len(names), _NAMES_A_STATEMENT):
            chosen = PARTITIONS.c.PART_NAME.in_(names[start : start + _NAMES_A_STATEMENT])
            ids = conn.scalars(sa.select(PARTITIONS.c.PART_ID).where(PARTITIONS.c.TBL_ID == table_id, chosen)).all()
            _disown(conn, PARTITIONS, PARTITION_PARAMS, PARTITIONS.c.PART_ID, ids, write_id)


def _disown(
    conn: sa.Connection, rows: sa.Table, params: sa.Table, key: sa.Column[int], ids: Collection[int], write_id: int
) -> None:
    accurate = sa.and_(params.c[key.name].in_(ids), params.c.PARAM_KEY == ACCURATE)
    owners = conn.scalars(sa.select(params.c[key.name]).where(accurate)).all()
    if owners:
        conn.execute(params.delete().where(accurate))
        conn.execute(rows.update().where(key.in_(owners)).values(WRITE_ID=write_id))


def _settled(conn: sa.Connection, table: TableName, write_ids: ValidWriteIdList) -> bool:
    """Nothing above the snapshot was written or is being written; holds until our transaction ends."""
    next_id, writes = NEXT_WRITE_ID.c, TXN_TO_WRITE_ID.c
    mine = sa.and_(next_id.NWI_DATABASE == table.database, next_id.NWI_TABLE == table.table)
    following = conn.scalar(sa.select(next_id.NWI_NEXT).where(mine).with_for_update()) or 1
    newer = (
        sa.select(TXNS.c.TXN_STATE)
        .select_from(sa.outerjoin(TXN_TO_WRITE_ID, TXNS, TXNS.c.TXN_ID == writes.T2W_TXNID))
        .where(writes.T2W_DATABASE == table.database, writes.T2W_TABLE == table.table)
        .where(writes.T2W_WRITEID > write_ids.high_water)
    )
    states = list(conn.scalars(newer))
    # A write that is no longer listed ended long ago, and nobody knows how; without its transaction it was committed.
    return len(states) >= following - 1 - write_ids.high_water and all(s == TxnState.ABORTED for s in states)


def _only_new_readers(conn: sa.Connection, compaction_id: int) -> bool:
    """Has every transaction that opened before the publication ended? Those that opened later see all it merged."""
    queue = COMPACTION_QUEUE.c
    published = conn.scalar(sa.select(queue.CQ_NEXT_TXN_ID).where(queue.CQ_ID == compaction_id))
    if published is None:
        return False
    older = sa.select(TXNS.c.TXN_ID).where(
        TXNS.c.TXN_STATE == TxnState.OPEN,
        TXNS.c.TXN_ID <= published,
        sa.func.coalesce(TXNS.c.TXN_TYPE, 0).not_in(sorted(COMPACTION_TYPES)),
    )
    return conn.scalar(older.limit(1)) is None


def _place(conn: sa.Connection, table: TableName, partition: str | None) -> _Place:
    table_id, write_id = _table(conn, table)
    names = {"CAT_NAME": CATALOG, "DB_NAME": table.database, "TABLE_NAME": table.table}
    if partition is None:
        return _Place(
            id=table_id,
            owner="TBL_ID",
            rows=TBLS,
            params=TABLE_PARAMS,
            columns=TAB_COL_STATS,
            names=names,
            write_id=write_id,
        )
    query = sa.select(PARTITIONS.c.PART_ID, PARTITIONS.c.WRITE_ID).where(
        PARTITIONS.c.TBL_ID == table_id, PARTITIONS.c.PART_NAME == partition
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NoSuchObject(f"table {table} has no partition {partition}")
    return _Place(
        id=row.PART_ID,
        owner="PART_ID",
        rows=PARTITIONS,
        params=PARTITION_PARAMS,
        columns=PART_COL_STATS,
        names=names | {"PARTITION_NAME": partition},
        write_id=row.WRITE_ID or 0,
    )


def _table(conn: sa.Connection, table: TableName) -> tuple[int, int]:
    """A table's id and the write id of its statistics."""
    database = sa.select(DBS.c.DB_ID).where(DBS.c.NAME == table.database, DBS.c.CTLG_NAME == CATALOG)
    query = sa.select(TBLS.c.TBL_ID, TBLS.c.WRITE_ID).where(
        TBLS.c.TBL_NAME == table.table, TBLS.c.DB_ID == database.scalar_subquery()
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NoSuchObject(f"table {table} does not exist")
    return row.TBL_ID, row.WRITE_ID or 0


def _recorded(conn: sa.Connection, place: _Place, write_ids: ValidWriteIdList) -> tuple[Recorded, Accuracy]:
    params = place.params.c
    owner = params[place.owner] == place.id
    query = sa.select(params.PARAM_KEY, params.PARAM_VALUE).where(owner, params.PARAM_KEY.in_([ACCURATE, NUM_ROWS]))
    found: dict[str, str | None] = {row.PARAM_KEY: row.PARAM_VALUE for row in conn.execute(query)}
    accuracy = Accuracy.parse(found.get(ACCURATE))
    rows = found.get(NUM_ROWS) or ""
    # Write id 0: the statistics are not bound to a write, and every reader takes them.
    believed = accuracy.basic and (place.write_id < 1 or write_ids.is_valid(place.write_id))
    return Recorded(accuracy=accuracy, rows=int(rows) if rows.isdecimal() else None, believed=believed), accuracy


def _put(conn: sa.Connection, place: _Place, parameters: Mapping[str, str | None]) -> None:
    """None removes a parameter. Rows that stay are updated in place: Hive may be looking at them."""
    params = place.params
    for key, value in parameters.items():
        mine = sa.and_(params.c[place.owner] == place.id, params.c.PARAM_KEY == key)
        if value is None:
            conn.execute(params.delete().where(mine))
        elif not conn.execute(params.update().where(mine).values(PARAM_VALUE=value)).rowcount:
            conn.execute(params.insert().values({place.owner: place.id, "PARAM_KEY": key, "PARAM_VALUE": value}))


def _write_columns(conn: sa.Connection, place: _Place, columns: Collection[ColumnStatistics], *, now: int) -> None:
    """Update the rows that are there and add those that are missing; an incomplete one is never added."""
    if not columns:
        return
    mine = _rows_of(conn, place)
    existing = set(conn.scalars(sa.select(place.columns.c.COLUMN_NAME).where(mine)))
    present = _present(conn, place.columns)
    for column in columns:
        values = {key: value for key, value in column.values.items() if key in present} | {"LAST_ANALYZED": now}
        if column.name in existing:
            conn.execute(place.columns.update().where(mine, place.columns.c.COLUMN_NAME == column.name).values(values))
        elif column.complete:
            fixed = {"COLUMN_NAME": column.name, "COLUMN_TYPE": column.type, "ENGINE": ENGINE} | dict(place.names)
            row = {key: value for key, value in fixed.items() if key in present} | values
            row |= {"CS_ID": _next_id(conn, place.columns), place.owner: place.id}
            conn.execute(place.columns.insert().values(row))


def _rows_of(conn: sa.Connection, place: _Place) -> sa.ColumnElement[bool]:
    owned = place.columns.c[place.owner] == place.id
    # Hive 3 knew one engine only.
    return sa.and_(owned, place.columns.c.ENGINE == ENGINE) if "ENGINE" in _present(conn, place.columns) else owned


def _present(conn: sa.Connection, table: sa.Table) -> frozenset[str]:
    """The columns that this metastore's version of the table has."""
    return frozenset(column["name"] for column in sa.inspect(conn).get_columns(table.name))


def _next_id(conn: sa.Connection, columns: sa.Table) -> int:
    """The next CS_ID, as DataNucleus would give it."""
    model = "MTableColumnStatistics" if columns is TAB_COL_STATS else "MPartitionColumnStatistics"
    name = f"org.apache.hadoop.hive.metastore.model.{model}"
    sequence = SEQUENCE_TABLE.c
    following = conn.scalar(sa.select(sequence.NEXT_VAL).where(sequence.SEQUENCE_NAME == name).with_for_update())
    if following is None:
        following = (conn.scalar(sa.select(sa.func.max(columns.c.CS_ID))) or 0) + 1
        conn.execute(SEQUENCE_TABLE.insert().values(SEQUENCE_NAME=name, NEXT_VAL=following + 1))
    else:
        conn.execute(SEQUENCE_TABLE.update().where(sequence.SEQUENCE_NAME == name).values(NEXT_VAL=following + 1))
    return following
