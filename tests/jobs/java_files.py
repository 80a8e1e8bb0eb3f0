"""Files of Java's own libraries for tests, written and read back in the driver's Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compactor.jobs.session import SparkSessions


class OrcFiles:
    """ORC files as lists of rows, by orc-core alone; see OrcFiles.java for how values look."""

    def __init__(self, sessions: SparkSessions) -> None:
        jvm: Any = sessions.get().sparkContext._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(Path(__file__).with_name("OrcFiles.java").read_text())
        self._methods = {m.getName(): m for m in compiler.getClassLoader().loadClass("tests.OrcFiles").getMethods()}
        self._context = sessions.get().sparkContext

    def write(
        self,
        path: Path,
        schema: str,
        rows: list[Any],
        *,
        compression: str = "ZLIB",
        block: int = 1 << 16,
        stride: int = 1000,
        proleptic: bool = True,
        stripe_rows: int = 1024,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call("write", str(path), schema, json.dumps(rows), compression, block, stride, proleptic, stripe_rows)
        return path

    def read(self, path: Path) -> list[Any]:
        rows: list[Any] = json.loads(self._call("read", str(path)))
        return rows

    def describe(self, path: Path) -> str:
        """Compression, chunk size, stride, number of stripes, proleptic, schema."""
        return str(self._call("describe", str(path)))

    def _call(self, name: str, *arguments: object) -> Any:
        jvm: Any = self._context._jvm
        array = self._context._gateway.new_array(jvm.java.lang.Object, len(arguments))  # type: ignore[union-attr]
        for position, argument in enumerate(arguments):
            array[position] = argument
        return self._methods[name].invoke(None, array)
