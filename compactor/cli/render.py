"""Tables for people and JSON for programs, from the same rows."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from compactor.errors import CompactorError
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import Compaction, CompactionState

STATE_STYLES: Mapping[CompactionState, str] = {
    CompactionState.INITIATED: "cyan",
    CompactionState.WORKING: "bold blue",
    CompactionState.READY_FOR_CLEANING: "yellow",
    CompactionState.FAILED: "bold red",
    CompactionState.SUCCEEDED: "green",
    CompactionState.DID_NOT_INITIATE: "red",
    CompactionState.REFUSED: "magenta",
    CompactionState.ABORTED: "dim",
}


def words(member: enum.Enum) -> str:
    """`ready for cleaning` for READY_FOR_CLEANING, as Hive spells states."""
    return member.name.lower().replace("_", " ")


def plain(value: Any) -> Any:  # noqa: PLR0911 -- one line a type
    """A value as JSON can say it; enums by their words, table names as `db.t`, sets sorted."""
    match value:
        case enum.Enum():
            return words(value)
        case TableName():
            return str(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case frozenset() | set():
            return sorted(plain(v) for v in value)
        case Mapping():
            return {str(k): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def say(console: Console, text: str) -> None:
    """A line with names, locations or reasons in it: never markup or emoji codes, never broken at the width."""
    console.print(text, markup=False, emoji=False, soft_wrap=True)


def print_error(console: Console, error: CompactorError) -> None:
    """The message, and in a second line the hint if there is one."""
    console.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble(("hint: ", "bold"), error.hint), soft_wrap=True)


def print_json(console: Console, rows: Any) -> None:
    """Indented, and coloured only on a terminal."""
    text = json.dumps(plain(rows), indent=2)
    if console.is_terminal:
        console.print_json(text)
    else:
        console.file.write(text + "\n")


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the first column names the object and is never broken."""
    made = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        justify: JustifyMethod = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=position == 0)
    return made


def add_row(made: Table, *cells: str | Text) -> None:
    """Cells as they are: in a plain string rich would look for markup and emoji codes, and names may hold both."""
    made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def instant(ms: int | None) -> str:
    """A database time in UTC; empty when not set."""
    return "" if ms is None else dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: int | None) -> str:
    """`850 ms`, `12.3 s`, `4 min 05 s`, `2 h 10 min`."""
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def compactions_table(rows: Sequence[Compaction]) -> Table:
    """What SHOW COMPACTIONS says, without the columns that nobody reads on a terminal (`--json` has all)."""
    made = table(
        "Compactions", "id", "table", "type", "state", "enqueued (UTC)", "took", "worker", "reason", right=["id"]
    )
    for row in rows:
        took = (row.commit_time or row.end or 0) - row.start if row.start and (row.commit_time or row.end) else None
        add_row(
            made,
            str(row.id),
            row.object_name,
            words(row.type),
            Text(words(row.state), style=STATE_STYLES[row.state]),
            instant(row.enqueue_time),
            duration(took),
            row.worker_id or "",
            row.error_message or "",
        )
    return made
