"""What `initiator.choose = cost` gains on scattered deletes: Hive's rule asks for a major, the price for what pays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Case, WrongResult
from benchmarks.contenders import DataPlane
from benchmarks.data import Deletes, TableSpec
from benchmarks.measure import Contender, in_turns
from benchmarks.report import Finding
from compactor.acid.planning import Depth
from compactor.acid.rates import DEFAULTS
from compactor.acid.schema import struct_of
from compactor.acid.sources import SourceFile
from compactor.jobs.planner import survey
from compactor.service.offers import offers
from compactor.settings import InitiatorSettings
from compactor.storage.filesystem import open_location
from compactor.table.scan import ScanTask, read_task
from compactor.table.values import FileFormat
from initiator.choose import choose
from initiator.decide import Initiate, Thresholds, decide, measure

_SCANS = (1, 10, 100)
"""Full scans that are expected before the next compaction; the setting's default is the last."""


def choice_cases() -> list[Case]:
    return [
        Case(
            id=f"choice-{deletes.value}",
            group="The price decides: choose = cost",
            measure=partial(_measure, deletes),
            minutes=minutes,
        )
        for deletes, minutes in ((Deletes.SCATTERED_1_IN_10000, 3.0), (Deletes.SCATTERED_1_IN_100, 3.0))
    ]


def _measure(deletes: Deletes, bench: Bench) -> list[Finding]:
    spec = TableSpec(codec="ZSTD").scaled(bench.scale)
    location = bench.table(spec, deletes)
    planes = {
        depth: DataPlane(runner=bench.runner, location=location, columns=spec.columns, depth=depth, codec=spec.codec)
        for depth in Depth
    }
    wanted, told = _decisions(planes[Depth.MAJOR])
    contenders: list[Contender] = []
    for depth, plane in planes.items():
        contenders += [
            Contender(name=depth.value, run=plane.run, prepare=plane.prepare, rounds=bench.rounds),
            Contender(
                name=f"scan after {depth.value}",
                run=partial(_scan, plane, spec),
                prepare=lambda: None,
                rounds=bench.rounds,
            ),
        ]
    figures = in_turns(contenders)
    planes[Depth.MAJOR].prepare()
    minor, major = figures[Depth.MINOR.value], figures[Depth.MAJOR.value]
    scans = figures["scan after minor"], figures["scan after major"]
    spared = scans[0].median - scans[1].median
    pays = f"a major pays after {(major.median - minor.median) / spared:.0f} scans" if spared > 0 else ""
    return [
        Finding(
            what="data plane, minor", figure=minor, against=f"data plane, {wanted.value}", reference=major, note=told
        ),
        Finding(
            what="full scan after the minor",
            figure=scans[0],
            against="full scan after the major",
            reference=scans[1],
            note=pays,
        ),
    ]


def _decisions(plane: DataPlane) -> tuple[Depth, str]:
    """What Hive's rule asks for, and in words what the price asks for, by the number of scans that are expected."""
    settings = InitiatorSettings()
    surveyed = survey(plane.target, plane.snapshot)
    measured = measure(surveyed.state, surveyed.listing)
    hive = decide(measured, Thresholds(delta_num=settings.delta_num_threshold, delta_pct=settings.delta_pct_threshold))
    if not isinstance(hive, Initiate):
        raise WrongResult(f"Hive's rule leaves the table alone: {hive.reason}")
    prices = offers(plane.target, surveyed, plane.snapshot).prices
    answers = {scans: choose(hive, prices, measured, DEFAULTS, scans=scans) for scans in _SCANS}
    words = [
        f"{scans} scans: {answer.depth.value if isinstance(answer, Initiate) else 'nothing'}"
        for scans, answer in answers.items()
    ]
    return hive.depth, f"hive: {hive.depth.value}; cost with {', '.join(words)}"


def _scan(plane: DataPlane, spec: TableSpec) -> None:
    """Read what the compaction left, deletes applied."""
    data: list[SourceFile] = []
    deletes: list[SourceFile] = []
    for directory in plane.output():
        for file in directory.glob("bucket_*"):
            (deletes if directory.name.startswith("delete_") else data).append(_source(file, plane.location))
    task = ScanTask(
        location=str(plane.location),
        partition=None,
        values=(),
        bucket=0,
        format=FileFormat.ORC,
        full_acid=True,
        row_type=struct_of(spec.columns),
        partition_types=(),
        write_ids=plane.snapshot.write_ids,
        sources=tuple(data),
        deletes=tuple(deletes),
    )
    rows = sum(batch.rows.num_rows for batch in read_task(task, open_location))
    if not rows:
        raise WrongResult("the scan found no row")


def _source(file: Path, location: Path) -> SourceFile:
    return SourceFile(path=str(file.relative_to(location)), size=file.stat().st_size, rows=0)
