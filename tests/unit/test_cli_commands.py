"""Commands in this process: what they print of names that look like markup, what they refuse, and their JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compactor.cli import main
from compactor.cli.installation import Installation, Options
from compactor.cli.render import print_error, say
from compactor.cli.trigger import sql_prompt
from compactor.errors import UsageError
from compactor.metastore import catalog_write, queue
from compactor.metastore.catalog import Column, SortColumn, TableName
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.schema import init_db
from compactor.settings import Settings
from compactor.storage.filesystem import open_location
from compactor.table.writer import TableWriter
from tests.simulation.world import ORDERS, World, arrow

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
MARKUP = "[b]x[/foo] :x:"
REASON = "bad path [/foo] x"
SORTED = TableName(database="default", table="ranks")
SORTED_REASON = "default.ranks is sorted (SORTED BY): compacting it would lose the order"


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An installation in the current directory, where commands find it."""
    monkeypatch.chdir(tmp_path)
    world = World(root=tmp_path, db=Database.connect(f"sqlite:///{tmp_path}/compactor.db"), settings=Settings())
    init_db(world.db, warehouse=f"file:{tmp_path}/warehouse")
    yield world
    world.db.dispose()


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert isinstance(ended.value.code, int)
        said = capsys.readouterr()
        return Answer(code=ended.value.code, out=said.out, err=said.err)

    return command


@pytest.fixture
def sorted_table(world: World) -> None:
    catalog_write.create_table(
        world.db,
        SORTED,
        columns=[Column(name="id", type="int")],
        parameters={"transactional": "true", "transactional_properties": "default"},
        bucket_columns=["id"],
        bucket_count=2,
        sort_columns=[SortColumn(name="id", ascending=True)],
    )


def fail_next(world: World, message: str) -> None:
    claim = queue.claim(world.db, worker_id="w-1", worker_version="0")
    assert claim is not None
    queue.fail(world.db, claim, message=message, txn_id=None)


def test_partitions_and_reasons_that_look_like_markup_are_shown_as_they_are(world: World, run: Run) -> None:
    world.create_table(partitioned=True)
    queue.request_compaction(
        world.db,
        CompactionRequest(
            table=ORDERS,
            partition="day=[b]x",
            type=CompactionType.MAJOR,
            initiator_id="h-manual",
            initiator_version="0",
        ),
    )
    fail_next(world, REASON)
    shown = run("show", "compactions")
    assert shown.code == DONE
    assert "default.orders/day=[b]x" in shown.out
    assert REASON in shown.out
    assert REASON in run("sql", "SHOW COMPACTIONS").out


def test_users_and_hosts_that_look_like_markup_are_shown_as_they_are(world: World, run: Run) -> None:
    world.create_table()
    writer = TableWriter(world.db, open_location, ORDERS, user="[/b]ada", host="[i]h")
    with writer.transaction() as txn:
        txn.insert(arrow({1: "one"}))
        for listing in ("transactions", "locks"):
            shown = run("show", listing)
            assert shown.code == DONE
            assert "[/b]ada" in shown.out
            assert "[i]h" in shown.out


def test_problems_and_locations_that_look_like_markup_are_shown_as_they_are(world: World, run: Run) -> None:
    location = world.root / "[" / "b]x"
    catalog_write.create_table(
        world.db,
        ORDERS,
        columns=[Column(name="id", type="int")],
        parameters={"transactional": "true", "transactional_properties": "default"},
        location=f"file:{location}",
    )
    location.mkdir(parents=True)
    planned = run("plan", "default.orders")
    assert (planned.code, planned.err) == (DONE, "")
    assert f"default.orders at file:{location}, up to write id" in planned.out
    (location / "base_[b]x").mkdir()
    (location / "base_[b]x" / "bucket_00000").touch()
    listed = run("show", "tables")
    assert (listed.code, listed.err) == (DONE, "")
    assert "base_[b]x" in listed.out


@pytest.mark.parametrize("text", [MARKUP, REASON, "ends with a backslash \\"])
def test_lines_and_errors_are_printed_letter_by_letter(text: str) -> None:
    said = io.StringIO()
    console = Console(file=said, width=20)
    say(console, text)
    print_error(console, UsageError(text, hint=text))
    assert said.getvalue() == f"{text}\nerror: {text}\nhint: {text}\n"


@pytest.mark.parametrize("kind", ["minor", "major"])
def test_a_sorted_table_is_refused_at_once(world: World, run: Run, sorted_table: None, kind: str) -> None:
    for answer in (
        run("compact", "default.ranks", "--type", kind),
        run("compact", "default.ranks", "--type", kind, "--wait"),
        run("sql", f"ALTER TABLE default.ranks COMPACT '{kind}'"),
    ):
        assert (answer.code, answer.err) == (REFUSED, "")
        assert answer.out == f"Refused: {SORTED_REASON}.\n"
    assert not world.compactions()


