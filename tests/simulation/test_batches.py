"""Small compactions that share a Spark job: each keeps its own transaction, its own end and its own error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from compactor.errors import CompactorError, JobError
from compactor.jobs.compaction import Job, Progress
from compactor.metastore import catalog_write, queue
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.orc.rewrite import ItemResult
from compactor.service.signals import StopRequest
from compactor.worker import Outcome, Step
from compactor.worker.cycle import SMALL_BYTES
from tests.inline_runner import InlineJobRunner
from tests.simulation.world import World

TABLES = [TableName(database="default", table=name) for name in ("ada", "bob", "cyd", "dan")]


class CountingRunner(InlineJobRunner):
    """Notes how many compactions each job had. break_on: raises what the engine's end looks like to such a job."""

    def __init__(self, break_on: Callable[[Sequence[Job]], bool] = lambda _: False) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._break_on = break_on

    def run(
        self, jobs: Sequence[Job], *, group: str, description: str, progress: Progress
    ) -> list[list[ItemResult] | CompactorError]:
        self.sizes.append(len(jobs))
        if self._break_on(jobs):
            raise JobError("an executor died")
        return super().run(jobs, group=group, description=description, progress=progress)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.create(tmp_path)
    for table in TABLES:
        made.create_table(table)
        made.fill(table)
        made.request(table=table)
    yield made
    made.db.dispose()


def states(world: World) -> dict[str, CompactionState]:
    return {row.table.table: row.state for row in world.compactions()}


def test_small_compactions_share_one_job_and_are_published_each_with_its_own_transaction(world: World) -> None:
    before = [world.rows(table) for table in TABLES]
    runner = CountingRunner()
    batch = world.worker(runner=runner).run_batch()
    assert runner.sizes == [len(TABLES)]
    assert [r.outcome for r in batch.results] == [Outcome.PUBLISHED] * len(TABLES)
    assert len({row.txn_id for row in world.compactions()}) == len(TABLES)
    assert [world.rows(table) for table in TABLES] == before
    assert "4 compactions: 4 published" in batch.describe()
    assert not world.worker().run_batch().did_anything


def test_a_damaged_table_fails_alone(world: World) -> None:
    broken = next(world.location(TABLES[1]).glob("delta_*/bucket_*"))
    broken.write_bytes(b"no ORC file")
    batch = world.worker().run_batch()
    assert batch.failed
    assert states(world) == {
        "ada": CompactionState.READY_FOR_CLEANING,
        "bob": CompactionState.FAILED,
        "cyd": CompactionState.READY_FOR_CLEANING,
        "dan": CompactionState.READY_FOR_CLEANING,
    }


def test_a_shared_job_that_breaks_is_run_again_one_by_one_so_that_only_the_culprit_fails(world: World) -> None:
    runner = CountingRunner(lambda jobs: any("/cyd" in job.plan.location for job in jobs))
    batch = world.worker(runner=runner).run_batch()
    assert runner.sizes == [4, 1, 1, 1, 1]
    assert [r.outcome for r in batch.results] == [
        Outcome.PUBLISHED,
        Outcome.PUBLISHED,
        Outcome.FAILED,
        Outcome.PUBLISHED,
    ]
    assert not world.open_compaction_txns()


def test_a_claim_that_is_revoked_during_the_shared_job_is_fenced_and_the_others_are_published(world: World) -> None:
    def revoke_one(step: Step) -> None:
        if step is Step.WRITTEN:
            queue.revoke_claims(
                world.db, [row.worker_id or "" for row in world.compactions() if row.table == TABLES[2]]
            )

    batch = world.worker(at_step=revoke_one).run_batch()
    assert [r.outcome for r in batch.results].count(Outcome.FENCED) == 1
    assert states(world)["cyd"] is CompactionState.INITIATED
    assert world.worker().run_batch().results[0].outcome is Outcome.PUBLISHED


def test_draining_while_requests_are_gathered_finishes_those_that_are_claimed_and_takes_no_more(world: World) -> None:
    stop = StopRequest()
    batch = world.worker(stop=stop, at_step=lambda step: stop.drain() if step is Step.CLAIMED else None).run_batch()
    assert [r.outcome for r in batch.results] == [Outcome.PUBLISHED]
    assert list(states(world).values()).count(CompactionState.INITIATED) == len(TABLES) - 1


def test_an_interrupted_shared_job_releases_every_claim(world: World) -> None:
    stop = StopRequest()
    runner = CountingRunner(lambda _: stop.interrupt() is None)
    batch = world.worker(stop=stop, runner=runner).run_batch()
    assert runner.sizes == [len(TABLES)]
    assert {r.outcome for r in batch.results} == {Outcome.RELEASED}
    assert set(states(world).values()) == {CompactionState.INITIATED}
    assert not world.open_compaction_txns()


def test_a_large_compaction_has_a_job_of_its_own(world: World) -> None:
    large = TableName(database="default", table="large")
    world.create_table(large)
    noise = random.Random(7)
    for _ in range(3):
        world.insert({n: noise.randbytes(1024).hex() for n in range(SMALL_BYTES // 2048)}, large)
    world.request(table=large)
    world.insert({99: "more"}, TABLES[0])
    runner = CountingRunner()
    batch = world.worker(runner=runner).run_batch()
    assert runner.sizes == [len(TABLES), 1]
    assert {r.outcome for r in batch.results} == {Outcome.PUBLISHED}


def test_compactions_that_want_to_run_differently_do_not_share_a_job(world: World) -> None:
    world.insert({50: "new"}, TABLES[3])
    catalog_write.set_table_parameters(world.db, TABLES[3], {"compactor.spark.executor.memory": "2g"})
    runner = CountingRunner()
    world.worker(runner=runner).run_batch()
    assert runner.sizes == [len(TABLES) - 1, 1]
