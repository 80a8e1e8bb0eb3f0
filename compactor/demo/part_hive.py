"""Part one of the demo: tables that a real Hive wrote, compacted and cleaned, row by row what Hive returned."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from compactor.demo.daemon import run_until_idle
from compactor.demo.hive_prints import printed_rows
from compactor.demo.hive_tables import ExpectedTable, expected_tables, load
from compactor.demo.place import DemoPlace
from compactor.errors import CompactorError, VerificationError
from compactor.metastore import catalog, history
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState
from compactor.metastore.database import Database
from compactor.table.reader import open_snapshot


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A table at one moment. equal: its rows and row ids are those that Hive returned."""

    files: int
    bytes: int
    rows: int
    equal: bool


def show_hive_tables(console: Console, place: DemoPlace, db: Database) -> None:
    """Run it and print the comparison; VerificationError when a single row differs."""
    console.rule("[bold]1. Tables that a real Hive 4.0.1 wrote[/]", align="left")
    load(db, place.root)
    place.write_settings(delta_num_threshold=1)
    tables = expected_tables()
    before = {t.name: _look(place, db, t) for t in tables}
    with console.status("initiator, worker and cleaner run until nothing is left to do"):
        run_until_idle(place.config, place.log)
    after = {t.name: _look(place, db, t) for t in tables}
    done = _done(db)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("table", no_wrap=True)
    for column in ("files", "bytes", "rows"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("compactions")
    made.add_column("rows and ROW__IDs")
    for table in tables:
        was, now = before[table.name], after[table.name]
        made.add_row(
            f"fx.{table.name}",
            f"{was.files} → {now.files}",
            f"{was.bytes:,} → {now.bytes:,}",
            str(now.rows),
            done.get(table.name, "nothing to gain"),
            "[green]as Hive returned them[/]" if was.equal and now.equal else "[bold red]DIFFERENT[/]",
        )
    made.add_section()
    made.add_row(
        "all",
        f"{sum(b.files for b in before.values())} → {sum(a.files for a in after.values())}",
        f"{sum(b.bytes for b in before.values()):,} → {sum(a.bytes for a in after.values()):,}",
        str(sum(a.rows for a in after.values())),
    )
    console.print(made)
    wrong = [name for name in before if not (before[name].equal and after[name].equal)]
    if wrong:
        raise VerificationError(f"rows differ from Hive's in {', '.join(wrong)}", hint=f"see {place.log}")


def _look(place: DemoPlace, db: Database, table: ExpectedTable) -> _Look:
    name = TableName(database="fx", table=table.name)
    described = catalog.get_table(db, name)
    files, size = place.files_below(described.location or "")
    with open_snapshot(db, [name], user="demo", host="demo") as snapshot:
        rows = snapshot.read(name)
        equal = sorted(printed_rows(rows), key=repr) == sorted(table.printed_rows(), key=repr)
        if table.row_ids is not None:
            ids = snapshot.read(name, columns=["id"], with_row_ids=True)
            found = sorted(zip(*(c.to_pylist() for c in ids.columns), strict=True))
            equal = equal and found == sorted((w, b, r, key) for w, b, r, _, key in table.row_ids)
    return _Look(files=files, bytes=size, rows=rows.num_rows, equal=equal)


def _done(db: Database) -> dict[str, str]:
    """What happened to each table, from the history; a failure ends the demo."""
    counts: dict[str, dict[str, int]] = {}
    for row in history.show_compactions(db, filters=history.CompactionFilter(database="fx")):
        if row.state is CompactionState.FAILED:
            raise CompactorError(f"{row.type.name.lower()} of {row.object_name} failed: {row.error_message}")
        if row.state is CompactionState.SUCCEEDED:
            kinds = counts.setdefault(row.table.table, {})
            kinds[row.type.name.lower()] = kinds.get(row.type.name.lower(), 0) + 1
    return {
        table: ", ".join(f"{kind} × {n}" if n > 1 else kind for kind, n in sorted(kinds.items()))
        for table, kinds in counts.items()
    }
