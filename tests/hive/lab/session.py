"""HiveServer2 as its users see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from impala.dbapi import connect

Row = tuple[Any, ...]

VECTORISED = {"hive.fetch.task.conversion": "none", "hive.vectorized.execution.enabled": "true"}
ROW_BY_ROW = {"hive.fetch.task.conversion": "none", "hive.vectorized.execution.enabled": "false"}
FETCHED = {"hive.fetch.task.conversion": "more", "hive.vectorized.execution.enabled": "false"}
SPLIT = {
    "hive.tez.input.format": "org.apache.hadoop.hive.ql.io.HiveInputFormat",
    "hive.exec.orc.split.strategy": "ETL",
    "mapreduce.input.fileinputformat.split.maxsize": "2000",
    "mapreduce.input.fileinputformat.split.minsize": "1",
    "tez.grouping.max-size": "2000",
    "tez.grouping.min-size": "1",
}
"""A split for (nearly) each stripe, none of them grouped again."""
READERS: Mapping[str, Mapping[str, str]] = {
    "vectorised": VECTORISED,
    "row by row": ROW_BY_ROW,
    "by the client's fetch": FETCHED,
    "vectorised, in small splits": {**VECTORISED, **SPLIT},
    "row by row, in small splits": {**ROW_BY_ROW, **SPLIT},
}
"""Hive's ways to read a table, as the settings that choose them."""


class HiveSession:
    """One session; statements follow each other. Not for two threads."""

    def __init__(self, port: int) -> None:
        self._connection = connect(host="127.0.0.1", port=port, auth_mechanism="PLAIN", user="hive", password="-")  # noqa: S106
        self._cursor = self._connection.cursor(convert_types=False)

    def __enter__(self) -> HiveSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()

    def __call__(self, statement: str) -> list[Row]:
        """Run a statement to its end; its rows, none when it has no result."""
        self._cursor.execute(statement)
        return [tuple(row) for row in self._cursor.fetchall()] if self._cursor.description else []

    def all(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self(statement)

    def set(self, properties: Mapping[str, str]) -> None:
        for name, value in properties.items():
            self(f"SET {name}={value}")

    def start(self, statement: str) -> None:
        """Send a statement and do not wait for it."""
        self._cursor.execute_async(statement)

    def runs(self) -> bool:
        return bool(self._cursor.is_executing())

    def finish(self) -> list[Row]:
        """The rows of what `start` sent, once it is done."""
        self._cursor._wait_to_finish()
        return [tuple(row) for row in self._cursor.fetchall()]
