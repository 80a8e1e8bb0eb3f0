"""What differs between SQLite, PostgreSQL and MariaDB/MySQL; nothing outside this file and `database.py` asks which it is.

|                  | SQLite                      | PostgreSQL                     | MariaDB, MySQL                     |
|------------------|-----------------------------|--------------------------------|------------------------------------|
| read             | BEGIN DEFERRED on WAL       | REPEATABLE READ, READ ONLY     | REPEATABLE READ, READ ONLY         |
| write            | BEGIN IMMEDIATE: one writer | READ COMMITTED and row locks   | READ COMMITTED and row locks       |
| transaction lock | the writer's                | LOCK TABLE, as Hive takes it   | the row's, shared or FOR UPDATE    |
| clock            | strftime                    | clock_timestamp()              | now(3)                             |

Sources: Hive `DatabaseProduct` (lockTable, getMillisAfterEpochFn, isDeadlock, isTableNotExistsError); the servers'
own lists of error codes.
"""

from __future__ import annotations

import math
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from compactor.errors import ConfigError, DatabaseUnavailable

_CONNECT_TIMEOUT_S = 10
_SILENT_SERVER_S = 600
"""A server that says nothing for so long is gone; longer than any statement of ours takes."""


class Dialect(ABC):
    """One database product."""

    drivername: ClassVar[str]
    """SQLAlchemy's name of product and driver."""
    epoch_ms: ClassVar[sa.Executable]
    """The server's clock in epoch milliseconds, cut off (Hive `getMillisAfterEpochFn`)."""
    timestamp: ClassVar[sa.Executable]
    """The server's clock as CTC_TIMESTAMP's default holds it, without a time zone."""
    stay_open: ClassVar[tuple[str, ...]] = ()
    """Statements after which the server lets the transaction wait for its next statement as long as it takes."""

    @abstractmethod
    def connect_args(self, url: sa.URL, *, lock_timeout_s: float) -> Mapping[str, Any]:
        """Arguments of the driver's connect(); lock_timeout_s: how long a statement waits for a lock."""

    @abstractmethod
    def prepare(self, connection: Any, *, lock_timeout_s: float) -> None:
        """Make a new driver connection ours: it must begin no transaction by itself."""

    @abstractmethod
    def begin(self, *, writing: bool) -> tuple[str, ...]:
        """The statements that begin a transaction."""

    @abstractmethod
    def lock_table(self, table: sa.Table, *, shared: bool) -> sa.Executable:
        """Hive's lock on a one-row table; waits, and holds until the transaction ends."""

    def follow_ids(self, table: sa.Table, column: str) -> sa.Executable | None:
        """What lets generated ids go on after one that was inserted; None where they do so by themselves."""
        return None

    def index_names(self, conn: sa.Connection, table: sa.Table) -> set[str]:
        """The indexes that a table has in the database."""
        return {str(index["name"]) for index in sa.inspect(conn).get_indexes(table.name)}

    @abstractmethod
    def alone(self, conn: sa.Connection, what: str) -> AbstractContextManager[None]:
        """One at a time, whoever does `what` on the same database; waits its turn."""

    @abstractmethod
    def code(self, error: DBAPIError) -> str:
        """The server's own code of an error: SQLSTATE or error number."""

    @abstractmethod
    def was_rolled_back(self, error: DBAPIError) -> bool:
        """Did the server give up the statement to end a conflict, so that the whole transaction may run again?"""

    @abstractmethod
    def lacks_table(self, error: DBAPIError) -> bool:
        """Is it about a table that does not exist?"""

    @abstractmethod
    def forbids(self, error: DBAPIError) -> bool:
        """Is it about a right that the database user lacks?"""

    def is_wrong_sql(self, error: DBAPIError) -> bool:
        """Is it a bug of ours, though the driver calls it an operational error?"""
        return False


