"""The shortest story: Hive writes and asks, we compact, Hive reads."""

from __future__ import annotations

from tests.hive.lab.hive import Hive
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import HiveSession


def test_hive_reads_what_our_major_wrote(hive: Hive, compactor: Compactor, sql: HiveSession) -> None:
    sql("CREATE TABLE smoke (id int, v string) STORED AS ORC TBLPROPERTIES ('transactional'='true')")
    for i in range(3):
        sql(f"INSERT INTO smoke VALUES ({i}, 'v{i}')")
    sql("DELETE FROM smoke WHERE id = 1")
    sql("ALTER TABLE smoke COMPACT 'major'")
    compactor("worker", "--until-idle")
    assert [row[:2] for row in sql("SELECT * FROM smoke ORDER BY id")] == [(0, "v0"), (2, "v2")]
    assert [p.name for p in (hive.warehouse / "smoke").glob("base_*")] != []
