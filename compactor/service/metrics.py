"""What the daemon tells Prometheus: Hive's compaction metrics under Hive's names, and the daemon's own.

Names: `hive_` + Hive's name (MetricsConstants, AcidMetricService), with Prometheus' suffixes where the kind
asks for one (`_total`; `_bucket`, `_sum`, `_count`) and labels where Hive builds a name or a map (`…_cycle_<type>`, pools,
tables). The daemon's own metrics begin with `compactor_`.

Two sources. `Metrics` holds what this process counts itself. `StatisticsCollector` reads the state of the whole
installation from the database when somebody scrapes, at most once an interval, so that an idle daemon costs nothing
and every daemon shows the same numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compactor.errors import CompactorError

STATES: Final = (
    "initiated",
    "working",
    "ready_for_cleaning",
    "failed",
    "succeeded",
    "did_not_initiate",
    "refused",
    "aborted",
)
"""Hive's words for the states of a compaction, as they stand in metric names."""

DEFAULT_POOL: Final = "default"
"""Label of requests without a pool (Hive: MetricsConstants, "default")."""

SHORT_CYCLE_S: Final = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
LONG_WORK_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PoolStatistics:
    """The queue of one pool. Ages in seconds, 0 when there is no such row."""

    initiated: int = 0
    working: int = 0
    oldest_enqueue_age_s: float = 0.0
    oldest_working_age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DeltaCount:
    """Delta directories of one table or partition; partition is "" for an unpartitioned table."""

    database: str
    table: str
    partition: str
    count: int


@dataclass(frozen=True, kw_only=True)
class QueueStatistics:
    """The state of the installation at one moment. Ages in seconds, ids and ages 0 when there is no such row.

    compactions: rows by the words of STATES. pools: by label. The delta tuples hold the top tables, largest first.
    """

    compactions: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, PoolStatistics] = field(default_factory=dict)
    oldest_enqueue_age_s: float = 0.0
    oldest_working_age_s: float = 0.0
    oldest_ready_for_cleaning_age_s: float = 0.0
    oldest_cleaning_age_s: float = 0.0
    initiators: int = 0
    workers: int = 0
    initiator_versions: int = 0
    worker_versions: int = 0
    active_deltas: tuple[DeltaCount, ...] = ()
    small_deltas: tuple[DeltaCount, ...] = ()
    obsolete_deltas: tuple[DeltaCount, ...] = ()
    open_repl_transactions: int = 0
    open_non_repl_transactions: int = 0
    oldest_open_repl_txn_id: int = 0
    oldest_open_repl_txn_age_s: float = 0.0
    oldest_open_non_repl_txn_id: int = 0
    oldest_open_non_repl_txn_age_s: float = 0.0
    aborted_transactions: int = 0
    oldest_aborted_txn_id: int = 0
    oldest_aborted_txn_age_s: float = 0.0
    tables_with_x_aborted_transactions: int = 0
    locks: int = 0
    oldest_lock_age_s: float = 0.0
    txn_to_writeid: int = 0
    completed_txn_components: int = 0


StateGauge = tuple[str, str, Callable[[QueueStatistics], float]]

