"""Step 8: the connection is really cut while the publication commits, before or after the database did it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState
from compactor.worker import Outcome, Step
from tests.simulation.world import World


class Scissors:
    """Closes the connection under the first commit after `arm`.

    landed: the database had done the commit by then. then: what happens right after the cut.
    """

    def __init__(self, world: World, *, landed: bool, then: Callable[[], None] = lambda: None) -> None:
        self._landed, self._then = landed, then
        self._armed = False
        self.cuts = 0
        event.listen(world.db.engine, "commit", self._commit)

    def arm(self) -> None:
        self._armed = True

    def _commit(self, conn: sa.Connection) -> None:
        if not self._armed:
            return
        self._armed = False
        self.cuts += 1
        raw = conn.connection.driver_connection
        assert raw is not None
        if self._landed:
            raw.execute("COMMIT")
        raw.close()
        self._then()


def publish_with_a_cut(world: World, *, landed: bool, then: Callable[[], None] = lambda: None) -> Outcome:
    scissors = Scissors(world, landed=landed, then=then)
    world.request()
    result = world.worker(at_step=lambda step: scissors.arm() if step is Step.VERIFIED else None).run_once()
    assert scissors.cuts == 1
    return result.outcome


@pytest.mark.parametrize("landed", [True, False], ids=["the commit landed", "the commit was lost"])
def test_a_publication_that_was_cut_off_is_finished_exactly_once(world: World, landed: bool) -> None:
    world.create_table()
    expected = world.fill()
    assert publish_with_a_cut(world, landed=landed) is Outcome.PUBLISHED
    assert world.only().state is CompactionState.READY_FOR_CLEANING
    assert not world.open_compaction_txns()
    assert world.rows() == expected
    world.clean()
    assert world.only().state is CompactionState.SUCCEEDED
    assert world.rows() == expected
    assert len(world.entries()) == 1


def test_a_lost_publication_whose_transaction_was_aborted_meanwhile_is_fenced(world: World) -> None:
    world.create_table()
    expected = world.fill()

    def abort() -> None:
        assert txns.abort_transactions(world.db, world.open_compaction_txns()).aborted

    assert publish_with_a_cut(world, landed=False, then=abort) is Outcome.FENCED
    assert world.only().state is CompactionState.INITIATED
    assert world.rows() == expected
    assert world.worker().run_once().outcome is Outcome.PUBLISHED
    world.clean()
    assert world.rows() == expected
    assert len(world.entries()) == 1
