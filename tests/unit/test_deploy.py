"""What stands in deploy/ parses, names only what exists, and works in the tools it is written for.

Tools that a developer may lack (PyYAML, promtool, prometheus, systemd-analyze) make a test skip, but fail where CI=true.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compactor.cli import app, show_app
from compactor.cli.daemon import Role
from compactor.config import describe_settings, load_settings
from compactor.service.metrics import METRIC_NAMES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
RULES = PROMETHEUS / "hive-compactor.rules.yml"
RULE_TESTS = sorted(PROMETHEUS.glob("*.test.yml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/hive-compactor.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
CHARTS = [panel for panel in PANELS if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in CHARTS for target in panel["targets"]]

FROM_PROMETHEUS = {"up", "ALERTS"}
GRAFANAS_OWN = {"__rate_interval", "__all"}
ROLES = {role.value for role in Role}
SETTINGS = describe_settings()

PROMQL_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
NOT_METRICS = (
    r'"(?:[^"\\]|\\.)*"',  # strings
    r"#[^\n]*",
    r"\{[^}]*\}",  # label matchers, once strings are gone
    r"\[[^\]]*\]",  # ranges
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)",
)


def metrics_in(expression: str) -> set[str]:
    """Metric names of a PromQL expression: identifiers that are no function, keyword, label or part of a number."""
    for noise in NOT_METRICS:
        expression = re.sub(noise, " ", expression)
    identifiers = re.finditer(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()", expression)
    return {found[1] for found in identifiers} - PROMQL_WORDS - {"inf", "nan", "Inf", "NaN"}


def lacking(what: str, hint: str) -> None:
    reason = f"NOT CHECKED: {what} is not installed ({hint})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def tool(name: str, package: str) -> str:
    if (found := shutil.which(name)) is None:
        lacking(name, f"apt-get install {package}")
    return str(found)


def load_yaml(path: Path) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        lacking("PyYAML", "pip install pyyaml")
    return yaml.safe_load(path.read_text())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool", "prometheus"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def alerts() -> list[dict[str, Any]]:
    return [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up == 1", {"up"}),
        ('sum by (le, type) (rate(a_bucket{job="up{x}", b=~"c.*"}[5m])) > 1e6', {"a_bucket"}),
        ("max(a)/max(b) # c\n unless on (job) d", {"a", "b", "d"}),
        ('label_replace(vector(0), "role", "worker", "", "") or a:b:c offset 5m', {"a:b:c"}),
        ("a * on (instance) group_right (version) sum without(pool)(b) ^ NaN", {"a", "b"}),
        ("rate(a[$__rate_interval]) * 12 * 3600", {"a"}),
    ],
)
def test_metric_names_are_told_from_functions_labels_and_keywords(expression: str, names: set[str]) -> None:
    assert metrics_in(expression) - {"m"} == names


@pytest.mark.parametrize("path", sorted(p for p in DEPLOY.rglob("*") if p.suffix in {".yml", ".yaml"}), ids=str)
def test_every_yaml_file_parses(path: Path) -> None:
    assert isinstance(load_yaml(path), dict)


# The dashboard.


def test_every_metric_of_the_dashboard_exists() -> None:
    variables = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    of_variables = {re.sub(r"label_values\(([^,{]+).*", r"\1", query) for query in variables}
    annotations = [a["expr"] for a in DASHBOARD["annotations"]["list"] if "expr" in a]
    named = {name for expression in [*EXPRESSIONS, *annotations] for name in metrics_in(expression)} | of_variables
    assert named - FROM_PROMETHEUS - METRIC_NAMES == set()


def test_every_metric_is_on_the_dashboard() -> None:
    named = {family(name) for expression in EXPRESSIONS for name in metrics_in(expression)}
    assert {name for name in METRIC_NAMES if family(name) not in named} == set()


def family(metric: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def test_panels_are_complete() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in CHARTS:
        assert panel["type"] in {"stat", "timeseries", "table", "state-timeline"}
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target["expr"].strip()
            assert target["instant"] is not target["range"]


def test_panels_lie_in_the_grid_without_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert min(place["w"], place["h"]) > 0
        columns, lines = (range(place[start], place[start] + place[size]) for start, size in (("x", "w"), ("y", "h")))
        for cell in itertools.product(columns, lines):
            assert cell not in taken, f"{panel['title']} lies over {taken[cell]}"
            taken[cell] = panel["title"]


def test_the_dashboard_is_one_that_grafana_can_provision() -> None:
    assert DASHBOARD["uid"] == "hive-compactor"
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD, "an id belongs to one Grafana's database"
    assert "__inputs" not in DASHBOARD, "an export with inputs cannot be provisioned"


def test_variables_are_declared_and_used() -> None:
    declared = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert {"datasource", "instance", "pool"} <= set(declared)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - GRAFANAS_OWN == set(declared)


def test_legends_use_labels_that_their_query_keeps() -> None:
    for target in (target for panel in CHARTS for target in panel["targets"]):
        kept = {
            label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in labels.split(",")
        }
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, target["expr"]


# The alerts.


def test_every_metric_of_the_alerts_exists() -> None:
    named = {name for rule in alerts() for name in metrics_in(rule["expr"])}
    assert named - FROM_PROMETHEUS - METRIC_NAMES == set()


def test_every_alert_says_what_happened_why_it_matters_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"] in ({"severity": s, "product": "hive-compactor"} for s in ("warning", "critical"))
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert all(text.strip() for text in rule["annotations"].values())


def texts_for_operators() -> list[str]:
    return [text for rule in alerts() for text in rule["annotations"].values()] + [p["description"] for p in CHARTS]


def test_commands_that_the_texts_name_exist() -> None:
    commands = {command.name for command in app.registered_commands}
    lists = {f"show {command.name}" for command in show_app.registered_commands}
    verbs = "|".join(["show \\w+", "compact", "plan", "sql", "run", "abort", "explain", "holders", "doctor", "init-db"])
    named = {found for text in texts_for_operators() for found in re.findall(rf"\bcompactor ({verbs})\b", text)}
    assert "show compactions" in named
    assert named <= commands | lists


def test_settings_that_the_texts_name_exist() -> None:
    names = {setting.name for setting in SETTINGS}
    sections = "|".join({name.split(".")[0] for name in names if "." in name})
    named = {found for text in texts_for_operators() for found in re.findall(rf"\b(?:{sections})\.[a-z_]+\b", text)}
    assert "worker.pool_timeout_s" in named
    assert named <= names | {"spark.conf"}


def test_every_alert_of_every_severity_is_tested_firing_and_silent() -> None:
    firing: set[tuple[str, str]] = set()
    silent: set[str] = set()
    for path in RULE_TESTS:
        for check in (check for test in load_yaml(path)["tests"] for check in test["promql_expr_test"]):
            for name in re.findall(r'alertname="(\w+)"', check["expr"]):
                samples = [sample["labels"] for sample in check["exp_samples"]]
                firing |= {(name, re.findall(r'severity="(\w+)"', labels)[0]) for labels in samples}
                silent |= {name} if not samples else set()
    rules = {(rule["alert"], rule["labels"]["severity"]) for rule in alerts()}
    assert firing == rules
    assert silent == {name for name, _ in rules}


@pytest.mark.slow
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: str(path.name))
def test_alerts_fire_when_they_should(path: Path) -> None:
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus.compose.yml"])
def test_promtool_accepts_the_configuration_and_its_rules(name: str) -> None:
    checked = promtool("check", "config", PROMETHEUS / name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


# Units, containers, examples.


def variables_in(path: Path) -> dict[str, str]:
    return dict(re.findall(r"\b(COMPACTOR_\w+)[=:] *\"?([^\s\"\\]+)", path.read_text()))


@pytest.mark.parametrize(
    "path",
    [DEPLOY / "compose.yaml", DEPLOY / "Containerfile", *sorted((DEPLOY / "systemd/env").iterdir())],
    ids=lambda path: str(path.name),
)
def test_every_variable_is_a_setting(path: Path) -> None:
    named = set(variables_in(path))
    assert named
    assert named <= {setting.env for setting in SETTINGS}


def test_each_role_on_one_host_has_its_port_and_prometheus_knows_it() -> None:
    ports = {path.stem: variables_in(path)["COMPACTOR_METRICS_PORT"] for path in (DEPLOY / "systemd/env").iterdir()}
    assert set(ports) == ROLES
    (job,) = load_yaml(PROMETHEUS / "prometheus.yml")["scrape_configs"]
    (targets,) = job["static_configs"]
    assert sorted(targets["targets"]) == sorted(f"localhost:{port}" for port in ports.values())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: str(path.name))
def test_units_pass_systemds_own_check_and_are_hardened(unit: Path, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("/opt/hive-compactor/bin/compactor", sys.executable))
    instance = tmp_path / unit.name.replace("@.", "@worker.")
    checks: Sequence[Sequence[str]] = (
        ("verify", "--recursive-errors=no", str(instance)),
        ("security", "--offline=true", "--threshold=20", str(instance)),
    )
    for check in checks:
        checked = subprocess.run([analyze, *check], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert check[0] != "verify" or not checked.stderr, "a key that systemd does not know is only a warning"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: str(path.name))
def test_units_let_the_running_compaction_finish(unit: Path) -> None:
    lines = set(unit.read_text().splitlines())
    assert {"KillSignal=SIGTERM", "KillMode=mixed", "TimeoutStopSec=15min"} <= lines


def test_compose_runs_each_role_and_prometheus_finds_it() -> None:
    services = load_yaml(DEPLOY / "compose.yaml")["services"]
    assert {name: services[name]["command"] for name in ROLES} == {name: [name] for name in ROLES}
    (job,) = load_yaml(PROMETHEUS / "prometheus.compose.yml")["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert set(discovery["names"]) == ROLES
    for name in ROLES:
        assert services[name]["environment"]["COMPACTOR_METRICS_PORT"] == str(discovery["port"])
        assert services[name]["depends_on"]["init-db"]["condition"] == "service_completed_successfully"
        assert services[name]["stop_grace_period"]


def test_compose_mounts_files_that_exist_where_grafana_looks_for_them() -> None:
    services = load_yaml(DEPLOY / "compose.yaml")["services"]
    mounts = [m.split(":") for name in ("prometheus", "grafana") for m in services[name]["volumes"]]
    placed = {target: source for source, target, *_ in mounts if source.startswith(".")}
    assert all((DEPLOY / source).exists() for source in placed.values())
    (provider,) = load_yaml(DEPLOY / "grafana/provisioning/dashboards/hive-compactor.yaml")["providers"]
    assert (DEPLOY / placed[provider["options"]["path"]] / "hive-compactor.json").exists()


def test_grafana_asks_the_prometheus_of_compose_as_often_as_it_scrapes() -> None:
    (source,) = load_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    scraped = load_yaml(PROMETHEUS / "prometheus.compose.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_the_image_copies_what_exists_and_starts_without_a_shell() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    sources = [word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in line.split()]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"pyproject.toml", *wheel["packages"], *wheel["force-include"]} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    allowed = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {f"!{source}" for source in sources} <= set(allowed)
    assert 'ENTRYPOINT ["compactor"]' in text, "through a shell, SIGTERM would not reach the process"


def test_the_example_settings_load_and_are_the_defaults_where_they_say_so(tmp_path: Path) -> None:
    empty = tmp_path / "compactor.toml"
    empty.touch()
    example, default = (
        load_settings(config=path, hive_site=None, environ={}, overrides={})
        for path in (DEPLOY / "compactor.toml", empty)
    )
    assert example.warnings == ()
    own = {"database_url", "warehouse"}
    assert example.model_dump(exclude=own) == default.model_dump(exclude=own)
    assert example.database_url == variables_in(DEPLOY / "Containerfile")["COMPACTOR_DATABASE_URL"]
