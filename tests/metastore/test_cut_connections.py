"""Every function that writes survives a connection that breaks at any of its statements, on real servers.

For each function and each of its requests to the server the wire is cut twice: before the server got the request, and
after the server answered but before we heard it; the last request is the commit. Afterwards the database is as before
or as after the whole call, never between; the error is one of ours; and a second call does no harm.
"""

from __future__ import annotations

import ast
import bisect
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import sqlalchemy as sa

import compactor.metastore
from compactor.errors import CommitOutcomeUnknown, CompactorError, DatabaseUnavailable
from compactor.metastore.database import Database, RetryPolicy
from compactor.metastore.schema import COMPACTOR_JOB_COST, TXNS, InitOutcome, init_db, metadata
from tests.metastore.cut_cases import CASES, ELSEWHERE
from tests.metastore.wire import Wire
from tests.servers import Server

pytestmark = pytest.mark.slow

_TIMES = re.compile(
    r"TXN_STARTED|TXN_LAST_HEARTBEAT|CTC_TIMESTAMP|HL_(LAST_HEARTBEAT|ACQUIRED_AT)|C[QC]_(ENQUEUE_TIME|START|END)"
    r"|C[QC]_COMMIT_TIME|CQ_CLEANER_START|CREATE_TIME|CREATED_AT|JC_RECORDED_AT|LAST_ANALYZED|MT_KEY2"
)
_TXN_IDS = re.compile(r"TXN_ID|\w+_TXNID|C[QC]_(NEXT_)?TXN_ID|WS_COMMIT_ID")
_SHORT = 16
_LAST, _TRIES = 0, 40
"""The request of the commit: as many as a whole call had last, for what a client sends at once may arrive in pieces."""

State = dict[str, list[tuple[Any, ...]]]


def writing_functions() -> set[str]:
    """Public functions of the package that take a database and write, by themselves or through another of them."""
    functions: dict[str, ast.FunctionDef] = {}
    for module in pkgutil.iter_modules(compactor.metastore.__path__):
        source = inspect.getsource(importlib.import_module(f"compactor.metastore.{module.name}"))
        functions |= {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    writing: set[str] = set()
    while True:
        further = {
            name
            for name, node in functions.items()
            if name not in writing and _calls(node) & ({"write", "apart"} | writing)
        }
        if not further:
            break
        writing |= further
    first = {name: [argument.arg for argument in functions[name].args.args][:1] for name in writing}
    return {name for name in writing if not name.startswith("_") and first[name] == ["db"]}


def _calls(node: ast.FunctionDef) -> set[str]:
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return {f.id if isinstance(f, ast.Name) else f.attr for f in called if isinstance(f, ast.Name | ast.Attribute)}


def test_no_writing_function_is_forgotten() -> None:
    assert writing_functions() == CASES.keys() | ELSEWHERE.keys()
    assert not CASES.keys() & ELSEWHERE.keys()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    running: Server = request.getfixturevalue(request.param)
    return running


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.port) as wire:
        yield wire


def _through(wire: Wire, server: Server, url: str) -> Database:
    cut = url.replace(f":{server.port}/", f":{wire.port}/")
    return Database.connect(cut, busy_timeout_s=5, retry=RetryPolicy(attempts=1))


def _state(db: Database) -> State:
    """All rows, comparable between two runs: times are alike, and transactions are numbered in their order.

    An id that a transaction took in vain counts as the next one that lives.
    """
    with db.read() as conn:
        rows = {table: conn.execute(sa.select(table)).mappings().all() for table in metadata.sorted_tables}
    opened = sorted(row["TXN_ID"] for row in rows[TXNS])

    def comparable(column: str, row: Any) -> Any:
        value = row[column]
        if _TIMES.fullmatch(column) or row.get("PARAM_KEY") == "transient_lastDdlTime":
            return value and "a time"
        return bisect.bisect_left(opened, value) if _TXN_IDS.fullmatch(column) and value is not None else value

    ignored = {COMPACTOR_JOB_COST.c.JC_ID.name}
    return {
        table.name: sorted((tuple(comparable(c, row) for c in row if c not in ignored) for row in found), key=repr)
        for table, found in rows.items()
    }


