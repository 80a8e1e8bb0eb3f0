"""A trap in Hive's cleaner: CQ_NEXT_TXN_ID is the highest transaction id at the commit, and cleaning begins once it is ≤
the smallest open id. A reader that opened just before the commit can have that very id; as the oldest open transaction
it holds nothing back. Only MIN_HISTORY_LEVEL saves it, and newer Hives switch that off.

We ask strictly: every transaction with an id up to and including NEXT_TXN_ID has ended.
"""

from __future__ import annotations

import pytest

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.schema import MIN_HISTORY_LEVEL, MIN_HISTORY_WRITE_ID
from compactor.table.reader import TableSnapshot
from compactor.worker import Outcome, Step
from tests.simulation.world import World, rows_of


@pytest.mark.parametrize("declares", [True, False], ids=["declares its tables", "declares nothing"])
@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_a_reader_whose_id_is_next_txn_id_keeps_its_files(world: World, kind: CompactionType, declares: bool) -> None:
    world.create_table()
    expected = world.fill()
    opened: list[TableSnapshot] = []
    reading = world.reader()

    def read(step: Step) -> None:
        """The last moment before the publication."""
        if step is Step.VERIFIED:
            opened.append(reading.__enter__())

    world.request(kind)
    assert world.worker(at_step=read).run_once().outcome is Outcome.PUBLISHED
    (reader,) = opened
    # Nothing but the rule itself may save it: no memory of what it saw open, as in the newer Hives.
    with world.db.write() as conn:
        conn.execute(MIN_HISTORY_LEVEL.delete())
        if not declares:
            conn.execute(MIN_HISTORY_WRITE_ID.delete())
    assert world.only().next_txn_id == reader.txn_id == txns.min_open_txn(world.db)
    assert world.clean().cleaned == 0
    assert rows_of(reader) == expected
    reading.__exit__(None, None, None)
    assert world.clean().cleaned == 1
    assert world.only().state is CompactionState.SUCCEEDED
    assert world.rows() == expected
