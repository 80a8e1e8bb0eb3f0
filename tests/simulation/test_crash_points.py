"""kill -9 of a worker at every step of the protocol, then recovery (I1, I2).

Three readers look at the table: one from before the crash, one from after it, and a new one at every moment.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.worker import Outcome, Step
from tests.simulation.processes import Process
from tests.simulation.world import World, rows_of

pytestmark = pytest.mark.slow

STEPS = [["--kill-at", step.name] for step in Step]
HALF_WRITTEN = ["--kill-before-item", "2"]


def crash(world: World, arguments: list[str]) -> None:
    with Process("worker", world.root, *arguments) as process:
        assert process.exit_code() == -signal.SIGKILL
        assert process.rest() == [{"signal": signal.SIGKILL}]


def revoked_by_the_initiator(world: World) -> None:
    """It sees that the worker's process is gone; an open transaction is left to the housekeeper."""
    assert world.initiate().revoked == (1,)
    world.silence(world.open_compaction_txns())
    world.keep_house()


def timed_out_by_the_housekeeper(world: World) -> None:
    """It sees a transaction without a heartbeat; a claim that has none yet is older than the time limit."""
    world.silence(world.open_compaction_txns())
    late = world.settings.worker.model_copy(update={"timeout_s": 1e-9})
    impatient = World(
        root=world.root,
        db=world.db,
        metrics=world.metrics,
        settings=world.settings.model_copy(update={"worker": late}),
    )
    assert 1 in impatient.keep_house().revoked


@pytest.mark.parametrize("arguments", [*STEPS, HALF_WRITTEN], ids=lambda a: a[-1].lower())
@pytest.mark.parametrize(
    ("recover", "kind"),
    [(revoked_by_the_initiator, CompactionType.MAJOR), (timed_out_by_the_housekeeper, CompactionType.MINOR)],
    ids=["initiator", "housekeeper"],
)
def test_a_worker_killed_at_any_step_loses_no_row_and_leaves_nothing_behind(
    world: World, arguments: list[str], recover: Callable[[World], None], kind: CompactionType
) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    world.request(kind)
    with world.reader() as before:
        crash(world, arguments)
        assert world.rows() == expected
        with world.reader() as between:
            if arguments[-1] == Step.PUBLISHED.name:
                assert world.only().state is CompactionState.READY_FOR_CLEANING
            else:
                assert world.only().state is CompactionState.WORKING
                recover(world)
                assert world.only().state is CompactionState.INITIATED
                assert world.worker().run_once().outcome is Outcome.PUBLISHED
            assert not world.open_compaction_txns()
            world.clean()
            assert rows_of(before) == rows_of(between) == world.rows() == expected
    world.clean()
    assert world.rows() == expected
    assert world.only().state is CompactionState.SUCCEEDED
    assert len(world.entries()) == (1 if kind is CompactionType.MAJOR else 2)


@pytest.mark.parametrize("step", [Step.WRITTEN, Step.PUBLISHED], ids=lambda s: s.name.lower())
def test_a_worker_killed_with_its_spark_session_loses_no_row(world: World, step: Step) -> None:
    world.create_table(buckets=2)
    expected = world.fill()
    world.request()
    crash(world, ["--spark", "--kill-at", step.name])
    assert world.rows() == expected
    if step is Step.WRITTEN:
        revoked_by_the_initiator(world)
        assert world.worker().run_once().outcome is Outcome.PUBLISHED
    world.clean()
    assert world.rows() == expected
    assert world.only().state is CompactionState.SUCCEEDED
    assert len(world.entries()) == 1
