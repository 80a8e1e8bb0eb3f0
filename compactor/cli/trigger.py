"""Commands that ask for compactions and look at what would be done: compact, sql, plan."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from rich.console import Console
from rich.text import Text

from compactor.acid.directory import Snapshot
from compactor.acid.partition_name import partition_values
from compactor.acid.planning import CompactionPlan, Depth, ItemKind, Refusal
from compactor.cli.installation import VERSION, Installation
from compactor.cli.render import add_row, compactions_table, print_error, print_json, say, size, table, words
from compactor.errors import CompactorError, UsageError
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.metastore import catalog, history, snapshots, writeids
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState, CompactionType
from compactor.service.requests import WAIT_TIMEOUT_S, RequestRefused, Wish, request, wait_for
from compactor.service.targets import compaction_target, why_never_compacted
from compactor.sql.parser import parse
from compactor.sql.statements import AlterTableCompact, ShowCompactions

DONE, FAILED, REFUSED = 0, 1, 3
_TYPES = {Depth.MINOR: CompactionType.MINOR, Depth.MAJOR: CompactionType.MAJOR}
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

    as_json: the rows of a lone SHOW COMPACTIONS; otherwise a list with one result a statement, those before an error
    included: `{"id", "accepted", "state", "reason"}` of a request, the list of rows of a SHOW.
    """
    statements = parse(text)
    if as_json and len(statements) == 1 and isinstance(statements[0], ShowCompactions):
        print_json(console, _rows(installation, statements[0]))
        return DONE
    results: list[object] = []
    code = DONE
    try:
        for statement in statements:
            match statement:
                case AlterTableCompact():
                    tell = _sayer(console, as_json=as_json)
                    wait = statement.and_wait
                    answer = _ask(installation, tell, _wish(statement), wait=wait, timeout_s=WAIT_TIMEOUT_S)
                    code = answer.code
                    results.append(answer.summary())
                case ShowCompactions():
                    rows = _rows(installation, statement)
                    results.append(rows)
                    if not as_json:
                        print_compactions(console, rows, as_json=False)
                case _:
                    assert_never(statement)
            if code != DONE:
                break
    finally:
        if as_json:
            print_json(console, results)
    return code


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


def show_plan(installation: Installation, console: Console, name: str, *, as_json: bool) -> int:
    """What a minor and a major compaction would do now."""
    text, _, partition = name.partition("/")
    found, partition_name = _find(installation, TableName.parse(text), partition or None)
    target = compaction_target(installation.db, found, partition_name)
    txns = snapshots.valid_txn_list(installation.db)
    ids = writeids.valid_write_ids(installation.db, found.name, txns).for_compaction()
    plans = _plans(found, partition_name, target, Snapshot(txns=txns, write_ids=ids))
    rows = [_PlanRow.of(depth, made) for depth, made in plans.items()]
    if as_json:
        print_json(console, {"object": target.name, "location": target.location, "plans": rows})
        return DONE
    say(console, f"{target.name} at {target.location}, up to write id {ids.high_water}")
    columns = ("files", "bytes", "rows", "delete events")
    made = table("", "compaction", "verdict", *columns, "output", right=columns)
    for row in rows:
        counts = (row.files_in, row.rows_in, row.delete_events)
        files, rows_in, deletes = (f"{n:,}" if n else "" for n in counts)
        add_row(
            made,
            row.compaction,
            row.verdict,
            files,
            size(row.bytes_in) if row.bytes_in else "",
            rows_in,
            deletes,
            "\n".join(row.output),
        )
    console.print(made)
    return DONE


def _plans(
    found: catalog.Table, partition: str | None, target: CompactionTarget, snapshot: Snapshot
) -> dict[Depth, CompactionPlan | Refusal]:
    """What a worker would do for each depth, what it never does included."""
    reasons = {d: why_never_compacted(found, _TYPES[d], partition) for d in Depth}
    if all(reasons.values()):
        # Such a location may hold files that cannot be surveyed at all.
        return {d: Refusal(reason=reason, leftovers=False) for d, reason in reasons.items()}
    surveyed = survey(target, snapshot)
    # The transaction that would compact does not exist yet; its id only decides the output's name.
    txn_id = snapshot.txns.high_water + 1
    return {
        d: Refusal(reason=reason, leftovers=False) if reason else plan(target, surveyed, snapshot, d, txn_id=txn_id)
        for d, reason in reasons.items()
    }


@dataclass(frozen=True, kw_only=True)
class _PlanRow:
    """A plan as it is shown. output: directories that would be written."""

    compaction: str
    verdict: str
    files_in: int = 0
    bytes_in: int = 0
    rows_in: int = 0
    delete_events: int = 0
    output: tuple[str, ...] = ()

    @classmethod
    def of(cls, depth: Depth, made: CompactionPlan | Refusal) -> _PlanRow:
        if isinstance(made, Refusal):
            return cls(compaction=depth.value, verdict=f"refused: {made.reason}")
        events = sum(i.rows_in for i in made.items if i.kind is ItemKind.DELETES)
        return cls(
            compaction=depth.value,
            verdict="worth doing",
            files_in=made.files_in,
            bytes_in=made.bytes_in,
            rows_in=sum(i.rows_in for i in made.items if i.kind is not ItemKind.DELETES),
            delete_events=events + sum(d.rows for i in made.items for d in i.deletes),
            output=made.directories,
        )


def _find(installation: Installation, name: TableName, partition: str | None) -> tuple[catalog.Table, str | None]:
    """The table a user named, and the partition as the catalogue spells it."""
    db = installation.db
    found = catalog.get_table(db, name)
    if found.is_partitioned and partition is None:
        known = ", ".join(p.name for p in catalog.list_partitions(db, name)[:5])
        raise UsageError(f"{name} is partitioned", hint=f"name a partition, as in {name}/{known or 'p=x'}")
    return found, catalog.find_partition(db, name, partition_values(partition)).name if partition else None


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
