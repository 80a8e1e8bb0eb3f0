"""ABORT TRANSACTIONS in HiveServer2 fences our worker in the middle of a compaction."""

from __future__ import annotations

from collections import Counter

import pytest

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


@pytest.mark.parametrize("kind", ["minor", "major", "rebalance"])
def test_what_an_aborted_compaction_wrote_is_never_seen_and_the_next_one_works(
    hive: Hive, compactor: Compactor, sql: HiveSession, kind: str
) -> None:
    hive.playing(Roles())
    compactor.playing(())
    table = filled(hive, sql, f"aborted_{kind}")
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}'")
    with compactor.stopped_in_a_compaction(hive, table.name) as txn:
        sql(f"ABORT TRANSACTIONS {txn}")
    # Fenced, it gives its request back to the queue, and somebody takes it again.
    done = table.until_state(sql, "ready for cleaning")
    assert done.txn is not None
    assert done.txn > txn
    table.is_read_alike(sql, ROWS)
    compactor.clean(lambda: table.last(sql).state == "succeeded")
    assert not [e for e in table.entries() if e.endswith(f"_v{txn:07d}")]
    table.is_read_alike(sql, ROWS)
