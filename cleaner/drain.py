"""May a compaction's old files go yet, and if not, who holds them (I5).

A file may go when no reader that opened before the publication can still need it: every transaction with an id up to
and including NEXT_TXN_ID has finished, except those that declared to read other tables only. Hive asks for ids below
the oldest open one and so lets a reader slip through whose id equals NEXT_TXN_ID. A row always says who holds it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cleaner.target import Target
from compactor.acid.snapshot import ValidTxnList
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.holders import Blocker, oldest_unfinished_at_or_below
from compactor.metastore.last_look import Subject, last_look
from compactor.metastore.ready import waiting_for_cleaning
from compactor.metastore.txns import TxnState, transaction_state


@dataclass(frozen=True, kw_only=True)
class Drained:
    """Nobody needs the old files. up_to: highest transaction id that the snapshot for cleaning may see."""

    up_to: int


@dataclass(frozen=True, kw_only=True)
class HeldBy:
    """The old files have to stay for now. blocker: the transaction that holds them, None when it is something else."""

    compaction: Compaction
    reason: str
    blocker: Blocker | None = None


@dataclass(frozen=True, kw_only=True)
class Forbidden:
    """The old files stay because of a parameter. owner: who has it, `table` or `partition`."""

    owner: str


def drained(db: Database, compaction: Compaction, target: Target, txns: ValidTxnList) -> Drained | HeldBy | Forbidden:
    """Whether the files that a published compaction replaced may be removed, as it is at this moment.

    txns: the transactions as they were after the row was found ready. A row without NEXT_TXN_ID, as Hive 4.0.1 leaves
    after a rebalance, was published at an unknown moment before that one, so every transaction of it counts. Fenced
    when the row is no longer ready for cleaning.
    """
    up_to = _bound(compaction, txns)
    partition_id = None if target.partition is None else target.partition.id
    subject = Subject(table_id=target.table.id, partition_id=partition_id, location=target.location)
    look = last_look(db, compaction, subject, up_to=up_to)
    if not look.exists:
        return HeldBy(compaction=compaction, reason="its table or partition was dropped or moved just now")
    if look.forbidden_by is not None:
        return Forbidden(owner=look.forbidden_by)
    return Drained(up_to=up_to) if look.blocker is None else _held_by(compaction, look.blocker)


def held(db: Database, due: Collection[int], txns: ValidTxnList, *, limit: int = 100) -> list[HeldBy]:
    """Rows that wait for cleaning and are not due, with the reason: the oldest ones, at most limit.

    due: ids of what `ready_to_clean` gave. Each row costs queries; one long reader can hold thousands, all for one reason.
    """
    return [why_not_due(db, row, txns) for row in waiting_for_cleaning(db, beside=due, limit=limit)]


def why_not_due(db: Database, compaction: Compaction, txns: ValidTxnList) -> HeldBy:
    """What keeps a row in 'ready for cleaning'."""
    if compaction.txn_id is not None and transaction_state(db, compaction.txn_id) is TxnState.OPEN:
        return HeldBy(compaction=compaction, reason=f"its own transaction {compaction.txn_id} has not ended")
    blocker = oldest_unfinished_at_or_below(db, _bound(compaction, txns), compaction.table)
    if blocker is not None:
        return _held_by(compaction, blocker)
    reason = (
        f"an earlier attempt failed, the next one waits: {compaction.error_message}"
        if compaction.retry_retention > 0
        else "an older compaction of the same object comes first, or the retention is not over"
    )
    return HeldBy(compaction=compaction, reason=reason)


def _bound(compaction: Compaction, txns: ValidTxnList) -> int:
    return compaction.next_txn_id if compaction.next_txn_id is not None else txns.high_water


def _held_by(compaction: Compaction, blocker: Blocker) -> HeldBy:
    return HeldBy(
        compaction=compaction,
        reason=f"transaction {blocker.txn_id} of {blocker.user}@{blocker.host} is open: {blocker.why}",
        blocker=blocker,
    )
