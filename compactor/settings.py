"""The settings: their names, defaults, units and what is allowed.

The defaults are Hive's. Durations are seconds; as text they may carry a unit ("90", "5m", "12h", "7d", "250ms").
`compactor.config.load_settings` fills these models from files, variables and the command line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from compactor.hive_site import parse_duration

DAY_S = 86400.0


def _seconds(value: object) -> object:
    return parse_duration(value, unit="s") if isinstance(value, str) else value


def _words(value: object) -> object:
    """Lists may be written as one text with commas: variables and the command line have nothing else."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _pairs(value: object) -> object:
    """Maps may be written as a JSON object: variables have nothing else."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except json.JSONDecodeError as error:
        raise ValueError('a JSON object such as {"spark.executor.memory": "2g"}') from error


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
SignedSeconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of compactor.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)


class SparkSettings(Section):
    """The Spark session of the worker."""

    master: str = "local[*]"
    """Spark's master URL."""
    conf: Pairs = Field(default_factory=dict)
    """Further Spark properties, passed on as they are."""
    driver_memory: str = Field(default="1g", pattern=r"^\d+[kmgtKMGT]?$")
    """Heap of the driver's Java, in Spark's notation."""
    app_name: str = "hive-compactor"
    """Name of the application in Spark's pages and logs."""


class InitiatorSettings(Section):
    """When a table or partition is worth compacting."""

    on: bool = True
    """Whether this installation requests compactions by itself."""
    interval_s: PositiveSeconds = 300.0
    """Time between two looks for candidates."""
    delta_num_threshold: Count = 10
    """More delta directories than this lead to a minor compaction (major when there is no base)."""
    delta_pct_threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Deltas larger than this fraction of the base lead to a major compaction."""
    aborted_txn_threshold: Count = 1000
    """More aborted transactions than this in one table or partition make it a candidate."""
    aborted_txn_time_threshold_s: SignedSeconds = 43200.0
    """An aborted transaction older than this makes its table a candidate; negative: never."""
    compact_insert_only: bool = True
    """Whether insert-only tables are compacted."""
    failed_compacts_threshold: Annotated[int, Field(ge=1, le=20)] = 2
    """After this many failures in a row a table or partition is no longer requested automatically."""
    failed_retry_time_s: SignedSeconds = 7 * DAY_S
    """Time after which such a table is tried once more; zero or negative: never."""
    fetch_size: PositiveCount = 1000
    """Candidates read from the metastore at once."""
    threads: PositiveCount = 1
    """Directories checked at the same time."""
    clean_aborts_using_cleaner: bool = True
    """Whether the cleaner removes aborted data by itself, without a compaction."""
    choose: Literal["hive", "cost"] = "hive"
    """Who decides between minor and major once a threshold is exceeded: hive's rule, or the price of each."""
    expected_scans: PositiveCount = 100
    """Full scans that a table gets between two compactions: the price weighs what they save against what it costs."""
    trino_safe: bool = True
    """Whether tables that Trino reads wrong until they are compacted are compacted at once."""


class WorkerSettings(Section):
    """Who compacts, and how carefully."""

    threads: Count = 1
    """Compactions at the same time in one process; 0: none in `compactor run`, one in a worker started by its name."""
    batch: PositiveCount = 32
    """Small compactions (up to 16 MiB to read) that share one Spark job; 1: each has its own."""
    timeout_s: PositiveSeconds = DAY_S
    """A compaction older than this is given up and queued again."""
    sleep_s: PositiveSeconds = 10.8
    """Pause after an empty queue or an error."""
    max_sleep_s: PositiveSeconds = 320.0
    """Longest pause; each error in a row doubles it up to here."""
    pools: Words = ()
    """Pools to take work from; empty: the default pool."""
    pool_timeout_s: Seconds = 43200.0
    """A request of a labelled pool waits this long for its own workers before the default pool takes it."""
    job_queue: str = ""
    """Scheduler queue (Spark on YARN: spark.yarn.queue) or Spark scheduler pool; empty: the default one."""
    max_num_delta: PositiveCount = 500
    """Files that one task of a compaction reads at most; a bucket of more is compacted in several, and joined."""
    recompress: Literal["off", "none", "snappy", "lz4", "zlib", "zstd"] = "off"
    """Codec of ORC files whose stripes are all encoded anew anyway (table property compactor.recompress); off: as they were."""
    run_as: str = ""
    """User to record as the one who ran the compaction; empty: the owner of the table's directory."""
    verify: Literal["standard", "full"] = "standard"
    """standard: files, row counts and key index before publication; full: also a checksum of all live rows."""
    gather_stats: bool = True
    """Whether numRows, numFiles, totalSize and rawDataSize are written back after a compaction."""
    column_statistics: Literal["off", "existing", "distinct"] = "existing"
    """existing: refresh the column statistics that are there; distinct: of every column, distinct values counted too."""


