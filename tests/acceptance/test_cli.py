"""The installed console script in an empty directory: what it prints, what it leaves, and its exit codes."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.service.loop import Loop
from compactor.service.signals import StopRequest
from compactor.settings import Settings
from tests.acceptance.conftest import Console
from tests.simulation.world import Rows, World, arrow

pytestmark = pytest.mark.slow

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3


@pytest.fixture
def initialised(compactor: Console) -> Console:
    assert compactor("init-db").code == DONE
    return compactor


@pytest.fixture
def orders(initialised: Console) -> Iterator[World]:
    """`default.orders` with something to compact, in the database that `init-db` made."""
    db = Database.connect(f"sqlite:///{initialised.folder}/compactor.db")
    world = World(root=initialised.folder, db=db, settings=Settings())
    world.create_table()
    world.fill()
    yield world
    db.dispose()


def compaction_rows(compactor: Console) -> list[dict[str, object]]:
    answer = compactor("show", "compactions", "--json")
    assert (answer.code, answer.err) == (DONE, "")
    rows: list[dict[str, object]] = json.loads(answer.out)
    return rows


def test_init_db_twice_says_so_and_changes_nothing(compactor: Console) -> None:
    first = compactor("init-db")
    assert (first.code, first.err) == (DONE, "")
    assert "The metastore was created: sqlite:///compactor.db" in first.out
    second = compactor("init-db")
    assert second.code == DONE
    assert "was there already" in second.out
    assert [p.name for p in compactor.folder.iterdir()] == ["compactor.db"]


def test_init_db_refuses_a_database_that_it_did_not_make(compactor: Console) -> None:
    with sqlite3.connect(compactor.folder / "compactor.db") as conn:
        conn.execute("CREATE TABLE accounts (id INTEGER)")
    conn.close()
    before = (compactor.folder / "compactor.db").read_bytes()
    answer = compactor("init-db")
    assert answer.code == FAILED
    assert "accounts" in answer.error_lines[0]
    assert "empty database" in answer.error_lines[1]
    conn = sqlite3.connect(compactor.folder / "compactor.db")
    assert conn.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]
    conn.close()
    assert before[:16] == (compactor.folder / "compactor.db").read_bytes()[:16]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["compact", "default.nosuch"], FAILED, "default.nosuch does not exist"),
        (["compact", "nosuch"], USAGE, "'nosuch' is no table name"),
        (["compact", "default.orders", "--partition", "p=1"], USAGE, "default.orders"),
        (["compact", "default.orders", "--type", "huge"], USAGE, "'huge' is none of minor, major"),
        (["plan", "default.nosuch"], FAILED, "default.nosuch does not exist"),
        (["show", "compactions", "--state", "tired"], USAGE, "'tired' is none of initiated"),
        (["sql", "ALTER TABLE default.orders COMPCT 'major'"], USAGE, "unexpected"),
        (["sql", "ALTER TABLE default.nosuch COMPACT 'major'"], FAILED, "default.nosuch does not exist"),
        (["sql", "-f", "nosuch.sql"], USAGE, "nosuch.sql"),
        (["run", "--once", "--until-idle"], USAGE, "exclude each other"),
        (["show", "locks", "--config", "nosuch.toml"], USAGE, "nosuch.toml"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_wrong_command_ends_with_one_line_and_a_hint(
    orders: World, arguments: list[str], code: int, says: str
) -> None:
    answer = Console(folder=orders.root)(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert "Traceback" not in answer.err
    assert says in answer.err
    assert answer.err.startswith("error: ")
    assert not orders.compactions()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("worker = [", "compactor.toml is no well-formed TOML"),
        ('[worker]\nthreads = "many"', "worker.threads in compactor.toml is 'many'; allowed: a valid integer"),
        ("[worker]\ntreads = 2", "worker.treads in compactor.toml is no setting"),
        ('database_url = "jdbc:derby:x"', "database_url in compactor.toml is (not shown)"),
    ],
    ids=["malformed", "wrong value", "unknown setting", "unsupported database"],
)
def test_a_wrong_setting_names_the_field_the_value_and_what_is_allowed(
    compactor: Console, toml: str, says: str
) -> None:
    (compactor.folder / "compactor.toml").write_text(toml)
    answer = compactor("show", "locks")
    assert (answer.code, answer.out) == (USAGE, "")
    assert says in answer.error_lines[0]
    assert [p.name for p in compactor.folder.iterdir()] == ["compactor.toml"]


def test_a_wrong_variable_is_named_as_it_was_spelt(compactor: Console) -> None:
    answer = compactor("show", "locks", COMPACTOR_WORKER__THREADS="-1")
    assert answer.code == USAGE
    assert "COMPACTOR_WORKER__THREADS in the environment is '-1'" in answer.error_lines[0]


def test_a_database_that_is_missing_empty_or_unreachable_is_explained(compactor: Console) -> None:
    missing = compactor("show", "tables")
    assert missing.code == FAILED
    assert "init-db" in missing.error_lines[1]
    assert list(compactor.folder.iterdir()) == [], "looking must not create a database"
    (compactor.folder / "compactor.db").touch()
    empty = compactor("show", "tables")
    assert empty.code == FAILED
    assert "init-db" in empty.error_lines[1]
    unreachable = compactor("init-db", COMPACTOR_DATABASE_URL="sqlite:////no/such/folder/metastore.db")
    assert unreachable.code == FAILED
    assert "unable to open database file" in unreachable.error_lines[0]


def test_the_daemon_does_not_start_without_its_database(compactor: Console) -> None:
    answer = compactor("run", "--once")
    assert answer.code == FAILED
    assert "init-db" in answer.error_lines[1]


def test_a_request_is_queued_once_and_shown(orders: World) -> None:
    compactor = Console(folder=orders.root)
    first = compactor("compact", "default.orders")
    assert (first.code, first.err) == (DONE, "")
    assert "Compaction 1 of default.orders is queued." in first.out
    again = compactor("compact", "default.orders", "--type", "minor")
    assert again.code == DONE
    assert "already scheduled with state='initiated' and id=1" in again.out
    (row,) = compaction_rows(compactor)
    assert (row["id"], row["table"], row["type"], row["state"]) == (1, "default.orders", "major", "initiated")
    shown = compactor("show", "compactions", "--state", "initiated")
    assert "default.orders" in shown.out
    assert "default.orders" not in compactor("show", "compactions", "--state", "failed").out


def test_waiting_without_a_worker_ends_and_says_so(orders: World) -> None:
    answer = Console(folder=orders.root)("compact", "default.orders", "--wait", "--timeout", "0.5")
    assert answer.code == FAILED
    assert "no worker took it" in answer.out


def test_sql_from_an_argument_a_file_and_standard_input(orders: World) -> None:
    compactor = Console(folder=orders.root)
    assert "is queued" in compactor("sql", "ALTER TABLE default.orders COMPACT 'minor'").out
    (compactor.folder / "show.sql").write_text("-- what is queued?\nSHOW COMPACTIONS;\n")
    from_file = compactor("sql", "-f", "show.sql")
    assert (from_file.code, from_file.err) == (DONE, "")
    assert "default.orders" in from_file.out
    from_stdin = compactor("sql", "-f", "-", "--json", stdin="SHOW COMPACTIONS;")
    (row,) = json.loads(from_stdin.out)
    assert (row["table"], row["type"]) == ("default.orders", "minor")


def test_listings_are_tables_for_people_and_json_for_programs(orders: World) -> None:
    compactor = Console(folder=orders.root)
    with orders.writer().transaction() as txn:
        txn.insert(arrow({80: "uncommitted"}))
        transactions = json.loads(compactor("show", "transactions", "--json").out)
        assert [(t["id"], t["state"], t["user"]) for t in transactions] == [(txn.txn_id, "open", "ada")]
        locks = json.loads(compactor("show", "locks", "--json").out)
        assert [(x["database"], x["table"], x["type"], x["state"]) for x in locks] == [
            ("default", "orders", "shared read", "acquired")
        ]
        assert "ada" in compactor("show", "transactions").out
        assert "default.orders" in compactor("show", "locks").out
    (shown,) = json.loads(compactor("show", "tables", "--json").out)
    assert shown == {
        "object": "default.orders",
        "kind": "full ACID",
        "location": f"file:{orders.location()}",
        "deltas": 4,
        "delete_deltas": 1,
        "files": shown["files"],
        "bytes": shown["bytes"],
        "obsolete": 0,
        "base": "",
        "problem": "",
    }


def test_a_plan_is_shown_without_touching_anything(orders: World) -> None:
    compactor = Console(folder=orders.root)
    made = json.loads(compactor("plan", "default.orders", "--json").out)
    assert made["object"] == "default.orders"
    plans = {p["compaction"]: p for p in made["plans"]}
    assert set(plans) == {"minor", "major"}
    assert {p["verdict"] for p in plans.values()} == {"worth doing"}
    assert plans["major"]["files_in"] == 4
    assert plans["major"]["output"][0].startswith("base_0000004_v")
    assert len(orders.entries()) == 4
    assert not orders.compactions()


def test_the_loop_compacts_refuses_fails_and_tells_by_its_exit_code(orders: World) -> None:
    compactor = Console(folder=orders.root)
    expected: Rows = orders.rows()
    compactor("compact", "default.orders")
    idle = compactor("run", "--until-idle")
    assert idle.code == DONE, idle.err
    assert orders.only().state is CompactionState.SUCCEEDED
    assert orders.rows() == expected
    assert len(orders.entries()) == 1
    orders.request()
    assert compactor("worker", "--once").code == DONE
    assert orders.compactions()[-1].state is CompactionState.REFUSED
    told = compactor("compact", "default.orders", "--wait", "--timeout", "0")
    assert told.code == FAILED
    assert "Compaction 3" in told.out
    damage(orders)
    assert compactor("worker", "--once").code == FAILED
    (newest, *_) = sorted(compaction_rows(compactor), key=lambda row: -int(str(row["id"])))
    assert newest["state"] == "failed"
    assert "restore the file" in str(newest["error_message"])


@contextmanager
def background_worker(world: World) -> Iterator[None]:
    """A worker in this process, without Spark, until the block ends."""
    stop = StopRequest()
    loop = Loop(metrics=world.metrics)
    loop.every(0.05, "worker", world.worker(stop=stop).run_once)
    thread = threading.Thread(target=loop.run_until, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.drain()
        thread.join()


def damage(world: World) -> None:
    world.insert({90: "soon damaged"})
    newest = max(world.location().glob("delta_*/bucket_*"))
    newest.write_bytes(newest.read_bytes()[:-5])


def test_a_waiting_request_ends_with_the_outcome_of_a_running_daemon(orders: World) -> None:
    """AND WAIT through SQL and --wait: 0 when it was compacted, 3 when there was nothing to do."""
    compactor = Console(folder=orders.root)
    with background_worker(orders):
        done = compactor("sql", "ALTER TABLE default.orders COMPACT 'major' AND WAIT")
        orders.clean()
        refused = compactor("compact", "default.orders", "--wait")
    assert done.code == DONE, done.out + done.err
    assert "ready for cleaning" in done.out
    assert refused.code == REFUSED
    assert "nothing to gain from a major compaction" in refused.out
