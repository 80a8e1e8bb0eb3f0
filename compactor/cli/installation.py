"""The composition root: settings, database, metrics and roles of one process, wired once."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from compactor.config import load_settings
from compactor.errors import ConfigError, NotInitialised
from compactor.jobs.engine import spark_engine
from compactor.jobs.session import SparkSessions
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database, RetryPolicy
from compactor.metastore.inspection import require_supported
from compactor.metastore.open_rules import OpenRules
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from compactor.thrift.client import MetastoreClient
from compactor.thrift.metastore import ThriftMetastore
from compactor.worker import Worker
from compactor.worker.metastore import DatabaseMetastore

VERSION = importlib.metadata.version("hive-compactor")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command takes: `--config`, `--hive-site`, `--set name=value`."""

    config: Path | None
    hive_site: Path | None
    assignments: tuple[str, ...]

    def overrides(self) -> dict[str, object]:
        pairs = [a.partition("=") for a in self.assignments]
        for name, equals, _ in pairs:
            if not equals or not name:
                raise ConfigError(f"--set {name!r} is no assignment", hint="for example --set worker.threads=2")
        return {name.strip(): value for name, _, value in pairs}


class Installation:
    """Everything a command needs; parts are made when first used."""

    def __init__(self, options: Options, environ: Mapping[str, str] = os.environ) -> None:
        self.settings: Settings = load_settings(
            config=options.config, hive_site=options.hive_site, environ=environ, overrides=options.overrides()
        )
        # A '-' would end the host name where SHOW COMPACTIONS splits worker and initiator ids.
        self.host = socket.gethostname().replace("-", "_")
        self.user = environ.get("USER") or environ.get("LOGNAME") or "compactor"
        self.metrics = Metrics(version=VERSION)

    @cached_property
    def unchecked_database(self) -> Database:
        """The database, whatever is in it."""
        return Database.connect(
            self.settings.database_url,
            retry=RetryPolicy.of(self.settings.retry),
            on_retry=lambda operation: self.metrics.retries.labels(operation).inc(),
        )

    @cached_property
    def db(self) -> Database:
        """The database; NotInitialised when Hive's tables are not there, ConfigError when none is meant."""
        if self.settings.metastore.uris and "database_url" not in self.settings.model_fields_set:
            raise ConfigError(
                "metastore.uris is enough for the worker; everything else needs the metastore's database",
                hint="set COMPACTOR_DATABASE_URL, or run nothing but 'compactor worker' here",
            )
        file = self.unchecked_database.file
        if file is not None and not file.exists():
            # Looking into it would create it.
            raise NotInitialised(f"there is no metastore database at {file}")
        require_supported(self.unchecked_database)
        if not self.unchecked_database.is_initialised():
            raise NotInitialised("the metastore database has no transaction tables")
        return self.unchecked_database

    @cached_property
    def open_rules(self) -> OpenRules:
        """How this process opens transactions; all of its threads share the limit."""
        return OpenRules.of(self.settings.txn)

    @cached_property
    def thrift(self) -> ThriftMetastore | None:
        """Hive's metastore service, when the settings say that the worker is to use it. Nothing is sent yet."""
        metastore = self.settings.metastore
        if not metastore.uris:
            return None
        if metastore.sasl:
            raise ConfigError(
                "the metastore wants SASL (metastore.sasl), which this worker cannot speak",
                hint="give the metastore's database (COMPACTOR_DATABASE_URL), or an address without SASL",
            )
        client = MetastoreClient(metastore.uris, timeout_s=metastore.timeout_s, framed=metastore.framed)
        return ThriftMetastore(client, heartbeat_timeout_s=self.settings.txn.timeout_s / 8)

    @cached_property
    def sessions(self) -> SparkSessions:
        spark = self.settings.spark
        conf = dict(spark.conf)
        if self.settings.worker.job_queue:
            conf.setdefault("spark.yarn.queue", self.settings.worker.job_queue)
        return SparkSessions(
            master=spark.master,
            app_name=spark.app_name,
            driver_memory=spark.driver_memory,
            conf=conf,
            cache=Path.home() / ".cache" / "hive-compactor",
        )

    def worker(self, stop: StopRequest, on_progress: Callable[[Compaction, int, int], None]) -> Worker:
        return Worker(
            metastore=self.thrift or DatabaseMetastore(self.db, self.open_rules),
            engine=spark_engine(self.sessions),
            settings=self.settings,
            metrics=self.metrics,
            host=self.host,
            version=VERSION,
            stop=stop,
            on_progress=on_progress,
        )

    def close(self) -> None:
        if "sessions" in self.__dict__:
            self.sessions.stop()
        if (thrift := self.__dict__.get("thrift")) is not None:
            thrift.close()
        self.unchecked_database.dispose()
