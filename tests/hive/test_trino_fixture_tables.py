"""Every table of `tests/fixtures/hive-4.0.1` as Trino reads it before our compactions, after minors and after majors.

They lie in a metastore of their own, since other tests compact those beside Hive.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.demo.hive_tables import ExpectedTable, expected_tables
from tests.fixtures.hive_tables import EXPECTED
from tests.hive.lab.artifacts import or_untested
from tests.hive.lab.hive import Hive
from tests.hive.lab.ours import Compactor
from tests.hive.lab.process import until
from tests.hive.lab.session import Row
from tests.hive.lab.trino import Trino, TrinoError
from tests.hive.test_hive_tables import clause
from tests.servers import PostgresqlServer, running

CATALOG = "fixtures"
PHASES = ("uncompacted", "minor", "major")
READ_RIGHT_UNCOMPACTED = {"mm_flat", "mm_part"}
"""They have no deletes, no base without a file, no file without ACID columns."""
NOT_READABLE = "acid_load"
"""LOAD DATA put a file without ACID columns into a delta."""
NO_VISIBLE_BASE = "acid_empty"
"""A DELETE of everything left a base with nothing but a hidden file."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

Readings = dict[tuple[str, str], Counter[Row] | TrinoError]
"""(phase, table) to the rows of Trino, or to why it has none."""


@pytest.fixture(scope="module")
def fixture_hive() -> Iterator[Hive]:
    root = Path(tempfile.mkdtemp(prefix="compactor-hive-"))
    try:
        with running(PostgresqlServer) as postgresql:
            with or_untested("TRINO BESIDE US"):
                hive = Hive(root, postgresql.empty())
            yield hive
            hive.stop()
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def readings(fixture_hive: Hive, compactor: Compactor, trino: Trino) -> Iterator[Readings]:
    """Trino reads every table three times. Each time all are compacted together, since Spark takes long to start."""
    # One Spark at a time is enough for a small machine.
    compactor.playing(())
    trino.add_catalog(CATALOG, fixture_hive)
    ours = Compactor(fixture_hive.root / "ours", fixture_hive.site)
    found: Readings = {}
    for phase in PHASES:
        if phase != "uncompacted":
            compact_all(ours, phase)
        found |= {(phase, table.name): read(trino, table) for table in expected_tables()}
        # Without it nobody takes a second request for what was not written since.
        ours.clean(lambda: "ready for cleaning" not in states(ours))
    yield found
    ours.stop()


def compact_all(ours: Compactor, kind: str) -> None:
    statements = [
        f"ALTER TABLE fx.{table.name} {partition} COMPACT '{kind}'"
        for table in expected_tables()
        for partition in [clause(p) for p in EXPECTED[table.name]["partitions"]] or [""]
    ]
    ours("sql", ";\n".join(statements))
    ours.start("worker")
    until(lambda: not states(ours) & {"initiated", "working"}, f"every {kind} compaction has ended")
    assert states(ours) <= {"ready for cleaning", "succeeded", "refused"}


def states(ours: Compactor) -> set[str]:
    return {row["state"] for row in ours.json("show", "compactions")}


def read(trino: Trino, table: ExpectedTable) -> Counter[Row] | TrinoError:
    try:
        return Counter(map(comparable, trino(f"SELECT * FROM {CATALOG}.fx.{table.name}")))
    except TrinoError as error:
        return error


def comparable(row: Row) -> Row:
    """Members of maps in one order, and no value for the name that Hive gives to a partition without one."""
    return tuple(
        None
        if value == NULL_PARTITION
        else json.dumps(json.loads(value), sort_keys=True)
        if isinstance(value, str) and value[:1] in {"[", "{"}
        else value
        for value in row
    )


def hives_rows(table: ExpectedTable) -> Counter[Row]:
    return Counter(map(comparable, table.printed_rows()))


def by_name(table: ExpectedTable) -> str:
    return table.name


@pytest.mark.parametrize("table", expected_tables(), ids=by_name)
def test_before_a_compaction_trino_reads_what_is_gone_or_nothing_at_all(
    readings: Readings, table: ExpectedTable
) -> None:
    found = readings["uncompacted", table.name]
    if table.name == NOT_READABLE:
        assert isinstance(found, TrinoError)
        assert "ORC ACID file should have 6 columns" in str(found)
    elif table.name in READ_RIGHT_UNCOMPACTED:
        assert found == hives_rows(table)
    else:
        assert isinstance(found, Counter)
        assert found > hives_rows(table)


@pytest.mark.parametrize("table", [t for t in expected_tables() if t.name != NO_VISIBLE_BASE], ids=by_name)
def test_right_after_our_minor_trino_reads_the_rows_of_hive(readings: Readings, table: ExpectedTable) -> None:
    assert readings["minor", table.name] == hives_rows(table)


@pytest.mark.parametrize("table", expected_tables(), ids=by_name)
def test_right_after_our_major_trino_reads_the_rows_of_hive(readings: Readings, table: ExpectedTable) -> None:
    assert readings["major", table.name] == hives_rows(table)


def test_a_minor_leaves_the_base_that_trino_does_not_see_to_the_major(readings: Readings) -> None:
    """A minor writes no base; our initiator asks for a major by itself, see `test_trino_safe.py`."""
    [table] = [t for t in expected_tables() if t.name == NO_VISIBLE_BASE]
    assert readings["minor", table.name] == readings["uncompacted", table.name] != hives_rows(table)