def _fresh(server: Server, name: str) -> tuple[str, Database, Any]:
    """A database in the function's situation: its URL, a connection past the wire, and the call."""
    url = server.filled()
    db = Database.connect(url)
    init_db(db)
    return url, db, CASES[name](db)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_cut_leaves_all_or_nothing_and_may_be_repeated(name: str, server: Server, wire: Wire) -> None:
    url, direct, call = _fresh(server, name)
    before = _state(direct)
    cut = _through(wire, server, url)
    requests = _call_with_one_cut(call, cut, wire)
    once = _state(direct)
    _outcome(call, direct)
    twice = _state(direct)
    cut.dispose()
    direct.dispose()

    url, direct, call = _fresh(server, name)
    cut = _through(wire, server, url)
    landed = 0
    for planned, after_answer in chain(_cuts(requests), repeat((_LAST, True), _TRIES)):
        if planned == _LAST and landed:
            break
        request = planned or requests
        _warm(cut, wire)
        wire.break_at(request, after_answer=after_answer)
        error, was_cut = _outcome(call, cut), wire.is_cut
        state = _state(direct)
        where = f"request {request}, {'answered' if after_answer else 'not sent'}: {error!r}"
        # a driver needs a request less when it knows its statements already, and one more when it does not
        assert isinstance(error, DatabaseUnavailable | CommitOutcomeUnknown) or not was_cut, where
        assert state in (before, once), where
        if not was_cut:
            requests = wire.requests
        elif planned == _LAST and state == before:
            requests += 1
        if state != before:
            landed += was_cut
            _outcome(call, direct)
            assert _state(direct) in (once, twice), where
            direct.dispose()
            url, direct, call = _fresh(server, name)
            cut.dispose()
            cut = _through(wire, server, url)
    _warm(cut, wire)
    call(cut)
    assert _state(direct) == once
    assert landed >= 1 or before == once, "the answer to the commit was lost at least once"
    cut.dispose()
    direct.dispose()


def _call_with_one_cut(call: Any, db: Database, wire: Wire) -> int:
    """The call where one cut in the middle is not even noticed; how many requests it sends when nothing is cut."""
    db.retry = RetryPolicy(attempts=3, longest_pause_s=0.05)
    requests = 0

    def mend(_operation: str) -> None:
        wire.mend()
        _warm(db, wire)
        # counts, and never breaks
        wire.break_at(-1, after_answer=True)

    db.on_retry = mend
    _warm(db, wire)
    wire.break_at(2, after_answer=True)
    call(db)
    requests = wire.requests
    db.retry, db.on_retry = RetryPolicy(attempts=1), lambda _operation: None
    return requests


def _cuts(requests: int) -> Iterator[tuple[int, bool]]:
    """Where to cut: at every request, of a long call at its ends and at some in the middle."""
    for request in range(1, requests + 1):
        if requests <= _SHORT or request <= 3 or request > requests - 6 or request % 5 == 0:
            yield from ((request, False), (request, True))


def _warm(db: Database, wire: Wire) -> None:
    wire.mend()
    with db.read() as conn:
        conn.execute(sa.text("SELECT 1"))


def test_init_db_that_broke_off_is_completed_by_the_next_one(server: Server, wire: Wire) -> None:
    url = server.empty()
    direct = Database.connect(url)
    request = 3
    while True:
        cut = _through(wire, server, url)
        _warm(cut, wire)
        wire.break_at(request, after_answer=True)
        error, was_cut = _outcome(init_db, cut), wire.is_cut
        cut.dispose()
        if not was_cut:
            break
        assert isinstance(error, CompactorError)
        assert not direct.is_initialised() or isinstance(error, CommitOutcomeUnknown)
        request += 13
    assert error is None
    assert direct.is_initialised()
    assert init_db(direct) is InitOutcome.ALREADY_THERE
    direct.dispose()


def _outcome(call: Any, db: Database) -> CompactorError | None:
    try:
        call(db)
    except CompactorError as error:
        return error
    return None
