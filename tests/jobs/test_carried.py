"""Rebalances ordered by, or across, values that Arrow cannot hold: times outside of 1677-2262, and unions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.layout import encode_bucket
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.schema import HiveType, parse_type, struct_of
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.jobs.carried import carried_type, holds_unions
from compactor.jobs.jvm import orc_schema
from compactor.jobs.planner import CompactionTarget, survey
from compactor.jobs.rebalance import ORC_INPUT_FORMAT, plan_rebalance, run_rebalance, verify_rebalance
from compactor.jobs.session import SparkSessions
from compactor.orc.types import acid_type
from tests.jobs.java_files import OrcFiles

BASE = "base_0000003_v0000050"
END = [253402300799, 999_999_999]
"""9999-12-31 23:59:59.999999999"""
JUST_BEFORE = [253402300799, 999_999_998]
START = [-62135596800, 1]
"""0001-01-01 00:00:00.000000001"""
NOW = [1_700_000_000, 123_456_789]

COLUMNS = (
    ("n", "int"),
    ("t", "timestamp"),
    ("u", "uniontype<int,string,timestamp>"),
    ("a", "array<timestamp>"),
    ("m", "map<string,uniontype<int,timestamp>>"),
    ("s", "struct<x:decimal(9,2),y:array<struct<z:string,t:timestamp>>>"),
    ("d", "date"),
    ("c", "char(5)"),
)
ROWS: list[list[Any]] = [
    [3, END, [0, 7], [END, None, START], [["k", [1, NOW]], ["l", None]], ["1.5", [["q", END], None]], 2932896, "ab"],
    [1, START, [1, "seven"], [], [], None, -719162, "äöü"],
    [5, None, None, None, None, None, None, None],
    [2, NOW, [2, START], [NOW], [["x", [0, 1]]], [None, []], -1, ""],
    [4, JUST_BEFORE, [1, None], None, None, ["-0.01", None], 0, "z"],
]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


def write(files: OrcFiles, location: Path, write_id: int, rows: list[list[Any]], row_type: HiveType) -> None:
    events = [[0, write_id, encode_bucket(0), n, write_id, row] for n, row in enumerate(rows)]
    path = location / f"delta_{write_id:07d}_{write_id:07d}_0000" / "bucket_00000_0"
    files.write(path, orc_schema(acid_type(row_type)), events, stripe_rows=2)


def planned(location: Path, columns: tuple[tuple[str, str], ...], order_by: str, buckets: int) -> RebalancePlan:
    place = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=columns,
        input_format=ORC_INPUT_FORMAT,
        full_acid=True,
        bucketed=False,
    )
    seen = Snapshot(
        txns=ValidTxnList(high_water=99),
        write_ids=ValidWriteIdList(table="d.t", high_water=3, aborted=frozenset([2])),
    )
    made = plan_rebalance(place, survey(place, seen), seen, buckets=buckets, order_by=order_by, txn_id=50)
    assert isinstance(made, RebalancePlan)
    return made


def rebalanced(sessions: SparkSessions, location: Path, made: RebalancePlan) -> list[list[Any]]:
    """Events of the output, bucket by bucket."""
    results = run_rebalance(sessions, made, group="far away", description="a test", progress=lambda *_: None)
    verify_rebalance(made, results)
    assert not [p for p in (location / BASE).iterdir() if p.name.startswith(("_part", "_carried"))]
    return [event for r in results for event in OrcFiles(sessions).read(location / r.output)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order_by", "order"),
    [("t", [1, 2, 4, 3, 5]), ("t DESC", [5, 3, 4, 2, 1]), ("c NULLS FIRST, n", [5, 2, 3, 4, 1])],
)
def test_every_value_survives_an_order_by(
    sessions: SparkSessions, tmp_path: Path, order_by: str, order: list[int]
) -> None:
    files, row_type = OrcFiles(sessions), struct_of(COLUMNS)
    write(files, tmp_path, 1, ROWS[:3], row_type)
    write(files, tmp_path, 2, [[9, END, None, None, None, None, None, None]], row_type)
    write(files, tmp_path, 3, ROWS[3:], row_type)
    found = rebalanced(sessions, tmp_path, planned(tmp_path, COLUMNS, order_by, 2))
    by_number = {row[0]: row for row in ROWS}
    assert found == [[0, 3, encode_bucket(n // 3), n, 3, by_number[at]] for n, at in enumerate(order)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["timestamp", "timestamp with local time zone"])
def test_times_that_arrow_cannot_hold_are_ordered(sessions: SparkSessions, tmp_path: Path, kind: str) -> None:
    columns = (("n", "int"), ("t", kind))
    times = [END, NOW, START, JUST_BEFORE, [-1, 0], [0, 0], [-2, 999_999_999]]
    rows = [[n, time] for n, time in enumerate(times)]
    files = OrcFiles(sessions)
    write(files, tmp_path, 1, rows[:4], struct_of(columns))
    write(files, tmp_path, 3, rows[4:], struct_of(columns))
    found = rebalanced(sessions, tmp_path, planned(tmp_path, columns, "t", 2))
    assert [event[5] for event in found] == sorted(rows, key=lambda row: row[1])


def test_times_and_unions_are_carried_as_structs() -> None:
    kind = parse_type("struct<a:array<timestamp>,u:uniontype<int,timestamp>,v:varchar(3)>")
    assert str(carried_type(kind)) == (
        "struct<a:array<struct<seconds:bigint,nanos:int>>,"
        "u:struct<tag:int,field0:int,field1:struct<seconds:bigint,nanos:int>>,v:varchar(3)>"
    )
    assert holds_unions(kind)
    assert not holds_unions(carried_type(kind))
