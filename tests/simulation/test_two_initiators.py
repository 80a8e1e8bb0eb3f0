"""Two initiator processes on one database ask for every compaction once."""

from __future__ import annotations

import pytest

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from tests.simulation.processes import Process
from tests.simulation.world import World

pytestmark = pytest.mark.slow


def test_two_initiators_ask_once_for_each_table(world: World) -> None:
    tables = [TableName(database="default", table=f"busy_{n}") for n in range(4)]
    always = {"compactorthreshold.hive.compactor.delta.num.threshold": "1"}
    for table in tables:
        world.create_table(table, properties=always)
        world.insert({1: "one"}, table)
        world.insert({2: "two"}, table)
    with Process("initiator", world.root, "--wait") as one, Process("initiator", world.root, "--wait") as two:
        one.go()
        two.go()
        said = [*one.rest(), *two.rest()]
        assert (one.exit_code(), two.exit_code()) == (0, 0)
    assert sum(len(s["requested"]) for s in said) == len(tables)
    assert sorted(row.table.table for row in world.compactions()) == [t.table for t in tables]
    assert set(world.states()) == {CompactionState.INITIATED}
    assert world.initiate().requested == ()
