"""Which lock a statement takes on what it writes, as Hive's settings say, and how to wait for it.

| statement | transactional, `xlock_write` | transactional, not `xlock_write` | ordinary |
| --- | --- | --- | --- |
| INSERT | SHARED_READ | SHARED_WRITE | EXCLUSIVE, or SHARED_READ without `strict_locking` |
| INSERT OVERWRITE | EXCLUSIVE, or EXCL_WRITE without `xlock_iow` | EXCL_WRITE | EXCLUSIVE |
| UPDATE, DELETE, MERGE | EXCL_WRITE | SHARED_WRITE | there is none |

Where overwrites are EXCL_WRITE, inserts are SHARED_WRITE, so that none of them vanishes behind the new base. Only
`xlock_iow` off alone allows that.

Source: Hive `AcidUtils.makeLockComponents`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import assert_never

from compactor.errors import MetastoreError, UsageError
from compactor.metastore import txns
from compactor.metastore.catalog import TableName, get_table
from compactor.metastore.database import Database
from compactor.metastore.lock_waits import Patience, wait_for
from compactor.metastore.locks import LockComponent, LockRequest, LockResponse, LockState, LockType, acquire
from compactor.metastore.open_rules import HIVES_RULES, OpenRules
from compactor.settings import TxnSettings
from compactor.storage.filesystem import FilesystemOf, open_location


class Statement(enum.Enum):
    """What is done to a table or partition."""

    INSERT = "insert"
    """Rows are added."""
    OVERWRITE = "insert overwrite"
    """All rows are replaced."""
    CHANGE = "update, delete or merge"
    """Rows are replaced or removed one by one."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who writes, and how.

    sleep, patience: waiting for locks, see `lock_waits`. txn: which locks statements take. rules: how transactions are
    opened; a limit in it counts for all writers that share it.
    """

    db: Database
    user: str
    host: str
    agent_info: str = ""
    filesystem_of: FilesystemOf = open_location
    sleep: Callable[[float], None] = time.sleep
    patience: Patience = field(default_factory=Patience)
    txn: TxnSettings = field(default_factory=TxnSettings)
    rules: OpenRules = HIVES_RULES

    def lock_type(self, statement: Statement) -> LockType:
        """What the statement takes on a transactional table."""
        return lock_type(statement, self.txn)

    def acquire(self, txn_id: int, component: LockComponent) -> LockResponse:
        """Ask for a lock; what may be in the way is not waited for."""
        request = LockRequest(
            txn_id=txn_id, components=[component], user=self.user, host=self.host, agent_info=self.agent_info
        )
        return acquire(self.db, request)

    def wait(self, txn_id: int, response: LockResponse) -> None:
        """Stay until the lock is acquired; LockNotAcquired, Deadlock, TransactionAborted."""
        if response.state is not LockState.ACQUIRED:
            wait_for(self.db, response.lock_id, txn_id=txn_id, sleep=self.sleep, patience=self.patience)


def lock_type(statement: Statement, txn: TxnSettings, *, is_transactional: bool = True) -> LockType:
    """The type of the lock; UsageError for changing rows of an ordinary table."""
    match statement:
        case Statement.INSERT if is_transactional:
            return LockType.SHARED_READ if txn.xlock_write else LockType.SHARED_WRITE
        case Statement.INSERT:
            return LockType.EXCLUSIVE if txn.strict_locking else LockType.SHARED_READ
        case Statement.OVERWRITE:
            exclusive = not is_transactional or (txn.xlock_iow and txn.xlock_write)
            return LockType.EXCLUSIVE if exclusive else LockType.EXCL_WRITE
        case Statement.CHANGE if is_transactional:
            return LockType.EXCL_WRITE if txn.xlock_write else LockType.SHARED_WRITE
        case Statement.CHANGE:
            raise UsageError("rows of an ordinary table cannot be updated or deleted")
        case _:
            assert_never(statement)


@contextmanager
def locked_ordinary_table(
    writer: Writer, name: TableName, statement: Statement, *, partition: str | None = None
) -> Iterator[Callable[[], None]]:
    """Hold Hive's lock on a table without transactions while the block writes its files by other means.

    Hive's queries and DROP then wait as they would for one of its own statements. Yields the heartbeat: call it more
    often than the time-out, or the lock goes. UsageError for a transactional table, which `table.writer` writes;
    LockNotAcquired, Deadlock.
    """
    if get_table(writer.db, name).is_transactional:
        raise UsageError(f"table {name} is transactional", hint="use TableWriter, which takes the right locks itself")
    component = LockComponent(
        database=name.database,
        table=name.table,
        partition=partition,
        type=lock_type(statement, writer.txn, is_transactional=False),
    )
    (txn_id,) = txns.open_transactions(
        writer.db, user=writer.user, host=writer.host, agent_info=writer.agent_info, rules=writer.rules
    )
    try:
        writer.wait(txn_id, writer.acquire(txn_id, component))
        yield lambda: txns.heartbeat(writer.db, txn_id)
    except BaseException:
        # The caller's error counts; the lock times out if the metastore cannot be reached now.
        with suppress(MetastoreError):
            txns.abort_transactions(writer.db, [txn_id], reason="abort by its writer")
        raise
    txns.commit_transaction(writer.db, txn_id, rules=writer.rules)
