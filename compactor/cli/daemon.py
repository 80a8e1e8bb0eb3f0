"""Running roles: for ever, once, or until nothing is left to do."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cleaner.housekeeper import HouseKeeper
from cleaner.service import Cleaner, CleanerResult
from compactor.cli.installation import VERSION, Installation
from compactor.errors import CompactorError
from compactor.metastore.compaction import Compaction
from compactor.service.http import StatusServer
from compactor.service.logs import configure_logging
from compactor.service.loop import LONG_CYCLE_S, MAX_BACK_OFF_S, CycleResult, Loop
from compactor.service.metrics import Metrics
from compactor.service.offers import prices_of
from compactor.service.queue_statistics import read_statistics
from compactor.service.signals import StopRequest, stop_on_signals
from compactor.storage.filesystem import open_location
from compactor.thrift.metastore import ThriftMetastore
from compactor.worker import BatchResult
from initiator.service import Initiator

_log = structlog.get_logger(__name__)
_POLL_S = 1.0


class Role(enum.StrEnum):
    """The four processes of an installation."""

    INITIATOR = "initiator"
    """Finds tables and partitions that need a compaction."""
    WORKER = "worker"
    """Carries compactions out."""
    CLEANER = "cleaner"
    """Removes what compactions replaced, once no reader needs it."""
    HOUSEKEEPER = "housekeeper"
    """Times transactions out and keeps the metastore's tables short."""


class Mode(enum.Enum):
    """When a command ends."""

    FOREVER = "forever"
    """On a signal."""
    ONCE = "once"
    """After one cycle of each role."""
    UNTIL_IDLE = "until idle"
    """When no cycle finds anything to do and nothing is being worked on."""


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A role's cycle and how often it runs.

    may_run_s: a longer cycle makes the process count as stuck. max_back_off_s: longest pause after errors in a row.
    first_after_s: time until the first cycle of a process that stays up.
    """

    role: Role
    interval_s: float
    cycle: Callable[[], CycleResult]
    until_idle: bool = False
    may_run_s: float = LONG_CYCLE_S
    max_back_off_s: float = MAX_BACK_OFF_S
    first_after_s: float = 0.0


def run_roles(installation: Installation, roles: Sequence[Role], mode: Mode) -> int:
    """Run roles in this process; the exit code: 0, or 1 when a cycle or a compaction failed."""
    settings = installation.settings
    configure_logging(level=settings.log.level, form=settings.log.format, stream=sys.stderr)
    for warning in settings.warnings:
        _log.warning(warning)
    # Fails here and now when the metastore is not there.
    thrift = _thrift_alone(installation, roles)
    (installation.db.is_initialised if thrift is None else thrift.is_alive)()
    stop = StopRequest()
    with stop_on_signals(stop), _progress(mode) as on_progress:
        duties = [d for role in roles for d in duties_of(installation, role, stop, on_progress)]
        try:
            if mode is Mode.FOREVER:
                return _for_ever(installation, roles, duties, stop)
            return _until(installation, duties, mode, stop)
        finally:
            installation.close()


def _thrift_alone(installation: Installation, roles: Sequence[Role]) -> ThriftMetastore | None:
    """Hive's service, when these roles need nothing else: a worker that was given its address."""
    return installation.thrift if set(roles) == {Role.WORKER} else None


def duties_of(
    installation: Installation, role: Role, stop: StopRequest, on_progress: Callable[[Compaction, int, int], None]
) -> Iterator[Duty]:
    settings, metrics = installation.settings, installation.metrics
    match role:
        case Role.INITIATOR:
            initiator = Initiator(
                db=installation.db,
                filesystem_of=open_location,
                settings=settings,
                metrics=metrics,
                host=installation.host,
                version=VERSION,
                prices_of=partial(prices_of, worker=settings.worker),
            )
            yield Duty(role=role, interval_s=settings.initiator.interval_s, cycle=initiator.run_once)
        case Role.WORKER:
            # Who starts the worker by its name wants one, also where hive-site.xml says that Hive has none.
            for _ in range(max(1, settings.worker.threads)):
                worker = installation.worker(stop, on_progress)
                yield Duty(
                    role=role,
                    interval_s=settings.worker.sleep_s,
                    cycle=worker.run_batch,
                    until_idle=True,
                    # A healthy compaction may take as long as it may keep its claim.
                    may_run_s=settings.worker.timeout_s,
                    max_back_off_s=settings.worker.max_sleep_s,
                )
        case Role.CLEANER:
            cleaner = Cleaner(
                db=installation.db,
                filesystem_of=open_location,
                settings=settings,
                metrics=metrics,
                host=installation.host,
            )
            yield Duty(role=role, interval_s=settings.cleaner.interval_s, cycle=cleaner.run_once)
        case Role.HOUSEKEEPER:
            keeper = HouseKeeper(db=installation.db, settings=settings, metrics=metrics)
            housekeeper = settings.housekeeper
            yield Duty(
                role=role,
                interval_s=housekeeper.interval_s,
                cycle=keeper.run_once,
                first_after_s=housekeeper.start_s,
            )


