"""An existing hive-site.xml as a source of settings: Hive's keys under Hive's names, in Hive's units.

Sources: Hive `MetastoreConf.ConfVars` and `HiveConf.ConfVars` (names, defaults, units), Hadoop `Configuration`
(`${…}` substitution). Where both spellings of a key are present, `metastore.…` wins over `hive.…`, as in
`MetastoreConf.getVar`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compactor.errors import ConfigError
from compactor.jdbc import sqlalchemy_url

SECONDS_A_UNIT = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "msec": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_DURATION = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]*)")
_VARIABLE = re.compile(r"\$\{([^${}\s]+)\}")
_SUBSTITUTION_DEPTH = 20

CONNECTION_URL = "javax.jdo.option.ConnectionURL"
CONNECTION_USER = "javax.jdo.option.ConnectionUserName"
CONNECTION_PASSWORD = "javax.jdo.option.ConnectionPassword"  # noqa: S105 -- the name of a key
CREDENTIAL_PROVIDER = "hadoop.security.credential.provider.path"
METASTORE_URIS = "metastore.uris"
"""Our setting of that name; see `compactor.config` for what wins over it."""
DELAYED_CLEANUP = "hive.compactor.delayed.cleanup.enabled"


@dataclass(frozen=True, kw_only=True)
class HiveKey:
    """One Hive key that has a meaning here.

    setting: dotted path of ours. names: Hive's spellings, the winning one first. unit: of a bare number, "" for
    values that are no duration.
    """

    setting: str
    names: tuple[str, ...]
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class HiveValue:
    """A value found in the file: seconds for durations, text otherwise; key as the file spells it."""

    setting: str
    value: str | float
    key: str


@dataclass(frozen=True, kw_only=True)
class HiveSite:
    """What a hive-site.xml says about us.

    values: the database is not among them, see `database_url`. meaningless: known Hive keys that change nothing here,
    by name. connection: Hive's keys that lead to its database.
    """

    values: tuple[HiveValue, ...]
    meaningless: tuple[str, ...]
    connection: Mapping[str, str] = field(repr=False)

    def database_url(self) -> HiveValue | None:
        """Hive's database as a SQLAlchemy URL; None when the file names none.

        Only for who has no other: ConfigError when it is one that we cannot use, or when its password is kept where
        only Java can read it.
        """
        url = self.connection.get(CONNECTION_URL)
        if url is None:
            return None
        if url.startswith("jdbc:"):
            password = self.connection.get(CONNECTION_PASSWORD, "")
            if not password and CREDENTIAL_PROVIDER in self.connection and "password=" not in url:
                raise ConfigError(
                    f"the database's password is kept in {self.connection[CREDENTIAL_PROVIDER]}, a Java key store",
                    hint=f"give it as {CONNECTION_PASSWORD} = ${{env.HIVE_DB_PASSWORD}}, or set database_url",
                )
            url = sqlalchemy_url(url, user=self.connection.get(CONNECTION_USER, ""), password=password)
        return HiveValue(setting="database_url", value=url, key=CONNECTION_URL)


def _compactor(setting: str, tail: str, unit: str = "") -> HiveKey:
    """A `….compactor.<tail>` key, which Hive spells with both prefixes."""
    names = (f"metastore.compactor.{tail}", f"hive.compactor.{tail}")
    return HiveKey(setting=setting, names=names, unit=unit)


def _plain(setting: str, *names: str, unit: str = "") -> HiveKey:
    return HiveKey(setting=setting, names=names, unit=unit)


HIVE_KEYS: tuple[HiveKey, ...] = (
    _plain("database_url", CONNECTION_URL, CONNECTION_USER, CONNECTION_PASSWORD),
    _plain("warehouse", "metastore.warehouse.dir", "hive.metastore.warehouse.dir"),
    _compactor("initiator.on", "initiator.on"),
    _compactor("initiator.interval_s", "check.interval", "s"),
    _compactor("initiator.delta_num_threshold", "delta.num.threshold"),
    _compactor("initiator.delta_pct_threshold", "delta.pct.threshold"),
    _compactor("initiator.aborted_txn_threshold", "abortedtxn.threshold"),
    _compactor("initiator.aborted_txn_time_threshold_s", "aborted.txn.time.threshold", "h"),
    _compactor("initiator.compact_insert_only", "compact.insert.only"),
    _compactor("initiator.failed_compacts_threshold", "initiator.failed.compacts.threshold"),
    _compactor("initiator.failed_retry_time_s", "initiator.failed.retry.time", "d"),
    _compactor("initiator.fetch_size", "fetch.size"),
    _compactor("initiator.threads", "request.queue"),
    _compactor("initiator.clean_aborts_using_cleaner", "clean.aborts.using.cleaner"),
    _compactor("worker.threads", "worker.threads"),
    _compactor("worker.timeout_s", "worker.timeout", "s"),
    _compactor("worker.sleep_s", "worker.sleep.time", "ms"),
    _compactor("worker.max_sleep_s", "worker.max.sleep.time", "ms"),
    _compactor("worker.pool_timeout_s", "worker.pool.timeout", "h"),
    _compactor("worker.job_queue", "job.queue"),
    _compactor("worker.run_as", "run.as.user"),
    _compactor("worker.max_num_delta", "max.num.delta"),
    _compactor("worker.gather_stats", "gather.stats"),
    _compactor("cleaner.on", "cleaner.on"),
    _compactor("cleaner.interval_s", "cleaner.run.interval", "ms"),
    _compactor("cleaner.threads", "cleaner.threads.num"),
    _compactor("cleaner.retention_s", "cleaner.retention.time.seconds", "s"),
    _compactor("cleaner.retry_max_attempts", "cleaner.retry.maxattempts"),
    HiveKey(
        setting="cleaner.retry_retention_s",
        names=("hive.compactor.cleaner.retry.retention.time", "hive.compactor.cleaner.retry.retentionTime"),
        unit="s",
    ),
    _plain(
        "housekeeper.interval_s",
        "metastore.acid.housekeeper.interval",
        "hive.metastore.acid.housekeeper.interval",
        "metastore.timedout.txn.reaper.interval",
        "hive.timedout.txn.reaper.interval",
        unit="s",
    ),
    _compactor("housekeeper.history_interval_s", "history.reaper.interval", "s"),
    _plain(
        "housekeeper.retention.did_not_initiate",
        "metastore.compactor.history.retention.did.not.initiate",
        "hive.compactor.history.retention.did.not.initiate",
        "hive.compactor.history.retention.attempted",
    ),
    _compactor("housekeeper.retention.failed", "history.retention.failed"),
    _compactor("housekeeper.retention.succeeded", "history.retention.succeeded"),
    _compactor("housekeeper.retention.refused", "history.retention.refused"),
    _compactor("housekeeper.history_timeout_s", "history.retention.timeout", "d"),
    _plain(
        "housekeeper.start_s",
        "metastore.acid.housekeeper.start",
        "hive.metastore.acid.housekeeper.start",
        "metastore.timedout.txn.reaper.start",
        "hive.timedout.txn.reaper.start",
        unit="s",
    ),
    _plain("txn.timeout_s", "metastore.txn.timeout", "hive.txn.timeout", unit="s"),
    _plain("txn.repl_timeout_s", "metastore.repl.txn.timeout", "hive.repl.txn.timeout", unit="d"),
    _plain("txn.max_open_batch", "metastore.txn.max.open.batch", "hive.txn.max.open.batch"),
    _plain("txn.max_open", "metastore.max.open.txns", "hive.max.open.txns"),
    _plain(
        "txn.count_open_interval_s", "metastore.count.open.txns.interval", "hive.count.open.txns.interval", unit="s"
    ),
    _plain("txn.strict_locking", "hive.txn.strict.locking.mode"),
    _plain("txn.xlock_iow", "hive.txn.xlock.iow"),
    _plain("txn.xlock_write", "hive.txn.xlock.write"),
    _plain("txn.min_history_level", "metastore.txn.use.minhistorylevel", "hive.txn.use.minhistorylevel"),
    _plain("txn.min_history_write_id", "metastore.txn.use.minhistorywriteid", "hive.txn.use.minhistorywriteid"),
    _plain("lock.retries", "metastore.lock.numretries", "hive.lock.numretries"),
    _plain("lock.longest_pause_s", "metastore.lock.sleep.between.retries", "hive.lock.sleep.between.retries", unit="s"),
    _plain("lock.unlock_retries", "hive.unlock.numretries"),
    _plain("retry.attempts", "metastore.hmshandler.retry.attempts", "hive.hmshandler.retry.attempts"),
    _plain("retry.longest_pause_s", "metastore.hmshandler.retry.interval", "hive.hmshandler.retry.interval", unit="ms"),
    _plain("retry.sql_errors", "metastore.txn.retryable.sqlex.regex", "hive.txn.retryable.sqlex.regex"),
    _plain("txn.open_timeout_s", "metastore.txn.opentxn.timeout", "hive.txn.opentxn.timeout", unit="ms"),
    _plain(METASTORE_URIS, "metastore.thrift.uris", "hive.metastore.uris"),
    _plain("metastore.timeout_s", "metastore.client.socket.timeout", "hive.metastore.client.socket.timeout", unit="s"),
    _plain(
        "metastore.framed",
        "metastore.thrift.framed.transport.enabled",
        "hive.metastore.thrift.framed.transport.enabled",
    ),
    _plain("metastore.sasl", "metastore.sasl.enabled", "hive.metastore.sasl.enabled"),
    _plain("metrics.on", "metastore.acidmetrics.thread.on"),
    _plain("metrics.interval_s", "metastore.acidmetrics.check.interval", unit="s"),
    _plain("metrics.delta_metrics_cache", "metastore.deltametrics.max.cache.size"),
    _plain("metrics.delta_metrics_threshold", "metastore.deltametrics.delta.num.threshold"),
    _plain("metrics.obsolete_delta_metrics_threshold", "metastore.deltametrics.obsolete.delta.num.threshold"),
    _plain("metrics.small_delta_pct", "metastore.deltametrics.delta.pct.threshold"),
)

MEANINGLESS_PREFIXES = (
    "hive.compactor.",
    "hive.compaction.",
    "hive.txn.",
    "hive.timedout.txn.",
    "hive.count.open.txns.",
    "hive.lock.numretries",
    "hive.lock.sleep.between.retries",
    "hive.max.open.txns",
    "metastore.compactor.",
    "metastore.txn.",
    "metastore.acidmetrics.",
    "metastore.deltametrics.",
    "metastore.count.open.txns.",
    "metastore.lock.numretries",
    "metastore.lock.sleep.between.retries",
    "metastore.max.open.txns",
    "metastore.timedout.txn.",
)
"""Families that belong to ACID and compaction; a key of one that HIVE_KEYS lacks is reported, others are Hive's own
business (hive.exec.…, hive.llap.…) and pass in silence."""


def parse_duration(text: str, *, unit: str) -> float:
    """Hive's time format ("300s", "12h", "7d", "10800ms", "5 min") as seconds; a bare number is in `unit`.

    Raises ValueError. Source: HiveConf.toTime, unitFor.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    suffix = match[2] if match else ""
    singular = suffix[:-1] if suffix.endswith("s") and suffix[:-1] in {"sec", "min", "hour", "day", "msec"} else suffix
    factor = SECONDS_A_UNIT.get(singular or unit)
    if match is None or factor is None:
        raise ValueError("a duration such as 300s, 10800ms, 5m, 12h or 7d")
    # Rounded because 10800 * 1e-3 must equal the 10.8 that a TOML file would say.
    return round(float(match[1]) * factor, 9)


