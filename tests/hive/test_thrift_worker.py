"""A worker that knows nothing of Hive but the Thrift address of its metastore."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import VECTORISED, HiveSession
from tests.hive.lab.tables import Table, create, numbers
from tests.hive.test_open_query import HeldQuery

ROWS = 6_000
STATEMENTS = 12
COMPACTIONS = 3
"""Hive writes so many statements while we publish so many compactions, at least."""
STREAM_LIMIT_S = 900.0


@pytest.fixture(scope="module")
def thrift_worker(hive: Hive) -> Iterator[Compactor]:
    """Our worker with a hive-site.xml as clients of Hive have it: without the database."""
    root = hive.root / "thrift"
    site = hive.root / "client-hive-site.xml"
    properties = {
        "hive.metastore.uris": f"thrift://127.0.0.1:{hive.metastore_port}",
        "hive.metastore.warehouse.dir": f"file://{hive.warehouse}",
        "hive.compactor.worker.sleep.time": "500ms",
    }
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    site.write_text(f"<configuration>{''.join(lines)}</configuration>")
    worker = Compactor(root, site)
    yield worker
    worker.stop()


@pytest.fixture(autouse=True)
def our_worker_alone(hive: Hive, compactor: Compactor, thrift_worker: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing(())
    thrift_worker.playing({"worker"})


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_what_is_asked_for_in_hive_is_done_and_shown_there(hive: Hive, sql: HiveSession, kind: str) -> None:
    table = create(hive, sql, f"thrift_{kind}")
    for i in range(2):
        sql(f"INSERT INTO {table.full_name} {numbers(i * ROWS, ROWS)}")
    sql(f"UPDATE {table.full_name} SET v = 'updated' WHERE id % 5000 = 7")
    sql(f"DELETE FROM {table.full_name} WHERE id BETWEEN 5500 AND 6500")
    rows, ids = table.rows(sql), table.row_ids(sql)
    assert len(ids) == rows.total() == 2 * ROWS - 1001
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
    table.is_read_alike(sql, rows, ["vectorised", "row by row"])
    assert table.row_ids(sql) == ids
    [shown] = sql.compactions(table.full_name)
    assert (shown.type, shown.state, shown.error) == (kind.upper(), "ready for cleaning", None)
    assert (shown.initiator, shown.pool) == ("manual", "default")
    assert shown.job is not None
    assert None not in (times := [shown.enqueued, shown.started, shown.committed])
    assert times == sorted(times)  # type: ignore[type-var]
    assert [e for e in table.entries() if e.endswith(f"_v{shown.txn:07d}")], table.entries()
    sql(f"DELETE FROM {table.full_name} WHERE id % 1000 = 8")
    table.is_read_alike(sql, Counter(row for row in rows.elements() if row[0] % 1000 != 8), ["vectorised"])


def test_a_query_held_open_keeps_its_files(hive: Hive, compactor: Compactor, sql: HiveSession, tmp_path: Path) -> None:
    table = create(hive, sql, "thrift_held", clause="CLUSTERED BY (id) INTO 2 BUCKETS")
    for i in range(3):
        sql(f"INSERT INTO {table.full_name} VALUES ({2 * i}, 'a'), ({2 * i + 1}, 'b')")
    before, rows = table.entries(), table.rows(sql)
    with hive.connect() as other:
        held = HeldQuery(other, table, tmp_path)
        sql(f"DELETE FROM {table.full_name} WHERE id = 3")
        sql(f"ALTER TABLE {table.full_name} COMPACT 'major' AND WAIT")
        compactor("cleaner", "--once")
        assert table.last(sql).state == "ready for cleaning"
        assert set(before) <= set(table.entries())
        assert Counter(held.release()) == rows
    compactor.clean(lambda: table.last(sql).state == "succeeded")
    assert not set(before) & set(table.entries())
    assert table.rows(sql) == rows - Counter([(3, "b")])


class Stream(threading.Thread):
    """Hive writes one statement after the other until `enough`; `model` is what must be in the table."""

    def __init__(self, hive: Hive, table: Table) -> None:
        super().__init__(daemon=True)
        self._hive, self._table = hive, table
        self.model: dict[int, str] = {}
        self.statements = 0
        self.error: Exception | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with self._hive.connect() as sql:
                # Hive's readers take the hidden files of its direct inserts for data.
                sql("SET hive.acid.direct.insert.enabled=false")
                while not self.enough.is_set():
                    sql(self._next(self.statements))
                    self.statements += 1
        except Exception as error:  # noqa: BLE001 -- the test fails by it
            self.error = error

    def _next(self, n: int) -> str:
        """The n-th statement, with its effect on the model."""
        name, new = self._table.full_name, {10 * n + i: f"new {n}" for i in range(10)}
        match n % 4:
            case 0:
                self.model |= new
                return f"INSERT INTO {name} VALUES " + ", ".join(f"({i}, '{v}')" for i, v in new.items())
            case 1:
                self.model = {i: f"updated {n}" if i % 7 == n % 7 else v for i, v in self.model.items()}
                return f"UPDATE {name} SET v = 'updated {n}' WHERE id % 7 = {n % 7}"
            case 2:
                self.model = {i: v for i, v in self.model.items() if i % 11 != n % 11}
                return f"DELETE FROM {name} WHERE id % 11 = {n % 11}"
            case _:
                # Half of these ids are there already.
                merged = {10 * (n - 3) + 2 * i: f"merged {n}" for i in range(10)}
                self.model |= merged
                values = ", ".join(f"struct({i}, '{v}')" for i, v in merged.items())
                return (
                    f"MERGE INTO {name} t USING (SELECT inline(array({values})) AS (id, v)) s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)"
                )


def test_a_writer_of_hives_that_streams_while_we_compact_and_clean_loses_and_doubles_nothing(
    hive: Hive, compactor: Compactor, sql: HiveSession
) -> None:
    table = create(hive, sql, "thrift_streamed")
    compactor.playing({"cleaner"})
    stream = Stream(hive, table)
    stream.start()
    limit = time.monotonic() + STREAM_LIMIT_S
    kinds, published = itertools.cycle(["minor", "major"]), 0
    try:
        while (published < COMPACTIONS or stream.statements < STATEMENTS) and stream.is_alive():
            assert time.monotonic() < limit, f"{published} compactions, {stream.statements} statements"
            sql(f"ALTER TABLE {table.full_name} COMPACT '{next(kinds)}' AND WAIT")
            # Hive takes no next request before the files of this one are gone.
            published += table.until_state(sql, "succeeded", "refused", "failed").state == "succeeded"
            with sql.reading(VECTORISED):
                ids = [row[0] for row in table.rows(sql)]
            assert len(ids) == len(set(ids))
    finally:
        # Whatever happened: in local mode, Hive's statements of later tests could not stand one beside them.
        stream.enough.set()
        stream.join()
    assert stream.error is None
    assert not [s for s in sql.compactions(table.full_name) if s.state == "failed"]
    table.is_read_alike(sql, Counter(stream.model.items()), ["vectorised", "row by row"])
    sql(f"ALTER TABLE {table.full_name} COMPACT 'major' AND WAIT")
    table.is_read_alike(sql, Counter(stream.model.items()), ["vectorised"])
    compactor.playing(())
