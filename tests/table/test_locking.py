from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc

from compactor.errors import AlreadyExists, LockNotAcquired, TooManyTransactions, UsageError
from compactor.metastore import txns
from compactor.metastore.catalog import Column, TableName
from compactor.metastore.catalog_write import create_table as create_ordinary
from compactor.metastore.database import Database
from compactor.metastore.locks import LockState, LockType, show_locks
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import next_write_id, seed_write_id, valid_write_ids
from compactor.settings import LockSettings, TxnSettings
from compactor.storage.filesystem import open_location
from compactor.table.convert import adopt_directories, make_transactional
from compactor.table.ddl import create_table
from compactor.table.locking import Statement, lock_type, locked_ordinary_table
from compactor.table.reader import TableReader, open_snapshot
from compactor.table.writer import TableWriter
from tests.table.conftest import table_writer

R, W, X, E = LockType.SHARED_READ, LockType.SHARED_WRITE, LockType.EXCL_WRITE, LockType.EXCLUSIVE
PLAIN = TableName(database="default", table="plain")


@pytest.fixture
def flat(db: Database, name: TableName) -> TableName:
    create_table(db, name, [("id", "int"), ("v", "string")])
    return name


@pytest.fixture
def plain(db: Database, tmp_path: Path) -> Path:
    """An ordinary ORC table without files; its directory."""
    table = create_ordinary(db, PLAIN, columns=[Column(name="id", type="int"), Column(name="v", type="string")])
    root = tmp_path / "warehouse" / "plain"
    assert table.location == f"file:{root}"
    root.mkdir(parents=True)
    return root


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32()), "v": [f"v{i}" for i in ids]})


def read(db: Database, name: TableName) -> list[int]:
    return sorted(TableReader(db, open_location, name, user="b", host="h").read()["id"].to_pylist())


@pytest.mark.parametrize(
    ("xlock_write", "xlock_iow", "insert", "overwrite", "change"),
    [(True, True, R, E, X), (True, False, R, X, X), (False, True, W, X, W), (False, False, W, X, W)],
)
def test_statements_lock_transactional_tables_as_the_manual_says(
    xlock_write: bool, xlock_iow: bool, insert: LockType, overwrite: LockType, change: LockType
) -> None:
    txn = TxnSettings(xlock_write=xlock_write, xlock_iow=xlock_iow)
    assert [lock_type(statement, txn) for statement in Statement] == [insert, overwrite, change]


@pytest.mark.parametrize(("strict", "insert"), [(True, E), (False, R)])
def test_strict_locking_is_about_inserts_into_ordinary_tables(strict: bool, insert: LockType) -> None:
    txn = TxnSettings(strict_locking=strict)
    assert lock_type(Statement.INSERT, txn, is_transactional=False) is insert
    assert lock_type(Statement.OVERWRITE, txn, is_transactional=False) is E
    assert lock_type(Statement.INSERT, txn) is R
    with pytest.raises(UsageError):
        lock_type(Statement.CHANGE, txn, is_transactional=False)


@pytest.mark.parametrize("xlock_write", [True, False])
def test_a_writer_takes_the_lock_of_its_settings(db: Database, flat: TableName, xlock_write: bool) -> None:
    writer = table_writer(db, flat, xlock_write=xlock_write)
    writer.insert(rows(1))
    with writer.transaction() as txn:
        txn.update(pc.field("id") == 1, {"v": "new"})
        assert [lock.type for lock in show_locks(db)] == [X if xlock_write else W]


def test_inserts_wait_for_an_overwrite_where_writes_are_shared(db: Database, flat: TableName) -> None:
    writer = table_writer(db, flat, xlock_write=False)
    with writer.transaction() as txn:
        txn.insert_overwrite(rows(1))
        with pytest.raises(LockNotAcquired):
            writer.insert(rows(2))


def test_writers_and_readers_are_refused_when_too_many_transactions_are_open(db: Database, flat: TableName) -> None:
    txns.open_transactions(db, count=5, user="u", host="h")
    full = TableWriter(db, open_location, flat, user="ada", host="h", txn=TxnSettings(max_open=5))
    with pytest.raises(TooManyTransactions):
        full.insert(rows(1))
    with (
        pytest.raises(TooManyTransactions),
        open_snapshot(db, [flat], user="ada", host="h", rules=full.writer.rules),
    ):
        pass


def test_an_ordinary_table_is_locked_while_somebody_writes_its_files(db: Database, plain: Path) -> None:
    writer = table_writer(db, PLAIN).writer
    with locked_ordinary_table(writer, PLAIN, Statement.INSERT) as beat:
        (held,) = show_locks(db)
        assert (held.table, held.type, held.state) == ("plain", E, LockState.ACQUIRED)
        with pytest.raises(LockNotAcquired), locked_ordinary_table(writer, PLAIN, Statement.INSERT):
            pass
        beat()
    assert show_locks(db) == []
    assert txns.transaction_state(db, held.txn_id) is txns.TxnState.COMMITTED


