"""The one seam to the SQL database: connections, transactions, the clock, and what an error means.

What differs between database products stands in `dialects.py`. All other modules of this package speak SQLAlchemy
Core and call three things:

    @retried
    def some_operation(db: Database, …) -> …:
        with db.write() as conn:      # or db.read()
            now = db.now(conn)
            …

read() sees one snapshot. write() is READ COMMITTED, as Hive's transactions are, so a row that a decision depends on
is locked (`with_for_update()`) or changed by a guarded UPDATE whose row count is checked.

What an error means: RolledBack and ConnectionLost, nothing was changed, and `retried` runs the function again;
DatabaseUnavailable, nothing was changed; CommitOutcomeUnknown, the connection broke in the commit itself, and what
became of it has to be read back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NoSuchModuleError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from compactor.errors import (
    CommitOutcomeUnknown,
    ConfigError,
    DatabaseUnavailable,
    MetastoreError,
    NotInitialised,
)
from compactor.metastore.dialects import dialect_of, parse_url
from compactor.settings import RetrySettings, split_patterns

P = ParamSpec("P")
R = TypeVar("R")

MARKER_TABLES = frozenset({"TXNS", "TXN_COMPONENTS", "COMPACTION_QUEUE", "COMPLETED_COMPACTIONS"})
"""Tables whose presence says that Hive's transaction tables are there."""

_INSTALLATION = "COMPACTOR_INSTALLATION"
_BEGIN_ATTEMPTS = 3
_REQUIRED = frozenset({"options", "charset"})
_RECYCLE_S = 3600
"""Connections that firewalls and servers may have given up long ago are not even tried."""
_WRITING = "writing"


class RolledBack(DatabaseUnavailable):
    """The database undid the transaction to end a conflict with another one; the same call may succeed now."""

    default_hint = "the database is busy; try again, or look for a long transaction of another program"


class ConnectionLost(DatabaseUnavailable):
    """The connection broke before the commit was sent, so the database undid the transaction."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an operation is tried that is known to have changed nothing, see the [retry] settings.

    attempts: with the first one. longest_pause_s: pauses grow from 50 ms up to here. retryable: further errors of the
    database that pass by themselves, as regular expressions for their whole message.
    """

    attempts: int = 10
    longest_pause_s: float = 2.0
    retryable: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, settings: RetrySettings) -> RetryPolicy:
        return cls(
            attempts=settings.attempts,
            longest_pause_s=settings.longest_pause_s,
            retryable=split_patterns(settings.sql_errors),
        )


def _unobserved(_operation: str) -> None:
    """Nobody counts the retries."""


