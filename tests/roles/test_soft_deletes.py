"""What the cleaner does with the rows that Hive's DROP leaves behind when reads take no locks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from compactor.acid.layout import DeltaKind, base_name, delta_name
from compactor.errors import StorageError
from compactor.metastore.catalog import Column, TableName
from compactor.metastore.catalog_write import create_table, drop_table, set_table_parameters
from compactor.metastore.compaction import CompactionState, format_properties
from compactor.metastore.locks import LockComponent, LockRequest, LockState, LockType, acquire, show_locks
from compactor.metastore.schema import COMPLETED_TXN_COMPONENTS
from compactor.metastore.snapshots import open_reader
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions
from compactor.storage.filesystem import ArrowFileSystem, open_location
from tests.roles.drops import begin_drop, clean, drop_softly, files, put_row, recreate, suffixed_table
from tests.roles.world import World


@pytest.fixture
def table(world: World) -> TableName:
    table = suffixed_table(world)
    world.write(table, times=2)
    return table


@pytest.fixture
def partitioned(world: World) -> TableName:
    """Two partitions with two deltas each."""
    table = suffixed_table(world, "parts", partitioned=True)
    for value in ("1", "a b:2"):
        world.write(table, world.partition(table, value), times=2)
    return table


def states(world: World) -> list[CompactionState]:
    return [row.state for row in world.rows()]


def message(world: World) -> str:
    return world.only_row().error_message or ""


# --- tables


def test_the_files_of_a_dropped_table_go_and_the_row_succeeds(world: World, table: TableName) -> None:
    location = drop_softly(world, table)
    result = clean(world)
    assert not location.exists()
    assert states(world) == [CompactionState.SUCCEEDED]
    assert (result.cleaned, result.files_removed, result.bytes_removed) == (1, 2, 200)


def test_a_dropped_partitioned_table_goes_with_its_directories(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned)
    (location / "p=empty" / "delta_0000001_0000001_0000").mkdir(parents=True)
    clean(world)
    assert not location.exists()
    assert location.parent.is_dir()
    assert states(world) == [CompactionState.SUCCEEDED]


def test_nothing_happens_before_the_drop_commits(world: World, table: TableName) -> None:
    location = world.location(table)
    before = files(location)
    begin_drop(world, table)
    clean(world)
    assert states(world) == [CompactionState.READY_FOR_CLEANING]
    assert files(location) == before


def test_an_aborted_drop_leaves_the_table_as_it_was(world: World, table: TableName) -> None:
    before = world.entries(table)
    (txn_id,) = open_transactions(world.db, user="hive", host="hs2")
    put_row(world, table, None, f"file:{world.location(table)}", txn_id=txn_id, write_id=0)
    abort_transactions(world.db, [txn_id])
    clean(world)
    assert states(world) == [CompactionState.FAILED]
    assert message(world) == f"the DROP, transaction {txn_id}, is aborted: the object and its files stay"
    assert world.entries(table) == before


def test_the_directory_of_a_create_table_as_select_that_failed_goes_at_once(world: World) -> None:
    (reader,) = open_transactions(world.db, user="ann", host="hs2")
    (txn_id,) = open_transactions(world.db, user="hive", host="hs2")
    table = TableName(database="default", table="never")
    location = world.warehouse / f"never.v{txn_id:07d}"
    world.put(location / "delta_0000001_0000001_0000")
    put_row(world, table, None, f"file:{location}", txn_id=txn_id, write_id=1)
    clean(world)
    assert location.exists(), "it is still being written"
    abort_transactions(world.db, [txn_id])
    clean(world)
    assert not location.exists(), f"{reader} cannot know it"
    assert states(world) == [CompactionState.SUCCEEDED]


def test_who_opened_before_the_drop_ended_keeps_the_files(world: World, table: TableName) -> None:
    (reader,) = open_transactions(world.db, user="ann", host="hs2")
    location = world.location(table)
    txn_id = begin_drop(world, table)
    (late,) = open_transactions(world.db, user="bob", host="hs2")
    commit_transaction(world.db, txn_id)
    before = files(location)
    for ends in (reader, late):
        (holder,) = clean(world).held
        assert holder.blocker is not None
        assert holder.blocker.txn_id == ends
        assert files(location) == before
        commit_transaction(world.db, ends)
    open_transactions(world.db, user="eve", host="hs2")
    clean(world)
    assert not location.exists(), "who opens now sees no table"


def test_a_declared_reader_of_that_table_keeps_the_files_and_one_of_another_does_not(
    world: World, table: TableName
) -> None:
    other = world.table("other")
    open_reader(world.db, [other], user="bob", host="h")
    reader = open_reader(world.db, [table], user="ann", host="h")
    location = drop_softly(world, table)
    (holder,) = clean(world).held
    assert holder.blocker is not None
    assert holder.blocker.txn_id == reader.txn_id
    assert location.exists()
    commit_transaction(world.db, reader.txn_id)
    clean(world)
    assert not location.exists()


def test_a_table_of_the_same_name_keeps_its_files_and_what_is_known_of_its_writes(
    world: World, table: TableName
) -> None:
    location = drop_softly(world, table)
    world.change_queue(1, CQ_HIGHEST_WRITE_ID=100)
    suffixed_table(world)
    aborted = world.aborted_write(table)
    world.write(table)
    before = files(world.location(table))
    clean(world)
    assert not location.exists()
    assert files(world.location(table)) == before
    assert world.components(aborted.txn_id) == 1
    with world.db.read() as conn:
        assert len(conn.execute(COMPLETED_TXN_COMPONENTS.select()).all()) >= 1
    clean(world)
    assert files(world.location(table)) == before


def test_what_is_no_file_of_an_acid_table_stays_and_is_named(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned)
    foreign = ["notes.txt", "p=1/.hive-staging_1/000000_0", "p=1/delta_7_3/bucket_00000", "q/p=1/base_0000001/x"]
    for path in foreign:
        (location / path).parent.mkdir(parents=True, exist_ok=True)
        (location / path).write_bytes(b"x")
    result = clean(world)
    assert files(location) == sorted(foreign)
    assert not (location / "p=a b%3A2").exists()
    assert states(world) == [CompactionState.REFUSED]
    assert all(path in message(world) for path in foreign)
    assert str(location) in message(world)
    assert "by hand" in message(world)
    assert (result.refused, result.files_removed) == (1, 4)


def test_a_location_without_the_suffix_is_never_touched(world: World) -> None:
    table = world.table("plain")
    world.write(table)
    location = drop_softly(world, table)
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
    assert f"{location}: its name has no suffix" in message(world)


@pytest.mark.parametrize("below", ["{here}", "{here}/deeper", "{above}"])
def test_nothing_goes_where_something_of_the_catalogue_lives(world: World, table: TableName, below: str) -> None:
    location = drop_softly(world, table)
    create_table(
        world.db,
        TableName(database="default", table="squatter"),
        columns=[Column(name="a", type="int")],
        table_type="EXTERNAL_TABLE",
        location="hdfs://ns" + below.format(here=location, above=location.parent) + "/",
    )
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
    assert "default.squatter of the catalogue lives there" in message(world)


def test_a_row_that_names_no_transaction_is_no_drop(world: World, table: TableName) -> None:
    location = world.location(table)
    drop_table(world.db, table)
    put_row(world, table, None, f"file:{location}", txn_id=None, write_id=0)
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]


def test_a_location_that_is_gone_is_done(world: World, table: TableName) -> None:
    location = drop_softly(world, table)
    location.rename(location.with_name("elsewhere"))
    clean(world)
    assert states(world) == [CompactionState.SUCCEEDED]
    assert (location.with_name("elsewhere")).is_dir()


def test_a_link_that_leads_out_of_the_table_is_not_followed(world: World, partitioned: TableName) -> None:
    other = world.table("other")
    world.write(other)
    location = drop_softly(world, partitioned)
    (location / "p=9").symlink_to(world.location(other), target_is_directory=True)
    before = files(location), files(world.location(other))
    result = clean(world)
    assert result.retried == 1
    assert "symbolic link" in message(world)
    assert (files(location), files(world.location(other))) == before


# --- partitions


def test_the_files_of_a_dropped_partition_go_and_those_of_the_others_stay(world: World, partitioned: TableName) -> None:
    other = files(world.location(partitioned, "p=1"))
    location = drop_softly(world, partitioned, "p=a b%3A2")
    clean(world)
    assert not location.exists()
    assert files(world.location(partitioned, "p=1")) == other
    assert states(world) == [CompactionState.SUCCEEDED]
    assert show_locks(world.db) == []


def test_a_partition_that_was_created_again_keeps_its_rows(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned, "p=1")
    dropped_at = world.only_row().highest_write_id or 0
    recreate(world, partitioned, "1")
    written = world.write(partitioned, "p=1").write_id
    clean(world)
    new = delta_name(DeltaKind.INSERT, written, written, statement_id=0)
    assert world.entries(partitioned, "p=1") == [base_name(dropped_at), new]
    assert location.exists()
    assert states(world) == [CompactionState.SUCCEEDED]


def test_what_a_partition_in_the_making_has_already_stays(world: World, partitioned: TableName) -> None:
    """An INSERT that creates the partition again writes before the catalogue knows of it."""
    location = drop_softly(world, partitioned, "p=1")
    dropped_at = world.only_row().highest_write_id or 0
    new = delta_name(DeltaKind.INSERT, dropped_at + 1, dropped_at + 1, statement_id=0)
    world.put(location / new)
    clean(world)
    assert files(location) == [f"{new}/bucket_00000"]
    assert states(world) == [CompactionState.SUCCEEDED]


def test_a_writer_in_the_partition_is_waited_for(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned, "p=1")
    (writer,) = open_transactions(world.db, user="ann", host="hs2")
    component = LockComponent(
        database=partitioned.database, table=partitioned.table, partition="p=1", type=LockType.SHARED_WRITE
    )
    acquire(world.db, LockRequest(txn_id=writer, components=[component], user="ann", host="hs2"))
    before = files(location)
    (holder,) = clean(world).held
    assert holder.reason.endswith("of ann@hs2 is in the way of removing the dropped partition")
    assert files(location) == before
    assert [lock.state for lock in show_locks(world.db)] == [LockState.ACQUIRED], "our request did not stay in line"
    commit_transaction(world.db, writer)
    clean(world)
    assert not location.exists()


def test_a_partition_without_hives_mark_is_never_touched(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned, "p=1")
    (location / base_name(world.only_row().highest_write_id or 0) / "_metadata_acid").unlink()
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
    assert "says that Hive dropped it" in message(world)


def test_a_truncated_partition_is_not_taken_for_a_dropped_one(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned, "p=1")
    metadata = location / base_name(world.only_row().highest_write_id or 0) / "_metadata_acid"
    metadata.write_text('{"thisFileVersion":"0","dataFormat":"truncated"}')
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]


def test_no_cleanup_of_the_table_holds_for_its_dropped_partitions(world: World, partitioned: TableName) -> None:
    set_table_parameters(world.db, partitioned, {"no_cleanup": "true"})
    location = drop_softly(world, partitioned, "p=1")
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
    assert "no_cleanup" in message(world)


def test_a_partition_of_another_table_in_the_same_place_keeps_its_files(world: World, partitioned: TableName) -> None:
    location = drop_softly(world, partitioned, "p=1")
    create_table(
        world.db,
        TableName(database="default", table="squatter"),
        columns=[Column(name="a", type="int")],
        location=f"file:{location}",
    )
    before = files(location)
    clean(world)
    assert files(location) == before
    assert states(world) == [CompactionState.REFUSED]
    assert "default.squatter" in message(world)


# --- crashes and file systems


def local_disk(location: Path) -> ArrowFileSystem:
    filesystem, _ = open_location(f"file:{location}")
    assert isinstance(filesystem, ArrowFileSystem)
    return filesystem


class Dying(ArrowFileSystem):
    """A local disk on which the process dies at the deletion with this number."""

    def __init__(self, location: Path, survives: int) -> None:
        super().__init__(local_disk(location)._arrow)
        self._left = survives

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def delete_directory(self, path: str) -> None:
        # Not in one step: its files go first
        for name in sorted(files(Path(path))):
            self._step()
            (Path(path) / name).unlink()
        self._step()
        super().delete_directory(path)

    def delete_empty_directory(self, path: str) -> bool:
        self._step()
        return super().delete_empty_directory(path)


@pytest.mark.parametrize("partition", [None, "p=1"])
def test_a_second_run_ends_what_a_killed_one_began(world: World, partition: str | None) -> None:
    crashes = 0
    while run_killed(world, TableName(database="default", table=f"t{crashes}"), partition, survives=crashes):
        crashes += 1
    assert crashes > 5


def run_killed(world: World, table: TableName, partition: str | None, *, survives: int) -> bool:
    """Drop, clean up to a deletion, clean again; False when there was no further deletion to die at."""
    suffixed_table(world, table.table, partitioned=True)
    for value in ("1", "2"):
        world.write(table, world.partition(table, value), times=3)
    location = drop_softly(world, table, partition)
    row = world.rows()[-1]
    metadata = f"{base_name(row.highest_write_id or 0)}/_metadata_acid"
    dying = Dying(location, survives)
    try:
        clean(world, lambda place: (dying, open_location(place)[1]))
    except KeyboardInterrupt:
        # While it has rows a partition that is created again must find the mark that hides them
        left = files(location) if location.exists() else []
        assert partition is None or metadata in left or not any(path.endswith("bucket_00000") for path in left)
    else:
        assert not location.exists()
        return False
    clean(world)
    assert not location.exists()
    assert world.rows()[-1].state is CompactionState.SUCCEEDED
    return True


@pytest.mark.parametrize("partition", [None, "p=1"])
def test_on_an_object_store_only_a_partitions_own_empty_directory_stays(
    world: World, partitioned: TableName, partition: str | None
) -> None:
    location = drop_softly(world, partitioned, partition)
    store = ArrowFileSystem(pafs._MockFileSystem())
    for path in files(location):
        store.create_directory(f"bucket/t.v0000007/{path}".rpartition("/")[0])
        with store.write_atomically(f"bucket/t.v0000007/{path}") as stream:
            stream.write(b"{'dataFormat':\"dropped\"}")
    properties = format_properties({"location": "s3://bucket/t.v0000007"})
    world.change_queue(1, CQ_TBLPROPERTIES=properties)
    clean(world, lambda place: (store, place.removeprefix("s3://")))
    assert store.directories("bucket") == (frozenset() if partition is None else {"t.v0000007"})
    assert states(world) == [CompactionState.SUCCEEDED]


class ReadOnly(ArrowFileSystem):
    """A disk that refuses every deletion."""

    def delete_directory(self, path: str) -> None:
        raise StorageError(f"{path} cannot be deleted")


def test_an_error_of_the_file_system_is_tried_again_later(world: World, table: TableName) -> None:
    location = drop_softly(world, table)
    broken = ReadOnly(local_disk(location)._arrow)
    assert clean(world, lambda place: (broken, open_location(place)[1])).retried == 1
    assert re.search("cannot be deleted", message(world))
    world.change_queue(1, CQ_RETRY_RETENTION=0)
    clean(world)
    assert not location.exists()
