"""Tiny partitions through the real worker: a warm Spark session, SQLite, all steps from claim to publication."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.bench import CORES, Bench, Case, WrongResult
from benchmarks.measure import Figure, in_fresh_process, seconds
from benchmarks.report import Bar, Finding
from compactor.cli.daemon import Role, duties_of
from compactor.cli.installation import Installation, Options
from compactor.metastore import history, queue
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.schema import init_db
from compactor.service.logs import configure_logging
from compactor.service.loop import CycleResult
from compactor.service.signals import StopRequest
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.writer import TableWriter

_GROUP = "Tiny partitions through a warm daemon"
_TABLE = TableName(database="default", table="events")
_DELTAS, _ROWS = 3, 10
_WARM_UP = 4


def daemon_cases() -> list[Case]:
    return [
        Case(id="daemon-one-tiny-partition", group=_GROUP, measure=_one, minutes=0.4, bar=True),
        Case(id="daemon-1000-tiny-partitions", group=_GROUP, measure=_thousand, minutes=1.5, bar=True),
    ]


def _one(bench: Bench) -> list[Finding]:
    rounds = max(bench.rounds, 5) * 2
    taken = in_fresh_process(one_by_one, bench.scratch("one"), rounds)
    what = "worker's cycle, claim to publication, one partition"
    note = f"{_DELTAS} deltas of {_ROWS} rows a partition"
    return [Finding(what=what, figure=Figure(samples=taken), bar=Bar(at_most=0.3), note=note)]


def _thousand(bench: Bench) -> list[Finding]:
    count = max(int(1000 * bench.scale), 10)
    taken = in_fresh_process(all_at_once, bench.scratch("thousand"), count)
    what = f"worker until idle, {count} partitions"
    note = f"{count / taken:.0f} partitions a second, {_DELTAS} deltas of {_ROWS} rows each"
    return [Finding(what=what, figure=Figure(samples=(taken,)), bar=Bar(at_most=60), note=note)]


def one_by_one(root: Path, count: int) -> tuple[float, ...]:
    """Seconds of each of `count` compactions that come one after the other; run in a process of its own."""
    return tuple(_with_worker(root, count, lambda cycle, ask: [_alone(cycle, ask, i) for i in range(count)]))


def all_at_once(root: Path, count: int) -> float:
    """Seconds for `count` compactions that are all queued before the first is claimed; in a process of its own."""

    def work(cycle: Callable[[], CycleResult], ask: Callable[[int], None]) -> Sequence[float]:
        for partition in range(count):
            ask(partition)
        return [seconds(partial(_until_idle, cycle))]

    (total,) = _with_worker(root, count, work)
    return total


def _alone(cycle: Callable[[], CycleResult], ask: Callable[[int], None], partition: int) -> float:
    ask(partition)
    return seconds(cycle)


def _until_idle(cycle: Callable[[], CycleResult]) -> None:
    while cycle().did_anything:
        pass


def _with_worker(
    root: Path, count: int, work: Callable[[Callable[[], CycleResult], Callable[[int], None]], Sequence[float]]
) -> Sequence[float]:
    """Let a warm worker do `work` on a table of `count` partitions. ask: queue a compaction of one of them."""
    installation = _installation(root)
    _fill(installation, count + _WARM_UP)
    (worker,) = duties_of(installation, Role.WORKER, StopRequest(), lambda *_: None)

    def ask(partition: int) -> None:
        wish = CompactionRequest(
            table=_TABLE,
            partition=f"part={partition:05d}",
            type=CompactionType.MAJOR,
            initiator_id=f"{installation.host}-benchmark",
            initiator_version="0",
        )
        queue.request_compaction(installation.db, wish)

    try:
        for partition in range(count, count + _WARM_UP):
            _alone(worker.cycle, ask, partition)
        taken = work(worker.cycle, ask)
        done = [
            row for row in history.show_compactions(installation.db) if row.state is CompactionState.READY_FOR_CLEANING
        ]
        if len(done) != count + _WARM_UP:
            raise WrongResult(f"{len(done)} of {count + _WARM_UP} compactions were published")
        return taken
    finally:
        installation.close()
        shutil.rmtree(root)


def _installation(root: Path) -> Installation:
    configure_logging(level="error", form="auto", stream=sys.stderr)
    root.mkdir(parents=True)
    spark = root / "spark"
    spark.mkdir()
    os.environ["SPARK_LOCAL_DIRS"] = str(spark)
    settings = (
        f"database_url=sqlite:///{root}/metastore.db",
        f"warehouse=file:{root}/warehouse",
        f"spark.master=local[{CORES}]",
        "worker.threads=1",
    )
    installation = Installation(Options(config=None, hive_site=None, assignments=settings), {})
    init_db(installation.unchecked_database, warehouse=installation.settings.warehouse)
    return installation


def _fill(installation: Installation, partitions: int) -> None:
    """Every transaction writes into every partition."""
    create_table(installation.db, _TABLE, (("id", "int"), ("item", "string")), partitioned_by=(("part", "string"),))
    writer = TableWriter(installation.db, open_location, _TABLE, user="benchmark", host=installation.host)
    count = partitions * _ROWS
    for delta in range(_DELTAS):
        rows = {
            "id": pa.array(range(count), pa.int32()),
            "item": pa.array([f"item {i} of {delta}" for i in range(count)]),
            "part": pa.array([f"{i // _ROWS:05d}" for i in range(count)]),
        }
        writer.insert(pa.table(rows))
