"""The benchmarks at a tiny scale: tables are written, contenders agree; how long anything takes is not asserted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from benchmarks.__main__ import measure
from benchmarks.bench import Bench, Case
from benchmarks.cases import all_cases, chosen
from benchmarks.contenders import DataPlane, copied
from benchmarks.data import Deletes, TableSpec, data_files, delete_files, deleted_rows, prepared
from benchmarks.hive import ADDRESS
from benchmarks.measure import Contender, Figure, in_turns
from benchmarks.report import Bar, Finding, Machine, Report
from compactor.acid.planning import Depth
from tests.inline_runner import InlineJobRunner

HERE = Machine(hardware="a machine", versions="some versions")
SMALL = TableSpec(codec="ZSTD", deltas=3, rows=400)
KEYS = ["originalTransaction", "bucket", "rowId"]


def bench_in(work: Path) -> Bench:
    return Bench(work=work, scale=0.0002, rounds=2, spark_rounds=0, runner=InlineJobRunner())


def rows_of(files: Iterable[Path]) -> pa.Table:
    return pa.concat_tables([orc.ORCFile(str(file)).read() for file in files])


def keys_of(table: pa.Table) -> list[tuple[int, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in KEYS), strict=True))


def expected_rows(location: Path) -> pa.Table:
    """All rows but the deleted ones, found row by row."""
    rows = rows_of(data_files(location))
    gone = {key for file in delete_files(location) for key in keys_of(rows_of([file]))}
    return rows.filter(pa.array([key not in gone for key in keys_of(rows)]))


def plane_for(location: Path, depth: Depth = Depth.MAJOR, spec: TableSpec = SMALL) -> DataPlane:
    return DataPlane(runner=InlineJobRunner(), location=location, columns=spec.columns, depth=depth, codec=spec.codec)


def test_the_cases_of_a_part_are_measured_and_written_with_their_machine(tmp_path: Path) -> None:
    results = tmp_path / "out" / "results.md"
    report = Report(results, HERE, {case.id: case.group for case in all_cases()}, judged=False)
    todo = chosen(["major-zstd-8mb-1pct", "minor-zstd-8mb-clustered", "tiny-deltas-minor"])
    assert measure(bench_in(tmp_path / "work"), report, todo) == []
    text = results.read_text()
    assert "Machine: a machine.  \nVersions: some versions.  " in text
    assert text.index("## Major compaction") < text.index("## Minor compaction") < text.index("## Many small deltas")
    for case in todo:
        assert text.count(f"| `{case.id}` | data plane, ") >= 2, case.id
    assert text.count("| not judged |") == 2


def test_measuring_a_case_again_replaces_its_rows_and_no_others(tmp_path: Path) -> None:
    groups = {"a": "First", "b": "Second"}
    path = tmp_path / "results.md"
    first = Report(path, HERE, groups, judged=True)
    first.put("a", [Finding(what="ours", figure=Figure(samples=(1.0,)))], when="monday")
    first.put("b", [Finding(what="ours", figure=Figure(samples=(2.0,)))], when="monday")
    again = Report(path, HERE, groups, judged=True)
    assert again.measured == {"a", "b"}
    again.put("b", [Finding(what="ours", figure=Figure(samples=(3.0,)))], when="tuesday")
    text = path.read_text()
    assert "| `a` | ours | 1.00 s |" in text
    assert "| `b` | ours | 3.00 s |" in text
    assert "2.00 s" not in text


def test_figures_of_another_machine_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    Report(path, HERE, {"a": "First"}, judged=True).put(
        "a", [Finding(what="ours", figure=Figure(samples=(1.0,)))], when="monday"
    )
    elsewhere = Machine(hardware="another machine", versions=HERE.versions)
    assert Report(path, elsewhere, {"a": "First"}, judged=True).measured == frozenset()


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(ratio=4), "| ≥ 4 × | yes |"),
        (Bar(ratio=4.1), "| ≥ 4.1 × | **no** |"),
        (Bar(at_most=2), "| ≤ 2 s | yes |"),
        (Bar(at_most=1.9), "| ≤ 1.9 s | **no** |"),
    ],
)
def test_a_row_tells_its_bar_and_whether_it_is_met(bar: Bar, met: str, tmp_path: Path) -> None:
    ours, theirs = Figure(samples=(2.0, 1.0, 9.0)), Figure(samples=(8.0,))
    finding = Finding(what="ours", figure=ours, against="theirs", reference=theirs, bar=bar)
    Report(tmp_path / "results.md", HERE, {"a": "First"}, judged=True).put("a", [finding], when="today")
    (row,) = (line for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("| `a`"))
    assert row == f"| `a` | ours | 2.00 s (1.00–9.00) | theirs | 8.00 s | 4 {met} 1/3 |  | today |"


def test_a_case_that_fails_is_in_the_table_and_the_others_go_on(tmp_path: Path) -> None:
    def fail(_: Bench) -> list[Finding]:
        raise ValueError("no | room")

    def work(_: Bench) -> list[Finding]:
        return [Finding(what="ours", figure=Figure(samples=(1.0,)))]

    todo = [Case(id="bad", group="g", measure=fail, minutes=1), Case(id="good", group="g", measure=work, minutes=1)]
    report = Report(tmp_path / "results.md", HERE, {"bad": "g", "good": "g"}, judged=True)
    assert measure(bench_in(tmp_path), report, todo) == ["bad"]
    text = (tmp_path / "results.md").read_text()
    assert "| `bad` |  | not measured |" in text
    assert "ValueError: no / room" in text
    assert "| `good` | ours |" in text


@pytest.mark.parametrize("deletes", Deletes)
def test_what_is_timed_is_right(deletes: Deletes, tmp_path: Path) -> None:
    location = prepared(SMALL, deletes, tmp_path)
    plane = plane_for(location)
    assert plane.run().rows == SMALL.total_rows - deleted_rows(SMALL, deletes)
    (output,) = plane.output()
    assert rows_of(sorted(output.glob("bucket_*"))).equals(expected_rows(location))
    plane.prepare()
    assert plane.output() == []


def test_a_table_is_the_same_wherever_it_is_generated(tmp_path: Path) -> None:
    spec = TableSpec(codec="ZLIB", deltas=2, rows=300, buckets=2)
    here, there = (prepared(spec, Deletes.SCATTERED_1_IN_10, tmp_path / place) for place in ("here", "there"))
    names = [f.relative_to(here) for f in (*data_files(here), *delete_files(here))]
    assert len(names) == 6
    assert [(here / n).read_bytes() for n in names] == [(there / n).read_bytes() for n in names]
    assert prepared(spec, Deletes.SCATTERED_1_IN_10, tmp_path / "here") == here


def test_a_copy_has_every_byte(tmp_path: Path) -> None:
    location = prepared(SMALL, Deletes.CLUSTERED, tmp_path)
    files = data_files(location) + delete_files(location)
    copied(files, tmp_path / "copy", synced=True)()
    for file in files:
        assert (tmp_path / "copy" / file.parent.name / file.name).read_bytes() == file.read_bytes()


def test_without_a_hive_its_compactor_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    report = Report(tmp_path / "results.md", HERE, {case.id: case.group for case in all_cases()}, judged=True)
    assert measure(bench_in(tmp_path), report, chosen(["hive"])) == []
    text = (tmp_path / "results.md").read_text()
    assert f"| not measured | Hive's worker |  |  |  |  |  | {ADDRESS} is not set |" in text


def test_contenders_take_turns() -> None:
    order: list[str] = []
    contenders = [
        Contender(name=n, run=partial(order.append, n), prepare=partial(order.append, f"before {n}"), rounds=rounds)
        for n, rounds in (("a", 2), ("b", 1))
    ]
    figures = in_turns(contenders)
    assert order == ["before a", "a", "before b", "b", "before a", "a"]
    assert {name: len(figure.samples) for name, figure in figures.items()} == {"a": 2, "b": 1}


def test_a_pattern_that_chooses_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no case is called 'majro'"):
        chosen(["major", "majro"])


def test_ids_of_cases_are_unique() -> None:
    ids = [case.id for case in all_cases()]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_pyspark_writes_the_rows_that_the_data_plane_writes(tmp_path: Path) -> None:
    bench = Bench(work=tmp_path, scale=1, rounds=1, spark_rounds=1)
    location = prepared(SMALL, Deletes.SCATTERED_1_IN_10, tmp_path)
    expected = expected_rows(location)
    try:
        job = bench.pyspark_job(SMALL, location)
        job.run()
        # Each file is sorted, and the files are in order of their names, which begin with the number of the range.
        written = rows_of(sorted(job.target.glob("*.orc")))
    finally:
        bench.close()
    assert written.cast(expected.schema).equals(expected)


@pytest.mark.slow
def test_the_command_measures_on_spark_and_leaves_its_results_in_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--directory", str(tmp_path), "--scale", "0.0005", "--rounds", "1"]
    cases = ["major-zstd-8mb-clustered", "memory-zstd-8mb-none", "daemon-1000"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *cases], cwd=root, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.md").read_text()
    assert "| PySpark |" in text
    assert "largest task, major" in text
    assert "worker until idle, 10 partitions" in text
    assert "failed" not in text
