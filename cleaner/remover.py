"""The only place that deletes table files (I6).

1. Check every name before the first deletion: it is one entry directly below the location that parses as an ACID
   directory, or an original file that the listing of this location found. Of a dropped table the entries may also lie
   below directories `p=x/q=y`. Nothing else passes, whoever asks.
2. On a local disk also check where the name leads: a symbolic link must not take a deletion elsewhere.
3. Delete, some entries at a time and in no order. What is gone already counts as done, so a second run after a crash
   ends the first one's work.
4. Other directories, the dropped location itself among them, go only when nothing is in them.

Sources: Hive `FSRemover`, `TaskHandler.cleanAndVerify…`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cleaner.obsolete import Doomed
from compactor.acid.layout import is_hidden, parse_bucket, parse_directory
from compactor.acid.partition_name import partition_values
from compactor.errors import UnparsableName, UnsafePath
from compactor.storage.filesystem import FileSystem

AT_ONCE = 4
"""Entries of a location that are deleted at the same time: who deletes waits for the disk, or for the object store."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What a deletion freed. files: hidden side files included. bytes: as the listing before showed them."""

    entries: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(
            entries=self.entries + other.entries, files=self.files + other.files, bytes=self.bytes + other.bytes
        )


def remove(filesystem: FileSystem, path: str, doomed: Iterable[Doomed], *, location: str) -> Removed:
    """Delete entries below a table's or partition's location.

    filesystem, path: what the location opens to. location: as the metastore spells it; tells a local disk from others.
    Raises UnsafePath, with nothing deleted, when any entry is not allowed; StorageError when the file system fails.
    """
    return remove_below(filesystem, path, {"": tuple(doomed)}, location=location)


def remove_below(
    filesystem: FileSystem, path: str, doomed: Mapping[str, Sequence[Doomed]], *, location: str
) -> Removed:
    """`remove` for the location of a dropped table. doomed: by partition directory `p=x/q=y`; '' is the location itself.

    The names of entries, and of their files, are relative to their partition directory.
    """
    root = Path(path).resolve() if is_local(location) else None
    for partition, entries in doomed.items():
        _require_partition(partition)
        for entry in entries:
            _require_acid_entry(entry)
            if root is not None:
                _require_inside(root, _join(partition, entry.name))
    targets = [
        (f"{path}/{_join(partition, entry.name)}", entry) for partition, entries in doomed.items() for entry in entries
    ]
    if len(targets) < AT_ONCE:
        return _delete(filesystem, targets)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="remover") as pool:
        shares = [targets[first::AT_ONCE] for first in range(AT_ONCE)]
        return sum(pool.map(partial(_delete, filesystem), shares), start=Removed())


def remove_empty(filesystem: FileSystem, path: str, directories: Iterable[str], *, location: str) -> None:
    """Remove those directories of a dropped object's location that hold nothing, in the given order; others stay.

    directories: relative to the location; '' is the location itself. UnsafePath as `remove`.
    """
    names = tuple(directories)
    local = is_local(location)
    for name in filter(None, names):
        _require_plain(name)
        if local:
            _require_inside(Path(path).resolve(), name)
    if local and "" in names and Path(path).is_symlink():
        raise UnsafePath(f"{path} is a symbolic link; it stays", hint="remove the link by hand")
    for name in names:
        filesystem.delete_empty_directory(_join(path, name))


def is_local(location: str) -> bool:
    """Whether a metastore location is on this machine's disks: `/w/t` or `file:/w/t`."""
    return location.startswith(("/", "file:"))


def _delete(filesystem: FileSystem, targets: Sequence[tuple[str, Doomed]]) -> Removed:
    """Delete entries that were checked. targets: each with its path in the file system."""
    for target, entry in targets:
        if entry.is_directory:
            filesystem.delete_directory(target)
        else:
            filesystem.delete_file(target)
    return Removed(
        entries=len(targets),
        files=sum(len(entry.files) for _, entry in targets),
        bytes=sum(entry.bytes for _, entry in targets),
    )


def _require_partition(name: str) -> None:
    """name: '' or `p=x/q=y`."""
    if not name:
        return
    _require_plain(name)
    try:
        partition_values(name)
    except UnparsableName as error:
        raise UnsafePath(f"{name!r} is no partition directory; nothing was deleted") from error
    if any(map(is_hidden, name.split("/"))):
        raise UnsafePath(f"{name!r} is hidden from readers; nothing was deleted")


def _require_plain(name: str) -> None:
    if any(part in {"", ".", ".."} for part in name.split("/")) or "\\" in name or "\0" in name:
        raise UnsafePath(f"{name!r} is no plain name below the location; nothing was deleted")


def _require_acid_entry(entry: Doomed) -> None:
    _require_plain(entry.name)
    parts = entry.name.split("/")
    try:
        first = parse_directory(parts[0])
    except UnparsableName as error:
        raise UnsafePath(f"{entry.name!r} is no ACID entry; nothing was deleted") from error
    if entry.is_directory:
        if len(parts) != 1 or first is None:
            raise UnsafePath(f"directory {entry.name!r} is no base or delta; nothing was deleted")
        return
    listed = any(f.path == entry.name for f in entry.files)
    if first is not None or not listed or any(map(is_hidden, parts)) or parse_bucket(parts[-1]) is None:
        raise UnsafePath(f"file {entry.name!r} is no original data file of the table; nothing was deleted")


def _require_inside(root: Path, name: str) -> None:
    """root: without symbolic links. Only a link in the last component may be deleted, by hand: its target may not."""
    target = root / name
    if target.is_symlink():
        raise UnsafePath(f"{target} is a symbolic link; nothing was deleted", hint="remove the link by hand")
    if "/" in name and target.parent.resolve() != target.parent:
        raise UnsafePath(f"{target} leads outside of {root} through a symbolic link; nothing was deleted")


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory and name else directory or name
