"""A running Apache Hive 4.0.1 on PostgreSQL: metastore and HiveServer2, with the compactor roles one asks for.

What one has to know about it:

* Tez in local mode answers wrongly, without an error, when more than one task runs at once
  (`tez.am.inline.task.execution.max-tasks`): Hive keeps a thread's state in statics.
* On PostgreSQL Hive 4.0.1's cleaner never finishes an unpartitioned table: it sends a null without a type, which the
  server refuses. The row stays 'r'; `test_rows_that_hive_cannot_finish.py` is about it.
* A simple SELECT without a task (`hive.fetch.task.conversion`) ends its transaction before its rows are fetched.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import psycopg
import sqlalchemy as sa

from compactor.demo.hive_tables import load
from compactor.metastore.database import Database
from tests.hive.lab.artifacts import find_java, resolve
from tests.hive.lab.process import SHORT_LIVED_JAVA, Process, free_ports
from tests.hive.lab.session import HiveSession

_SCHEMA = "scripts/metastore/upgrade/postgres/hive-schema-4.0.0.postgres.sql"
_FINDS_ITS_JAR = "org/apache/hadoop/hive/ql/exec/tez/DagUtils"
_OPENED = {
    "java.base": "java.io java.lang java.lang.reflect java.net java.nio java.text java.time java.util "
    "java.util.concurrent java.util.concurrent.atomic java.util.regex sun.nio.ch sun.nio.fs",
    "java.management": "sun.management",
    "java.sql": "java.sql",
}
_LOGGING = """status = ERROR
appenders = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5p [%t] %c{2}: %m%n%ex{8}
rootLogger.level = ERROR
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = out
loggers = compactor
logger.compactor.name = org.apache.hadoop.hive.ql.txn.compactor
logger.compactor.level = INFO
"""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The compactor roles that Hive itself plays; the others are left to us."""

    initiator: bool = False
    worker: bool = False
    cleaner: bool = False


