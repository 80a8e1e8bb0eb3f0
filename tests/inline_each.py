"""Tasks of `compactor.jobs.stretches.Each` one after the other in this process, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def inline(tasks: Sequence[T], run: Callable[[T], R], *, size: Callable[[T], int]) -> list[R]:
    return [run(task) for task in tasks if size(task) >= 0]
