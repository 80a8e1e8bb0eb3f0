"""A large installation, written straight into the tables and onto the disk: what exists, and what changed lately.

Every partition has a base and an old delta that nobody compacted, a compaction in the history, and a write that an
earlier cycle of the initiator has looked at. A changed one has `DELTAS` new deltas besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from compactor.acid.layout import DeltaKind, base_name, delta_name
from compactor.metastore.catalog import Column, Table, TableName, get_table
from compactor.metastore.catalog_schema import PARTITION_KEY_VALS, PARTITION_PARAMS, PARTITIONS, SDS
from compactor.metastore.catalog_write import create_table
from compactor.metastore.database import Database
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.schema import (
    COMPACTION_QUEUE,
    COMPLETED_COMPACTIONS,
    COMPLETED_TXN_COMPONENTS,
    NEXT_COMPACTION_QUEUE_ID,
    NEXT_WRITE_ID,
    TXN_TO_WRITE_ID,
    TXNS,
    init_db,
)

TABLES = 10
DELTAS = 12
"""New deltas of a changed partition: more than `initiator.delta_num_threshold`."""
_OLD_WRITES = 2
_NEWEST_WRITE = _OLD_WRITES + DELTAS
_DAY_MS = 86_400_000
_ROWS_A_STATEMENT = 10_000
FILE = "bucket_00000"
_CONTENT = b"x" * 64
_PARAMETERS = {"numRows": "10", "numFiles": "2", "totalSize": "128", "rawDataSize": "1000"}

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A partition: its table, its name in Hive's form, its directory."""

    table: TableName
    partition: str
    directory: Path


class ScaleWorld:
    """An installation whose warehouse is below `root`. db: of an empty database."""

    def __init__(self, db: Database, root: Path) -> None:
        self.db = db
        init_db(db, warehouse=f"file:{root}/warehouse")
        self._ids = 1_000
        with db.write() as conn:
            insert(conn, TXNS, [_transaction(_NEWEST_WRITE + 1, "c", 1)])

    def create(self, partitions: int, *, files: bool = True) -> list[Place]:
        """That many partitions in `TABLES` tables, as they were a day ago. files: whether there is anything on disk."""
        places: list[Place] = []
        for number in range(TABLES):
            name = TableName(database="default", table=f"events_{number}")
            create_table(
                self.db,
                name,
                columns=[Column(name="id", type="int"), Column(name="item", type="string")],
                partition_columns=[Column(name="part", type="string")],
                parameters={"transactional": "true"},
                owner="hive",
            )
            places += self._partitions(get_table(self.db, name), len(range(number, partitions, TABLES)))
        if files:
            for place in places:
                put(place.directory / base_name(1))
                put(place.directory / delta_name(DeltaKind.INSERT, 2, 2, statement_id=0))
        return places

    def change(self, places: Sequence[Place], *, files: bool = True) -> None:
        """Deltas that were committed just now, in every one of the places."""
        writes = range(_OLD_WRITES + 1, _NEWEST_WRITE + 1)
        if files:
            for place in places:
                for write in writes:
                    put(place.directory / delta_name(DeltaKind.INSERT, write, write, statement_id=0))
        with self.db.write() as conn:
            now = self.db.timestamp(conn)
            insert(conn, COMPLETED_TXN_COMPONENTS, (_component(place, _NEWEST_WRITE, now) for place in places))
            conn.execute(sa.update(NEXT_WRITE_ID).values(NWI_NEXT=_NEWEST_WRITE + 1))
            tables = sorted({place.table for place in places})
            insert(conn, TXN_TO_WRITE_ID, (_write(write, table) for write in writes for table in tables))

    def leave_cycle_time(self) -> None:
        """An initiator has looked at everything an hour ago."""
        with self.db.read() as conn:
            now = self.db.now(conn)
        with mutex(self.db, MutexKey.INITIATOR) as held:
            if held is not None:
                held.set_last_update(now - 3_600_000)

    def queue(self, places: Sequence[Place], **values: Any) -> None:
        """A row of the queue for each of the places. values: its columns, but for names, ids and times."""
        with self.db.write() as conn:
            now = self.db.now(conn)
            first = conn.scalar(sa.select(NEXT_COMPACTION_QUEUE_ID.c.NCQ_NEXT)) or 1
            insert(conn, COMPACTION_QUEUE, (_queued(first + i, place, now) | values for i, place in enumerate(places)))
            conn.execute(sa.update(NEXT_COMPACTION_QUEUE_ID).values(NCQ_NEXT=first + len(places)))

    def written_up_to(self, write: int) -> None:
        """Every table has so many write ids, of transactions that nobody remembers."""
        with self.db.write() as conn:
            conn.execute(sa.update(NEXT_WRITE_ID).values(NWI_NEXT=write + 1))

    def open(self, transactions: int) -> None:
        """Transactions that are open, of sessions that said nothing about what they read."""
        with self.db.write() as conn:
            now = self.db.now(conn)
            first = (conn.scalar(sa.select(sa.func.max(TXNS.c.TXN_ID))) or 0) + 1
            insert(conn, TXNS, (_transaction(first + i, "o", now) for i in range(transactions)))

    def _partitions(self, table: Table, count: int) -> list[Place]:
        location = str(table.location)
        root = Path(location.removeprefix("file:"))
        names = [f"part={number:07d}" for number in range(count)]
        places = [Place(table=table.name, partition=name, directory=root / name) for name in names]
        first, self._ids = self._ids, self._ids + count
        ids = range(first, first + count)
        with self.db.write() as conn:
            now, day_ago = self.db.now(conn), self.db.timestamp(conn) - timedelta(days=1)
            descriptor = dict(conn.execute(sa.select(SDS).where(SDS.c.LOCATION == location)).mappings().one())
            insert(
                conn,
                SDS,
                (
                    descriptor | {"SD_ID": i, "LOCATION": f"{location}/{name}"}
                    for i, name in zip(ids, names, strict=True)
                ),
            )
            insert(conn, PARTITIONS, (_partition(i, table.id, name) for i, name in zip(ids, names, strict=True)))
            insert(
                conn,
                PARTITION_KEY_VALS,
                (
                    {"PART_ID": i, "PART_KEY_VAL": name.partition("=")[2], "INTEGER_IDX": 0}
                    for i, name in zip(ids, names, strict=True)
                ),
            )
            insert(
                conn,
                PARTITION_PARAMS,
                ({"PART_ID": i, "PARAM_KEY": key, "PARAM_VALUE": v} for i in ids for key, v in _PARAMETERS.items()),
            )
            insert(conn, COMPLETED_TXN_COMPONENTS, (_component(place, _OLD_WRITES, day_ago) for place in places))
            done = (_done(i, place, now - _DAY_MS) for i, place in zip(ids, places, strict=True))
            insert(conn, COMPLETED_COMPACTIONS, done)
            first_write = {"NWI_DATABASE": table.name.database, "NWI_TABLE": table.name.table}
            insert(conn, NEXT_WRITE_ID, [first_write | {"NWI_NEXT": _OLD_WRITES + 1}])
            conn.execute(sa.update(NEXT_COMPACTION_QUEUE_ID).values(NCQ_NEXT=self._ids))
        return places


