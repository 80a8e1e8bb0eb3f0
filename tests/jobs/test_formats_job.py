"""Insert-only tables of every format from listing to verified output: planned, joined by one Spark job, read back."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import CorruptFile, VerificationError
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.formats import FORMATS
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.jobs.session import SparkSessions
from compactor.jobs.verify import verify_output
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import open_location
from compactor.storage.parquet_footer import read_footer
from compactor.storage.thrift import serialize
from tests.jobs.java_files import RecordFiles

pytestmark = pytest.mark.slow

_CLASSES = {name: input_format for input_format, name in FORMATS.items()}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def java(sessions: SparkSessions) -> RecordFiles:
    return RecordFiles(sessions)


def delta(location: Path, write_id: int, name: str = "000000_0") -> Path:
    folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def planned(location: Path, file_format: str, *, depth: Depth = Depth.MAJOR, bucketed: bool = False) -> CompactionPlan:
    target = CompactionTarget(
        name="d.t",
        location=f"file:{location}",
        columns=(("n", "int"), ("s", "string")),
        input_format=_CLASSES[file_format],
        full_acid=False,
        bucketed=bucketed,
        properties={"skip.header.line.count": "1"} if file_format == "text" else {},
    )
    snapshot = Snapshot(txns=ValidTxnList(high_water=99), write_ids=ValidWriteIdList(table="d.t", high_water=3))
    made = plan(target, survey(target, snapshot), snapshot, depth, txn_id=50)
    assert isinstance(made, CompactionPlan)
    return made


def run(sessions: SparkSessions, *plans: CompactionPlan) -> list[list[ItemResult]]:
    outcomes = SparkJobRunner(sessions).run(
        [Job(plan=p) for p in plans], group="every format", description="a test", progress=lambda _, __: None
    )
    results = [outcome for outcome in outcomes if isinstance(outcome, list)]
    assert results == outcomes
    for made, done in zip(plans, results, strict=True):
        verify_output(made, done)
    return results


def test_one_job_joins_tables_of_every_format(sessions: SparkSessions, java: RecordFiles, tmp_path: Path) -> None:
    schemas = [pa.schema([("n", pa.int32())]), pa.schema([("n", pa.int32()), ("s", pa.string())])]
    for write_id in (1, 2, 3):
        rows = [(write_id * 10 + i, f"{write_id}-{i}") for i in range(5)]
        java.write_avro(delta(tmp_path / "avro", write_id), rows, codec="deflate")
        java.write_sequence(delta(tmp_path / "sequencefile", write_id), [s for _, s in rows], "BLOCK", "DefaultCodec")
        java.write_rc(delta(tmp_path / "rcfile", write_id), [[str(n), s] for n, s in rows], None)
        text = "".join(f"{n},{s}\n" for n, s in rows).encode()
        delta(tmp_path / "text", write_id, "data.csv").write_bytes(b"n,s\n" + text)
        delta(tmp_path / "text", write_id, "data.csv.gz").write_bytes(gzip.compress(b"n,s\n" + text.upper()))
        table = pa.Table.from_pylist([{"n": n, "s": s} for n, s in rows], schema=schemas[write_id > 1])
        pq.write_table(table, delta(tmp_path / "parquet", write_id))
    plans = [planned(tmp_path / f, f) for f in ("avro", "sequencefile", "rcfile", "text", "parquet")]
    avro, sequence, rc, text_results, parquet = run(sessions, *plans)
    expected = [(w * 10 + i, f"{w}-{i}") for w in (1, 2, 3) for i in range(5)]
    base = "base_0000003_v0000050"
    assert [r.rows_out for r in (*avro, *sequence, *rc)] == [15, 15, 15]
    assert java.read_avro(tmp_path / "avro" / base / "000000_0") == ("deflate", expected)
    found = java.read_sequence(tmp_path / "sequencefile" / base / "000000_0")
    assert found == ("BLOCK", "DefaultCodec", [s for _, s in expected])
    assert java.read_rc(tmp_path / "rcfile" / base / "000000_0")[1] == [[str(n), s] for n, s in expected]
    assert [r.output for r in text_results] == [f"{base}/000000_0", f"{base}/000001_0.gz"]
    lines = "n,s\n" + "".join(f"{n},{s}\n" for n, s in expected)
    assert (tmp_path / "text" / base / "000000_0").read_text() == lines
    assert gzip.decompress((tmp_path / "text" / base / "000001_0.gz").read_bytes()).decode() == lines.replace(
        "N,S", "n,s"
    )
    assert [(r.output, r.rows_out) for r in parquet] == [(f"{base}/000000_0", 5), (f"{base}/000001_0", 10)]
    assert pq.read_table(tmp_path / "parquet" / base / "000001_0").column("s").to_pylist() == [
        s for _, s in expected[5:]
    ]
    assert [p.name for p in tmp_path.glob(f"*/{base}/*") if p.name.startswith((".", "_"))] == []


def test_a_bucket_of_files_that_differ_has_copies(sessions: SparkSessions, java: RecordFiles, tmp_path: Path) -> None:
    for write_id, codec in ((1, "null"), (2, "snappy"), (3, "null")):
        for bucket in (0, 1):
            java.write_avro(delta(tmp_path, write_id, f"00000{bucket}_0"), [(write_id, f"{bucket}")], codec=codec)
    made = planned(tmp_path, "avro", depth=Depth.MINOR, bucketed=True)
    (results,) = run(sessions, made)
    folder = "delta_0000001_0000003_v0000050"
    names = ["000000_0", "000000_0_copy_1", "000001_0", "000001_0_copy_1"]
    assert [r.output for r in results] == [f"{folder}/{name}" for name in names]
    assert java.read_avro(tmp_path / folder / "000001_0") == ("null", [(1, "1"), (3, "1")])
    assert java.read_avro(tmp_path / folder / "000001_0_copy_1") == ("snappy", [(2, "1")])


def test_a_parquet_output_whose_footer_miscounts_is_not_published(sessions: SparkSessions, tmp_path: Path) -> None:
    for write_id in (1, 2, 3):
        pq.write_table(pa.table({"n": [write_id]}), delta(tmp_path, write_id))
    made = planned(tmp_path, "parquet")
    ((result,),) = run(sessions, made)
    output = tmp_path / result.output
    footer = read_footer(open_location(made.location)[0], str(output))
    footer.metadata.change(3, 4)
    data = serialize(footer.metadata)
    assert footer.end + len(data) + 8 == result.size
    output.write_bytes(output.read_bytes()[: footer.end] + data + len(data).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(VerificationError, match="4 rows in the footer, 3 in its row groups, 3 written"):
        verify_output(made, [result])


def test_a_damaged_table_does_not_hurt_the_others(sessions: SparkSessions, java: RecordFiles, tmp_path: Path) -> None:
    for write_id in (1, 2, 3):
        for place in ("good", "bad"):
            java.write_rc(delta(tmp_path / place, write_id), [["1", "x"]] * 100, None)
    damaged = delta(tmp_path / "bad", 2)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    plans = [planned(tmp_path / "bad", "rcfile"), planned(tmp_path / "good", "rcfile")]
    bad, good = SparkJobRunner(sessions).run(
        [Job(plan=p) for p in plans], group="damage", description="a test", progress=lambda _, __: None
    )
    assert isinstance(bad, CorruptFile)
    assert isinstance(good, list)
    verify_output(plans[1], good)


def test_a_table_that_is_empty_by_now_has_a_readable_base(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path
) -> None:
    for file_format in _CLASSES:
        for write_id in (1, 2):
            delta(tmp_path / file_format, write_id)
    names = [f for f in _CLASSES if f != "orc"]
    results = run(sessions, *(planned(tmp_path / f, f) for f in names))
    assert [[(r.output, r.rows_out) for r in done] for done in results] == [[("base_0000003_v0000050/000000_0", 0)]] * 5
    base = "base_0000003_v0000050/000000_0"
    assert java.read_avro(tmp_path / "avro" / base)[1] == []
    assert java.read_sequence(tmp_path / "sequencefile" / base)[2] == []
    assert java.read_rc(tmp_path / "rcfile" / base)[1] == []
    assert pq.read_table(tmp_path / "parquet" / base).num_rows == 0
