"""Hive writes and reads without pause while we compact and clean all the time, and our processes die at random.

`STREAM_S=600 make test-hive` streams for so many seconds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.hive.lab.hive import Hive, Roles
from tests.hive.lab.ours import Compactor
from tests.hive.lab.session import VECTORISED, HiveSession, Row
from tests.hive.lab.tables import Table, create

SECONDS = float(os.environ.get("STREAM_S", "75"))
OUR_ROLES = ("initiator", "worker", "cleaner", "housekeeper")
BUSY = dict.fromkeys(OUR_ROLES, '"running"') | {"worker": "compaction claimed"}
"""What a role writes into its log once it is worth killing."""
IDS = 60


@dataclass
class Stream:
    """What a table of one writer holds: every version of it, in the order of the statements.

    The rows that a query returns must be those of one moment between its beginning and its end.
    """

    table: Table
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


def write_for(stream: Stream, hive: Hive, end: float, chance: random.Random) -> None:
    """INSERT, UPDATE, DELETE and MERGE until it is time; `rows` is what the table has to hold."""
    name, rows = stream.table.full_name, dict[int, str]()
    with hive.connect() as sql:
        while time.monotonic() < end:
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


def read_for(streams: list[Stream], hive: Hive, end: float) -> None:
    with hive.connect() as sql, sql.reading(VECTORISED):
        while time.monotonic() < end:
            for stream in streams:
                stream.read(sql)


def ask_for(streams: list[Stream], hive: Hive, end: float, chance: random.Random) -> None:
    """Requests beside those of our initiator, so that minor and major both happen."""
    with hive.connect() as sql:
        while time.monotonic() < end:
            for stream in streams:
                sql(f"ALTER TABLE {stream.table.full_name} COMPACT '{chance.choice(['minor', 'major'])}'")
            threading.Event().wait(1)


def kill_for(compactor: Compactor, end: float, chance: random.Random) -> None:
    """Processes of ours die as by a power cut, some time after they have begun to work, and are started again."""
    while time.monotonic() < end:
        role = chance.choice([*OUR_ROLES, "worker"])
        process = compactor.start(role)
        while time.monotonic() < end and BUSY[role] not in process.log.read_text():
            threading.Event().wait(0.1)
        threading.Event().wait(chance.uniform(0, 6))
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


def test_no_row_is_lost_or_doubled_and_no_query_fails(hive: Hive, compactor: Compactor, sql: HiveSession) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 -- shown when the test fails
    hive.playing(Roles())
    plain = Stream(table=create(hive, sql, "stream_plain"))
    bucketed = Stream(table=create(hive, sql, "stream_bucketed", clause="CLUSTERED BY (id) INTO 2 BUCKETS"))
    streams = [plain, bucketed]
    compactor.playing(OUR_ROLES)
    crew, end = Crew(), time.monotonic() + SECONDS
    for number, stream in enumerate(streams):
        crew.add(lambda s=stream, n=number: write_for(s, hive, end, random.Random(seed + n)))
    crew.add(lambda: read_for(streams, hive, end))
    crew.add(lambda: ask_for(streams, hive, end, random.Random(seed + 10)))
    crew.add(lambda: kill_for(compactor, end, random.Random(seed + 20)))
    crew.join()
    compactor.playing(())
    for stream in streams:
        stream.table.is_read_alike(sql, stream.versions[-1])
        ids = [row[:3] for row in stream.table.row_ids(sql)]
        assert len(ids) == len(set(ids)), "two rows have one ROW__ID"
    compactor("run", "--until-idle", "--set", "worker.threads=1", "--set", "cleaner.on=true")
    for stream in streams:
        stream.table.is_read_alike(sql, stream.versions[-1])
        states = Counter(c.state for c in sql.compactions(stream.table.full_name))
        assert states["succeeded"] > 0, f"{stream.table.name}: {states}"
