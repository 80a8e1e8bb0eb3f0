"""Commands that ask for something: compact, abort, sql."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from rich.console import Console
from rich.text import Text

from compactor.cli import show
from compactor.cli.installation import VERSION, Installation
from compactor.cli.render import compactions_table, print_error, print_json, say, words
from compactor.errors import CompactorError, UsageError
from compactor.metastore import catalog, history
from compactor.metastore.aborting import ERROR, Aborted, abort_compactions, abort_transactions_by_id
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.service.requests import WAIT_TIMEOUT_S, RequestRefused, Wish, request, wait_for
from compactor.sql.parser import parse
from compactor.sql.statements import (
    AbortCompactions,
    AbortTransactions,
    AlterTableCompact,
    ShowCompactions,
    ShowLocks,
    ShowTransactions,
    Statement,
)

DONE, FAILED, REFUSED = 0, 1, 3
_SHOWS = (ShowCompactions, ShowTransactions, ShowLocks)
_EXIT_CODES = {
    CompactionState.FAILED: FAILED,
    CompactionState.DID_NOT_INITIATE: FAILED,
    CompactionState.ABORTED: FAILED,
    CompactionState.REFUSED: REFUSED,
    CompactionState.INITIATED: FAILED,
    CompactionState.WORKING: FAILED,
    CompactionState.READY_FOR_CLEANING: DONE,
    CompactionState.SUCCEEDED: DONE,
}


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What became of a wish. id: None when it was refused before it was queued. reason: empty when all went well.

    row: the compaction after waiting; None without waiting.
    """

    id: int | None
    accepted: bool
    state: CompactionState
    reason: str
    code: int
    row: Compaction | None = None

    def summary(self) -> dict[str, object]:
        return {"id": self.id, "accepted": self.accepted, "state": self.state, "reason": self.reason}


def trigger(
    installation: Installation, console: Console, wish: Wish, *, wait: bool, timeout_s: float, as_json: bool
) -> int:
    """Queue a wish and say so; with `wait`, stay until it is done. Returns the exit code."""
    answer = _ask(installation, _sayer(console, as_json=as_json), wish, wait=wait, timeout_s=timeout_s)
    if as_json:
        print_json(console, answer.row or answer.summary())
    return answer.code


def _sayer(console: Console, *, as_json: bool) -> Callable[[str], None]:
    """Prints a line for people; nothing where a program reads along."""
    return (lambda _: None) if as_json else partial(say, console)


def _ask(
    installation: Installation, tell: Callable[[str], None], wish: Wish, *, wait: bool, timeout_s: float
) -> _Answer:
    outcome = request(installation.db, wish, host=installation.host, version=VERSION)
    if isinstance(outcome, RequestRefused):
        tell(f"Refused: {outcome.reason}.")
        return _Answer(id=None, accepted=False, state=CompactionState.REFUSED, reason=outcome.reason, code=REFUSED)
    tell(f"Compaction {outcome.id} of {wish.table} is queued." if outcome.accepted else f"{outcome.reason}.")
    if not wait:
        return _Answer(id=outcome.id, accepted=outcome.accepted, state=outcome.state, reason=outcome.reason, code=DONE)
    done = _wait(installation, outcome.id, timeout_s)
    tell(_outcome_line(done))
    return _Answer(
        id=outcome.id,
        accepted=outcome.accepted,
        state=done.state,
        reason=done.error_message or outcome.reason,
        code=_EXIT_CODES[done.state],
        row=done,
    )


def run_sql(installation: Installation, console: Console, text: str, *, as_json: bool) -> int:
    """Run every statement of a text; stops at the first that fails. Returns the exit code.

    as_json: the rows of a lone SHOW; otherwise a list with one result a statement, those before an error included:
    `{"id", "accepted", "state", "reason"}` of a request, the list of rows of a SHOW or an ABORT.
    """
    statements = parse(text)
    if as_json and len(statements) == 1 and isinstance(statements[0], _SHOWS):
        rows, code = _run(installation, console, statements[0], as_json=True)
        print_json(console, rows)
        return code
    results: list[object] = []
    code = DONE
    try:
        for statement in statements:
            result, code = _run(installation, console, statement, as_json=as_json)
            results.append(result)
            if code != DONE:
                break
    finally:
        if as_json:
            print_json(console, results)
    return code


