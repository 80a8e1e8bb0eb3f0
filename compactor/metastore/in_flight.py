"""Transaction ids that were given out while the row that belongs to them is not there yet.

    T5 takes its id ──────────────────────────────► T5's row is committed
              T6 takes its id ──► T6's row is committed ──► a snapshot: newest is 6, no row 5

To a snapshot a missing id is an open transaction, or T5 would come into sight in the middle of the query. That lasts
only `metastore.txn.opentxn.timeout`: whoever takes longer to open rolls back (`txns.require_prompt`), and rows that
are younger are never cleaned away, so that an older gap is one for ever.

Source: Hive `GetOpenTxnsListHandler`, `TxnHandler.openTxns`.
"""

from __future__ import annotations

import sqlalchemy as sa

from compactor.errors import MetastoreError
from compactor.metastore.database import Database
from compactor.metastore.schema import TXNS

OPEN_TXN_TIMEOUT_MS = 1000
"""Longest time that opening may take (metastore.txn.opentxn.timeout)."""

_MANY = 100_000


def ids_in_flight(db: Database, conn: sa.Connection, *, open_timeout_ms: int = OPEN_TXN_TIMEOUT_MS) -> frozenset[int]:
    """The ids below the newest row that may still get a row. MetastoreError when there are absurdly many."""
    newest_first = sa.select(TXNS.c.TXN_ID).order_by(TXNS.c.TXN_ID.desc())
    started_before = TXNS.c.TXN_STARTED <= db.now(conn) - open_timeout_ms
    settled: int | None = conn.scalar(newest_first.where(started_before).limit(1))
    if settled is None:
        settled = conn.scalar(sa.select(sa.func.min(TXNS.c.TXN_ID))) or 0
    present = set(conn.scalars(newest_first.where(TXNS.c.TXN_ID > settled)))
    newest = max(present, default=settled)
    if newest - settled - len(present) > _MANY:
        raise MetastoreError(
            f"more than {_MANY} transaction ids between {settled} and {newest} have no row",
            hint=f"somebody moved the ids on; the gap counts no more in {open_timeout_ms} ms",
        )
    return frozenset(range(settled + 1, newest)) - present


def oldest_in_flight_or_open(
    db: Database, conn: sa.Connection, *, open_timeout_ms: int = OPEN_TXN_TIMEOUT_MS
) -> int | None:
    """The smallest id that is open or may still come up as open (`MinOpenTxnIdWaterMarkFunction`)."""
    smallest = conn.scalar(sa.select(sa.func.min(TXNS.c.TXN_ID)).where(TXNS.c.TXN_STATE == "o"))
    gaps = ids_in_flight(db, conn, open_timeout_ms=open_timeout_ms)
    return min((i for i in (smallest, *gaps) if i is not None), default=None)
