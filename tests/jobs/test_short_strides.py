"""Files whose row-index stride is shorter than orc-core writes, with values that only orc-core can write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.acid.stripes import StripeUse
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.rebalance import ORC_INPUT_FORMAT, plan_rebalance, run_rebalance, verify_rebalance
from compactor.jobs.session import SparkSessions
from compactor.jobs.verify import verify_output
from tests.jobs.java_files import OrcFiles
from tests.orc.acid_files import source, write_plain

pytestmark = pytest.mark.slow

BUCKET = 536870912
FAR_SECONDS = 253402300799
"""9999-12-31 23:59:59"""
ROWS = 1200


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


def delta(location: Path, write_id: int, *, column: pa.Array | None = None) -> None:
    """Events in a file with an index entry every 500 rows; by default a timestamp that Arrow's reader cannot hold."""
    count = ROWS
    moment = pa.array([FAR_SECONDS] * count, pa.timestamp("s")) if column is None else column
    row = pa.StructArray.from_arrays([pa.array(range(count), pa.int32()), moment], names=["n", "t"])
    ids = [[0] * count, [write_id] * count, [BUCKET] * count, list(range(count)), [write_id] * count]
    kinds = [pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.int64()]
    events = pa.Table.from_arrays(
        [*(pa.array(v, k) for v, k in zip(ids, kinds, strict=True)), row],
        names=["operation", "originalTransaction", "bucket", "rowId", "currentTransaction", "row"],
    )
    folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
    write_plain(folder / "bucket_00000", events, row_index_stride=500, compression="zlib")


def target(location: Path, kind: str = "timestamp") -> tuple[CompactionTarget, Snapshot]:
    place = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=(("n", "int"), ("t", kind)),
        input_format=ORC_INPUT_FORMAT,
        full_acid=True,
        bucketed=False,
    )
    seen = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=2))
    return place, seen


def test_such_files_are_compacted_with_a_stride_that_orc_core_writes(sessions: SparkSessions, tmp_path: Path) -> None:
    for write_id in (1, 2):
        delta(tmp_path, write_id)
    place, seen = target(tmp_path)
    made = plan(place, survey(place, seen), seen, Depth.MAJOR, txn_id=50)
    assert isinstance(made, CompactionPlan)
    (results,) = SparkJobRunner(sessions).run(
        [Job(plan=made)], group="short strides", description="a test", progress=lambda *_: None
    )
    assert isinstance(results, list), results
    verify_output(made, results)
    output = tmp_path / made.items[0].output
    with source(output) as file:
        assert file.tail.footer.row_index_stride == 10_000
    assert OrcFiles(sessions).read(output) == [
        [0, w, BUCKET, n, w, [n, [FAR_SECONDS, 0]]] for w in (1, 2) for n in range(ROWS)
    ]


def test_such_files_are_rebalanced(sessions: SparkSessions, tmp_path: Path) -> None:
    for write_id in (1, 2):
        delta(tmp_path, write_id)
    place, seen = target(tmp_path)
    made = plan_rebalance(place, survey(place, seen), seen, buckets=2, order_by=None, txn_id=50)
    assert isinstance(made, RebalancePlan)
    results = run_rebalance(sessions, made, group="short strides", description="a test", progress=lambda *_: None)
    verify_rebalance(made, results)
    found = [row for r in results for row in OrcFiles(sessions).read(tmp_path / r.output)]
    assert [row[5] for row in found] == [[n, [FAR_SECONDS, 0]] for _ in (1, 2) for n in range(ROWS)]


def test_files_of_types_that_arrow_holds_keep_their_stride_and_their_stripes(tmp_path: Path) -> None:
    for write_id in (1, 2):
        delta(tmp_path, write_id, column=pa.array([f"{write_id} {n}" * 100 for n in range(ROWS)]))
    place, seen = target(tmp_path, "string")
    made = plan(place, survey(place, seen), seen, Depth.MAJOR, txn_id=50)
    assert isinstance(made, CompactionPlan)
    assert made.items[0].template == 0
    assert {run.use for part in made.items[0].parts for run in part.runs} <= {StripeUse.COPY, StripeUse.COALESCE}
