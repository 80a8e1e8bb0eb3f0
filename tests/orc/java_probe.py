"""ORC files through orc-core, in the driver's Java."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compactor.jobs.session import SparkSessions


class OrcProbe:
    """See OrcProbe.java."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._context = sessions.get().sparkContext
        jvm: Any = self._context._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(Path(__file__).with_name("OrcProbe.java").read_text())
        self._methods = {m.getName(): m for m in compiler.getClassLoader().loadClass("tests.OrcProbe").getMethods()}

    def dump(self, path: Path) -> list[str]:
        return str(self._call("dump", str(path))).split("\n")

    def seeks(self, path: Path, rows: Iterable[int]) -> str:
        """The first row that is not as scanned after a seek to one of `rows`, or nothing."""
        return str(self._call("seeks", str(path), ",".join(map(str, rows))))

    def search(self, path: Path, column: str, kind: str, low: str, high: str) -> list[int]:
        """Numbers of the rows read with the predicate `column` between `low` and `high`; each is as scanned.

        kind: org.apache.hadoop.hive.ql.io.sarg.PredicateLeaf.Type.
        """
        found = str(self._call("search", str(path), column, kind, low, high))
        return [int(number) for number in found.split(",") if number]

    def rewrite(self, sources: Iterable[Path], target: Path, *, compression: str) -> Path:
        """The rows of `sources` as Java writes them, a stripe for each."""
        self._call("rewrite", "\n".join(map(str, sources)), str(target), compression)
        return target

    def _call(self, name: str, *arguments: object) -> Any:
        jvm: Any = self._context._jvm
        array = self._context._gateway.new_array(jvm.java.lang.Object, len(arguments))  # type: ignore[union-attr]
        for position, argument in enumerate(arguments):
            array[position] = argument
        return self._methods[name].invoke(None, array)