def read_hive_site(path: Path, environ: Mapping[str, str]) -> HiveSite:
    """Read a hive-site.xml; `${key}`, `${env.NAME}` and `${env:NAME}` are substituted as Hadoop and Hive do.

    Raises ConfigError for a missing or malformed file and for a duration that cannot be read.
    """
    properties = _properties(path)
    values: list[HiveValue] = []
    for hive_key in HIVE_KEYS:
        name = next((name for name in hive_key.names if name in properties), None)
        if name is not None and hive_key.setting != "database_url":
            text = _substitute(properties[name], properties, environ)
            values.append(HiveValue(setting=hive_key.setting, value=_value(hive_key, name, text, path), key=name))
    resolved = {name: _substitute(text, properties, environ) for name, text in properties.items()}
    known = {name for key in HIVE_KEYS for name in key.names} | {DELAYED_CLEANUP}
    connection = (CONNECTION_URL, CONNECTION_USER, CONNECTION_PASSWORD, CREDENTIAL_PROVIDER)
    return HiveSite(
        connection={name: resolved[name] for name in connection if resolved.get(name)},
        values=tuple(_apply_special_rules(values, resolved)),
        meaningless=tuple(sorted(n for n in properties if n not in known and n.startswith(MEANINGLESS_PREFIXES))),
    )


