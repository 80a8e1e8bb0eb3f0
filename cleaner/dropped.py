"""What a DROP left behind: with lockless reads Hive forgets a table or partition and leaves its files to the cleaner.

Hive puts a row in state r into the queue, with the location as a property, and the transaction of the DROP dates it
(`metastore.soft_delete`). Hive's cleaner then deletes that directory with all that is in it. Ours:

1. The transaction of the DROP is aborted: the object and its files stay, the row fails. One exception: the directory
   has the suffix of that very transaction. It is then that of a CREATE TABLE AS SELECT that failed (Hive leaves such a
   row for it), which nobody has ever seen.
2. Someone who opened before the DROP ended may still read: held, by the rule of every compaction (`cleaner.drain`, I5).
3. The location has to look as Hive makes it, or nothing is touched: a table's ends in `.v<transaction>`, which no other
   table ever gets; a partition's holds the base `base_N` with which Hive marks it as dropped, N the row's write id.
4. A partition is locked EXCL_WRITE, so that no INSERT creates it again meanwhile; not at once: held, nobody queues.
5. Nothing of the catalogue may live there, below or above, looked up after the listing. A partition that was created
   again in the same place is cleaned like any other: the mark hides what is older, as a compacted base would.
6. Remove what parses as ACID entries (`cleaner.remover`), of a partition only up to N, the mark last: a crash leaves
   what a second run removes, and never rows that come back. Then directories, where they are empty. A partition's own
   directory goes only on a local disk: elsewhere an empty one cannot be told in one step from one that is being filled.
7. List again. Something foreign is left: it stays, and the row is refused and names it, because nobody but a person
   knows whether it is needed. Otherwise the row succeeds. The DROP itself forgot what the database knew.

Sources: Hive 4.0.1 `AcidEventListener`, `HiveQueryLifeTimeHook`, `HMSHandler.addTruncateBaseFile`,
`CompactionCleaner.cleanUsingLocation`, `FSRemover`, `AcidConstants.SOFT_DELETE_TABLE_PATTERN`.
"""

from __future__ import annotations

import enum
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cleaner.drain import HeldBy
from cleaner.obsolete import Doomed, Why
from cleaner.remover import Removed, is_local, remove_below, remove_empty
from compactor.acid.directory import ListedFile, Listing
from compactor.acid.layout import METADATA_FILE, Base, base_name, is_hidden, parse_bucket, parse_directory
from compactor.acid.snapshot import ValidTxnList
from compactor.errors import NoSuchLock, PathNotFound, UnparsableName
from compactor.metastore.catalog import get_tables
from compactor.metastore.compaction import Compaction
from compactor.metastore.database import Database
from compactor.metastore.last_look import Subject, last_look
from compactor.metastore.locks import LockComponent, LockRequest, LockState, LockType, acquire, unlock
from compactor.metastore.occupants import Occupant, Place, occupants
from compactor.metastore.txns import TxnState, transaction_state
from compactor.storage.filesystem import FileSystem, FilesystemOf

LOCATION_PROPERTY = "location"
"""The property of a row that makes it one about a dropped object, whose files are there."""

_SUFFIXED = re.compile(r".+\.v(\d{7,})", re.ASCII)
_NAMED_AT_MOST = 5


