"""The worker's steps over Thrift, against a real metastore, cut off after each of their calls."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cleaner.service import Cleaner
from compactor.errors import CommitOutcomeUnknown, JobError
from compactor.jobs.engine import Engine
from compactor.metastore.catalog import TableName, get_table
from compactor.metastore.database import Database
from compactor.service.metrics import Metrics
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from compactor.storage.filesystem import open_location
from compactor.thrift.client import MetastoreClient
from compactor.thrift.metastore import ThriftMetastore
from compactor.worker import Outcome, Step, Worker, WorkerResult
from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.session import HiveSession, Shown
from tests.hive.lab.tables import Table, create
from tests.inline_each import inline
from tests.inline_rebalance import rebalance_inline
from tests.inline_runner import InlineJobRunner

ROWS = Counter([(i, f"v{i}") for i in (0, 2, 3, 5)])
PATH = (
    "find_next_compact2",
    "get_table_req",
    "get_partition_by_name",
    "open_txns",
    "lock",
    "get_open_txns",
    "get_valid_write_ids",
    "show_compact",
    "update_compactor_state",
    "show_compact",
    "set_hadoop_jobid",
    "show_compact",
    "commit_txn",
    "show_compact",
    "mark_compacted",
)
"""The calls of a compaction of a partition that goes well."""


class Killed(BaseException):
    """The process ends here: nothing of ours handles it."""


class Watched(MetastoreClient):
    """Tells the name and number of each call, before and after it is made."""

    def __init__(
        self,
        hive: Hive,
        *,
        before: Callable[[str, int], None] = lambda *_: None,
        after: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        super().__init__([f"thrift://127.0.0.1:{hive.metastore_port}"], timeout_s=60)
        self.made: list[str] = []
        self._before, self._after = before, after

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        self.made.append(method)
        number = len(self.made)
        self._before(method, number)
        answer = super().call(method, *arguments, **options)
        self._after(method, number)
        return answer


class Lab:
    """Workers over Thrift in this process, and the other roles on the metastore's database."""

    def __init__(self, hive: Hive) -> None:
        self.hive = hive
        self._clients: list[MetastoreClient] = []
        self.db = Database.connect(hive.database_url)

    def client(self, **watching: Callable[[str, int], None]) -> Watched:
        self._clients.append(client := Watched(self.hive, **watching))
        return client

    def worker(
        self,
        client: MetastoreClient | None = None,
        *,
        at_step: Callable[[Step], None] = lambda _: None,
        stop: StopRequest | None = None,
        settings: Settings | None = None,
    ) -> Worker:
        return Worker(
            metastore=ThriftMetastore(client or self.client(), heartbeat_timeout_s=30),
            engine=Engine(
                runner=InlineJobRunner(), rebalance=rebalance_inline, each=lambda *_: inline, cores=lambda: 1
            ),
            settings=settings or Settings(),
            metrics=Metrics(version="0"),
            host="lab",
            version="0",
            stop=stop or StopRequest(),
            at_step=at_step,
        )

    def clean(self) -> None:
        cleaner = Cleaner(
            db=self.db, filesystem_of=open_location, settings=Settings(), metrics=Metrics(version="0"), host="lab"
        )
        while cleaner.run_once().did_anything:
            pass

    def lose_workers(self) -> None:
        """What Hive does about dead workers: their transactions time out, their rows are given back (w→i)."""
        with self.hive.metastore_rows() as conn:
            open_ones = 'SELECT "TXN_ID" FROM "TXNS" WHERE "TXN_STATE" = \'o\' AND "TXN_HOST" = \'lab\''
            txns = [int(str(row[0])) for row in conn.execute(open_ones).fetchall()]
            conn.execute(
                'UPDATE "COMPACTION_QUEUE" SET "CQ_WORKER_ID" = NULL, "CQ_START" = NULL, "CQ_STATE" = \'i\' '
                "WHERE \"CQ_STATE\" = 'w'"
            )
        for txn in txns:
            ThriftMetastore(self.client(), heartbeat_timeout_s=30).abort(txn, reason="timed out")

    def close(self) -> None:
        self.db.dispose()
        for client in self._clients:
            client.close()


@pytest.fixture
def lab(hive: Hive) -> Iterator[Lab]:
    hive.playing(Roles())
    with hive.metastore_rows() as conn:
        # A worker takes what comes first, and not what another test asked for and left.
        conn.execute("DELETE FROM \"COMPACTION_QUEUE\" WHERE \"CQ_STATE\" IN ('i', 'w')")
    lab = Lab(hive)
    yield lab
    lab.close()


