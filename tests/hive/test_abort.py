"""ABORT TRANSACTIONS in HiveServer2 fences our worker in the middle of a compaction."""

from __future__ import annotations

from collections import Counter

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession
from tests.hive.lab.tables import Table, create

ROWS = Counter([(1, "a"), (2, "b")])


def filled(hive: Hive, sql: HiveSession, name: str) -> Table:
    table = create(hive, sql, name)
    for i, v in ROWS:
        sql(f"INSERT INTO {table.full_name} VALUES ({i}, '{v}')")
    return table


def test_what_aborted_compactions_wrote_is_never_seen_and_the_next_ones_work(
    hive: Hive, compactor: Compactor, sql: HiveSession
) -> None:
    hive.playing(Roles())
    compactor.playing(())
    tables = {kind: filled(hive, sql, f"aborted_{kind}") for kind in ("minor", "major", "rebalance")}
    for kind, table in tables.items():
        sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}'")
    with compactor.stopped_in_compactions(hive, [table.name for table in tables.values()]) as txns:
        for txn in txns:
            sql(f"ABORT TRANSACTIONS {txn}")
    for table, txn in zip(tables.values(), txns, strict=True):
        # Fenced, it gives its request back to the queue, and somebody takes it again.
        done = table.until_state(sql, "ready for cleaning")
        assert done.txn is not None
        assert done.txn > txn
        table.is_read_alike(sql, ROWS)
    compactor.clean(lambda: all(table.last(sql).state == "succeeded" for table in tables.values()))
    for table, txn in zip(tables.values(), txns, strict=True):
        assert not [e for e in table.entries() if e.endswith(f"_v{txn:07d}")]
        table.is_read_alike(sql, ROWS)
