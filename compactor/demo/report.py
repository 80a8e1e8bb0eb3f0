"""The measurements of the demo as a table with bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

_BAR = 32


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Both tables at one moment; seconds: to read all rows once."""

    label: str
    day: int
    rows: int
    files_without: int
    files_with: int
    seconds_without: float
    seconds_with: float


def print_samples(console: Console, samples: Sequence[Sample]) -> None:
    """Files and read time with and without compaction, and a bar for each time."""
    made = Table(title="Reading all rows, without and with compaction", title_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("", no_wrap=True)
    made.add_column("rows", justify="right")
    made.add_column("files\nwithout", justify="right")
    made.add_column("files\nwith", justify="right")
    made.add_column("ms\nwithout", justify="right")
    made.add_column("ms\nwith", justify="right")
    made.add_column("read time: [red]without[/], [green]with[/]", no_wrap=True)
    longest = max(max(s.seconds_without, s.seconds_with) for s in samples)
    for sample in samples:
        made.add_row(
            sample.label,
            f"{sample.rows:,}",
            str(sample.files_without),
            str(sample.files_with),
            f"{sample.seconds_without * 1000:.0f}",
            f"{sample.seconds_with * 1000:.0f}",
            f"[red]{bar(sample.seconds_without, longest)}[/]\n[green]{bar(sample.seconds_with, longest)}[/]",
        )
    console.print(made)
    last = samples[-1]
    console.print(
        f"At the end: {last.files_without} files against {last.files_with}, "
        f"[bold]{last.seconds_without / last.seconds_with:.1f} times[/] the read time without compaction."
    )


def bar(value: float, longest: float, width: int = _BAR) -> str:
    """A bar of eighths of a character; never empty for a positive value."""
    eighths = max(1, round(value / longest * width * 8)) if value > 0 else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")
