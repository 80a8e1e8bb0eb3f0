"""The installed console script on PostgreSQL and MariaDB: from an empty database to a cleaned table, with real Spark."""

from __future__ import annotations

import json

import pytest

from compactor.metastore.database import Database
from compactor.settings import Settings
from tests.acceptance.conftest import Console
from tests.servers import Server
from tests.simulation.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("product", ["postgresql", "mariadb"])
def test_a_table_is_compacted_and_cleaned(product: str, compactor: Console, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(product)
    url = server.empty()
    made = compactor("init-db", COMPACTOR_DATABASE_URL=url)
    assert (made.code, made.err) == (0, "")
    assert "hive:hive@" not in made.out
    db = Database.connect(url)
    world = World(root=compactor.folder, db=db, settings=Settings())
    world.create_table()
    rows = world.fill()
    done = compactor("compact", "default.orders", "--type", "major", COMPACTOR_DATABASE_URL=url)
    assert (done.code, done.err) == (0, "")
    ran = compactor("run", "--until-idle", "--set", "metrics.on=false", COMPACTOR_DATABASE_URL=url)
    assert ran.code == 0, ran.err
    shown = compactor("show", "compactions", "--json", COMPACTOR_DATABASE_URL=url)
    assert [row["state"] for row in json.loads(shown.out)] == ["succeeded"]
    assert world.rows() == rows
    assert len(list((compactor.folder / "warehouse" / "orders").iterdir())) == 1
    db.dispose()


@pytest.mark.parametrize("product", ["postgresql", "mariadb"])
def test_a_database_of_somebody_else_is_not_touched(
    product: str, compactor: Console, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(product)
    url = server.empty()
    db = Database.connect(url)
    with db.write() as conn:
        conn.exec_driver_sql("CREATE TABLE somebodys (id INTEGER)")
    refused = compactor("init-db", COMPACTOR_DATABASE_URL=url)
    assert refused.code != 0
    assert "somebodys" in refused.error_lines[0]
    assert db.table_names() == {"somebodys"}
    db.dispose()
