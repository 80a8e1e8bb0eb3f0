"""The queue from 'ready for cleaning' to the history: what the cleaner asks and writes down.

1. `ready_to_clean`: rows r that nobody needs the old files of any more (I5).
2. `mark_cleaner_start`, and after the files went `mark_cleaned`: r→s with everything the compaction made known; both
   for a page of rows at once. Something is left over: `clear_cleaner_start`, the row stays. An error: `cleaner_retry`,
   later again. `refuse_cleaning` and `fail_ready` end the row without a deletion.
3. Aborted writes without a compaction: `mark_aborts_cleaned`, or `retry_aborts` and later again.

Each step is guarded by (id, state r): `Fenced`, or an id that is missing in the answer, means that another cleaner was
faster and nothing was changed.
Sources: Hive `ReadyToCleanHandler`, `MarkCleanedFunction`, `CompactionTxnHandler`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, or_, select, update

from compactor.errors import MetastoreError
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState, CompactionType
from compactor.metastore.compaction_rows import (
    change_row,
    each_object,
    next_compaction_id,
    object_is,
    objects_are,
    of_object,
    queue_rows,
    ready,
    ready_among,
    retire,
    retire_rows,
)
from compactor.metastore.components import Operation
from compactor.metastore.database import Database, RolledBack, retried
from compactor.metastore.holders import current_holds
from compactor.metastore.schema import COMPACTION_QUEUE, COMPLETED_TXN_COMPONENTS, TXN_COMPONENTS, TXNS
from compactor.metastore.txns import TxnState, high_water

_IDS_PER_STATEMENT = 500
_ROWS_A_FETCH = 1000

Object = tuple[TableName, str | None]


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """A row of which all files went.

    forgettable: the aborted write ids of which no file is left (HIVE-25502); None: the object has no files any more, so
    every one up to the row's highest write id.
    """

    compaction: Compaction
    forgettable: frozenset[int] | None = None


@retried
def ready_to_clean(db: Database, *, retention_ms: int = 0, limit: int = 1000, after: int = 0) -> list[Compaction]:
    """Rows r that may be cleaned now, by id, at most limit (ReadyToCleanHandler, strict as I5).

    Of an object only the row with the smallest highest write id comes up, so an older one is always cleaned first.
    A row whose compaction transaction is aborted comes up whatever its age (HIVE-29572): end it with `fail_ready`. A
    row without NEXT_TXN_ID, as Hive 4.0.1 leaves after a rebalance, waits for every transaction there is now.
    retention_ms: how long old files stay after the publication, besides the row's own retry retention. after: only rows
    with greater ids. Whoever touches a file looks once more for its readers: this is one answer for all rows.
    """
    holds = current_holds(db)
    with db.read() as conn:
        highest_given_out = high_water(conn)
        due = _due(now=db.now(conn), retention_ms=retention_ms).subquery()
        query = (
            select(due, TXNS.c.TXN_STATE)
            .outerjoin(TXNS, TXNS.c.TXN_ID == due.c.TXN_ID)
            .where(due.c.PLACE == 1, due.c.ID > after)
            # what one long query holds would otherwise be read in every cycle
            .where(
                or_(
                    func.coalesce(due.c.NEXT_TXN_ID, highest_given_out) < holds.everywhere,
                    TXNS.c.TXN_STATE == TxnState.ABORTED,
                )
            )
            .order_by(due.c.ID)
        )
        found: list[Compaction] = []
        with conn.execution_options(yield_per=_ROWS_A_FETCH).execute(query) as rows:
            for row in rows.mappings():
                if len(found) == limit:
                    break
                compaction = Compaction.from_row(row)
                held = holds.holds(compaction.next_txn_id or highest_given_out, compaction.table)
                if row["TXN_STATE"] == TxnState.ABORTED or (row["TXN_STATE"] != TxnState.OPEN and not held):
                    found.append(compaction)
    return found


@retried
def waiting_for_cleaning(db: Database, *, beside: Collection[int], limit: int) -> list[Compaction]:
    """The oldest rows r, but those with the ids `beside`, at most limit."""
    queue = COMPACTION_QUEUE.c
    query = queue_rows().where(
        queue.CQ_STATE == CompactionState.READY_FOR_CLEANING, queue.CQ_TYPE != CompactionType.ABORT_TXN_CLEANUP
    )
    with (
        db.read() as conn,
        conn.execution_options(yield_per=_ROWS_A_FETCH).execute(query.order_by(queue.CQ_ID)) as rows,
    ):
        others = (Compaction.from_row(row) for row in rows.mappings() if row["ID"] not in beside)
        return list(islice(others, limit))


@retried
def mark_cleaner_start(db: Database, rows: Sequence[Compaction]) -> frozenset[int]:
    """Show that these rows are being cleaned; the ids of those that still wait for it."""
    queue = COMPACTION_QUEUE.c
    with db.write() as conn:
        waiting = select(queue.CQ_ID).where(ready_among([row.id for row in rows])).order_by(queue.CQ_ID)
        ours = list(conn.scalars(waiting.with_for_update()))
        started = update(COMPACTION_QUEUE).where(ready_among(ours)).values(CQ_CLEANER_START=db.now(conn))
        if ours and conn.execute(started).rowcount != len(ours):
            raise MetastoreError("rows of the queue were changed by someone else under our lock")
    return frozenset(ours)


@retried
def clear_cleaner_start(db: Database, compaction: Compaction) -> None:
    """Something was left over that may go later: the row stays r, without a penalty."""
    with db.write() as conn:
        change_row(conn, compaction, ready(compaction), {"CQ_CLEANER_START": -1})


@retried
def mark_cleaned(db: Database, cleaned: Sequence[Cleaned]) -> frozenset[int]:
    """r→s, and what the compactions took care of is forgotten (MarkCleanedFunction); the ids of the rows that it ended.

    Any other row was ended by someone else or renamed (Hive's RENAME changes it in place), and nothing is forgotten for
    it: a table of its old name would have writes of its own.

    COMPLETED_TXN_COMPONENTS of exactly this object go up to the row's highest write id. In Hive a row for a partitioned
    table as a whole takes those of every partition along, and the initiator forgets partitions that nobody compacted.
    TXN_COMPONENTS of aborted transactions go as `Cleaned.forgettable` says.
    """
    known = {each.compaction.id: (each.compaction.table, each.compaction.partition) for each in cleaned}
    with db.write() as conn:
        ids = _still_named(conn, known)
        ours = [each for each in cleaned if each.compaction.id in ids]
        # In the order of Hive's DROP and RENAME, which take the queue's rows last
        _forget_aborts_of(conn, ours)
        _forget_completed(conn, [each.compaction for each in ours])
        if _still_named(conn, known, lock=True) != ids:
            raise RolledBack("rows were ended or renamed by someone else at the same moment")
        retire_rows(conn, ready_among(ids), state=CompactionState.SUCCEEDED, end=db.now(conn), message=None)
        _drop_abort_retries(conn, [(each.compaction.table, each.compaction.partition) for each in ours])
    return ids


@retried
def cleaner_retry(db: Database, compaction: Compaction, *, retention_ms: int, message: str) -> None:
    """Cleaning failed: the row comes up again retention_ms after the attempt (setCleanerRetryRetentionTimeOnError)."""
    values = {"CQ_RETRY_RETENTION": retention_ms, "CQ_ERROR_MESSAGE": message}
    with db.write() as conn:
        change_row(conn, compaction, ready(compaction), values)


@retried
def refuse_cleaning(db: Database, compaction: Compaction, reason: str) -> None:
    """r→c: the table forbids cleaning (no_cleanup); the files stay (markRefused)."""
    with db.write() as conn:
        end = db.now(conn)
        retire(conn, compaction, ready(compaction), state=CompactionState.REFUSED, end=end, message=reason)


@retried
def fail_ready(db: Database, compaction: Compaction, message: str) -> None:
    """r→f: too many attempts, or the compaction's transaction is aborted; the files stay (markFailed)."""
    with db.write() as conn:
        end = db.now(conn)
        retire(conn, compaction, ready(compaction), state=CompactionState.FAILED, end=end, message=message)


@retried
def mark_aborts_cleaned(
    db: Database,
    table: TableName,
    partition: str | None,
    *,
    highest_write_id: int,
    uncompacted_aborts: bool,
    aborted_write_ids: Collection[int] = (),
) -> int:
    """Forget the aborted writes of an object whose directories were removed without a compaction; how many.

    highest_write_id, uncompacted_aborts, aborted_write_ids: as `mark_cleaned`. A retry row of the object goes too.
    """
    with db.write() as conn:
        _drop_abort_retries(conn, [(table, partition)])
        highest = None if uncompacted_aborts else highest_write_id
        return _forget_aborts(conn, table, partition, highest_write_id=highest, write_ids=aborted_write_ids)


@retried
def retry_aborts(db: Database, table: TableName, partition: str | None, *, retention_ms: int, message: str) -> None:
    """Removing an object's aborted directories failed: `aborted_objects` keeps it back for retention_ms.

    The note is a row of type c in the queue, one an object (setCleanerRetryRetentionTimeOnError).
    """
    with db.write() as conn:
        compaction_id = next_compaction_id(conn)
        _drop_abort_retries(conn, [(table, partition)])
        conn.execute(
            insert(COMPACTION_QUEUE).values(
                CQ_ID=compaction_id,
                CQ_DATABASE=table.database,
                CQ_TABLE=table.table,
                CQ_PARTITION=partition,
                CQ_TYPE=CompactionType.ABORT_TXN_CLEANUP,
                CQ_STATE=CompactionState.READY_FOR_CLEANING,
                CQ_RETRY_RETENTION=retention_ms,
                CQ_ERROR_MESSAGE=message,
                CQ_COMMIT_TIME=db.now(conn),
            )
        )


def _due(*, now: int, retention_ms: int) -> Select[Any]:
    """Rows r, with their PLACE in their object: 1 is the smallest highest write id.

    now: epoch ms. Hive counts the retry retention from the publication alone, so that an old row uses up its attempts
    at once; here it counts from the last attempt too.
    """
    queue = COMPACTION_QUEUE.c
    last_retry_due = now - queue.CQ_RETRY_RETENTION
    place = func.rank().over(
        partition_by=(queue.CQ_DATABASE, queue.CQ_TABLE, queue.CQ_PARTITION),
        order_by=func.coalesce(queue.CQ_HIGHEST_WRITE_ID, 0),
    )
    return (
        queue_rows()
        .add_columns(place.label("PLACE"))
        .where(
            queue.CQ_STATE == CompactionState.READY_FOR_CLEANING,
            queue.CQ_TYPE != CompactionType.ABORT_TXN_CLEANUP,
            or_(queue.CQ_COMMIT_TIME <= last_retry_due - retention_ms, queue.CQ_COMMIT_TIME.is_(None)),
            func.coalesce(queue.CQ_CLEANER_START, -1) <= last_retry_due,
        )
    )


def _still_named(conn: Connection, known: Mapping[int, Object], *, lock: bool = False) -> frozenset[int]:
    """Ids of the rows that wait for cleaning and are about the same object as before."""
    queue = COMPACTION_QUEUE.c
    query = select(queue.CQ_ID, queue.CQ_DATABASE, queue.CQ_TABLE, queue.CQ_PARTITION).where(ready_among(known))
    rows = conn.execute(query.order_by(queue.CQ_ID).with_for_update() if lock else query)
    return frozenset(
        row.CQ_ID
        for row in rows
        if (TableName(database=row.CQ_DATABASE, table=row.CQ_TABLE), row.CQ_PARTITION) == known[row.CQ_ID]
    )


def _drop_abort_retries(conn: Connection, objects: Sequence[Object]) -> None:
    """Whatever cleaned the objects, the next attempt on their aborted writes starts afresh (MarkCleanedFunction)."""
    queue = COMPACTION_QUEUE.c
    wanted = set(objects)
    # There are few of them, and Hive's own schema has no index by name
    retries = select(queue.CQ_ID, queue.CQ_DATABASE, queue.CQ_TABLE, queue.CQ_PARTITION).where(
        queue.CQ_TYPE == CompactionType.ABORT_TXN_CLEANUP
    )
    over = [
        row.CQ_ID
        for row in conn.execute(retries)
        if (TableName(database=row.CQ_DATABASE, table=row.CQ_TABLE), row.CQ_PARTITION) in wanted
    ]
    if over:
        conn.execute(delete(COMPACTION_QUEUE).where(queue.CQ_ID.in_(over)))


def _forget_completed(conn: Connection, ended: Sequence[Compaction]) -> None:
    """Forget the writes that the compactions took in."""
    completed = COMPLETED_TXN_COMPONENTS
    for partitioned in (True, False):
        rows = [
            of_object(row.table, row.partition) | {"highest": row.highest_write_id}
            for row in ended
            if row.highest_write_id is not None and (row.partition is not None) is partitioned
        ]
        compacted = delete(completed).where(
            each_object(completed, "CTC", partitioned=partitioned), completed.c.CTC_WRITEID <= bindparam("highest")
        )
        if rows:
            conn.execute(compacted, rows)


def _forget_aborts_of(conn: Connection, ended: Sequence[Cleaned]) -> None:
    """`_forget_aborts` for those of the objects that have any: few have."""
    components = TXN_COMPONENTS.c
    objects = [(each.compaction.table, each.compaction.partition) for each in ended]
    with_aborts = {
        (TableName(database=row.TC_DATABASE, table=row.TC_TABLE), row.TC_PARTITION)
        for condition in objects_are(TXN_COMPONENTS, "TC", objects)
        for row in conn.execute(
            select(components.TC_DATABASE, components.TC_TABLE, components.TC_PARTITION)
            .join(TXNS, TXNS.c.TXN_ID == components.TC_TXNID)
            .where(condition, TXNS.c.TXN_STATE == TxnState.ABORTED)
        )
    }
    for each in ended:
        row = each.compaction
        if row.highest_write_id is not None and (row.table, row.partition) in with_aborts:
            _forget_aborts(
                conn,
                row.table,
                row.partition,
                highest_write_id=row.highest_write_id if each.forgettable is None else None,
                write_ids=each.forgettable or (),
            )


def _forget_aborts(
    conn: Connection,
    table: TableName,
    partition: str | None,
    *,
    highest_write_id: int | None,
    write_ids: Collection[int],
) -> int:
    """Delete components of aborted transactions of exactly this object; how many (removeTxnComponents).

    Up to highest_write_id; None: only those of write_ids. Hive's newest line lets a row without a partition delete the
    components of every partition; we do not, for nobody looked into those partitions' directories (I8). Nor do those of
    aborted compactions go: their worker may still be writing, and without the component its output would count as
    committed one day (`abandoned`).
    """
    components = TXN_COMPONENTS
    aborted = delete(components).where(
        object_is(components, "TC", table, partition),
        components.c.TC_OPERATION_TYPE != Operation.COMPACT,
        components.c.TC_TXNID.in_(select(TXNS.c.TXN_ID).where(TXNS.c.TXN_STATE == TxnState.ABORTED)),
    )
    if highest_write_id is not None:
        return conn.execute(aborted.where(components.c.TC_WRITEID <= highest_write_id)).rowcount
    ids = sorted(write_ids)
    batches = (ids[start : start + _IDS_PER_STATEMENT] for start in range(0, len(ids), _IDS_PER_STATEMENT))
    return sum(conn.execute(aborted.where(components.c.TC_WRITEID.in_(batch))).rowcount for batch in batches)