class CleanerSettings(Section):
    """When files that a compaction replaced are removed."""

    on: bool = True
    """Whether this installation removes obsolete files."""
    interval_s: PositiveSeconds = 5.0
    """Time between two looks at the queue."""
    threads: PositiveCount = 1
    """Tables or partitions cleaned at the same time."""
    retention_s: Seconds = 0.0
    """Extra time that obsolete files are kept after the last reader that could need them."""
    retry_max_attempts: Annotated[int, Field(ge=0, le=10)] = 5
    """Attempts at one directory before its row is marked failed; 0: no second attempt."""
    retry_retention_s: Seconds = 300.0
    """Pause before the second attempt; it doubles with every further one."""


class HistoryRetention(Section):
    """Finished rows kept for each table or partition, by outcome."""

    did_not_initiate: Count = 2
    """Requests that were not made, with their reason."""
    failed: Count = 3
    """Failed compactions; never fewer than initiator.failed_compacts_threshold are kept."""
    succeeded: Count = 3
    """Compactions that succeeded and were cleaned."""
    refused: Count = 3
    """Requests that had nothing to do."""
    aborted: Count = 3
    """Requests that an operator aborted."""


class HousekeeperSettings(Section):
    """Time-outs and clearing away what has ended."""

    on: bool = True
    """Whether this installation times transactions out and clears the metastore's tables."""
    interval_s: PositiveSeconds = 60.0
    """Time between two rounds of time-outs and clearing."""
    start_s: Seconds = 0.0
    """Time before the first round of a process that stays up; Hive waits 60 s."""
    history_interval_s: PositiveSeconds = 300.0
    """Time between two rounds of shortening the compaction history."""
    history_timeout_s: Seconds = 7 * DAY_S
    """Failures and refusals older than this go when a newer compaction succeeded."""
    retention: HistoryRetention = HistoryRetention()
    """How much history is kept."""


class TxnSettings(Section):
    """Transactions; all members of an installation, Hive included, need the same values."""

    timeout_s: PositiveSeconds = 300.0
    """A transaction without a heartbeat for this long is aborted."""
    repl_timeout_s: PositiveSeconds = 11 * DAY_S
    """The same for a transaction that replays one of another cluster."""
    open_timeout_s: PositiveSeconds = 1.0
    """Longest time that opening a transaction may take in the database."""
    max_open_batch: PositiveCount = 1000
    """Transactions that one call opens at most; who asks for more gets so many."""
    max_open: PositiveCount = 100_000
    """With so many open transactions no further one is opened until a tenth of them has ended."""
    count_open_interval_s: Seconds = 1.0
    """Time between two counts of the open transactions."""
    strict_locking: bool = True
    """Whether an insert into an ordinary table locks it EXCLUSIVE; otherwise SHARED_READ."""
    xlock_iow: bool = True
    """Whether INSERT OVERWRITE locks EXCLUSIVE, so that no insert beside it vanishes behind the new base."""
    xlock_write: bool = True
    """Whether UPDATE, DELETE and MERGE lock EXCL_WRITE; otherwise SHARED_WRITE, and conflicts show at the commit."""
    min_history_level: bool = True
    """Whether a new transaction notes the oldest one that was open (MIN_HISTORY_LEVEL), as Hive does by default."""
    min_history_write_id: bool = True
    """Whether our readers and writers declare what they read (MIN_HISTORY_WRITE_ID), and so hold up no other table."""


class LockSettings(Section):
    """Waiting for locks."""

    retries: Count = 100
    """How often a lock that is not free is asked for again."""
    longest_pause_s: PositiveSeconds = 60.0
    """Longest pause between two attempts; the first is 100 ms, each further one twice as long."""
    unlock_retries: Count = 10
    """How often the withdrawal of a lock is tried again when the database fails."""


def split_patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Hive's list of regular expressions; a comma before white space belongs to one (`SqlRetryHandler.isRetryable`)."""
    return tuple(re.compile(pattern, re.DOTALL) for pattern in re.split(r",(?=\S)", text) if pattern)