class Sqlite(Dialect):
    """Writers are serialised, so `with_for_update()` (which SQLite ignores) would add nothing; WAL lets readers go on.

    synchronous=FULL because a publication that was reported must survive a power cut.
    """

    drivername = "sqlite"
    epoch_ms = sa.text(
        "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)"
    )
    timestamp = sa.text("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')").columns(sa.column("now", sa.DateTime))
    _ROLLED_BACK = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

    def connect_args(self, url: sa.URL, *, lock_timeout_s: float) -> Mapping[str, Any]:
        return {"timeout": lock_timeout_s}

    def prepare(self, connection: Any, *, lock_timeout_s: float) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}")
        if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    def begin(self, *, writing: bool) -> tuple[str, ...]:
        if writing:
            return ("PRAGMA query_only = OFF", "BEGIN IMMEDIATE")
        return ("PRAGMA query_only = ON", "BEGIN DEFERRED")

    def lock_table(self, table: sa.Table, *, shared: bool) -> sa.Executable:
        return sa.select(*table.columns)

    def alone(self, conn: sa.Connection, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def code(self, error: DBAPIError) -> str:
        return str(_sqlite_code(error))

    def was_rolled_back(self, error: DBAPIError) -> bool:
        # the extended codes (SQLITE_BUSY_SNAPSHOT, …) carry the primary one in their low byte
        return (_sqlite_code(error) & 0xFF) in self._ROLLED_BACK

    def lacks_table(self, error: DBAPIError) -> bool:
        return _sqlite_code(error) == sqlite3.SQLITE_ERROR and "no such table" in str(error.orig)

    def forbids(self, error: DBAPIError) -> bool:
        return (_sqlite_code(error) & 0xFF) == sqlite3.SQLITE_READONLY

    def is_wrong_sql(self, error: DBAPIError) -> bool:
        return _sqlite_code(error) == sqlite3.SQLITE_ERROR


class Postgresql(Dialect):
    """PostgreSQL by psycopg 3. Names are quoted and upper case, as Hive 4's script makes them."""

    drivername = "postgresql+psycopg"
    # now() would be the time at which the transaction began, before it waited for its locks
    epoch_ms = sa.text("SELECT CAST(floor(extract(epoch from clock_timestamp()) * 1000) AS bigint)")
    timestamp = sa.text("SELECT CAST(clock_timestamp() AS timestamp)")
    stay_open = ("SET LOCAL idle_in_transaction_session_timeout = 0",)
    _ROLLED_BACK = frozenset({"40001", "40P01", "55P03"})
    """serialization_failure, deadlock_detected, lock_not_available (also lock_timeout)"""

    def connect_args(self, url: sa.URL, *, lock_timeout_s: float) -> Mapping[str, Any]:
        # 0 would mean for ever
        lock_timeout = f"-c lock_timeout={max(1, int(lock_timeout_s * 1000))}"
        given = url.query.get("options", "")
        return {
            "options": f"{given if isinstance(given, str) else ' '.join(given)} {lock_timeout}".strip(),
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "application_name": "hive-compactor",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
        }

    def prepare(self, connection: Any, *, lock_timeout_s: float) -> None:
        connection.autocommit = True

    def begin(self, *, writing: bool) -> tuple[str, ...]:
        mode = "ISOLATION LEVEL READ COMMITTED, READ WRITE" if writing else "ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        return (f"BEGIN {mode}",)

    def lock_table(self, table: sa.Table, *, shared: bool) -> sa.Executable:
        # a row lock would not keep Hive out: SHARE and EXCLUSIVE are locks on the table
        return sa.text(f'LOCK TABLE "{table.name}" IN {"SHARE" if shared else "EXCLUSIVE"} MODE')

    def follow_ids(self, table: sa.Table, column: str) -> sa.Executable | None:
        # Hive's column is a bigserial and ours an identity: both have a sequence
        sequence = sa.func.pg_get_serial_sequence(f'"{table.name}"', column)
        return sa.select(sa.func.setval(sequence, sa.select(sa.func.max(table.c[column])).scalar_subquery()))

    def alone(self, conn: sa.Connection, what: str) -> AbstractContextManager[None]:
        # lock_timeout bounds it, and the end of the transaction ends it
        conn.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))"), {"what": what})
        return nullcontext()

    def code(self, error: DBAPIError) -> str:
        return _sqlstate(error)

    def was_rolled_back(self, error: DBAPIError) -> bool:
        return _sqlstate(error) in self._ROLLED_BACK

    def lacks_table(self, error: DBAPIError) -> bool:
        return _sqlstate(error) == "42P01"

    def forbids(self, error: DBAPIError) -> bool:
        return _sqlstate(error) in {"42501", "25006"}


