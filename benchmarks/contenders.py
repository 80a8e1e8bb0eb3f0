"""What is compared: the data plane, `cp`, and the PySpark job that one would write without knowing the format."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.data import data_files, delete_files
from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import CompactorError
from compactor.jobs.compaction import Job, JobRunner
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.verify import verify_output
from compactor.metastore.catalog_write import ORC_INPUT_FORMAT
from compactor.orc.rewrite import ItemResult

_TXN = 100
"""The compactor's transaction: marks its output among the directories."""
_KEYS = ["originalTransaction", "bucket", "rowId"]


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a compaction did, and the seconds of its steps."""

    items: tuple[ItemResult, ...]
    plan_s: float
    job_s: float
    verify_s: float

    @property
    def rows(self) -> int:
        return sum(item.rows_out for item in self.items)

    def __str__(self) -> str:
        copies, encodes = sum(i.stripes_copied for i in self.items), sum(i.stripes_encoded for i in self.items)
        return (
            f"{copies} stripes copied, {encodes} encoded, {sum(i.size for i in self.items) / 1e6:.0f} MB out; "
            f"plan {self.plan_s:.2f} s, job {self.job_s:.2f} s, verification {self.verify_s:.2f} s"
        )


@dataclass(frozen=True, kw_only=True)
class DataPlane:
    """Listing, plan, Spark job and verification of one compaction: all of a worker's cycle but the database."""

    runner: JobRunner
    location: Path
    columns: tuple[tuple[str, str], ...]
    depth: Depth
    codec: str

    def run(self) -> Done:
        started = time.perf_counter()
        made = self.plan()
        planned = time.perf_counter()
        (outcome,) = self.runner.run(
            [Job(plan=made)],
            group="benchmark",
            description=f"{self.depth.value} {self.location.name}",
            progress=lambda *_: None,
        )
        if isinstance(outcome, CompactorError):
            raise outcome
        written = time.perf_counter()
        verify_output(made, outcome)
        return Done(
            items=tuple(outcome),
            plan_s=planned - started,
            job_s=written - planned,
            verify_s=time.perf_counter() - written,
        )

    @property
    def target(self) -> CompactionTarget:
        return CompactionTarget(
            name="default.benchmark",
            location=f"file:{self.location}",
            columns=self.columns,
            input_format=ORC_INPUT_FORMAT,
            full_acid=True,
            bucketed=False,
        )

    @property
    def snapshot(self) -> Snapshot:
        """Everything that was written is committed, no output of ours is."""
        writes = len(list(self.location.glob("delta_*_0000"))) + 1
        return Snapshot(
            txns=ValidTxnList(high_water=_TXN - 1),
            write_ids=ValidWriteIdList(table=self.target.name, high_water=writes).for_compaction(),
        )

    def plan(self) -> CompactionPlan:
        surveyed = survey(self.target, self.snapshot)
        made = plan(self.target, surveyed, self.snapshot, self.depth, txn_id=_TXN)
        if not isinstance(made, CompactionPlan):
            raise TypeError(f"{self.location}: {made.reason}")
        return made

    def prepare(self) -> None:
        """Remove what an earlier round wrote."""
        for directory in self.output():
            shutil.rmtree(directory)

    def output(self) -> list[Path]:
        return list(self.location.glob(f"*_v{_TXN:07d}"))


def copied(sources: Sequence[Path], target: Path, *, synced: bool) -> Callable[[], None]:
    """`cp` of files into one directory; synced: and forced to disk, as the data plane does with what it writes."""

    def run() -> None:
        target.mkdir()
        # The files of deltas have one name: each gets the folder it lies in.
        subprocess.run(["cp", "-r", *sorted({str(s.parent) for s in sources}), str(target)], check=True)
        for path in [*target.rglob("*"), target] if synced else ():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    return run


@dataclass(frozen=True, kw_only=True)
class PySparkJob:
    """Read, anti-join, sort, write: a major compaction as a DataFrame job.

    One bucket is sorted by ranges of keys, so that all cores take part; its files, one a range, are in order.
    Several buckets are sorted each by itself.
    """

    session: SparkSession
    location: Path
    buckets: int
    codec: str
    target: Path

    def run(self) -> None:
        rows = self.session.read.orc([str(f) for f in data_files(self.location)])
        deletes = delete_files(self.location)
        if deletes:
            # Cached, because Spark's reader fails on ACID files when it prunes their columns.
            keys = self.session.read.orc([str(f) for f in deletes]).cache()
            rows = rows.join(keys.select(*_KEYS), on=_KEYS, how="left_anti").select(*rows.columns)
        parallel = self.session.sparkContext.defaultParallelism
        if self.buckets == 1:
            placed = rows.repartitionByRange(parallel, *_KEYS)
        else:
            placed = rows.repartition(self.buckets, "bucket")
        placed.sortWithinPartitions(*_KEYS).write.option("compression", self.codec.lower()).orc(str(self.target))
        if deletes:
            keys.unpersist()

    def prepare(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
