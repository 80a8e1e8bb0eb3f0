"""What a transaction says it will write before it writes: TXN_COMPONENTS, from the lock to the end.

They are what tells the garbage of an aborted transaction from a table's rows, and what a commit checks for conflicts.
Sources: Hive `InsertTxnComponentsCommand`, `TxnHandler.addDynamicPartitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from compactor.metastore.catalog import TableName
from compactor.metastore.components import CHANGING, Operation
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import TXN_COMPONENTS
from compactor.metastore.txns import not_open, open_kind
from compactor.metastore.writeids import write_id_of


@dataclass(frozen=True, kw_only=True)
class Intent:
    """One object that will be written. is_dynamic_partition: partitions of the table, known only after the write."""

    table: TableName
    partition: str | None
    operation: Operation
    is_dynamic_partition: bool = False


@retried
def add_dynamic_partitions(
    db: Database, txn_id: int, write_id: int, table: TableName, partitions: Sequence[str], operation: Operation
) -> None:
    """Say which partitions a dynamic-partition write reached: they replace the table's own component.

    An object known by table only would make the cleaner look at every partition. TransactionAborted,
    NoSuchTransaction.
    """
    ours = TXN_COMPONENTS.c
    of_table = sa.and_(ours.TC_TXNID == txn_id, ours.TC_DATABASE == table.database, ours.TC_TABLE == table.table)
    with db.write() as conn:
        # keeps an abort or a time-out waiting: it must find these components, or the files below belong to nobody
        if open_kind(conn, txn_id) is None:
            raise not_open(conn, txn_id)
        for partition in partitions:
            conn.execute(TXN_COMPONENTS.insert().values(_component(txn_id, table, partition, operation, write_id)))
        conn.execute(TXN_COMPONENTS.delete().where(of_table, ours.TC_PARTITION.is_(None)))


def record_intents(conn: sa.Connection, txn_id: int, intents: Sequence[Intent]) -> None:
    """The components of an open transaction whose row the caller locked.

    Dynamic partitions of a table are one component without a partition, with the strongest operation.
    """
    dynamic: set[TableName] = set()
    for intent in intents:
        partition, operation = intent.partition, intent.operation
        if intent.is_dynamic_partition:
            if intent.table in dynamic:
                continue
            dynamic.add(intent.table)
            of_table = [other for other in intents if other.is_dynamic_partition and other.table == intent.table]
            partition = None
            operation = next((o.operation for o in of_table if o.operation in CHANGING), Operation.INSERT)
        write_id = write_id_of(conn, txn_id, intent.table)
        conn.execute(TXN_COMPONENTS.insert().values(_component(txn_id, intent.table, partition, operation, write_id)))


def _component(
    txn_id: int, table: TableName, partition: str | None, operation: Operation, write_id: int | None
) -> dict[str, object]:
    return {
        "TC_TXNID": txn_id,
        "TC_DATABASE": table.database,
        "TC_TABLE": table.table,
        "TC_PARTITION": partition,
        "TC_OPERATION_TYPE": operation,
        "TC_WRITEID": write_id,
    }
