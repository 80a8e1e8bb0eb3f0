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

from compactor.acid.rates import JobCost
from compactor.cli import main
from compactor.cli.installation import Installation, Options
from compactor.cli.plan import show_plan
from compactor.cli.render import print_error, say
from compactor.cli.trigger import sql_prompt
from compactor.errors import UsageError
from compactor.metastore import catalog, catalog_write, queue, txns
from compactor.metastore.calibration import record_cost
from compactor.metastore.catalog import Column, SortColumn, TableName
from compactor.metastore.compaction import CompactionRequest, CompactionState, CompactionType
from compactor.metastore.database import Database
from compactor.metastore.locks import LockComponent, LockRequest, LockType, acquire
from compactor.metastore.schema import COMPACTOR_INSTALLATION, COMPACTOR_JOB_COST, init_db
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


@pytest.mark.parametrize(
    "asked",
    [
        ("compact", "default.orders", "--type", "rebalance", "--buckets", "4", "--order-by", "amount DESC, ID"),
        ("sql", "ALTER TABLE default.orders COMPACT 'rebalance' CLUSTERED INTO 4 BUCKETS ORDER BY amount DESC, id"),
    ],
)
def test_a_rebalance_is_queued_with_its_buckets_and_order(world: World, run: Run, asked: tuple[str, ...]) -> None:
    world.create_table()
    columns = [c.name for c in catalog.get_table(world.db, ORDERS).columns]
    answer = run(*(word.replace("amount", columns[1]) for word in asked))
    assert (answer.code, answer.err) == (DONE, "")
    queued = world.only()
    assert (queued.type, queued.number_of_buckets) == (CompactionType.REBALANCE, 4)
    assert queued.order_by == f"ORDER BY `{columns[1]}` DESC NULLS FIRST, `id` ASC NULLS LAST"
    (shown,) = run("show", "compactions", "--json").json
    assert (shown["number_of_buckets"], shown["order_by"]) == (4, queued.order_by)


def test_a_rebalance_of_a_bucketed_table_is_refused_at_once(world: World, run: Run) -> None:
    catalog_write.create_table(
        world.db,
        ORDERS,
        columns=[Column(name="id", type="int")],
        parameters={"transactional": "true", "transactional_properties": "default"},
        bucket_columns=["id"],
        bucket_count=2,
    )
    for answer in (
        run("compact", "default.orders", "--type", "rebalance"),
        run("sql", "ALTER TABLE default.orders COMPACT 'rebalance'"),
    ):
        assert (answer.code, answer.err) == (REFUSED, "")
        assert answer.out.startswith("Refused: default.orders: bucketed tables (CLUSTERED BY) are not rebalanced")
    assert not world.compactions()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--type", "rebalance", "--order-by", "nosuch"), "ORDER BY nosuch: there is no such column"),
        (("--type", "rebalance", "--order-by", "id +"), "ORDER BY is not understood at 'id +'"),
        (("--type", "rebalance", "--buckets", "0"), "0 buckets"),
        (("--type", "major", "--buckets", "2"), "a major compaction keeps every row in its bucket"),
        (("--type", "minor", "--order-by", "id"), "a minor compaction keeps every row in its bucket"),
        (("--type", "balance"), "--type 'balance' is none of minor, major, rebalance"),
    ],
)
def test_a_rebalance_that_makes_no_sense_is_a_usage_error(
    world: World, run: Run, options: tuple[str, ...], problem: str
) -> None:
    world.create_table()
    answer = run("compact", "default.orders", *options)
    assert answer.code == USAGE
    assert problem in answer.err
    assert not world.compactions()


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


def scattered(world: World) -> None:
    """Twelve deltas, and deletes in every one of them."""
    world.create_table()
    for first in range(0, 120, 10):
        world.insert({n: f"item {n}" for n in range(first, first + 10)})
    world.delete(*range(0, 120, 10))


def test_a_plan_shows_both_compactions_side_by_side(world: World, run: Run) -> None:
    scattered(world)
    answer = run("plan", "default.orders", "--json").json
    (minor, major) = answer["plans"]
    assert (minor["compaction"], major["compaction"]) == ("minor", "major")
    assert answer["now"]["directories"] == answer["now"]["files"] == 13
    assert answer["now"]["delete_events"] == minor["delete_events"] == major["delete_events"] == 12
    assert (minor["after"]["directories"], major["after"]["directories"]) == (2, 1)
    assert major["after"]["read_amplification"] == 1.0
    assert 1.0 < minor["after"]["read_amplification"] < answer["now"]["read_amplification"]
    for row in (minor, major):
        stripes = row["stripes_copied"] + row["stripes_decoded"] + row["stripes_coalesced"]
        assert (stripes, row["rows_in"]) == (12, 120)
        assert row["bytes_copied"] + row["bytes_encoded"] > 0
        assert row["predicted_seconds"] >= 0.3
    shown = run("plan", "default.orders").out
    for line in ("bytes copied", "bytes re-encoded", "stripes decoded", "predicted time", "read amplification"):
        assert line in shown


