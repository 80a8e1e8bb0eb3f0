from __future__ import annotations

from compactor.acid.rates import DEFAULTS, JobCost
from compactor.metastore.calibration import KEPT_JOBS, job_costs, known_rates, record_cost
from compactor.metastore.database import Database
from compactor.metastore.schema import COMPACTOR_JOB_COST


def copied(megabytes: int, seconds: float) -> JobCost:
    return JobCost(bytes_copied=megabytes * 1_000_000, bytes_encoded=0, tasks=1, cores=2, seconds=seconds)


def test_a_recorded_job_comes_back_as_it_was(db: Database) -> None:
    cost = JobCost(bytes_copied=5 << 40, bytes_encoded=7, tasks=300, cores=64, seconds=1234.567)
    assert record_cost(db, cost)
    assert job_costs(db) == [cost]


def test_the_newest_jobs_come_first_and_the_oldest_are_forgotten(db: Database) -> None:
    for number in range(1, KEPT_JOBS + 4):
        record_cost(db, copied(number, 1))
    kept = [cost.bytes_copied // 1_000_000 for cost in job_costs(db)]
    assert kept == list(range(KEPT_JOBS + 3, 3, -1))


def test_without_jobs_the_rates_are_the_defaults(db: Database) -> None:
    assert known_rates(db) == DEFAULTS


def test_slow_jobs_make_slow_predictions(db: Database) -> None:
    for seconds in (9.0, 10.0, 11.0):
        record_cost(db, copied(1000, seconds))
    rates = known_rates(db)
    assert rates.jobs == 3
    assert 100e6 < rates.copy < 250e6
    assert rates.encode == DEFAULTS.encode


def test_in_a_database_without_our_table_nothing_is_recorded_and_the_defaults_hold(db: Database) -> None:
    with db.write() as conn:
        COMPACTOR_JOB_COST.drop(conn)
    before = db.table_names()
    assert not record_cost(db, copied(1000, 10))
    assert job_costs(db) == []
    assert known_rates(db) == DEFAULTS
    assert db.table_names() == before
