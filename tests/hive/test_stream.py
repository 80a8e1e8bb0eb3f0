"""Hive writes and reads without pause while we compact and clean all the time, and our processes die at random.

`STREAM_S=600 make test-hive` streams for so many seconds.

Two tables, because Hive 4.0.1 cannot read one into which a statement inserts directly, its default: its readers take the
statement's manifests (`-tmp.delta_…/000000_0.manifest`) for original files. One is written so, and not read meanwhile;
the other is written without direct inserts, and Hive reads it all the time.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from impala.error import OperationalError

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import VECTORISED, HiveSession, Row
from tests.hive.lab.tables import Table, create

SECONDS = float(os.environ.get("STREAM_S", "125"))
LONGEST_S = SECONDS + 600
"""A busy machine gets so long to do at least this much:"""
STATEMENTS = 15
COMPACTIONS = 2
DONE = {"ready for cleaning", "succeeded"}
OUR_ROLES = ("initiator", "worker", "cleaner", "housekeeper")
KILLS = [
    ("worker", "published"),
    ("cleaner", '"running"'),
    ("worker", "compaction claimed"),
    ("initiator", '"running"'),
    ("worker", "published"),
    ("housekeeper", '"running"'),
]
"""Who dies next, and what it writes into its log once it is worth killing."""
IDS = 60


@dataclass
class Stream:
    """What a table of one writer holds: every version of it, in the order of the statements.

    The rows that a query returns must be those of one moment between its beginning and its end.
    """

    table: Table
    direct: bool
    """Whether Hive inserts directly."""
    compactions: int = 0
    versions: list[Counter[Row]] = field(default_factory=lambda: [Counter()])
    begun: int = 0
    """Version that the running statement leads to, or the last one that is complete."""

    def write(self, sql: HiveSession, statement: str, after: dict[int, str]) -> None:
        self.versions.append(Counter(after.items()))
        self.begun += 1
        sql(statement)

    def read(self, sql: HiveSession) -> None:
        oldest = self.complete
        found = self.table.rows(sql)
        newest = self.begun
        assert found in self.versions[oldest : newest + 1], f"no state of {self.table.name} from {oldest} to {newest}"

    complete: int = 0

    @property
    def is_enough(self) -> bool:
        return self.complete >= STATEMENTS and self.compactions >= COMPACTIONS


class Story:
    """How long it goes on."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams
        self._start = time.monotonic()

    @property
    def goes_on(self) -> bool:
        seconds = time.monotonic() - self._start
        return seconds < SECONDS or (seconds < LONGEST_S and not all(s.is_enough for s in self.streams))


def write_for(stream: Stream, hive: Hive, story: Story, chance: random.Random) -> None:
    """INSERT, UPDATE, DELETE and MERGE; `rows` is what the table has to hold."""
    name, rows = stream.table.full_name, dict[int, str]()
    with hive.connect() as sql:
        sql(f"SET hive.acid.direct.insert.enabled={str(stream.direct).lower()}")
        while story.goes_on:
            stream.write(sql, *_statement(name, rows, f"s{stream.begun + 1}", chance))
            stream.complete = stream.begun


def _statement(name: str, rows: dict[int, str], v: str, chance: random.Random) -> tuple[str, dict[int, str]]:
    """A statement, and `rows` as it leaves them. v: a value that no other statement writes."""
    first = chance.randrange(IDS)
    ids = range(first, first + chance.randrange(1, 12))
    match chance.choice(["insert", "insert", "update", "delete", "merge"]):
        case "insert" if new := [i for i in ids if i not in rows]:
            rows.update(dict.fromkeys(new, v))
            statement = f"INSERT INTO {name} VALUES {', '.join(f'({i}, {v!r})' for i in new)}"
        case "update":
            rows.update({i: v for i in ids if i in rows})
            statement = f"UPDATE {name} SET v = '{v}' WHERE id BETWEEN {ids[0]} AND {ids[-1]}"
        case "delete":
            for i in ids:
                rows.pop(i, None)
            statement = f"DELETE FROM {name} WHERE id BETWEEN {ids[0]} AND {ids[-1]}"
        case _:
            source = " UNION ALL ".join(f"SELECT {i} AS id" for i in ids)
            for i in ids:
                if rows.pop(i, None) is None or i % 3:
                    rows[i] = v
            statement = (
                f"MERGE INTO {name} t USING (SELECT * FROM ({source}) u) s ON t.id = s.id "
                f"WHEN MATCHED AND t.id % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = '{v}' "
                f"WHEN NOT MATCHED THEN INSERT VALUES (s.id, '{v}')"
            )
    return statement, rows


