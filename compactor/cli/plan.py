"""`compactor plan`: what a minor and a major compaction would do now."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from compactor.acid.directory import Snapshot
from compactor.acid.partition_name import partition_values
from compactor.acid.planning import CompactionPlan, Depth, ItemKind, Refusal
from compactor.cli.installation import Installation
from compactor.cli.render import add_row, print_json, say, size, table
from compactor.cli.trigger import DONE
from compactor.errors import UsageError
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.metastore import catalog, snapshots, writeids
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionType
from compactor.service.targets import compaction_target, why_never_compacted

_TYPES = {Depth.MINOR: CompactionType.MINOR, Depth.MAJOR: CompactionType.MAJOR}


def show_plan(installation: Installation, console: Console, name: str, *, as_json: bool) -> int:
    """What a minor and a major compaction would do now."""
    text, _, partition = name.partition("/")
    found, partition_name = _find(installation, TableName.parse(text), partition or None)
    target = compaction_target(installation.db, found, partition_name)
    txns = snapshots.valid_txn_list(installation.db)
    ids = writeids.valid_write_ids(installation.db, found.name, txns).for_compaction()
    plans = _plans(found, partition_name, target, Snapshot(txns=txns, write_ids=ids))
    rows = [_PlanRow.of(depth, made) for depth, made in plans.items()]
    if as_json:
        print_json(console, {"object": target.name, "location": target.location, "plans": rows})
        return DONE
    say(console, f"{target.name} at {target.location}, up to write id {ids.high_water}")
    columns = ("files", "bytes", "rows", "delete events")
    made = table("", "compaction", "verdict", *columns, "output", right=columns)
    for row in rows:
        counts = (row.files_in, row.rows_in, row.delete_events)
        files, rows_in, deletes = (f"{n:,}" if n else "" for n in counts)
        add_row(
            made,
            row.compaction,
            row.verdict,
            files,
            size(row.bytes_in) if row.bytes_in else "",
            rows_in,
            deletes,
            "\n".join(row.output),
        )
    console.print(made)
    return DONE


def _plans(
    found: catalog.Table, partition: str | None, target: CompactionTarget, snapshot: Snapshot
) -> dict[Depth, CompactionPlan | Refusal]:
    """What a worker would do for each depth, what it never does included."""
    reasons = {d: why_never_compacted(found, _TYPES[d], partition) for d in Depth}
    if all(reasons.values()):
        # Such a location may hold files that cannot be surveyed at all.
        return {d: Refusal(reason=reason, leftovers=False) for d, reason in reasons.items()}
    surveyed = survey(target, snapshot)
    # The transaction that would compact does not exist yet; its id only decides the output's name.
    txn_id = snapshot.txns.high_water + 1
    return {
        d: Refusal(reason=reason, leftovers=False) if reason else plan(target, surveyed, snapshot, d, txn_id=txn_id)
        for d, reason in reasons.items()
    }


@dataclass(frozen=True, kw_only=True)
class _PlanRow:
    """A plan as it is shown. output: directories that would be written."""

    compaction: str
    verdict: str
    files_in: int = 0
    bytes_in: int = 0
    rows_in: int = 0
    delete_events: int = 0
    output: tuple[str, ...] = ()

    @classmethod
    def of(cls, depth: Depth, made: CompactionPlan | Refusal) -> _PlanRow:
        if isinstance(made, Refusal):
            return cls(compaction=depth.value, verdict=f"refused: {made.reason}")
        events = sum(i.rows_in for i in made.items if i.kind is ItemKind.DELETES)
        return cls(
            compaction=depth.value,
            verdict="worth doing",
            files_in=made.files_in,
            bytes_in=made.bytes_in,
            rows_in=sum(i.rows_in for i in made.items if i.kind is not ItemKind.DELETES),
            delete_events=events + sum(d.rows for i in made.items for d in i.deletes),
            output=made.directories,
        )


def _find(installation: Installation, name: TableName, partition: str | None) -> tuple[catalog.Table, str | None]:
    """The table a user named, and the partition as the catalogue spells it."""
    db = installation.db
    found = catalog.get_table(db, name)
    if found.is_partitioned and partition is None:
        known = ", ".join(p.name for p in catalog.list_partitions(db, name)[:5])
        raise UsageError(f"{name} is partitioned", hint=f"name a partition, as in {name}/{known or 'p=x'}")
    return found, catalog.find_partition(db, name, partition_values(partition)).name if partition else None
