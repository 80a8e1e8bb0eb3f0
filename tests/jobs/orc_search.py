"""ACID files searched and written by orc-core, in the driver's Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactor.jobs.session import SparkSessions


class OrcSearch:
    """See OrcSearch.java."""

    def __init__(self, sessions: SparkSessions) -> None:
        self._context = sessions.get().sparkContext
        jvm: Any = self._context._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(Path(__file__).with_name("OrcSearch.java").read_text())
        self._methods = {m.getName(): m for m in compiler.getClassLoader().loadClass("tests.OrcSearch").getMethods()}

    def rewrite(
        self, source: Path, target: Path, *, compression: str, block: int, stride: int, blooms: Sequence[str]
    ) -> None:
        """The rows of an ACID file as Hive writes them, in the same stripes, under the same user metadata."""
        self._call("rewrite", str(source), str(target), compression, block, stride, ",".join(blooms))

    def seeks(self, path: Path, rows: Sequence[int]) -> dict[int, int]:
        """By number, the first field of the rows read after a seek to each of `rows`: that one and those behind it."""
        return _numbered(self._call("seeks", str(path), ",".join(map(str, rows))))

    def search(self, path: Path, operator: str, column: str, kind: str, *values: object) -> dict[int, int]:
        """By number, the first field of the rows read with a predicate.

        operator: equals, between, in or is null. column: a field of `row`. kind: PredicateLeaf.Type.
        """
        return _numbered(self._call("search", str(path), operator, column, kind, "\n".join(map(str, values))))

    def _call(self, name: str, *arguments: object) -> Any:
        jvm: Any = self._context._jvm
        array = self._context._gateway.new_array(jvm.java.lang.Object, len(arguments))  # type: ignore[union-attr]
        for position, argument in enumerate(arguments):
            array[position] = argument
        return self._methods[name].invoke(None, array)


def _numbered(found: str) -> dict[int, int]:
    pairs = (pair.split(":") for pair in found.split(",") if pair)
    return {int(number): int(value) for number, value in pairs}