_STATE_GAUGES: Final[tuple[StateGauge, ...]] = (
    (
        "hive_compaction_oldest_enqueue_age_in_sec",
        "Age of the oldest request that no worker has taken",
        lambda s: s.oldest_enqueue_age_s,
    ),
    (
        "hive_compaction_oldest_working_age_in_sec",
        "Age of the longest running compaction",
        lambda s: s.oldest_working_age_s,
    ),
    (
        "hive_compaction_oldest_cleaning_age_in_sec",
        "Age of the longest running cleaning",
        lambda s: s.oldest_cleaning_age_s,
    ),
    (
        "hive_oldest_ready_for_cleaning_age_in_sec",
        "Time since the oldest compaction whose files still wait for the cleaner was published",
        lambda s: s.oldest_ready_for_cleaning_age_s,
    ),
    ("hive_compaction_num_initiators", "Initiators that made a request lately", lambda s: s.initiators),
    ("hive_compaction_num_workers", "Workers that ran a compaction lately", lambda s: s.workers),
    ("hive_compaction_num_initiator_versions", "Versions among those initiators", lambda s: s.initiator_versions),
    ("hive_compaction_num_worker_versions", "Versions among those workers", lambda s: s.worker_versions),
    (
        "hive_num_open_transactions",
        "Open transactions",
        lambda s: s.open_repl_transactions + s.open_non_repl_transactions,
    ),
    ("hive_num_open_repl_transactions", "Open transactions of replication", lambda s: s.open_repl_transactions),
    ("hive_num_open_non_repl_transactions", "Open transactions of users", lambda s: s.open_non_repl_transactions),
    (
        "hive_oldest_open_txn_age_in_sec",
        "Age of the oldest open transaction",
        lambda s: max(s.oldest_open_repl_txn_age_s, s.oldest_open_non_repl_txn_age_s),
    ),
    ("hive_oldest_open_repl_txn_id", "Id of the oldest one of replication", lambda s: s.oldest_open_repl_txn_id),
    ("hive_oldest_open_repl_txn_age_in_sec", "Age of that one", lambda s: s.oldest_open_repl_txn_age_s),
    ("hive_oldest_open_non_repl_txn_id", "Id of the oldest one of users", lambda s: s.oldest_open_non_repl_txn_id),
    ("hive_oldest_open_non_repl_txn_age_in_sec", "Age of that one", lambda s: s.oldest_open_non_repl_txn_age_s),
    ("hive_num_aborted_transactions", "Aborted transactions not cleaned yet", lambda s: s.aborted_transactions),
    ("hive_oldest_aborted_txn_id", "Id of the oldest of them", lambda s: s.oldest_aborted_txn_id),
    ("hive_oldest_aborted_txn_age_in_sec", "Age of the oldest of them", lambda s: s.oldest_aborted_txn_age_s),
    (
        "hive_tables_with_x_aborted_transactions",
        "Tables and partitions with more aborted transactions than the threshold",
        lambda s: s.tables_with_x_aborted_transactions,
    ),
    ("hive_num_locks", "Locks held or waited for", lambda s: s.locks),
    ("hive_oldest_lock_age_in_sec", "Age of the oldest lock", lambda s: s.oldest_lock_age_s),
    ("hive_compaction_num_txn_to_writeid", "Rows of TXN_TO_WRITE_ID", lambda s: s.txn_to_writeid),
    (
        "hive_compaction_num_completed_txn_components",
        "Rows of COMPLETED_TXN_COMPONENTS",
        lambda s: s.completed_txn_components,
    ),
)

_POOL_GAUGES: Final[tuple[tuple[str, str, Callable[[PoolStatistics], float]], ...]] = (
    ("hive_compaction_pools_initiated_item_count", "Requests that wait, by pool", lambda p: p.initiated),
    ("hive_compaction_pools_working_item_count", "Compactions that run, by pool", lambda p: p.working),
    (
        "hive_compaction_pools_oldest_enqueue_age_in_sec",
        "Age of the oldest waiting request, by pool",
        lambda p: p.oldest_enqueue_age_s,
    ),
    (
        "hive_compaction_pools_oldest_working_age_in_sec",
        "Age of the longest running compaction, by pool",
        lambda p: p.oldest_working_age_s,
    ),
)

_DELTA_GAUGES: Final[tuple[tuple[str, str, Callable[[QueueStatistics], tuple[DeltaCount, ...]]], ...]] = (
    ("hive_compaction_num_active_deltas", "Deltas that readers use, top tables", lambda s: s.active_deltas),
    ("hive_compaction_num_small_deltas", "Deltas far smaller than the base, top tables", lambda s: s.small_deltas),
    (
        "hive_compaction_num_obsolete_deltas",
        "Deltas that wait for the cleaner, top tables",
        lambda s: s.obsolete_deltas,
    ),
)

_DATABASE_UP: Final = "compactor_database_up"


