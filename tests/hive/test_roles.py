"""Each of initiator, worker and cleaner played by Hive or by us, in every mixture."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import HiveSession
from tests.hive.lab.tables import Table, create

MIXTURES = [
    Roles(worker=worker, initiator=initiator, cleaner=cleaner)
    for worker, initiator, cleaner in itertools.product([False, True], repeat=3)
]
"""The roles that Hive plays; those with the same worker follow each other, since ours takes long to start."""
DELTAS = 5
PARTITION = "p=1"


def name_of(roles: Roles) -> str:
    """The name of a mixture, and of its table: who plays what."""
    return "_".join(f"{'hives' if hives else 'our'}_{role}" for role, hives in dataclasses.asdict(roles).items())


@pytest.fixture(scope="module")
def tables(hive: Hive, compactor: Compactor) -> Iterator[dict[str, Table]]:
    """A table for each mixture, with more deltas than the threshold."""
    with hive.connect() as sql:
        made = {}
        for name in map(name_of, MIXTURES):
            made[name] = create(hive, sql, name, clause="PARTITIONED BY (p int)")
            made[name] = dataclasses.replace(made[name], partition=PARTITION)
        for i in range(DELTAS):
            inserts = [f"INSERT INTO {t.full_name} PARTITION ({PARTITION}) SELECT {i}, 'v{i}'" for t in made.values()]
            sql(f"FROM (SELECT 1) one {' '.join(inserts)}")
    yield made
    compactor.playing(())
    hive.playing(Roles())


@pytest.fixture
def mixture(request: pytest.FixtureRequest, hive: Hive, compactor: Compactor, tables: dict[str, Table]) -> Roles:
    roles: Roles = request.param
    hive.playing(roles)
    compactor.playing({role for role, hives in dataclasses.asdict(roles).items() if not hives})
    return roles


@pytest.mark.parametrize("mixture", MIXTURES, indirect=True, ids=name_of)
def test_a_table_is_found_compacted_and_cleaned_whoever_does_what(
    sql: HiveSession, tables: dict[str, Table], mixture: Roles
) -> None:
    table = tables[name_of(mixture)]
    before = table.entries()
    rows = Counter([(i, f"v{i}", 1) for i in range(DELTAS) if i != 1])
    with table.shown_to_initiators(sql):
        # Initiators, Hive's and ours, look where somebody wrote.
        sql(f"DELETE FROM {table.full_name} WHERE id = 1")
        ids = table.row_ids(sql)
        until(lambda: bool(sql.compactions(table.full_name)), f"somebody asks for a compaction of {table.full_name}")
        done = table.until_state(sql, "succeeded")
    assert done.partition == PARTITION
    assert done.error is None
    assert done.initiator is not None
    assert done.initiator.isdigit(), "a process or thread, and not 'manual'"
    assert (done.job or "").startswith("job_local") == mixture.worker
    assert not set(before) & set(table.entries())
    assert table.rows(sql) == rows
    assert table.row_ids(sql) == ids
