"""A query of Trino's that runs for long keeps the files that it reads, and nothing else does."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession, Row
from tests.hive.lab.tables import STRIPES, Table, create, numbers, value_of
from tests.hive.lab.trino import Page, Trino

ROWS = 12_000
DELTAS = 3


class HeldQuery:
    """A SELECT of all rows, each of one and a half kilobytes, that goes on reading only while one fetches: `rest` does."""

    def __init__(self, trino: Trino, table: Table) -> None:
        self._pages = trino.pages(f"SELECT id, v, concat(v, v, v) FROM {table.full_name}")
        self._fetched: list[Page] = []
        while not (self._fetched and self._fetched[-1].rows):
            self._fetched.append(next(self._pages))

    @property
    def read(self) -> int:
        """Rows of the table that it has read."""
        return self._fetched[-1].read

    def rest(self) -> list[Row]:
        """All its rows."""
        self._fetched.extend(self._pages)
        return [row[:2] for page in self._fetched for row in page.rows]


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_an_open_query_of_trino_keeps_its_files_and_returns_its_own_snapshot(
    hive: Hive, compactor: Compactor, sql: HiveSession, trino: Trino, kind: str
) -> None:
    table = create(hive, sql, f"held_in_trino_{kind}", properties=STRIPES)
    for i in range(DELTAS):
        sql(f"INSERT INTO {table.full_name} {numbers(i * ROWS, ROWS)}")
    before = table.entries()
    rows: Counter[Row] = Counter((i, value_of(i)) for i in range(ROWS * DELTAS))
    held = HeldQuery(trino, table)
    sql(f"DELETE FROM {table.full_name} WHERE id = 3")
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
    compactor("cleaner", "--once")
    assert held.read < ROWS * DELTAS
    assert table.last(sql).state == "ready for cleaning"
    assert set(before) <= set(table.entries())
    left = rows - Counter([(3, value_of(3))])
    assert Counter(trino(f"SELECT * FROM {table.full_name}")) == left
    assert Counter(held.rest()) == rows
    compactor.clean(lambda: table.last(sql).state == "succeeded")
    assert not set(before) & set(table.entries())
    assert Counter(trino(f"SELECT * FROM {table.full_name}")) == left