class Mysql(Dialect):
    """MariaDB and MySQL by PyMySQL."""

    drivername = "mysql+pymysql"
    epoch_ms = sa.text("SELECT CAST(floor(unix_timestamp(now(3)) * 1000) AS signed)")
    # without fractions: the column would round them up, into the future
    timestamp = sa.text("SELECT now()")
    stay_open = ("SET SESSION wait_timeout = 604800",)
    _ROLLED_BACK = frozenset({1213, 1205, 3572, 1020})
    """ER_LOCK_DEADLOCK, ER_LOCK_WAIT_TIMEOUT, ER_LOCK_NOWAIT, ER_CHECKREAD (MariaDB's snapshot isolation)"""
    _FORBIDDEN = frozenset({1142, 1143, 1290, 1792, 1836})
    """No right on the table or column; the server or the transaction is read-only."""

    def connect_args(self, url: sa.URL, *, lock_timeout_s: float) -> Mapping[str, Any]:
        return {
            "charset": "utf8mb4",
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _SILENT_SERVER_S,
            "write_timeout": _SILENT_SERVER_S,
        }

    def prepare(self, connection: Any, *, lock_timeout_s: float) -> None:
        # The server counts whole seconds, and MySQL at least one
        wait = max(1, math.ceil(lock_timeout_s))
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}, time_zone = '+00:00',"
                # TXN_ID 0 is a row of Hive's; a value that does not fit is an error and never cut off
                " sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO'"
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def begin(self, *, writing: bool) -> tuple[str, ...]:
        if writing:
            return ("START TRANSACTION",)
        # WITH CONSISTENT SNAPSHOT: the snapshot is of now and not of the first look at a table
        return (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        )

    def lock_table(self, table: sa.Table, *, shared: bool) -> sa.Executable:
        return sa.select(*table.columns).with_for_update(read=shared)

    def index_names(self, conn: sa.Connection, table: sa.Table) -> set[str]:
        # SQLAlchemy takes a key of columns named …PARTITION for the table's partitioning
        return {row.Key_name for row in conn.exec_driver_sql(f"SHOW INDEX FROM `{table.name}`")}

    @contextmanager
    def alone(self, conn: sa.Connection, what: str) -> Iterator[None]:
        # the lock is the server's and not the database's
        what = f"{what} {conn.engine.url.database}"[:64]
        if not conn.scalar(sa.text("SELECT get_lock(:what, 30)"), {"what": what}):
            raise DatabaseUnavailable(f"another process is busy with {what}", hint="wait for its end, then try again")
        try:
            yield
        finally:
            if not conn.invalidated:
                conn.execute(sa.text("SELECT release_lock(:what)"), {"what": what})

    def code(self, error: DBAPIError) -> str:
        return str(_errno(error))

    def was_rolled_back(self, error: DBAPIError) -> bool:
        return _errno(error) in self._ROLLED_BACK

    def lacks_table(self, error: DBAPIError) -> bool:
        return _errno(error) == 1146

    def forbids(self, error: DBAPIError) -> bool:
        return _errno(error) in self._FORBIDDEN

    def is_wrong_sql(self, error: DBAPIError) -> bool:
        return _errno(error) == 1054


_DIALECTS: Mapping[str, Dialect] = {"sqlite": Sqlite(), "postgresql": Postgresql(), "mysql": Mysql()}
SCHEMES: Mapping[str, str] = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""What a database URL may begin with, and SQLAlchemy's name of the product."""


