"""Remove what a decision names from one location, and look again: only what is really gone is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cleaner.obsolete import Doomed, Removal
from cleaner.remover import Removed, remove
from compactor.acid.directory import Listing
from compactor.storage.filesystem import FilesystemOf


@dataclass(frozen=True, kw_only=True)
class Swept:
    """removed: what went. after: the same decision made on what is left now; nothing doomed means success."""

    removed: Removed
    after: Removal


def sweep(filesystem_of: FilesystemOf, location: str, decide: Callable[[Listing], Removal]) -> Swept:
    """List, decide, remove, and list again when something was removed.

    The second listing shows what the first could not: an entry that came back, or that a file system kept in spite of
    its answer. Raises StorageError, FormatError.
    """
    filesystem, path = filesystem_of(location)
    removal = decide(filesystem.listing(path))
    if not removal.doomed:
        return Swept(removed=Removed(), after=removal)
    removed = remove(filesystem, path, removal.doomed, location=location)
    return Swept(removed=removed, after=decide(filesystem.listing(path)))


def sweep_all(filesystem_of: FilesystemOf, places: Iterable[str], decide: Callable[[Listing], Removal]) -> Swept:
    """`sweep` several locations of one object: an aborted write id is forgotten only when none of them has it."""
    removed = Removed()
    doomed: list[Doomed] = []
    forgettable: frozenset[int] | None = None
    for location in places:
        swept = sweep(filesystem_of, location, decide)
        removed += swept.removed
        doomed += swept.after.doomed
        here = swept.after.forgettable
        forgettable = here if forgettable is None else forgettable & here
    return Swept(removed=removed, after=Removal(doomed=tuple(doomed), forgettable=forgettable or frozenset()))
