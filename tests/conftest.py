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


_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks for groups in the same hook.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` a module stays together, and so does all that shares the one running Hive.

    That group takes longest: it comes first (`--no-loadscope-reorder`), so that other workers do the rest beside it.
    """
    sizes = Counter(map(_group, items))
    items.sort(key=lambda item: (_group(item) != "hive", -sizes[_group(item)]))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _LONG & set(Path(item.path).parts):
            item.add_marker(pytest.mark.slow)


def _group(item: pytest.Item) -> str:
    module = Path(item.path).relative_to(_HERE)
    return "hive" if module.parts[0] == "hive" else str(module)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with running(PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with running(MariadbServer) as server:
        yield server
