"""Tables that Trino writes are compacted by us, and read by Hive and by Trino, which goes on writing them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession, Row
from tests.hive.lab.tables import Table, create
from tests.hive.lab.trino import Trino

WRITES = [
    "INSERT INTO {} SELECT n, 'inserted' FROM UNNEST(sequence(10, 29)) AS s (n)",
    "UPDATE {} SET v = 'updated' WHERE id % 5 = 0",
    "DELETE FROM {} WHERE id % 7 = 1",
    """MERGE INTO {} t USING (VALUES (2, 'merged'), (11, 'merged'), (12, NULL), (40, 'merged')) AS s (id, v)
    ON t.id = s.id WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)""",
]
"""Statements of Trino's on the rows of `HIVE_ROWS`."""
MORE_WRITES = ["DELETE FROM {} WHERE id = 40", "UPDATE {} SET v = 'again' WHERE id = 0"]
HIVE_ROWS: Counter[Row] = Counter((i, "hive") for i in range(10))
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Which Hive's driver prints, and Hive's statements say, for no value."""
MERGED = {2: "merged", 11: "merged", 40: "merged"}


def rows_after_writes() -> Counter[Row]:
    values = {i: "hive" if i < 10 else "inserted" for i in range(30) if i % 7 != 1 and i != 12}
    values.update({i: "updated" for i in values if i % 5 == 0})
    return Counter((values | MERGED).items())


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


@pytest.fixture
def sql_without_statistics(sql: HiveSession) -> HiveSession:
    """Hive's metastore lets Trino write only where there are no column statistics."""
    sql("SET hive.stats.column.autogather=false")
    return sql


def fill(sql: HiveSession, table: Table) -> None:
    sql(f"INSERT INTO {table.full_name} VALUES {', '.join(f'({i}, {v!r})' for i, v in HIVE_ROWS)}")


@pytest.mark.parametrize("clause", ["", "CLUSTERED BY (id) INTO 2 BUCKETS"], ids=["flat", "bucketed"])
def test_what_trino_inserts_updates_deletes_and_merges_is_compacted_again_and_again_and_read_by_both(
    hive: Hive, compactor: Compactor, sql_without_statistics: HiveSession, trino: Trino, clause: str
) -> None:
    sql = sql_without_statistics
    table = create(hive, sql, f"trino_writes_{'bucketed' if clause else 'flat'}", clause=clause)
    fill(sql, table)
    rows = rows_after_writes()
    more = rows - Counter([(40, "merged"), (0, "updated")]) + Counter([(0, "again")])
    for kind, statements, expected in (("minor", WRITES, rows), ("major", MORE_WRITES, more)):
        for statement in statements:
            trino(statement.format(table.full_name))
        assert table.rows(sql) == expected
        before, ids = table.entries(), table.row_ids(sql)
        sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
        compactor.clean(lambda: table.last(sql).state == "succeeded")
        assert not set(before) & set(table.entries())
        table.is_read_alike(sql, expected, ["vectorised", "row by row", "by the client's fetch"])
        assert table.row_ids(sql) == ids
        assert Counter(trino(f"SELECT * FROM {table.full_name}")) == expected


def test_partitions_and_insert_only_tables_that_trino_writes_are_compacted_and_read_by_both(
    hive: Hive, compactor: Compactor, sql_without_statistics: HiveSession, trino: Trino
) -> None:
    sql = sql_without_statistics
    parted = create(hive, sql, "trino_parts", clause="PARTITIONED BY (p string)")
    only = create(hive, sql, "trino_appends", properties="'transactional_properties'='insert_only'")
    rows: dict[Table, Counter[Row]] = {parted: Counter(), only: Counter()}
    for i, kind in enumerate(("minor", "minor", "major")):
        trino(f"INSERT INTO {parted.full_name} VALUES ({i}, 'v', 'a/b'), ({i + 10}, 'v', NULL), ({i + 20}, 'w', 'a/b')")
        trino(f"INSERT INTO {parted.full_name} VALUES ({i + 30}, 'v', 'a/b'), ({i + 40}, 'v', NULL)")
        trino(f"DELETE FROM {parted.full_name} WHERE v = 'w' OR id = {i + 40}")
        rows[parted] += Counter([(i, "v", "a/b"), (i + 10, "v", NULL_PARTITION), (i + 30, "v", "a/b")])
        for j in range(2):
            trino(f"INSERT INTO {only.full_name} VALUES ({i}, 'v{j}')")
            rows[only] += Counter([(i, f"v{j}")])
        for partition in ("a/b", NULL_PARTITION):
            sql(f"ALTER TABLE {parted.full_name} PARTITION (p='{partition}') COMPACT '{kind}' AND WAIT")
        sql(f"ALTER TABLE {only.full_name} COMPACT '{kind}' AND WAIT")
        for table, expected in rows.items():
            table.is_read_alike(sql, expected, ["vectorised", "by the client's fetch"])
            found = trino(f"SELECT * FROM {table.full_name}")
            assert Counter(tuple(NULL_PARTITION if v is None else v for v in row) for row in found) == expected
        # Without it Hive takes no second request.
        compactor.clean(lambda: {c.state for table in rows for c in sql.compactions(table.full_name)} == {"succeeded"})
