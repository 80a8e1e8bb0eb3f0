"""What Trino reads of a table that Hive wrote: wrong rows before a compaction of ours, the right ones after it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession, Row
from tests.hive.lab.tables import DATABASE, Table, create
from tests.hive.lab.trino import Trino


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


def compact(sql: HiveSession, table: Table, kind: str) -> None:
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
    assert table.last(sql).state == "ready for cleaning"


def rows_in(trino: Trino, table: Table) -> Counter[Row]:
    return Counter(trino(f"SELECT * FROM {table.full_name}"))


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_trino_shows_deleted_rows_until_we_have_compacted_and_again_after_the_next_delete(
    hive: Hive, sql: HiveSession, trino: Trino, kind: str
) -> None:
    table = create(hive, sql, f"undead_{kind}")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    sql(f"UPDATE {table.full_name} SET v = 'B' WHERE id = 2")
    sql(f"DELETE FROM {table.full_name} WHERE id = 1")
    rows: Counter[Row] = Counter([(2, "B"), (3, "c"), (4, "d")])
    assert rows_in(trino, table) == rows + Counter([(1, "a"), (2, "b")])
    compact(sql, table, kind)
    assert rows_in(trino, table) == rows == table.rows(sql)
    sql(f"DELETE FROM {table.full_name} WHERE id = 3")
    assert rows_in(trino, table) == rows
    compact(sql, table, kind)
    assert rows_in(trino, table) == Counter([(2, "B"), (4, "d")]) == table.rows(sql)


@pytest.mark.parametrize("emptied_by", ["TRUNCATE TABLE {}", "DELETE FROM {}"])
def test_trino_shows_the_rows_of_an_emptied_table_until_we_have_made_a_base_that_it_sees(
    hive: Hive, sql: HiveSession, trino: Trino, emptied_by: str
) -> None:
    table = create(hive, sql, f"emptied_by_{emptied_by.split(maxsplit=1)[0].lower()}")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a'), (2, 'b')")
    sql(emptied_by.format(table.full_name))
    sql(f"INSERT INTO {table.full_name} VALUES (3, 'c')")
    rows: Counter[Row] = Counter([(3, "c")])
    assert rows_in(trino, table) == rows + Counter([(1, "a"), (2, "b")])
    compact(sql, table, "major")
    assert rows_in(trino, table) == rows == table.rows(sql)


def test_our_compaction_of_nothing_but_deleted_rows_leaves_a_base_that_trino_sees(
    hive: Hive, sql: HiveSession, trino: Trino
) -> None:
    table = create(hive, sql, "all_deleted")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a'), (2, 'b')")
    sql(f"DELETE FROM {table.full_name} WHERE id > 0")
    assert rows_in(trino, table) == Counter([(1, "a"), (2, "b")])
    compact(sql, table, "major")
    assert rows_in(trino, table) == Counter() == table.rows(sql)


OLD_DAYS: list[Row] = [(1, "0001-01-01", "0001-01-01 00:00:00"), (2, "1582-10-04", "1582-10-04 23:59:59.5")]
OLD_DAYS_IN_TRINO: list[Row] = [(1, "0000-12-30", "0000-12-30 00:00:00"), (2, "1582-10-14", "1582-10-14 23:59:59.5")]
"""Trino reads days before 1582-10-15 by another calendar than the one that Hive wrote them by, compacted or not."""
NEW_DAY: Row = (3, "1582-10-15", "1582-10-15 00:00:00")


def test_days_before_the_calendar_reform_stay_what_hive_wrote_and_trino_reads_them_no_other_way_than_before(
    sql: HiveSession, compactor: Compactor, trino: Trino
) -> None:
    name = f"{DATABASE}.old_days"
    sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    sql(f"CREATE TABLE {name} (id int, d date, t timestamp) STORED AS ORC TBLPROPERTIES ('transactional'='true')")
    sql(f"INSERT INTO {name} VALUES {', '.join(map(str, [*OLD_DAYS, NEW_DAY]))}")
    sql(f"DELETE FROM {name} WHERE id = 3")
    assert sorted(sql(f"SELECT * FROM {name}")) == OLD_DAYS
    assert sorted(trino(f"SELECT * FROM {name}")) == [*OLD_DAYS_IN_TRINO, NEW_DAY]
    for kind in ("minor", "major"):
        sql(f"ALTER TABLE {name} COMPACT '{kind}' AND WAIT")
        assert sorted(sql(f"SELECT * FROM {name}")) == OLD_DAYS
        assert sorted(trino(f"SELECT * FROM {name}")) == OLD_DAYS_IN_TRINO
        # Without it Hive takes no second request for what was not written since.
        compactor.clean(lambda: sql.compactions(name)[-1].state == "succeeded")
