"""Tables that Hive writes for a test, and what Hive says is in them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hive.lab.hive import Hive
from tests.hive.lab.process import until
from tests.hive.lab.session import READERS, HiveSession, Row, Shown

DATABASE = "beside"
STRIPES = "'orc.stripe.size'='1000000', 'orc.compress'='NONE'"
"""ORC looks at its memory every 5,000 rows: with the rows of `numbers`, that many stand in a stripe of 1.9 MB."""
_SHOWN, _HIDDEN = "'no_auto_compaction'='false'", "'no_auto_compaction'='true'"
"""To initiators, Hive's and ours: no test waits for the compaction of what another test has left behind."""
SHORT = "id, md5(v)"
"""Columns that say as much of such rows in fewer bytes."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A transactional table `id int, v string` of Hive's.

    partition: "" or 'p=…', the only one a test looks at. columns: what stands for a row, in Hive's SQL.
    """

    hive: Hive
    name: str
    partition: str = ""
    columns: str = "*"

    @property
    def full_name(self) -> str:
        return f"{DATABASE}.{self.name}"

    @property
    def folder(self) -> Path:
        return self.hive.warehouse / f"{DATABASE}.db" / self.name / self.partition

    def entries(self) -> list[str]:
        """Bases and deltas in the directory."""
        return sorted(p.name for p in self.folder.iterdir() if p.name.startswith(("base_", "delta_", "delete_delta_")))

    def rows(self, sql: HiveSession) -> Counter[Row]:
        return Counter(sql(f"SELECT {self.columns} FROM {self.full_name}"))

    def row_ids(self, sql: HiveSession) -> list[Row]:
        """(write id, bucket, row id, id) of every row."""
        columns = "row__id.writeid, row__id.bucketid, row__id.rowid, id"
        return sorted(sql(f"SELECT {columns} FROM {self.full_name}"))

    def is_read_alike(self, sql: HiveSession, expected: Counter[Row], readers: Iterable[str] = READERS) -> None:
        """Every reader of Hive's returns these rows."""
        for reader in readers:
            with sql.reading(READERS[reader]):
                assert self.rows(sql) == expected, f"{self.full_name}, {reader}"

    @contextmanager
    def shown_to_initiators(self, sql: HiveSession) -> Iterator[None]:
        """Initiators look at it meanwhile."""
        sql(f"ALTER TABLE {self.full_name} SET TBLPROPERTIES ({_SHOWN})")
        try:
            yield
        finally:
            sql(f"ALTER TABLE {self.full_name} SET TBLPROPERTIES ({_HIDDEN})")

    def last(self, sql: HiveSession) -> Shown:
        """Its newest compaction."""
        return sql.compactions(self.full_name)[-1]

    def until_state(self, sql: HiveSession, *states: str) -> Shown:
        """Its newest compaction, once it is in one of these states."""
        until(lambda: self.last(sql).state in states, f"{self.full_name} is {' or '.join(states)}")
        return self.last(sql)


def create(hive: Hive, sql: HiveSession, name: str, *, properties: str = "", clause: str = "") -> Table:
    """An empty full-ACID table that initiators leave alone unless `shown_to_initiators`.

    clause: between the columns and STORED AS.
    """
    sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    listed = f"'transactional'='true', {_HIDDEN}" + (f", {properties}" if properties else "")
    sql(f"CREATE TABLE {DATABASE}.{name} (id int, v string) {clause} STORED AS ORC TBLPROPERTIES ({listed})")
    return Table(hive=hive, name=name)


def numbers(first: int, count: int) -> str:
    """A query: `count` rows (id, v), v a text of 384 letters without an end to its variety."""
    return (
        f"SELECT pos + {first}, repeat(md5(cast(pos + {first} AS string)), 12) FROM (SELECT 1) one "
        f"LATERAL VIEW posexplode(split(space({count - 1}), ' ')) n AS pos, x"
    )


def short(v: str) -> str:
    """What SHORT makes of a value."""
    return hashlib.md5(v.encode(), usedforsecurity=False).hexdigest()


def value_of(number: int) -> str:
    """The v that `numbers` gives to an id."""
    return short(str(number)) * 12
