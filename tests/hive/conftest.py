from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hive.lab.artifacts import or_untested
from tests.hive.lab.hive import Hive
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import tail
from tests.hive.lab.session import HiveSession
from tests.hive.lab.trino import CATALOG, Trino
from tests.servers import PostgresqlServer, running

HERE = Path(__file__).parent
LIMIT_S = 1800
"""Of a test, the first of which may have to download Hive; every wait in it has a limit of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.hive)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure comes with what Hive and we wrote into our logs last."""
    report = yield
    if report.failed:
        for fixture in ("hive", "fixture_hive", "compactor", "trino"):
            running = getattr(item, "funcargs", {}).get(fixture)
            for name, log in running.logs().items() if running else ():
                report.sections.append((f"log of {name}", tail(log, 40)))
    return report


@pytest.fixture(scope="session")
def hive() -> Iterator[Hive]:
    """A running Hive. Its roles are off; without Maven or its Java: a skip, in CI a failure."""
    root = Path(tempfile.mkdtemp(prefix="compactor-hive-"))
    try:
        with running(PostgresqlServer) as postgresql:
            with or_untested("LIFE BESIDE HIVE"):
                hive = Hive(root, postgresql.empty())
            yield hive
            hive.stop()
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def trino(hive: Hive) -> Iterator[Trino]:
    """A running Trino whose catalog is that Hive; without its Java or Maven: a skip, in CI a failure."""
    root = Path(tempfile.mkdtemp(prefix="compactor-trino-"))
    try:
        with or_untested("TRINO BESIDE US"):
            trino = Trino(root)
        trino.add_catalog(CATALOG, hive)
        yield trino
        trino.stop()
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def compactor(hive: Hive) -> Iterator[Compactor]:
    """Our roles, pointed at Hive's own configuration; none runs."""
    compactor = Compactor(hive.root / "ours", hive.site)
    yield compactor
    compactor.stop()


@pytest.fixture
def sql(hive: Hive) -> Iterator[HiveSession]:
    with hive.connect() as session:
        yield session
