"""What a statement says, once it is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType

PartitionSpec = tuple[tuple[str, str], ...]
"""Columns (lower case) and values as text, in the order of the statement."""


@dataclass(frozen=True, kw_only=True)
class OrderKey:
    """One key of an ORDER BY. nulls_first: None leaves it to the engine."""

    column: str
    descending: bool = False
    nulls_first: bool | None = None

    def __str__(self) -> str:
        """SQL again."""
        quoted = "`" + self.column.replace("`", "``") + "`"
        nulls = {None: "", True: " NULLS FIRST", False: " NULLS LAST"}[self.nulls_first]
        return f"{quoted} {'DESC' if self.descending else 'ASC'}{nulls}"


@dataclass(frozen=True, kw_only=True)
class AlterTableCompact:
    """ALTER TABLE … [PARTITION (…)] COMPACT '…' with its clauses.

    partition: None when the statement has none. buckets, order_by: REBALANCE only. properties: for this compaction
    only (WITH OVERWRITE TBLPROPERTIES).
    """

    table: TableName
    type: CompactionType
    partition: PartitionSpec | None = None
    and_wait: bool = False
    pool: str | None = None
    buckets: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    order_by: tuple[OrderKey, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShowCompactions:
    """SHOW COMPACTIONS with its filters; None: not filtered. database and table exclude each other."""

    compaction_id: int | None = None
    database: str | None = None
    table: TableName | None = None
    partition: PartitionSpec | None = None
    pool: str | None = None
    type: CompactionType | None = None
    state: CompactionState | None = None
    order_by: tuple[OrderKey, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShowTransactions:
    """SHOW TRANSACTIONS: those that are open or aborted."""


@dataclass(frozen=True, kw_only=True)
class ShowLocks:
    """SHOW LOCKS of everything, of a database or of a table and its partitions, or of one partition.

    extended: heartbeats and agents too.
    """

    database: str | None = None
    table: TableName | None = None
    partition: PartitionSpec | None = None
    extended: bool = False


@dataclass(frozen=True, kw_only=True)
class AbortTransactions:
    """ABORT TRANSACTIONS id …"""

    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AbortCompactions:
    """ABORT COMPACTIONS id …: requests that no worker has taken yet."""

    ids: tuple[int, ...]


Statement = AlterTableCompact | ShowCompactions | ShowTransactions | ShowLocks | AbortTransactions | AbortCompactions
