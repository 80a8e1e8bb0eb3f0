from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from tests.servers import SERVERS, Server

BACKENDS = ["sqlite", *SERVERS]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Which database product the test runs on."""
    return str(request.param)


@pytest.fixture
def own_schema() -> None:
    """For tests that change the schema: nobody else gets the database afterwards."""


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of the test's database, without tables or without rows; other processes of a test may connect to it too."""
    if backend == "sqlite":
        return f"sqlite:///{tmp_path / 'metastore.db'}"
    server: Server = request.getfixturevalue(backend)
    shared = "db" in request.fixturenames and "own_schema" not in request.fixturenames
    return server.filled() if shared else server.empty()


@pytest.fixture
def empty_db(database_url: str) -> Iterator[Database]:
    database = Database.connect(database_url)
    yield database
    database.dispose()


@pytest.fixture
def db(empty_db: Database, tmp_path: Path) -> Database:
    """A database as `init_db` leaves it, with its warehouse in the test's folder."""
    init_db(empty_db, warehouse=f"file:{tmp_path}/warehouse")
    return empty_db
