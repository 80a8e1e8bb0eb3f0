"""`compactor show transactions|locks|tables` and the answers of `abort`: what the metastore and the file system say."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from compactor.acid.directory import Snapshot, directory_state
from compactor.cli.installation import Installation
from compactor.cli.render import add_row, duration, instant, print_json, size, table, words
from compactor.errors import FormatError, StorageError
from compactor.metastore import catalog, locks, snapshots, txns, writeids
from compactor.metastore.aborting import Aborted
from compactor.metastore.catalog import TableName
from compactor.metastore.locks import LockFilter, LockInfo
from compactor.metastore.txns import TransactionInfo
from compactor.sql.statements import ShowLocks
from compactor.storage.filesystem import open_location


def transactions(installation: Installation) -> list[TransactionInfo]:
    """What SHOW TRANSACTIONS lists."""
    return txns.show_transactions(installation.db)


def print_transactions(
    installation: Installation, console: Console, rows: Sequence[TransactionInfo], *, as_json: bool
) -> None:
    if as_json:
        print_json(console, rows)
        return
    with installation.db.read() as conn:
        now = installation.db.now(conn)
    made = table("Transactions", "id", "state", "type", "started (UTC)", "last heartbeat", "user", "host", "agent")
    for row in rows:
        add_row(
            made,
            str(row.id),
            words(row.state),
            words(row.kind),
            instant(row.started),
            f"{duration(now - row.last_heartbeat)} ago",
            row.user,
            row.host,
            row.agent_info,
        )
    console.print(made)


def locks_of(installation: Installation, statement: ShowLocks) -> list[LockInfo]:
    """What SHOW LOCKS lists; NoSuchObject for a partition that does not exist."""
    of_table, partition = statement.table, None
    if statement.partition and of_table:
        partition = catalog.find_partition(installation.db, of_table, dict(statement.partition)).name
    filters = LockFilter(
        database=of_table.database if of_table else statement.database,
        table=of_table.table if of_table else None,
        partition=partition,
    )
    return locks.show_locks(installation.db, filters)


def print_locks(console: Console, rows: Sequence[LockInfo], *, extended: bool, as_json: bool) -> None:
    """extended: heartbeats and agents too; JSON always has them."""
    if as_json:
        print_json(console, rows)
        return
    more = ("last heartbeat (UTC)", "agent") if extended else ()
    columns = ("object", "type", "state", "transaction", "blocked by", "user", "host", "acquired (UTC)", *more)
    made = table("Locks", "id", *columns)
    for row in rows:
        place = "/".join(p for p in (f"{row.database}.{row.table}" if row.table else row.database, row.partition) if p)
        # a lock of a transaction lives by the transaction's heartbeat
        beat = instant(row.last_heartbeat) if row.last_heartbeat else "its transaction's"
        add_row(
            made,
            f"{row.lock_id}.{row.component}",
            place,
            words(row.type),
            words(row.state),
            str(row.txn_id or ""),
            "" if row.blocked_by is None else f"{row.blocked_by[0]}.{row.blocked_by[1]}",
            row.user,
            row.host,
            instant(row.acquired_at),
            *((beat, row.agent_info) if extended else ()),
        )
    console.print(made)


def print_aborted(console: Console, title: str, rows: Sequence[Aborted], *, as_json: bool) -> None:
    """The answer of ABORT: a row for each id."""
    if as_json:
        print_json(console, rows)
        return
    made = table(title, "id", "status", "message")
    for row in rows:
        add_row(made, str(row.id), row.status, row.message)
    console.print(made)


def show_tables(installation: Installation, console: Console, *, as_json: bool) -> None:
    """Transactional tables and partitions with what lies in their directories."""
    rows = [row for name in catalog.list_tables(installation.db) for row in _places(installation, name)]
    if as_json:
        print_json(console, rows)
        return
    right = ["base", "deltas", "delete deltas", "files", "size", "obsolete"]
    made = table("Tables", "table", "kind", *right, "problem", right=right)
    for row in rows:
        add_row(
            made,
            str(row["object"]),
            str(row["kind"]),
            *(str(row[c]) for c in ("base", "deltas", "delete_deltas", "files")),
            size(float(str(row["bytes"]))),
            str(row["obsolete"]),
            str(row["problem"]),
        )
    console.print(made)


def _places(installation: Installation, name: TableName) -> list[dict[str, object]]:
    found = catalog.get_table(installation.db, name)
    if not found.is_transactional or found.location is None:
        return []
    places = (
        [(f"{name}/{p.name}", p.location) for p in catalog.list_partitions(installation.db, name)]
        if found.is_partitioned
        else [(str(name), found.location)]
    )
    valid = snapshots.valid_txn_list(installation.db)
    snapshot = Snapshot(txns=valid, write_ids=writeids.valid_write_ids(installation.db, name, valid))
    kind = "full ACID" if found.is_full_acid else "insert-only"
    return [{"object": text, "kind": kind, "location": where, **_contents(where, snapshot)} for text, where in places]


def _contents(location: str, snapshot: Snapshot) -> dict[str, object]:
    """Counts of a location; a problem is shown in its row, not instead of the other rows."""
    counts: dict[str, object] = dict.fromkeys(("deltas", "delete_deltas", "files", "bytes", "obsolete"), 0)
    try:
        fs, root = open_location(location)
        listing = fs.listing(root)
        state = directory_state(listing, snapshot)
    except (StorageError, FormatError) as error:
        return {**counts, "base": "", "problem": error.message}
    return {
        "base": state.base.write_id if state.base is not None else "",
        "deltas": len(state.insert_deltas),
        "delete_deltas": len(state.delete_deltas),
        "files": len(listing.files),
        "bytes": sum(f.size for f in listing.files),
        "obsolete": len(state.obsolete) + len(state.aborted),
        "problem": "",
    }
