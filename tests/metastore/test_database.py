from __future__ import annotations

import threading
import time
from datetime import UTC
from pathlib import Path

import pytest
import sqlalchemy as sa

from compactor.errors import CommitOutcomeUnknown, ConfigError, DatabaseUnavailable, MetastoreError, NotInitialised
from compactor.metastore.database import ConnectionLost, Database, RetryPolicy, RolledBack, repeatable, retried
from compactor.metastore.schema import AUX_TABLE, COMPACTION_QUEUE, HIVE_LOCKS, MIN_HISTORY_WRITE_ID, WRITE_SET
from compactor.settings import RetrySettings
from tests.servers import Server


def _put(conn: sa.Connection, key: str) -> None:
    conn.execute(AUX_TABLE.insert().values(MT_KEY1=key, MT_KEY2=1))


def _keys(db: Database) -> list[str]:
    with db.read() as conn:
        return sorted(conn.scalars(sa.select(AUX_TABLE.c.MT_KEY1)))


def test_a_write_is_kept_when_its_block_ends_and_undone_when_it_raises(db: Database) -> None:
    with db.write() as conn:
        _put(conn, "kept")
    with pytest.raises(sa.exc.IntegrityError), db.write() as conn:
        conn.execute(AUX_TABLE.insert(), [{"MT_KEY1": key, "MT_KEY2": 1} for key in ("lost", "kept")])
    assert _keys(db) == ["kept"]


def test_a_reader_sees_one_snapshot_while_a_writer_commits(db: Database) -> None:
    with db.read() as reader:
        count = sa.select(sa.func.count()).select_from(AUX_TABLE)
        before = reader.scalar(count)
        with db.write() as conn:
            _put(conn, "new")
        assert reader.scalar(count) == before
    assert _keys(db) == ["new"]


def test_the_clock_is_the_databases_in_milliseconds(db: Database) -> None:
    earliest = int(time.time() * 1000) - 1
    with db.read() as conn:
        now, stamp = db.now(conn), db.timestamp(conn)
    assert earliest <= now <= int(time.time() * 1000)
    assert abs(stamp.replace(tzinfo=UTC).timestamp() * 1000 - now) < 1000


def test_commits_survive_a_power_cut_of_sqlite(tmp_path: Path) -> None:
    db = Database.connect(f"sqlite:///{tmp_path / 'metastore.db'}")
    with db.read() as conn:
        assert conn.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    db.dispose()


def test_foreign_keys_hold(db: Database) -> None:
    orphan = MIN_HISTORY_WRITE_ID.insert().values(MH_TXNID=99, MH_DATABASE="d", MH_TABLE="t", MH_WRITEID=1)
    with pytest.raises(sa.exc.IntegrityError), db.write() as conn:
        conn.execute(orphan)


def test_a_reader_cannot_write(db: Database) -> None:
    before = _keys(db)
    with pytest.raises(MetastoreError, match="forbids"), db.read() as conn:
        _put(conn, "new")
    assert _keys(db) == before


def test_a_writer_that_waits_too_long_is_told_that_the_database_is_busy(db: Database, database_url: str) -> None:
    impatient = Database.connect(database_url, busy_timeout_s=0)
    change = AUX_TABLE.update().values(MT_KEY2=2)
    with db.write() as conn:
        _put(conn, "held")
    with db.write() as conn:
        conn.execute(change)
        with pytest.raises(RolledBack), impatient.write() as other:
            other.execute(change)
    impatient.dispose()


def test_names_that_differ_in_case_or_accent_are_different(db: Database) -> None:
    names = ["p=a", "p=A", "p=\u00e4", "p=\u6771\u4eac"]
    with db.write() as conn:
        for name in names:
            row = {"WS_DATABASE": "d", "WS_TABLE": "t", "WS_PARTITION": name, "WS_OPERATION_TYPE": "u"}
            conn.execute(WRITE_SET.insert().values(WS_TXNID=1, WS_COMMIT_ID=1, **row))
    found = sa.select(WRITE_SET.c.WS_PARTITION)
    with db.read() as conn:
        for name in names:
            assert conn.scalars(found.where(WRITE_SET.c.WS_PARTITION == name)).all() == [name]


def test_an_operation_that_changed_nothing_is_run_again_until_it_works(db: Database) -> None:
    attempts = []

    @retried
    def operation(db: Database, key: str) -> str:
        with db.write() as conn:
            _put(conn, key)
            attempts.append(key)
            if len(attempts) == 1:
                raise RolledBack("deadlock")
            if len(attempts) == 2:
                raise ConnectionLost("cut")
        return key.upper()

    assert operation(db, "a") == "A"
    assert attempts == ["a", "a", "a"]
    assert _keys(db) == ["a"]


def test_an_operation_that_is_rolled_back_every_time_gives_up(db: Database) -> None:
    attempts = []

    @retried
    def operation(_db: Database) -> None:
        attempts.append(1)
        raise RolledBack("deadlock")

    told: list[str] = []
    patient = Database(db.engine, retry=RetryPolicy(attempts=4, longest_pause_s=0.01), on_retry=told.append)
    with pytest.raises(RolledBack):
        operation(patient)
    assert len(attempts) == 4
    assert told == ["operation"] * 3


