"""Part two of the demo: a year of flights streamed in daily micro-batches, with and without compaction.

Two tables get the same statements: `demo.flights`, which the running daemon looks after, and
`demo.flights_uncompacted`, which has `no_auto_compaction`. A slow reader opens a snapshot of the first one in spring
and keeps it until autumn; its rows must never change, and its files may go only after it has finished.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compactor.demo.daemon import running
from compactor.demo.flights import COLUMNS, Day, FlightYear
from compactor.demo.place import DemoPlace
from compactor.demo.report import Sample, print_samples
from compactor.errors import VerificationError
from compactor.metastore import catalog, history
from compactor.metastore.catalog import TableName
from compactor.metastore.catalog_write import create_database
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.merge import SOURCE
from compactor.table.reader import TableSnapshot, open_snapshot
from compactor.table.writer import TableWriter

COMPACTED = TableName(database="demo", table="flights")
UNCOMPACTED = TableName(database="demo", table="flights_uncompacted")
_CORRECTION_DAYS = 14
_SAMPLE_DAYS = 28
_READER_OPENS, _READER_CLOSES = 90, 270
_SETTLE_S = 60.0
_POLL_S = 0.2


@dataclass(kw_only=True)
class SlowReader:
    """A snapshot that stays open; remembers what it saw at first."""

    snapshot: TableSnapshot
    first: pa.Table
    files: tuple[Path, ...]
    close: Callable[[], None]
    reads: int = 1

    def look_again(self) -> None:
        """Read everything again; VerificationError when a row changed or a file is gone."""
        self.snapshot.heartbeat()
        missing = [str(f) for f in self.files if not f.exists()]
        if missing:
            raise VerificationError(f"files of an open reader were removed: {missing[:3]}")
        if not _rows(self.snapshot).equals(self.first):
            raise VerificationError("the rows of an open reader changed")
        self.reads += 1


@dataclass(kw_only=True)
class _Run:
    """What the stream has seen so far."""

    db: Database
    place: DemoPlace
    year: FlightYear
    samples: list[Sample] = field(default_factory=list)
    corrected: int = 0
    reader: SlowReader | None = None
    reader_report: str = ""


def stream_flights(console: Console, place: DemoPlace, db: Database) -> None:
    """Run it and print what was measured; VerificationError when a row is wrong anywhere."""
    console.rule("[bold]2. A year of flights in daily micro-batches, while the daemon runs[/]", align="left")
    run = _Run(db=db, place=place, year=FlightYear())
    create_database(db, "demo", location=f"file:{place.root}/warehouse/demo.db")
    create_table(db, COMPACTED, COLUMNS)
    create_table(db, UNCOMPACTED, COLUMNS, properties={"no_auto_compaction": "true"})
    place.write_settings(delta_num_threshold=10)
    days = list(run.year.days())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with running(place.config, place.log), Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("days", total=len(days))
        with contextlib.ExitStack() as stack:
            for day in days:
                _one_day(run, day, last=day.number == len(days), stack=stack)
                progress.update(task, completed=day.number, description=f"day {day.number} of 2013")
        progress.update(task, description="the daemon catches up")
        _settle(run)
        run.samples.append(_sample(run, days[-1].number, "settled"))
    _verify(run, days[-1].number)
    print_samples(console, run.samples)
    console.print(run.reader_report)
    console.print(_work_done(db))


def _rows(snapshot: TableSnapshot) -> pa.Table:
    return snapshot.read(COMPACTED).sort_by("flight_id")


def _one_day(run: _Run, day: Day, *, last: bool, stack: contextlib.ExitStack) -> None:
    for name in (COMPACTED, UNCOMPACTED):
        _writer(run.db, name).insert(day.flights)
    if day.number % _CORRECTION_DAYS == 0 or last:
        _correct(run, day.number)
    if day.number == _READER_OPENS:
        run.reader = _open_reader(run, stack)
    if day.number % _SAMPLE_DAYS == 0:
        if run.reader is not None:
            run.reader.look_again()
        run.samples.append(_sample(run, day.number, f"day {day.number}"))
    if day.number == _READER_CLOSES and run.reader is not None:
        run.reader_report = _close_reader(run, run.reader)
        run.reader = None


def _correct(run: _Run, number: int) -> None:
    """Late arrivals are filled in, cancelled flights removed: one MERGE."""
    corrections = run.year.corrections(run.corrected + 1, number)
    for name in (COMPACTED, UNCOMPACTED):
        _writer(run.db, name).merge(
            corrections,
            ["flight_id"],
            when_matched_delete=pc.field(f"{SOURCE}cancelled"),
            when_matched_update={c: pc.field(SOURCE + c) for c in ("arr_time", "arr_delay", "air_time")},
        )
    run.corrected = number


def _writer(db: Database, name: TableName) -> TableWriter:
    return TableWriter(db, open_location, name, user="demo", host="demo")


def _sample(run: _Run, number: int, label: str) -> Sample:
    """Read both tables once, in turns, and count their files."""
    seconds: dict[TableName, float] = {}
    files: dict[TableName, int] = {}
    rows = 0
    for name in (UNCOMPACTED, COMPACTED):
        started = time.perf_counter()
        with open_snapshot(run.db, [name], user="demo", host="demo") as snapshot:
            rows = snapshot.read(name).num_rows
            files[name] = sum(len(t.sources) + len(t.deletes) for t in snapshot.tasks(name))
        seconds[name] = time.perf_counter() - started
    return Sample(
        label=label,
        day=number,
        rows=rows,
        files_without=files[UNCOMPACTED],
        files_with=files[COMPACTED],
        seconds_without=seconds[UNCOMPACTED],
        seconds_with=seconds[COMPACTED],
    )


def _open_reader(run: _Run, stack: contextlib.ExitStack) -> SlowReader:
    inner = stack.enter_context(contextlib.ExitStack())
    snapshot = inner.enter_context(open_snapshot(run.db, [COMPACTED], user="slow reader", host="demo"))
    files = tuple(
        Path(task.location.removeprefix("file:")) / source.path
        for task in snapshot.tasks(COMPACTED)
        for source in (*task.sources, *task.deletes)
    )
    return SlowReader(snapshot=snapshot, first=_rows(snapshot), files=files, close=inner.close)


def _close_reader(run: _Run, reader: SlowReader) -> str:
    """End the reader and wait for its files to go; what to tell about it."""
    reader.look_again()
    held = sum(f.exists() for f in reader.files)
    started = time.monotonic()
    reader.close()
    if not _until(lambda: not any(f.exists() for f in reader.files)):
        raise VerificationError("the files of a finished reader are still there", hint=f"see {run.place.log}")
    waited = time.monotonic() - started
    return (
        f"The slow reader, open from day {_READER_OPENS} to day {_READER_CLOSES}, read its snapshot {reader.reads} "
        f"times: [green]the same rows each time[/]. All {held} of its {len(reader.files)} files were there until it "
        f"ended, and were gone {waited:.1f} s later."
    )


def _settle(run: _Run) -> None:
    """Wait until the queue is empty, for a bounded time."""
    live = (CompactionState.INITIATED, CompactionState.WORKING, CompactionState.READY_FOR_CLEANING)
    calm_since = time.monotonic()

    def calm() -> bool:
        nonlocal calm_since
        rows = history.show_compactions(run.db, filters=history.CompactionFilter(database="demo"))
        if any(r.state in live for r in rows):
            calm_since = time.monotonic()
        # Two looks of the initiator, which has an interval of one second, without a new request.
        return time.monotonic() - calm_since > 2.5

    _until(calm)


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(_POLL_S)
    return False


def _verify(run: _Run, last: int) -> None:
    truth = run.year.truth(last, run.corrected)
    for name in (COMPACTED, UNCOMPACTED):
        with open_snapshot(run.db, [name], user="demo", host="demo") as snapshot:
            found = snapshot.read(name).sort_by("flight_id")
        if not found.equals(truth):
            raise VerificationError(f"{name} does not hold the rows it should", hint=f"see {run.place.log}")


def _work_done(db: Database) -> str:
    rows = history.show_compactions(db, filters=history.CompactionFilter(database="demo"))
    failed = [r for r in rows if r.state is CompactionState.FAILED]
    if failed:
        raise VerificationError(f"{len(failed)} compactions failed: {failed[0].error_message}")
    newest = max((r.id for r in rows), default=0)
    location = catalog.get_table(db, COMPACTED).location
    return f"Every row of both tables is as it should be. The last compaction was number {newest}; table at {location}"
