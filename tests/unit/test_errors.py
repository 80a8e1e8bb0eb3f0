from __future__ import annotations

import inspect
import re

import pytest

from compactor import errors
from compactor.errors import CompactorError

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, CompactorError) and found.__module__ == errors.__name__
]


def drawn_tree() -> set[tuple[str, str]]:
    """Class and parent, as the module's docstring draws them: each level is indented by four characters."""
    pairs, above = set(), ["CompactorError"]
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│ ]*)[├└]── (\w+)", line):
            level = len(found[1]) // 4 + 1
            above[level:] = [found[2]]
            pairs.add((found[2], above[level - 1]))
    return pairs


@pytest.mark.parametrize("kind", [c for c in CLASSES if c is not CompactorError], ids=lambda c: c.__name__)
def test_every_error_tells_the_operator_what_to_do(kind: type[CompactorError]) -> None:
    assert kind.default_hint
    assert kind.default_hint in str(kind("it broke"))
    assert not kind.default_hint.endswith(".")
    assert "\n" not in kind.default_hint


def test_a_hint_of_its_own_replaces_the_default_one() -> None:
    assert str(errors.StorageFull("no space", hint="buy a disk")) == "no space (hint: buy a disk)"


def test_the_drawn_tree_lists_exactly_the_classes() -> None:
    actual = {(c.__name__, c.__bases__[0].__name__) for c in CLASSES if c is not CompactorError}
    assert drawn_tree() == actual