def loop_of(duties: Sequence[Duty], metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> Loop:
    """The loop that carries duties out until it is stopped. clock: monotonic seconds."""
    loop = Loop(metrics=metrics, clock=clock)
    for duty in duties:
        loop.every(
            duty.interval_s,
            duty.role.value,
            duty.cycle,
            until_idle=duty.until_idle,
            may_run_s=duty.may_run_s,
            max_back_off_s=duty.max_back_off_s,
            first_after_s=duty.first_after_s,
        )
    return loop


def _for_ever(installation: Installation, roles: Sequence[Role], duties: Sequence[Duty], stop: StopRequest) -> int:
    settings, metrics = installation.settings, installation.metrics
    loop = loop_of(duties, metrics)
    thrift = _thrift_alone(installation, roles)
    if thrift is None:
        # A worker over Thrift leaves the queue's numbers to whoever has the database.
        metrics.watch(
            lambda: read_statistics(
                installation.db,
                top=settings.metrics.delta_metrics_cache,
                delta_threshold=settings.metrics.delta_metrics_threshold,
                obsolete_delta_threshold=settings.metrics.obsolete_delta_metrics_threshold,
            ),
            interval_s=settings.metrics.interval_s,
        )
    server: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if settings.metrics.on:
        server = StatusServer(
            host=settings.metrics.host,
            port=settings.metrics.port,
            registry=metrics.registry,
            roles=loop.status,
            ping=installation.db.is_initialised if thrift is None else thrift.is_alive,
        )
    for role in roles:
        metrics.role_up.labels(role.value).set(1)
    with server:
        _log.info("running", roles=[r.value for r in roles], version=VERSION)
        loop.run_until(stop)
        for role in roles:
            metrics.role_up.labels(role.value).set(0)
    _log.info("stopped")
    return 0


def _until(installation: Installation, duties: Sequence[Duty], mode: Mode, stop: StopRequest) -> int:
    """One cycle each, or cycles until idle; every error is logged, and the exit code remembers it.

    Cycles that found nothing to do are logged in the last round only: they say what was looked at.
    """
    failed = False
    while not stop.draining.is_set():
        idle: list[tuple[Role, CycleResult]] = []
        busy = False
        for duty in duties:
            if stop.draining.is_set():
                break
            try:
                result = duty.cycle()
            except CompactorError as error:
                _log.error("cycle failed", role=duty.role.value, error=error.message, hint=error.hint)
                return 1
            if result.did_anything or mode is Mode.ONCE:
                _log.info(result.describe(), role=duty.role.value)
            else:
                idle.append((duty.role, result))
            busy = busy or result.did_anything
            failed = failed or _went_wrong(result)
        if mode is Mode.ONCE:
            break
        if not busy:
            if not _others_work(installation, duties):
                for role, result in idle:
                    _log.info(result.describe(), role=role.value)
                break
            stop.wait(_POLL_S)
    return 1 if failed else 0


def _went_wrong(result: CycleResult) -> bool:
    """A compaction failed, or was published and could not be cleaned."""
    match result:
        case BatchResult():
            return result.failed
        case CleanerResult():
            return result.failed > 0
        case _:
            return False


def _others_work(installation: Installation, duties: Sequence[Duty]) -> bool:
    """Another process is compacting: what it publishes may still be ours to clean."""
    if not any(d.role is Role.CLEANER for d in duties):
        return False
    statistics = read_statistics(installation.db, top=0, delta_threshold=0, obsolete_delta_threshold=0)
    return statistics.compactions.get("working", 0) > 0


@contextlib.contextmanager
def _progress(mode: Mode) -> Iterator[Callable[[Compaction, int, int], None]]:
    """A bar for each running job when a person watches; nothing otherwise."""
    console = Console(stderr=True)
    if not console.is_terminal or mode is Mode.FOREVER:
        yield lambda *_: None
        return
    bars: dict[int, TaskID] = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def show(compaction: Compaction, done: int, total: int) -> None:
            if compaction.id not in bars:
                text = f"{compaction.type.name.lower()} {compaction.object_name}"
                bars[compaction.id] = progress.add_task(text, total=total)
            progress.update(bars[compaction.id], completed=done, total=total, visible=done < total)

        yield show
