"""A small ACID table, its plan, and the plan carried out without Spark."""

from __future__ import annotations

from pathlib import Path

from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import CompactorError
from compactor.jobs.compaction import Job
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.orc.rewrite import ItemResult
from tests.inline_runner import InlineJobRunner
from tests.orc.acid_files import delete, insert, write_events

B1 = encode_bucket(1)


def two_bucket_table(location: Path) -> None:
    """Three inserts of five rows into each of two buckets, and a delete of a row of the first one."""
    for write_id in (1, 2, 3):
        folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
        rows = [insert(write_id, i, (i, f"w{write_id}r{i}")) for i in range(5)]
        write_events(folder / "bucket_00000_0", rows, stripe_rows=2)
        write_events(
            folder / "bucket_00001_0", [insert(write_id, i, (i, f"w{write_id}b{i}"), bucket=B1) for i in range(5)]
        )
    gone = [delete(RowId(2, encode_bucket(0), 3), by=4)]
    write_events(location / "delete_delta_0000004_0000004_0000" / "bucket_00000_0", gone)


def planned(
    location: Path, depth: Depth, *, columns: tuple[tuple[str, str], ...] = (("id", "int"), ("v", "string"))
) -> CompactionPlan:
    target = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=columns,
        input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        full_acid=True,
        bucketed=False,
    )
    ids = ValidWriteIdList(table="d.t", high_water=4)
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ids)
    made = plan(target, survey(target, snapshot), snapshot, depth, txn_id=50)
    assert isinstance(made, CompactionPlan)
    return made


def direct_results(made: CompactionPlan) -> list[ItemResult]:
    (outcome,) = InlineJobRunner().run([Job(plan=made)], group="here", description="a test", progress=lambda *_: None)
    assert not isinstance(outcome, CompactorError)
    return outcome
