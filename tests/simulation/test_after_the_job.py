"""What the worker does beside the protocol: full verification, statistics, and learning what a job costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.errors import JobError
from compactor.jobs.engine import Engine
from compactor.metastore import catalog
from compactor.metastore.calibration import job_costs
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.service.signals import StopRequest
from compactor.settings import Settings, WorkerSettings
from compactor.worker import Outcome, Step, Worker
from compactor.worker.metastore import DatabaseMetastore
from tests.inline_each import inline
from tests.inline_rebalance import rebalance_inline
from tests.inline_runner import InlineJobRunner
from tests.simulation.world import ORDERS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World.create(tmp_path)
    made.create_table()
    made.fill()
    return made


def test_statistics_of_the_table_follow_a_compaction(world: World) -> None:
    expected = len(world.rows())
    assert world.compact().outcome is Outcome.PUBLISHED
    parameters = catalog.get_table(world.db, ORDERS).parameters
    assert int(parameters["numRows"]) == expected
    assert int(parameters["numFiles"]) == 1
    assert int(parameters["totalSize"]) > 0


def test_statistics_are_left_alone_where_the_settings_say_so(world: World) -> None:
    quiet = replace(world, settings=Settings(worker=WorkerSettings(gather_stats=False)))
    before = catalog.get_table(world.db, ORDERS).parameters
    assert quiet.compact().outcome is Outcome.PUBLISHED
    assert catalog.get_table(world.db, ORDERS).parameters == before


def test_statistics_that_cannot_be_written_do_not_fail_the_compaction(world: World) -> None:
    def lose_the_output(step: Step) -> None:
        if step is Step.PUBLISHED:
            for file in world.location().glob("base_*/bucket_*"):
                file.write_bytes(b"damaged")

    world.request()
    assert world.worker(at_step=lose_the_output).run_once().outcome is Outcome.PUBLISHED
    assert world.only().state is CompactionState.READY_FOR_CLEANING
    assert world.metrics.statistics_failures._value.get() == 1


def test_every_job_teaches_what_the_next_one_will_take(world: World) -> None:
    assert world.compact(CompactionType.MINOR).outcome is Outcome.PUBLISHED
    world.insert({77: "more"})
    assert world.compact(CompactionType.MAJOR).outcome is Outcome.PUBLISHED
    costs = job_costs(world.db)
    assert len(costs) == 2
    assert all(cost.seconds > 0 and cost.bytes_encoded > 0 for cost in costs)
    assert world.metrics.job_predicted_seconds._value.get() > 0


@pytest.mark.parametrize("kind", [CompactionType.MINOR, CompactionType.MAJOR, CompactionType.REBALANCE])
def test_full_verification_lets_a_right_output_pass(kind: CompactionType, world: World) -> None:
    careful = replace(world, settings=Settings(worker=WorkerSettings(verify="full")))
    assert careful.compact(kind).outcome is Outcome.PUBLISHED


@pytest.mark.parametrize("kind", [CompactionType.MAJOR, CompactionType.REBALANCE])
def test_full_verification_holds_back_an_output_with_a_changed_value(kind: CompactionType, world: World) -> None:
    careful = replace(world, settings=Settings(worker=WorkerSettings(verify="full")))
    expected = careful.rows()

    def change_a_source(step: Step) -> None:
        # The same bytes written after the job are what a wrong output looks like beside its sources.
        if step is Step.WRITTEN:
            (world.root / "other").mkdir()
            other = World.create(world.root / "other")
            other.create_table()
            other.insert({n: f"FIRST {n}" for n in range(8)})
            (changed,) = other.location().glob("delta_0000001_*/bucket_*")
            (original,) = world.location().glob("delta_0000001_*/bucket_*")
            original.with_name("kept").write_bytes(original.read_bytes())
            original.write_bytes(changed.read_bytes())

    careful.request(kind)
    result = careful.worker(at_step=change_a_source).run_once()
    assert result.outcome is Outcome.FAILED
    assert "VerificationError" in result.error
    (original,) = world.location().glob("delta_0000001_*/bucket_*")
    original.with_name("kept").rename(original)
    assert careful.rows() == expected


def test_an_engine_that_is_gone_after_its_job_does_not_take_the_result_along(world: World) -> None:
    def gone() -> int:
        raise JobError("no connection to Spark's Java")

    world.request()
    worker = Worker(
        metastore=DatabaseMetastore(world.db),
        engine=Engine(runner=InlineJobRunner(), rebalance=rebalance_inline, each=lambda *_: inline, cores=gone),
        settings=world.settings,
        metrics=world.metrics,
        host="simulated",
        version="0",
        stop=StopRequest(),
    )
    assert worker.run_once().outcome is Outcome.PUBLISHED
    assert job_costs(world.db) == []
