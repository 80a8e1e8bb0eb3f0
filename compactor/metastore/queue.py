"""The compaction queue from the request to the end of the worker's part. The cleaner's part is `ready`.

1. `request_compaction`: at most one row i or w for an object, whoever asks and however many ask at once.
2. `claim`: i→w, oldest first; a guarded UPDATE decides between workers.
3. `record_snapshot`: what the worker is going to merge, and a component that keeps its transaction known.
4. `publish`: the transaction's o→c and the row's w→r in ONE database transaction, or neither.
   `finish_without_output` and `fail` end the claim without a new directory.
5. `revoke_*`: w→i. The lost claim's transaction is aborted in the same database transaction, and that is what fences
   its worker: whatever the worker still does, its output never becomes visible (I3).

Each step of a worker is guarded by (id, state w, worker id): `Fenced` means that nothing was changed.
Sources: Hive `CompactFunction`, `NextCompactionFunction`, `CommitTxnFunction`, `CompactionTxnHandler`. Where Hive needs two transactions ('r' first, commit later) it can block cleaning for ever (HIVE-29572).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select

from compactor.errors import CommitOutcomeUnknown, Fenced, TransactionAborted
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import (
    Compaction,
    CompactionRequest,
    CompactionState,
    CompactionType,
)
from compactor.metastore.compaction_rows import (
    change_row,
    fenced,
    held_by,
    lock_requests,
    queue_rows,
    retire,
)
from compactor.metastore.components import Operation
from compactor.metastore.database import Database, repeatable, retried
from compactor.metastore.requested import insert_requests, pending
from compactor.metastore.schema import (
    COMPACTION_QUEUE,
    TXN_COMPONENTS,
    TXNS,
)
from compactor.metastore.txns import (
    TxnState,
    end_transactions,
    high_water,
    lock_transactions,
    not_open,
    open_kind,
    state_of,
)
from compactor.metastore.write_conflicts import keep_changes

POOL_TIMEOUT_MS = 12 * 60 * 60 * 1000
"""After so long in its own pool a request goes to the default pool too (hive.compactor.worker.pool.timeout)."""

COMPACT_OPERATION = Operation.COMPACT
"""TC_OPERATION_TYPE of a compaction's transaction."""


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """What became of a request.

    id, state: of the new row, or of the one that already does what was asked. reason: why not accepted, else empty.
    """

    id: int
    accepted: bool
    state: CompactionState
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The worker found nothing worth doing, or is not allowed to; the row ends in the history."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class ReadyWithoutOutput:
    """The worker wrote nothing, but obsolete or aborted directories wait for the cleaner."""


def request_compaction(db: Database, request: CompactionRequest) -> RequestOutcome:
    """Put a request into the queue, unless the object is already taken care of; `request_compactions` of one."""
    return request_compactions(db, [request])[0]


@retried
def request_compactions(db: Database, requests: Sequence[CompactionRequest]) -> list[RequestOutcome]:
    """Put requests into the queue, and say of each in its turn what became of it (CompactFunction).

    Not accepted when a row for exactly this database, table and partition is i or w, an earlier one of these requests
    among them, or is r and was compacted up to the write id a compaction could reach now.
    """
    objects = [(request.table, request.partition) for request in requests]
    with db.write() as conn:
        lock_requests(conn)
        existing = {each: (row.id, row.state) for each, row in pending(conn, set(objects)).items()}
        accepted: dict[tuple[TableName, str | None], int] = {}
        for position, each in enumerate(objects):
            if each not in existing:
                accepted.setdefault(each, position)
        ids = insert_requests(conn, [requests[position] for position in accepted.values()], now=db.now(conn))
    outcomes = {
        position: RequestOutcome(id=compaction_id, accepted=True, state=CompactionState.INITIATED)
        for position, compaction_id in zip(accepted.values(), ids, strict=True)
    }
    existing |= {
        each: (compaction_id, CompactionState.INITIATED) for each, compaction_id in zip(accepted, ids, strict=True)
    }
    return [outcomes.get(position) or _already(*existing[each]) for position, each in enumerate(objects)]


