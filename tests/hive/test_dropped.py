"""DROP by a Hive whose readers take no locks: our cleaner removes the files when the last reader has ended.

One setting of a session, `hive.acid.lockless.reads.enabled`, makes its tables' directories unique and its DROPs soft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from impala.error import OperationalError

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession, Row
from tests.hive.lab.tables import DATABASE, Table, create
from tests.hive.test_open_query import HeldQuery

LOCKLESS = "SET hive.acid.lockless.reads.enabled=true"
SUCCEEDED, READY = "succeeded", "ready for cleaning"


@pytest.fixture
def sql(hive: Hive) -> Iterator[HiveSession]:
    hive.playing(Roles())
    with hive.connect() as session:
        session(LOCKLESS)
        yield session


@pytest.fixture
def reader(hive: Hive) -> Iterator[HiveSession]:
    with hive.connect() as session:
        session(LOCKLESS)
        yield session


def folder_of(hive: Hive, name: str) -> Path:
    """The table's only directory."""
    (found,) = (hive.warehouse / f"{DATABASE}.db").glob(f"{name}.v*")
    return found


def states(sql: HiveSession, table: Table) -> list[str]:
    return [shown.state for shown in sql.compactions(table.full_name)]


def rows_of(numbers: range, *, partition: int | None = None) -> Counter[Row]:
    more = () if partition is None else (partition,)
    return Counter((n, f"v{n}", *more) for n in numbers)


def insert(sql: HiveSession, table: Table, numbers: range, *, partition: int | None = None) -> None:
    more = "" if partition is None else f", {partition}"
    sql(f"INSERT INTO {table.full_name} VALUES " + ", ".join(f"({n}, 'v{n}'{more})" for n in numbers))


def test_a_dropped_table_goes_when_its_last_reader_has_ended(
    hive: Hive, compactor: Compactor, sql: HiveSession, reader: HiveSession, tmp_path: Path
) -> None:
    table = create(hive, sql, "dropped")
    insert(sql, table, range(3))
    insert(sql, table, range(3, 5))
    folder = folder_of(hive, "dropped")
    held = HeldQuery(reader, table, tmp_path)
    sql(f"DROP TABLE {table.full_name}")
    create(hive, sql, "dropped")
    insert(sql, table, range(9, 10))
    compactor("cleaner", "--once")
    assert states(sql, table) == [READY]
    assert len(list(folder.glob("delta_*/bucket_*"))) == 2
    assert Counter(held.release()) == rows_of(range(5))
    compactor.clean(lambda: states(sql, table) == [SUCCEEDED])
    assert not folder.exists()
    assert table.rows(sql) == rows_of(range(9, 10))


def test_dropped_partitions_go_and_one_that_was_created_again_keeps_its_new_rows(
    hive: Hive, compactor: Compactor, sql: HiveSession, reader: HiveSession, tmp_path: Path
) -> None:
    table = create(hive, sql, "dropped_parts", clause="PARTITIONED BY (p int)")
    for partition in range(3):
        insert(sql, table, range(3 * partition, 3 * partition + 3), partition=partition)
    folder = folder_of(hive, "dropped_parts")
    held = HeldQuery(reader, table, tmp_path)
    sql(f"ALTER TABLE {table.full_name} DROP PARTITION (p=0), PARTITION (p=1)")
    insert(sql, table, range(20, 22), partition=1)
    now = rows_of(range(6, 9), partition=2) + rows_of(range(20, 22), partition=1)
    compactor("cleaner", "--once")
    assert states(sql, table) == [READY, READY]
    assert len(list(folder.glob("p=[01]/delta_*/bucket_*"))) == 3
    assert table.rows(sql) == now
    assert Counter(held.release()) == rows_of(range(9))
    compactor.clean(lambda: states(sql, table) == [SUCCEEDED, SUCCEEDED])
    assert sorted(p.name for p in folder.iterdir()) == ["p=1", "p=2"]
    assert len(list(folder.glob("p=1/delta_*"))) == 1, "the old rows went, behind the mark that hid them"
    assert table.rows(sql) == now


def test_the_directory_of_a_create_table_as_select_that_failed_goes(
    hive: Hive, compactor: Compactor, sql: HiveSession
) -> None:
    """Its last row fails in the task that has written the others; Hive leaves the directory to the cleaner."""
    source = create(hive, sql, "ctas_source")
    insert(sql, source, range(3))
    sql("SET tez.am.task.max.failed.attempts=1")
    failing = "CASE WHEN assert_true(id < 2) IS NULL THEN id END AS id"
    with pytest.raises(OperationalError, match="ASSERT_TRUE"):
        sql(
            f"CREATE TABLE {DATABASE}.never STORED AS ORC TBLPROPERTIES ('transactional'='true') "
            f"AS SELECT {failing} FROM {source.full_name}"
        )
    never = Table(hive=hive, name="never")
    folder = folder_of(hive, "never")
    compactor.clean(lambda: states(sql, never) == [SUCCEEDED])
    assert not folder.exists()
