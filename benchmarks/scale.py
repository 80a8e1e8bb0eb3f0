"""How the daemon's cycles grow with what exists: partitions, rows in the queue, open transactions, the catalogue."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import sqlalchemy as sa

from benchmarks.bench import Bench, Case, WrongResult
from benchmarks.measure import Figure, in_fresh_process, seconds
from benchmarks.report import Bar, Finding
from benchmarks.scale_world import DELTAS, FILE, ScaleWorld, put
from cleaner.service import Cleaner
from compactor.acid.layout import base_name
from compactor.metastore.candidates import record_full_look
from compactor.metastore.database import Database
from compactor.metastore.queue import claim
from compactor.metastore.schema import COMPACTION_QUEUE, TXNS
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.txns import commit_transaction, min_open_txn, open_transactions
from compactor.service.logs import configure_logging
from compactor.service.metrics import Metrics
from compactor.settings import Settings
from compactor.storage.filesystem import open_location
from initiator.service import Initiator

POSTGRESQL = "COMPACTOR_BENCH_POSTGRESQL"
"""SQLAlchemy URL of an empty PostgreSQL database, postgresql://…; without it claims are not measured."""

_GROUP = "Scale"
_WORKERS = 8
_CLAIMS = 1500
_COMPACTION_TXN = 1000


def scale_cases() -> list[Case]:
    return [
        Case(id="scale-initiator", group=_GROUP, measure=_initiator, minutes=2.0, bar=True),
        Case(id="scale-claims", group=_GROUP, measure=_claims, minutes=1.5, bar=True),
        Case(id="scale-cleaner", group=_GROUP, measure=_cleaner, minutes=1.0, bar=True),
        Case(id="scale-open-transactions", group=_GROUP, measure=_open_transactions, minutes=0.5),
        Case(id="scale-catalogue", group=_GROUP, measure=_catalogue, minutes=4.0, bar=True),
    ]


def _initiator(bench: Bench) -> list[Finding]:
    changed = max(int(1000 * bench.scale), 10)
    findings = []
    smallest: Figure | None = None
    for existing in (changed, 10 * changed, 100 * changed):
        taken = in_fresh_process(initiator_cycle, bench.scratch("initiator"), existing, changed)
        figure = Figure(samples=(taken,))
        findings.append(
            Finding(
                what=f"initiator's cycle, {changed} of {existing} partitions changed, each requested",
                figure=figure,
                against="" if smallest is None else f"{changed} of {changed}",
                reference=smallest,
                bar=Bar(at_most=60) if existing == 100 * changed else None,
                note=f"{existing} writes not compacted, {existing} rows of history; SQLite",
            )
        )
        smallest = smallest or figure
    candidates = max(int(10_000 * bench.scale), 100)
    findings.append(
        Finding(
            what=f"initiator's full look, {candidates} candidates, each requested",
            figure=Figure(samples=(in_fresh_process(full_look, bench.scratch("initiator"), candidates),)),
            bar=Bar(at_most=60),
            note=f"{DELTAS} deltas in each; SQLite",
        )
    )
    return findings


def full_look(root: Path, candidates: int) -> float:
    """Seconds of the first cycle of an installation in which everything needs a compaction."""
    world = _world(root)
    world.change(world.create(candidates, files=False))
    role = _initiator_role(world, root)
    taken = seconds(lambda: _expect(len(role.run_once().requested), candidates))
    _remove(world, root)
    return taken