def test_an_operator_may_name_further_errors_that_pass(db: Database) -> None:
    settings = RetrySettings(
        sql_errors=r"nothing like it,.*twice, perhaps.*,.*(no such column|Unknown column|does not exist).*"
    )
    patient = Database(db.engine, retry=RetryPolicy.of(settings))
    assert len(patient.retry.retryable) == 3
    with pytest.raises(RolledBack), patient.read() as conn:
        conn.exec_driver_sql("SELECT absent")
    with pytest.raises(sa.exc.DBAPIError), db.read() as conn:
        conn.exec_driver_sql("SELECT absent")


@pytest.mark.slow
def test_what_the_url_says_about_the_connection_is_heard(postgresql: Server) -> None:
    told = Database.connect(f"{postgresql.url('postgres')}?application_name=mine&options=-c%20statement_timeout%3D4321")
    with told.read() as conn:
        assert conn.exec_driver_sql("SHOW application_name").scalar() == "mine"
        assert conn.exec_driver_sql("SHOW statement_timeout").scalar() == "4321ms"
        assert conn.exec_driver_sql("SHOW lock_timeout").scalar() == "30s"
    told.dispose()


def test_a_commit_without_an_answer_is_repeated_only_where_that_is_safe(db: Database) -> None:
    attempts: list[int] = []

    def lose_an_answer(db: Database) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise CommitOutcomeUnknown("lost")
        return len(attempts)

    assert repeatable(lose_an_answer)(db) == 2
    attempts.clear()
    with pytest.raises(CommitOutcomeUnknown):
        retried(lose_an_answer)(db)


def test_no_other_error_is_run_again(db: Database) -> None:
    attempts = []

    @retried
    def operation(_db: Database) -> None:
        attempts.append(1)
        raise DatabaseUnavailable("gone")

    with pytest.raises(DatabaseUnavailable):
        operation(db)
    assert len(attempts) == 1


def test_threads_that_read_and_then_write_do_not_lose_an_update(db: Database) -> None:
    with db.write() as conn:
        conn.execute(AUX_TABLE.insert().values(MT_KEY1="counter", MT_KEY2=0))

    def add() -> None:
        for _ in range(10):
            with db.write() as conn:
                value = conn.execute(sa.select(AUX_TABLE.c.MT_KEY2).with_for_update()).scalar_one()
                conn.execute(AUX_TABLE.update().values(MT_KEY2=value + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with db.read() as conn:
        assert conn.scalar(sa.select(AUX_TABLE.c.MT_KEY2)) == 40


def test_an_empty_database_is_not_initialised(empty_db: Database) -> None:
    assert not empty_db.is_initialised()
    with pytest.raises(NotInitialised, match="init-db"), empty_db.read() as conn:
        conn.execute(sa.select(COMPACTION_QUEUE))


def test_an_initialised_database_says_so(db: Database) -> None:
    assert db.is_initialised()
    assert HIVE_LOCKS.name in db.table_names()


def test_a_database_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    missing = Database.connect(f"sqlite:///{tmp_path}/missing/metastore.db")
    with pytest.raises(DatabaseUnavailable, match="COMPACTOR_DATABASE_URL"), missing.read():
        pass


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "metastore.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(DatabaseUnavailable), Database.connect(f"sqlite:///{path}").read():
        pass


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "oracle://scott:tiger@h/d",
        "postgresql+psycopg2://scott:tiger@h/d",
        "mysql://scott:tiger@h",
        "not a url",
    ],
)
def test_an_unsupported_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Database.connect(url)
    assert "tiger" not in str(refusal.value)


def test_a_wrong_statement_is_a_bug_and_not_an_unavailable_database(db: Database) -> None:
    with pytest.raises((sa.exc.OperationalError, sa.exc.ProgrammingError)), db.read() as conn:
        conn.exec_driver_sql("SELEKT 1")
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_commit_that_breaks_off_has_an_unknown_outcome(db: Database) -> None:
    def lose_the_connection(conn: sa.Connection) -> None:
        _put(conn, "half-way")
        conn.connection.dbapi_connection.close()  # type: ignore[union-attr]

    with pytest.raises(CommitOutcomeUnknown, match="read the state back"), db.write() as conn:
        lose_the_connection(conn)
    assert _keys(db) == []


def test_a_reader_whose_connection_breaks_leaves_the_others_working(db: Database) -> None:
    def lose_the_connection(conn: sa.Connection) -> None:
        conn.connection.dbapi_connection.close()  # type: ignore[union-attr]
        conn.execute(sa.select(AUX_TABLE))

    with pytest.raises(ConnectionLost), db.read() as conn:
        lose_the_connection(conn)
    assert _keys(db) == []


def test_a_pool_without_a_free_connection_is_an_unavailable_database(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'small.db'}", pool_size=1, max_overflow=0, pool_timeout=0.01)
    small = Database(engine)
    with small.read(), pytest.raises(DatabaseUnavailable, match="became free"), small.read():
        pass
    small.dispose()
