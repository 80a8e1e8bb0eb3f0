"""Items in parts as Spark jobs: tasks that write part files, the JVM where Arrow gives up, and a second stage that joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.acid import stripes
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth, PlanItem
from compactor.acid.records import RowId, merge
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CompactorError, CorruptFile
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.session import SparkSessions
from compactor.jobs.verify import verify_output
from compactor.orc.parts import part_file
from compactor.orc.rewrite import ItemResult
from tests.jobs.compacted import direct_results, planned, two_bucket_table
from tests.orc.acid_files import delete, read_all, read_events, write_events
from tests.orc.items import in_parts
from tests.orc.test_rewrite import far_future

pytestmark = pytest.mark.slow
_B0 = encode_bucket(0)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


def run(
    sessions: SparkSessions, plans: list[CompactionPlan], group: str, seen: list[tuple[int, int]] | None = None
) -> list[list[ItemResult] | CompactorError]:
    progress = seen if seen is not None else []
    return SparkJobRunner(sessions).run(
        [Job(plan=made) for made in plans],
        group=group,
        description="a test",
        progress=lambda done, total: progress.append((done, total)),
    )


def jobs_of(sessions: SparkSessions, group: str) -> int:
    return len(sessions.get().sparkContext.statusTracker().getJobIdsForGroup(group))


def split(made: CompactionPlan) -> CompactionPlan:
    """The plan with a part for every stripe."""
    return replace(made, items=tuple(in_parts(item) for item in made.items))


def files(location: Path, made: CompactionPlan) -> dict[str, bytes]:
    return {
        f"{folder}/{file.name}": file.read_bytes()
        for folder in made.directories
        for file in (location / folder).iterdir()
        if not file.name.endswith(".crc")
    }


def test_parts_are_written_by_tasks_of_their_own_and_joined_by_a_second_job(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    here, there = tmp_path / "spark", tmp_path / "direct"
    for location in (here, there):
        two_bucket_table(location)
    by_spark, alone = split(planned(here, Depth.MAJOR)), split(planned(there, Depth.MAJOR))
    seen: list[tuple[int, int]] = []
    (results,) = run(sessions, [by_spark], "in parts", seen)
    assert isinstance(results, list)
    assert results == direct_results(alone)
    verify_output(by_spark, results)
    assert files(here, by_spark) == files(there, alone)
    assert not list(here.rglob("_part_*"))
    assert jobs_of(sessions, "in parts") == 2
    parts = sum(len(item.parts) for item in by_spark.items)
    assert seen[0] == (0, parts + len(by_spark.items))
    assert seen[-1] == (parts + len(by_spark.items),) * 2


def test_small_compactions_are_one_spark_job(sessions: SparkSessions, tmp_path: Path) -> None:
    plans = []
    for number in range(3):
        two_bucket_table(tmp_path / str(number))
        plans.append(planned(tmp_path / str(number), Depth.MAJOR))
    for made, results in zip(plans, run(sessions, plans, "small ones"), strict=True):
        assert isinstance(results, list)
        verify_output(made, results)
    assert jobs_of(sessions, "small ones") == 1


def test_a_part_that_fails_ends_its_own_compaction_only(sessions: SparkSessions, tmp_path: Path) -> None:
    plans = []
    for number in range(2):
        two_bucket_table(tmp_path / str(number))
        plans.append(split(planned(tmp_path / str(number), Depth.MAJOR)))
    damaged = tmp_path / "0" / "delta_0000002_0000002_0000" / "bucket_00000_0"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    broken, good = run(sessions, plans, "one is broken")
    assert isinstance(broken, CorruptFile)
    assert "bucket_00000_0" in broken.message
    assert not (tmp_path / "0" / plans[0].items[0].output).exists()
    assert isinstance(good, list)
    verify_output(plans[1], good)


def test_a_part_that_was_written_before_is_written_again(sessions: SparkSessions, tmp_path: Path) -> None:
    """As after a task that was killed between its part file and its answer."""
    two_bucket_table(tmp_path)
    made = split(planned(tmp_path, Depth.MAJOR))
    (first,) = run(sessions, [made], "once")
    before = files(tmp_path, made)
    (tmp_path / part_file(made.items[0], 0)).write_bytes(b"of a task that was killed")
    (second,) = run(sessions, [made], "twice")
    assert (second, files(tmp_path, made)) == (first, before)


FAR_COLUMNS = (("id", "int"), ("ts", "timestamp"))


def far_table(location: Path) -> None:
    """Three rows of the year 9999, a delete of one of them, and a fourth one that Arrow can hold."""
    folder = location / "delta_0000001_0000001_0000"
    folder.mkdir(parents=True)
    far_future(folder / "bucket_00000_0")
    (folder / "plain").unlink()
    gone = [delete(RowId(1, _B0, 1), by=3)]
    write_events(location / "delete_delta_0000003_0000003_0000" / "bucket_00000_0", gone)


@pytest.mark.parametrize("parted", [False, True])
def test_what_arrow_cannot_hold_is_rewritten_by_the_jvm(
    sessions: SparkSessions, tmp_path: Path, parted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stripes, "SMALL_STRIPE_BYTES", 0)
    far_table(tmp_path)
    made = planned(tmp_path, Depth.MAJOR, columns=FAR_COLUMNS)
    made = split(made) if parted else made
    (results,) = run(sessions, [made], f"far {parted}")
    assert isinstance(results, list)
    verify_output(made, results)
    (done,) = results
    assert (done.rows_in, done.rows_out, done.rows_deleted, done.stripes_encoded) == (3, 2, 1, 1)
    assert not list(tmp_path.rglob("_part_*"))
    (folder,) = made.directories
    frame = sessions.get().read.orc(str(tmp_path / folder))
    found = frame.selectExpr("rowId", "row.id", "cast(row.ts as string) ts", "*").collect()
    assert [(r.rowId, r.id, r.ts) for r in found] == [(0, 0, "9999-12-31 00:00:00"), (2, 2, "9999-12-31 00:00:00")]


def test_a_bucket_in_many_parts_has_the_rows_of_the_oracle(sessions: SparkSessions, tmp_path: Path) -> None:
    two_bucket_table(tmp_path)
    events = read_all(
        sorted(tmp_path.glob("delta_*/bucket_00000_0")) + sorted(tmp_path.glob("delete_*/bucket_00000_0"))
    )
    made = split(planned(tmp_path, Depth.MAJOR))
    run(sessions, [made], "oracle")
    item: PlanItem = made.items[0]
    found = [(e.row_id, e.row) for e in read_events(tmp_path / item.output)]
    assert found == list(merge(events, ValidWriteIdList(table="d.t", high_water=4)))
