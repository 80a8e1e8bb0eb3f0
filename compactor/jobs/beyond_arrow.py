"""Buckets of a rebalance with values that Arrow cannot hold: the JVM writes their rows, in order, into a part file.

The part file has the rows' old ids. It is then the only source of its bucket, whose task gives the rows their new ids
without looking at anything else of them (`orc.renumber`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from compactor.acid.layout import encode_bucket
from compactor.acid.rebalance import Pieces, RebalancePlan
from compactor.acid.records import SyntheticIds
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
        stripes=tuple(_stripes(fs, root, plan, task)),
    )


def from_part_file(fs: FileSystem, root: str, plan: RebalancePlan, task: BucketTask) -> BucketTask:
    """The task of the bucket when the JVM has written its part file."""
    path = _part(plan, task)
    written = SourceFile(path=path, size=fs.size(f"{root}/{path}"), rows=task.pieces.total)
    rows = np.array(stripe_counts(fs, root, written), dtype=np.int64)
    if int(rows.sum()) != task.pieces.total:
        raise VerificationError(f"{path}: the JVM wrote {int(rows.sum())} rows, {task.pieces.total} were to be there")
    none = np.zeros(len(rows), dtype=np.int64)
    return replace(
        task,
        pieces=Pieces(source=none, stripe=np.arange(len(rows), dtype=np.int64), start=none, rows=rows),
        sources={0: written},
        masks={},
        moved=frozenset((0, stripe) for stripe in range(len(rows))),
    )


def stripe_counts(fs: FileSystem, root: str, file: SourceFile) -> tuple[int, ...]:
    """Rows of each stripe of a file."""
    with OrcSource(fs, f"{root}/{file.path}") as source:
        return tuple(source.stripe_rows(stripe) for stripe in range(source.stripes))


def _stripes(fs: FileSystem, root: str, plan: RebalancePlan, task: BucketTask) -> Iterator[JvmStripe]:
    """Every piece as a mask of its stripe.

    The files of a sort are not those of the plan and have no row ids; until the bucket gets its own, any will do.
    """
    pieces, counts, ids = task.pieces, dict(enumerate(plan.stripes)), None
    if task.write_id is not None:
        counts = {number: stripe_counts(fs, root, file) for number, file in task.sources.items()}
        ids = SyntheticIds(write_id=task.write_id, bucket=encode_bucket(task.bucket), first_row_id=0)
    columns = (pieces.source, pieces.stripe, pieces.start, pieces.rows)
    for source, stripe, start, rows in zip(*(c.tolist() for c in columns), strict=True):
        count, mask, file = counts[source][stripe], task.masks.get((source, stripe)), task.sources[source]
        live = np.arange(count) if mask is None else np.flatnonzero(unpack(mask, count))
        keep = np.zeros(count, dtype=np.bool_)
        keep[live[start : start + rows]] = True
        yield JvmStripe(
            path=f"{plan.location.rstrip('/')}/{file.path}",
            stripe=stripe,
            keep=pack(keep),
            synthetic=ids or file.synthetic,
        )


def _part(plan: RebalancePlan, task: BucketTask) -> str:
    return f"{plan.directory}/{_PART}{task.bucket:05d}"
