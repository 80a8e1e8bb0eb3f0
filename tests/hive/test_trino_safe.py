"""With our initiator and worker beside Hive and Trino, nobody has to ask for what makes Trino read the right rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import HiveSession, Row
from tests.hive.lab.tables import Table, create
from tests.hive.lab.trino import Trino


@pytest.fixture(autouse=True)
def our_initiator_and_worker(hive: Hive, compactor: Compactor) -> Iterator[None]:
    """And no cleaner: it would cure an unseen base, too."""
    hive.playing(Roles())
    compactor.playing({"initiator", "worker"})
    yield
    compactor.playing({"worker"})


def until_trino_reads(trino: Trino, table: Table, rows: Counter[Row]) -> None:
    until(
        lambda: Counter(trino(f"SELECT * FROM {table.full_name}")) == rows,
        f"Trino reads {table.full_name} as Hive does",
    )


def test_a_delete_is_seen_by_trino_as_soon_as_our_initiator_has_looked(
    hive: Hive, sql: HiveSession, trino: Trino
) -> None:
    table = create(hive, sql, "safe_after_delete")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    sql(f"DELETE FROM {table.full_name} WHERE id = 2")
    rows: Counter[Row] = Counter([(1, "a"), (3, "c")])
    assert Counter(trino(f"SELECT * FROM {table.full_name}")) == rows + Counter([(2, "b")])
    # No more deltas than the threshold allows: Hive's rules ask for nothing.
    with table.shown_to_initiators(sql):
        until_trino_reads(trino, table, rows)
    [done] = sql.compactions(table.full_name)
    assert done.type == "MINOR"
    assert done.initiator != "manual"
    assert table.rows(sql) == rows


def test_a_truncated_table_is_seen_by_trino_as_soon_as_our_initiator_has_looked(
    hive: Hive, sql: HiveSession, trino: Trino
) -> None:
    table = create(hive, sql, "safe_after_truncate")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    sql(f"TRUNCATE TABLE {table.full_name}")
    sql(f"INSERT INTO {table.full_name} VALUES (4, 'd')")
    rows: Counter[Row] = Counter([(4, "d")])
    assert Counter(trino(f"SELECT * FROM {table.full_name}")) == rows + Counter([(1, "a"), (2, "b"), (3, "c")])
    with table.shown_to_initiators(sql):
        until_trino_reads(trino, table, rows)
    [done] = sql.compactions(table.full_name)
    assert done.type == "MAJOR"
    assert done.initiator != "manual"
    assert table.rows(sql) == rows
