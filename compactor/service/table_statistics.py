"""After a successful compaction: the statistics that Hive's planner and its metadata answers live on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from compactor.acid.column_statistics import Change, statistics_kind
from compactor.acid.planning import CompactionPlan
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.schema import parse_type, struct_of
from compactor.errors import BeyondArrow
from compactor.jobs.distinct import count_distinct
from compactor.jobs.planner import CompactionTarget, Survey
from compactor.jobs.statistics import current_files, gather
from compactor.jobs.stretches import Each
from compactor.metastore import statistics
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.orc.rewrite import ItemResult
from compactor.settings import WorkerSettings


def update_statistics(
    db: Database,
    settings: WorkerSettings,
    each: Callable[[], Each],
    *,
    compaction: Compaction,
    target: CompactionTarget,
    surveyed: Survey,
    plan: CompactionPlan | RebalancePlan,
    results: Sequence[ItemResult],
) -> Change | None:
    """Write back what the published output of `plan` says; None when the settings say not to.

    each: makes the place where distinct values are counted; called only when they are asked for. surveyed: what the
    plan was made from. Raises CompactorError; the compaction itself succeeded whatever happens here.
    """
    if not settings.gather_stats:
        return None
    files = current_files(plan, results, surveyed.state, surveyed.listing)
    wanted: Collection[str] = ()
    distinct = None
    if settings.column_statistics == "existing":
        wanted = statistics.columns_with_statistics(db, compaction.table, compaction.partition)
    elif settings.column_statistics == "distinct":
        wanted = frozenset(n for n, t in target.columns if statistics_kind(parse_type(t).kind) is not None)
        if files.of_live_rows:
            try:
                row_type = struct_of(target.columns)
                distinct = count_distinct(each(), plan.location, files.of_live_rows, row_type, wanted)
            except BeyondArrow:
                # Bounds and nulls still come from the tails.
                distinct = None
    found = gather(files, columns=target.columns, wanted=wanted, distinct=distinct)
    return statistics.record_statistics(
        db,
        compaction.table,
        compaction.partition,
        found,
        compaction_id=compaction.id,
        write_ids=plan.write_ids,
    )