class Fate(enum.Enum):
    """What became of the files of a dropped object."""

    GONE = "gone"
    """Nothing of the object is left."""
    FOREIGN = "foreign"
    """Something is left, or everything, that only a person may remove."""
    NEVER_DROPPED = "never dropped"
    """The DROP was aborted: nothing was touched."""
    CREATED_AGAIN = "created again"
    """A partition of that name lives there: it is cleaned like any other, nothing was touched."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A row about a dropped object that has not to wait. reason: one sentence unless GONE or CREATED_AGAIN."""

    fate: Fate
    removed: Removed = field(default_factory=Removed)
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What lies at a dropped location, sorted. Pure: made from a listing.

    doomed: by partition directory, '' for the location itself; names relative to it. mark: the base that says that a
    partition was dropped, removed last. directories: to be removed where they are empty, deepest first, without the
    location itself. foreign: paths of files that no ACID writer leaves.
    """

    doomed: Mapping[str, tuple[Doomed, ...]]
    mark: Doomed | None = None
    directories: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.mark is None and not any(self.doomed.values())


def suffix_of(location: str) -> int | None:
    """The transaction that created a table, where its location says so: 123 of `sales.v0000123`."""
    *_, name = ("", *Place.of(location).parts)
    match = _SUFFIXED.fullmatch(name)
    return None if match is None else int(match[1])


def of_table(listing: Listing, directories: Collection[str]) -> Leftovers:
    """Everything of a dropped table, in its partition directories `p=x/q=y` too.

    listing: of its location. directories: all below it, relative.
    """
    names: defaultdict[str, set[str]] = defaultdict(set)
    files: defaultdict[str, list[ListedFile]] = defaultdict(list)
    for directory in directories:
        partition, name = _split(directory, is_directory=True)
        names[partition].add(name.partition("/")[0])
    for file in listing.files:
        partition, name = _split(file.path, is_directory=False)
        names[partition].add(name.partition("/")[0] if "/" in name else "")
        files[partition].append(ListedFile(path=name, size=file.size))
    doomed: dict[str, tuple[Doomed, ...]] = {}
    foreign: list[str] = []
    for partition in sorted(names):
        inside = Listing(directories=frozenset(names[partition] - {""}), files=tuple(files[partition]))
        doomed[partition], unknown = _entries(inside)
        foreign += [f"{partition}/{path}".lstrip("/") for path in unknown]
    outside = [directory for directory in directories if not any(map(_is_acid, directory.split("/")))]
    return Leftovers(doomed=doomed, directories=_deepest_first(outside), foreign=tuple(foreign))


def of_partition(listing: Listing, *, dropped_at: int) -> Leftovers:
    """Everything of a dropped partition that the DROP could know: up to its write id, dropped_at.

    What was written later belongs to somebody who is creating the partition again; it is neither doomed nor foreign,
    and neither is a directory, which may be about to be filled.
    """
    found, foreign = _entries(listing)
    own = [entry for entry in found if _last_write_id(entry) <= dropped_at]
    mark = next((entry for entry in own if entry.name == base_name(dropped_at)), None)
    doomed = {"": tuple(entry for entry in own if entry is not mark)}
    return Leftovers(doomed=doomed, mark=mark, foreign=tuple(sorted(foreign)))


def _entries(listing: Listing) -> tuple[tuple[Doomed, ...], list[str]]:
    """ACID directories and original files directly in a table or partition, and the paths of files that are neither."""
    entries: list[Doomed] = []
    foreign: list[str] = []
    loose = list(listing.all_files(""))
    for name in sorted(listing.directories):
        files = listing.all_files(name)
        if _is_acid(name):
            entries.append(Doomed(name=name, why=Why.DROPPED, is_directory=True, files=files))
        else:
            loose += files
    for file in loose:
        if _is_original(file.path):
            entries.append(Doomed(name=file.path, why=Why.DROPPED, is_directory=False, files=(file,)))
        else:
            foreign.append(file.path)
    return tuple(entries), foreign


def _is_acid(name: str) -> bool:
    try:
        return parse_directory(name) is not None
    except UnparsableName:
        return False


def _is_original(path: str) -> bool:
    """`000000_0`, also as UNION ALL leaves it, in a directory; not in one that looks like a partition or a delta."""
    *above, name = path.split("/")
    looks_foreign = any("=" in part or part.startswith(("base_", "delta_", "delete_delta_")) for part in above)
    return parse_bucket(name) is not None and not looks_foreign and not any(map(is_hidden, (*above, name)))


def _split(path: str, *, is_directory: bool) -> tuple[str, str]:
    """A path below a table as its partition directory and the rest; both may be empty."""
    parts = path.split("/")
    depth = 0
    while depth < len(parts) - (not is_directory) and _is_partition_part(parts[depth]):
        depth += 1
    return "/".join(parts[:depth]), "/".join(parts[depth:])


def _is_partition_part(part: str) -> bool:
    column, equals, value = part.partition("=")
    return bool(column and equals and value) and not is_hidden(part)


def _last_write_id(entry: Doomed) -> int:
    """The newest write that may be in an entry; 0 for original files, which are older than any."""
    parsed = parse_directory(entry.name) if entry.is_directory else None
    if parsed is None:
        return 0
    return parsed.write_id if isinstance(parsed, Base) else parsed.max_write_id


def _deepest_first(directories: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(directories, key=lambda name: (-name.count("/"), name)))


def end_dropped(
    db: Database, filesystem_of: FilesystemOf, compaction: Compaction, txns: ValidTxnList
) -> Ended | HeldBy:
    """Remove what the dropped object of a row left at the row's location; the row itself stays as it is.

    compaction: a row with LOCATION_PROPERTY. txns: the transactions as they were after the row was found ready.
    MetastoreError (Fenced: the row waits no longer), StorageError.
    """
    if (too_early := _too_early(db, compaction, txns)) is not None:
        return too_early
    if compaction.partition is None:
        return _end_table(db, filesystem_of, compaction)
    with _locked(db, compaction) as in_the_way:
        if in_the_way is not None:
            return HeldBy(compaction=compaction, reason=in_the_way)
        return _end_partition(db, filesystem_of, compaction)


def _too_early(db: Database, compaction: Compaction, txns: ValidTxnList) -> Ended | HeldBy | None:
    """Steps 1 and 2: None when whoever knew the object has finished, or nobody ever knew it."""
    if compaction.txn_id is None:
        return _foreign(compaction, "no transaction is known to have dropped it")
    state = transaction_state(db, compaction.txn_id)
    if state is TxnState.OPEN:
        return HeldBy(compaction=compaction, reason=f"the DROP, transaction {compaction.txn_id}, has not ended")
    if state is not TxnState.ABORTED:
        return _held_by_readers(db, compaction, txns)
    if compaction.partition is None and suffix_of(compaction.properties[LOCATION_PROPERTY]) == compaction.txn_id:
        return None
    reason = f"the DROP, transaction {compaction.txn_id}, is aborted: the object and its files stay"
    return Ended(fate=Fate.NEVER_DROPPED, reason=reason)


def _held_by_readers(db: Database, compaction: Compaction, txns: ValidTxnList) -> Ended | HeldBy | None:
    # Of a row without NEXT_TXN_ID nobody knows when it was dropped, only that it was before that moment
    up_to = compaction.next_txn_id if compaction.next_txn_id is not None else txns.high_water
    look = last_look(db, compaction, Subject(table_id=_id_of_table(db, compaction)), up_to=up_to)
    if look.forbidden_by is not None:
        return _foreign(compaction, "no_cleanup is set on the table")
    if look.blocker is None:
        return None
    who = f"transaction {look.blocker.txn_id} of {look.blocker.user}@{look.blocker.host}"
    reason = f"{who} is open and may read the dropped object"
    return HeldBy(compaction=compaction, reason=reason, blocker=look.blocker)


def _id_of_table(db: Database, compaction: Compaction) -> int:
    """Of the table that a dropped partition was of, for its parameters; 0 when there is none, or none any more."""
    if compaction.partition is None:
        return 0
    table = get_tables(db, {compaction.table}).get(compaction.table)
    return 0 if table is None else table.id


def _end_table(db: Database, filesystem_of: FilesystemOf, compaction: Compaction) -> Ended | HeldBy:
    location = compaction.properties[LOCATION_PROPERTY]
    if suffix_of(location) is None:
        return _foreign(compaction, "its name has no suffix '.v…', so it may have been another table's, too")

    def look(filesystem: FileSystem, path: str) -> Leftovers:
        return of_table(filesystem.listing(path), filesystem.directories(path))

    def protest(leftovers: Leftovers) -> Ended | None:
        taken = occupants(db, location)
        return _foreign(compaction, _lives_there(taken)) if taken else None

    return _sweep(filesystem_of, compaction, look, protest)


def _end_partition(db: Database, filesystem_of: FilesystemOf, compaction: Compaction) -> Ended | HeldBy:
    location = compaction.properties[LOCATION_PROPERTY]
    place = Place.of(location)
    dropped_at = compaction.highest_write_id or 0

    def look(filesystem: FileSystem, path: str) -> Leftovers:
        return of_partition(filesystem.listing(path), dropped_at=dropped_at)

    def protest(leftovers: Leftovers) -> Ended | None:
        marked = _is_marked(*filesystem_of(location), leftovers)
        # Every partition is below its own table
        taken = [o for o in occupants(db, location) if not o.is_of(compaction.table, None) or o.place.is_same(place)]
        if taken and all(o.is_of(compaction.table, compaction.partition) and o.place.is_same(place) for o in taken):
            return Ended(fate=Fate.CREATED_AGAIN)
        if taken:
            return _foreign(compaction, _lives_there(taken))
        return None if marked else _foreign(compaction, f"no {base_name(dropped_at)} says that Hive dropped it")

    return _sweep(filesystem_of, compaction, look, protest)


def _sweep(
    filesystem_of: FilesystemOf,
    compaction: Compaction,
    look: Callable[[FileSystem, str], Leftovers],
    protest: Callable[[Leftovers], Ended | None],
) -> Ended | HeldBy:
    """Steps 5 to 7. look: lists the location. protest: why nothing may be removed; asked as late as possible."""
    location = compaction.properties[LOCATION_PROPERTY]
    filesystem, path = filesystem_of(location)
    removed = Removed()
    try:
        leftovers = look(filesystem, path)
        if (ended := protest(leftovers)) is not None:
            return ended
        removed += remove_below(filesystem, path, leftovers.doomed, location=location)
        if leftovers.mark is not None:
            removed += remove_below(filesystem, path, {"": (leftovers.mark,)}, location=location)
        itself = ("",) if compaction.partition is None or is_local(location) else ()
        remove_empty(filesystem, path, (*leftovers.directories, *itself), location=location)
        return _verdict(compaction, look(filesystem, path), removed)
    except PathNotFound:
        # A directory that vanished while it was listed says nothing of the others
        if filesystem.exists(path):
            raise
        return Ended(fate=Fate.GONE, removed=removed)


def _is_marked(filesystem: FileSystem, path: str, leftovers: Leftovers) -> bool:
    """Is there a base without rows whose metadata says `dropped` (AcidMetaDataFile.DataFormat)?

    Where nothing else is left, a run that crashed may have taken the metadata already.
    """
    mark, others = leftovers.mark, any(leftovers.doomed.values())
    if mark is None or not others:
        return not others and not (mark and _visible(mark))
    try:
        with filesystem.open(f"{path}/{mark.name}/{METADATA_FILE}") as stream:
            return not _visible(mark) and b'"dropped"' in stream.read()
    except PathNotFound:
        return False


def _visible(entry: Doomed) -> bool:
    return any(not is_hidden(file.name) for file in entry.files)


def _verdict(compaction: Compaction, left: Leftovers, removed: Removed) -> Ended | HeldBy:
    if not left.is_empty:
        count = sum(map(len, left.doomed.values())) + (left.mark is not None)
        return HeldBy(compaction=compaction, reason=f"{count} entries are still there after their removal")
    if left.foreign:
        named = ", ".join(left.foreign[:_NAMED_AT_MOST])
        more = len(left.foreign) - _NAMED_AT_MOST
        reason = f"{named}{f' and {more} more' if more > 0 else ''} are no files of an ACID table"
        return _foreign(compaction, reason, removed)
    return Ended(fate=Fate.GONE, removed=removed)


def _foreign(compaction: Compaction, why: str, removed: Removed | None = None) -> Ended:
    location = compaction.properties[LOCATION_PROPERTY]
    reason = f"Hive dropped the object and left its files at {location}: {why}; remove them by hand"
    return Ended(fate=Fate.FOREIGN, removed=removed or Removed(), reason=reason)


def _lives_there(taken: Collection[Occupant]) -> str:
    return f"{', '.join(sorted(o.name for o in taken)[:_NAMED_AT_MOST])} of the catalogue lives there"


@contextmanager
def _locked(db: Database, compaction: Compaction) -> Iterator[str | None]:
    """An EXCL_WRITE lock on the partition, as Hive takes it; yields who is in the way, None when it was free."""
    component = LockComponent(
        database=compaction.table.database,
        table=compaction.table.table,
        partition=compaction.partition,
        type=LockType.EXCL_WRITE,
    )
    user = compaction.run_as or "hive"
    request = LockRequest(
        txn_id=0, components=(component,), user=user, host=socket.gethostname(), agent_info="compactor-cleaner"
    )
    response = acquire(db, request)
    try:
        if response.state is LockState.ACQUIRED:
            yield None
        else:
            by = response.blocked_by
            who = "an earlier lock" if by is None else f"lock {by.lock_id} of {by.user}@{by.host}"
            yield f"{who} is in the way of removing the dropped partition"
    finally:
        # Who took longer than a lock without heartbeats lasts has lost it; write ids still tell old from new
        with suppress(NoSuchLock):
            unlock(db, response.lock_id)