def read_for(story: Story, hive: Hive) -> None:
    with hive.connect() as sql, sql.reading(VECTORISED):
        while story.goes_on:
            for stream in story.streams:
                if not stream.direct:
                    stream.read(sql)


def ask_for(story: Story, hive: Hive, chance: random.Random) -> None:
    """Requests beside those of our initiator, so that minor and major both happen."""
    with hive.connect() as sql:
        while story.goes_on:
            for stream in story.streams:
                stream.compactions = sum(c.state in DONE for c in sql.compactions(stream.table.full_name))
                _ask(sql, stream.table, chance.choice(["minor", "major"]))
            threading.Event().wait(1)


def _ask(sql: HiveSession, table: Table, kind: str) -> None:
    """Hive refuses while an earlier request, for example of our initiator, is not over."""
    try:
        sql(f"ALTER TABLE {table.full_name} COMPACT '{kind}'")
    except OperationalError as error:
        if "already scheduled" not in str(error):
            raise


def kill_for(compactor: Compactor, story: Story, chance: random.Random) -> None:
    """Processes of ours die as by a power cut, some time after they have begun to work, and are started again.

    Of the workers every second one may finish something first: the next job of one that lives is a quick one.
    """
    for role, busy in itertools.cycle(KILLS):
        process = compactor.start(role)
        while story.goes_on and busy not in process.log.read_text():
            threading.Event().wait(0.1)
        if not story.goes_on:
            return
        threading.Event().wait(chance.uniform(0, 5))
        process.kill()
        compactor.start(role)


class Crew:
    """Threads that all must end well."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=self._run, args=(work,)))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- raised by join
            self._errors.append(error)


@pytest.mark.timeout(LONGEST_S + 1200)
def test_no_row_is_lost_or_doubled_and_no_query_fails(hive: Hive, compactor: Compactor, sql: HiveSession) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 -- shown when the test fails
    hive.playing(Roles())
    streams = [
        Stream(table=create(hive, sql, "stream_direct"), direct=True),
        Stream(table=create(hive, sql, "stream_read", clause="CLUSTERED BY (id) INTO 2 BUCKETS"), direct=False),
    ]
    with ExitStack() as meanwhile:
        for stream in streams:
            meanwhile.enter_context(stream.table.shown_to_initiators(sql))
        meanwhile.callback(compactor.playing, ())
        compactor.playing(OUR_ROLES)
        crew, story = Crew(), Story(streams)
        for number, stream in enumerate(streams):
            crew.add(lambda s=stream, n=number: write_for(s, hive, story, random.Random(seed + n)))
        crew.add(lambda: read_for(story, hive))
        crew.add(lambda: ask_for(story, hive, random.Random(seed + 10)))
        crew.add(lambda: kill_for(compactor, story, random.Random(seed + 20)))
        crew.join()
    for stream in streams:
        stream.table.is_read_alike(sql, stream.versions[-1])
        ids = [row[:3] for row in stream.table.row_ids(sql)]
        assert len(ids) == len(set(ids)), "two rows have one ROW__ID"
    compactor("run", "--until-idle", "--set", "worker.threads=1", "--set", "cleaner.on=true")
    for stream in streams:
        stream.table.is_read_alike(sql, stream.versions[-1])
        assert stream.is_enough, f"{stream.complete} statements, {stream.compactions} compactions"
