"""Against Hive's own compactor, where one runs: COMPACTOR_BENCH_HIVE=host:port of a HiveServer2 on this machine.

Needs the package `impyla` and a Hive whose warehouse is on a local disk that both sides can read. Hive loads ten deltas,
deletes 1 %, and compacts; the data plane compacts a copy of the same files.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from pyarrow import orc

from benchmarks.bench import Bench, Case, WrongResult
from benchmarks.contenders import DataPlane
from benchmarks.data import COLUMNS, TableSpec, mixed_rows
from benchmarks.measure import Contender, Figure, in_turns, read_once
from benchmarks.report import Finding
from compactor.acid.planning import Depth

ADDRESS = "COMPACTOR_BENCH_HIVE"
_SPEC = TableSpec(codec="ZLIB", rows=300_000)
_TABLE, _STAGED = "default.compactor_benchmark", "default.compactor_benchmark_source"
_POLL_S = 0.1
_LONGEST_S = 1800


def hive_cases() -> list[Case]:
    return [
        Case(id="hive-major-1pct", group="Hive's own compactor", measure=_measure, minutes=6.0 if _address() else 0)
    ]


def _address() -> str:
    return os.environ.get(ADDRESS, "")


def _measure(bench: Bench) -> list[Finding]:
    spec = _SPEC.scaled(bench.scale)
    if not _address():
        return [Finding(what="data plane, major", figure=None, against="Hive's worker", note=f"{ADDRESS} is not set")]
    host, _, port = _address().partition(":")
    # SASL PLAIN without an authenticator: any user and password do.
    plain = {"auth_mechanism": "PLAIN", "user": "hive", "password": "hive"}
    connection = importlib.import_module("impala.dbapi").connect(host=host, port=int(port or 10000), **plain)
    with connection, connection.cursor() as cursor:
        copy = _load(cursor, spec, bench.scratch("hive"))
        hive = _compacted_by_hive(cursor)
        for table in (_TABLE, _STAGED):
            cursor.execute(f"DROP TABLE {table}")
    read_once(p for p in copy.rglob("*") if p.is_file())
    plane = DataPlane(runner=bench.runner, location=copy, columns=spec.columns, depth=Depth.MAJOR, codec=spec.codec)
    figures = in_turns([Contender(name="ours", run=plane.run, prepare=plane.prepare, rounds=bench.rounds)])
    return [
        Finding(
            what="data plane, major",
            figure=figures["ours"],
            against="Hive's worker",
            reference=Figure(samples=(hive,)),
            note=f"the same {spec.total_rows} rows as Hive wrote them, 1 % deleted; Hive once, from working to ready",
        )
    ]


def _load(cursor: Any, spec: TableSpec, work: Path) -> Path:
    """Let Hive write the table; a copy of its files."""
    staged, copy = work / "staged", work / "table"
    for delta in range(spec.deltas):
        folder = staged / f"load={delta}"
        folder.mkdir(parents=True)
        orc.write_table(mixed_rows((delta, 0), delta * spec.rows, spec.rows), str(folder / "rows.orc"))
    columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)
    properties = "'transactional'='true', 'no_auto_compaction'='true'"
    for statement in (
        "SET hive.stats.column.autogather=false",
        f"DROP TABLE IF EXISTS {_TABLE}",
        f"DROP TABLE IF EXISTS {_STAGED}",
        f"CREATE EXTERNAL TABLE {_STAGED} ({columns}) PARTITIONED BY (`load` int) STORED AS ORC LOCATION 'file:{staged}'",
        f"MSCK REPAIR TABLE {_STAGED}",
        f"CREATE TABLE {_TABLE} ({columns}) STORED AS ORC TBLPROPERTIES ({properties})",
    ):
        cursor.execute(statement)
    names = ", ".join(f"`{name}`" for name, _ in COLUMNS)
    for delta in range(spec.deltas):
        cursor.execute(f"INSERT INTO {_TABLE} SELECT {names} FROM {_STAGED} WHERE `load` = {delta}")  # noqa: S608
    cursor.execute(f"DELETE FROM {_TABLE} WHERE id % 100 = 7")  # noqa: S608
    cursor.execute(f"DESCRIBE FORMATTED {_TABLE}")
    (location,) = (row[1].strip() for row in cursor.fetchall() if str(row[0]).startswith("Location"))
    shutil.copytree(location.removeprefix("file:"), copy)
    return copy


def _compacted_by_hive(cursor: Any) -> float:
    """Seconds that the request was in state working."""
    cursor.execute(f"ALTER TABLE {_TABLE} COMPACT 'major'")
    began = 0.0
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        cursor.execute("SHOW COMPACTIONS")
        name = _TABLE.partition(".")[2]
        (state, *_) = [str(row[5]) for row in cursor.fetchall() if row[2] == name] or [""]
        if state == "working" and not began:
            began = time.monotonic()
        elif state in {"ready for cleaning", "succeeded"}:
            return time.monotonic() - began
        elif state in {"failed", "refused", "did not initiate", "aborted"}:
            raise WrongResult(f"Hive's compaction ended as {state!r}")
        time.sleep(_POLL_S)
    raise WrongResult(f"Hive's compaction did not end within {_LONGEST_S} s; has this Hive a compaction worker?")