class Hive:
    """One installation; `playing` changes Hive's own roles."""

    def __init__(self, root: Path, database_url: str) -> None:
        """root: an empty directory. database_url: an empty database of PostgreSQL, trusted without a password."""
        self.root = root
        self.database_url = database_url
        self.roles = Roles()
        artifacts = resolve("hive-pom.xml", root)
        self._classpath = [_thin_jar(artifacts, root), *(a for a in artifacts if a.suffix == ".jar")]
        # Java 24 took away what Hadoop's UserGroupInformation is built on.
        self._java = find_java(11, 23)
        self.metastore_port, self.server_port = free_ports(2)
        for folder in ("conf", "external", "scratch", "log"):
            (root / folder).mkdir()
        [tarball] = [a for a in artifacts if a.name.endswith("-bin.tar.gz")]
        self._fill_database(tarball)
        (root / "conf" / "log4j2.properties").write_text(_LOGGING)
        self._configure()
        self._metastore = self._start_metastore()
        self._server: Process | None = None

    @property
    def site(self) -> Path:
        """hive-site.xml, Hive's and ours."""
        return self.root / "conf" / "hive-site.xml"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def connect(self) -> HiveSession:
        """A session with HiveServer2, which starts with the first one."""
        if self._server is None:
            self._server = self._start_server()
        return HiveSession(self.server_port)

    def playing(self, roles: Roles) -> None:
        """Hive plays these roles from now on. All of them run in the metastore, which alone is started again."""
        if roles == self.roles:
            return
        self.roles = roles
        self._configure()
        self._metastore.stop()
        self._metastore = self._start_metastore()

    def metastore_rows(self) -> psycopg.Connection[tuple[object, ...]]:
        """A look into the metastore's database; each statement is a transaction of its own."""
        url = sa.make_url(self.database_url)
        return psycopg.connect(host=url.host, port=url.port, dbname=url.database, user=url.username, autocommit=True)

    def logs(self) -> dict[str, Path]:
        return {p.stem: p for p in sorted((self.root / "log").glob("*.log"))}

    def stop(self) -> None:
        for server in (self._server, self._metastore):
            if server is not None:
                server.stop()

    def _fill_database(self, tarball: Path) -> None:
        """Hive's tables by Hive's own script, and in them the tables of `tests/fixtures/hive-4.0.1`, as database fx.

        These are for tests that name them: no initiator looks at them.
        """
        script = "\n".join(line for line in _schema_script(tarball).splitlines() if not line.startswith("\\"))
        with self.metastore_rows() as conn:
            conn.execute(script.encode())
        db = Database.connect(self.database_url)
        load(db, self.root)
        db.dispose()
        with self.metastore_rows() as conn:
            conn.execute("""SELECT setval('"TXNS_TXN_ID_seq"', (SELECT max("TXN_ID") FROM "TXNS"))""")
            conn.execute("""INSERT INTO "TABLE_PARAMS" SELECT "TBL_ID", 'no_auto_compaction', 'true' FROM "TBLS" """)

    def _start_metastore(self) -> Process:
        arguments = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.metastore_port)]
        return self._start("metastore", "640m", arguments, self.metastore_port)

    def _start_server(self) -> Process:
        return self._start("hiveserver2", "1400m", ["org.apache.hive.service.server.HiveServer2"], self.server_port)

    def _start(self, name: str, heap: str, arguments: list[str], port: int) -> Process:
        conf = self.root / "conf"
        command = [str(self._java), f"-Xmx{heap}", *SHORT_LIVED_JAVA, f"-Djava.io.tmpdir={self.root}/scratch"]
        command += [f"--add-opens={m}/{p}=ALL-UNNAMED" for m, packages in _OPENED.items() for p in packages.split()]
        command += ["-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={conf}/log4j2.properties"]
        command += [f"-Dhive.log4j.file={conf}/log4j2.properties", "-Djava.util.logging.config.file="]
        classpath = ":".join(str(entry) for entry in (conf, *self._classpath))
        server = Process(
            name,
            [*command, *arguments],
            log=self.root / "log" / f"{name}.log",
            cwd=self.root / "scratch",
            # Directories of partitions may have any name.
            env={"CLASSPATH": classpath, "LC_ALL": "C.UTF-8"},
        )
        server.wait_for_port(port)
        return server

    def _configure(self) -> None:
        root = self.root
        _write(
            root / "conf" / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{root}/scratch/hadoop"}
        )
        mapred = {"mapreduce.framework.name": "local", "mapreduce.cluster.local.dir": f"{root}/scratch/mapreduce"}
        _write(root / "conf" / "mapred-site.xml", mapred)
        _write(root / "conf" / "tez-site.xml", _tez(root))
        _write(self.site, self._hive_site())

    def _hive_site(self) -> dict[str, str]:
        root, roles, url = self.root, self.roles, sa.make_url(self.database_url)
        return {
            "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
            "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
            "javax.jdo.option.ConnectionUserName": "hive",
            "javax.jdo.option.ConnectionPassword": "hive",
            "datanucleus.schema.autoCreateAll": "false",
            "hive.metastore.uris": f"thrift://127.0.0.1:{self.metastore_port}",
            "hive.metastore.warehouse.dir": f"file://{root}/warehouse",
            "hive.metastore.warehouse.external.dir": f"file://{root}/external",
            "hive.metastore.event.db.notification.api.auth": "false",
            "hive.cluster.delegation.token.store.class": "org.apache.hadoop.hive.metastore.security.MemoryTokenStore",
            "hive.support.concurrency": "true",
            "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
            "hive.exec.dynamic.partition.mode": "nonstrict",
            "hive.compactor.initiator.on": str(roles.initiator).lower(),
            "hive.compactor.cleaner.on": str(roles.cleaner).lower(),
            "hive.compactor.worker.threads": str(int(roles.worker)),
            "hive.metastore.runworker.in": "metastore",
            # Long enough for a busy machine; a killed worker holds its table up for no longer.
            "hive.txn.timeout": "40s",
            # How often AND WAIT looks: it begins with two seconds and doubles them up to this.
            "hive.compactor.wait.timeout": "300",
            "hive.compactor.check.interval": "1s",
            "hive.compactor.cleaner.run.interval": "500ms",
            "hive.compactor.worker.sleep.time": "500ms",
            "hive.compactor.worker.max.sleep.time": "1000ms",
            "hive.compactor.delta.num.threshold": "3",
            "hive.compactor.crud.query.based": "false",
            "hive.execution.engine": "tez",
            "hive.tez.container.size": "512",
            "hive.server2.enable.doAs": "false",
            "hive.server2.thrift.port": str(self.server_port),
            "hive.server2.thrift.bind.host": "127.0.0.1",
            "hive.server2.webui.port": "0",
            "hive.server2.authentication": "NONE",
            "hive.server2.tez.initialize.default.sessions": "false",
            "hive.server2.logging.operation.log.location": f"{root}/scratch/operation",
            "hive.security.authorization.enabled": "false",
            "hive.privilege.synchronizer": "false",
            "hive.query.results.cache.enabled": "false",
            "hive.exec.scratchdir": f"file://{root}/scratch/hive",
            "hive.exec.local.scratchdir": f"{root}/scratch/local",
            "hive.scratch.dir.permission": "777",
            "hive.user.install.directory": f"file://{root}/scratch/user",
            "hive.jar.directory": f"file://{root}/scratch/jars",
            "hive.querylog.location": f"{root}/scratch/query",
        }


def _tez(root: Path) -> dict[str, str]:
    return {
        "tez.local.mode": "true",
        "tez.local.mode.without.network": "true",
        "tez.runtime.optimize.local.fetch": "true",
        "tez.ignore.lib.uris": "true",
        "tez.use.cluster.hadoop-libs": "false",
        "tez.staging-dir": f"{root}/scratch/tez",
        "tez.am.mode.session": "true",
        "tez.am.inline.task.execution.max-tasks": "1",
        "tez.runtime.io.sort.mb": "32",
        "tez.runtime.unordered.output.buffer.size-mb": "16",
        "tez.history.logging.service.class": "org.apache.tez.dag.history.logging.impl.SimpleHistoryLoggingService",
        "tez.simple.history.logging.dir": f"{root}/scratch/history",
    }


def _write(path: Path, properties: Mapping[str, str]) -> None:
    rows = "".join(
        f"  <property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    path.write_text(f"<configuration>\n{rows}</configuration>\n")


def _thin_jar(artifacts: Sequence[Path], root: Path) -> Path:
    """A jar with nothing but the class by which Hive finds its own jar (DagUtils.getExecJarPathLocal).

    Tez copies that jar for each container, even in local mode, where nobody needs it: 80 MB several times a statement.
    """
    [whole] = [a for a in artifacts if a.name.startswith("hive-exec-")]
    thin = root / "hive-exec.jar"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(thin, "w") as target:
        for name in source.namelist():
            if name.startswith(_FINDS_ITS_JAR):
                target.writestr(name, source.read(name))
    return thin


def _schema_script(tarball: Path) -> str:
    """Hive's SQL for PostgreSQL; only the metastore server's tarball has it."""
    with tarfile.open(tarball) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith(_SCHEMA) else None
            if content is not None:
                return content.read().decode()
    raise AssertionError(f"{tarball} has no {_SCHEMA}")
