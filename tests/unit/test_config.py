from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from compactor.config import Settings, describe_settings, load_settings
from compactor.errors import ConfigError
from compactor.settings_page import settings_page


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No compactor.toml of the developer's may reach a test."""
    directory = tmp_path / "cwd"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "compactor.toml"


@pytest.fixture
def hive_site(tmp_path: Path) -> Path:
    path = tmp_path / "hive-site.xml"
    path.write_text(
        "<configuration>"
        "<property><name>hive.compactor.worker.threads</name><value>2</value></property>"
        "<property><name>hive.compactor.check.interval</name><value>2</value></property>"
        "<property><name>hive.compactor.delta.num.threshold</name><value>2</value></property>"
        "<property><name>hive.compactor.max.num.delta</name><value>2</value></property>"
        "</configuration>"
    )
    return path


def test_defaults_are_hives(empty_directory: Path) -> None:
    settings = load_settings(environ={})
    assert settings.database_url == "sqlite:///compactor.db"
    assert settings.warehouse == f"file:{empty_directory}/warehouse"
    assert settings.spark.master == "local[*]"
    assert settings.initiator.interval_s == 300
    assert settings.initiator.delta_num_threshold == 10
    assert settings.initiator.delta_pct_threshold == 0.1
    assert settings.initiator.aborted_txn_time_threshold_s == 12 * 3600
    assert settings.initiator.failed_retry_time_s == 7 * 24 * 3600
    assert settings.worker.timeout_s == 24 * 3600
    assert settings.worker.sleep_s == 10.8
    assert settings.cleaner.retention_s == 0
    assert settings.housekeeper.retention.did_not_initiate == 2
    assert settings.txn.timeout_s == 300
    assert settings.warnings == ()


def test_each_source_wins_over_the_ones_before_it(toml: Path, hive_site: Path) -> None:
    toml.write_text(
        "[worker]\nthreads = 3\nsleep_s = 3\n[initiator]\ndelta_num_threshold = 3\n[cleaner]\nthreads = 3\n"
    )
    settings = load_settings(
        config=toml,
        hive_site=hive_site,
        environ={"COMPACTOR_WORKER__THREADS": "4", "COMPACTOR_INITIATOR__DELTA_NUM_THRESHOLD": "4"},
        overrides={"worker.threads": 5},
    )
    assert settings.worker.threads == 5
    assert settings.initiator.delta_num_threshold == 4
    assert settings.worker.sleep_s == 3
    assert settings.initiator.interval_s == 2
    assert settings.housekeeper.interval_s == 60


def test_the_file_of_the_command_line_wins_over_the_variable_and_the_current_directory(
    tmp_path: Path, empty_directory: Path
) -> None:
    named, from_variable = tmp_path / "named.toml", tmp_path / "variable.toml"
    (empty_directory / "compactor.toml").write_text("[worker]\nthreads = 1\nsleep_s = 77\n")
    from_variable.write_text("[worker]\nthreads = 2\n")
    named.write_text("[worker]\nthreads = 3\n")
    environ = {"COMPACTOR_CONFIG": str(from_variable)}
    assert load_settings(environ={}).worker.sleep_s == 77
    assert load_settings(environ=environ).worker.threads == 2
    assert load_settings(config=named, environ=environ).worker.threads == 3
    assert load_settings(config=named, environ=environ).worker.sleep_s == 10.8


def test_the_stable_short_variables_are_understood() -> None:
    settings = load_settings(
        environ={
            "COMPACTOR_DATABASE_URL": "sqlite:////data/hms.db",
            "COMPACTOR_SPARK_MASTER": "spark://host:7077",
            "COMPACTOR_METRICS_PORT": "0",
        }
    )
    assert settings.database_url == "sqlite:////data/hms.db"
    assert settings.spark.master == "spark://host:7077"
    assert settings.metrics.port == 0


def test_variables_that_an_orchestrator_makes_are_left_alone() -> None:
    environ = {"COMPACTOR_SERVICE_HOST": "10.0.0.1", "COMPACTOR_PORT": "tcp://10.0.0.1:80", "PATH": "/bin"}
    assert load_settings(environ=environ) == load_settings(environ={})


def test_lists_maps_and_durations_can_be_written_as_text() -> None:
    settings = load_settings(
        environ={
            "COMPACTOR_WORKER__POOLS": "etl, reports",
            "COMPACTOR_SPARK__CONF": '{"spark.executor.memory": "2g"}',
            "COMPACTOR_CLEANER__INTERVAL_S": "250ms",
            "COMPACTOR_WORKER__TIMEOUT_S": "12h",
            "COMPACTOR_INITIATOR__ABORTED_TXN_TIME_THRESHOLD_S": "-1",
            "COMPACTOR_CLEANER__ON": "false",
        }
    )
    assert settings.worker.pools == ("etl", "reports")
    assert settings.spark.conf == {"spark.executor.memory": "2g"}
    assert settings.cleaner.interval_s == 0.25
    assert settings.worker.timeout_s == 43200
    assert settings.initiator.aborted_txn_time_threshold_s == -1
    assert settings.cleaner.on is False