class RetrySettings(Section):
    """Operations that the metastore's database could not carry out for a reason that passes."""

    attempts: PositiveCount = 10
    """How often an operation is tried at most: after a deadlock, a lock that was not free, a broken connection."""
    longest_pause_s: PositiveSeconds = 2.0
    """Longest pause between two attempts; pauses begin at 50 ms and double."""
    sql_errors: str = ""
    """Further errors of the database that pass by themselves: regular expressions for the whole message, with commas."""

    @field_validator("sql_errors")
    @classmethod
    def _are_expressions(cls, value: str) -> str:
        try:
            split_patterns(value)
        except re.error as error:
            raise ValueError("regular expressions, separated by commas") from error
        return value


class MetastoreSettings(Section):
    """Hive's metastore over Thrift, for a worker that cannot reach its database."""

    uris: Words = ()
    """Addresses such as thrift://host:9083, tried in this order; given, the worker speaks Thrift instead of SQL."""
    timeout_s: PositiveSeconds = 600.0
    """Longest wait for one answer."""
    framed: bool = False
    """Whether the metastore wants the framed transport."""
    sasl: bool = False
    """Whether the metastore wants SASL or Kerberos; a worker over Thrift then refuses to start, it has neither."""


class MetricsSettings(Section):
    """The /metrics and /healthz pages of every role."""

    on: bool = True
    """Whether the pages are served."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 in a container."""
    port: Port = 9095
    """Port to listen on; 0: any free one, which is logged."""
    interval_s: Seconds = 15.0
    """Longest age of the queue's numbers in a scrape."""
    delta_metrics_cache: Annotated[int, Field(ge=0, le=500)] = 100
    """Tables and partitions with the most deltas that are listed by name."""
    delta_metrics_threshold: Count = 100
    """Active or small deltas that a table needs before it is listed."""
    obsolete_delta_metrics_threshold: Count = 100
    """Obsolete deltas that a table needs before it is listed."""
    small_delta_pct: Annotated[float, Field(ge=0, le=1)] = 0.01
    """A delta smaller than this fraction of the base counts as small."""


class LogSettings(Section):
    """What is logged, and how it looks."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["auto", "human", "json"] = "auto"
    """auto: human on a terminal, JSON otherwise."""


class Settings(Section):
    """All settings; `load_settings` makes one."""

    database_url: str = Field(default="sqlite:///compactor.db", repr=False)
    """The metastore's database as a SQLAlchemy URL: SQLite, PostgreSQL, MariaDB or MySQL."""
    warehouse: str = Field(default_factory=lambda: f"file:{Path.cwd()}/warehouse", min_length=1)
    """Where managed tables live: a path or URI."""
    spark: SparkSettings = SparkSettings()
    """The Spark session of the worker."""
    initiator: InitiatorSettings = InitiatorSettings()
    """When a table or partition is worth compacting."""
    worker: WorkerSettings = WorkerSettings()
    """Who compacts, and how carefully."""
    cleaner: CleanerSettings = CleanerSettings()
    """When files that a compaction replaced are removed."""
    housekeeper: HousekeeperSettings = HousekeeperSettings()
    """Time-outs and clearing away what has ended."""
    txn: TxnSettings = TxnSettings()
    """Transactions."""
    lock: LockSettings = LockSettings()
    """Waiting for locks."""
    retry: RetrySettings = RetrySettings()
    """Trying again."""
    metastore: MetastoreSettings = MetastoreSettings()
    """Hive's metastore over Thrift."""
    metrics: MetricsSettings = MetricsSettings()
    """The /metrics and /healthz pages."""
    log: LogSettings = LogSettings()
    """What is logged."""

    _warnings: tuple[str, ...] = PrivateAttr(default=())

    def with_warnings(self, warnings: tuple[str, ...]) -> Settings:
        """The same settings, carrying what the operator should know about their sources."""
        copy = self.model_copy()
        copy._warnings = warnings
        return copy

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the operator should know about the sources; to be logged once logging is set up."""
        return self._warnings

    @field_validator("database_url")
    @classmethod
    def _is_supported_url(cls, value: str) -> str:
        allowed = (
            "a SQLite file such as sqlite:////var/lib/hive-compactor/compactor.db, or "
            "postgresql://user:password@host/metastore, or mysql://user:password@host/metastore (MariaDB, too)"
        )
        try:
            backend = make_url(value).get_backend_name()
        except (ArgumentError, ValueError) as error:
            raise ValueError(allowed) from error
        if backend not in {"sqlite", "postgresql", "mysql", "mariadb"}:
            raise ValueError(allowed)
        return value
