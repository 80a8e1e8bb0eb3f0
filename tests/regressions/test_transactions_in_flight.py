"""A database server gives an id out when a transaction's row is inserted and shows the row when that commits, so for a
moment a higher id is visible and a lower one is not. Whoever takes a missing id for a finished transaction counts what
it writes as committed: a compaction would make the half-written rows of a running INSERT part of the table for good.

Missing ids that are not older than an opening may take count as open, as in Hive (`GetOpenTxnsListHandler`).
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionType
from compactor.metastore.schema import MIN_HISTORY_WRITE_ID, TXN_COMPONENTS, TXNS
from compactor.metastore.snapshots import valid_txn_list
from compactor.table.transaction import TableTransaction
from compactor.table.writer import Statements
from compactor.worker import Outcome, Step
from tests.regressions.hive_rows import keep_house_much_later, open_write
from tests.simulation.world import ORDERS, World, arrow, rows_of

Hidden = list[tuple[sa.Table, list[dict[str, Any]]]]


def hide(world: World, txn_id: int) -> Hidden:
    """The transaction has its id and no visible row yet; its rows, to be shown later."""
    hidden: Hidden = []
    with world.db.write() as conn:
        for table, of_txn in (
            (MIN_HISTORY_WRITE_ID, MIN_HISTORY_WRITE_ID.c.MH_TXNID == txn_id),
            (TXN_COMPONENTS, TXN_COMPONENTS.c.TC_TXNID == txn_id),
            (TXNS, TXNS.c.TXN_ID == txn_id),
        ):
            hidden.append((table, [dict(row) for row in conn.execute(sa.select(table).where(of_txn)).mappings()]))
            conn.execute(table.delete().where(of_txn))
    return hidden


def show(world: World, hidden: Hidden) -> None:
    with world.db.write() as conn:
        for table, rows in reversed(hidden):
            conn.execute(table.insert(), rows)


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.MINOR], ids=lambda k: k.name.lower())
def test_a_writer_that_was_opening_while_the_snapshot_was_taken_is_not_compacted(
    world: World, kind: CompactionType
) -> None:
    world.create_table()
    expected = world.fill()
    late = TableTransaction(world.writer().writer, ORDERS)
    Statements(late).insert(arrow({99: "never committed"}))
    hidden = hide(world, late.txn_id)

    def appear(step: Step) -> None:
        if step is Step.SNAPSHOT_RECORDED:
            show(world, hidden)

    world.request(kind)
    assert world.worker(at_step=appear).run_once().outcome is Outcome.PUBLISHED
    assert world.only().highest_write_id == late.write_id - 1
    assert world.rows() == expected
    late.abort()
    assert world.rows() == expected
    while world.clean().did_anything:
        assert world.rows() == expected


def test_a_reader_does_not_see_a_writer_that_was_opening_when_it_began(world: World) -> None:
    world.create_table()
    world.insert({1: "one"})
    late = TableTransaction(world.writer().writer, ORDERS)
    Statements(late).insert(arrow({2: "two"}))
    hidden = hide(world, late.txn_id)
    with world.reader() as reader:
        show(world, hidden)
        assert rows_of(reader) == {1: "one"}
        late.commit()
        assert rows_of(reader) == {1: "one"}
    assert world.rows() == {1: "one", 2: "two"}


def test_ids_that_were_cleaned_away_do_not_count_as_open(world: World) -> None:
    world.create_table()
    for n in range(3):
        world.insert({n: "row"})
    txn_id, _ = open_write(world, ORDERS)
    keep_house_much_later(world)
    with world.db.read() as conn:
        assert len(list(conn.scalars(sa.select(TXNS.c.TXN_ID)))) < txn_id
    assert valid_txn_list(world.db).open == {txn_id}
    txns.abort_transactions(world.db, [txn_id])
    world.writer().insert(arrow({9: "later"}))
    assert valid_txn_list(world.db).open == frozenset()
    assert world.rows() == {0: "row", 1: "row", 2: "row", 9: "later"}
