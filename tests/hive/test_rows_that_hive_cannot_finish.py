"""On PostgreSQL, Hive 4.0.1's cleaner removes the files of an unpartitioned table and then fails, again and again.

It sends a null without a type (CleanupRecordsFunction), which the server refuses, and then an error message with a
zero byte in it, which the server refuses, too; the row stays 'ready for cleaning' for ever.
"""

from __future__ import annotations

from collections import Counter

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import HiveSession
from tests.hive.lab.tables import create

HIVE_WORKS_AND_CLEANS = Roles(worker=True, cleaner=True)


def test_our_cleaner_finishes_what_hives_cleaner_can_not(hive: Hive, compactor: Compactor, sql: HiveSession) -> None:
    compactor.playing(())
    table = create(hive, sql, "unfinished")
    for i in range(3):
        sql(f"INSERT INTO {table.full_name} VALUES ({i}, 'a')")
    before = table.entries()
    rows = table.rows(sql)
    log = hive.logs()["metastore"]
    logged = log.stat().st_size
    hive.playing(HIVE_WORKS_AND_CLEANS)
    sql(f"ALTER TABLE {table.full_name} COMPACT 'major'")
    until(lambda: not set(before) & set(table.entries()), "Hive's cleaner has removed the files")
    with hive.metastore_rows() as conn:
        until(lambda: b"invalid byte sequence" in log.read_bytes()[logged:], "Hive's cleaner has failed")
        assert table.last(sql).state == "ready for cleaning"
        hive.playing(Roles())
        compactor.clean(lambda: table.last(sql).state == "succeeded")
        left = conn.execute('SELECT count(*) FROM "COMPACTION_QUEUE" WHERE "CQ_TABLE" = %s', (table.name,)).fetchone()
    assert left == (0,)
    table.is_read_alike(sql, rows)
    assert rows == Counter([(i, "a") for i in range(3)])
