"""Compactions of one table against `cp` and against PySpark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from pyarrow import orc

from benchmarks.bench import Bench, Case, WrongResult
from benchmarks.contenders import DataPlane, Done, copied
from benchmarks.data import Deletes, TableSpec, data_files, delete_files, deleted_rows
from benchmarks.measure import Contender, in_turns
from benchmarks.report import Bar, Finding
from compactor.acid.planning import Depth

OURS, SYNCED, COPY, PYSPARK = "data plane", "cp, synced", "cp", "PySpark"
_SPARK_BARS = {Deletes.NONE: 100.0, Deletes.CLUSTERED: 20.0, Deletes.SCATTERED_1_IN_100: 4.0}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A compaction of a table. spark_rounds: of the PySpark job, 0: not compared. bars: by what they are against."""

    spec: TableSpec
    deletes: Deletes
    depth: Depth
    cp_bar: float | None = None
    spark_bar: float | None = None
    seconds_bar: float | None = None
    spark_rounds: int = 0

    @property
    def has_bar(self) -> bool:
        return (self.cp_bar, self.spark_bar, self.seconds_bar) != (None, None, None)

    def measure(self, bench: Bench) -> list[Finding]:
        spec = self.spec.scaled(bench.scale)
        location = bench.table(spec, self.deletes)
        plane = DataPlane(
            runner=bench.runner, location=location, columns=spec.columns, depth=self.depth, codec=spec.codec
        )
        done: list[Done] = []
        contenders = [
            Contender(name=OURS, run=lambda: done.append(plane.run()), prepare=plane.prepare, rounds=bench.rounds)
        ]
        target = bench.scratch("copy")
        files = data_files(location) + delete_files(location)
        contenders += [
            Contender(name=n, run=copied(files, target, synced=s), prepare=_removed(target), rounds=bench.rounds)
            for n, s in ((SYNCED, True), (COPY, False))
        ]
        spark_rounds = bench.spark_rounds(self.spark_rounds)
        if spark_rounds:
            job = bench.pyspark_job(spec, location)
            contenders.append(Contender(name=PYSPARK, run=job.run, prepare=job.prepare, rounds=spark_rounds))
        figures = in_turns(contenders)
        self._check(spec, done[-1])
        if spark_rounds:
            written = sum(orc.ORCFile(str(f)).nrows for f in job.target.glob("*.orc"))
            if written != spec.total_rows - deleted_rows(spec, self.deletes):
                raise WrongResult(f"PySpark wrote {written} rows")
            job.prepare()
        plane.prepare()
        _removed(target)()
        bars = {SYNCED: self.cp_bar, PYSPARK: self.spark_bar}
        findings = [
            Finding(
                what=f"{OURS}, {self.depth.value}",
                figure=figures[OURS],
                against=name,
                reference=figures[name],
                bar=Bar(ratio=bars[name]) if bars.get(name) is not None else None,
                note=f"last round: {done[-1]}",
            )
            for name in figures
            if name != OURS
        ]
        if self.seconds_bar is not None:
            bar = Bar(at_most=self.seconds_bar)
            findings.append(Finding(what=f"{OURS}, {self.depth.value}", figure=figures[OURS], bar=bar))
        return findings

    def _check(self, spec: TableSpec, done: Done) -> None:
        """As many rows as there must be."""
        written, gone = done.rows, deleted_rows(spec, self.deletes)
        expected = spec.total_rows - gone if self.depth is Depth.MAJOR else spec.total_rows + gone
        if written != expected:
            raise WrongResult(f"{spec.name}, {self.deletes.value}: {written} rows instead of {expected}")


def compaction_cases() -> list[Case]:
    return [*_major_cases(), *_minor_cases(), *_shape_cases()]


def _major_cases() -> Iterable[Case]:
    for codec, encode_s in (("ZSTD", 9.0), ("ZLIB", 11.0), ("SNAPPY", 7.0)):
        for stripe_mb, deletes in product((8, 64), Deletes):
            # A round of PySpark takes a minute: five on ZSTD, where it is fastest, and one on the other codecs.
            spark_bar = _SPARK_BARS.get(deletes) if stripe_mb == 8 else None
            spark_rounds = 0 if spark_bar is None else 5 if codec == "ZSTD" else 1
            scattered = deletes is Deletes.SCATTERED_1_IN_100
            comparison = Comparison(
                spec=TableSpec(codec=codec, stripe_mb=stripe_mb),
                deletes=deletes,
                depth=Depth.MAJOR,
                cp_bar=0.7 if deletes is Deletes.NONE else None,
                spark_bar=spark_bar,
                spark_rounds=spark_rounds,
                seconds_bar=10.0 if codec == "ZSTD" and stripe_mb == 8 and scattered else None,
            )
            ours_s = {Deletes.NONE: 0.7, Deletes.CLUSTERED: 2.0}.get(deletes, encode_s)
            yield Case(
                id=f"major-{codec.lower()}-{stripe_mb}mb-{deletes.value}",
                group="Major compaction",
                measure=comparison.measure,
                minutes=(5 * (ours_s + 1.5) + 50 * spark_rounds) / 60,
                bar=comparison.has_bar,
            )


def _minor_cases() -> Iterable[Case]:
    for deletes in Deletes:
        comparison = Comparison(spec=TableSpec(codec="ZSTD"), deletes=deletes, depth=Depth.MINOR, cp_bar=0.5)
        yield Case(
            id=f"minor-zstd-8mb-{deletes.value}",
            group="Minor compaction",
            measure=comparison.measure,
            minutes=0.2,
            bar=True,
        )


def _shape_cases() -> Iterable[Case]:
    group = "Many small deltas, many buckets"
    tiny = TableSpec(codec="ZLIB", deltas=1000, rows=1000)
    sixteen = TableSpec(codec="ZSTD", buckets=16)
    for name, spec, deletes, depth, rounds in (
        ("tiny-deltas-major", tiny, Deletes.NONE, Depth.MAJOR, 1),
        ("tiny-deltas-major-1pct", tiny, Deletes.SCATTERED_1_IN_100, Depth.MAJOR, 0),
        ("tiny-deltas-minor", tiny, Deletes.NONE, Depth.MINOR, 0),
        ("sixteen-buckets-none", sixteen, Deletes.NONE, Depth.MAJOR, 1),
        ("sixteen-buckets-1pct", sixteen, Deletes.SCATTERED_1_IN_100, Depth.MAJOR, 1),
    ):
        comparison = Comparison(spec=spec, deletes=deletes, depth=depth, spark_rounds=rounds)
        yield Case(id=name, group=group, measure=comparison.measure, minutes=1.0)


def _removed(path: Path) -> Callable[[], None]:
    return partial(shutil.rmtree, path, ignore_errors=True)
