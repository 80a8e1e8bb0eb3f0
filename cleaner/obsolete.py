"""What may be removed from a location. Pure: a listing and a snapshot in, names and reasons out.

The snapshot is that of the compaction being cleaned: transactions up to the one that was newest when it was published,
write ids up to the highest it compacted. An entry goes when that snapshot does not need it:

* obsolete: a base, delta or original file that a better base or delta covers;
* aborted: written by transactions that are all aborted.

An entry that the snapshot does not see (its transaction is open, younger or unknown) is neither, and stays. So does
what is current, an empty base among it: without it the rows it hides would come back (HIVE-25492).

Aborted write ids may be forgotten by the database only when no file is left that could hold their rows; otherwise the
rows would come back. That is why a removal also says which ids are gone for good.
Sources: Hive `CompactionCleaner`, `AbortedTxnCleaner`, `TaskHandler`.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, ListedFile, Listing, Snapshot, directory_state
from compactor.acid.layout import Base, parse_directory


class Why(enum.Enum):
    """Why an entry may go."""

    OBSOLETE = "obsolete"
    """A compaction or an INSERT OVERWRITE replaced it."""
    ABORTED = "aborted"
    """Nobody may ever see it: its transactions are aborted."""
    DROPPED = "dropped"
    """Its table or partition was dropped, and who knew it then has finished (`cleaner.dropped`)."""


@dataclass(frozen=True, kw_only=True)
class Doomed:
    """One entry to remove.

    name: relative to the location. is_directory: an ACID directory; otherwise an original file. files: every file
    inside, hidden and empty ones included, or the file itself.
    """

    name: str
    why: Why
    is_directory: bool
    files: tuple[ListedFile, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(f.size for f in self.files)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What to remove from a location, and what the database may forget afterwards.

    forgettable: aborted write ids of the snapshot that no remaining file can contain; any other must be remembered.
    """

    doomed: tuple[Doomed, ...]
    forgettable: frozenset[int] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.doomed)


def replaced(listing: Listing, snapshot: Snapshot) -> Removal:
    """Everything that a published compaction made superfluous: obsolete and aborted entries.

    snapshot: its write ids end at the row's highest write id. Raises as `directory_state` does.
    """
    state = directory_state(listing, snapshot)
    obsolete = [_doomed(listing, name, Why.OBSOLETE) for name in state.obsolete]
    return _removal(listing, snapshot, obsolete + _aborted(listing, state))


def aborted(listing: Listing, snapshot: Snapshot) -> Removal:
    """Only what aborted transactions left, never an obsolete entry.

    For clean-ups without a compaction: nothing says how far obsolete entries are still being read (HIVE-25502, I8).
    """
    return _removal(listing, snapshot, _aborted(listing, directory_state(listing, snapshot)))


def output_of(listing: Listing, txn_id: int) -> Removal:
    """The directories that one transaction's compaction wrote: entries named `…_v<txn_id>`. No write id is forgotten.

    txn_id: an aborted compaction's transaction.
    """
    names = [
        name
        for name in sorted(listing.directories)
        if (entry := parse_directory(name)) is not None and entry.visibility_txn == txn_id > 0
    ]
    return Removal(doomed=tuple(_doomed(listing, name, Why.ABORTED) for name in names))


def _aborted(listing: Listing, state: DirectoryState) -> list[Doomed]:
    return [_doomed(listing, name, Why.ABORTED) for name in state.aborted]


def _doomed(listing: Listing, name: str, why: Why) -> Doomed:
    if name in listing.directories and parse_directory(name) is not None:
        return Doomed(name=name, why=why, is_directory=True, files=listing.all_files(name))
    inside = listing.all_files(name.partition("/")[0] if "/" in name else "")
    return Doomed(name=name, why=why, is_directory=False, files=tuple(f for f in inside if f.path == name))


def _removal(listing: Listing, snapshot: Snapshot, doomed: list[Doomed]) -> Removal:
    going = {entry.name for entry in doomed}
    candidates = sorted(i for i in snapshot.write_ids.aborted if i <= snapshot.write_ids.high_water)
    left = {i for name in listing.directories - going for i in _may_contain(name, candidates)}
    return Removal(
        doomed=tuple(sorted(doomed, key=lambda entry: entry.name)),
        forgettable=frozenset(candidates) - left,
    )


def _may_contain(name: str, aborted_ids: Sequence[int]) -> Sequence[int]:
    """The aborted ids, ascending, whose rows may be in a directory.

    A compaction's output has none: compactions leave aborted rows out, whatever range the name covers. A delta counts
    even when the snapshot ends inside its range, as it does in a streaming batch that is still being written.
    """
    entry = parse_directory(name)
    if entry is None or entry.visibility_txn > 0:
        return ()
    first, last = (
        (entry.write_id, entry.write_id) if isinstance(entry, Base) else (entry.min_write_id, entry.max_write_id)
    )
    return aborted_ids[bisect_left(aborted_ids, first) : bisect_right(aborted_ids, last)]
