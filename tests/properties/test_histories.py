"""Random histories of one table against a model: writers, readers, compactions, crashes and cleaning in any order.

The model is a dictionary of rows and, for each open reader, the dictionary it began with. It knows nothing of
compaction: whatever the roles do, no reader's rows may change (I1), none is lost, doubled or comes back (I2), and no
two committed outputs have one range (I3).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor.acid.layout import parse_directory
from compactor.metastore import txns
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.settings import CleanerSettings, InitiatorSettings, Settings
from compactor.table.reader import TableSnapshot
from compactor.worker import Outcome, Step
from tests.simulation.world import Rows, World, arrow, rows_of

CI = bool(os.environ.get("CI"))
SETTINGS = Settings(
    initiator=InitiatorSettings(delta_num_threshold=2, delta_pct_threshold=0.5, aborted_txn_threshold=1),
    cleaner=CleanerSettings(retry_retention_s=0),
)
KEYS = st.integers(min_value=0, max_value=30)
SOME_KEYS = st.sets(KEYS, min_size=1, max_size=6)
DEPTHS = st.sampled_from([CompactionType.MINOR, CompactionType.MAJOR])


class Died(BaseException):
    """The worker's process is gone: nothing catches this, as nothing catches SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class OpenReader:
    """A reader and the rows that were there when it began."""

    context: AbstractContextManager[TableSnapshot]
    snapshot: TableSnapshot
    rows: Rows


class Histories(RuleBasedStateMachine):
    """One table in two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories"))
        self.world = World.create(self.root, SETTINGS)
        self.model: Rows = {}
        self.readers: list[OpenReader] = []
        self.versions = itertools.count()

    @initialize(buckets=st.sampled_from([0, 2]))
    def create(self, buckets: int) -> None:
        self.world.create_table(buckets=buckets)

    @rule(keys=SOME_KEYS)
    def insert(self, keys: set[int]) -> None:
        rows = self._fresh(keys - self.model.keys())
        self.world.insert(rows)
        self.model = self.model | rows

    @rule(keys=SOME_KEYS)
    def update(self, keys: set[int]) -> None:
        version = f"updated {next(self.versions)}"
        self.world.writer().update(pc.field("id").isin(sorted(keys)), {"item": version})
        self.model = {key: version if key in keys else item for key, item in self.model.items()}

    @rule(keys=SOME_KEYS)
    def delete(self, keys: set[int]) -> None:
        self.world.delete(*sorted(keys))
        self.model = {key: item for key, item in self.model.items() if key not in keys}

    @rule(keys=SOME_KEYS)
    def replace_in_one_transaction(self, keys: set[int]) -> None:
        rows = self._fresh(keys)
        with self.world.writer().transaction() as txn:
            txn.delete(pc.field("id").isin(sorted(keys)))
            txn.insert(arrow(rows))
        self.model = self.model | rows

    @rule(keys=SOME_KEYS)
    def abort_a_write(self, keys: set[int]) -> None:
        self.world.insert_and_abort(self._fresh(keys))

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def open_reader(self) -> None:
        context = self.world.reader()
        self.readers.append(OpenReader(context=context, snapshot=context.__enter__(), rows=self.model))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close_reader(self, data: st.DataObject) -> None:
        reader = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        reader.context.__exit__(None, None, None)

    @rule(kind=DEPTHS)
    def request(self, kind: CompactionType) -> None:
        self.world.request(kind)

    @rule()
    def initiate(self) -> None:
        assert not self.world.initiate().not_initiated

    @rule()
    def work(self) -> None:
        result = self.world.worker().run_once()
        assert result.outcome not in {Outcome.FAILED, Outcome.FENCED, Outcome.RELEASED}, result.describe()

    @rule(kind=DEPTHS)
    def compact(self, kind: CompactionType) -> None:
        self.world.request(kind)
        self.work()

    @rule(kind=DEPTHS, step=st.sampled_from([*Step]))
    def die_while_compacting(self, kind: CompactionType, step: Step) -> None:
        self.world.request(kind)

        def die(done: Step) -> None:
            if done is step:
                raise Died

        try:
            self.world.worker(at_step=die).run_once()
        except Died:
            self.world.silence(self.world.open_compaction_txns())

    @rule()
    def recover(self) -> None:
        late = SETTINGS.model_copy(update={"worker": SETTINGS.worker.model_copy(update={"timeout_s": 1e-9})})
        World(root=self.root, db=self.world.db, settings=late, metrics=self.world.metrics).keep_house()

    @rule()
    def keep_house(self) -> None:
        self.world.keep_house()

    @rule()
    def clean(self) -> None:
        result = self.world.clean()
        assert not result.failed
        assert not result.errors

    @invariant()
    def newest_snapshot_holds_the_rows_of_the_model(self) -> None:
        if self._created():
            assert self.world.rows() == self.model

    @invariant()
    def open_readers_see_what_they_saw(self) -> None:
        for reader in self.readers:
            assert rows_of(reader.snapshot) == reader.rows

    @invariant()
    def committed_outputs_have_ranges_of_their_own(self) -> None:
        ranges = [
            entry.name.partition("_v")[0]
            for entry in map(parse_directory, self.world.entries())
            if entry is not None
            and entry.visibility_txn
            and txns.transaction_state(self.world.db, entry.visibility_txn) in {txns.TxnState.COMMITTED, None}
        ]
        assert len(ranges) == len(set(ranges)), f"two outputs with one range: {ranges}"

    def teardown(self) -> None:
        try:
            if self._created():
                self._end_in_order()
        finally:
            self.world.db.dispose()
            shutil.rmtree(self.root)

    def _end_in_order(self) -> None:
        """Without readers and crashes everything comes to rest, and nothing is left that nobody needs."""
        while self.readers:
            self.readers.pop().context.__exit__(None, None, None)
        self.recover()
        self._work_until_idle()
        self.world.request(CompactionType.MAJOR)
        self._work_until_idle()
        ended = {CompactionState.SUCCEEDED, CompactionState.REFUSED}
        assert set(self.world.states()) <= ended
        assert len(self.world.entries()) <= 1, self.world.entries()

    def _work_until_idle(self) -> None:
        while self.world.worker().run_once().did_anything or self.world.clean().did_anything:
            assert self.world.rows() == self.model

    def _created(self) -> bool:
        return self.world.location().exists()

    def _fresh(self, keys: set[int]) -> Rows:
        version = next(self.versions)
        return {key: f"{key} of {version}" for key in sorted(keys)}


TestHistories: Any = Histories.TestCase
# Every step is a dozen database transactions: shrinking would take longer than reading the unshrunk history.
TestHistories.settings = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    max_examples=60 if CI else 10,
    stateful_step_count=30 if CI else 15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