def dialect_of(bind: sa.Engine | sa.Connection) -> Dialect:
    """The product behind an engine or a connection."""
    return _DIALECTS[bind.dialect.name]


def parse_url(text: str) -> sa.URL:
    """A database URL with the driver that we use for it; ConfigError, which never shows the password."""
    try:
        url = sa.make_url(text)
        scheme, _, driver = url.drivername.partition("+")
        dialect = _DIALECTS[SCHEMES[scheme]]
    except (sa.exc.ArgumentError, ValueError, KeyError):
        raise ConfigError("the database URL is none of a supported database", hint=URL_HINT) from None
    shown = url.render_as_string(hide_password=True)
    if driver not in {"", dialect.drivername.partition("+")[2]}:
        raise ConfigError(f"the driver of database URL {shown!r} is not supported", hint=URL_HINT)
    if url.database in {None, "", ":memory:"}:
        raise ConfigError(f"database URL {shown!r} names no database", hint=URL_HINT)
    return url.set(drivername=dialect.drivername)


URL_HINT = (
    "for example sqlite:////var/lib/compactor/metastore.db, postgresql://user:password@host:5432/metastore or "
    "mysql://user:password@host:3306/metastore (MariaDB, too)"
)


class exactly(sa.ColumnElement[bool]):  # noqa: N801 - reads as a function, as SQLAlchemy's own constructs do
    """column == value, byte by byte.

    Hive's script for MySQL lets the transaction tables compare names without regard to case, but p=a and p=A are two
    partitions; taken for one, cleaning the first would forget the aborted writes of the second.
    """

    inherit_cache = True
    type = sa.Boolean()
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's name and form
        ("column", InternalTraversal.dp_clauseelement),
        ("value", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, column: sa.ColumnElement[Any], value: str | sa.BindParameter[str]) -> None:
        self.column = column
        self.value = value if isinstance(value, sa.BindParameter) else sa.literal(value, sa.String())


@compiles(exactly)
def _exactly(element: exactly, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.column == element.value, **options)


@compiles(exactly, "mysql")
def _exactly_mysql(element: exactly, compiler: SQLCompiler, **options: Any) -> str:
    column, value = (compiler.process(part, **options) for part in (element.column, element.value))
    # the first comparison finds the row by its index, the second one looks closely
    return f"({column} = {value} AND CONVERT({column} USING utf8mb4) COLLATE utf8mb4_bin = {value})"


class Message(sa.types.TypeDecorator[str]):
    """A text for people, which must never be the reason why a state is not written down.

    PostgreSQL refuses NUL, and a column of Hive's script for MySQL everything that is not latin1.
    """

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        wide = mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin") if dialect.name == "mysql" else sa.Text()
        return dialect.type_descriptor(wide)

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        text = value.replace("\0", "\\0")
        return text.encode("latin-1", "backslashreplace").decode("latin-1") if dialect.name == "mysql" else text


def lock_table(conn: sa.Connection, table: sa.Table, *, shared: bool = False) -> None:
    """Take Hive's lock on a one-row table (`DatabaseProduct.lockTable`); it goes with the transaction."""
    conn.execute(dialect_of(conn).lock_table(table, shared=shared))


def follow_ids(conn: sa.Connection, table: sa.Table, column: str) -> None:
    """Let generated ids go on after the largest one that is in the table."""
    statement = dialect_of(conn).follow_ids(table, column)
    if statement is not None:
        conn.execute(statement)


def alone(conn: sa.Connection, what: str) -> AbstractContextManager[None]:
    """One at a time, whoever does `what` on the same database; DatabaseUnavailable when it is never our turn."""
    return dialect_of(conn).alone(conn, what)


def _sqlite_code(error: DBAPIError) -> int:
    return int(getattr(error.orig, "sqlite_errorcode", 0))


def _sqlstate(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or "")


def _errno(error: DBAPIError) -> int:
    first = error.orig.args[0] if error.orig is not None and error.orig.args else 0
    return first if isinstance(first, int) else 0