def test_a_rebalance_is_refused_at_once_and_not_offered(world: World, run: Run) -> None:
    world.create_table()
    for answer in (
        run("compact", "default.orders", "--type", "rebalance"),
        run("sql", "ALTER TABLE default.orders COMPACT 'rebalance'"),
    ):
        assert (answer.code, answer.err) == (REFUSED, "")
        assert answer.out == "Refused: rebalance compaction is not supported by this release.\n"
    assert not world.compactions()
    assert "rebalance" not in run("compact", "--help").out


def test_a_plan_says_what_the_worker_says(world: World, run: Run, sorted_table: None) -> None:
    planned = run("plan", "default.ranks", "--json")
    assert planned.code == DONE
    verdicts = {p["compaction"]: p["verdict"] for p in planned.json["plans"]}
    world.request(table=SORTED)
    result = world.worker().run_once()
    assert result.reason == SORTED_REASON
    assert verdicts == dict.fromkeys(("minor", "major"), f"refused: {result.reason}")


def test_a_plan_of_a_table_without_transactions_is_refused(world: World, run: Run) -> None:
    plain = TableName(database="default", table="plain")
    catalog_write.create_table(world.db, plain, columns=[Column(name="id", type="int")])
    (minor, major) = run("plan", "default.plain", "--json").json["plans"]
    assert minor["verdict"] == major["verdict"] == "refused: default.plain is not transactional"


def test_the_prompt_goes_on_after_errors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create_table()
    lines = [
        "ALTER TABLE default.nosuch COMPACT 'major';",
        "ALTER TABL;",
        "ALTER TABLE default.orders",
        "  COMPACT 'major';",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    said = io.StringIO()
    installation = Installation(Options(config=None, hive_site=None, assignments=()), {})
    assert sql_prompt(installation, Console(file=said, width=240)) == DONE
    installation.close()
    assert "error: table default.nosuch does not exist" in said.getvalue()
    assert "unexpected" in said.getvalue()
    assert "hint: " in said.getvalue()
    assert "Compaction 1 of default.orders is queued." in said.getvalue()
    assert world.only().state is CompactionState.INITIATED


def test_json_of_statements_is_one_list_with_a_result_each(world: World, run: Run, sorted_table: None) -> None:
    world.create_table()
    answer = run(
        "sql",
        "--json",
        "ALTER TABLE default.orders COMPACT 'major'; ALTER TABLE default.orders COMPACT 'minor'; SHOW COMPACTIONS;"
        "ALTER TABLE default.ranks COMPACT 'major'; SHOW COMPACTIONS",
    )
    assert (answer.code, answer.err) == (REFUSED, "")
    queued, duplicate, shown, refused = answer.json
    assert queued == {"id": 1, "accepted": True, "state": "initiated", "reason": ""}
    assert (duplicate["id"], duplicate["accepted"], duplicate["state"]) == (1, False, "initiated")
    assert "already scheduled" in duplicate["reason"]
    assert [(row["id"], row["table"]) for row in shown] == [(1, "default.orders")]
    assert refused == {"id": None, "accepted": False, "state": "refused", "reason": SORTED_REASON}


def test_json_of_one_request_is_a_list_and_of_one_show_its_rows(world: World, run: Run) -> None:
    world.create_table()
    (queued,) = run("sql", "--json", "ALTER TABLE default.orders COMPACT 'major'").json
    assert queued == {"id": 1, "accepted": True, "state": "initiated", "reason": ""}
    (row,) = run("sql", "--json", "SHOW COMPACTIONS").json
    assert (row["id"], row["type"], row["state"]) == (1, "major", "initiated")


def test_json_keeps_the_results_before_an_error(world: World, run: Run) -> None:
    world.create_table()
    text = "ALTER TABLE default.orders COMPACT 'major'; ALTER TABLE default.nosuch COMPACT 'major'"
    answer = run("sql", "--json", text)
    assert answer.code == FAILED
    assert answer.err.startswith("error: ")
    assert [r["id"] for r in answer.json] == [1]


def test_compact_tells_its_outcome_as_json(world: World, run: Run, sorted_table: None) -> None:
    world.create_table()
    queued = run("compact", "default.orders", "--json")
    assert (queued.code, queued.json) == (DONE, {"id": 1, "accepted": True, "state": "initiated", "reason": ""})
    waited = run("compact", "default.orders", "--json", "--wait", "--timeout", "0")
    assert waited.code == FAILED
    assert (waited.json["id"], waited.json["table"], waited.json["state"]) == (1, "default.orders", "initiated")
    refused = run("compact", "default.ranks", "--json", "--wait")
    assert refused.code == REFUSED
    assert refused.json == {"id": None, "accepted": False, "state": "refused", "reason": SORTED_REASON}


@pytest.mark.parametrize("limit", ["-1", "0"])
def test_a_limit_below_one_is_a_wrong_usage(world: World, run: Run, limit: str) -> None:
    answer = run("show", "compactions", "--limit", limit)
    assert (answer.code, answer.out) == (USAGE, "")
    assert "--limit" in answer.err
