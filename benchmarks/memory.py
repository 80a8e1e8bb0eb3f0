"""Peaks of memory: of Spark's Python workers, each in a session of its own, and of a bucket that no limit would hold."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Case, sessions
from benchmarks.contenders import DataPlane
from benchmarks.data import Deletes, TableSpec, data_files, forget
from benchmarks.measure import Figure, in_fresh_process
from benchmarks.report import Bar, Finding
from compactor.acid.planning import Depth
from compactor.jobs.compaction import SparkJobRunner

_GROUP = "Memory"
_POLL_S = 0.02
_LIMIT_GB = 1
"""Address space of a worker in the case of the large bucket (RLIMIT_AS, set by Spark)."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of resident memory in MB of 2^20 bytes. worker: the largest of Spark's Python workers; driver: ours."""

    worker: float
    driver: float
    seconds: float
    limit: str


def memory_cases() -> list[Case]:
    small, large = TableSpec(codec="ZSTD"), TableSpec(codec="ZLIB", stripe_mb=64)
    cases = [
        Case(
            id=f"memory-{spec.codec.lower()}-{spec.stripe_mb}mb-{deletes.value}-{depth.value}",
            group=_GROUP,
            measure=partial(_measure, spec, deletes, depth),
            minutes=0.4,
            bar=spec.stripe_mb == 8,
        )
        for spec, deletes, depth in (
            (small, Deletes.NONE, Depth.MAJOR),
            (small, Deletes.CLUSTERED, Depth.MAJOR),
            (small, Deletes.SCATTERED_1_IN_100, Depth.MAJOR),
            (small, Deletes.SCATTERED_1_IN_10, Depth.MAJOR),
            (small, Deletes.SCATTERED_1_IN_10, Depth.MINOR),
            (large, Deletes.SCATTERED_1_IN_100, Depth.MAJOR),
        )
    ]
    return [*cases, Case(id="memory-large-bucket", group=_GROUP, measure=_large_bucket, minutes=2.0, bar=True)]


def _measure(spec: TableSpec, deletes: Deletes, depth: Depth, bench: Bench) -> list[Finding]:
    spec = spec.scaled(bench.scale)
    peaks = in_fresh_process(peaks_of, bench.work, bench.table(spec, deletes), spec, depth, None)
    bar = Bar(at_most=256) if spec.stripe_mb == 8 else None
    return _findings(peaks, depth, bar, note=f"{peaks.seconds:.1f} s")


def _large_bucket(bench: Bench) -> list[Finding]:
    """5.6 GB in one bucket, of which every stripe is encoded anew, in workers that may have 1 GB each."""
    spec = TableSpec(codec="NONE", deltas=8, rows=700_000, wide=True).scaled(bench.scale)
    location = bench.table(spec, Deletes.SCATTERED_1_IN_100)
    gigabytes = sum(f.stat().st_size for f in data_files(location)) / 1e9
    peaks = in_fresh_process(peaks_of, bench.work, location, spec, Depth.MAJOR, _LIMIT_GB)
    forget(spec, bench.work)
    note = f"a bucket of {gigabytes:.1f} GB in {peaks.seconds:.0f} s, address space of a worker: {peaks.limit}"
    return _findings(peaks, Depth.MAJOR, Bar(at_most=256), note=note)


def _findings(peaks: Peaks, depth: Depth, bar: Bar | None, note: str) -> list[Finding]:
    worker = Figure(samples=(peaks.worker,), unit="MB")
    driver = Figure(samples=(peaks.driver,), unit="MB")
    return [
        Finding(what=f"largest task, {depth.value}", figure=worker, bar=bar, note=note),
        Finding(what=f"driver, {depth.value}", figure=driver),
    ]


def peaks_of(work: Path, location: Path, spec: TableSpec, depth: Depth, limit_gb: int | None) -> Peaks:
    """Carry one compaction out in this process, which must be a fresh one, and look at what it took.

    limit_gb: address space of a Python worker.
    """
    conf = {} if limit_gb is None else {"spark.executor.pyspark.memory": f"{limit_gb}g"}
    spark = sessions(work, **conf)
    plane = DataPlane(
        runner=SparkJobRunner(spark), location=location, columns=spec.columns, depth=depth, codec=spec.codec
    )
    java = spark.get().sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    started = time.monotonic()
    with _watched_workers(java) as workers:
        plane.run()
    took = time.monotonic() - started
    plane.prepare()
    spark.stop()
    return Peaks(
        worker=max(peak for peak, _ in workers.values()),
        # Not ru_maxrss, which also remembers the process that this one was started from.
        driver=_status(os.getpid())[1],
        seconds=took,
        limit=" and ".join(sorted({limit for _, limit in workers.values()})),
    )


@contextmanager
def _watched_workers(java: int) -> Iterator[dict[int, tuple[float, str]]]:
    """(peak in MB, limit of the address space) of every Python worker below `java`, by process id.

    The kernel keeps the peak (VmHWM); looking often only serves to meet those that
    end early.
    """
    found: dict[int, tuple[float, str]] = {}
    over = threading.Event()

    def watch() -> None:
        while True:
            found.update(_python_below(java))
            if over.wait(_POLL_S):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found.update(_python_below(java))


def _python_below(java: int) -> Iterator[tuple[int, tuple[float, str]]]:
    children = _children()
    # The first generation is the daemon that the workers are forked from.
    below = [worker for daemon in children.get(java, ()) for worker in children.get(daemon, ())]
    while below:
        pid = below.pop()
        below += children.get(pid, ())
        try:
            name, peak = _status(pid)
            limits = Path(f"/proc/{pid}/limits").read_text()
        except OSError:
            # It ended meanwhile.
            continue
        if name.startswith("python") and peak:
            limit = next(line.split()[3] for line in limits.splitlines() if line.startswith("Max address space"))
            yield pid, (peak, limit if limit == "unlimited" else f"{int(limit) / 2**30:.1f} GB")


def _status(pid: int) -> tuple[str, float]:
    """Name of a process and its peak of resident memory in MB; 0 when it is just ending."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return fields["Name"].strip(), int(fields.get("VmHWM", "0 kB").split()[0]) / 1024


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in brackets, may hold spaces and brackets itself.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    return children
