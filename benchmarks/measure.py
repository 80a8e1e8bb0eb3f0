"""How things are timed: in turns, so that a slow minute of the machine hits all contenders alike.

Every contender runs once before any runs twice. What is dirty in the page cache is written out before the clock
starts; the inputs are in the page cache. The figures are medians; the ratio of two contenders is the ratio of theirs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured: all samples, in seconds or megabytes (`unit`: s, MB)."""

    samples: tuple[float, ...]
    unit: str = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def __str__(self) -> str:
        text = f"{_digits(self.median)} {self.unit}"
        if len(self.samples) > 1:
            text += f" ({_digits(min(self.samples))}–{_digits(max(self.samples))})"
        return text


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Something to be timed. prepare: run before each round, outside the clock. rounds: how often at most."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], None]
    rounds: int


def in_turns(contenders: Sequence[Contender]) -> dict[str, Figure]:
    """Seconds of each contender by name; those with fewer rounds drop out early."""
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    for turn in range(max(c.rounds for c in contenders)):
        for contender in contenders:
            if turn < contender.rounds:
                contender.prepare()
                os.sync()
                samples[contender.name].append(seconds(contender.run))
    return {name: Figure(samples=tuple(taken)) for name, taken in samples.items()}


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read_once(files: Iterable[Path]) -> int:
    """Bring files into the page cache; their bytes in all."""
    total = 0
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while chunk := stream.read(8 << 20):
                total += len(chunk)
    return total


def in_fresh_process(work: Callable[..., T], *arguments: object) -> T:
    """`work(*arguments)` in a new interpreter: for peaks of memory, and for settings that a process takes only once."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