class Database:
    """A metastore database: thread-safe, and used by any number of processes at once."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        apart: sa.Engine | None = None,
        retry: RetryPolicy | None = None,
        on_retry: Callable[[str], None] = _unobserved,
    ) -> None:
        """apart: where `apart` takes its connections from, so that they are never missing elsewhere."""
        self.retry = retry or RetryPolicy()
        self.on_retry = on_retry
        self._engine = engine
        self._apart = apart or engine
        self._dialect = dialect_of(engine)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        busy_timeout_s: float = 30,
        retry: RetryPolicy | None = None,
        on_retry: Callable[[str], None] = _unobserved,
    ) -> Database:
        """Prepare access to the database at a SQLAlchemy URL; connections are opened on first use.

        busy_timeout_s: how long a statement waits for a lock of another transaction. on_retry: told the name of an
        operation before each further attempt. ConfigError when the URL is not one of a supported database.
        """
        parsed = parse_url(url)
        engine = _engine(parsed, busy_timeout_s=busy_timeout_s, pool_size=8, max_overflow=56)
        apart = _engine(parsed, busy_timeout_s=busy_timeout_s, pool_size=3, max_overflow=5)
        return cls(engine, apart=apart, retry=retry, on_retry=on_retry)

    @property
    def engine(self) -> sa.Engine:
        """For inspection and DDL; transactions go through read() and write()."""
        return self._engine

    @property
    def file(self) -> Path | None:
        """SQLite's database file, absolute; None for a database server."""
        url = self._engine.url
        return Path(str(url.database)).absolute() if url.get_backend_name() == "sqlite" else None

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One read-only transaction: everything inside sees the same snapshot."""
        with self._transaction(writing=False) as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One writing transaction: committed when the block ends, rolled back when it raises.

        RolledBack (see `retried`), ConnectionLost, DatabaseUnavailable, and CommitOutcomeUnknown when the commit itself
        broke off.
        """
        with self._transaction(writing=True) as conn:
            yield conn

    @contextmanager
    def apart(self) -> Iterator[sa.Connection]:
        """A transaction that may stay open for long, from connections of its own: for locks that outlive a statement.

        It is rolled back at the end of the block, whatever ends it, unless the block itself committed.
        """
        conn, _ = self._begun(self._apart, writing=True)
        with conn:
            try:
                for statement in self._dialect.stay_open:
                    conn.exec_driver_sql(statement)
                yield conn
            except DBAPIError as error:
                raise self._meaning(error) from error
            finally:
                _roll_back(conn)

    def now(self, conn: sa.Connection) -> int:
        """The database's clock in epoch milliseconds (Hive `TxnUtils.getEpochFn`)."""
        return int(conn.execute(self._dialect.epoch_ms).scalar_one())

    def timestamp(self, conn: sa.Connection) -> datetime:
        """The database's clock as CTC_TIMESTAMP holds it: naive, in the database session's time zone."""
        moment: datetime = conn.execute(self._dialect.timestamp).scalar_one()
        return moment

    def table_names(self) -> frozenset[str]:
        """Names of all tables in the database."""
        with self.read() as conn:
            return frozenset(sa.inspect(conn).get_table_names())

    def is_initialised(self) -> bool:
        """Are Hive's transaction tables there, and complete when they are ours?"""
        with self.read() as conn:
            present = set(sa.inspect(conn).get_table_names())
            if not present >= MARKER_TABLES:
                return False
            # init-db fills this one last
            made = sa.select(sa.literal(1)).select_from(sa.table(_INSTALLATION))
            return _INSTALLATION not in present or conn.scalar(made.limit(1)) is not None

    def dispose(self) -> None:
        """Close all pooled connections."""
        self._engine.dispose()
        self._apart.dispose()

    @contextmanager
    def _transaction(self, *, writing: bool) -> Iterator[sa.Connection]:
        conn, transaction = self._begun(self._engine, writing=writing)
        with conn:
            try:
                yield conn
            except DBAPIError as error:
                _roll_back(conn)
                raise self._meaning(error) from error
            except BaseException:
                _roll_back(conn)
                raise
            self._commit(conn, transaction)

    def _begun(self, engine: sa.Engine, *, writing: bool) -> tuple[sa.Connection, sa.RootTransaction]:
        """A transaction on a connection that lives; one that died in the pool is noticed here, where it does no harm."""
        for attempt in range(1, _BEGIN_ATTEMPTS + 1):
            try:
                conn = engine.connect()
            except PoolTimeout as error:
                raise DatabaseUnavailable(
                    f"no connection to the metastore database became free: {error}",
                    hint="use fewer threads in one process, or look for one that keeps its connection",
                ) from error
            except DBAPIError as error:
                raise self._meaning(error) from error
            try:
                conn.execution_options(**{_WRITING: writing})
                return conn, conn.begin()
            except DBAPIError as error:
                conn.close()
                if not error.connection_invalidated or attempt == _BEGIN_ATTEMPTS:
                    raise self._meaning(error) from error
        raise AssertionError("the last attempt returns or raises")

    def _commit(self, conn: sa.Connection, transaction: sa.RootTransaction) -> None:
        try:
            transaction.commit()
        except IntegrityError:
            # a deferred constraint: the database said no, nothing is unknown
            _roll_back(conn)
            raise
        except DBAPIError as error:
            if self._dialect.was_rolled_back(error):
                _roll_back(conn)
                raise RolledBack(f"the metastore database is busy: {error.orig}") from error
            raise CommitOutcomeUnknown(
                f"the database did not answer a commit: {error.orig}",
                hint="read the state back before deciding anything",
            ) from error

    def _is_retryable(self, error: DBAPIError) -> bool:
        """Does the operator know better? The form that Hive's `SqlRetryHandler.isRetryable` compares."""
        message = f"{error.orig} (SQLState={self._dialect.code(error)}, ErrorCode={self._dialect.code(error)})"
        return any(pattern.fullmatch(message) for pattern in self.retry.retryable)

    def _meaning(self, error: DBAPIError) -> MetastoreError:
        """What a driver's error means to us. Constraint violations and wrong SQL are bugs and pass unchanged."""
        if self._dialect.was_rolled_back(error) or self._is_retryable(error):
            return RolledBack(f"the metastore database is busy: {error.orig}")
        if self._dialect.lacks_table(error):
            return NotInitialised(f"the metastore database lacks a table of Hive's schema: {error.orig}")
        if self._dialect.forbids(error):
            return MetastoreError(
                f"the metastore database forbids it: {error.orig}",
                hint="give the database user SELECT, INSERT, UPDATE and DELETE on the metastore's tables",
            )
        if error.connection_invalidated:
            return ConnectionLost(f"the connection to the metastore database broke: {error.orig}")
        if isinstance(error, IntegrityError | ProgrammingError | DataError) or self._dialect.is_wrong_sql(error):
            raise error
        return DatabaseUnavailable(f"the metastore database failed: {error.orig}")


