"""How fast compactions run here: a small linear model, fitted to what past jobs took. Pure.

    seconds = overhead + bytes copied / copy rate + bytes encoded / (encode rate of a core × cores at work)

Cores at work: those of the engine, but no more than the job had tasks. `fit` finds the three numbers that explain the
recorded jobs best. Errors are logarithms, so that a tiny partition counts as much as a large table and twice as long as
much as half as long; large ones weigh less (Huber), so that the one job that waited for the network does not matter.
Each default pulls a little: a few jobs outweigh it, and what no job tells anything about stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.acid.price import Price

_FARTHEST = math.log(50)
"""No number goes farther from its default than by this factor, whatever was recorded."""
_SHORTEST_S = 0.001
"""Less is not measured."""
_TOLERANCE = 0.25
"""Error from which on a job weighs less."""
_TRUST = 0.25
"""Weight of a default, where that of a job is 1: it may well be wrong by a factor of e²."""
_ROUNDS, _SETTLED = 40, 1e-6


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """What one job did and took: bytes as `Price` counts them, of all compactions that shared it.

    tasks: parts that could run side by side. cores: of the engine. seconds: from submitting the job to its results.
    """

    bytes_copied: int
    bytes_encoded: int
    tasks: int
    cores: int
    seconds: float

    @classmethod
    def of(cls, prices: Sequence[Price], *, cores: int, seconds: float) -> JobCost:
        """What a job took that carried out all of these compactions."""
        return cls(
            bytes_copied=sum(p.bytes_copied for p in prices),
            bytes_encoded=sum(p.bytes_encoded for p in prices),
            tasks=sum(p.tasks for p in prices),
            cores=cores,
            seconds=seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The model's three numbers; rates in bytes a second, `encode` for one core. jobs: how many taught them."""

    overhead_s: float = 0.3
    copy: float = 1000e6
    encode: float = 17.5e6
    jobs: int = 0

    def seconds(self, *, bytes_copied: int, bytes_encoded: int, tasks: int, cores: int) -> float:
        """How long a job will take."""
        return self.overhead_s + bytes_copied / self.copy + bytes_encoded / (self.encode * at_work(tasks, cores))

    def predict(self, prices: Sequence[Price], *, cores: int) -> float:
        """How long one job will take that carries out all of these compactions."""
        job = JobCost.of(prices, cores=cores, seconds=0)
        return self.seconds(
            bytes_copied=job.bytes_copied, bytes_encoded=job.bytes_encoded, tasks=job.tasks, cores=cores
        )


DEFAULTS = Rates()
"""Measured on two cores of a small cloud machine, ZLIB, warm Spark."""


def at_work(tasks: int, cores: int) -> int:
    """Cores that a job of so many tasks keeps busy; at least one."""
    return max(min(tasks, cores), 1)


def fit(costs: Sequence[JobCost]) -> Rates:
    """The rates that explain recorded jobs best; the defaults when there are none.

    Gauss-Newton steps in the logarithms of the three times relative to their defaults, each with weights from the
    errors of the step before (iteratively reweighted least squares, M-estimator after Huber 1964).
    """
    rows = [_row(c) for c in costs]
    logs = [0.0, 0.0, 0.0]
    for _ in range(_ROUNDS if rows else 0):
        step = _step(rows, logs)
        logs = [min(max(x + min(max(d, -1), 1), -_FARTHEST), _FARTHEST) for x, d in zip(logs, step, strict=True)]
        if max(map(abs, step)) < _SETTLED:
            break
    return Rates(
        overhead_s=DEFAULTS.overhead_s * math.exp(logs[0]),
        copy=DEFAULTS.copy * math.exp(-logs[1]),
        encode=DEFAULTS.encode * math.exp(-logs[2]),
        jobs=len(rows),
    )


_Row = tuple[tuple[float, float, float], float]
"""Seconds of overhead, copying and encoding at the default rates; seconds that the job took."""


def _row(cost: JobCost) -> _Row:
    encode = DEFAULTS.encode * at_work(cost.tasks, cost.cores)
    return (DEFAULTS.overhead_s, cost.bytes_copied / DEFAULTS.copy, cost.bytes_encoded / encode), max(
        cost.seconds, _SHORTEST_S
    )


def _step(rows: Sequence[_Row], logs: Sequence[float]) -> list[float]:
    """The change of `logs` that brings the weighted squares of the errors down most."""
    size = len(logs)
    normal = [[_TRUST if i == j else 0.0 for j in range(size)] for i in range(size)]
    right = [-_TRUST * x for x in logs]
    for seconds, taken in rows:
        parts = [s * math.exp(x) for s, x in zip(seconds, logs, strict=True)]
        predicted = sum(parts)
        error = math.log(taken / predicted)
        weight = min(1.0, _TOLERANCE / abs(error)) if error else 1.0
        slopes = [part / predicted for part in parts]
        for i in range(size):
            right[i] += weight * slopes[i] * error
            for j in range(size):
                normal[i][j] += weight * slopes[i] * slopes[j]
    return _solve(normal, right)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """A positive definite system by elimination, which needs no pivoting there."""
    size = len(right)
    for k in range(size):
        for i in range(k + 1, size):
            ratio = matrix[i][k] / matrix[k][k]
            right[i] -= ratio * right[k]
            for j in range(k, size):
                matrix[i][j] -= ratio * matrix[k][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (right[i] - sum(matrix[i][j] * found[j] for j in range(i + 1, size))) / matrix[i][i]
    return found
