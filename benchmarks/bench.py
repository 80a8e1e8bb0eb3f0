"""What all cases share: the work directory, how large and how often, one warm Spark session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.contenders import DataPlane, PySparkJob
from benchmarks.data import COLUMNS, Deletes, TableSpec, prepared
from benchmarks.measure import read_once
from benchmarks.report import Finding
from compactor.acid.planning import Depth
from compactor.jobs.compaction import JobRunner, SparkJobRunner
from compactor.jobs.session import SparkSessions

CORES = 2
"""The bars are about two cores: `local[2]`, whatever the machine has."""


_WARM_UP = TableSpec(codec="ZSTD", deltas=4, rows=20_000)


class WrongResult(Exception):
    """A contender did not do what it was timed for."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to measure. group: heading in the results; minutes: about how long on two cores; bar: it has one."""

    id: str
    group: str
    measure: Callable[[Bench], list[Finding]]
    minutes: float
    bar: bool = False


class Bench:
    """work: everything is written below it. scale: of the tables' rows. spark_rounds: None is as the case wants it."""

    def __init__(
        self,
        *,
        work: Path,
        scale: float = 1.0,
        rounds: int = 5,
        spark_rounds: int | None = None,
        runner: JobRunner | None = None,
    ) -> None:
        self.work, self.scale, self.rounds, self._spark_rounds = work, scale, rounds, spark_rounds
        self._given = runner
        self._warm_ups = 0

    def spark_rounds(self, wanted: int) -> int:
        return wanted if self._spark_rounds is None else min(self._spark_rounds, wanted)

    @cached_property
    def sessions(self) -> SparkSessions:
        return sessions(self.work)

    @cached_property
    def runner(self) -> JobRunner:
        """On Spark, warmed by a small compaction: Java, its compiler and the Python workers have started."""
        runner = self._given or SparkJobRunner(self.sessions)
        for deletes in (Deletes.NONE, Deletes.SCATTERED_1_IN_100):
            plane = DataPlane(
                runner=runner,
                location=prepared(_WARM_UP, deletes, self.work),
                columns=COLUMNS,
                depth=Depth.MAJOR,
                codec=_WARM_UP.codec,
            )
            plane.run()
            plane.prepare()
        return runner

    def pyspark_job(self, spec: TableSpec, location: Path) -> PySparkJob:
        """The job for a table, in a session in which one of its kind has run before."""
        job = self._pyspark_job(_WARM_UP, prepared(_WARM_UP, Deletes.SCATTERED_1_IN_100, self.work))
        while self._warm_ups < 2:
            job.run()
            job.prepare()
            self._warm_ups += 1
        return self._pyspark_job(spec, location)

    def _pyspark_job(self, spec: TableSpec, location: Path) -> PySparkJob:
        return PySparkJob(
            session=self.sessions.get(),
            location=location,
            buckets=spec.buckets,
            codec=spec.codec,
            target=self.scratch("pyspark"),
        )

    def table(self, spec: TableSpec, deletes: Deletes) -> Path:
        """The location of a table, its files in the page cache."""
        location = prepared(spec, deletes, self.work)
        read_once(p for p in location.rglob("*") if p.is_file())
        return location

    def scratch(self, name: str) -> Path:
        """An unused path below the work directory."""
        path = self.work / "scratch" / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        if "sessions" in self.__dict__:
            self.sessions.stop()
        shutil.rmtree(self.work / "scratch", ignore_errors=True)


def sessions(work: Path, **conf: str) -> SparkSessions:
    """A session that writes below `work` only. 4 GB of heap are for the PySpark job; compactions need far less."""
    spark = work / "spark"
    spark.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_LOCAL_DIRS"] = str(spark)
    places = {"spark.sql.warehouse.dir": f"file:{spark}/warehouse", "spark.local.dir": str(spark)}
    return SparkSessions(
        master=f"local[{CORES}]", app_name="benchmarks", driver_memory="4g", conf=places | conf, cache=work / "java"
    )