def claim(
    db: Database,
    *,
    worker_id: str,
    worker_version: str,
    pools: Collection[str] | None = None,
    pool_timeout_ms: int = POOL_TIMEOUT_MS,
) -> Compaction | None:
    """Take the oldest request for this worker, i→w; None when there is none (NextCompactionFunction).

    worker_id: unique to the claim, `<host>-<pid>.<random>`. pools: None is the default pool, which also takes requests
    of labelled pools that nobody took for pool_timeout_ms; a labelled pool takes only its own.
    When the answer to the commit is lost, the claim is found again by its worker id.
    """
    try:
        return _claim(db, worker_id, worker_version, pools, pool_timeout_ms)
    except CommitOutcomeUnknown:
        return _claimed_by(db, worker_id)


@retried
def _claim(
    db: Database, worker_id: str, worker_version: str, pools: Collection[str] | None, pool_timeout_ms: int
) -> Compaction | None:
    with db.write() as conn:
        now = db.now(conn)
        waiting = and_(
            COMPACTION_QUEUE.c.CQ_STATE == CompactionState.INITIATED, _in_pools(pools, now - pool_timeout_ms)
        )
        # without SKIP LOCKED all workers would wait for the first row
        oldest = (
            queue_rows().where(waiting).order_by(COMPACTION_QUEUE.c.CQ_ID).limit(1).with_for_update(skip_locked=True)
        )
        row = conn.execute(oldest).mappings().one_or_none()
        if row is None:
            return None
        taken = {
            "CQ_STATE": CompactionState.WORKING,
            "CQ_WORKER_ID": worker_id,
            "CQ_WORKER_VERSION": worker_version,
            "CQ_START": now,
        }
        found = Compaction.from_row(row)
        mine = and_(COMPACTION_QUEUE.c.CQ_ID == found.id, COMPACTION_QUEUE.c.CQ_STATE == CompactionState.INITIATED)
        change_row(conn, found, mine, taken)
        state = CompactionState.WORKING
        return replace(found, state=state, worker_id=worker_id, worker_version=worker_version, start=now)


@retried
def _claimed_by(db: Database, worker_id: str) -> Compaction | None:
    held = and_(COMPACTION_QUEUE.c.CQ_STATE == CompactionState.WORKING, COMPACTION_QUEUE.c.CQ_WORKER_ID == worker_id)
    with db.read() as conn:
        row = conn.execute(queue_rows().where(held)).mappings().one_or_none()
    return None if row is None else Compaction.from_row(row)


@retried
def record_snapshot(
    db: Database, claim: Compaction, *, txn_id: int, highest_write_id: int, run_as: str | None = None
) -> None:
    """Write down the claim's transaction and how far it will compact (updateCompactorState).

    The TXN_COMPONENTS row keeps the transaction's state known, should it abort, until its output is removed. A
    rebalance has a second one: it changes the id of every row, so it conflicts with whoever updates or deletes. Hive
    writes that one when it locks, without a write id, and so never finds it again to clean it away.
    TransactionAborted or NoSuchTransaction when the transaction is not open; Fenced when the claim is not ours any more.
    """
    with db.write() as conn:
        if open_kind(conn, txn_id) is None:
            raise not_open(conn, txn_id)
        values = {"CQ_TXN_ID": txn_id, "CQ_HIGHEST_WRITE_ID": highest_write_id}
        change_row(conn, claim, held_by(claim), values | ({"CQ_RUN_AS": run_as} if run_as is not None else {}))
        changes = (Operation.UPDATE,) if claim.type is CompactionType.REBALANCE else ()
        for operation in (COMPACT_OPERATION, *changes):
            conn.execute(
                insert(TXN_COMPONENTS).values(
                    TC_TXNID=txn_id,
                    TC_DATABASE=claim.table.database,
                    TC_TABLE=claim.table.table,
                    TC_PARTITION=claim.partition,
                    TC_OPERATION_TYPE=operation,
                    TC_WRITEID=highest_write_id,
                )
            )


