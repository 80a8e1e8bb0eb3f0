from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from tests.servers import Server
from tests.simulation.world import World, database_url


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty installation, on each database."""
    if request.param == "sqlite":
        url = database_url(tmp_path)
    else:
        server: Server = request.getfixturevalue(request.param)
        url = server.filled()
    made = World(root=tmp_path, db=Database.connect(url))
    init_db(made.db, warehouse=f"file:{tmp_path}/warehouse")
    yield made
    made.db.dispose()
