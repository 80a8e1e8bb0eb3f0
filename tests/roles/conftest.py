from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from compactor.service.metrics import Metrics
from compactor.settings import InitiatorSettings, Settings
from tests.roles.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An empty installation with its warehouse in the test's folder; more than two deltas are too many."""
    url = f"sqlite:///{tmp_path / 'metastore.db'}"
    db = Database.connect(url)
    warehouse = tmp_path / "warehouse"
    init_db(db, warehouse=f"file:{warehouse}")
    limits = InitiatorSettings(delta_num_threshold=2)
    settings = Settings(database_url=url, warehouse=f"file:{warehouse}", initiator=limits)
    yield World(db=db, warehouse=warehouse, settings=settings, metrics=Metrics(version="test"))
    db.dispose()
