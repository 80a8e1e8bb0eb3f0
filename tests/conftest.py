"""What `make check` leaves out, what one xdist worker runs together, and how far Hypothesis goes.

Hypothesis profiles: `default` explores further at every run, `ci` (chosen by CI=…) repeats the same examples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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
    "test_soft_deletes.py",
    "test_cleaner_pages.py",
    "test_open_rules.py",
    "test_starvation.py",
    "test_query_plans.py",
    "test_rebalance.py",
}
"""Folders and modules that tell whole stories: together they take as long as all the other fast tests do."""


_BESIDE_HIVE = "tests/hive/"


class _Scheduler(LoadScopeScheduling):
    """A module's tests stay together, and so do all those that share the one running Hive.

    The marks of `--dist loadgroup` would say the same, but pytest-xdist 3.8 loses them with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _together(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return _Scheduler(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is beside Hive takes longest: it comes first, so that other workers do the rest meanwhile."""
    sizes = Counter(_together(item.nodeid) for item in items)
    items.sort(key=lambda item: (_together(item.nodeid) != _BESIDE_HIVE, -sizes[_together(item.nodeid)]))
    for item in items:
        if _LONG & set(Path(item.path).parts):
            item.add_marker(pytest.mark.slow)


def _together(nodeid: str) -> str:
    return _BESIDE_HIVE if nodeid.startswith(_BESIDE_HIVE) else nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with running(PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with running(MariadbServer) as server:
        yield server
