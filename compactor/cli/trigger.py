"""Commands that ask for compactions and look at what would be done: compact, sql, plan."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from rich.console import Console

from compactor.acid.directory import Snapshot
from compactor.acid.partition_name import partition_values
from compactor.acid.planning import CompactionPlan, Depth, ItemKind, Refusal
from compactor.cli.installation import VERSION, Installation
from compactor.cli.render import compactions_table, print_json, size, table, words
from compactor.errors import UsageError
from compactor.jobs.planner import CompactionTarget, plan, survey
from compactor.metastore import catalog, history, snapshots, writeids
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState
from compactor.service.requests import WAIT_TIMEOUT_S, Wish, request, wait_for
from compactor.service.targets import compaction_target
from compactor.sql.parser import parse
from compactor.sql.statements import AlterTableCompact, ShowCompactions

DONE, FAILED, REFUSED = 0, 1, 3
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


def trigger(installation: Installation, console: Console, wish: Wish, *, wait: bool, timeout_s: float) -> int:
    """Queue a wish and say so; with `wait`, stay until it is done. Returns the exit code."""
    outcome = request(installation.db, wish, host=installation.host, version=VERSION)
    if outcome.accepted:
        console.print(f"Compaction {outcome.id} of {wish.table} is queued.")
    else:
        console.print(f"{outcome.reason}.")
    if not wait:
        return DONE
    done = _wait(installation, console, outcome.id, timeout_s)
    console.print(_outcome_line(done))
    return _EXIT_CODES[done.state]


def run_sql(installation: Installation, console: Console, text: str, *, as_json: bool) -> int:
    """Run every statement of a text; stops at the first that fails. Returns the exit code."""
    code = DONE
    for statement in parse(text):
        match statement:
            case AlterTableCompact():
                code = trigger(
                    installation, console, _wish(statement), wait=statement.and_wait, timeout_s=WAIT_TIMEOUT_S
                )
            case ShowCompactions():
                _show(installation, console, statement, as_json=as_json)
            case _:
                assert_never(statement)
        if code != DONE:
            break
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
        except UsageError as error:
            console.print(f"[red]{error}[/]", highlight=False)
        pending = ""


def show_plan(installation: Installation, console: Console, name: str, *, as_json: bool) -> int:
    """What a minor and a major compaction would do now."""
    text, _, partition = name.partition("/")
    target = _target(installation, TableName.parse(text), partition or None)
    txns = snapshots.valid_txn_list(installation.db)
    ids = writeids.valid_write_ids(installation.db, TableName.parse(text), txns).for_compaction()
    snapshot = Snapshot(txns=txns, write_ids=ids)
    surveyed = survey(target, snapshot)
    # The transaction that would compact does not exist yet; its id only decides the output's name.
    plans = {d: plan(target, surveyed, snapshot, d, txn_id=txns.high_water + 1) for d in Depth}
    rows = [_PlanRow.of(depth, made) for depth, made in plans.items()]
    if as_json:
        print_json(console, {"object": target.name, "location": target.location, "plans": rows})
        return DONE
    console.print(f"{target.name} at {target.location}, up to write id {ids.high_water}", highlight=False)
    columns = ("files", "bytes", "rows", "delete events")
    made = table("", "compaction", "verdict", *columns, "output", right=columns)
    for row in rows:
        counts = (row.files_in, row.rows_in, row.delete_events)
        files, rows_in, deletes = (f"{n:,}" if n else "" for n in counts)
        made.add_row(
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


def _target(installation: Installation, name: TableName, partition: str | None) -> CompactionTarget:
    """The table or partition a user named."""
    db = installation.db
    found = catalog.get_table(db, name)
    if found.is_partitioned and partition is None:
        known = ", ".join(p.name for p in catalog.list_partitions(db, name)[:5])
        raise UsageError(f"{name} is partitioned", hint=f"name a partition, as in {name}/{known or 'p=x'}")
    named = catalog.find_partition(db, name, partition_values(partition)).name if partition else None
    return compaction_target(db, found, named)


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


def _show(installation: Installation, console: Console, statement: ShowCompactions, *, as_json: bool) -> None:
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
    print_compactions(
        console, history.show_compactions(installation.db, filters=filters, limit=statement.limit), as_json=as_json
    )


def print_compactions(console: Console, rows: Sequence[Compaction], *, as_json: bool) -> None:
    if as_json:
        print_json(console, rows)
    else:
        console.print(compactions_table(rows))


def _wait(installation: Installation, console: Console, compaction_id: int, timeout_s: float) -> Compaction:
    """Wait with a line that says what is happening now."""
    never = threading.Event()
    with console.status("waiting") as status:

        def describe(row: Compaction) -> None:
            worker = f" by {row.worker_id}" if row.worker_id else " for a worker"
            job = f", job {row.job_id}" if row.job_id else ""
            status.update(f"compaction {row.id} of {row.object_name}: {words(row.state)}{worker}{job}")

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
