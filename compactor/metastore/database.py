"""The one seam to the SQL database: connections, transactions, the clock, and what an error means.

Everything that differs between database products stands in this file: how a writing transaction begins, how the
clock is read, which errors mean "rolled back, try again" and which mean "the connection is gone". All other modules
of this package speak SQLAlchemy Core and call three things:

    @retried
    def some_operation(db: Database, …) -> …:
        with db.write() as conn:      # or db.read()
            now = db.now(conn)
            …

SQLite: writers are serialised by BEGIN IMMEDIATE, so `with_for_update()` (which SQLite ignores) adds nothing there;
WAL lets readers go on meanwhile; synchronous=FULL because a publication that was reported must survive a power cut.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from compactor.errors import (
    CommitOutcomeUnknown,
    ConfigError,
    DatabaseUnavailable,
    MetastoreError,
    NotInitialised,
)

P = ParamSpec("P")
R = TypeVar("R")

MARKER_TABLES = frozenset({"TXNS", "TXN_COMPONENTS", "COMPACTION_QUEUE", "COMPLETED_COMPACTIONS"})
"""Tables whose presence says that Hive's transaction tables are there."""

_ATTEMPTS = 5
_BEGIN_MODE = "begin_mode"
_ROLLED_BACK_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_EPOCH_MS = sa.text(
    "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)"
)


class RolledBack(DatabaseUnavailable):
    """The database undid the transaction to end a conflict with another one; the same call may succeed now."""

    default_hint = "the database is busy; try again, or look for a long transaction of another program"


class Database:
    """A metastore database: thread-safe, and one file may be used by several processes at once."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def connect(cls, url: str, *, busy_timeout_s: float = 30) -> Database:
        """Prepare access to the database at a SQLAlchemy URL; connections are opened on first use.

        busy_timeout_s: how long a transaction waits for the writer before it. ConfigError when the URL is not one of
        a supported database.
        """
        try:
            parsed = sa.make_url(url)
        except ArgumentError as error:
            raise ConfigError(
                "COMPACTOR_DATABASE_URL is no SQLAlchemy URL", hint="for example sqlite:////var/lib/compactor/hms.db"
            ) from error
        if parsed.get_backend_name() != "sqlite" or parsed.database in {None, "", ":memory:"}:
            raise ConfigError(
                f"database URL {parsed.render_as_string(hide_password=True)!r} is not supported",
                hint="use a SQLite file: sqlite:////absolute/path/metastore.db",
            )
        try:
            engine = sa.create_engine(
                parsed, connect_args={"timeout": busy_timeout_s}, pool_size=8, max_overflow=56, pool_timeout=60
            )
        except (NoSuchModuleError, ImportError) as error:
            raise ConfigError(f"no driver for {parsed.drivername!r}: {error}") from error
        event.listen(engine, "connect", functools.partial(_prepare_connection, busy_timeout_s=busy_timeout_s))
        event.listen(engine, "begin", _begin)
        return cls(engine)

    @property
    def engine(self) -> sa.Engine:
        """For inspection and DDL; transactions go through read() and write()."""
        return self._engine

    @property
    def file(self) -> Path:
        """SQLite's database file, absolute."""
        return Path(str(self._engine.url.database)).absolute()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One read-only transaction: everything inside sees the same snapshot."""
        with self._transaction("DEFERRED") as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One writing transaction: committed when the block ends, rolled back when it raises.

        RolledBack (see `retried`), DatabaseUnavailable, and CommitOutcomeUnknown when the commit itself broke off.
        """
        with self._transaction("IMMEDIATE") as conn:
            yield conn

    def now(self, conn: sa.Connection) -> int:
        """The database's clock in epoch milliseconds (Hive `TxnUtils.getEpochFn`)."""
        return int(conn.execute(_EPOCH_MS).scalar_one())

    def timestamp(self, conn: sa.Connection) -> datetime:
        """The database's clock as the naive UTC timestamp that CTC_TIMESTAMP holds."""
        return datetime.fromtimestamp(self.now(conn) / 1000, UTC).replace(tzinfo=None)

    def table_names(self) -> frozenset[str]:
        """Names of all tables in the database."""
        with self.read() as conn:
            return frozenset(sa.inspect(conn).get_table_names())

    def is_initialised(self) -> bool:
        """Are Hive's transaction tables there?"""
        return self.table_names() >= MARKER_TABLES

    def dispose(self) -> None:
        """Close all pooled connections."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[sa.Connection]:
        try:
            conn = self._engine.connect()
        except PoolTimeout as error:
            raise DatabaseUnavailable(
                f"no connection to the metastore database became free: {error}",
                hint="use fewer threads in one process, or look for one that keeps its connection",
            ) from error
        except DBAPIError as error:
            raise _meaning(error) from error
        with conn:
            try:
                conn.execution_options(**{_BEGIN_MODE: mode})
                transaction = conn.begin()
            except DBAPIError as error:
                raise _meaning(error) from error
            try:
                yield conn
            except DBAPIError as error:
                transaction.rollback()
                raise _meaning(error) from error
            except BaseException:
                transaction.rollback()
                raise
            self._commit(transaction)

    @staticmethod
    def _commit(transaction: sa.RootTransaction) -> None:
        try:
            transaction.commit()
        except IntegrityError:
            # a deferred constraint: the database said no, nothing is unknown
            transaction.rollback()
            raise
        except DBAPIError as error:
            if _was_rolled_back(error):
                transaction.rollback()
                raise RolledBack(f"the metastore database is busy: {error.orig}") from error
            raise CommitOutcomeUnknown(
                f"the database did not answer a commit: {error.orig}",
                hint="read the state back before deciding anything",
            ) from error


def retried(operation: Callable[Concatenate[Database, P], R]) -> Callable[Concatenate[Database, P], R]:
    """Run a database operation again, at most five times, when the database rolled it back to end a conflict.

    Only for functions whose whole effect is one transaction; the last RolledBack goes to the caller.
    """

    @functools.wraps(operation)
    def call(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        attempts = Retrying(
            retry=retry_if_exception_type(RolledBack),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=2),
            reraise=True,
        )
        return attempts(operation, db, *args, **kwargs)

    return call


def _prepare_connection(connection: sqlite3.Connection, _record: object, *, busy_timeout_s: float) -> None:
    # sqlite3 must not begin transactions by itself: _begin says which kind is meant
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(busy_timeout_s * 1000)}")
    if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin(conn: sa.Connection) -> None:
    conn.exec_driver_sql(f"BEGIN {conn.get_execution_options().get(_BEGIN_MODE, 'DEFERRED')}")


def _meaning(error: DBAPIError) -> MetastoreError:
    """What a driver's error means to us. Constraint violations and wrong SQL are bugs and pass unchanged."""
    if isinstance(error, IntegrityError | ProgrammingError | DataError):
        raise error
    if _was_rolled_back(error):
        return RolledBack(f"the metastore database is busy: {error.orig}")
    if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        if "no such table" in str(error.orig):
            return NotInitialised(f"the metastore database lacks a table of Hive's schema: {error.orig}")
        raise error
    return DatabaseUnavailable(f"the metastore database failed: {error.orig}")


def _was_rolled_back(error: DBAPIError) -> bool:
    # the extended codes (SQLITE_BUSY_SNAPSHOT, …) carry the primary one in their low byte
    return (getattr(error.orig, "sqlite_errorcode", 0) & 0xFF) in _ROLLED_BACK_CODES