@repeatable
def record_job(db: Database, claims: Sequence[Compaction], job_id: str) -> None:
    """Show which Spark job works on these claims (setHadoopJobId; 32 characters).

    Fenced, and nothing is shown, when one of them is no longer ours.
    """
    with db.write() as conn:
        for claim in claims:
            change_row(conn, claim, held_by(claim), {"CQ_HADOOP_JOB_ID": job_id[:32]})


@retried
def publish(db: Database, claim: Compaction, txn_id: int) -> None:
    """Make the output visible: transaction o→c and row w→r together, or Fenced and nothing changed.

    CQ_NEXT_TXN_ID becomes the highest transaction id given out so far: every reader that may still need the old files
    has an id up to and including it. CommitOutcomeUnknown when the connection broke during the commit: read the
    transaction's state before touching the output. WriteConflict when a rebalance overlapped with an update or delete
    that committed first; nothing is changed then, and `fail` aborts the transaction.
    """
    with db.write() as conn:
        lock_transactions(conn)
        keep_changes(conn, txn_id)
        _publish(conn, claim, txn_id, now=db.now(conn))


@retried
def finish_without_output(
    db: Database, claim: Compaction, txn_id: int | None, *, outcome: Refused | ReadyWithoutOutput
) -> None:
    """End a claim that wrote no file; its transaction commits in the same database transaction.

    txn_id None: refused before a transaction was opened. Fenced when claim or transaction are no longer ours.
    """
    with db.write() as conn:
        now = db.now(conn)
        match outcome:
            case Refused(reason=reason):
                if txn_id is not None:
                    lock_transactions(conn)
                    _commit(conn, claim, txn_id)
                retire(conn, claim, held_by(claim), state=CompactionState.REFUSED, end=now, message=reason)
            case ReadyWithoutOutput():
                if txn_id is None:
                    raise fenced(claim)
                lock_transactions(conn)
                _publish(conn, claim, txn_id, now=now)
            case _:
                assert_never(outcome)


@retried
def fail(db: Database, claim: Compaction, *, message: str, txn_id: int | None) -> None:
    """End a claim that went wrong: the row goes to the history, the transaction is aborted with it (markFailed).

    The transaction's component stays until a cleaner has removed its output. A transaction that already ended is left
    as it is. Fenced when the claim is no longer ours: then nothing was changed and the transaction was not aborted.
    """
    with db.write() as conn:
        if txn_id is not None:
            lock_transactions(conn)
            _abort(conn, txn_id)
        retire(conn, claim, held_by(claim), state=CompactionState.FAILED, end=db.now(conn), message=message)


@retried
def revoke_claims(db: Database, worker_ids: Collection[str]) -> list[int]:
    """Give back what these workers hold, w→i; the ids. For workers that are known to be gone: an id is one claim's."""
    with db.write() as conn:
        return _revoke(conn, COMPACTION_QUEUE.c.CQ_WORKER_ID.in_(sorted(worker_ids)))


@retried
def revoke_timed_out(db: Database, *, timeout_ms: int) -> list[int]:
    """Give back what was claimed more than timeout_ms ago, w→i; the ids (revokeTimedoutWorkers)."""
    with db.write() as conn:
        return _revoke(conn, COMPACTION_QUEUE.c.CQ_START < db.now(conn) - timeout_ms)


@retried
def revoke_aborted(db: Database) -> list[int]:
    """Give back claims whose transaction was aborted, by a time-out or an operator, w→i; the ids.

    Such a claim can never be published, so there is no need to wait for the worker's time limit as Hive does.
    """
    aborted = select(TXNS.c.TXN_ID).where(TXNS.c.TXN_STATE == TxnState.ABORTED)
    with db.write() as conn:
        return _revoke(conn, COMPACTION_QUEUE.c.CQ_TXN_ID.in_(aborted))


