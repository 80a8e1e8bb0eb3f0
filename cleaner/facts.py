"""What the metastore knows about a page of rows, read together: a few queries a page, not a few a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cleaner.target import Object, Target, find_targets
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.snapshots import valid_txn_list
from compactor.metastore.writeids import valid_write_ids_of_each


@dataclass(frozen=True, kw_only=True)
class Facts:
    """About every row of one page, as it was after the rows were found ready.

    targets: what the catalogue has. txns, write_ids: what a cleaning may see at most; whoever was open then still counts
    as open, so what they wrote is neither obsolete nor aborted.
    """

    targets: Mapping[Object, Target]
    txns: ValidTxnList
    write_ids: Mapping[TableName, ValidWriteIdList]

    def target(self, compaction: Compaction) -> Target | None:
        """None when the table or partition was dropped."""
        return self.targets.get((compaction.table, compaction.partition))


def facts_of(db: Database, page: Sequence[Compaction], *, open_timeout_ms: int) -> Facts:
    """Read what there is to know about a page. open_timeout_ms: see `in_flight`."""
    txns = valid_txn_list(db, open_timeout_ms=open_timeout_ms)
    return Facts(
        targets=find_targets(db, [(row.table, row.partition) for row in page]),
        txns=txns,
        write_ids=valid_write_ids_of_each(db, sorted({row.table for row in page}), txns),
    )
