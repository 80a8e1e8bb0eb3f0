"""The memory of a task: bounded by its stripes, however large the bucket is."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.records import RowId
from compactor.acid.schema import parse_type
from compactor.acid.stripes import Part
from compactor.jobs.execution import Execution, Job, Task
from compactor.jobs.session import _CONF
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.types import acid_arrow_schema, arrow_type
from tests.jobs.compacted import planned
from tests.orc.acid_files import FS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

BOUND_MB = 256
"""What a task of 8 MB stripes may take, Python, pyarrow and pyspark included (100 MB of it)."""
STRIPES, ROWS = 32, 205_000
COLUMNS = (
    ("id", "bigint"),
    ("a", "int"),
    ("b", "int"),
    ("amount", "decimal(18,2)"),
    ("d", "double"),
    ("f", "float"),
    ("name", "string"),
    ("word", "string"),
    ("few", "varchar(20)"),
    ("ts", "timestamp"),
    ("dt", "date"),
    ("flag", "boolean"),
    ("category", "string"),
)
ROW = parse_type(f"struct<{','.join(f'{name}:{kind}' for name, kind in COLUMNS)}>")
B0 = encode_bucket(0)

# What Spark's worker has loaded when it gets a task, and nothing of this test. (A process that was forked counts the
# memory of its parent in ru_maxrss.)
PROGRAM = """
import pickle, re, sys
import pyspark.worker
from compactor.jobs.execution import run_tasks
with open(sys.argv[1], "rb") as file:
    outcomes = list(run_tasks(pickle.load(file)))
print(outcomes)
with open("/proc/self/status") as status:
    print(int(re.search("VmHWM:\\s+(\\d+) kB", status.read())[1]) // 1024)
"""


def columns(rng: np.random.Generator, first: int) -> pa.StructArray:
    words = np.array([f"word{i:05d}" for i in range(20_000)])
    seconds = rng.integers(1_500_000_000, 1_700_000_000, ROWS)
    return pa.StructArray.from_arrays(
        [
            pa.array(np.arange(first, first + ROWS)),
            pa.array(rng.integers(0, 1 << 31, ROWS).astype(np.int32)),
            pa.array(rng.integers(0, 1000, ROWS).astype(np.int32)),
            pa.array(rng.integers(0, 10**9, ROWS)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(18, 2)),
            pa.array(rng.random(ROWS)),
            pa.array(rng.random(ROWS).astype(np.float32)),
            pa.array([f"customer {x:x}" for x in rng.integers(0, 1 << 40, ROWS)]),
            pa.array(words[rng.integers(0, 20_000, ROWS)]),
            pa.array(words[rng.integers(0, 300, ROWS)]),
            pa.array(seconds * 10**9).cast(pa.timestamp("ns")),
            pa.array(rng.integers(10_000, 19_000, ROWS).astype(np.int32)).cast(pa.date32()),
            pa.array(rng.random(ROWS) < 0.5),
            pa.array(words[rng.integers(0, 20, ROWS)]),
        ],
        fields=list(arrow_type(ROW)),
    )


def events(operation: int, row_ids: np.ndarray, by: int, rows: pa.Array) -> pa.Table:
    count = len(row_ids)
    numbers = [np.full(count, value) for value in (operation, 1, B0)]
    arrays = [*numbers, row_ids, np.full(count, by)]
    schema = acid_arrow_schema(ROW)
    keys = [pa.array(a).cast(field.type) for a, field in zip(arrays, schema, strict=False)]
    return pa.Table.from_arrays([*keys, rows], schema=schema)


def bucket_larger_than_memory(location: Path) -> None:
    """32 stripes of 8 MB, and of one row in a hundred its delete event."""
    rng = np.random.default_rng(7)
    path = location / "delta_0000001_0000001_0000" / "bucket_00000"
    path.parent.mkdir(parents=True)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB))
        for first in range(0, STRIPES * ROWS, ROWS):
            ids = np.arange(first, first + ROWS)
            out.append(events(0, ids, 1, columns(rng, first)), RowId(1, B0, first + ROWS - 1))
        out.finish(AcidStats(inserts=out.rows))
    gone = np.sort(rng.choice(STRIPES * ROWS, STRIPES * ROWS // 100, replace=False))
    path = location / "delete_delta_0000002_0000002_0000" / "bucket_00000"
    path.parent.mkdir()
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB))
        table = events(2, gone, 2, pa.nulls(len(gone), arrow_type(ROW)))
        out.append(table, RowId(1, B0, int(gone[-1])))
        out.finish(AcidStats(deletes=out.rows))


def peak_mb(tasks: list[Task], folder: Path) -> int:
    """Run tasks as a Spark worker would; the peak of its memory."""
    (folder / "tasks").write_bytes(pickle.dumps(tasks))
    prefix = "spark.executorEnv."
    environment = {key.removeprefix(prefix): value for key, value in _CONF.items() if key.startswith(prefix)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "tasks")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Failure" not in done.stdout
    return int(done.stdout.splitlines()[-1])


def tasks_of(made: CompactionPlan) -> list[Task]:
    return Execution([Job(plan=made)])._first


def test_a_task_takes_a_quarter_of_a_gigabyte_however_large_its_bucket_is(tmp_path: Path) -> None:
    location = tmp_path / "t"
    bucket_larger_than_memory(location)
    (stripes,) = [p.stat().st_size / STRIPES for p in location.glob("delta_*/bucket_00000")]
    assert stripes == pytest.approx(8 << 20, rel=0.1)
    made = planned(location, Depth.MAJOR, columns=COLUMNS)
    (item,) = made.items
    assert len(item.parts) > 1
    # All of the bucket in one task, which is more than the planner asks of any.
    whole = Part(runs=tuple(run for part in item.parts for run in part.runs))
    (location / made.directories[0]).mkdir()
    assert peak_mb(tasks_of(replace(made, items=(replace(item, parts=(whole,)),))), tmp_path) <= BOUND_MB