def initiator_cycle(root: Path, existing: int, changed: int) -> float:
    """Seconds of a cycle of a new process that looks at what changed since the last one."""
    world = _world(root)
    places = world.create(existing, files=False)
    world.change(places[:: existing // changed][:changed])
    world.leave_cycle_time()
    with world.db.read() as conn:
        now = world.db.now(conn)
    record_full_look(world.db, now)
    role = _initiator_role(world, root)
    taken = seconds(lambda: _expect(len(role.run_once().requested), changed))
    _remove(world, root)
    return taken


def _initiator_role(world: ScaleWorld, root: Path) -> Initiator:
    metrics = Metrics(version="0")
    return Initiator(world.db, open_location, _settings(root), metrics, "host", "0", prices_of=lambda *_: {})


def _claims(bench: Bench) -> list[Finding]:
    url = os.environ.get(POSTGRESQL)
    what = f"a claim, {_WORKERS} workers on PostgreSQL"
    if not url:
        return [Finding(what=what, figure=None, note=f"{POSTGRESQL} is not set")]
    world = ScaleWorld(Database.connect(url), bench.scratch("claims"))
    places = world.create(max(int(100_000 * bench.scale), 1000), files=False)
    findings = []
    smallest: Figure | None = None
    for waiting in (len(places) // 50, len(places) // 10, len(places)):
        with world.db.write() as conn:
            conn.execute(sa.delete(COMPACTION_QUEUE))
        world.queue(places[:waiting])
        count = min(_CLAIMS, waiting // 2)
        taken = in_fresh_process(claim_together, url, count)
        figure = Figure(samples=(taken / count * 1000,), unit="ms")
        findings.append(
            Finding(
                what=f"{what}, {waiting} requests waiting",
                figure=figure,
                against="" if smallest is None else f"{len(places) // 50} waiting",
                reference=smallest,
                bar=Bar(at_most=3.3),
                note=f"{count / taken:.0f} claims a second, {count} of them, each worker a process of its own",
            )
        )
        smallest = smallest or figure
    world.db.dispose()
    return findings


def claim_together(url: str, count: int) -> float:
    """Seconds until `_WORKERS` processes together have made so many claims, all of them different."""
    # a fresh process has no threads that a fork would lose
    context = get_context("fork")
    ready, ids = context.Barrier(_WORKERS + 1), context.Queue()
    workers = [
        context.Process(target=claim_many, args=(url, number, count // _WORKERS, ready, ids))
        for number in range(_WORKERS)
    ]
    for process in workers:
        process.start()
    ready.wait(120)
    started = time.perf_counter()
    claimed = [i for _ in workers for i in ids.get(timeout=170)]
    taken = time.perf_counter() - started
    for process in workers:
        process.join(30)
    _expect(len(set(claimed)), count // _WORKERS * _WORKERS)
    return taken


def claim_many(url: str, number: int, count: int, ready: object, ids: object) -> None:
    """One worker: wait for the others, claim, tell which."""
    db = Database.connect(url)
    with db.read():
        pass
    ready.wait(120)  # type: ignore[attr-defined]
    found = [claim(db, worker_id=f"host-{number}.{i}", worker_version="0") for i in range(count)]
    ids.put([row.id for row in found if row is not None])  # type: ignore[attr-defined]
    db.dispose()


def _cleaner(bench: Bench) -> list[Finding]:
    files = max(int(14_000 * bench.scale), 280)
    findings = []
    for partitions in (max(files // 1400, 1), files // 14):
        shape = (partitions, files // partitions)
        before = in_fresh_process(bare_deletions, bench.scratch("bare"), *shape)
        taken = in_fresh_process(cleaner_cycles, bench.scratch("cleaner"), *shape)
        # what a disk needs to forget a directory changes with what else it does
        after = in_fresh_process(bare_deletions, bench.scratch("bare"), *shape)
        findings.append(
            Finding(
                what=f"a file that the cleaner deletes with its directory, {partitions} partitions",
                figure=Figure(samples=(taken / files * 1000,), unit="ms"),
                against="unlink and rmdir alone",
                reference=Figure(samples=(before / files * 1000, after / files * 1000), unit="ms"),
                bar=Bar(at_most=0.5),
                note=f"{files / taken:.0f} files a second, {partitions / taken:.0f} partitions a second; SQLite, 1 thread",
            )
        )
    return findings


def bare_deletions(root: Path, partitions: int, files: int) -> float:
    """Seconds to delete as many directories of one file in the same shape, with nothing to think about."""
    places = [root / str(partition) / str(number) for partition in range(partitions) for number in range(files)]
    for place in places:
        put(place)

    def delete() -> None:
        for place in places:
            (place / FILE).unlink()
            place.rmdir()

    taken = seconds(delete)
    shutil.rmtree(root)
    return taken


def cleaner_cycles(root: Path, partitions: int, files: int) -> float:
    """Seconds to clean so many partitions, in each of which a compaction replaced so many directories of one file."""
    world = _world(root)
    places = world.create(partitions, files=False)
    for place in places:
        for number in range(1, files + 1):
            put(place.directory / f"delta_{number:07d}_{number:07d}_0000")
        put(place.directory / base_name(files, _COMPACTION_TXN))
    with world.db.write() as conn:
        now = world.db.now(conn)
        names = {"TXN_USER": "u", "TXN_HOST": "h"}
        times = {"TXN_STARTED": now, "TXN_LAST_HEARTBEAT": now}
        conn.execute(sa.insert(TXNS).values(TXN_ID=_COMPACTION_TXN, TXN_STATE="c", TXN_TYPE=3, **names, **times))
    world.queue(
        places,
        CQ_STATE="r",
        CQ_TXN_ID=_COMPACTION_TXN,
        CQ_NEXT_TXN_ID=_COMPACTION_TXN,
        CQ_HIGHEST_WRITE_ID=files,
        CQ_COMMIT_TIME=1,
    )
    world.written_up_to(files)
    role = Cleaner(world.db, open_location, _settings(root), Metrics(version="0"), "host")
    removed = 0

    def clean() -> None:
        nonlocal removed
        while (result := role.run_once()).did_anything:
            removed += result.files_removed

    taken = seconds(clean)
    _expect(removed, partitions * files)
    _remove(world, root)
    return taken


def _open_transactions(bench: Bench) -> list[Finding]:
    findings = []
    counts = [max(int(count * bench.scale), 2) for count in (10, 1000, 10_000)]
    smallest: dict[str, Figure] = {}
    for count in counts:
        for what, taken in in_fresh_process(steps_beside, bench.scratch("open"), count).items():
            figure = Figure(samples=tuple(1000 * sample for sample in taken), unit="ms")
            findings.append(
                Finding(
                    what=f"{what}, {count} transactions open",
                    figure=figure,
                    against=f"{counts[0]} open" if what in smallest else "",
                    reference=smallest.get(what),
                    note="SQLite",
                )
            )
            smallest.setdefault(what, figure)
    return findings


def steps_beside(root: Path, count: int) -> dict[str, list[float]]:
    """Seconds of what everybody does all the time, while so many transactions are open."""
    world = _world(root)
    places = world.create(100, files=False)
    world.queue(places)
    world.open(count)
    db = world.db
    rounds = 20
    opened = open_transactions(db, count=rounds, user="u", host="h")
    steps: dict[str, Callable[[int], object]] = {
        "snapshot": lambda _: valid_txn_list(db),
        "oldest open transaction": lambda _: min_open_txn(db),
        "claim": lambda i: claim(db, worker_id=f"host-1.{i}", worker_version="0"),
        "opening": lambda _: open_transactions(db, user="u", host="h"),
        "commit": lambda i: commit_transaction(db, opened[i]),
    }
    taken = {name: [seconds(partial(step, i)) for i in range(rounds)] for name, step in steps.items()}
    _remove(world, root)
    return taken


def _catalogue(bench: Bench) -> list[Finding]:
    partitions = max(int(1_000_000 * bench.scale), 1000)
    peak, note = in_fresh_process(roles_beside, bench.scratch("catalogue"), partitions)
    return [
        Finding(
            what=f"initiator and cleaner in one process, {partitions} partitions in the catalogue",
            figure=Figure(samples=(peak,), unit="MB"),
            bar=Bar(at_most=500),
            note=note,
        )
    ]


def roles_beside(root: Path, partitions: int) -> tuple[float, str]:
    """Peak of resident memory in MB of cycles of each role, 1,000 partitions changed and 1,000 to clean."""
    in_fresh_process(fill_catalogue, root, partitions)
    configure_logging(level="error", form="auto", stream=sys.stderr)
    db = Database.connect(_url(root))
    settings = _settings(root)
    initiator = Initiator(db, open_location, settings, Metrics(version="0"), "host", "0", prices_of=lambda *_: {})
    cleaner = Cleaner(db, open_location, settings, Metrics(version="0"), "host")
    first = initiator.run_once()
    cleaned = cleaner.run_once()
    peak = _peak_mb()
    db.dispose()
    shutil.rmtree(root)
    return peak, f"{first.candidates} looked at, {cleaned.cleaned} cleaned; SQLite"


def fill_catalogue(root: Path, partitions: int) -> None:
    """In a process of its own, whose memory is not measured."""
    world = _world(root)
    places = world.create(partitions, files=False)
    some = places[:: max(partitions // 1000, 1)][:1000]
    world.change(some)
    world.leave_cycle_time()
    with world.db.read() as conn:
        now = world.db.now(conn)
    record_full_look(world.db, now)
    others = places[1 :: max(partitions // 1000, 1)][:1000]
    for place in others:
        put(place.directory / base_name(1))
    world.queue(others, CQ_STATE="r", CQ_NEXT_TXN_ID=1, CQ_HIGHEST_WRITE_ID=1, CQ_COMMIT_TIME=1)
    world.db.dispose()


def _world(root: Path) -> ScaleWorld:
    configure_logging(level="error", form="auto", stream=sys.stderr)
    root.mkdir(parents=True)
    return ScaleWorld(Database.connect(_url(root)), root)


def _url(root: Path) -> str:
    return f"sqlite:///{root}/metastore.db"


def _settings(root: Path) -> Settings:
    return Settings(database_url=_url(root), warehouse=f"file:{root}/warehouse")


def _remove(world: ScaleWorld, root: Path) -> None:
    world.db.dispose()
    shutil.rmtree(root)


def _peak_mb() -> float:
    """VmHWM of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise WrongResult(f"{found} instead of {wanted}")
