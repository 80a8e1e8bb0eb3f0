"""Hive's worker is off and ours is on: what HiveServer2's users ask for is done by us, and they can see it."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import READERS, HiveSession
from tests.hive.lab.tables import MANY_STRIPES, Table, create, numbers

ROWS = 12_000
DELTAS = 3


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


def written(hive: Hive, sql: HiveSession, name: str) -> tuple[Table, Counter[tuple[int, str]]]:
    """A table of several deltas with several stripes each, an update and a delete; and its rows."""
    table = create(hive, sql, name, properties=MANY_STRIPES)
    for i in range(DELTAS):
        sql(f"INSERT INTO {table.full_name} {numbers(i * ROWS, ROWS)}")
    sql(f"UPDATE {table.full_name} SET v = 'updated' WHERE id % 5000 = 7")
    sql(f"DELETE FROM {table.full_name} WHERE id BETWEEN 11000 AND 11999 OR id % 4000 = 1")
    return table, rows_after_dml()


def rows_after_dml() -> Counter[tuple[int, str]]:
    ids = [i for i in range(ROWS * DELTAS) if not 11000 <= i <= 11999 and i % 4000 != 1]
    return Counter((i, "updated" if i % 5000 == 7 else f"value {i}") for i in ids)


def delete_more(sql: HiveSession, table: Table, rows: Counter[tuple[int, str]]) -> Counter[tuple[int, str]]:
    """Delete deltas on top of what was compacted: rows of every stripe, and of the update."""
    sql(f"DELETE FROM {table.full_name} WHERE id % 1000 = 7")
    sql(f"UPDATE {table.full_name} SET v = 'again' WHERE id % 1000 = 8")
    left = [(i, v) for i, v in rows if i % 1000 != 7]
    return Counter((i, "again" if i % 1000 == 8 else v) for i, v in left)


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_a_compaction_asked_for_in_hive_is_ours_and_changes_no_row_and_no_row_id(
    hive: Hive, sql: HiveSession, kind: str
) -> None:
    table, rows = written(hive, sql, f"asked_{kind}")
    ids = table.row_ids(sql)
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' AND WAIT")
    table.is_read_alike(sql, rows)
    assert table.row_ids(sql) == ids
    assert [e for e in table.entries() if e.endswith(f"_v{table.last(sql).txn:07d}")], table.entries()
    table.is_read_alike(sql, delete_more(sql, table, rows))


def test_a_rebalance_asked_for_in_hive_spreads_the_rows_and_changes_none(hive: Hive, sql: HiveSession) -> None:
    table, rows = written(hive, sql, "asked_rebalance")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'rebalance' CLUSTERED INTO 3 BUCKETS ORDER BY id DESC AND WAIT")
    table.is_read_alike(sql, rows)
    buckets = Counter(bucket for _, bucket, _, _ in table.row_ids(sql))
    assert len(buckets) == 3
    assert max(buckets.values()) - min(buckets.values()) <= 1
    table.is_read_alike(sql, delete_more(sql, table, rows))


def test_show_compactions_in_hive_tells_what_we_did(hive: Hive, sql: HiveSession) -> None:
    table, _ = written(hive, sql, "shown")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'major' AND WAIT")
    [shown] = sql.compactions(table.full_name)
    assert (shown.type, shown.state, shown.error) == ("MAJOR", "ready for cleaning", None)
    assert shown.worker_host == socket.gethostname().replace("-", "_")
    assert shown.initiator == "manual"
    assert shown.job is not None
    assert shown.highest_write_id == DELTAS + 2
    assert shown.enqueued is not None
    assert shown.started is not None
    assert shown.committed is not None
    assert shown.enqueued <= shown.started <= shown.committed
    assert shown.txn is not None
    assert shown.next_txn is not None
    assert shown.txn <= shown.next_txn


def test_a_request_without_anything_to_gain_is_refused_and_does_not_keep_its_asker_waiting(
    hive: Hive, sql: HiveSession
) -> None:
    table = create(hive, sql, "nothing_to_gain")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a')")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'minor' AND WAIT")
    assert table.last(sql).state == "refused"
    table.is_read_alike(sql, Counter([(1, "a")]))


def test_every_reader_is_a_different_one(sql: HiveSession) -> None:
    """The settings are real ones: Hive answers SET with what it was given."""
    for settings in READERS.values():
        with sql.reading(settings):
            for name, value in settings.items():
                assert sql(f"SET {name}") == [(f"{name}={value}",)]
