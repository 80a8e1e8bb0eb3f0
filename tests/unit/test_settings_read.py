"""A setting that nothing reads is a promise that nothing keeps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from compactor.config import describe_settings

ROOT = Path(__file__).parents[2]
DECLARED_IN = {"settings.py", "hive_site.py", "config.py", "settings_page.py"}
TREES = [
    ast.parse(path.read_text())
    for package in ("compactor", "initiator", "cleaner")
    for path in (ROOT / package).rglob("*.py")
    if path.parent.name != "compactor" or path.name not in DECLARED_IN
]
READ = {
    (ast.unparse(node.value).rpartition(".")[2].lstrip("_"), node.attr)
    for tree in TREES
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute)
}


@pytest.mark.parametrize("name", [doc.name for doc in describe_settings()])
def test_every_setting_is_read_by_the_program(name: str) -> None:
    section, _, field = name.rpartition(".")
    holders = {section.rpartition(".")[2] or "settings", "settings", "limits"}
    assert any((holder, field) in READ for holder in holders)
