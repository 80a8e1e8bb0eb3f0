"""From published output to the metastore, as the settings ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from compactor.acid.column_statistics import Change
from compactor.acid.directory import Snapshot
from compactor.acid.planning import CompactionPlan, Depth
from compactor.jobs.planner import plan, survey
from compactor.jobs.stretches import Each
from compactor.metastore import queue, snapshots, txns, writeids
from compactor.metastore.catalog import Column, TableName, get_table
from compactor.metastore.catalog_schema import TAB_COL_STATS
from compactor.metastore.catalog_write import create_table
from compactor.metastore.compaction import CompactionRequest, CompactionType
from compactor.metastore.database import Database
from compactor.orc.rewrite import ItemResult
from compactor.service.table_statistics import update_statistics
from compactor.service.targets import compaction_target
from compactor.settings import WorkerSettings
from tests.inline_each import inline
from tests.jobs.compacted import direct_results
from tests.orc.acid_files import insert, write_events

T = TableName(database="default", table="t")


def nowhere() -> Each:
    raise AssertionError("nobody asked for distinct values")


class Published:
    """A table of four rows, written in two transactions, after a major compaction."""

    def __init__(self, db: Database, location: Path) -> None:
        self.db = db
        columns = (Column(name="id", type="int"), Column(name="v", type="string"))
        parameters = {"transactional": "true"}
        self.table = create_table(db, T, columns=columns, parameters=parameters, location=f"file:{location}")
        for rows in ([(3, "a"), (5, None)], [(4, "bb"), (3, "a")]):
            (txn,) = txns.open_transactions(db, kind=txns.TxnType.DEFAULT, user="u", host="h")
            write_id = writeids.allocate_write_ids(db, [txn], T)[txn]
            folder = location / f"delta_{write_id:07d}_{write_id:07d}_0000"
            write_events(folder / "bucket_00000", [insert(write_id, i, row) for i, row in enumerate(rows)])
            txns.commit_transaction(db, txn)
        request = CompactionRequest(table=T, type=CompactionType.MAJOR, initiator_id="i", initiator_version="1")
        queue.request_compaction(db, request)
        claim = queue.claim(db, worker_id="w-1.abcdefgh", worker_version="1")
        assert claim is not None
        self.claim = claim
        (txn,) = txns.open_transactions(db, kind=txns.TxnType.COMPACTION, user="u", host="h")
        valid = snapshots.valid_txn_list_for_compactor(db, txn)
        ids = writeids.valid_write_ids(db, T, valid).for_compaction()
        snapshot = Snapshot(txns=valid, write_ids=ids)
        queue.record_snapshot(db, claim, txn_id=txn, highest_write_id=ids.high_water)
        self.target = compaction_target(db, self.table, None)
        self.surveyed = survey(self.target, snapshot)
        made = plan(self.target, self.surveyed, snapshot, Depth.MAJOR, txn_id=txn)
        assert isinstance(made, CompactionPlan)
        self.plan = made
        self.results: list[ItemResult] = direct_results(made)
        queue.publish(db, claim, txn)

    def update(self, settings: WorkerSettings, each: Each | None = None) -> Change | None:
        return update_statistics(
            self.db,
            settings,
            nowhere if each is None else lambda: each,
            compaction=self.claim,
            target=self.target,
            surveyed=self.surveyed,
            plan=self.plan,
            results=self.results,
        )

    def columns(self) -> dict[str, tuple[int, int, int, int]]:
        told = ("LONG_LOW_VALUE", "LONG_HIGH_VALUE", "NUM_NULLS", "NUM_DISTINCTS")
        with self.db.read() as conn:
            found = conn.execute(sa.select(TAB_COL_STATS)).mappings()
            return {row["COLUMN_NAME"]: tuple(row[key] for key in told) for row in found}


@pytest.fixture
def published(db: Database, tmp_path: Path) -> Published:
    return Published(db, tmp_path / "w" / "t")


def test_by_default_a_table_without_column_statistics_gets_none(published: Published) -> None:
    assert published.update(WorkerSettings()) is Change.MADE_ACCURATE
    parameters = get_table(published.db, T).parameters
    assert (parameters["numRows"], parameters["numFiles"]) == ("4", "1")
    assert parameters["COLUMN_STATS_ACCURATE"] == '{"BASIC_STATS":"true"}'
    assert published.columns() == {}


def test_column_statistics_that_are_there_are_refreshed_and_their_distinct_values_kept(published: Published) -> None:
    published.update(WorkerSettings(column_statistics="distinct"), inline)
    with published.db.write() as conn:
        conn.execute(TAB_COL_STATS.update().values(LONG_LOW_VALUE=-9, NUM_NULLS=7, NUM_DISTINCTS=8))
    published.update(WorkerSettings())
    assert published.columns() == {"id": (3, 5, 0, 8), "v": (-9, None, 1, 8)}


def test_distinct_values_of_every_column_are_counted_when_asked_for(published: Published) -> None:
    published.update(WorkerSettings(column_statistics="distinct"), inline)
    assert published.columns() == {"id": (3, 5, 0, 3), "v": (None, None, 1, 2)}
    flags = get_table(published.db, T).parameters["COLUMN_STATS_ACCURATE"]
    assert flags == '{"BASIC_STATS":"true","COLUMN_STATS":{"id":"true"}}'


def test_column_statistics_may_be_left_alone_altogether(published: Published) -> None:
    published.update(WorkerSettings(column_statistics="distinct"), inline)
    with published.db.write() as conn:
        conn.execute(TAB_COL_STATS.update().values(NUM_NULLS=7))
    published.update(WorkerSettings(column_statistics="off"))
    assert {row[2] for row in published.columns().values()} == {7}


def test_nothing_is_touched_when_statistics_are_off(published: Published) -> None:
    before = get_table(published.db, T).parameters
    assert published.update(WorkerSettings(gather_stats=False)) is None
    assert get_table(published.db, T).parameters == before