@retried
def revoke_silent(db: Database, *, timeout_ms: int) -> list[int]:
    """Give back claims of ours that opened no transaction within the time-out, w→i; the ids.

    Their worker died between claim and snapshot: there is no transaction whose heartbeat could tell. Ours are known by
    their worker id `<host>-<pid>.<8 characters>`; Hive's are left to the worker's time limit.
    """
    with db.write() as conn:
        silent = and_(COMPACTION_QUEUE.c.CQ_TXN_ID.is_(None), COMPACTION_QUEUE.c.CQ_START < db.now(conn) - timeout_ms)
        return _revoke(conn, and_(silent, COMPACTION_QUEUE.c.CQ_WORKER_ID.like("%-%.________")))


def _already(compaction_id: int, state: CompactionState) -> RequestOutcome:
    reason = (
        f"Compaction is already scheduled with state='{state.name.lower().replace('_', ' ')}' and id={compaction_id}"
    )
    return RequestOutcome(id=compaction_id, accepted=False, state=state, reason=reason)


def _in_pools(pools: Collection[str] | None, given_up_before: int) -> ColumnElement[bool]:
    if pools is not None:
        return COMPACTION_QUEUE.c.CQ_POOL_NAME.in_(sorted(pools))
    return or_(COMPACTION_QUEUE.c.CQ_POOL_NAME.is_(None), COMPACTION_QUEUE.c.CQ_ENQUEUE_TIME < given_up_before)


def _publish(conn: Connection, claim: Compaction, txn_id: int, *, now: int) -> None:
    _commit(conn, claim, txn_id)
    published = {
        "CQ_STATE": CompactionState.READY_FOR_CLEANING,
        "CQ_WORKER_ID": None,
        "CQ_NEXT_TXN_ID": high_water(conn),
        "CQ_COMMIT_TIME": now,
    }
    change_row(conn, claim, held_by(claim, COMPACTION_QUEUE.c.CQ_TXN_ID == txn_id), published)


def _commit(conn: Connection, claim: Compaction, txn_id: int) -> None:
    """o→c of a compaction's transaction: no COMPLETED_TXN_COMPONENTS, there is nothing new to compact."""
    conn.execute(delete(TXN_COMPONENTS).where(TXN_COMPONENTS.c.TC_TXNID == txn_id))
    try:
        end_transactions(conn, [txn_id], state=TxnState.COMMITTED)
    except TransactionAborted as error:
        raise Fenced(
            f"transaction {txn_id} of compaction {claim.id} of {claim.object_name} is no longer open",
            hint="it was aborted by a time-out, a revoke or an operator; nothing was changed",
        ) from error


def _abort(conn: Connection, txn_id: int) -> None:
    """o→a; components stay, they say which files are garbage (AbortTxnsFunction)."""
    if state_of(conn, txn_id) is TxnState.OPEN:
        end_transactions(conn, [txn_id], state=TxnState.ABORTED, reason="compaction transaction abort")


def _revoke(conn: Connection, condition: ColumnElement[bool]) -> list[int]:
    """w→i for each claim that meets the condition, its transaction aborted with it."""
    lock_transactions(conn)
    working = and_(COMPACTION_QUEUE.c.CQ_STATE == CompactionState.WORKING, condition)
    held = conn.execute(queue_rows().where(working).order_by(COMPACTION_QUEUE.c.CQ_ID).with_for_update()).mappings()
    initiated = {
        "CQ_STATE": CompactionState.INITIATED,
        "CQ_WORKER_ID": None,
        "CQ_START": None,
        "CQ_TXN_ID": None,
        "CQ_HIGHEST_WRITE_ID": None,
        "CQ_HADOOP_JOB_ID": None,
    }
    revoked = []
    for lost in [Compaction.from_row(row) for row in held]:
        change_row(conn, lost, held_by(lost), initiated)
        revoked.append(lost.id)
        if lost.txn_id is not None:
            _abort(conn, lost.txn_id)
    return revoked
