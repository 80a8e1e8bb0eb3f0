"""What jobs cost on this installation, remembered in a table of our own, so that predictions fit its machines.

COMPACTOR_JOB_COST exists only in databases that `init_db` made. Beside a schema that is not ours nothing is recorded,
and predictions are made at the default rates.
"""

from __future__ import annotations

import sqlalchemy as sa

from compactor.acid.rates import DEFAULTS, JobCost, Rates, fit
from compactor.metastore.database import Database, retried
from compactor.metastore.schema import COMPACTOR_JOB_COST

KEPT_JOBS = 200
"""Newest jobs that are remembered: enough for three numbers, few enough that new hardware soon shows."""


@retried
def record_cost(db: Database, cost: JobCost) -> bool:
    """Remember what a finished job did and took, and forget the oldest beyond `KEPT_JOBS`; whether there is a table."""
    if not _has_table(db):
        return False
    jobs = COMPACTOR_JOB_COST
    with db.write() as conn:
        conn.execute(
            sa.insert(jobs).values(
                JC_RECORDED_AT=db.now(conn),
                JC_BYTES_COPIED=cost.bytes_copied,
                JC_BYTES_ENCODED=cost.bytes_encoded,
                JC_TASKS=cost.tasks,
                JC_CORES=cost.cores,
                JC_MILLIS=max(round(cost.seconds * 1000), 1),
            )
        )
        oldest = conn.scalar(sa.select(jobs.c.JC_ID).order_by(jobs.c.JC_ID.desc()).offset(KEPT_JOBS).limit(1))
        if oldest is not None:
            conn.execute(sa.delete(jobs).where(jobs.c.JC_ID <= oldest))
    return True


@retried
def job_costs(db: Database) -> list[JobCost]:
    """The remembered jobs, newest first; none where there is no table."""
    if not _has_table(db):
        return []
    with db.read() as conn:
        rows = conn.execute(sa.select(COMPACTOR_JOB_COST).order_by(COMPACTOR_JOB_COST.c.JC_ID.desc())).all()
    return [
        JobCost(
            bytes_copied=row.JC_BYTES_COPIED,
            bytes_encoded=row.JC_BYTES_ENCODED,
            tasks=row.JC_TASKS,
            cores=row.JC_CORES,
            seconds=row.JC_MILLIS / 1000,
        )
        for row in rows
    ]


def known_rates(db: Database) -> Rates:
    """The rates of this installation, fitted to its last jobs; the defaults while there are none."""
    costs = job_costs(db)
    return fit(costs) if costs else DEFAULTS


def _has_table(db: Database) -> bool:
    return COMPACTOR_JOB_COST.name in db.table_names()