@pytest.fixture(autouse=True)
def no_other_worker(compactor: Any) -> None:
    compactor.playing(())


def filled(hive: Hive, sql: HiveSession, name: str, *, properties: str = "", clause: str = "") -> Table:
    """A table of two inserts and a delete, which leave ROWS."""
    table = create(hive, sql, name, properties=properties, clause=clause)
    for first in (0, 3):
        sql(f"INSERT INTO {table.full_name} VALUES " + ", ".join(f"({i}, 'v{i}')" for i in range(first, first + 3)))
    sql(f"DELETE FROM {table.full_name} WHERE id % 3 = 1")
    return table


def ask(sql: HiveSession, table: Table, kind: str = "major", more: str = "") -> Shown:
    sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}' {more}")
    return table.last(sql)


def at(step: Step, deed: Callable[[], object]) -> Callable[[Step], None]:
    def look(reached: Step) -> None:
        if reached is step:
            deed()

    return look


def test_a_compaction_makes_these_calls_and_is_shown_while_it_runs(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "calls")
    ask(sql, table)
    shown: list[Shown] = []
    client = lab.client()
    worker = lab.worker(client, at_step=at(Step.WRITTEN, lambda: shown.append(table.last(sql))))
    assert worker.run_once().outcome is Outcome.PUBLISHED
    [working] = shown
    assert (working.state, working.worker_host, working.job) == ("working", "lab", "inline")
    assert client.made == [call for call in PATH if call != "get_partition_by_name"]
    assert table.rows(sql) == ROWS


class Points:
    """A partitioned table with a partition for each call after which a worker dies."""

    def __init__(self, hive: Hive, sql: HiveSession) -> None:
        self.sql = sql
        self.names = [f"{number}-{call}" for number, call in enumerate(PATH, start=1)]
        self.table = create(hive, sql, "crashes", clause="PARTITIONED BY (p string)")
        places = f"(SELECT explode(array({', '.join(repr(n) for n in self.names)})) AS p) places"
        for first in (0, 3):
            values = ", ".join(f"struct({i}, 'v{i}')" for i in range(first, first + 3))
            rows = f"(SELECT inline(array({values})) AS (id, v)) new_rows"
            sql(f"INSERT INTO {self.table.full_name} PARTITION (p) SELECT id, v, p FROM {rows} CROSS JOIN {places}")
        sql(f"DELETE FROM {self.table.full_name} WHERE id % 3 = 1")

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        return Counter(self.sql(f"SELECT id, v FROM {self.table.full_name} WHERE p = '{name}'"))

    def entries(self, name: str) -> list[str]:
        return sorted(p.name for p in (self.table.folder / f"p={name}").iterdir() if not p.name.startswith("_"))

    def last(self, name: str) -> Shown:
        return [s for s in self.sql.compactions(self.table.full_name) if s.partition == f"p={name}"][-1]