def put(directory: Path) -> None:
    """An ACID directory with one small file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE).write_bytes(_CONTENT)


def insert(conn: sa.Connection, table: sa.Table, rows: Iterable[Row]) -> None:
    """Many rows, some thousands a statement."""
    for batch in _batches(rows):
        conn.execute(sa.insert(table), batch)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(rows)
    while batch := list(islice(rest, _ROWS_A_STATEMENT)):
        yield batch


def _transaction(txn_id: int, state: str, now: int) -> Row:
    times = {"TXN_STARTED": now, "TXN_LAST_HEARTBEAT": now}
    return {"TXN_ID": txn_id, "TXN_STATE": state, "TXN_USER": "u", "TXN_HOST": "h", "TXN_TYPE": 0} | times


def _partition(part_id: int, table_id: int, name: str) -> Row:
    times = {"CREATE_TIME": 0, "LAST_ACCESS_TIME": 0}
    return {"PART_ID": part_id, "PART_NAME": name, "SD_ID": part_id, "TBL_ID": table_id, "WRITE_ID": 2} | times


def _component(place: Place, write: int, at: datetime) -> Row:
    return {
        "CTC_TXNID": write,
        "CTC_DATABASE": place.table.database,
        "CTC_TABLE": place.table.table,
        "CTC_PARTITION": place.partition,
        "CTC_TIMESTAMP": at,
        "CTC_WRITEID": write,
        "CTC_UPDATE_DELETE": "N",
    }


def _write(write: int, table: TableName) -> Row:
    return {"T2W_TXNID": write, "T2W_DATABASE": table.database, "T2W_TABLE": table.table, "T2W_WRITEID": write}


def _done(compaction_id: int, place: Place, at: int) -> Row:
    return {
        "CC_ID": compaction_id,
        "CC_DATABASE": place.table.database,
        "CC_TABLE": place.table.table,
        "CC_PARTITION": place.partition,
        "CC_STATE": "s",
        "CC_TYPE": "a",
        "CC_ENQUEUE_TIME": at,
        "CC_START": at,
        "CC_END": at,
        "CC_HIGHEST_WRITE_ID": 1,
    }


def _queued(compaction_id: int, place: Place, now: int) -> Row:
    return {
        "CQ_ID": compaction_id,
        "CQ_DATABASE": place.table.database,
        "CQ_TABLE": place.table.table,
        "CQ_PARTITION": place.partition,
        "CQ_STATE": "i",
        "CQ_TYPE": "a",
        "CQ_ENQUEUE_TIME": now,
        "CQ_RETRY_RETENTION": 0,
    }
