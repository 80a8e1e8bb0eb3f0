"""HiveServer2 as its users see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from impala.dbapi import connect
from impala.error import HiveServer2Error

from tests.hive.lab.process import PATIENCE_S, until

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

_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A row of SHOW COMPACTIONS, None where Hive prints ' --- ' or 'None'; times in epoch milliseconds."""

    id: int
    database: str
    table: str
    partition: str | None
    type: str
    state: str
    worker_host: str | None
    worker: str | None
    enqueued: int | None
    started: int | None
    duration_ms: int | None
    job: str | None
    error: str | None
    initiator_host: str | None
    initiator: str | None
    pool: str | None
    txn: int | None
    next_txn: int | None
    committed: int | None
    highest_write_id: int | None

    @classmethod
    def of(cls, row: Row) -> Shown:
        text = [None if str(v).strip() in {"---", "None", ""} else str(v).strip() for v in row]
        numbers = {"id", "enqueued", "started", "duration_ms", "txn", "next_txn", "committed", "highest_write_id"}
        values = zip(cls.__dataclass_fields__, text, strict=True)
        return cls(**{n: int(v) if n in numbers and v is not None else v for n, v in values})  # type: ignore[arg-type]


class HiveSession:
    """One session; statements follow each other. Not for two threads."""

    def __init__(self, port: int) -> None:
        self._connection = connect(
            host="127.0.0.1",
            port=port,
            auth_mechanism="PLAIN",
            user="hive",
            password="-",  # noqa: S106 -- it is not looked at
            timeout=int(PATIENCE_S),
        )
        self._cursor = self._connection.cursor(convert_types=False)
        self._statement = ""

    def __enter__(self) -> HiveSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()

    def __call__(self, statement: str) -> list[Row]:
        """Run a statement to its end; its rows, none when it has no result."""
        for _ in range(_TRIES):
            try:
                self.start(statement)
                return self.finish()
            except HiveServer2Error as error:
                # To compile a query Hive sums up the files below a table, what its other writers stage there among
                # them, and fails when that goes meanwhile (BasicStats.DataSizeEstimator).
                if ".hive-staging" not in str(error) or not statement.startswith("SELECT"):
                    raise
                failure = error
        raise failure

    def all(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self(statement)

    @contextmanager
    def reading(self, how: Mapping[str, str]) -> Iterator[None]:
        """Statements inside read by these settings; after it as the server does by default."""
        for name, value in how.items():
            self(f"SET {name}={value}")
        yield
        self("RESET")

    def compactions(self, table: str) -> list[Shown]:
        """SHOW COMPACTIONS for a table (`database.table`), oldest request first."""
        database, _, name = table.partition(".")
        shown = [Shown.of(row) for row in self("SHOW COMPACTIONS")]
        return sorted((s for s in shown if (s.database, s.table) == (database, name)), key=lambda s: s.id)

    def start(self, statement: str) -> None:
        """Send a statement and do not wait for it."""
        self._statement = statement
        self._cursor.execute_async(statement)

    def finish(self) -> list[Row]:
        """The rows of what `start` sent, once it is done; none when it has no result."""
        until(lambda: not self._cursor.is_executing(), f"HiveServer2 has done: {self._statement[:400]}")
        self._cursor._wait_to_finish()  # Raises what went wrong.
        return [tuple(row) for row in self._cursor.fetchall()] if self._cursor.description else []
