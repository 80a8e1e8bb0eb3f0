from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.acid.directory import Snapshot, directory_state
from compactor.acid.layout import encode_bucket
from compactor.acid.records import Event, Operation, RowId, SyntheticIds, merge
from compactor.metastore.catalog import TableName, get_table, list_partitions
from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids
from compactor.orc.reader import OrcSource
from compactor.settings import LockSettings, TxnSettings
from compactor.storage.filesystem import open_location
from compactor.table.writer import TableWriter

Oracle = Callable[[TableName], list[tuple[Any, ...]]]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database.connect(f"sqlite:///{tmp_path / 'metastore.db'}")
    init_db(database, warehouse=f"file:{tmp_path}/warehouse")
    yield database
    database.dispose()


@pytest.fixture
def name() -> TableName:
    return TableName(database="default", table="t")


@pytest.fixture
def writer(db: Database, name: TableName) -> TableWriter:
    return table_writer(db, name)


def table_writer(db: Database, name: TableName, *, xlock_write: bool = True) -> TableWriter:
    """A writer that waits for a lock twice, without a pause."""
    return TableWriter(
        db,
        open_location,
        name,
        user="ada",
        host="h1",
        sleep=lambda _: None,
        txn=TxnSettings(xlock_write=xlock_write),
        lock=LockSettings(retries=1),
    )


@pytest.fixture
def oracle(db: Database) -> Oracle:
    """The rows of a full-ACID table now: every event of every current file through the plain-Python merge.

    A row is (partition name, row id, values…); sorted.
    """

    def read(table: TableName) -> list[tuple[Any, ...]]:
        found = get_table(db, table)
        places = [(p.name, p.location) for p in list_partitions(db, table)] or [("", found.location or "")]
        txns = valid_txn_list(db)
        snapshot = Snapshot(txns=txns, write_ids=valid_write_ids(db, table, txns))
        return sorted(
            (name, row_id, *row)
            for name, location in places
            for row_id, row in merge(events(location, snapshot), snapshot.write_ids)
        )

    return read


def events(location: str, snapshot: Snapshot) -> Iterator[Event]:
    fs, root = open_location(location)
    listing = fs.listing(root)
    state = directory_state(listing, snapshot)
    directories = [d.name for d in (state.base, *state.deltas) if d is not None]
    for file in (f for d in directories for f in listing.data_files(d)):
        plain = file.name.startswith("0")
        synthetic = SyntheticIds(write_id=1, bucket=encode_bucket(0), first_row_id=0) if plain else None
        with OrcSource(fs, f"{root}/{file.path}", synthetic=synthetic) as source:
            for stripe in range(source.stripes):
                keys = source.keys(stripe)
                rows = source.rows(stripe, source.tail.row_type).to_pylist()
                for at in range(len(keys)):
                    row = rows[at]
                    yield Event(
                        operation=Operation(int(keys.operation[at])),
                        row_id=RowId(*(int(k[at]) for k in (keys.write_id, keys.bucket, keys.row_id))),
                        current_write_id=int(keys.current_write_id[at]),
                        row=None if row is None else tuple(row.values()),
                    )
