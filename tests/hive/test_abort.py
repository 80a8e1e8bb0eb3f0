"""ABORT TRANSACTIONS in HiveServer2 fences our worker in the middle of a compaction."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import HiveSession
from tests.hive.lab.tables import Table, create

ROWS = Counter([(1, "a"), (2, "b")])


def filled(hive: Hive, sql: HiveSession, name: str) -> Table:
    table = create(hive, sql, name)
    for i, v in ROWS:
        sql(f"INSERT INTO {table.full_name} VALUES ({i}, '{v}')")
    return table


def opened_txn(hive: Hive, table: Table) -> int | None:
    """The transaction of a claim that has one."""
    query = 'SELECT "CQ_TXN_ID" FROM "COMPACTION_QUEUE" WHERE "CQ_TABLE" = %s AND "CQ_STATE" = \'w\''
    with hive.metastore_rows() as conn:
        row = conn.execute(query, (table.name,)).fetchone()
    return int(str(row[0])) if row and row[0] else None


@pytest.mark.parametrize("kind", ["minor", "major", "rebalance"])
def test_what_an_aborted_compaction_wrote_is_never_seen_and_the_next_one_works(
    hive: Hive, compactor: Compactor, sql: HiveSession, kind: str
) -> None:
    hive.playing(Roles())
    compactor.playing(())
    table = filled(hive, sql, f"aborted_{kind}")
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}'")
    worker = compactor.start("worker")
    # Spark takes seconds to start, so that the transaction is open for long enough to be seen.
    until(lambda: opened_txn(hive, table) is not None, "the worker has opened its transaction")
    os.kill(worker.pid, signal.SIGSTOP)
    txn = opened_txn(hive, table)
    assert txn is not None
    sql(f"ABORT TRANSACTIONS {txn}")
    os.kill(worker.pid, signal.SIGCONT)
    ended = table.until_state(sql, "failed", "aborted", "initiated")
    table.is_read_alike(sql, ROWS)
    if ended.state != "initiated":
        sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}'")
    done = table.until_state(sql, "ready for cleaning")
    assert done.txn is not None
    assert done.txn > txn
    table.is_read_alike(sql, ROWS)
    compactor("cleaner", "--once")
    assert table.last(sql).state == "succeeded"
    assert not [e for e in table.entries() if e.endswith(f"_v{txn:07d}")]
    table.is_read_alike(sql, ROWS)