def _run(installation: Installation, console: Console, statement: Statement, *, as_json: bool) -> tuple[object, int]:
    """One statement's result and exit code; it is printed unless a program reads along."""
    match statement:
        case AlterTableCompact():
            tell = _sayer(console, as_json=as_json)
            wait = statement.and_wait
            answer = _ask(installation, tell, _wish(statement), wait=wait, timeout_s=WAIT_TIMEOUT_S)
            return answer.summary(), answer.code
        case ShowCompactions():
            compactions = _rows(installation, statement)
            if not as_json:
                print_compactions(console, compactions, as_json=False)
            return compactions, DONE
        case ShowTransactions():
            transactions = show.transactions(installation)
            if not as_json:
                show.print_transactions(installation, console, transactions, as_json=False)
            return transactions, DONE
        case ShowLocks():
            locks = show.locks_of(installation, statement)
            if not as_json:
                show.print_locks(console, locks, extended=statement.extended, as_json=False)
            return locks, DONE
        case AbortTransactions() | AbortCompactions():
            title, aborted = _abort(installation, statement)
            if not as_json:
                show.print_aborted(console, title, aborted, as_json=False)
            return aborted, _abort_code(aborted)
        case _:
            assert_never(statement)


def abort(
    installation: Installation, console: Console, statement: AbortTransactions | AbortCompactions, *, as_json: bool
) -> int:
    """End transactions, or requests that no worker has taken; the exit code is 1 when one could not be ended."""
    title, aborted = _abort(installation, statement)
    show.print_aborted(console, title, aborted, as_json=as_json)
    return _abort_code(aborted)


def _abort(installation: Installation, statement: AbortTransactions | AbortCompactions) -> tuple[str, list[Aborted]]:
    match statement:
        case AbortTransactions(ids=ids):
            return "Transactions", abort_transactions_by_id(installation.db, ids)
        case AbortCompactions(ids=ids):
            return "Compactions", abort_compactions(installation.db, ids)
        case _:
            assert_never(statement)


def _abort_code(rows: Sequence[Aborted]) -> int:
    return FAILED if any(row.status == ERROR for row in rows) else DONE


def sql_prompt(installation: Installation, console: Console) -> int:
    """Read statements from the terminal until the end of input; errors do not end it."""
    console.print("Statements end with ';'. Control-D leaves.")
    pending = ""
    while True:
        try:
            pending += console.input("compactor> " if not pending else "        -> ") + "\n"
        except EOFError:
            console.print()
            return DONE
        if not pending.rstrip().endswith(";"):
            continue
        try:
            run_sql(installation, console, pending, as_json=False)
        except CompactorError as error:
            print_error(console, error)
        pending = ""


def _wish(statement: AlterTableCompact) -> Wish:
    return Wish(
        table=statement.table,
        type=statement.type,
        partition=dict(statement.partition or ()),
        pool=statement.pool,
        properties=statement.properties,
        buckets=statement.buckets,
        order_by=", ".join(str(k) for k in statement.order_by) or None,
    )


def _rows(installation: Installation, statement: ShowCompactions) -> list[Compaction]:
    partition = None
    if statement.partition and statement.table:
        partition = catalog.find_partition(installation.db, statement.table, dict(statement.partition)).name
    filters = history.CompactionFilter(
        id=statement.compaction_id,
        database=statement.table.database if statement.table else statement.database,
        table=statement.table.table if statement.table else None,
        partition=partition,
        state=statement.state,
        type=statement.type,
        pool=statement.pool,
    )
    return history.show_compactions(installation.db, filters=filters, limit=statement.limit)


def print_compactions(console: Console, rows: Sequence[Compaction], *, as_json: bool) -> None:
    if as_json:
        print_json(console, rows)
    else:
        console.print(compactions_table(rows))


def _wait(installation: Installation, compaction_id: int, timeout_s: float) -> Compaction:
    """Wait with a line on standard error that says what is happening now."""
    never = threading.Event()
    with Console(stderr=True).status("waiting") as status:

        def describe(row: Compaction) -> None:
            worker = f" by {row.worker_id}" if row.worker_id else " for a worker"
            job = f", job {row.job_id}" if row.job_id else ""
            status.update(Text(f"compaction {row.id} of {row.object_name}: {words(row.state)}{worker}{job}"))

        return wait_for(installation.db, compaction_id, pause=never.wait, timeout_s=timeout_s, on_change=describe)


def _outcome_line(row: Compaction) -> str:
    text = f"Compaction {row.id} of {row.object_name}: {words(row.state)}"
    if row.error_message:
        text += f" — {row.error_message}"
    if row.state is CompactionState.INITIATED:
        text += " — no worker took it; is 'compactor run' or 'compactor worker' running?"
    if row.state is CompactionState.WORKING:
        text += " — still running; 'compactor show compactions' tells when it is done"
    return text


def read_statements(path: str) -> str:
    """The text of a file of statements, `-` for standard input; UsageError when it cannot be read."""
    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 -- the message names the argument as given
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read statements from {path!r}: {error}") from error
