"""Plan items as Spark tasks: the same files as without Spark, typed errors, progress, cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactor.acid.planning import CompactionPlan, Depth
from compactor.errors import CompactorError, CorruptFile, JobError
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.session import SparkSessions
from compactor.jobs.verify import verify_output
from compactor.orc.rewrite import ItemResult
from tests.jobs.compacted import direct_results, planned, two_bucket_table

pytestmark = pytest.mark.slow

BOUND_S = 120


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


@pytest.fixture
def runner(sessions: SparkSessions) -> SparkJobRunner:
    return SparkJobRunner(sessions)


def run(runner: SparkJobRunner, made: CompactionPlan, seen: list[tuple[int, int]] | None = None) -> list[ItemResult]:
    progress = seen if seen is not None else []
    (outcome,) = runner.run(
        [Job(plan=made)],
        group="host-compactor-d.t",
        description="a test",
        progress=lambda done, total: progress.append((done, total)),
    )
    if isinstance(outcome, CompactorError):
        raise outcome
    return outcome


def contents(location: Path, directories: tuple[str, ...]) -> dict[str, bytes]:
    return {
        f"{directory}/{file.name}": file.read_bytes()
        for directory in directories
        for file in (location / directory).iterdir()
        if not file.name.endswith(".crc")
    }


@pytest.mark.parametrize("depth", Depth)
def test_a_job_writes_byte_for_byte_what_its_items_write_alone(
    depth: Depth, runner: SparkJobRunner, tmp_path: Path
) -> None:
    here, there = tmp_path / "spark", tmp_path / "direct"
    for location in (here, there):
        two_bucket_table(location)
    by_spark, alone = planned(here, depth), planned(there, depth)
    results = run(runner, by_spark)
    assert results == direct_results(alone)
    verify_output(by_spark, results)
    assert contents(here, by_spark.directories) == contents(there, alone.directories)


def test_running_a_job_again_changes_nothing(runner: SparkJobRunner, location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    first = run(runner, made)
    before = contents(location, made.directories)
    assert run(runner, made) == first
    assert contents(location, made.directories) == before


def test_the_error_of_a_task_comes_back_as_itself(runner: SparkJobRunner, location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    damaged = location / "delta_0000002_0000002_0000" / "bucket_00001_0"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    with pytest.raises(CorruptFile, match="bucket_00001_0"):
        run(runner, made)
    assert not (location / made.items[1].output).exists()


def test_progress_begins_at_nothing_and_ends_at_everything(runner: SparkJobRunner, location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MINOR)
    seen: list[tuple[int, int]] = []
    run(runner, made, seen)
    assert seen[0] == (0, len(made.items))
    assert seen[-1] == (len(made.items), len(made.items))


@pytest.mark.parametrize("how", ["cancelled", "its Java killed"])
def test_a_job_that_is_stopped_fails_and_leaves_no_file(
    how: str, runner: SparkJobRunner, sessions: SparkSessions, location: Path
) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    # A task that opens a named pipe waits for a writer, who never comes.
    pipe = location / "delta_0000002_0000002_0000" / "bucket_00000_0"
    pipe.unlink()
    os.mkfifo(pipe)
    outcome: list[BaseException] = []
    started = threading.Event()

    def work() -> None:
        try:
            runner.run(
                [Job(plan=made)],
                group="to be stopped",
                description="waits",
                progress=lambda done, _: started.set() if done == 1 else None,
            )
        except JobError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    # The other bucket's task is done, so the job runs.
    assert started.wait(BOUND_S)
    if how == "cancelled":
        runner.cancel("to be stopped")
    else:
        sessions.get().sparkContext._gateway.proc.kill()  # type: ignore[union-attr]
    thread.join(BOUND_S)
    assert not thread.is_alive()
    assert "to be stopped" in str(outcome[0])
    assert not (location / made.items[0].output).exists()


def test_sparks_own_reader_reads_what_we_wrote(runner: SparkJobRunner, sessions: SparkSessions, location: Path) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    run(runner, made)
    spark: SparkSession = sessions.get()
    (directory,) = made.directories
    frame = spark.read.orc(str(location / directory)).selectExpr(
        "originalTransaction w", "rowId r", "row.id", "row.v", "*"
    )
    found = sorted((row.w, row.r, row.id, row.v) for row in frame.collect())
    inserted = [(w, i, i, f"w{w}{c}{i}") for w in (1, 2, 3) for i in range(5) for c in "rb"]
    assert found == sorted(r for r in inserted if r != (2, 3, 3, "w2r3"))


def test_a_java_that_died_fails_its_job_and_the_next_job_gets_a_new_one(
    runner: SparkJobRunner, sessions: SparkSessions, location: Path
) -> None:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    java = sessions.get().sparkContext._gateway.proc  # type: ignore[union-attr]
    java.kill()
    java.wait(BOUND_S)
    runner.cancel("nothing runs")
    assert runner.job_id().startswith("local-")
    verify_output(made, run(runner, made))


def test_a_session_that_cannot_start_is_a_job_error(tmp_path: Path) -> None:
    # In a process of its own: Spark would hand out the session that runs in this one.
    program = (
        "from pathlib import Path\n"
        "from compactor.errors import JobError\n"
        "from compactor.jobs.session import SparkSessions\n"
        f"cache = Path({str(tmp_path)!r})\n"
        "sessions = SparkSessions(master='no such master', app_name='x', driver_memory='512m', conf={}, cache=cache)\n"
        "try:\n"
        "    sessions.get()\n"
        "except JobError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert "'no such master' does not start" in done.stdout
