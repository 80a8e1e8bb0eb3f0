"""The ORDER BY of rows with values that Arrow cannot hold: they travel through the sort as what it can hold.

1. The JVM writes the live rows of each file once more, with every timestamp as struct<seconds,nanos>, which is ordered
   as the timestamp is, and every union as the struct of its tag and its fields.
2. Spark sorts these rows like any others.
3. The JVM gives the sorted rows their own types back.

The files are hidden ones of the output directory, of our own unpublished transaction, and removed before it is verified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compactor.acid.rebalance import Place, RebalancePlan, SourceBucket
from compactor.acid.schema import HiveType
from compactor.acid.sources import SourceFile
from compactor.errors import CompactorError, VerificationError
from compactor.jobs.beyond_arrow import stripe_counts
from compactor.jobs.jvm import JvmOrcTask, JvmStripe
from compactor.jobs.row_sort import PART
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import Template
from compactor.orc.encode import DEFAULT_STRIDE
from compactor.orc.rebalance import output_template, pack
from compactor.storage.filesystem import FileSystem

CARRIED = "_carried_"
"""Prefix of the names of the files of step 1."""
_TIMESTAMP = HiveType("struct", children=(("seconds", HiveType("bigint")), ("nanos", HiveType("int"))))
_BLOCK_SIZE = 256 << 10

Sort = Callable[[RebalancePlan, Sequence[Place], Mapping[Place, bytes]], list[SourceFile]]
"""As `row_sort.sort_rows`, without the session."""
Rewrite = Callable[[Sequence[JvmOrcTask]], list[int | CompactorError]]
"""As `jvm.rewrite_orc`, without the sessions."""


def carried_type(kind: HiveType) -> HiveType:
    """The type in which values of `kind` are sorted."""
    match kind.kind:
        case "timestamp" | "timestamp with local time zone":
            return _TIMESTAMP
        case "uniontype":
            fields = ((f"field{number}", carried_type(child)) for number, child in kind.children)
            return HiveType("struct", children=(("tag", HiveType("int")), *fields))
        case _:
            return replace(kind, children=tuple((name, carried_type(child)) for name, child in kind.children))


def holds_unions(kind: HiveType) -> bool:
    return kind.kind == "uniontype" or any(holds_unions(child) for _, child in kind.children)


def sort_carried(
    fs: FileSystem,
    root: str,
    plan: RebalancePlan,
    places: Sequence[Place],
    masks: Mapping[Place, bytes],
    *,
    sort: Sort,
    rewrite: Rewrite,
) -> list[SourceFile]:
    """As `row_sort.sort_rows`. Raises what sort raises, the errors of rewrite, VerificationError."""
    template = output_template(fs, root, plan.template_file, plan.row_type, compression=plan.compression)
    there = _written(fs, root, rewrite, _there(plan, places, masks))
    going = replace(
        plan,
        row_type=carried_type(plan.row_type),
        sources=(SourceBucket(bucket=0, sources=tuple(there), deletes=()),),
        template=None,
        movable={},
        stripes=tuple(stripe_counts(fs, root, file) for file in there),
        compression=pb.SNAPPY,
    )
    ordered = sort(going, [(n, at) for n, counts in enumerate(going.stripes) for at in range(len(counts))], {})
    back = _written(fs, root, rewrite, [_back(fs, root, plan, template, n, f) for n, f in enumerate(ordered)])
    for file in there:
        fs.delete_file(f"{root}/{file.path}")
    if sum(f.rows for f in back) != sum(f.rows for f in there):
        raise VerificationError(f"{plan.directory}: {sum(f.rows for f in there)} rows were sorted, not all came back")
    return back


def _there(plan: RebalancePlan, places: Sequence[Place], masks: Mapping[Place, bytes]) -> list[JvmOrcTask]:
    """A task a file: its live rows with their row ids, as `carried_type`."""
    by_file: defaultdict[int, list[int]] = defaultdict(list)
    for number, stripe in sorted(places):
        by_file[number].append(stripe)
    location = plan.location.rstrip("/")
    return [
        JvmOrcTask(
            output=f"{location}/{plan.directory}/{CARRIED}{number:06d}",
            row_type=plan.row_type,
            written=carried_type(plan.row_type),
            acid=True,
            compression=pb.SNAPPY,
            block_size=_BLOCK_SIZE,
            stride=DEFAULT_STRIDE,
            proleptic=True,
            stripes=tuple(
                JvmStripe(
                    path=f"{location}/{plan.files[number].path}",
                    stripe=stripe,
                    keep=masks.get((number, stripe)) or _all(plan.stripes[number][stripe]),
                    synthetic=plan.files[number].synthetic,
                )
                for stripe in stripes
            ),
        )
        for number, stripes in by_file.items()
    ]


def _back(
    fs: FileSystem, root: str, plan: RebalancePlan, template: Template, number: int, file: SourceFile
) -> JvmOrcTask:
    """All rows of a sorted file under their own type, in stripes that can stand in the output."""
    location = plan.location.rstrip("/")
    return JvmOrcTask(
        output=f"{location}/{plan.directory}/{PART}back_{number:06d}",
        row_type=carried_type(plan.row_type),
        written=plan.row_type,
        acid=False,
        compression=template.compression,
        block_size=template.block_size,
        stride=template.stride,
        proleptic=template.proleptic,
        stripes=tuple(
            JvmStripe(path=f"{location}/{file.path}", stripe=stripe, keep=_all(rows))
            for stripe, rows in enumerate(stripe_counts(fs, root, file))
        ),
    )


def _written(fs: FileSystem, root: str, rewrite: Rewrite, tasks: Sequence[JvmOrcTask]) -> list[SourceFile]:
    files: list[SourceFile] = []
    for task, answer in zip(tasks, rewrite(tasks), strict=True):
        if isinstance(answer, CompactorError):
            raise answer
        directory, _, name = task.output.rpartition("/")
        path = f"{directory.rpartition('/')[2]}/{name}"
        files.append(SourceFile(path=path, size=fs.size(f"{root}/{path}"), rows=answer))
    return files


def _all(rows: int) -> bytes:
    return pack(np.ones(rows, dtype=np.bool_))
