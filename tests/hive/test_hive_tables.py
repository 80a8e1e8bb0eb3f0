"""Every table of `tests/fixtures/hive-4.0.1`, and partitions with odd names, in the running Hive's own warehouse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactor.acid.partition_name import partition_values
from compactor.demo.hive_tables import ExpectedTable, expected_tables
from tests.fixtures.hive_tables import EXPECTED
from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import READERS, HiveSession, Row
from tests.hive.lab.tables import create

ENDED = {"succeeded", "refused"}
NULL = "__HIVE_DEFAULT_PARTITION__"
ODD = ["with space", "a/b", "c:d", "e=f", "50%", "ü ß 漢", 'quo"te', "it's", "#", "{x}", "a.b", "back\\slash", NULL]
"""Values of a partition column; Hive escapes some of them in the names of directories."""


@pytest.fixture(autouse=True)
def our_worker_and_cleaner(hive: Hive, compactor: Compactor) -> None:
    """Hive takes no second request before the first one's files are gone."""
    hive.playing(Roles())
    compactor.playing({"worker", "cleaner"})


@pytest.mark.parametrize("table", expected_tables(), ids=lambda table: table.name)
def test_hive_reads_a_table_as_it_wrote_it_after_our_minor_and_after_our_major(
    sql: HiveSession, table: ExpectedTable
) -> None:
    name = f"fx.{table.name}"
    partitions = [clause(p) for p in EXPECTED[table.name]["partitions"]] or [""]
    assert_as_written(sql, table, ["by the client's fetch"])
    compact(sql, name, partitions, "minor")
    assert_as_written(sql, table, ["vectorised, in small splits"])
    compact(sql, name, partitions, "major")
    assert_as_written(sql, table, ["vectorised", "row by row, in small splits"])


def test_partitions_with_odd_values_are_compacted_by_the_names_that_hive_gives_them(
    hive: Hive, sql: HiveSession
) -> None:
    table = create(hive, sql, "odd", clause="PARTITIONED BY (p string, q int)")
    for first in (0, 100):
        values = [f"({first + i}, 'v', {literal(p)}, {i % 2})" for i, p in enumerate(ODD)]
        sql(f"INSERT INTO {table.full_name} PARTITION (p, q) VALUES {', '.join(values)}")
    sql(f"DELETE FROM {table.full_name} WHERE id = 0")
    rows, ids = table.rows(sql), table.row_ids(sql)
    assert len(rows) == 2 * len(ODD) - 1
    names = [name for (name,) in sql(f"SHOW PARTITIONS {table.full_name}")]
    assert len(names) == len(ODD)
    for kind in ("minor", "major"):
        compact(sql, table.full_name, [clause(name) for name in names], kind)
        table.is_read_alike(sql, rows, ["vectorised", "by the client's fetch"])
        assert table.row_ids(sql) == ids
    # SHOW COMPACTIONS prints the low bytes of letters beyond ASCII, so the rows themselves are asked.
    with hive.metastore_rows() as conn:
        query = 'SELECT "CC_PARTITION" FROM "COMPLETED_COMPACTIONS" WHERE "CC_TABLE" = %s'
        assert {name for (name,) in conn.execute(query, (table.name,))} == set(names)


def compact(sql: HiveSession, table: str, partitions: Sequence[str], kind: str) -> None:
    """Ask in Hive, for each partition, and wait until all have ended well."""
    for partition in partitions:
        sql(f"ALTER TABLE {table} {partition} COMPACT '{kind}'")
    until(lambda: all(c.state in ENDED | {"failed"} for c in sql.compactions(table)), f"{table} is compacted")
    assert [c for c in sql.compactions(table) if c.state not in ENDED] == []


def clause(partition: str) -> str:
    """PARTITION (…) of a name such as `p=a%2Fb/q=1`."""
    return f"PARTITION ({', '.join(f'{k}={literal(v)}' for k, v in partition_values(partition).items())})"


def literal(value: str) -> str:
    """A text as Hive's SQL spells it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def assert_as_written(sql: HiveSession, table: ExpectedTable, readers: Sequence[str]) -> None:
    for reader in readers:
        with sql.reading(READERS[reader]):
            assert in_json(sql(f"SELECT * FROM fx.{table.name}")) == sorted(table.rows, key=repr), reader
            if table.row_ids is not None:
                columns = "row__id.writeid, row__id.bucketid, row__id.rowid, id"
                found = sorted(sql(f"SELECT {columns} FROM fx.{table.name}"))
                assert found == sorted((w, b, r, key) for w, b, r, _, key in table.row_ids), reader


def in_json(rows: Sequence[Row]) -> list[Row]:
    """Rows as the fixture keeps them: bytes in hexadecimal."""
    plain = (tuple(v.hex() if isinstance(v, bytes) else v for v in row) for row in rows)
    return sorted(plain, key=repr)