def test_a_plan_of_one_type_shows_that_one_only(world: World, run: Run) -> None:
    scattered(world)
    assert [p["compaction"] for p in run("plan", "default.orders", "--type", "minor", "--json").json["plans"]] == [
        "minor"
    ]
    shown = run("plan", "default.orders", "--type", "major").out
    assert "major: worth doing, writes base_" in shown
    assert "minor: " not in shown
    assert run("plan", "default.orders", "--type", "smaller").code == USAGE
    assert run("plan", "default.orders", "--type", "major", "--buckets", "3").code == USAGE


def test_a_rebalance_is_planned_when_it_is_asked_for(world: World, run: Run) -> None:
    scattered(world)
    (made,) = run("plan", "default.orders", "--type", "rebalance", "--buckets", "3", "--json").json["plans"]
    assert (made["compaction"], made["verdict"]) == ("rebalance", "worth doing")
    assert (made["files_in"], made["rows_in"], made["delete_events"]) == (13, 120, 12)
    assert made["bytes_copied"] + made["bytes_encoded"] > 0
    assert (made["after"]["files"], made["after"]["delete_events"], made["after"]["directories"]) == (3, 0, 1)
    assert made["output"][0].startswith("base_0000013_v")
    shown = run("plan", "default.orders", "--type", "rebalance", "--order-by", "item DESC").out
    assert "rebalance: worth doing, writes base_0000013_v" in shown
    assert "minor: " not in shown
    unknown = run("plan", "default.orders", "--type", "rebalance", "--order-by", "nosuch")
    assert unknown.code == USAGE
    assert "nosuch" in unknown.err


def test_a_planned_rebalance_of_a_bucketed_table_says_what_the_worker_says(world: World, run: Run) -> None:
    world.create_table(buckets=2)
    world.fill()
    (made,) = run("plan", "default.orders", "--type", "rebalance", "--json").json["plans"]
    assert made["verdict"].startswith("refused: default.orders: bucketed tables")
    world.request(CompactionType.REBALANCE)
    assert made["verdict"] == f"refused: {world.worker().run_once().reason}"


def test_a_plan_that_is_refused_says_why_and_still_shows_what_a_scan_reads(world: World, run: Run) -> None:
    world.create_table()
    world.insert({1: "one"})
    shown = run("plan", "default.orders").out
    assert "minor: refused: nothing to gain from a minor compaction: no base, 1 delta(s)" in shown
    assert "major: refused: nothing to gain from a major compaction: no base, 1 delta(s)" in shown
    assert "read amplification" in shown
    assert "predicted time" not in shown


def test_a_plan_tells_what_the_initiator_then_asks_for(world: World, run: Run) -> None:
    scattered(world)
    choices = run("plan", "default.orders", "--json").json["choices"]
    assert choices["hive"] == {"compaction": "major", "reason": "13 deltas > 10 and no base"}
    (requested,) = world.initiate().requested
    assert choices["initiator"] == {"compaction": requested.type.name.lower(), "reason": requested.reason}
    assert "The price asks for a major: 13 deltas > 10 and no base; 12 delete events on 120 rows" in (
        run("plan", "default.orders").out
    )


def test_prices_count_for_the_initiator_of_a_plan_only_when_the_settings_say_so(world: World, run: Run) -> None:
    scattered(world)
    set_to_cost = ("--set", "initiator.choose=cost")
    hive, cost = (run("plan", "default.orders", "--json", *more).json["choices"] for more in ((), set_to_cost))
    assert hive["initiator"] == hive["hive"]
    assert cost["initiator"] == cost["cost"] == hive["cost"]


def test_a_plan_says_what_trino_reads_wrong(world: World, run: Run) -> None:
    world.create_table()
    world.insert({1: "one"})
    world.delete(1)
    (deletes,) = world.root.glob("warehouse/orders/delete_delta_*/bucket_00000")
    deletes.rename(deletes.with_name("bucket_00000_0"))
    choices = run("plan", "default.orders", "--json").json["choices"]
    assert (choices["trino"]["compaction"], choices["initiator"]["compaction"]) == ("minor", "minor")
    assert "Trino needs a minor: Trino does not find the deletes in" in run("plan", "default.orders").out
    unsafe = run("plan", "default.orders", "--json", "--set", "initiator.trino_safe=false").json["choices"]
    assert (unsafe["trino"]["compaction"], unsafe["initiator"]["compaction"]) == ("minor", None)


