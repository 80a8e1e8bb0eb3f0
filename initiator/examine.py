"""A page of candidates, each looked at closely: gather the facts, let `initiator.decide` decide.

What cannot be looked at (a name that does not parse, a missing directory, a table property that is no number) is a
decision too: not initiated, with the error as the reason. Only a metastore that does not answer ends the cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from compactor.acid.directory import Snapshot, directory_state
from compactor.acid.planning import Depth
from compactor.acid.price import Price
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import ConfigError, FormatError, NoSuchObject, StorageError
from compactor.metastore.calibration import known_rates
from compactor.metastore.candidates import Candidate
from compactor.metastore.catalog import Table
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.history import CompactionFilter, show_compactions
from compactor.settings import Settings
from compactor.storage.filesystem import FilesystemOf
from initiator.choose import Opinions, choose
from initiator.decide import (
    AbortFacts,
    BreakerLimits,
    Decision,
    DidNotInitiate,
    Initiate,
    Measurements,
    ObjectFacts,
    PastCompaction,
    Skip,
    Thresholds,
    breaker,
    decide,
    decide_for_trino,
    decide_on_aborts,
    eligible,
    measure,
    thresholds,
)
from initiator.facts import Facts, facts_of

POOL_PROPERTY = "hive.compactor.worker.pool"

TYPES = {Depth.MINOR: CompactionType.MINOR, Depth.MAJOR: CompactionType.MAJOR}
_DONE = frozenset({CompactionState.READY_FOR_CLEANING, CompactionState.SUCCEEDED, CompactionState.REFUSED})

PricesOf = Callable[[Database, Table, str | None, Snapshot], Mapping[Depth, Price]]
"""Prices of the compactions that are worth doing on a table or partition, for a snapshot `for_compaction`."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """A candidate and what was decided.

    measured: None when the files were not looked at. pool, run_as: for the request.
    """

    candidate: Candidate
    decision: Decision
    measured: Measurements | None = None
    pool: str | None = None
    run_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """Examines candidates for one cycle. txns: the cycle's snapshot; now_ms: the database's clock at its start.

    prices_of: asked when prices decide, and only about what Hive's thresholds are exceeded by.
    """

    db: Database
    filesystem_of: FilesystemOf
    settings: Settings
    txns: ValidTxnList
    now_ms: int
    prices_of: PricesOf

    def examine(self, page: Sequence[Candidate], pool: Executor) -> Iterator[Examination]:
        """Decide about each of the candidates, several at a time, in their order; MetastoreError when the database fails."""
        facts = facts_of(self.db, page, self.txns, outcomes=self.settings.initiator.failed_compacts_threshold)
        return pool.map(partial(self._examine_one, facts), page)

    def _examine_one(self, facts: Facts, candidate: Candidate) -> Examination:
        try:
            return self._examine(facts, candidate)
        except NoSuchObject as error:
            return Examination(candidate=candidate, decision=Skip(reason=error.message))
        except (ConfigError, FormatError, StorageError) as error:
            return Examination(candidate=candidate, decision=DidNotInitiate(reason=str(error)))

    def _examine(self, facts: Facts, candidate: Candidate) -> Examination:
        """In the order of Hive's checks."""
        database = facts.database(candidate.table.database)
        if (candidate.table, candidate.partition) in facts.active:
            waiting = Skip(reason="a compaction is requested or running already")
            return Examination(candidate=candidate, decision=waiting)
        if broken := self._breaker(facts.past(candidate)):
            return Examination(candidate=candidate, decision=broken)
        table = facts.table(candidate.table)
        about = self._about(candidate, table, database.parameters)
        if forbidden := eligible(about, has_old_abort=candidate.has_old_abort):
            return Examination(candidate=candidate, decision=forbidden)
        location = facts.location(candidate)
        decision, measured = self._decide(candidate, table, location, facts.write_ids[table.name])
        return Examination(
            candidate=candidate,
            decision=decision,
            measured=measured,
            pool=table.parameters.get(POOL_PROPERTY) or database.parameters.get(POOL_PROPERTY) or None,
            run_as=self.settings.worker.run_as or table.owner,
        )

    def _breaker(self, past: Sequence[PastCompaction]) -> DidNotInitiate | None:
        limits = BreakerLimits(
            failures=self.settings.initiator.failed_compacts_threshold,
            retry_after_s=self.settings.initiator.failed_retry_time_s,
        )
        return breaker(past, limits, now_ms=self.now_ms)

    def _about(self, candidate: Candidate, table: Table, database_parameters: Mapping[str, str]) -> ObjectFacts:
        return ObjectFacts(
            database_parameters=database_parameters,
            table_parameters=table.parameters,
            transactional=table.is_transactional,
            insert_only=table.is_insert_only,
            dynamic_partitions=table.is_partitioned and candidate.partition is None,
            compact_insert_only=self.settings.initiator.compact_insert_only,
        )

    def _decide(
        self, candidate: Candidate, table: Table, location: str | None, write_ids: ValidWriteIdList
    ) -> tuple[Decision, Measurements | None]:
        limits = self.settings.initiator
        aborts = AbortFacts(
            too_many=candidate.too_many_aborts,
            has_old=candidate.has_old_abort,
            count_limit=limits.aborted_txn_threshold,
            age_limit_s=limits.aborted_txn_time_threshold_s,
        )
        if on_aborts := decide_on_aborts(aborts):
            return on_aborts, None
        if location is None:
            return Skip(reason="it has no files of its own"), None
        defaults = Thresholds(delta_num=limits.delta_num_threshold, delta_pct=limits.delta_pct_threshold)
        own = thresholds(defaults, table.parameters)
        filesystem, path = self.filesystem_of(location)
        listing = filesystem.listing(path)
        snapshot = Snapshot(txns=self.txns, write_ids=write_ids)
        state = directory_state(listing, snapshot, whole_ranges=True)
        measured = measure(state, listing)
        hive = decide(measured, own)
        trino = decide_for_trino(state, listing) if limits.trino_safe else None
        if trino is not None and self._was_done(candidate, trino.depth, write_ids.high_water):
            trino = None
        cost = self._choose(candidate, table, hive, measured, snapshot) if limits.choose == "cost" else None
        return Opinions(hive=hive, cost=cost, trino=trino).verdict(), measured

    def _choose(
        self, candidate: Candidate, table: Table, hive: Initiate | Skip, measured: Measurements, snapshot: Snapshot
    ) -> Initiate | Skip:
        if isinstance(hive, Skip):
            return hive
        prices = self.prices_of(self.db, table, candidate.partition, snapshot)
        scans = self.settings.initiator.expected_scans
        return choose(hive, prices, measured, known_rates(self.db), scans=scans)

    def _was_done(self, candidate: Candidate, depth: Depth, high_water: int) -> bool:
        """Such a compaction was published or refused and nothing was written since: another one would change nothing.

        A refusal that came before the worker's snapshot has no write id: such a table is never compacted.
        """
        filters = CompactionFilter(
            database=candidate.table.database,
            table=candidate.table.table,
            partition=candidate.partition,
            type=TYPES[depth],
        )
        return any(
            row.partition == candidate.partition
            and row.state in _DONE
            and (row.highest_write_id or high_water) >= high_water
            for row in show_compactions(self.db, filters=filters)
        )
