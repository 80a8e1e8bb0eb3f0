from __future__ import annotations

import pytest

from compactor.metastore.aborting import Aborted, abort_compactions, abort_transactions_by_id
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import show_compactions
from compactor.metastore.queue import (
    Refused,
    claim,
    finish_without_output,
    publish,
    record_snapshot,
    request_compaction,
)
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    commit_transaction,
    open_transactions,
    transaction_state,
)


def ask(db: Database, table: str) -> int:
    name = TableName(database="d", table=table)
    wish = CompactionRequest(table=name, type=CompactionType.MAJOR, initiator_id="h-manual", initiator_version="1")
    return request_compaction(db, wish).id


def test_a_request_that_nobody_has_taken_ends_in_the_history(db: Database) -> None:
    waiting = ask(db, "t")
    assert abort_compactions(db, [waiting]) == [
        Aborted(id=waiting, status="Success", message="Successfully aborted compaction")
    ]
    (row,) = show_compactions(db)
    assert (row.id, row.state) == (waiting, CompactionState.ABORTED)
    assert row.end is not None
    assert claim(db, worker_id="h-1.00000000", worker_version="1") is None


def test_an_aborted_request_can_be_asked_for_again(db: Database) -> None:
    abort_compactions(db, [ask(db, "t")])
    assert ask(db, "t") == 2


@pytest.mark.parametrize("state", ["working", "ready for cleaning", "refused", "aborted"])
def test_what_is_no_longer_a_request_is_left_alone_and_its_state_told(db: Database, state: str) -> None:
    compaction_id = ask(db, "t")
    if state == "aborted":
        abort_compactions(db, [compaction_id])
    else:
        claimed = claim(db, worker_id="h-1.00000000", worker_version="1")
        assert claimed is not None
        (txn_id,) = open_transactions(db, kind=TxnType.COMPACTION, user="u", host="h")
        if state != "working":
            record_snapshot(db, claimed, txn_id=txn_id, highest_write_id=1)
        if state == "ready for cleaning":
            publish(db, claimed, txn_id)
        if state == "refused":
            finish_without_output(db, claimed, txn_id, outcome=Refused(reason="nothing to do"))
    before = show_compactions(db)
    (answer,) = abort_compactions(db, [compaction_id])
    assert answer.status == "Error"
    assert answer.message == f"Error while aborting compaction as compaction is in state-{state}"
    assert show_compactions(db) == before


def test_each_id_has_its_answer_and_one_error_does_not_keep_the_others(db: Database) -> None:
    first, second = ask(db, "t"), ask(db, "u")
    answers = abort_compactions(db, [99, second, first, second])
    assert [(a.id, a.status) for a in answers] == [(first, "Success"), (second, "Success"), (99, "Error")]
    assert answers[-1].message == "No Such Compaction Id Available"


def test_transactions_are_aborted_by_id_and_each_has_its_answer(db: Database) -> None:
    opened, aborted, committed = open_transactions(db, count=3, user="u", host="h")
    abort_transactions(db, [aborted])
    commit_transaction(db, committed)
    answers = abort_transactions_by_id(db, [99, committed, aborted, opened])
    assert [(a.id, a.status) for a in answers] == [
        (opened, "Success"),
        (aborted, "Success"),
        (committed, "Error"),
        (99, "Error"),
    ]
    assert transaction_state(db, opened) is TxnState.ABORTED
    assert transaction_state(db, committed) is TxnState.COMMITTED
