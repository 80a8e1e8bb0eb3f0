"""Plan items as the planner makes them, from files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.stripes import Part, StripedSource, StripeRun, parts_of
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.delete_facts import hits
from compactor.orc.facts import orc_facts
from tests.orc.acid_files import FS, ROW

ALL = ValidWriteIdList(table="d.t", high_water=99)


def item_of(
    root: Path,
    sources: Sequence[SourceFile],
    deletes: Sequence[SourceFile] = (),
    *,
    kind: ItemKind = ItemKind.ROWS,
    row_type: HiveType = ROW,
    valid: ValidWriteIdList = ALL,
    output: str = "out/bucket_00000",
) -> PlanItem:
    """An item of one part (as long as the planner sees no reason for more) whose stripes have the planner's uses."""
    item = PlanItem(
        kind=kind, output=output, bucket=0, sources=tuple(sources), deletes=tuple(deletes), compression=pb.ZLIB
    )
    if kind is ItemKind.DELETES:
        return replace(item, parts=(Part(),))
    facts = [orc_facts(FS, f"{root}/{s.path}") for s in sources]
    gone = {d.path: len(orc_facts(FS, f"{root}/{d.path}").stripes) for d in deletes}
    hit = hits(FS, str(root), {s.path: f.stripes for s, f in zip(sources, facts, strict=True)}, gone, valid)
    fitting = [
        n for n, (s, f) in enumerate(zip(sources, facts, strict=True)) if not s.synthetic and f.row_type == row_type
    ]
    template = max(fitting, key=lambda n: (sources[n].size, -n), default=None)
    striped = [
        StripedSource(
            stripes=f.stripes,
            fits=template is not None and f.template == facts[template].template and not s.synthetic,
            hits=None if s.synthetic else hit[s.path],
            end=s.synthetic_end,
        )
        for s, f in zip(sources, facts, strict=True)
    ]
    return replace(
        item,
        parts=parts_of(striped, valid, acid=kind is ItemKind.ROWS, max_files=500),
        template=template,
        compression=pb.ZLIB if template is None else facts[template].compression,
    )


def in_parts(item: PlanItem, stripes: int = 1) -> PlanItem:
    """The same with a part for every so many stripes."""
    singles = [
        StripeRun(source=run.source, start=at, stop=at + 1, use=run.use)
        for part in item.parts
        for run in part.runs
        for at in range(run.start, run.stop)
    ]
    return replace(
        item, parts=tuple(Part(runs=tuple(singles[at : at + stripes])) for at in range(0, len(singles), stripes))
    )