def test_a_worker_that_dies_after_any_call_loses_and_doubles_nothing(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    points = Points(hive, sql)
    for number, name in enumerate(points.names, start=1):

        def die(_: str, made: int, last: int = number) -> None:
            if made == last:
                raise Killed

        sql(f"ALTER TABLE {points.table.full_name} PARTITION (p='{name}') COMPACT 'major'")
        client = lab.client(after=die)
        with pytest.raises(Killed):
            lab.worker(client).run_once()
        assert client.made == list(PATH[:number])
        assert points.rows(name) == ROWS, name
        lab.clean()
        assert points.rows(name) == ROWS, name
        lab.lose_workers()
        lab.worker().run_once()
        assert points.rows(name) == ROWS, name
        lab.clean()
        assert points.rows(name) == ROWS, name
        assert points.last(name).state == "succeeded", name
        (entry,) = points.entries(name)
        assert entry.startswith("base_0000003_v"), name


def test_a_commit_whose_answer_is_lost_is_published_once(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "lost_answer")
    ask(sql, table)

    def lose(method: str, _: int) -> None:
        if method == "commit_txn":
            raise CommitOutcomeUnknown("the connection is gone")

    client = lab.client(after=lose)
    assert lab.worker(client).run_once().outcome is Outcome.PUBLISHED
    assert client.made.count("commit_txn") == 1
    assert (table.last(sql).state, table.rows(sql)) == ("ready for cleaning", ROWS)


@pytest.mark.parametrize("call", ["commit_txn", "mark_compacted"])
def test_a_call_that_never_arrived_is_made_again(hive: Hive, sql: HiveSession, lab: Lab, call: str) -> None:
    table = filled(hive, sql, f"lost_{call}")
    ask(sql, table)
    lost: list[int] = []

    def lose(method: str, number: int) -> None:
        if method == call and len(lost) < 2:
            lost.append(number)
            raise CommitOutcomeUnknown("the connection is gone")

    assert lab.worker(lab.client(before=lose)).run_once().outcome is Outcome.PUBLISHED
    assert (len(lost), table.last(sql).state, table.rows(sql)) == (2, "ready for cleaning", ROWS)


def test_a_mark_whose_answer_is_lost_is_not_made_twice(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "lost_mark")
    ask(sql, table)

    def lose(method: str, _: int) -> None:
        if method == "mark_compacted":
            lab.clean()
            raise CommitOutcomeUnknown("the connection is gone")

    client = lab.client(after=lose)
    assert lab.worker(client).run_once().outcome is Outcome.PUBLISHED
    assert client.made.count("mark_compacted") == 1
    assert (table.last(sql).state, table.rows(sql)) == ("succeeded", ROWS)


@pytest.mark.parametrize("step", [Step.TRANSACTION_OPENED, Step.VERIFIED])
def test_an_aborted_transaction_fences_the_worker_and_the_request_is_made_again(
    hive: Hive, sql: HiveSession, lab: Lab, step: Step
) -> None:
    table = filled(hive, sql, f"aborted_{step.name.lower()}")
    first = ask(sql, table)

    def abort() -> None:
        with hive.metastore_rows() as conn:
            rows = conn.execute('SELECT "TXN_ID" FROM "TXNS" WHERE "TXN_STATE" = \'o\' AND "TXN_HOST" = \'lab\'')
            [(txn,)] = rows.fetchall()
        sql(f"ABORT TRANSACTIONS {txn}")

    result = lab.worker(at_step=at(step, abort)).run_once()
    assert result.outcome is Outcome.FENCED
    assert table.rows(sql) == ROWS
    given_back, again = sql.compactions(table.full_name)
    assert (given_back.id, given_back.state, again.state) == (first.id, "refused", "initiated")
    assert "requested again" in str(given_back.error)
    assert lab.worker().run_once().outcome is Outcome.PUBLISHED
    lab.clean()
    assert table.rows(sql) == ROWS
    assert [e for e in table.entries() if e.startswith("base_")] == table.entries()


def test_a_claim_that_hive_gave_to_another_worker_is_not_published(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "revoked")
    ask(sql, table)
    others: list[WorkerResult] = []

    def revoke() -> None:
        with hive.metastore_rows() as conn:
            conn.execute(
                'UPDATE "COMPACTION_QUEUE" SET "CQ_WORKER_ID" = NULL, "CQ_START" = NULL, "CQ_STATE" = \'i\' '
                "WHERE \"CQ_STATE\" = 'w'"
            )
        others.append(lab.worker().run_once())

    result = lab.worker(at_step=at(Step.VERIFIED, revoke)).run_once()
    assert (result.outcome, others[0].outcome) == (Outcome.FENCED, Outcome.PUBLISHED)
    assert table.rows(sql) == ROWS
    [only] = sql.compactions(table.full_name)
    assert only.state == "ready for cleaning"
    lab.clean()
    assert (table.rows(sql), len(table.entries())) == (ROWS, 1)


def test_an_interrupted_worker_gives_its_claim_back_with_everything_that_was_asked_for(
    hive: Hive, sql: HiveSession, lab: Lab
) -> None:
    table = filled(hive, sql, "interrupted")
    sql(f"ALTER TABLE {table.full_name} COMPACT 'major' POOL 'night' WITH OVERWRITE TBLPROPERTIES ('a.b'='c')")
    stop = StopRequest()

    def interrupt() -> None:
        stop.interrupting.set()
        raise JobError("cancelled")

    settings = Settings.model_validate({"worker": {"pools": "day,night"}})
    worker = lab.worker(at_step=at(Step.WRITTEN, interrupt), stop=stop, settings=settings)
    assert worker.run_once().outcome is Outcome.RELEASED
    given_back, again = sql.compactions(table.full_name)
    assert (given_back.state, again.state, again.pool) == ("refused", "initiated", "night")
    assert (again.initiator, again.initiator_host) == (given_back.initiator, given_back.initiator_host)
    with hive.metastore_rows() as conn:
        query = 'SELECT "CQ_TBLPROPERTIES" FROM "COMPACTION_QUEUE" WHERE "CQ_ID" = %s'
        row = conn.execute(query, (again.id,)).fetchone()
    assert row == ("1:3:a.b1:c",)
    sql(f"ABORT COMPACTIONS {again.id}")


def test_what_cannot_be_read_fails_with_a_sentence_and_leaves_the_table(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "broken")
    ask(sql, table)
    (bucket,) = table.folder.glob("delta_0000002_*/bucket_*")
    whole = bucket.read_bytes()
    bucket.write_bytes(whole[:-20])
    result = lab.worker().run_once()
    bucket.write_bytes(whole)
    assert result.outcome is Outcome.FAILED
    shown = table.last(sql)
    assert shown.state == "failed"
    assert bucket.name in str(shown.error)
    assert table.rows(sql) == ROWS


def test_nothing_to_gain_is_refused_and_old_directories_are_left_to_the_cleaner(
    hive: Hive, sql: HiveSession, lab: Lab
) -> None:
    table = filled(hive, sql, "twice")
    ask(sql, table)
    lab.worker().run_once()
    with hive.metastore_rows() as conn:
        # A second request while the first waits for its cleaner is refused by Hive itself.
        conn.execute('UPDATE "COMPACTION_QUEUE" SET "CQ_STATE" = \'i\' WHERE "CQ_TABLE" = %s', (table.name,))
    assert lab.worker().run_once().outcome is Outcome.LEFT_TO_CLEANER
    assert table.last(sql).state == "ready for cleaning"
    lab.clean()
    ask(sql, table)
    assert lab.worker().run_once().outcome is Outcome.REFUSED
    assert table.last(sql).state == "refused"
    assert (table.rows(sql), len(table.entries())) == (ROWS, 1)


def test_a_rebalance_that_an_update_overtook_is_not_published(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = filled(hive, sql, "overtaken")
    with hive.metastore_rows() as conn:
        ask(sql, table, "rebalance", "CLUSTERED INTO 2 BUCKETS")

        def overtake() -> None:
            # Hive's own update would wait for the lock; one that has it already would not.
            conn.execute('DELETE FROM "HIVE_LOCKS" WHERE "HL_TABLE" = %s', (table.name,))
            sql(f"UPDATE {table.full_name} SET v = 'new' WHERE id = 0")

        result = lab.worker(at_step=at(Step.WRITTEN, overtake)).run_once()
    assert (result.outcome, result.error) == (Outcome.FAILED, "WriteConflict")
    assert table.last(sql).state == "failed"
    updated = ROWS - Counter([(0, "v0")]) + Counter([(0, "new")])
    assert table.rows(sql) == updated
    ask(sql, table, "rebalance", "CLUSTERED INTO 2 BUCKETS")
    assert lab.worker().run_once().outcome is Outcome.PUBLISHED
    assert table.rows(sql) == updated
    lab.clean()
    assert table.rows(sql) == updated


def test_partitions_with_odd_values_are_found(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    odd = ["a/b=c", "50% of ü", "x'y", " "]
    table = create(hive, sql, "odd_by_thrift", clause="PARTITIONED BY (p string)")
    quoted = ["'" + value.replace("'", "\\'") + "'" for value in odd]
    for i in range(2):
        sql(f"INSERT INTO {table.full_name} PARTITION (p) VALUES " + ", ".join(f"({i}, 'a', {v})" for v in quoted))
    rows = table.rows(sql)
    for value in quoted:
        sql(f"ALTER TABLE {table.full_name} PARTITION (p={value}) COMPACT 'major'")
        assert lab.worker().run_once().outcome is Outcome.PUBLISHED, value
    assert table.rows(sql) == rows
    lab.clean()
    assert table.rows(sql) == rows


def test_insert_only_tables_are_shown_to_us_as_they_are(hive: Hive, sql: HiveSession, lab: Lab) -> None:
    table = create(hive, sql, "inserts", properties="'transactional_properties'='insert_only'")
    for i in range(3):
        sql(f"INSERT INTO {table.full_name} VALUES ({i}, 'v')")
    rows = table.rows(sql)
    found = ThriftMetastore(lab.client(), heartbeat_timeout_s=30).table(TableName.parse(table.full_name))
    assert found.is_insert_only
    assert found == dataclasses.replace(get_table(lab.db, found.name), parameters=found.parameters)
    assert table.rows(sql) == rows
