from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.config import Settings, describe_settings, load_settings
from compactor.errors import ConfigError
from compactor.hive_keys_without_meaning import WITHOUT_MEANING
from compactor.hive_site import HIVE_KEYS, parse_duration, read_hive_site

Load = Callable[..., Settings]


def write_site(folder: Path, properties: Mapping[str, str]) -> Path:
    rows = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    )
    path = folder / "hive-site.xml"
    path.write_text(f'<?xml version="1.0"?>\n<configuration>{rows}</configuration>')
    return path


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Settings from a hive-site.xml with these properties."""
    monkeypatch.chdir(tmp_path)

    def load(properties: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Settings:
        path = write_site(tmp_path, properties)
        return load_settings(hive_site=path, environ=environ or {})

    return load


@pytest.mark.parametrize(
    ("key", "value", "setting", "expected"),
    [
        ("hive.compactor.initiator.on", "false", "initiator.on", False),
        ("metastore.compactor.initiator.on", "TRUE", "initiator.on", True),
        ("hive.compactor.check.interval", "120", "initiator.interval_s", 120),
        ("hive.compactor.check.interval", "2m", "initiator.interval_s", 120),
        ("hive.compactor.delta.num.threshold", "4", "initiator.delta_num_threshold", 4),
        ("hive.compactor.delta.pct.threshold", "0.5", "initiator.delta_pct_threshold", 0.5),
        ("hive.compactor.abortedtxn.threshold", "7", "initiator.aborted_txn_threshold", 7),
        ("hive.compactor.aborted.txn.time.threshold", "6", "initiator.aborted_txn_time_threshold_s", 6 * 3600),
        ("hive.compactor.aborted.txn.time.threshold", "-1", "initiator.aborted_txn_time_threshold_s", -3600),
        ("hive.compactor.compact.insert.only", "false", "initiator.compact_insert_only", False),
        ("metastore.compactor.initiator.failed.compacts.threshold", "5", "initiator.failed_compacts_threshold", 5),
        ("metastore.compactor.initiator.failed.retry.time", "3", "initiator.failed_retry_time_s", 3 * 86400),
        ("metastore.compactor.fetch.size", "10", "initiator.fetch_size", 10),
        ("hive.compactor.request.queue", "3", "initiator.threads", 3),
        ("metastore.compactor.clean.aborts.using.cleaner", "false", "initiator.clean_aborts_using_cleaner", False),
        ("hive.compactor.worker.threads", "8", "worker.threads", 8),
        ("hive.compactor.worker.timeout", "3600s", "worker.timeout_s", 3600),
        ("hive.compactor.worker.sleep.time", "5000", "worker.sleep_s", 5),
        ("hive.compactor.worker.max.sleep.time", "1m", "worker.max_sleep_s", 60),
        ("hive.compactor.job.queue", "etl", "worker.job_queue", "etl"),
        ("metastore.compactor.run.as.user", "hive", "worker.run_as", "hive"),
        ("hive.compactor.cleaner.on", "false", "cleaner.on", False),
        ("hive.compactor.cleaner.run.interval", "250", "cleaner.interval_s", 0.25),
        ("hive.compactor.cleaner.threads.num", "2", "cleaner.threads", 2),
        ("hive.compactor.cleaner.retry.maxattempts", "0", "cleaner.retry_max_attempts", 0),
        ("hive.compactor.cleaner.retry.retentionTime", "60s", "cleaner.retry_retention_s", 60),
        ("metastore.acid.housekeeper.interval", "30s", "housekeeper.interval_s", 30),
        ("hive.timedout.txn.reaper.interval", "180s", "housekeeper.interval_s", 180),
        ("hive.compactor.history.reaper.interval", "2m", "housekeeper.history_interval_s", 120),
        ("hive.compactor.history.retention.attempted", "9", "housekeeper.retention.did_not_initiate", 9),
        ("hive.compactor.history.retention.failed", "9", "housekeeper.retention.failed", 9),
        ("metastore.compactor.history.retention.succeeded", "9", "housekeeper.retention.succeeded", 9),
        ("hive.txn.timeout", "60", "txn.timeout_s", 60),
        ("metastore.txn.opentxn.timeout", "2000", "txn.open_timeout_s", 2),
        ("hive.repl.txn.timeout", "3", "txn.repl_timeout_s", 3 * 86400),
        ("hive.txn.max.open.batch", "7", "txn.max_open_batch", 7),
        ("hive.max.open.txns", "5", "txn.max_open", 5),
        ("hive.count.open.txns.interval", "3", "txn.count_open_interval_s", 3),
        ("hive.txn.strict.locking.mode", "false", "txn.strict_locking", False),
        ("hive.txn.xlock.iow", "false", "txn.xlock_iow", False),
        ("hive.txn.xlock.write", "FALSE", "txn.xlock_write", False),
        ("metastore.txn.use.minhistorylevel", "false", "txn.min_history_level", False),
        ("metastore.txn.use.minhistorywriteid", "false", "txn.min_history_write_id", False),
        ("hive.lock.numretries", "9", "lock.retries", 9),
        ("hive.lock.sleep.between.retries", "30", "lock.longest_pause_s", 30),
        ("hive.unlock.numretries", "3", "lock.unlock_retries", 3),
        ("hive.timedout.txn.reaper.start", "100s", "housekeeper.start_s", 100),
        ("metastore.acid.housekeeper.start", "60s", "housekeeper.start_s", 60),
        ("metastore.acidmetrics.check.interval", "5m", "metrics.interval_s", 300),
        ("metastore.acidmetrics.thread.on", "false", "metrics.on", False),
        ("metastore.deltametrics.max.cache.size", "3", "metrics.delta_metrics_cache", 3),
        ("metastore.deltametrics.delta.num.threshold", "3", "metrics.delta_metrics_threshold", 3),
        ("metastore.deltametrics.obsolete.delta.num.threshold", "3", "metrics.obsolete_delta_metrics_threshold", 3),
        ("metastore.deltametrics.delta.pct.threshold", "0.2", "metrics.small_delta_pct", 0.2),
        ("hive.metastore.warehouse.dir", "s3://bucket/warehouse", "warehouse", "s3://bucket/warehouse"),
    ],
)
def test_hives_key_is_honoured_under_its_own_name_and_in_its_own_unit(
    load: Load, key: str, value: str, setting: str, expected: object
) -> None:
    found: object = load({key: value})
    for part in setting.split("."):
        found = getattr(found, part)
    assert found == expected


def test_the_metastore_spelling_wins_over_the_hive_spelling(load: Load) -> None:
    keys = {"metastore.compactor.worker.threads": "2", "hive.compactor.worker.threads": "9"}
    assert load(keys).worker.threads == 2


KEYS_OF_THE_MANUAL = """
hive.support.concurrency hive.enforce.bucketing hive.exec.dynamic.partition.mode hive.txn.manager
hive.txn.strict.locking.mode hive.txn.timeout metastore.txn.timeout hive.txn.heartbeat.threadpool.size
hive.timedout.txn.reaper.start hive.timedout.txn.reaper.interval hive.txn.max.open.batch metastore.txn.max.open.batch
hive.max.open.txns metastore.max.open.txns hive.count.open.txns.interval metastore.count.open.txns.interval
hive.txn.retryable.sqlex.regex metastore.txn.retryable.sqlex.regex hive.compaction.merge.enabled
hive.compactor.initiator.duration.update.interval hive.compactor.initiator.on metastore.compactor.initiator.on
hive.compactor.cleaner.duration.update.interval hive.compactor.cleaner.on metastore.compactor.cleaner.on
hive.compactor.cleaner.threads.num hive.compactor.compact.insert.only hive.compactor.crud.query.based
hive.compactor.gather.stats metastore.compactor.initiator.failed.retry.time
metastore.compactor.long.running.initiator.threshold.warning metastore.compactor.long.running.initiator.threshold.error
hive.compactor.worker.sleep.time hive.compactor.worker.max.sleep.time hive.compactor.worker.threads
metastore.compactor.worker.threads hive.compactor.worker.timeout hive.compactor.cleaner.run.interval
hive.compactor.check.interval hive.compactor.delta.num.threshold hive.compactor.delta.pct.threshold
hive.compactor.abortedtxn.threshold hive.compactor.aborted.txn.time.threshold hive.compactor.max.num.delta
hive.compactor.job.queue hive.compactor.request.queue hive.split.grouping.mode hive.txn.xlock.iow hive.txn.xlock.write
metastore.acidmetrics.ext.on hive.compactor.history.retention.succeeded metastore.compactor.history.retention.succeeded
hive.compactor.history.retention.failed metastore.compactor.history.retention.failed
hive.compactor.history.retention.attempted metastore.compactor.history.retention.did.not.initiate
hive.compactor.initiator.failed.compacts.threshold metastore.compactor.initiator.failed.compacts.threshold
hive.compactor.history.reaper.interval metastore.acid.housekeeper.interval metastore.acidmetrics.check.interval
metastore.acidmetrics.thread.on metastore.deltametrics.delta.num.threshold metastore.deltametrics.delta.pct.threshold
metastore.deltametrics.max.cache.size metastore.deltametrics.obsolete.delta.num.threshold hive.lock.numretries
hive.lock.sleep.between.retries
"""


@pytest.mark.parametrize("key", KEYS_OF_THE_MANUAL.split())
def test_every_key_of_the_manual_is_honoured_or_has_a_reason_not_to_be(key: str) -> None:
    honoured = {name for mapped in HIVE_KEYS for name in mapped.names}
    assert (key in honoured) is not (key in WITHOUT_MEANING)


def test_every_mapped_setting_exists() -> None:
    assert {key.setting for key in HIVE_KEYS} <= {doc.name for doc in describe_settings()}


def test_known_keys_without_a_meaning_here_are_listed_once_and_are_no_error(load: Load) -> None:
    settings = load(
        {
            "hive.compactor.crud.query.based": "true",
            "hive.compaction.merge.enabled": "true",
            "hive.txn.heartbeat.threadpool.size": "5",
            "metastore.acidmetrics.ext.on": "true",
            "hive.exec.dynamic.partition.mode": "nonstrict",
        }
    )
    assert len(settings.warnings) == 1
    assert settings.warnings[0].endswith(
        "hive.compaction.merge.enabled, hive.compactor.crud.query.based, hive.txn.heartbeat.threadpool.size, "
        "metastore.acidmetrics.ext.on"
    )


def test_retention_holds_only_when_delayed_cleanup_is_enabled(load: Load) -> None:
    retention = {"hive.compactor.cleaner.retention.time.seconds": "120"}
    enabled = {"hive.compactor.delayed.cleanup.enabled": "true"}
    assert load(retention).cleaner.retention_s == 0
    assert load(retention | enabled).cleaner.retention_s == 120
    assert load(enabled).cleaner.retention_s == 300
    assert load(enabled).warnings == ()


URL, USER, PASSWORD = (f"javax.jdo.option.Connection{part}" for part in ("URL", "UserName", "Password"))
DATABASE = {URL: "jdbc:postgresql://db:5433/hms", USER: "hive", PASSWORD: "s3/c@ret"}


def test_hives_database_becomes_ours(tmp_path: Path) -> None:
    path = write_site(tmp_path, DATABASE)
    found = read_hive_site(path, {}).database_url()
    assert found is not None
    assert (found.setting, found.key) == ("database_url", URL)
    assert found.value == "postgresql://hive:s3%2Fc%40ret@db:5433/hms"


def test_a_password_may_come_from_the_environment(tmp_path: Path) -> None:
    for spelling in ("${env.PW}", "${env:PW}"):
        path = write_site(tmp_path, DATABASE | {PASSWORD: spelling})
        found = read_hive_site(path, {"PW": "secret"}).database_url()
        assert found is not None
        assert found.value == "postgresql://hive:secret@db:5433/hms"


def test_the_password_does_not_show_in_the_sites_text(tmp_path: Path) -> None:
    assert "s3/c@ret" not in repr(read_hive_site(write_site(tmp_path, DATABASE), {}))


def test_a_password_that_only_a_java_key_store_has_is_refused_with_a_way_out(load: Load) -> None:
    store = {"hadoop.security.credential.provider.path": "jceks://file/etc/hive.jceks"}
    kept = {URL: DATABASE[URL], USER: "hive"} | store
    with pytest.raises(ConfigError, match=r"jceks://file/etc/hive\.jceks") as caught:
        load(kept)
    assert "ConnectionPassword" in caught.value.hint
    assert "database_url" in caught.value.hint
    own = {"COMPACTOR_DATABASE_URL": "sqlite:///own.db"}
    assert load(kept, own).database_url == "sqlite:///own.db"


def test_a_key_store_beside_a_readable_password_does_not_matter(tmp_path: Path) -> None:
    store = {"hadoop.security.credential.provider.path": "jceks://file/etc/hive.jceks"}
    for properties in (DATABASE, {URL: f"{DATABASE[URL]}?user=hive&password=p"}):
        assert read_hive_site(write_site(tmp_path, properties | store), {}).database_url() is not None


def test_a_database_that_cannot_be_used_is_refused_unless_another_is_given(load: Load) -> None:
    derby = {URL: "jdbc:derby:;databaseName=metastore_db"}
    with pytest.raises(ConfigError, match=r"jdbc:derby.*PostgreSQL, MySQL and MariaDB"):
        load(derby)
    own = {"COMPACTOR_DATABASE_URL": "sqlite:///own.db"}
    assert load(derby, own).database_url == "sqlite:///own.db"


def test_variables_are_substituted_as_hadoop_does(load: Load) -> None:
    settings = load(
        {
            "javax.jdo.option.ConnectionURL": "sqlite:///${db.dir}/${env.DB_FILE:-hms.db}",
            "db.dir": "${env.DB_DIR}/meta",
            "hive.compactor.job.queue": "${nobody.knows}",
            "hive.metastore.warehouse.dir": "${hive.metastore.warehouse.dir}/x",
        },
        {"DB_DIR": "data"},
    )
    assert settings.database_url == "sqlite:///data/meta/hms.db"
    assert settings.worker.job_queue == "${nobody.knows}"


def test_a_wrong_value_is_named_by_hives_key_with_file_value_and_what_is_allowed(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"hive.compactor.worker.threads": "lots"})
    for part in ("hive.compactor.worker.threads", str(tmp_path / "hive-site.xml"), "'lots'", "integer"):
        assert part in caught.value.message


def test_a_wrong_duration_is_named_by_hives_key(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"hive.compactor.worker.timeout in .* is '1 fortnight'; allowed: .*12h"):
        load({"hive.compactor.worker.timeout": "1 fortnight"})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("<configuration><property>", "no well-formed XML"),
        ("", "no well-formed XML"),
        ("<properties/>", "root element <properties>"),
        ("<configuration><property><value>1</value></property></configuration>", "without a <name>"),
    ],
)
def test_a_malformed_file_is_reported(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "hive-site.xml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        read_hive_site(path, {})


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*hive-site\.xml: No such file"):
        read_hive_site(tmp_path / "hive-site.xml", {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300s", 300),
        ("300", 300),
        ("12h", 43200),
        ("7d", 604800),
        ("7days", 604800),
        ("10800ms", 10.8),
        ("5 min", 300),
        ("2 Hours", 7200),
        ("-1", -1),
        ("1.5m", 90),
        ("1000us", 0.001),
    ],
)
def test_durations_are_read_as_hive_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text, unit="s") == seconds


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_duration(text, unit="s"), float)
