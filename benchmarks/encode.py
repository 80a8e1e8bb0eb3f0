"""`python -m benchmarks.encode`: what re-encoding a stripe costs, step by step, as a Markdown table.

Stripes of the benchmarks' mixed columns are read, a hundredth of their rows is filtered out, and the rest is encoded:
by pyarrow's writer with its own codecs, and by ours. Medians, in turns, in one process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import typer
from pyarrow import orc

from benchmarks.data import Deletes, TableSpec, data_files, prepared
from compactor.orc.compression import DEFAULT_BLOCK_SIZE, compression_kind
from compactor.orc.encode import encode

_ROUNDS = 5
_STRIPE_ROWS = 250_000


def main() -> None:
    typer.echo("| codec | read s | filter s | pyarrow s | ours s | pyarrow / ours | size ours / pyarrow |")
    typer.echo("|---|---|---|---|---|---|---|")
    for codec in ("zlib", "zstd", "snappy"):
        with tempfile.TemporaryDirectory(prefix="compactor-bench-") as work:
            typer.echo(_row(codec, Path(work)))


def _row(codec: str, work: Path) -> str:
    spec = TableSpec(codec=codec, stripe_mb=8, deltas=1, rows=_STRIPE_ROWS, buckets=1)
    (path,) = data_files(prepared(spec, Deletes.NONE, work))
    keep = pa.array(np.random.default_rng(1).random(_STRIPE_ROWS) >= 0.01)
    rows = orc.ORCFile(path).read().combine_chunks()
    table = rows.filter(keep)
    kind = compression_kind(codec)
    theirs = _by_pyarrow(table, codec)
    ours = sum(map(len, encode(table, compression=kind, block_size=DEFAULT_BLOCK_SIZE).content))
    read, filtered, before, after = _medians(
        lambda: orc.ORCFile(path).read(),
        lambda: rows.filter(keep),
        lambda: _by_pyarrow(table, codec),
        lambda: encode(table, compression=kind, block_size=DEFAULT_BLOCK_SIZE),
    )
    return (
        f"| {codec.upper()} | {read:.2f} | {filtered:.2f} | {before:.2f} | {after:.2f} "
        f"| {before / after:.1f} | {ours / theirs:.2f} |"
    )


def _by_pyarrow(table: pa.Table, codec: str) -> int:
    """Bytes of the stripe that pyarrow's writer makes with its own codec."""
    sink = pa.BufferOutputStream()
    orc.write_table(
        table,
        sink,
        compression=codec,
        compression_block_size=DEFAULT_BLOCK_SIZE,
        stripe_size=1 << 40,
        dictionary_key_size_threshold=0.8,
    )
    return int(sink.getvalue().size)


def _medians(*steps: Callable[[], object]) -> list[float]:
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(_ROUNDS):
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
