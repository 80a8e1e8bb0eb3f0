from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from cleaner.service import Cleaner
from compactor.metastore.catalog import TableName
from compactor.metastore.txns import commit_transaction, open_transactions
from compactor.storage.filesystem import open_location
from tests.roles.world import World


def told(role: Cleaner) -> list[Mapping[str, Any]]:
    """What a cycle says about rows that wait, or wait no longer."""
    with capture_logs() as logs:
        role.run_once()
    return [entry for entry in logs if entry["event"].startswith("compaction waits")]


def cleaner(world: World) -> Cleaner:
    return Cleaner(world.db, open_location, world.settings, world.metrics, "host")


def compacted_below_readers(world: World, count: int) -> tuple[TableName, list[int]]:
    """A published compaction, and the transactions that opened before it."""
    table = world.table()
    world.write(table, times=2)
    readers = [open_transactions(world.db, user=f"reader{n}", host="laptop")[0] for n in range(count)]
    world.compact(table)
    return table, readers


def test_who_holds_a_row_is_logged_once_and_again_when_it_is_over(world: World) -> None:
    table, (reader,) = compacted_below_readers(world, 1)
    role = cleaner(world)
    (begun,) = told(role)
    assert begun["event"] == "compaction waits to be cleaned"
    assert (begun["log_level"], begun["id"], begun["object"]) == ("info", world.only_row().id, str(table))
    assert f"transaction {reader} of reader0@laptop is open" in begun["why"]
    assert told(role) == []
    commit_transaction(world.db, reader)
    (over,) = told(role)
    assert over["event"] == "compaction waits no longer"
    assert (over["log_level"], over["id"], over["was"]) == ("info", begun["id"], begun["why"])
    assert told(role) == []


def test_another_holder_of_the_same_row_is_logged(world: World) -> None:
    _, (first, second) = compacted_below_readers(world, 2)
    role = cleaner(world)
    (begun,) = told(role)
    commit_transaction(world.db, first)
    (changed,) = told(role)
    assert changed["event"] == begun["event"]
    assert f"transaction {second} of reader1@laptop" in changed["why"]
    assert told(role) == []