def _apply_special_rules(values: list[HiveValue], properties: Mapping[str, str]) -> list[HiveValue]:
    """Hive spreads delayed cleaning over two keys: the retention holds only when it is enabled."""
    delayed = properties.get(DELAYED_CLEANUP, "false").strip().lower() == "true"
    ruled = [value for value in values if value.setting != "cleaner.retention_s" or delayed]
    if delayed and not any(value.setting == "cleaner.retention_s" for value in ruled):
        ruled.append(HiveValue(setting="cleaner.retention_s", value=300.0, key=DELAYED_CLEANUP))
    return ruled


def _value(hive_key: HiveKey, name: str, text: str, path: Path) -> str | float:
    if not hive_key.unit:
        return text
    try:
        return parse_duration(text, unit=hive_key.unit)
    except ValueError as error:
        raise ConfigError(f"{name} in {path} is {text!r}; allowed: {error}") from error


def _properties(path: Path) -> dict[str, str]:
    try:
        root = ET.fromstring(path.read_bytes())  # noqa: S314 -- the operator's own file; expat refuses entity bombs
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", hint="check --hive-site") from error
    except ET.ParseError as error:
        raise ConfigError(f"{path} is no well-formed XML: {error}", hint="xmllint shows the place") from error
    if root.tag != "configuration":
        raise ConfigError(f"{path} has the root element <{root.tag}>", hint="a Hadoop file has <configuration>")
    properties: dict[str, str] = {}
    for element in root.iter("property"):
        name = (element.findtext("name") or "").strip()
        if not name:
            raise ConfigError(f"{path} has a <property> without a <name>")
        properties[name] = (element.findtext("value") or "").strip()
    return properties


def _substitute(text: str, properties: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Hadoop's variable substitution, and Hive's spelling of it; a variable that nobody defines stays as it is."""

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith(("env.", "env:")):
            variable, _, default = name[4:].partition(":-")
            return environ.get(variable, default or match[0])
        return properties.get(name, match[0])

    for _ in range(_SUBSTITUTION_DEPTH):
        replaced = _VARIABLE.sub(replacement, text)
        if replaced == text:
            return text
        text = replaced
    return text
