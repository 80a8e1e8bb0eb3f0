"""Every full ACID table that a real Hive wrote, rebalanced: the rows stay those that Hive itself returned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactor.acid.directory import Snapshot
from compactor.acid.layout import decode_bucket
from compactor.acid.rebalance import RebalancePlan, shares
from compactor.jobs.planner import survey
from compactor.jobs.rebalance import plan_rebalance, verify_rebalance
from compactor.jobs.spark_wish import NO_WISH
from tests.fixtures.hive_tables import EXPECTED, HiveTable, all_txns, hive_table, unpack
from tests.format.test_hive_fixtures import row_ids, target
from tests.inline_rebalance import rebalance_inline
from tests.table.test_hive_fixtures_read import by_text, expected_rows, read_batches, rows_of

_TABLES = sorted(n for n, e in EXPECTED.items() if e["row_ids"] is not None and n != "acid_bucketed")


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("hive"))


def rebalanced(fixture: HiveTable, buckets: int | None) -> list[RebalancePlan]:
    """Rebalance every folder without Spark; the plans that were carried out."""
    snapshot = Snapshot(txns=all_txns(), write_ids=fixture.write_ids.for_compaction())
    plans: list[RebalancePlan] = []
    for folder in fixture.folders():
        place = target(fixture, folder)
        made = plan_rebalance(place, survey(place, snapshot), snapshot, buckets=buckets, order_by=None, txn_id=9001)
        assert isinstance(made, RebalancePlan)
        results = rebalance_inline(
            made, group="g", description="d", wish=NO_WISH, step=lambda: None, progress=lambda *_: None
        )
        verify_rebalance(made, results)
        plans.append(made)
    return plans


@pytest.mark.parametrize("buckets", [None, 3])
@pytest.mark.parametrize("name", _TABLES)
def test_a_rebalanced_table_of_hive_holds_the_rows_that_hive_returned(
    warehouse: Path, tmp_path: Path, name: str, buckets: int | None
) -> None:
    origin, fixture = hive_table(name, warehouse), hive_table(name, tmp_path)
    shutil.copytree(origin.location, fixture.location)
    before = row_ids(fixture)
    plans = rebalanced(fixture, buckets)
    assert by_text([r for batch in read_batches(fixture) for r in rows_of(batch)]) == by_text(expected_rows(fixture))
    after = row_ids(fixture)
    assert sorted(w for w, *_ in after) == sorted(w for w, *_ in before), "every row keeps its write id"
    if len(plans) == 1:
        numbers = sorted((row_id, decode_bucket(bucket)) for _, bucket, row_id, *_ in after)
        places = enumerate(shares(len(after), plans[0].buckets))
        assert numbers == [(n, b) for b, (first, stop) in places for n in range(first, stop)]
