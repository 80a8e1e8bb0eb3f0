"""The Spark session of a process: one, started when the first job needs it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compactor.errors import JobError
from compactor.jobs.java import find_java_home

_LOGGING = Path(__file__).with_name("log4j2.properties")
_CONF = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A compaction shares the session with other jobs of the daemon; none may starve another.
    "spark.scheduler.mode": "FAIR",
    # Over TCP a Python task takes twice as long to start and to end.
    "spark.python.unix.domain.socket.enabled": "true",
    # Arrow's own pool keeps a quarter more than a task needs; malloc's can be given back after every stripe.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
}


class SparkSessions:
    """Starts the session lazily and hands out the same one until `stop`. Thread-safe.

    conf: Spark properties that win over ours. cache: directory for what must be kept between starts.
    """

    def __init__(self, *, master: str, app_name: str, driver_memory: str, conf: Mapping[str, str], cache: Path) -> None:
        self._master, self._app_name, self._driver_memory = master, app_name, driver_memory
        self._conf = dict(conf)
        self._cache = cache
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session, a new one when the last one's Java has died; JavaNotFound or JobError when it cannot start."""
        with self._lock:
            if self._session is not None and not _is_alive(self._session):
                _forget(self._session)
                self._session = None
            if self._session is None:
                self._session = self._start()
            return self._session

    def running(self) -> SparkSession | None:
        """The session if it was started."""
        with self._lock:
            return self._session

    def stop(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None

    def _start(self) -> SparkSession:
        # The driver is this process and its Java, whatever the executors are.
        os.environ["JAVA_HOME"] = str(find_java_home(os.environ, cache=self._cache))
        if self._master.startswith("local"):
            # A laptop's host name often resolves to an address it does not have.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # PySpark reads the executors' Python from the environment only.
        os.environ.setdefault("PYSPARK_PYTHON", self._conf.get("spark.pyspark.python", sys.executable))
        builder = SparkSession.builder.master(self._master).appName(self._app_name)
        conf = {**_CONF, "spark.driver.memory": self._driver_memory}
        for key, value in (conf | self._conf).items():
            builder = builder.config(key, value)
        try:
            with warnings.catch_warnings():
                # PySpark warns of pandas versions; no pandas is used here.
                warnings.simplefilter("ignore", FutureWarning)
                return builder.getOrCreate()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            raise JobError(
                f"Spark at {self._master!r} does not start: {error}",
                hint="check COMPACTOR_SPARK_MASTER and the [spark] settings",
            ) from error


def _is_alive(session: SparkSession) -> bool:
    """Does the session's Java run? One that another program started (`pyspark.daemon`, a notebook) counts as alive."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def _forget(session: SparkSession) -> None:
    """Let go of a session whose Java is gone, which pyspark itself would hand out for ever."""
    with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        session.stop()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