def retried(operation: Callable[Concatenate[Database, P], R]) -> Callable[Concatenate[Database, P], R]:
    """Run a database operation again when its transaction is known to have changed nothing, as `RetryPolicy` says.

    That is after RolledBack and ConnectionLost. Only for functions whose whole effect is one transaction; the last
    error goes to the caller. CommitOutcomeUnknown goes there at once.
    """
    return _again_after(operation, RolledBack, ConnectionLost)


def repeatable(operation: Callable[Concatenate[Database, P], R]) -> Callable[Concatenate[Database, P], R]:
    """`retried`, and also after CommitOutcomeUnknown: the second run finds what the first one did and says the same."""
    return _again_after(operation, RolledBack, ConnectionLost, CommitOutcomeUnknown)


def _again_after(
    operation: Callable[Concatenate[Database, P], R], *errors: type[MetastoreError]
) -> Callable[Concatenate[Database, P], R]:
    @functools.wraps(operation)
    def call(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def tell(_state: RetryCallState) -> None:
            db.on_retry(operation.__name__)

        attempts = Retrying(
            retry=retry_if_exception_type(errors),
            stop=stop_after_attempt(db.retry.attempts),
            wait=wait_random_exponential(multiplier=0.05, max=db.retry.longest_pause_s),
            before_sleep=tell,
            reraise=True,
        )
        return attempts(operation, db, *args, **kwargs)

    return call


def _engine(url: sa.URL, *, busy_timeout_s: float, pool_size: int, max_overflow: int) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=60,
            pool_recycle=_RECYCLE_S,
            # every transaction is ended where it began; another ROLLBACK would cost a round trip
            pool_reset_on_return=None,
        )
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigError(f"no driver for {url.drivername!r}: {error}") from error
    dialect = dialect_of(engine)

    @event.listens_for(engine, "do_connect")
    def _(_dialect: object, _record: object, _args: object, arguments: dict[str, object]) -> None:
        ours = dialect.connect_args(url, lock_timeout_s=busy_timeout_s)
        # what the operator wrote into the URL wins, unless we cannot work with it
        arguments.update({name: ours[name] for name in ours if name in _REQUIRED or name not in url.query})

    @event.listens_for(engine, "connect")
    def _(connection: object, _record: object) -> None:
        dialect.prepare(connection, lock_timeout_s=busy_timeout_s)

    event.listen(engine, "begin", _begin)
    return engine


def _begin(conn: sa.Connection) -> None:
    for statement in dialect_of(conn).begin(writing=bool(conn.get_execution_options().get(_WRITING))):
        conn.exec_driver_sql(statement)


def _roll_back(conn: sa.Connection) -> None:
    """Undo, and never hide the error that led here: a connection that cannot even do that is thrown away."""
    try:
        conn.rollback()
    except DBAPIError as error:
        conn.invalidate(error)
