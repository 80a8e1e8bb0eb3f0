"""The demo from beginning to end."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from compactor.demo.part_flights import stream_flights
from compactor.demo.part_hive import show_hive_tables
from compactor.demo.place import prepare


def run_demo(console: Console, directory: Path) -> None:
    """Both parts in `directory`, which is left for a look; the next commands to try at the end.

    Raises VerificationError when any row is not what it must be.
    """
    started = time.monotonic()
    place, db = prepare(directory)
    try:
        show_hive_tables(console, place, db)
        stream_flights(console, place, db)
    finally:
        db.dispose()
    config = f"--config {place.config}"
    console.rule(f"[bold]Done in {time.monotonic() - started:.0f} s. Now try[/]", align="left")
    for command in (
        f"compactor show compactions {config}",
        f"compactor show tables {config}",
        f"compactor plan demo.flights_uncompacted {config}",
        f"compactor sql \"ALTER TABLE demo.flights_uncompacted COMPACT 'major'\" {config}",
        f"compactor run --until-idle {config}",
        f"ls -R {place.root / 'warehouse'} | head -50",
    ):
        console.print(f"  {command}", soft_wrap=True, highlight=False)
