from __future__ import annotations

import pytest
import sqlalchemy as sa

from compactor.errors import DatabaseUnavailable, MetastoreError, ReplicationRefused, TooManyTransactions, UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.components import Operation
from compactor.metastore.database import Database
from compactor.metastore.housekeeping import clean_write_id_map, clean_write_sets
from compactor.metastore.in_flight import ids_in_flight
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire, enqueue
from compactor.metastore.open_rules import OpenLimit, OpenRules
from compactor.metastore.schema import (
    COMPACTION_QUEUE,
    MIN_HISTORY_LEVEL,
    MIN_HISTORY_WRITE_ID,
    TXNS,
    WRITE_SET,
)
from compactor.metastore.snapshots import open_declared, open_reader, valid_txn_list
from compactor.metastore.txns import (
    TxnState,
    TxnType,
    abort_transactions,
    commit_transaction,
    count_open,
    open_transactions,
    show_transactions,
    transaction_state,
)
from compactor.metastore.writeids import allocate_write_ids, valid_write_ids
from compactor.settings import TxnSettings

T = TableName(database="d", table="t")
A_MINUTE = OpenRules(open_timeout_ms=60_000)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(db: Database, kind: TxnType = TxnType.DEFAULT, rules: OpenRules = A_MINUTE) -> int:
    return open_transactions(db, kind=kind, user="u", host="h", rules=rules)[0]


def count(db: Database, table: sa.Table) -> int:
    with db.read() as conn:
        return conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def write(db: Database, txn_id: int, operation: Operation) -> None:
    allocate_write_ids(db, [txn_id], T)
    component = LockComponent(database="d", table="t", type=LockType.SHARED_WRITE, operation=operation)
    acquire(db, LockRequest(txn_id=txn_id, components=[component], user="u", host="h"))


def hide(db: Database, *txn_ids: int) -> None:
    """These transactions have their ids and no row yet."""
    with db.write() as conn:
        for table, column in ((MIN_HISTORY_LEVEL, "MHL_TXNID"), (TXNS, "TXN_ID")):
            conn.execute(table.delete().where(table.c[column].in_(txn_ids)))


def grow_old(db: Database, up_to: int) -> None:
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID <= up_to).values(TXN_STARTED=1))


def test_one_call_opens_at_most_a_batch(db: Database) -> None:
    rules = OpenRules.of(TxnSettings(max_open_batch=3))
    assert len(open_transactions(db, count=5, user="u", host="h", rules=rules)) == 3
    assert len(open_transactions(db, count=2, user="u", host="h", rules=rules)) == 2


@pytest.mark.parametrize("wanted", [0, -1])
def test_less_than_one_transaction_is_a_wrong_usage(db: Database, wanted: int) -> None:
    with pytest.raises(UsageError):
        open_transactions(db, count=wanted, user="u", host="h")


def test_at_the_limit_nothing_is_opened_until_a_tenth_has_ended(db: Database) -> None:
    rules = OpenRules.of(TxnSettings(max_open=10, count_open_interval_s=0))
    ids = open_transactions(db, count=10, user="u", host="h", rules=rules)
    with pytest.raises(TooManyTransactions, match="10 transactions are open"):
        begin(db, rules=rules)
    with pytest.raises(TooManyTransactions):
        open_reader(db, [T], user="u", host="h", rules=rules)
    abort_transactions(db, ids[:1])
    with pytest.raises(TooManyTransactions):
        begin(db, rules=rules)
    abort_transactions(db, ids[1:2])
    begin(db, rules=rules)
    begin(db, rules=rules)
    assert count_open(db) == 10


def test_the_open_transactions_of_others_are_counted_now_and_then(db: Database) -> None:
    clock = Clock()
    rules = OpenRules(limit=OpenLimit(max_batch=9, max_open=3, interval_s=5, clock=clock))
    begin(db, rules=rules)
    open_transactions(db, count=2, user="somebody else", host="h")
    begin(db, rules=rules)
    clock.now = 5.0
    with pytest.raises(TooManyTransactions):
        begin(db, rules=rules)


def test_what_one_opens_itself_counts_at_once(db: Database) -> None:
    rules = OpenRules(limit=OpenLimit(max_batch=9, max_open=3, interval_s=1e9))
    for _ in range(3):
        begin(db, rules=rules)
    with pytest.raises(TooManyTransactions):
        begin(db, rules=rules)


def test_a_replayed_transaction_is_refused_and_nothing_is_changed(db: Database) -> None:
    with pytest.raises(ReplicationRefused):
        begin(db, TxnType.REPL_CREATED)
    txn_id = begin(db)
    with db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == txn_id).values(TXN_TYPE=int(TxnType.REPL_CREATED)))
    with pytest.raises(ReplicationRefused):
        allocate_write_ids(db, [txn_id], T)
    component = LockComponent(database="d", table="t", type=LockType.SHARED_READ)
    with pytest.raises(ReplicationRefused):
        enqueue(db, LockRequest(txn_id=txn_id, components=[component], user="u", host="h"))
    with pytest.raises(ReplicationRefused):
        commit_transaction(db, txn_id)
    assert transaction_state(db, txn_id) is TxnState.OPEN
    assert [t.id for t in show_transactions(db)] == [txn_id]


