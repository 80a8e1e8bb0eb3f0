"""How many deltas a table or partition has, kept where every process can show it: COMPACTION_METRICS_CACHE.

Whoever looked at the files last writes it down; a count below its threshold is not worth a row.
Sources: Hive `DeltaFilesMetricReporter`, `CompactionMetricsDataConverter`, `UpdateMetricsCacheCommand`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import sqlalchemy as sa

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction_rows import objects_are
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTION_METRICS_CACHE


class DeltaMetric(enum.StrEnum):
    """What is counted; the values of CMC_METRIC_TYPE."""

    ACTIVE = "NUM_DELTAS"
    """Delta directories that a reader uses."""
    SMALL = "NUM_SMALL_DELTAS"
    """Those that are far smaller than the base."""
    OBSOLETE = "NUM_OBSOLETE_DELTAS"
    """Delta directories that wait for the cleaner."""


@retried
def record_delta_counts(
    db: Database, counts: Mapping[tuple[TableName, str | None], Mapping[DeltaMetric, int]]
) -> frozenset[tuple[TableName, str | None]]:
    """Keep these counts of each object and no others; the objects of which that changed anything.

    A count of 0 is the same as none.
    """
    wanted = {
        each: {str(metric): count for metric, count in of_each.items() if count > 0} for each, of_each in counts.items()
    }
    cache = COMPACTION_METRICS_CACHE
    known: dict[tuple[TableName, str | None], dict[str, int]] = {}
    versions: dict[tuple[TableName, str | None], int] = {}
    with db.read() as conn:
        # Most objects have few deltas in every cycle: those must not cost a writing transaction
        for condition in objects_are(cache, "CMC", counts):
            for row in conn.execute(sa.select(cache).where(condition)):
                each = (TableName(database=row.CMC_DATABASE, table=row.CMC_TABLE), row.CMC_PARTITION)
                known.setdefault(each, {})[row.CMC_METRIC_TYPE] = row.CMC_METRIC_VALUE
                versions[each] = max(versions.get(each, 0), row.CMC_VERSION)
    changed = frozenset(each for each in counts if known.get(each, {}) != wanted[each])
    if not changed:
        return changed
    rows = [
        {
            "CMC_DATABASE": table.database,
            "CMC_TABLE": table.table,
            "CMC_PARTITION": partition,
            "CMC_METRIC_TYPE": metric,
            "CMC_METRIC_VALUE": count,
            "CMC_VERSION": versions.get((table, partition), 0) + 1,
        }
        for table, partition in changed
        for metric, count in wanted[table, partition].items()
    ]
    with db.write() as conn:
        for condition in objects_are(cache, "CMC", changed):
            conn.execute(sa.delete(cache).where(condition))
        if rows:
            conn.execute(sa.insert(cache), rows)
    return changed
