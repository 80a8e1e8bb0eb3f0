"""`python -m benchmarks [CASES]…`, which `make bench` runs."""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.bench import Bench, Case
from benchmarks.cases import all_cases, chosen
from benchmarks.report import Machine, Report, commit

_RESULTS = Path(__file__).with_name("results.md")
_console = Console(stderr=True)


def main(
    cases: Annotated[
        list[str] | None,
        typer.Argument(help="Ids, their beginnings, patterns, or `bars` for those with a bar; all by default."),
    ] = None,
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where everything is written: tables of 0.7 to 1.2 GB for each codec and stripe size, 6 GB in all, and "
            "for a while 12 GB more. Kept and used again; by default a temporary directory that is removed."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of everything but PySpark.")] = 5,
    spark_rounds: Annotated[
        int | None, typer.Option(min=0, help="At most so many rounds of PySpark, a minute each; 0: none.")
    ] = None,
    scale: Annotated[float, typer.Option(min=1e-6, help="Part of the rows; the bars are about 1.")] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(help="The Markdown file. Default: benchmarks/results.md at scale 1, else in directory."),
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only cases that the file has no figures of.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the cases and how long they take, and end.")] = False,
) -> None:
    """Measure, in turns, and write a Markdown table after every case. Run it while the machine has nothing else to do."""
    try:
        todo = chosen(cases or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if show:
        for case in todo:
            typer.echo(f"{case.minutes:5.1f} min  {case.id}")
        return
    with ExitStack() as stack:
        work = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compactor-bench-")))
        work = work.absolute()
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work=work, scale=scale, rounds=rounds, spark_rounds=spark_rounds)
        stack.callback(bench.close)
        default = _RESULTS if scale == 1 else work / "results.md"
        report = Report(
            output or default,
            Machine.here(work, java=_java(bench)),
            {case.id: case.group for case in all_cases()},
            judged=scale == 1,
        )
        if missing:
            todo = [case for case in todo if case.id not in report.measured]
        failed = measure(bench, report, todo)
    if failed:
        _console.print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


def measure(bench: Bench, report: Report, todo: Sequence[Case]) -> list[str]:
    """Run the cases and record each at once; the ids of those that failed, whose reason is in the report."""
    failed: list[str] = []
    when = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {commit(_RESULTS.parent)}"
    for number, case in enumerate(todo, 1):
        started = time.monotonic()
        _console.print(f"{number}/{len(todo)} {case.id} …", highlight=False)
        try:
            findings = case.measure(bench)
        except Exception as error:  # noqa: BLE001 -- the other cases are still worth measuring
            traceback.print_exc(file=sys.stderr)
            report.put_failure(case.id, f"{type(error).__name__}: {error}", when=when)
            failed.append(case.id)
            continue
        report.put(case.id, findings, when=when)
        for finding in findings:
            ratio = "" if finding.ratio is None else f", {finding.ratio:.3g} × {finding.against}"
            _console.print(
                f"    {finding.what}: {finding.figure or 'not measured'}{ratio}", highlight=False, soft_wrap=True
            )
        _console.print(f"    {time.monotonic() - started:.0f} s", highlight=False)
    return failed


def _java(bench: Bench) -> str:
    """Version of the Java that Spark runs on."""
    jvm = bench.sessions.get().sparkContext._jvm
    return str(jvm.System.getProperty("java.version")) if jvm is not None else "unknown"


if __name__ == "__main__":
    typer.run(main)
