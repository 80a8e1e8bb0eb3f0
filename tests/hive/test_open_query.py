"""A query of Hive's that runs for long keeps the files that it reads, and nothing else does."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import VECTORISED, HiveSession, Row
from tests.hive.lab.tables import Table, create

_HOLD = """#!/bin/sh
# Lets the rows through once somebody has written into the pipe.
[ -e {root}/released ] || read -r _ < {root}/gate
exec cat
"""


class HeldQuery:
    """A SELECT of all rows that has read its first ones and goes on when `release` is called."""

    def __init__(self, sql: HiveSession, table: Table, root: Path) -> None:
        self._sql = sql
        self._root = root
        self._gate = -1
        os.mkfifo(root / "gate")
        script = root / "hold.sh"
        script.write_text(_HOLD.format(root=root))
        script.chmod(0o755)
        for name, value in VECTORISED.items():
            sql(f"SET {name}={value}")
        sql.start(f"SELECT TRANSFORM (id, v) USING '{script}' AS (id int, v string) FROM {table.full_name}")
        until(self._is_read, "the query reads")

    def release(self) -> list[Row]:
        """Let it go; its rows."""
        (self._root / "released").touch()
        os.write(self._gate, b"go\n")
        os.close(self._gate)
        return self._sql.finish()

    def _is_read(self) -> bool:
        try:
            self._gate = os.open(self._root / "gate", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            # Nobody reads yet.
            return False
        return True


@pytest.fixture
def other(hive: Hive) -> Iterator[HiveSession]:
    with hive.connect() as session:
        yield session


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_an_open_query_keeps_its_files_and_returns_its_own_snapshot(
    hive: Hive, compactor: Compactor, sql: HiveSession, other: HiveSession, tmp_path: Path, kind: str
) -> None:
    table = create(hive, sql, f"held_{kind}", clause="CLUSTERED BY (id) INTO 2 BUCKETS")
    for i in range(3):
        sql(f"INSERT INTO {table.full_name} VALUES ({2 * i}, 'a'), ({2 * i + 1}, 'b')")
    sql(f"DELETE FROM {table.full_name} WHERE id = 0")
    before, rows = table.entries(), table.rows(sql)
    held = HeldQuery(other, table, tmp_path)
    sql(f"DELETE FROM {table.full_name} WHERE id = 3")
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
    compactor("cleaner", "--once")
    assert table.last(sql).state == "ready for cleaning"
    assert set(before) <= set(table.entries())
    assert table.rows(sql) == rows - Counter([(3, "b")])
    assert Counter(held.release()) == rows
    compactor.clean(lambda: table.last(sql).state == "succeeded")
    assert not set(before) & set(table.entries())
    assert table.rows(sql) == rows - Counter([(3, "b")])
