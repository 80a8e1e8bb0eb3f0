"""Keys of Hive's transaction manual that change nothing here, each with the reason.

With `hive_site.HIVE_KEYS` they are every key of "New Configuration Parameters for Transactions" and of the list of
settings that Hive needs for transactions at all.
"""

from __future__ import annotations

from collections.abc import Mapping

WITHOUT_MEANING: Mapping[str, str] = {
    "hive.support.concurrency": "Transactions and locks are always on.",
    "hive.txn.manager": "There is one transaction manager here, and its rows are those of Hive's `DbTxnManager`.",
    "hive.enforce.bucketing": "Writers always put rows into their buckets, as Hive does since 2.0.",
    "hive.exec.dynamic.partition.mode": "Writers add partitions as they come, as in the mode `nonstrict`.",
    "hive.txn.heartbeat.threadpool.size": "Every compaction has a heartbeat of its own, so there is no pool to run dry.",
    "hive.compaction.merge.enabled": "Stripes are always copied where that is safe; the plan decides it for each one.",
    "hive.compactor.crud.query.based": "Neither MapReduce nor queries compact here: Spark tasks copy and encode stripes.",
    "hive.split.grouping.mode": "No Tez groups splits here; a task is a stretch of stripes of one bucket.",
    "hive.compactor.initiator.duration.update.interval": "A cycle's age is computed when the metrics are read.",
    "hive.compactor.cleaner.duration.update.interval": "A cycle's age is computed when the metrics are read.",
    "metastore.compactor.long.running.initiator.threshold.warning": (
        "The alert rules of `deploy/` hold the thresholds; `/healthz` reports a cycle as stuck after 6 hours."
    ),
    "metastore.compactor.long.running.initiator.threshold.error": "The alert rules of `deploy/` hold the thresholds.",
    "metastore.acidmetrics.ext.on": "All metrics are always there; those that cost a query are read when asked for.",
}
"""Hive's key → why it has no effect; Markdown."""
