from __future__ import annotations

import re

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from compactor.errors import DatabaseUnavailable
from compactor.service.metrics import (
    METRIC_NAMES,
    STATES,
    DeltaCount,
    Metrics,
    PoolStatistics,
    QueueStatistics,
)


class Query:
    """Answers with the statistics given, and fails on demand."""

    def __init__(self, statistics: QueueStatistics) -> None:
        self.statistics = statistics
        self.calls = 0
        self.broken = False

    def __call__(self) -> QueueStatistics:
        self.calls += 1
        if self.broken:
            raise DatabaseUnavailable("no answer")
        return self.statistics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def exposed_names(text: str) -> set[str]:
    names = {match[1] for match in re.finditer(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{| )", text, re.MULTILINE)}
    return {name for name in names if not name.endswith("_created")}


def test_metric_names_are_exactly_what_a_scrape_can_show(metrics: Metrics) -> None:
    delta = (DeltaCount(database="db", table="t", partition="", count=1),)
    full = QueueStatistics(
        pools={"default": PoolStatistics()}, active_deltas=delta, small_deltas=delta, obsolete_deltas=delta
    )
    metrics.watch(lambda: full, interval_s=0)
    metrics.role_up.labels("worker").set(1)
    metrics.cycle_finished("initiator", seconds=1, outcome="worked")
    metrics.cycle_finished("cleaner", seconds=1, outcome="worked")
    for family in (
        metrics.cleaner_cycle,
        metrics.worker_cycle,
        metrics.job_seconds,
        metrics.bytes_read,
        metrics.bytes_written,
        metrics.bytes_copied,
        metrics.bytes_encoded,
        metrics.rows_written,
        metrics.rows_deleted,
        metrics.retries,
        metrics.waits,
    ):
        family.labels("any")
    metrics.compactions.labels("major", "failed", "CorruptFile")
    assert exposed_names(generate_latest(metrics.registry).decode()) == METRIC_NAMES


def test_every_name_of_hives_reference_is_there() -> None:
    gauges = {f"hive_compaction_num_{state}" for state in STATES} | {
        "hive_compaction_oldest_enqueue_age_in_sec",
        "hive_compaction_oldest_working_age_in_sec",
        "hive_compaction_oldest_cleaning_age_in_sec",
        "hive_oldest_ready_for_cleaning_age_in_sec",
        "hive_compaction_pools_initiated_item_count",
        "hive_compaction_num_active_deltas",
        "hive_compaction_num_small_deltas",
        "hive_compaction_num_obsolete_deltas",
        "hive_num_open_transactions",
        "hive_oldest_open_txn_age_in_sec",
        "hive_num_aborted_transactions",
        "hive_num_locks",
        "hive_compaction_num_completed_txn_components",
        "hive_compaction_num_txn_to_writeid",
        "hive_compaction_initiator_cycle_duration",
        "hive_api_compaction_worker_cycle_bucket",
        "hive_compaction_cleaner_failure_counter_total",
    }
    assert gauges <= METRIC_NAMES


def test_numbers_of_the_installation_become_gauges(metrics: Metrics) -> None:
    metrics.watch(
        lambda: QueueStatistics(
            compactions={"initiated": 3, "failed": 1},
            pools={"default": PoolStatistics(initiated=2), "etl": PoolStatistics(working=1, oldest_working_age_s=9.5)},
            oldest_enqueue_age_s=12.5,
            open_repl_transactions=1,
            open_non_repl_transactions=4,
            oldest_open_repl_txn_age_s=5,
            oldest_open_non_repl_txn_age_s=50,
            active_deltas=(DeltaCount(database="db", table="t", partition="p=1", count=120),),
        ),
        interval_s=0,
    )
    value = metrics.registry.get_sample_value
    assert value("hive_compaction_num_initiated") == 3
    assert value("hive_compaction_num_failed") == 1
    assert value("hive_compaction_num_aborted") == 0
    assert value("hive_compaction_oldest_enqueue_age_in_sec") == 12.5
    assert value("hive_compaction_pools_initiated_item_count", {"pool": "default"}) == 2
    assert value("hive_compaction_pools_oldest_working_age_in_sec", {"pool": "etl"}) == 9.5
    assert value("hive_num_open_transactions") == 5
    assert value("hive_oldest_open_txn_age_in_sec") == 50
    labels = {"database": "db", "table": "t", "partition": "p=1"}
    assert value("hive_compaction_num_active_deltas", labels) == 120
    assert value("compactor_database_up") == 1


def test_the_database_is_asked_at_most_once_an_interval(metrics: Metrics) -> None:
    now = 0.0
    query = Query(QueueStatistics(locks=1))
    metrics.watch(query, interval_s=15, clock=lambda: now)
    assert query.calls == 0
    value = metrics.registry.get_sample_value
    assert value("hive_num_locks") == 1
    query.statistics = QueueStatistics(locks=2)
    now = 14.9
    assert value("hive_num_locks") == 1
    assert query.calls == 1
    now = 15.0
    assert value("hive_num_locks") == 2
    assert query.calls == 2


def test_a_lost_database_hides_its_numbers_but_not_those_of_the_process(metrics: Metrics) -> None:
    query = Query(QueueStatistics(locks=1))
    metrics.watch(query, interval_s=0)
    value = metrics.registry.get_sample_value
    assert value("hive_num_locks") == 1
    query.broken = True
    with capture_logs() as records:
        assert value("hive_num_locks") is None
        assert value("compactor_database_up") == 0
        assert value("compactor_build_info", {"version": "1.2.3"}) == 1
    assert {record["log_level"] for record in records} == {"warning"}
    query.broken = False
    assert value("hive_num_locks") == 1
    assert value("compactor_database_up") == 1


def test_cycles_are_counted_under_our_names_and_hives(metrics: Metrics) -> None:
    metrics.cycle_finished("initiator", seconds=2, outcome="worked")
    metrics.cycle_finished("initiator", seconds=3, outcome="failed")
    metrics.cycle_finished("cleaner", seconds=4, outcome="failed")
    metrics.cycle_finished("housekeeper", seconds=5, outcome="idle")
    value = metrics.registry.get_sample_value
    assert value("compactor_cycles_total", {"cycle": "initiator", "outcome": "failed"}) == 1
    assert value("compactor_cycle_seconds_sum", {"cycle": "housekeeper"}) == 5
    assert value("hive_api_compaction_initiator_cycle_count") == 2
    assert value("hive_compaction_initiator_cycle_duration") == 3
    assert value("hive_compaction_initiator_failure_counter_total") == 1
    assert value("hive_compaction_cleaner_cycle_duration") == 4
    assert value("hive_compaction_cleaner_failure_counter_total") == 1


def test_two_daemons_in_one_process_count_separately() -> None:
    one, other = Metrics(version="1"), Metrics(version="1")
    one.files_removed.inc()
    assert other.registry.get_sample_value("compactor_files_removed_total") == 0
