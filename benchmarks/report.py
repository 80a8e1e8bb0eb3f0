"""`results.md`: one row a comparison, kept by case, so that a part of the cases can be measured again.

Rows of another machine or of other versions are dropped when anything is measured: one file, one machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Figure

_INTRODUCTION = """# Benchmarks

Written by `make bench`. Measured side by side, in turns, in one process with a warm Spark session `local[2]`; the inputs
are in the page cache. Times are medians (least–most) of n rounds; *ratio* is the other one's median by ours, so that more
is better. *data plane* is listing, plan, Spark job and verification, with everything forced to disk; *cp, synced* forces
its copy to disk too, *cp* leaves that to the kernel. *PySpark* is the job that reads, anti-joins, sorts and writes. One
table has ten deltas of 1,000,000 rows of 13 mixed columns (`benchmarks/data.py`) unless the case says otherwise.
"""
_COLUMNS = ("case", "what", "measured", "against", "its figure", "ratio", "bar", "met", "n", "note", "when")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What has to be reached: at least a ratio, or at most a figure."""

    ratio: float | None = None
    at_most: float | None = None

    def met(self, finding: Finding) -> bool:
        if self.ratio is not None:
            return finding.ratio is not None and finding.ratio >= self.ratio
        return self.at_most is not None and finding.figure is not None and finding.figure.median <= self.at_most

    def text(self, unit: str) -> str:
        return f"≥ {self.ratio:g} ×" if self.ratio is not None else f"≤ {self.at_most:g} {unit}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison, or one figure. what: ours. against, reference: the other one, if there is one.

    figure: None when it could not be measured here; the note says why.
    """

    what: str
    figure: Figure | None
    against: str = ""
    reference: Figure | None = None
    bar: Bar | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.figure is None or self.reference is None:
            return None
        return self.reference.median / self.figure.median


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and with what it was measured."""

    hardware: str
    versions: str

    @classmethod
    def here(cls, work: Path, *, java: str) -> Machine:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        packages = ("hive-compactor", "pyspark", "pyarrow", "numpy", "protobuf")
        versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
        return cls(
            hardware=f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GB of memory, "
            f"{platform.system()} {platform.release().partition('-')[0]}, {_kind_of_disk(work)}",
            versions=", ".join([f"Python {platform.python_version()}", f"Java {java}", *versions]),
        )

    def lines(self) -> list[str]:
        return [f"Machine: {self.hardware}.", f"Versions: {self.versions}."]


class Report:
    """The file, read when made and written after every case. groups: case id to heading, in the order of the file."""

    def __init__(self, path: Path, machine: Machine, groups: Mapping[str, str], *, judged: bool) -> None:
        self._path, self._machine, self._groups, self._judged = path, machine, groups, judged
        self._rows: dict[str, list[str]] = {}
        if path.exists():
            text = path.read_text(encoding="utf-8")
            if all(line in text for line in machine.lines()):
                self._rows = _rows(text)

    @property
    def measured(self) -> frozenset[str]:
        """Cases whose rows are there."""
        return frozenset(self._rows)

    def put(self, case: str, findings: Iterable[Finding], *, when: str) -> None:
        self._rows[case] = [self._row(case, finding, when) for finding in findings]
        self._write()

    def put_failure(self, case: str, reason: str, *, when: str) -> None:
        """A case without figures says why."""
        text = reason.replace("|", "/").replace("\n", " ")
        self._rows[case] = [_joined([f"`{case}`", "", "not measured", *[""] * 6, text, when])]
        self._write()

    def _row(self, case: str, finding: Finding, when: str) -> str:
        rounds = sorted({len(f.samples) for f in (finding.figure, finding.reference) if f is not None})
        bar = finding.bar
        met = "" if bar is None else ("yes" if bar.met(finding) else "**no**") if self._judged else "not judged"
        return _joined(
            [
                f"`{case}`",
                finding.what,
                "not measured" if finding.figure is None else str(finding.figure),
                finding.against,
                "" if finding.reference is None else str(finding.reference),
                "" if finding.ratio is None else f"{finding.ratio:.3g}",
                "" if bar is None or finding.figure is None else bar.text(finding.figure.unit),
                met,
                "/".join(map(str, rounds)),
                finding.note,
                when,
            ]
        )

    def _write(self) -> None:
        lines = [_INTRODUCTION, *[f"{line}  " for line in self._machine.lines()]]
        for group in dict.fromkeys(self._groups.values()):
            rows = [r for case, its in self._groups.items() if its == group for r in self._rows.get(case, ())]
            if rows:
                lines += ["", f"## {group}", "", _joined(_COLUMNS), _joined(["---"] * len(_COLUMNS)), *rows]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def commit(root: Path) -> str:
    """The project's commit, with a + when files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=7"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _rows(text: str) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"\| `([^`]+)` \|", line):
            rows.setdefault(match[1], []).append(line)
    return rows


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        return match[1].strip()
    return platform.processor() or platform.machine()


def _kind_of_disk(path: Path) -> str:
    """File system of the work directory, which decides what `cp` costs."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown file system"
    known = {fields[1]: fields[2] for line in mounts.read_text().splitlines() if (fields := line.split())}
    return next(known[str(p)] for p in (path.absolute(), *path.absolute().parents) if str(p) in known)
