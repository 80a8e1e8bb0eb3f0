"""Tests about the repository itself: sizes, names, and what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("compactor", "initiator", "cleaner", "benchmarks")
MODULE_LINES, FUNCTION_LINES = 400, 70
GENERATED = {"orc_proto_pb2.py"}
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py") if p.name not in GENERATED)


def tracked_text_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_function_fits_on_one_screen(path: Path) -> None:
    functions = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [p for p in SOURCES if p.stem in {"utils", "util", "common", "helpers", "misc", "models"}] == []


def test_nothing_names_a_registry_or_a_path_of_somebodys_machine() -> None:
    forbidden = re.compile(
        r"files\.pythonhosted|pypi\.org/simple|repo1?\.maven|(?<![\w./])/(?:work|farm|home)/\w|(?:reference|design)\s+§"
    )
    found = []
    for path in tracked_text_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in forbidden.finditer(text)]
    assert found == []


def test_every_file_the_readme_links_to_exists() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == [], document


def test_contributing_is_one_page_that_ends_in_make_check() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().rstrip()
    assert text.endswith("```\nmake check\n```")
    assert len(text.splitlines()) <= 60


def test_every_command_the_readme_shows_exists() -> None:
    from typer.main import get_command  # noqa: PLC0415 - imports the whole command line

    from compactor.cli import app  # noqa: PLC0415

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    shown = set(re.findall(r"(?m)^\s*compactor ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert shown - known == set()