def test_without_strict_locking_several_insert_into_an_ordinary_table_at_once(db: Database, plain: Path) -> None:
    lenient = TableWriter(
        db,
        open_location,
        PLAIN,
        user="ada",
        host="h",
        txn=TxnSettings(strict_locking=False),
        lock=LockSettings(retries=0),
    ).writer
    with (
        locked_ordinary_table(lenient, PLAIN, Statement.INSERT),
        locked_ordinary_table(lenient, PLAIN, Statement.INSERT),
    ):
        assert [lock.type for lock in show_locks(db)] == [R, R]
        with pytest.raises(LockNotAcquired), locked_ordinary_table(lenient, PLAIN, Statement.OVERWRITE):
            pass


def test_an_error_while_the_lock_is_held_releases_it(db: Database, plain: Path) -> None:
    writer = table_writer(db, PLAIN).writer
    with pytest.raises(KeyError), locked_ordinary_table(writer, PLAIN, Statement.INSERT):
        raise KeyError
    assert show_locks(db) == []
    assert [t.state for t in txns.show_transactions(db)] == [txns.TxnState.ABORTED]


def test_a_transactional_table_is_not_locked_by_hand(db: Database, flat: TableName) -> None:
    writer = table_writer(db, flat).writer
    with pytest.raises(UsageError, match="is transactional"), locked_ordinary_table(writer, flat, Statement.INSERT):
        pass


def test_a_converted_table_keeps_its_rows_and_begins_after_them(db: Database, plain: Path) -> None:
    orc.write_table(rows(1, 2), plain / "000000_0")
    writer = table_writer(db, PLAIN)
    assert make_transactional(writer.writer, PLAIN).is_full_acid
    assert read(db, PLAIN) == [1, 2]
    writer.insert(rows(3))
    assert (plain / "delta_10000001_10000001_0000").is_dir()
    writer.delete(pc.field("id") == 1)
    assert read(db, PLAIN) == [2, 3]
    assert valid_write_ids(db, PLAIN, valid_txn_list(db)).high_water == 10_000_002


def test_an_empty_table_begins_at_one(db: Database, plain: Path) -> None:
    writer = table_writer(db, PLAIN)
    assert make_transactional(writer.writer, PLAIN, insert_only=True).is_insert_only
    with db.read() as conn:
        assert next_write_id(conn, PLAIN) == 1


def test_a_conversion_that_broke_off_is_ended_by_the_next_one(db: Database, plain: Path) -> None:
    orc.write_table(rows(1), plain / "000000_0")
    seed_write_id(db, PLAIN)
    assert make_transactional(table_writer(db, PLAIN).writer, PLAIN).is_full_acid
    with db.read() as conn:
        assert next_write_id(conn, PLAIN) == 10_000_001


@pytest.mark.parametrize("file", ["part-00000.orc", "delta_0000001_0000001/bucket_00000", "notes.txt"])
def test_a_table_with_other_files_is_not_converted(db: Database, plain: Path, file: str) -> None:
    (plain / file).parent.mkdir(exist_ok=True)
    orc.write_table(rows(1), plain / file)
    with pytest.raises(UsageError, match="no file that Hive would have written"):
        make_transactional(table_writer(db, PLAIN).writer, PLAIN)
    with db.read() as conn:
        assert next_write_id(conn, PLAIN) == 1
    assert show_locks(db) == []


def test_a_table_is_not_converted_twice(db: Database, flat: TableName) -> None:
    with pytest.raises(UsageError, match="is transactional"):
        make_transactional(table_writer(db, flat).writer, flat)


def test_directories_of_another_metastore_are_read_and_written_on(
    db: Database, flat: TableName, tmp_path: Path
) -> None:
    writer = table_writer(db, flat)
    writer.insert(rows(1))
    elsewhere = TableName(database="default", table="copied")
    create_table(db, elsewhere, [("id", "int"), ("v", "string")])
    root = tmp_path / "warehouse"
    (root / "t" / "delta_0000001_0000001_0000").rename(root / "copied" / "delta_0000001_0000007_v0005000")
    assert read(db, elsewhere) == [], "an output of a transaction that is yet to come"
    copied = table_writer(db, elsewhere)
    adopt_directories(copied.writer, elsewhere)
    assert read(db, elsewhere) == [1]
    copied.insert(rows(2))
    assert (root / "copied" / "delta_0000008_0000008_0000").is_dir()
    assert read(db, elsewhere) == [1, 2]
    with pytest.raises(AlreadyExists):
        adopt_directories(copied.writer, elsewhere)


def test_only_transactional_tables_have_directories_to_adopt(db: Database, plain: Path) -> None:
    with pytest.raises(UsageError, match="not transactional"):
        adopt_directories(table_writer(db, PLAIN).writer, PLAIN)
