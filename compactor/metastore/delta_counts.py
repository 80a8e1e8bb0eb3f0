"""How many deltas a table or partition has, kept where every process can show it: COMPACTION_METRICS_CACHE.

Whoever looked at the files last writes it down; a count below its threshold is not worth a row.
Sources: Hive `DeltaFilesMetricReporter`, `CompactionMetricsDataConverter`, `UpdateMetricsCacheCommand`; reference §5.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import sqlalchemy as sa

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction_rows import object_is
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
    db: Database, table: TableName, partition: str | None, counts: Mapping[DeltaMetric, int]
) -> bool:
    """Keep these counts of an object and no others; whether that changed anything. counts: 0 is the same as none."""
    cache = COMPACTION_METRICS_CACHE
    rows = object_is(cache, "CMC", table, partition)
    wanted = {str(metric): count for metric, count in counts.items() if count > 0}
    known = sa.select(cache.c.CMC_METRIC_TYPE, cache.c.CMC_METRIC_VALUE).where(rows)
    with db.read() as conn:
        # Most objects have few deltas in every cycle: those must not cost a writing transaction each
        if {row.CMC_METRIC_TYPE: row.CMC_METRIC_VALUE for row in conn.execute(known)} == wanted:
            return False
    with db.write() as conn:
        version = conn.scalar(sa.select(sa.func.max(cache.c.CMC_VERSION)).where(rows)) or 0
        conn.execute(sa.delete(cache).where(rows))
        for metric, count in wanted.items():
            conn.execute(
                sa.insert(cache).values(
                    CMC_DATABASE=table.database,
                    CMC_TABLE=table.table,
                    CMC_PARTITION=partition,
                    CMC_METRIC_TYPE=metric,
                    CMC_METRIC_VALUE=count,
                    CMC_VERSION=version + 1,
                )
            )
    return True
