"""A running Trino 476 beside Hive: one node, a catalog for each metastore, and its protocol as its clients speak it.

What one has to know about it:

* Tables in `file:` locations are read and written through Hadoop's file system only (`fs.hadoop.enabled`).
* Hive 4's metastore refuses its writes into tables and partitions that have column statistics: Hive must write such
  tables with `hive.stats.column.autogather=false`.
* Jars that plugins share are hard links in the tarball: all of it is unpacked before anything is thrown away.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.hive.lab.artifacts import find_java, resolve
from tests.hive.lab.hive import Hive
from tests.hive.lab.process import SHORT_LIVED_JAVA, Process, free_ports
from tests.hive.lab.session import Row

CATALOG = "hive"
_NEEDED_PLUGIN = "hive"
_UNPACK_S = 300
_ANSWER_S = 180
_CONFIG = """coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
node.internal-address=127.0.0.1
discovery.uri=http://127.0.0.1:{port}
catalog.management=dynamic
catalog.store=memory
query.max-memory=300MB
query.max-memory-per-node=300MB
memory.heap-headroom-per-node=200MB
query.max-run-time=5m
sink.max-buffer-size=1MB
exchange.max-buffer-size=1MB
"""
"""The small buffers make a query wait for whoever fetches its rows."""
_JAVA_OPTIONS = (
    "-Xmx1g -XX:+ExitOnOutOfMemoryError -Djdk.attach.allowAttachSelf=true "
    "--enable-native-access=ALL-UNNAMED --sun-misc-unsafe-memory-access=allow -Dfile.encoding=UTF-8 -Duser.timezone=UTC"
)
_HEADERS = {
    "X-Trino-User": "tests",
    "X-Trino-Catalog": CATALOG,
    # Without it timestamps come in milliseconds.
    "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
}
_LOGGING = "io.trino=ERROR\nio.airlift=ERROR\n"


class TrinoError(Exception):
    """Trino could not do a statement; its message."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one answer brought. rows: values in the form of `printed`. read: rows that have been read of tables so far."""

    rows: list[Row]
    read: int


class Trino:
    """One server; a call runs a statement to its end."""

    def __init__(self, root: Path) -> None:
        """root: an empty directory."""
        [tarball] = resolve("trino-pom.xml", root)
        home = _unpacked(tarball)
        # The oldest Java that Trino 476 starts on.
        java = find_java(24, 99)
        [self._port] = free_ports(1)
        for folder in ("catalog", "data", "scratch"):
            (root / folder).mkdir()
        (root / "config.properties").write_text(_CONFIG.format(port=self._port))
        (root / "log.properties").write_text(_LOGGING)
        properties = {
            "java.io.tmpdir": root / "scratch",
            "config": root / "config.properties",
            "log.levels-file": root / "log.properties",
            "catalog.config-dir": root / "catalog",
            "plugin.dir": home / "plugin",
            "node.environment": "tests",
            "node.id": "tests",
            "node.data-dir": root / "data",
        }
        command = [
            str(java),
            *SHORT_LIVED_JAVA,
            *_JAVA_OPTIONS.split(),
            *(f"-D{name}={value}" for name, value in properties.items()),
        ]
        command += ["-cp", f"{home}/lib/*", "io.trino.server.TrinoServer"]
        self._process = Process("trino", command, log=root / "trino.log", cwd=root / "data")
        self._process.wait_until(self._is_ready, "has started")

    def add_catalog(self, name: str, hive: Hive) -> None:
        """The tables of a Hive, as a catalog of this name."""
        properties = {
            "hive.metastore.uri": f"thrift://127.0.0.1:{hive.metastore_port}",
            "hive.metastore-cache-ttl": "0s",
            "hive.timestamp-precision": "NANOSECONDS",
            "fs.hadoop.enabled": "true",
        }
        listed = ", ".join(f"\"{key}\" = '{value}'" for key, value in properties.items())
        self(f"CREATE CATALOG {name} USING hive WITH ({listed})")

    def __call__(self, statement: str) -> list[Row]:
        """Run a statement to its end; its rows. Raises TrinoError."""
        return [row for page in self.pages(statement) for row in page.rows]

    def pages(self, statement: str) -> Iterator[Page]:
        """Run a statement as far as one fetches; a generator that is closed cancels it. Raises TrinoError."""
        answer = self._ask("POST", "/v1/statement", statement)
        try:
            while True:
                if "error" in answer:
                    raise TrinoError(answer["error"]["message"])
                signatures = [column["typeSignature"] for column in answer.get("columns", [])]
                rows = [tuple(map(printed, row, signatures)) for row in answer.get("data", [])]
                yield Page(rows=rows, read=answer["stats"]["processedRows"])
                if "nextUri" not in answer:
                    return
                answer = self._ask("GET", urlsplit(answer["nextUri"]).path)
        finally:
            if "nextUri" in answer:
                self._ask("DELETE", urlsplit(answer["nextUri"]).path)

    def logs(self) -> dict[str, Path]:
        return {"trino": self._process.log}

    def stop(self) -> None:
        self._process.stop()

    def _is_ready(self) -> bool:
        try:
            return self._ask("GET", "/v1/info")["starting"] is False
        except ConnectionError:
            # Nobody listens yet.
            return False

    def _ask(self, method: str, path: str, body: str = "") -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        try:
            connection.request(method, path, body.encode(), _HEADERS)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise TrinoError(f"{answer.status} {answer.reason}: {content[:1000]!r}")
        return json.loads(content) if content else {}


def printed(value: Any, signature: dict[str, Any]) -> Any:
    """A value of Trino's protocol as Hive's driver prints it: bytes in hexadecimal, nested types as JSON."""
    match signature["rawType"]:
        case _ if value is None:
            return None
        case "varbinary":
            return base64.b64decode(value).hex()
        case "timestamp":
            return value.rstrip("0").rstrip(".")
        case "array" | "map" | "row":
            return json.dumps(_plain(value, signature), separators=(",", ":"))
        case _:
            return value


def _plain(value: Any, signature: dict[str, Any]) -> Any:
    """Without the names that Trino keeps in the type of a row."""
    arguments = [argument["value"] for argument in signature["arguments"]]
    if value is None:
        return None
    match signature["rawType"]:
        case "array":
            return [_plain(v, arguments[0]) for v in value]
        case "map":
            return {k: _plain(v, arguments[1]) for k, v in value.items()}
        case "row":
            return {
                a["fieldName"]["name"]: _plain(v, a["typeSignature"]) for v, a in zip(value, arguments, strict=True)
            }
        case _:
            return value


def _unpacked(tarball: Path) -> Path:
    """The server with the one plugin that is needed, unpacked once for all later runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hive-compactor"
    name = tarball.name.removesuffix(".tar.gz")
    home = cache / name
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as folder:
            subprocess.run(["tar", "-xzf", tarball, "-C", folder], check=True, timeout=_UNPACK_S)
            unpacked = Path(folder) / name
            for plugin in (unpacked / "plugin").iterdir():
                if plugin.name != _NEEDED_PLUGIN:
                    shutil.rmtree(plugin)
            try:
                unpacked.rename(home)
            except OSError:
                # Another run was faster.
                if not home.exists():
                    raise
    return home
