from __future__ import annotations

import sqlalchemy as sa

from cleaner.housekeeper import HouseKeeper
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.history import record_not_initiated
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire, show_locks
from compactor.metastore.mutex import MutexKey, mutex
from compactor.metastore.schema import TXNS
from compactor.metastore.txns import TxnState, TxnType, heartbeat, open_transactions, transaction_state
from compactor.settings import Settings, TxnSettings
from tests.roles.world import World

MINUTE_MS = 60_000


def keeper(world: World) -> HouseKeeper:
    return HouseKeeper(world.db, world.settings, world.metrics)


def test_a_transaction_without_a_heartbeat_is_aborted_and_one_with_a_heartbeat_is_not(world: World) -> None:
    silent, alive = open_transactions(world.db, count=2, user="u", host="h")
    world.age([silent, alive], by_ms=6 * MINUTE_MS)
    heartbeat(world.db, alive)
    result = keeper(world).run_once()
    assert result.timed_out_transactions == (silent,)
    assert transaction_state(world.db, alive) is TxnState.OPEN
    assert world.metrics.registry.get_sample_value("hive_total_num_timed_out_transactions_total") == 1


def test_the_locks_of_a_timed_out_transaction_go_with_it(world: World) -> None:
    table = world.table()
    write = world.open_write(table)
    world.age([write.txn_id], by_ms=6 * MINUTE_MS)
    assert len(show_locks(world.db)) == 1
    keeper(world).run_once()
    assert show_locks(world.db) == []


def test_a_compaction_whose_transaction_timed_out_goes_back_to_the_queue(world: World) -> None:
    table = world.table()
    world.write(table)
    held, txn_id, _ = world.start_compaction(table)
    world.age([txn_id], by_ms=6 * MINUTE_MS)
    result = keeper(world).run_once()
    assert result.revoked == (held.id,)
    assert world.only_row().state is CompactionState.INITIATED


def test_a_compaction_that_is_too_old_goes_back_and_its_transaction_is_aborted(world: World) -> None:
    table = world.table()
    world.write(table)
    held, txn_id, _ = world.start_compaction(table)
    world.change_queue(held.id, CQ_START=1)
    assert keeper(world).run_once().revoked == (held.id,)
    assert transaction_state(world.db, txn_id) is TxnState.ABORTED


def test_ended_transactions_without_components_are_forgotten_and_the_newest_stays(world: World) -> None:
    table = world.table()
    writes = [world.write(table) for _ in range(3)]
    world.age([write.txn_id for write in writes], by_ms=MINUTE_MS)
    assert keeper(world).run_once().empty_transactions > 0
    with world.db.read() as conn:
        newest = conn.scalar(sa.select(sa.func.max(TXNS.c.TXN_ID)))
    assert newest == writes[-1].txn_id


def test_an_aborted_transaction_with_components_is_remembered(world: World) -> None:
    table = world.table()
    aborted = world.aborted_write(table)
    later = world.write(table)
    world.age([aborted.txn_id, later.txn_id], by_ms=MINUTE_MS)
    keeper(world).run_once()
    assert transaction_state(world.db, aborted.txn_id) is TxnState.ABORTED


def test_the_history_of_an_object_is_shortened_to_the_retention(world: World) -> None:
    table = world.table()
    for number in range(5):
        record_not_initiated(world.db, table, None, CompactionType.MINOR, f"reason {number}")
    assert keeper(world).run_once().history == 3
    assert [row.error_message for row in world.rows()] == ["reason 3", "reason 4"]


def test_transactions_that_wait_for_each_other_are_separated(world: World) -> None:
    one, two = open_transactions(world.db, count=2, user="hive", host="hs2")
    for txn_id, table in ((one, "a"), (two, "b"), (one, "b"), (two, "a")):
        component = LockComponent(database="default", table=table, type=LockType.EXCLUSIVE)
        acquire(world.db, LockRequest(txn_id=txn_id, components=[component], user="hive", host="hs2"))
    result = keeper(world).run_once()
    assert result.deadlocked == (two,)
    assert result.did_anything
    assert "ended 1 deadlocks" in result.describe()
    assert transaction_state(world.db, one) is TxnState.OPEN
    assert transaction_state(world.db, two) is TxnState.ABORTED


def test_a_replayed_transaction_has_a_time_out_of_its_own(world: World) -> None:
    (replayed,) = open_transactions(world.db, user="hive", host="hs2")
    with world.db.write() as conn:
        conn.execute(TXNS.update().where(TXNS.c.TXN_ID == replayed).values(TXN_TYPE=int(TxnType.REPL_CREATED)))
    world.age([replayed], by_ms=60 * MINUTE_MS)
    assert keeper(world).run_once().timed_out_transactions == ()
    settings = Settings(txn=TxnSettings(repl_timeout_s=1800))
    impatient = HouseKeeper(world.db, settings, world.metrics)
    assert impatient.run_once().timed_out_transactions == (replayed,)


def test_a_flood_of_silent_transactions_is_ended_in_one_round(world: World) -> None:
    silent = [i for _ in range(3) for i in open_transactions(world.db, count=700, user="u", host="h")]
    world.age(silent, by_ms=6 * MINUTE_MS)
    assert keeper(world).run_once().timed_out_transactions == tuple(silent)


def test_a_quiet_installation_leaves_nothing_to_do(world: World) -> None:
    world.write(world.table())
    role = keeper(world)
    role.run_once()
    assert not role.run_once().did_anything


def test_a_second_housekeeper_waits_for_its_turn(world: World) -> None:
    (silent,) = open_transactions(world.db, user="u", host="h")
    world.age([silent], by_ms=6 * MINUTE_MS)
    with mutex(world.db, MutexKey.HOUSE_KEEPER) as held:
        assert held is not None
        result = keeper(world).run_once()
    assert (result.held_elsewhere, result.did_anything) == (True, False)
    assert transaction_state(world.db, silent) is TxnState.OPEN