class Metrics:
    """What this process counts, in a registry of its own (two daemons in one test do not meet)."""

    def __init__(self, *, version: str) -> None:
        registry = self.registry = CollectorRegistry()
        self.build_info = Info("compactor_build", "The running release", registry=registry)
        self.build_info.info({"version": version})
        self.role_up = Gauge("compactor_role_up", "1 while the role runs in this process", ["role"], registry=registry)
        self.cycle_seconds = Histogram(
            "compactor_cycle_seconds", "Duration of cycles", ["cycle"], buckets=SHORT_CYCLE_S, registry=registry
        )
        self.cycles = Counter(
            "compactor_cycles", "Cycles by outcome: worked, idle or failed", ["cycle", "outcome"], registry=registry
        )
        self._declare_cycles_of_hive(registry)
        self._declare_work(registry)

    def _declare_cycles_of_hive(self, registry: CollectorRegistry) -> None:
        self.initiator_cycle = Histogram(
            "hive_api_compaction_initiator_cycle", "Initiator cycles in s", buckets=SHORT_CYCLE_S, registry=registry
        )
        self.cleaner_cycle = Histogram(
            "hive_api_compaction_cleaner_cycle",
            "Cleaning of one table or partition in s, by type of compaction",
            ["type"],
            buckets=SHORT_CYCLE_S,
            registry=registry,
        )
        self.worker_cycle = Histogram(
            "hive_api_compaction_worker_cycle",
            "Compactions from claim to publication in s, by type",
            ["type"],
            buckets=LONG_WORK_S,
            registry=registry,
        )
        self.initiator_cycle_duration = Gauge(
            "hive_compaction_initiator_cycle_duration", "Duration of the last initiator cycle in s", registry=registry
        )
        self.cleaner_cycle_duration = Gauge(
            "hive_compaction_cleaner_cycle_duration", "Duration of the last cleaner cycle in s", registry=registry
        )
        self.initiator_failures = Counter(
            "hive_compaction_initiator_failure_counter", "Initiator cycles that failed", registry=registry
        )
        self.cleaner_failures = Counter(
            "hive_compaction_cleaner_failure_counter", "Cleaner cycles that failed", registry=registry
        )
        self.timed_out_transactions = Counter(
            "hive_total_num_timed_out_transactions", "Transactions this process timed out", registry=registry
        )

    def _declare_work(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.compactions = counter(
            "compactor_compactions",
            "Compactions that a worker ended, by outcome and kind of error",
            "type",
            "outcome",
            "error",
        )
        self.bytes_read = counter("compactor_bytes_read", "Bytes that compactions read", "type")
        self.bytes_written = counter("compactor_bytes_written", "Bytes that compactions wrote", "type")
        self.bytes_copied = counter("compactor_bytes_copied", "Bytes of stripes that were copied as they are", "type")
        self.bytes_encoded = counter("compactor_bytes_encoded", "Bytes of stripes that were encoded anew", "type")
        self.rows_written = counter("compactor_rows_written", "Rows that compactions wrote", "type")
        self.rows_deleted = counter("compactor_rows_deleted", "Deleted rows that compactions left out", "type")
        self.files_removed = counter("compactor_files_removed", "Obsolete files that the cleaner removed")
        self.bytes_removed = counter("compactor_bytes_removed", "Bytes of those files")
        self.retries = counter("compactor_retries", "Operations tried again after a passing fault", "operation")
        self.waits = counter("compactor_waits", "Times that work was put off, by what held it up", "reason")
        self.job_predicted_seconds = counter(
            "compactor_job_predicted_seconds", "What the price of minor and major compactions predicted for their jobs"
        )
        self.statistics_failures = counter(
            "compactor_statistics_failures",
            "Published compactions after which the table's statistics stayed as they were",
        )
        self.job_seconds = Histogram(
            "compactor_job_seconds", "Duration of Spark jobs", ["type"], buckets=LONG_WORK_S, registry=registry
        )

    def published(
        self,
        kind: str,
        *,
        bytes_read: int,
        bytes_written: int,
        rows_written: int,
        rows_deleted: int,
        bytes_copied: int,
        bytes_encoded: int,
    ) -> None:
        """Count what one published compaction of this kind did."""
        self.bytes_read.labels(kind).inc(bytes_read)
        self.bytes_written.labels(kind).inc(bytes_written)
        self.bytes_copied.labels(kind).inc(bytes_copied)
        self.bytes_encoded.labels(kind).inc(bytes_encoded)
        self.rows_written.labels(kind).inc(rows_written)
        self.rows_deleted.labels(kind).inc(rows_deleted)

    def cycle_finished(self, cycle: str, *, seconds: float, outcome: str) -> None:
        """Count one cycle. cycle: the loop's name, Hive's metrics follow for "initiator" and "cleaner".

        outcome: worked, idle or failed.
        """
        self.cycle_seconds.labels(cycle).observe(seconds)
        self.cycles.labels(cycle, outcome).inc()
        if cycle == "initiator":
            self.initiator_cycle.observe(seconds)
            self.initiator_cycle_duration.set(seconds)
            self.initiator_failures.inc(outcome == "failed")
        elif cycle == "cleaner":
            self.cleaner_cycle_duration.set(seconds)
            self.cleaner_failures.inc(outcome == "failed")

    def watch(
        self,
        query: Callable[[], QueueStatistics],
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Add the state of the installation to every scrape; `query` runs at most once in interval_s seconds."""
        self.registry.register(StatisticsCollector(query, interval_s=interval_s, clock=clock))


class StatisticsCollector(Collector):
    """Turns QueueStatistics into gauges at scrape time.

    An unreachable database must not blind the operator: the process's own metrics are still served, with
    compactor_database_up 0 and without the installation's gauges, since numbers of unknown age mislead.
    """

    def __init__(self, query: Callable[[], QueueStatistics], *, interval_s: float, clock: Callable[[], float]) -> None:
        self._query = query
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._statistics: QueueStatistics | None = None

    def describe(self) -> Iterable[Metric]:
        """Names only, so that registering does not query the database."""
        return [GaugeMetricFamily(_DATABASE_UP, ""), *_families(QueueStatistics())]

    def collect(self) -> Iterator[Metric]:
        statistics = self._current()
        yield GaugeMetricFamily(
            _DATABASE_UP, "1 when the metastore's database answered", value=float(statistics is not None)
        )
        if statistics is not None:
            yield from _families(statistics)

    def _current(self) -> QueueStatistics | None:
        # The lock also keeps scrapes that come together from asking the database twice.
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= self._interval_s:
                try:
                    self._statistics = self._query()
                except CompactorError as error:
                    _log.warning("queue statistics unavailable", error=str(error))
                    self._statistics = None
                self._read_at = now
            return self._statistics


def _families(statistics: QueueStatistics) -> Iterator[Metric]:
    for state in STATES:
        name, text = f"hive_compaction_num_{state}", f"Compactions in the state {state.replace('_', ' ')}"
        yield GaugeMetricFamily(name, text, value=statistics.compactions.get(state, 0))
    for name, text, of_installation in _STATE_GAUGES:
        yield GaugeMetricFamily(name, text, value=of_installation(statistics))
    for name, text, of_pool in _POOL_GAUGES:
        family = GaugeMetricFamily(name, text, labels=["pool"])
        for pool, numbers in sorted(statistics.pools.items()):
            family.add_metric([pool], of_pool(numbers))
        yield family
    for name, text, top in _DELTA_GAUGES:
        family = GaugeMetricFamily(name, text, labels=["database", "table", "partition"])
        for delta in top(statistics):
            family.add_metric([delta.database, delta.table, delta.partition], delta.count)
        yield family


_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}


def _metric_names() -> frozenset[str]:
    metrics = Metrics(version="")
    metrics.watch(QueueStatistics, interval_s=0.0)
    return frozenset(family.name + suffix for family in metrics.registry.collect() for suffix in _SUFFIXES[family.type])


METRIC_NAMES: Final = _metric_names()
"""Every name that a PromQL expression can use, suffixes included."""
