"""Nobody waits for ever behind others, however many those are and however they fare (I9, HIVE-30026)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyarrow.fs import LocalFileSystem

import cleaner.service
from cleaner.service import Cleaner
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.metastore.queue import Refused, claim, finish_without_output, publish
from compactor.metastore.schema import AUX_TABLE, COMPLETED_TXN_COMPONENTS
from compactor.metastore.snapshots import open_reader
from compactor.metastore.txns import commit_transaction
from compactor.service.offers import prices_of
from compactor.settings import InitiatorSettings
from compactor.storage.filesystem import ArrowFileSystem, FileSystem, open_location
from initiator.service import Initiator
from tests.roles.world import World

PAGE = 3
HOUR = timedelta(hours=1)


class Sticky(ArrowFileSystem):
    """A file system that answers every deletion with success and keeps what lies below tables called stuck…"""

    def delete_directory(self, path: str) -> None:
        if "/stuck" not in path:
            super().delete_directory(path)


def sticky(location: str) -> tuple[FileSystem, str]:
    return Sticky(LocalFileSystem()), location.removeprefix("file:")


def an_initiator(world: World) -> Initiator:
    """A new process."""
    limits = InitiatorSettings(delta_num_threshold=2, fetch_size=PAGE)
    settings = world.settings.model_copy(update={"initiator": limits})
    return Initiator(world.db, open_location, settings, world.metrics, "host", "1.0", prices_of=prices_of)


def an_hour_passes(world: World) -> None:
    """Everything that was written, and the last cycle, are an hour older; the last look at everything is not."""
    with world.db.write() as conn:
        for row in conn.execute(sa.select(COMPLETED_TXN_COMPONENTS)).all():
            written = COMPLETED_TXN_COMPONENTS.c
            older = sa.update(COMPLETED_TXN_COMPONENTS).where(written.CTC_TXNID == row.CTC_TXNID)
            conn.execute(older.values(CTC_TIMESTAMP=row.CTC_TIMESTAMP - HOUR))


def end_without_output(world: World) -> TableName:
    """A worker takes the oldest request and refuses it."""
    mine = claim(world.db, worker_id="host-1.abc", worker_version="1")
    assert mine is not None
    finish_without_output(world.db, mine, None, outcome=Refused(reason="not now"))
    return mine.table


def test_every_cycle_looks_at_all_that_is_new_however_much_does_not_get_done(world: World) -> None:
    initiator = an_initiator(world)
    never_done = [world.table(f"a{n}") for n in range(3 * PAGE)]
    for table in never_done:
        world.write(table, times=3)
    assert len(initiator.run_once().requested) == len(never_done)
    for cycle in range(3):
        new = [world.table(f"z{cycle}_{n}") for n in range(2 * PAGE)]
        for table in new:
            world.write(table, times=3)
        # all are still in the queue, first by name, and written again
        for table in never_done:
            world.write(table)
        assert [asked.table for asked in initiator.run_once().requested] == new


def test_what_was_written_during_a_compaction_is_found_by_another_process_after_it(world: World) -> None:
    table = world.table()
    world.write(table, times=3)
    assert len(an_initiator(world).run_once().requested) == 1
    world.write(table, times=3)
    an_hour_passes(world)
    assert an_initiator(world).run_once().requested == ()
    end_without_output(world)
    (again,) = an_initiator(world).run_once().requested
    assert again.table == table


def test_a_cycle_of_a_new_process_looks_only_at_what_changed(world: World) -> None:
    for n in range(PAGE):
        world.write(world.table(f"t{n}"))
    assert an_initiator(world).run_once().candidates == PAGE
    an_hour_passes(world)
    world.write(world.table("new"))
    assert an_initiator(world).run_once().candidates == 1


def test_an_hour_after_the_last_look_at_everything_there_is_another_one(world: World) -> None:
    for n in range(PAGE):
        world.write(world.table(f"t{n}"))
    an_initiator(world).run_once()
    an_hour_passes(world)
    with world.db.write() as conn:
        aux = AUX_TABLE.c
        earlier = sa.update(AUX_TABLE).where(aux.MT_KEY1 == "CompactorFullLook")
        conn.execute(earlier.values(MT_KEY2=aux.MT_KEY2 - int(HOUR.total_seconds() * 1000)))
    assert an_initiator(world).run_once().candidates == PAGE


def test_requests_are_taken_in_their_order_past_the_claim_of_a_dead_worker(world: World) -> None:
    tables = [world.table(f"t{n}") for n in range(PAGE)]
    for table in tables:
        world.write(table, times=3)
        world.request(table)
    dead = claim(world.db, worker_id="elsewhere-1.abc", worker_version="1")
    assert dead is not None
    assert dead.table == tables[0]
    assert [end_without_output(world), end_without_output(world)] == tables[1:]
    # what the dead worker holds blocks its own table only, until its time is over
    world.write(tables[1], times=3)
    assert [asked.table for asked in an_initiator(world).run_once().requested] == [tables[1], tables[2]]
    world.change_queue(dead.id, CQ_START=1)
    assert an_initiator(world).run_once().revoked == (dead.id,)
    assert end_without_output(world) == tables[0]


def test_rows_that_never_get_cleaned_leave_the_others_their_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole page of the oldest rows whose files stay, whatever is tried."""
    monkeypatch.setattr(cleaner.service, "ROWS_A_CYCLE", PAGE)
    stuck = [world.table(f"stuck{n}") for n in range(PAGE)]
    sound = [world.table(f"t{n}") for n in range(2 * PAGE + 1)]
    for table in [*stuck, *sound]:
        world.write(table, times=3)
        world.compact(table)
    role = Cleaner(world.db, sticky, world.settings, world.metrics, "host")
    cycles = -(-len(stuck + sound) // PAGE)
    cleaned = sum(role.run_once().cleaned for _ in range(cycles))
    assert cleaned == len(sound)
    waiting = {row.table for row in world.rows(CompactionState.READY_FOR_CLEANING)}
    assert waiting == set(stuck)
    role = Cleaner(world.db, open_location, world.settings, world.metrics, "host")
    assert role.run_once().cleaned == len(stuck)


def test_the_oldest_row_of_a_table_that_is_held_blocks_that_table_only(world: World) -> None:
    tables = [world.table(f"t{n}") for n in range(PAGE)]
    held = tables[0]
    for table in tables:
        world.write(table, times=3)
    reader = open_reader(world.db, [held], user="u", host="h")
    for table in tables:
        world.compact(table)
    # its second compaction waits for the first one, whose files are still read
    world.write(held, times=3)
    world.compact(held)
    before = world.entries(held)
    role = Cleaner(world.db, open_location, world.settings, world.metrics, "host")
    result = role.run_once()
    assert (result.cleaned, len(result.held)) == (PAGE - 1, 2)
    assert world.entries(held) == before
    assert all(len(world.entries(table)) == 1 for table in tables[1:])
    commit_transaction(world.db, reader.txn_id)
    assert [role.run_once().cleaned for _ in range(2)] == [1, 1]
    assert len(world.entries(held)) == 1


def test_a_claim_that_is_published_late_is_cleaned_like_any_other(world: World) -> None:
    """Ids are given out when a compaction is requested, so an old one can become ready after younger ones are done."""
    late, early = world.table("late"), world.table("early")
    for table in (late, early):
        world.write(table, times=3)
    mine, txn_id, output = world.start_compaction(late)
    world.compact(early)
    role = Cleaner(world.db, open_location, world.settings, world.metrics, "host")
    assert role.run_once().cleaned == 1
    publish(world.db, mine, txn_id)
    assert role.run_once().cleaned == 1
    assert Path(output).name in world.entries(late)