def test_opening_that_takes_too_long_is_undone(db: Database) -> None:
    rules = OpenRules(open_timeout_ms=0)
    with pytest.raises(DatabaseUnavailable, match="longer than 0 ms"):
        begin(db, rules=rules)
    with pytest.raises(DatabaseUnavailable):
        open_declared(db, [T], kind=TxnType.DEFAULT, user="u", host="h", rules=rules)
    assert show_transactions(db) == []
    assert count(db, MIN_HISTORY_LEVEL) == count(db, MIN_HISTORY_WRITE_ID) == 0


def test_a_reader_may_take_its_time_to_open(db: Database) -> None:
    reader = open_reader(db, [T], user="u", host="h", rules=OpenRules(open_timeout_ms=0))
    assert transaction_state(db, reader.txn_id) is TxnState.OPEN


def test_young_gaps_count_as_open_and_old_ones_never_come_back(db: Database) -> None:
    old, gone, hidden, newest = (begin(db) for _ in range(4))
    hide(db, gone, hidden)
    grow_old(db, old)
    for txn_id in (old, newest):
        commit_transaction(db, txn_id)
    assert valid_txn_list(db, open_timeout_ms=60_000).open == {gone, hidden}
    assert valid_txn_list(db, own_txn=gone, open_timeout_ms=60_000).high_water == gone
    grow_old(db, newest)
    assert valid_txn_list(db).open == frozenset()


def test_a_transaction_remembers_a_gap_below_it_as_the_oldest_open_one(db: Database) -> None:
    first, hidden = begin(db), begin(db)
    commit_transaction(db, first)
    hide(db, hidden)
    newest = begin(db)
    with db.read() as conn:
        levels = dict(conn.execute(sa.select(MIN_HISTORY_LEVEL)).all())
    assert levels == {newest: hidden}


def test_an_absurd_gap_is_an_error_and_no_list_of_millions(db: Database) -> None:
    begin(db)
    with db.write() as conn:
        far = {"TXN_ID": 10_000_000, "TXN_STATE": "c", "TXN_STARTED": db.now(conn), "TXN_LAST_HEARTBEAT": 0}
        conn.execute(TXNS.insert().values(far | {"TXN_USER": "u", "TXN_HOST": "h", "TXN_TYPE": 0}))
    with db.read() as conn, pytest.raises(MetastoreError, match="more than 100000 transaction ids"):
        ids_in_flight(db, conn, open_timeout_ms=60_000)


def test_without_history_level_nothing_is_noted_and_every_write_stays_known_while_it_may_be_seen_open(
    db: Database,
) -> None:
    rules = OpenRules(open_timeout_ms=60_000, min_history_level=False)
    writer, reader = begin(db, rules=rules), begin(db, TxnType.READ_ONLY, rules)
    assert count(db, MIN_HISTORY_LEVEL) == 0
    write(db, writer, Operation.INSERT)
    seen = valid_txn_list(db, own_txn=reader)
    commit_transaction(db, writer, rules=rules)
    commit_transaction(db, begin(db, rules=rules), rules=rules)
    clean_write_sets(db)
    clean_write_id_map(db)
    assert not valid_write_ids(db, T, seen).is_valid(1)
    commit_transaction(db, reader, rules=rules)
    assert clean_write_sets(db) == 1
    assert clean_write_id_map(db) == 1


def test_an_insert_leaves_no_write_set_where_the_history_level_is_kept(db: Database) -> None:
    writer = begin(db)
    write(db, writer, Operation.INSERT)
    commit_transaction(db, writer)
    assert count(db, WRITE_SET) == 0


def test_readers_declare_nothing_where_that_is_turned_off(db: Database) -> None:
    open_reader(db, [T], user="u", host="h")
    assert count(db, MIN_HISTORY_WRITE_ID) == 1
    open_reader(db, [T], user="u", host="h", rules=OpenRules(min_history_write_id=False))
    assert count(db, MIN_HISTORY_WRITE_ID) == 1


@pytest.mark.parametrize("kind", [TxnType.SOFT_DELETE, TxnType.COMPACTION, TxnType.REBALANCE_COMPACTION])
def test_a_commit_dates_what_the_transaction_left_for_the_cleaner(db: Database, kind: TxnType) -> None:
    dropper, reader = begin(db, kind), begin(db, TxnType.READ_ONLY)
    row = {"CQ_DATABASE": "d", "CQ_TABLE": "t", "CQ_STATE": "r", "CQ_TYPE": "a", "CQ_RETRY_RETENTION": 0}
    with db.write() as conn:
        conn.execute(COMPACTION_QUEUE.insert().values(row | {"CQ_ID": 1, "CQ_TXN_ID": dropper}))
        conn.execute(COMPACTION_QUEUE.insert().values(row | {"CQ_ID": 2, "CQ_TXN_ID": reader}))
        before = db.now(conn)
    commit_transaction(db, dropper)
    queue = COMPACTION_QUEUE.c
    with db.read() as conn:
        dated, other = conn.execute(sa.select(queue.CQ_NEXT_TXN_ID, queue.CQ_COMMIT_TIME).order_by(queue.CQ_ID))
        assert before <= dated.CQ_COMMIT_TIME <= db.now(conn)
    assert dated.CQ_NEXT_TXN_ID == reader
    assert tuple(other) == (None, None)


def test_a_soft_delete_conflicts_with_nothing(db: Database) -> None:
    changer, dropper = begin(db), begin(db, TxnType.SOFT_DELETE)
    for txn_id in (changer, dropper):
        write(db, txn_id, Operation.UPDATE)
    commit_transaction(db, changer)
    commit_transaction(db, dropper)
    assert transaction_state(db, dropper) is TxnState.COMMITTED
