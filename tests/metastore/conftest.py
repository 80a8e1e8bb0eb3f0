from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.metastore.database import Database
from compactor.metastore.schema import init_db

BACKENDS = ["sqlite"]


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database; other processes of a test may connect to it too."""
    assert request.param == "sqlite"
    return f"sqlite:///{tmp_path / 'metastore.db'}"


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