def test_spark_properties_need_no_quotation_marks_in_toml(toml: Path) -> None:
    toml.write_text('[spark.conf]\nspark.executor.memory = "2g"\n"spark.executor.cores" = "2"\n')
    settings = load_settings(config=toml, environ={})
    assert settings.spark.conf == {"spark.executor.memory": "2g", "spark.executor.cores": "2"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[worker]\nthreads = -1\n", ["worker.threads", "-1", "greater than or equal to 0"]),
        ('[cleaner]\ninterval_s = "soon"\n', ["cleaner.interval_s", "'soon'", "300s, 10800ms"]),
        ("[cleaner]\ninterval_s = 0\n", ["cleaner.interval_s", "greater than 0"]),
        ("[txn]\ntimeout_s = inf\n", ["txn.timeout_s", "finite"]),
        ("[initiator]\nfailed_compacts_threshold = 21\n", ["initiator.failed_compacts_threshold", "20"]),
        ("[metrics]\nport = 70000\n", ["metrics.port", "70000", "65535"]),
        ('[log]\nlevel = "loud"\n', ["log.level", "'loud'", "'debug'"]),
        ("[housekeeper.retention]\nfailed = 'x'\n", ["housekeeper.retention.failed", "'x'", "integer"]),
        ("worker = 3\n", ["worker", "is no setting"]),
    ],
)
def test_a_wrong_value_is_named_with_field_file_value_and_what_is_allowed(
    toml: Path, text: str, named: list[str]
) -> None:
    toml.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(config=toml, environ={})
    for part in [*named, str(toml)]:
        assert part in caught.value.message


def test_a_wrong_variable_is_named_as_it_is_spelled() -> None:
    with pytest.raises(ConfigError, match=r"COMPACTOR_WORKER__THREADS in the environment is 'many'"):
        load_settings(environ={"COMPACTOR_WORKER__THREADS": "many"})


def test_a_wrong_value_on_the_command_line_is_named() -> None:
    with pytest.raises(ConfigError, match=r"worker\.threads in the command line is 'many'"):
        load_settings(environ={}, overrides={"worker.threads": "many"})


def test_an_unknown_key_comes_with_the_nearest_known_one(toml: Path) -> None:
    toml.write_text("[worker]\nthread = 2\n")
    with pytest.raises(ConfigError, match=r"worker\.thread in .* is no setting") as caught:
        load_settings(config=toml, environ={})
    assert caught.value.hint == "did you mean worker.threads?"


def test_an_unknown_variable_comes_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="COMPACTOR_WORKER__THRAEDS") as caught:
        load_settings(environ={"COMPACTOR_WORKER__THRAEDS": "2"})
    assert caught.value.hint == "did you mean COMPACTOR_WORKER__THREADS?"


@pytest.mark.parametrize("text", ["[worker\n", "threads = many", "\x00"])
def test_malformed_toml_is_reported_with_its_place(toml: Path, text: str) -> None:
    toml.write_text(text)
    with pytest.raises(ConfigError, match=r"no well-formed TOML.*line 1"):
        load_settings(config=toml, environ={})


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml: No such file"):
        load_settings(config=tmp_path / "missing.toml", environ={})


@pytest.mark.parametrize("url", ["secret", "jdbc:derby:secret", "://secret@host", "oracle://u:secret@host/hms"])
def test_a_wrong_database_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="COMPACTOR_DATABASE_URL") as caught:
        load_settings(environ={"COMPACTOR_DATABASE_URL": url})
    assert "postgresql://" in caught.value.message
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValidationError)
    assert "secret" not in str(caught.value.__cause__)


def test_the_password_does_not_show_in_the_settings_text() -> None:
    assert "secret" not in repr(load_settings(environ={"COMPACTOR_DATABASE_URL": "sqlite:///secret"}))


def test_settings_cannot_be_changed() -> None:
    settings = load_settings(environ={})
    with pytest.raises(ValidationError):
        settings.worker.threads = 2  # type: ignore[misc]


def test_every_setting_is_described_and_its_default_is_what_toml_would_say() -> None:
    docs = {doc.name: doc for doc in describe_settings()}
    assert all(doc.description for doc in docs.values())
    assert docs["worker.threads"].default == "1"
    assert docs["log.level"].default == '"info"'
    assert docs["worker.threads"].env == "COMPACTOR_WORKER__THREADS"
    assert docs["spark.master"].env == "COMPACTOR_SPARK_MASTER"
    assert docs["worker.threads"].hive_keys == ("metastore.compactor.worker.threads", "hive.compactor.worker.threads")


def test_every_described_variable_is_understood() -> None:
    defaults = {doc.env: doc.default.strip('"') for doc in describe_settings() if doc.default not in {"[]", "{}"}}
    defaults["COMPACTOR_WAREHOUSE"] = Settings().warehouse
    assert load_settings(environ=defaults) == Settings()


def test_the_settings_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_page(), "python -m compactor.settings_page > docs/settings.md"
