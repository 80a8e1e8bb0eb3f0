"""A real PostgreSQL and a real MariaDB for tests, from Debian's packages, each in a folder of its own on a free port.

A server is started once a process and stopped with it. It keeps nothing: files are not synchronised to the disk. Its
database of a test is either empty or as `init_db` leaves it; the latter is emptied and filled again, not made anew.
"""

from __future__ import annotations

import collections
import ctypes
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from compactor.metastore.database import Database
from compactor.metastore.schema import metadata

_POSTGRESQL = Path("/usr/lib/postgresql/15/bin")
_START_ATTEMPTS = 5


SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgresql", "mariadb")]
"""Names of the fixtures with a running server; their tests are slow."""
on_servers = pytest.mark.parametrize("backend", SERVERS, indirect=True)
"""For tests of the metastore that have no meaning on SQLite."""


class Server(ABC):
    """A running database server; `empty` and `filled` give databases in it."""

    packages: str
    name: str

    def __init__(self, folder: Path, user: str | None) -> None:
        self.folder = folder
        self.user = user
        self.port = 0
        self._count = 0
        self._process: subprocess.Popen[str] | None = None
        self._log: collections.deque[str] = collections.deque(maxlen=50)

    @classmethod
    @abstractmethod
    def is_installed(cls) -> bool: ...

    @abstractmethod
    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database in this server."""

    @abstractmethod
    def _install(self) -> None:
        """Fill the folder with a new cluster."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @property
    @abstractmethod
    def _stop_signal(self) -> signal.Signals:
        """What makes the server end at once, whoever is connected."""

    @property
    @abstractmethod
    def _is_ready(self) -> str:
        """What the log says when connections are accepted."""

    @abstractmethod
    def _restart_ids(self, table: str, column: str) -> str:
        """The statement that lets TXN_ID and its like begin at 1 again, in a table without rows."""

    @abstractmethod
    def _create(self, database: str) -> None: ...

    def start(self) -> None:
        self._install()
        for _ in range(_START_ATTEMPTS):
            self.port = _free_port()
            self._process = subprocess.Popen(
                self._command(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=self.folder,
                user=self.user,
                group=_group(self.user),
                extra_groups=None if self.user is None else [],
                preexec_fn=self._end_with_us,  # noqa: PLW1509 - no other thread holds a lock that it needs
            )
            if self._wait_until_ready():
                return
        raise RuntimeError(f"{self.name} does not start:\n{''.join(self._log)}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(self._stop_signal)
            self._process.wait(30)

    def empty(self) -> str:
        """URL of a database without tables that nobody else uses."""
        self._count += 1
        database = f"empty{self._count}"
        self._create(database)
        return self.url(database)

    def filled(self) -> str:
        """URL of a database whose tables have no rows; `init_db` completes it."""
        url = self.url("filled")
        if not self._count_of_filled:
            self._create("filled")
            self._count_of_filled = True
            return url
        db = Database.connect(url)
        with db.write() as conn:
            present = set(sa.inspect(conn).get_table_names())
            tables = [table for table in reversed(metadata.sorted_tables) if table.name in present]
            for table in tables:
                conn.execute(table.delete())
            for table in tables:
                if table.autoincrement_column is not None:
                    conn.exec_driver_sql(self._restart_ids(table.name, table.autoincrement_column.name))
        db.dispose()
        return url

    _count_of_filled = False

    def _wait_until_ready(self) -> bool:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        lines: Iterator[str] = iter(process.stdout.readline, "")
        for line in lines:
            self._log.append(line)
            if self._is_ready in line:
                threading.Thread(target=lambda: self._log.extend(lines), daemon=True).start()
                return True
        process.wait(30)
        return False

    def _end_with_us(self) -> None:
        """The kernel stops the server when the process that runs the tests dies, however it dies (PR_SET_PDEATHSIG)."""
        ctypes.CDLL(None).prctl(1, self._stop_signal)


class PostgresqlServer(Server):
    packages = "postgresql"
    name = "PostgreSQL"
    _stop_signal = signal.SIGINT
    _is_ready = "database system is ready to accept connections"

    @classmethod
    def is_installed(cls) -> bool:
        return (_POSTGRESQL / "postgres").exists()

    def url(self, database: str) -> str:
        return f"postgresql://hive@127.0.0.1:{self.port}/{database}"

    def _install(self) -> None:
        options = ["-U", "hive", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        _run([str(_POSTGRESQL / "initdb"), "-D", str(self.folder / "data"), *options], self.user, self.folder)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "autovacuum": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(_POSTGRESQL / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options]

    def _create(self, database: str) -> None:
        engine = sa.create_engine(
            self.url("postgres").replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as conn:
            conn.exec_driver_sql(f'CREATE DATABASE "{database}"')
        engine.dispose()

    def _restart_ids(self, table: str, column: str) -> str:
        return f'ALTER SEQUENCE "{table}_{column}_seq" RESTART'


class MariadbServer(Server):
    packages = "mariadb-server"
    name = "MariaDB"
    _stop_signal = signal.SIGTERM
    _is_ready = "ready for connections"

    @classmethod
    def is_installed(cls) -> bool:
        return all(shutil.which(name, path=_with_sbin()) for name in ("mariadbd", "mariadb-install-db"))

    def url(self, database: str) -> str:
        return f"mysql://hive:hive@127.0.0.1:{self.port}/{database}"

    def _install(self) -> None:
        command = [str(shutil.which("mariadb-install-db", path=_with_sbin())), "--no-defaults", "--force"]
        options = [f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        _run([*command, *options], self.user, self.folder)
        first = "CREATE USER IF NOT EXISTS hive@'127.0.0.1' IDENTIFIED BY 'hive'; GRANT ALL ON *.* TO hive@'127.0.0.1';"
        (self.folder / "first.sql").write_text(first.replace("; ", ";\n"))
        (self.folder / "first.sql").chmod(0o644)

    def _command(self) -> list[str]:
        return [
            str(shutil.which("mariadbd", path=_with_sbin())),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'first.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-flush-method=nosync",
            "--innodb-buffer-pool-size=64M",
            "--skip-name-resolve",
            "--max-connections=200",
        ]

    def _create(self, database: str) -> None:
        engine = sa.create_engine(self.url("mysql").replace("mysql:", "mysql+pymysql:"))
        with engine.connect() as conn:
            conn.exec_driver_sql(f"CREATE DATABASE `{database}`")
        engine.dispose()

    def _restart_ids(self, table: str, column: str) -> str:
        return f"ALTER TABLE `{table}` AUTO_INCREMENT = 1"


@contextmanager
def running(kind: type[Server]) -> Iterator[Server]:
    """A started server. Without its Debian package: a skip on a developer's machine, a failure where CI is set."""
    if not kind.is_installed():
        reason = f"{kind.name} IS NOT TESTED: its Debian package is missing (apt-get install {kind.packages})"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix=f"compactor-{kind.name.lower()}-"))
    try:
        # PostgreSQL refuses to run as root, MariaDB advises against it
        user = {"PostgreSQL": "postgres", "MariaDB": "mysql"}[kind.name] if getpass.getuser() == "root" else None
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        server = kind(folder, user)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def drop_columns(conn: sa.Connection, table: sa.Table, *columns: str) -> None:
    """Make a table older than it is."""
    quote = conn.dialect.identifier_preparer.quote
    for column in columns:
        conn.exec_driver_sql(f"ALTER TABLE {quote(table.name)} DROP COLUMN {quote(column)}")


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


def _run(command: list[str], user: str | None, folder: Path) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        user=user,
        group=_group(user),
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, done.stdout


def _with_sbin() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
