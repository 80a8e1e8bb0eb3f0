"""Hive's worker is off and ours is on: what HiveServer2's users ask for is done by us, and they can see it."""

from __future__ import annotations

import dataclasses
import socket
from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import READERS, HiveSession, Row
from tests.hive.lab.tables import SHORT, STRIPES, Table, create, numbers, short, value_of

ROWS = 10_000
DELTAS = 3
DELETED = range(11_000, 12_000)
UPDATED = range(20_100, 20_200)
"""Of six stripes each touches one."""


@pytest.fixture(autouse=True)
def our_worker(hive: Hive, compactor: Compactor) -> None:
    hive.playing(Roles())
    compactor.playing({"worker"})


def written(hive: Hive, sql: HiveSession, name: str) -> tuple[Table, Counter[Row]]:
    """A table of three deltas with two stripes each, an update and a delete; and its rows."""
    table = dataclasses.replace(create(hive, sql, name, properties=STRIPES), columns=SHORT)
    for i in range(DELTAS):
        sql(f"INSERT INTO {table.full_name} {numbers(i * ROWS, ROWS)}")
    sql(f"UPDATE {table.full_name} SET v = 'updated' WHERE id BETWEEN {UPDATED[0]} AND {UPDATED[-1]}")
    sql(f"DELETE FROM {table.full_name} WHERE id BETWEEN {DELETED[0]} AND {DELETED[-1]}")
    left = (i for i in range(ROWS * DELTAS) if i not in DELETED)
    return table, Counter((i, short("updated" if i in UPDATED else value_of(i))) for i in left)


def delete_more(sql: HiveSession, table: Table, rows: Counter[Row]) -> Counter[Row]:
    """Delete deltas on top of what was compacted: rows of every stripe, and of the update."""
    sql(f"DELETE FROM {table.full_name} WHERE id % 1000 = 107")
    sql(f"UPDATE {table.full_name} SET v = 'again' WHERE id % 1000 = 108")
    left = [(i, v) for i, v in rows if i % 1000 != 107]
    return Counter((i, short("again") if i % 1000 == 108 else v) for i, v in left)


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
    sql(f"ALTER TABLE {table.full_name} COMPACT 'rebalance' CLUSTERED INTO 3 BUCKETS AND WAIT ORDER BY id DESC")
    table.is_read_alike(sql, rows)
    buckets = Counter(bucket for _, bucket, _, _ in table.row_ids(sql))
    assert len(buckets) == 3
    assert max(buckets.values()) - min(buckets.values()) <= 1
    table.is_read_alike(sql, delete_more(sql, table, rows))


def test_show_compactions_in_hive_tells_what_we_do_and_what_we_did(
    hive: Hive, compactor: Compactor, sql: HiveSession
) -> None:
    compactor.playing(())
    table, rows = written(hive, sql, "shown")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'major'")
    with compactor.stopped_in_compactions(hive, [table.name]) as [txn]:
        [working] = sql.compactions(table.full_name)
        table.is_read_alike(sql, rows, ["vectorised"])
    done = table.until_state(sql, "ready for cleaning")
    assert (working.type, working.state, working.error) == ("MAJOR", "working", None)
    assert working.worker_host == socket.gethostname().replace("-", "_")
    assert working.worker is not None
    assert (working.initiator, working.txn) == ("manual", txn)
    # Hive, too, forgets the worker when it has finished.
    assert (done.id, done.txn, done.worker, done.error) == (working.id, txn, None, None)
    assert done.job is not None
    assert done.next_txn is not None
    assert done.next_txn >= txn
    assert working.enqueued is not None
    assert working.started is not None
    assert done.committed is not None
    assert working.enqueued <= working.started <= done.committed
    compactor.clean(lambda: table.last(sql).state == "succeeded")
    cleaned = table.last(sql)
    assert (cleaned.id, cleaned.job, cleaned.txn) == (done.id, done.job, txn)
    assert cleaned.duration_ms is not None
    assert cleaned.duration_ms >= done.committed - working.started


def test_a_request_without_anything_to_gain_is_refused_and_does_not_keep_its_asker_waiting(
    hive: Hive, sql: HiveSession
) -> None:
    table = create(hive, sql, "nothing_to_gain")
    sql(f"INSERT INTO {table.full_name} VALUES (1, 'a')")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'minor' AND WAIT")
    assert table.last(sql).state == "refused"
    table.is_read_alike(sql, Counter([(1, "a")]))


def test_hive_takes_every_setting_of_the_readers(sql: HiveSession) -> None:
    """Hive answers SET with what it was given."""
    for settings in READERS.values():
        with sql.reading(settings):
            for name, value in settings.items():
                assert sql(f"SET {name}") == [(f"{name}={value}",)]
