"""The whole loop through the console script on tables that a real Hive wrote: every row stays as Hive returned it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compactor.demo.hive_prints import printed_rows
from compactor.demo.hive_tables import ExpectedTable, expected_tables, load
from compactor.metastore import catalog
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from compactor.settings import Settings
from tests.acceptance.conftest import Console
from tests.simulation.world import World

pytestmark = pytest.mark.slow

ENDED = {CompactionState.SUCCEEDED, CompactionState.REFUSED}
EAGER = """
[initiator]
delta_num_threshold = 1
"""


@pytest.fixture
def hive(compactor: Console) -> Iterator[World]:
    """Hive's tables in the database and the directory that the console script uses by default."""
    db = Database.connect(f"sqlite:///{compactor.folder}/compactor.db")
    init_db(db, warehouse=f"file:{compactor.folder}/warehouse")
    load(db, compactor.folder)
    yield World(root=compactor.folder, db=db, settings=Settings())
    db.dispose()


def name_of(table: ExpectedTable) -> TableName:
    return TableName(database="fx", table=table.name)


def assert_as_hive_returned_it(world: World, table: ExpectedTable) -> None:
    """All rows, and the ROW__ID of each row of a full-ACID table."""
    name = name_of(table)
    with world.reader(name) as snapshot:
        rows = snapshot.read(name)
        assert sorted(printed_rows(rows), key=repr) == sorted(table.printed_rows(), key=repr), name
        if table.row_ids is not None:
            ids = snapshot.read(name, columns=["id"], with_row_ids=True)
            found = sorted(zip(*(c.to_pylist() for c in ids.columns), strict=True))
            assert found == sorted((w, b, r, key) for w, b, r, _, key in table.row_ids), name


def assert_everything_is_as_hive_returned_it(world: World) -> None:
    for table in expected_tables():
        assert_as_hive_returned_it(world, table)


def request_everywhere(world: World, kind: CompactionType) -> None:
    for table in expected_tables():
        name = name_of(table)
        partitions = [p.name for p in catalog.list_partitions(world.db, name)]
        for partition in partitions or [None]:
            world.request(kind, name, partition)


def test_one_round_and_then_the_rest_leave_every_row_as_hive_returned_it(hive: World, compactor: Console) -> None:
    (compactor.folder / "compactor.toml").write_text(EAGER)
    assert_everything_is_as_hive_returned_it(hive)
    once = compactor("run", "--once")
    assert once.code == 0, once.err
    assert hive.compactions(), "the initiator asked for nothing"
    assert_everything_is_as_hive_returned_it(hive)
    rest = compactor("run", "--until-idle")
    assert rest.code == 0, rest.err
    assert_everything_is_as_hive_returned_it(hive)
    assert set(hive.states()) <= ENDED


@pytest.mark.parametrize(
    "kinds",
    [[CompactionType.MAJOR], [CompactionType.MINOR, CompactionType.MAJOR]],
    ids=lambda kinds: " then ".join(k.name.lower() for k in kinds),
)
def test_compacting_every_table_and_partition_leaves_every_row_as_hive_returned_it(
    hive: World, compactor: Console, kinds: list[CompactionType]
) -> None:
    for kind in kinds:
        request_everywhere(hive, kind)
        answer = compactor("run", "--until-idle", COMPACTOR_INITIATOR__ON="false")
        assert answer.code == 0, answer.err
        assert_everything_is_as_hive_returned_it(hive)
    assert set(hive.states()) <= ENDED
    assert CompactionState.SUCCEEDED in hive.states()
