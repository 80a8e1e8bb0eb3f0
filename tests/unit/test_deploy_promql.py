"""The dashboard and the alerts in a real Prometheus that scrapes a daemon's real page.

Prometheus comes from Debian's package; without it the tests skip, but fail where CI=true.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from compactor.service.http import StatusServer
from compactor.service.metrics import STATES, DeltaCount, Metrics, PoolStatistics, QueueStatistics

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/hive-compactor.json").read_text())
VARIABLES = {"$__rate_interval": "1m", "$job": "hive-compactor", "$instance": ".*", "$pool": ".*"}
LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
READY = "Server is ready to receive web requests"
MOST_SCRAPES = 30
DAY_S = 86400.0

DELTAS = (DeltaCount(database="db", table="t", partition="p=1", count=700),)
SICK = QueueStatistics(
    compactions=dict.fromkeys(STATES, 3),
    pools={"default": PoolStatistics(), "etl": PoolStatistics(initiated=3, oldest_enqueue_age_s=DAY_S)},
    oldest_enqueue_age_s=DAY_S,
    oldest_working_age_s=DAY_S,
    oldest_ready_for_cleaning_age_s=2 * DAY_S,
    active_deltas=DELTAS,
    small_deltas=DELTAS,
    obsolete_deltas=DELTAS,
    open_repl_transactions=1,
    open_non_repl_transactions=1,
    oldest_open_repl_txn_age_s=30 * DAY_S,
    oldest_open_non_repl_txn_age_s=30 * DAY_S,
    aborted_transactions=1,
    oldest_aborted_txn_age_s=30 * DAY_S,
)
"""Old enough in every respect for each alert that needs no waiting time."""
FIRES_AT_ONCE = {
    "AbortedTransactionsNotCleaned",
    "CompactionRunsLong",
    "CompactionsNotCleaned",
    "CompactionsWaitLong",
    "ReplicationTransactionOpenLong",
    "TransactionOpenLong",
}


def expressions() -> dict[str, str]:
    """The dashboard's queries by panel and reference, with a value in place of each variable."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


@pytest.fixture
def tools() -> dict[str, str]:
    """Paths of promtool and prometheus."""
    found = {name: shutil.which(name) for name in ("promtool", "prometheus")}
    if None in found.values():
        reason = "NOT CHECKED: Prometheus is not installed (apt-get install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return {name: str(path) for name, path in found.items()}


def busy_metrics() -> Metrics:
    """A process that did everything that can be counted."""
    metrics = Metrics(version="1.2.3")
    for role in ("initiator", "worker", "cleaner", "housekeeper"):
        metrics.role_up.labels(role).set(1)
    work(metrics)
    return metrics


def work(metrics: Metrics) -> None:
    for cycle in ("initiator", "worker", "cleaner", "housekeeper"):
        for outcome in ("worked", "idle", "failed"):
            metrics.cycle_finished(cycle, seconds=1.5, outcome=outcome)
    for histogram in (metrics.cleaner_cycle, metrics.worker_cycle, metrics.job_seconds):
        histogram.labels("major").observe(12)
    for counter in (
        metrics.bytes_read,
        metrics.bytes_written,
        metrics.bytes_copied,
        metrics.bytes_encoded,
        metrics.rows_written,
        metrics.rows_deleted,
    ):
        counter.labels("major").inc(1000)
    metrics.compactions.labels("major", "failed", "CorruptFile").inc()
    metrics.retries.labels("clean").inc()
    metrics.waits.labels("reader").inc()
    metrics.files_removed.inc(5)
    metrics.bytes_removed.inc(5000)
    metrics.timed_out_transactions.inc()
    metrics.job_predicted_seconds.inc(10)
    metrics.statistics_failures.inc()


def test_promtool_parses_every_expression_of_the_dashboard(tools: dict[str, str], tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": e} for n, e in enumerate(expressions().values())]
    written = tmp_path / "dashboard.json"
    written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(
        [tools["promtool"], "check", "rules", written], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_the_page_is_what_promtool_calls_good_metrics_but_for_hives_own_names(tools: dict[str, str]) -> None:
    metrics = busy_metrics()
    metrics.watch(lambda: SICK, interval_s=0)
    checked = subprocess.run(
        [tools["promtool"], "check", "metrics"],
        input=generate_latest(metrics.registry),
        capture_output=True,
        check=False,
    )
    complaints = (checked.stdout + checked.stderr).decode().splitlines()
    assert checked.returncode in {0, 3}, complaints  # 3: complaints about style only
    assert [complaint for complaint in complaints if not complaint.startswith("hive_")] == []


@contextlib.contextmanager
def prometheus(binary: str, folder: Path, target: int) -> Iterator[str]:
    """A Prometheus that scrapes a local port every second and evaluates the shipped rules; yields its address."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus/hive-compactor.rules.yml")],
        "scrape_configs": [
            {"job_name": "hive-compactor", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]},
        ],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    command = [binary, f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data"]
    with subprocess.Popen(
        [*command, "--web.listen-address=127.0.0.1:0"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stderr is not None
            address = ""
            for line in process.stderr:
                address = found[1] if (found := LISTENING.search(line)) else address
                if READY in line:
                    break
            # A pipe that nobody empties would stop it.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield f"http://{address}/api/v1"
        finally:
            process.kill()


def ask(url: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:  # noqa: S310
        return json.load(answer)["data"]


@pytest.mark.slow
def test_every_panel_shows_something_and_the_alerts_of_a_sick_installation_fire(
    tools: dict[str, str], tmp_path: Path
) -> None:
    metrics, scraped = busy_metrics(), threading.Semaphore(0)

    def at_each_scrape() -> QueueStatistics:
        work(metrics)
        scraped.release()
        return SICK

    metrics.watch(at_each_scrape, interval_s=0)
    server = StatusServer(host="127.0.0.1", port=0, registry=metrics.registry, roles=list, ping=lambda: True)
    empty, firing = expressions(), dict[str, dict[str, Any]]()
    with server, prometheus(tools["prometheus"], tmp_path, server.port) as api:
        for _ in range(MOST_SCRAPES):
            assert scraped.acquire(timeout=60), "Prometheus does not scrape"
            empty = {name: e for name, e in empty.items() if not ask(f"{api}/query", query=e)["result"]}
            raised = [alert for alert in ask(f"{api}/alerts")["alerts"] if alert["state"] == "firing"]
            firing = {alert["labels"]["alertname"]: alert for alert in raised}
            if not empty and len(firing) >= len(FIRES_AT_ONCE):
                break
        broken = [rule for group in ask(f"{api}/rules")["groups"] for rule in group["rules"] if rule["health"] == "err"]
    assert empty == {}
    assert broken == []
    assert set(firing) == FIRES_AT_ONCE
    texts = [text for alert in firing.values() for text in alert["annotations"].values()]
    assert [text for text in texts if "<no value>" in text or "<error expanding template" in text] == []
