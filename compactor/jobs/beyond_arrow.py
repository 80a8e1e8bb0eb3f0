"""Buckets of a rebalance with values that Arrow cannot hold: the JVM writes their rows, in order, into a part file.

The part file has the rows' old ids. It is then the only source of its bucket, whose task gives the rows their new ids
without looking at anything else of them (`orc.renumber`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from compactor.acid.rebalance import Pieces, RebalancePlan
from compactor.acid.sources import SourceFile
from compactor.errors import VerificationError
from compactor.jobs.jvm import JvmOrcTask, JvmStripe
from compactor.orc.reader import OrcSource
from compactor.orc.rebalance import BucketTask, output_template, pack, unpack
from compactor.orc.types import acid_type
from compactor.storage.filesystem import FileSystem

_PART = "_part_jvm_"


def jvm_task(fs: FileSystem, root: str, plan: RebalancePlan, task: BucketTask) -> JvmOrcTask:
    """A part file with all rows of a bucket, whose stripes can stand in the bucket's file."""
    template = output_template(fs, root, task.template, acid_type(task.row_type), compression=task.compression)
    return JvmOrcTask(
        output=f"{plan.location.rstrip('/')}/{_part(plan, task)}",
        row_type=task.row_type,
        acid=True,
        compression=template.compression,
        block_size=template.block_size,
        stride=template.stride,
        proleptic=template.proleptic,
        blooms=tuple(column for column, _ in template.blooms),
        stripes=tuple(_stripes(plan, task)),
    )


def from_part_file(fs: FileSystem, root: str, plan: RebalancePlan, task: BucketTask) -> BucketTask:
    """The task of the bucket when the JVM has written its part file."""
    path = _part(plan, task)
    with OrcSource(fs, f"{root}/{path}") as source:
        rows = np.array([source.stripe_rows(s) for s in range(source.stripes)], dtype=np.int64)
    if int(rows.sum()) != task.pieces.total:
        raise VerificationError(f"{path}: the JVM wrote {int(rows.sum())} rows, {task.pieces.total} were to be there")
    none = np.zeros(len(rows), dtype=np.int64)
    return replace(
        task,
        pieces=Pieces(source=none, stripe=np.arange(len(rows), dtype=np.int64), start=none, rows=rows),
        sources={0: SourceFile(path=path, size=fs.size(f"{root}/{path}"), rows=task.pieces.total)},
        masks={},
        moved=frozenset((0, stripe) for stripe in range(len(rows))),
    )


def _stripes(plan: RebalancePlan, task: BucketTask) -> Iterator[JvmStripe]:
    """Every piece as a mask of its stripe."""
    pieces = task.pieces
    columns = (pieces.source, pieces.stripe, pieces.start, pieces.rows)
    for source, stripe, start, rows in zip(*(c.tolist() for c in columns), strict=True):
        count, mask, file = plan.stripes[source][stripe], task.masks.get((source, stripe)), task.sources[source]
        live = np.arange(count) if mask is None else np.flatnonzero(unpack(mask, count))
        keep = np.zeros(count, dtype=np.bool_)
        keep[live[start : start + rows]] = True
        yield JvmStripe(
            path=f"{plan.location.rstrip('/')}/{file.path}", stripe=stripe, keep=pack(keep), synthetic=file.synthetic
        )


def _part(plan: RebalancePlan, task: BucketTask) -> str:
    return f"{plan.directory}/{_PART}{task.bucket:05d}"