def test_a_plan_predicts_from_the_jobs_of_this_installation(world: World, run: Run) -> None:
    scattered(world)
    before = run("plan", "default.orders")
    assert "at default rates, as no job is recorded yet" in before.out
    for _ in range(5):
        record_cost(world.db, JobCost(bytes_copied=1, bytes_encoded=0, tasks=1, cores=96, seconds=7.0))
    after = run("plan", "default.orders")
    assert "Predicted for 96 cores, from the last 5 jobs here." in after.out
    assert all(p["predicted_seconds"] > 3 for p in run("plan", "default.orders", "--json").json["plans"])


def test_a_plan_touches_nothing(world: World, run: Run) -> None:
    scattered(world)

    def everything() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in (world.root / "warehouse").rglob("*")}

    before = everything()
    assert run("plan", "default.orders").code == DONE
    assert everything() == before
    assert world.compactions() == []


def test_the_table_of_a_plan_fits_on_a_terminal(world: World) -> None:
    scattered(world)
    said = io.StringIO()
    installation = Installation(Options(config=None, hive_site=None, assignments=()), {})
    assert show_plan(installation, Console(file=said, width=80), "default.orders", as_json=False) == DONE
    installation.close()
    lines = said.getvalue().splitlines()
    (heading,) = (line for line in lines if line.split() == ["now", "minor", "major"])
    (copied,) = (line for line in lines if line.lstrip().startswith("bytes copied"))
    (read,) = (line for line in lines if line.lstrip().startswith("files opened by a scan"))
    assert len(heading.rstrip()) == len(copied.rstrip()) == len(read.rstrip()) <= 80


def test_init_db_adds_what_the_database_of_the_first_release_lacks(world: World, run: Run) -> None:
    with world.db.write() as conn:
        COMPACTOR_JOB_COST.drop(conn)
        conn.execute(COMPACTOR_INSTALLATION.update().values(INSTALLATION_VERSION=1))
    assert "The metastore was upgraded: sqlite" in run("init-db").out
    assert "The metastore was there already: sqlite" in run("init-db").out


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


@pytest.fixture
def waiting(world: World) -> tuple[int, int]:
    """A transaction that holds a lock on a table, and one that waits for it."""
    world.create_table()
    holder, waiter = txns.open_transactions(world.db, count=2, user="ann", host="h1", agent_info="q1")
    component = LockComponent(database=ORDERS.database, table=ORDERS.table, type=LockType.EXCLUSIVE)
    for txn_id in (holder, waiter):
        acquire(world.db, LockRequest(txn_id=txn_id, components=[component], user="ann", host="h1", agent_info="q1"))
    return holder, waiter


@pytest.mark.parametrize(
    "arguments", [("show", "locks"), ("show", "locks", str(ORDERS)), ("show", "locks", "--database", ORDERS.database)]
)
def test_locks_say_who_waits_for_whom(run: Run, waiting: tuple[int, int], arguments: tuple[str, ...]) -> None:
    held, asked = run(*arguments, "--json").json
    assert (held["txn_id"], held["state"]) == (waiting[0], "acquired")
    assert (asked["txn_id"], asked["state"], asked["blocked_by"]) == (waiting[1], "waiting", [held["lock_id"], 1])
    assert run("sql", f"SHOW LOCKS {ORDERS}", "--json").json == [held, asked]
    assert "q1" not in run(*arguments).out
    assert "q1" in run(*arguments, "--extended").out
    assert run("sql", "SHOW LOCKS EXTENDED").out == run("show", "locks", "--extended").out


def test_locks_of_another_place_are_not_listed(run: Run, waiting: tuple[int, int]) -> None:
    assert run("show", "locks", "default.other", "--json").json == []
    assert run("sql", "SHOW LOCKS DATABASE other", "--json").json == []
    assert run("show", "locks", str(ORDERS), "--database", "default").code == USAGE


def test_transactions_are_shown_and_aborted_by_command_and_by_statement(run: Run, waiting: tuple[int, int]) -> None:
    shown = run("show", "transactions", "--json").json
    assert [t["id"] for t in shown] == list(waiting)
    assert run("sql", "SHOW TRANSACTIONS", "--json").json == shown
    first = run("abort", "transactions", str(waiting[0]), "--json")
    assert first.code == DONE
    assert first.json == [{"id": waiting[0], "status": "Success", "message": "Successfully aborted transaction"}]
    second = run("sql", f"ABORT TRANSACTIONS {waiting[1]} 999; SHOW TRANSACTIONS", "--json")
    assert second.code == FAILED
    assert [[row["status"] for row in rows] for rows in second.json] == [["Success", "Error"]]
    assert {t["state"] for t in run("show", "transactions", "--json").json} == {"aborted"}


def test_a_request_is_aborted_before_a_worker_takes_it(world: World, run: Run) -> None:
    world.create_table()
    world.insert({1: "a"})
    asked = run("compact", str(ORDERS), "--json").json["id"]
    assert "Successfully aborted compaction" in run("sql", f"ABORT COMPACTIONS {asked}").out
    again = run("abort", "compactions", str(asked))
    assert again.code == FAILED
    assert "compaction is in state-aborted" in again.out
