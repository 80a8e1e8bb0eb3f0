"""What `make check` leaves out, and how far Hypothesis goes.

Hypothesis profiles: `default` explores further at every run, `ci` (chosen by CI=…) repeats the same examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import MariadbServer, PostgresqlServer, Server, running

_NEVER_FLAKY = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("default", deadline=None, suppress_health_check=_NEVER_FLAKY, max_examples=60)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_LONG = {
    "simulation",
    "properties",
    "regressions",
    "test_bad_input.py",
    "test_histories.py",
    "test_benchmarks.py",
    "test_lock_model.py",
}
"""Folders and modules that tell whole stories: together they take as long as all the other fast tests do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _LONG & set(Path(item.path).parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with running(PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with running(MariadbServer) as server:
        yield server
