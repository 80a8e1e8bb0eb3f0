"""Directory state: which base, deltas and original files a snapshot consists of, and what is left over.

The algorithm, after Hive's `AcidUtils.getAcidState`, `processBaseDir`, `processDeltaDir`, `findBestWorkingDeltas`
and `AcidDirectory`:

1. Sort the entries below the location into bases, deltas and original files. An entry whose visibility
   transaction is aborted is aborted; one whose visibility transaction is not yet valid does not exist.
2. Take the best base: the highest write id that the snapshot may see; a compacted base wins over an
   insert-overwrite of the same id. Every other visible base is obsolete, and so is every original file.
3. Sort the deltas and walk them upwards from the base's write id. A delta that adds write ids is current, one
   that is covered by what was taken before is obsolete.

Two departures, both on the safe side. (a) An insert-overwrite base counts only when its own write id is valid;
Hive also accepts it when it equals the smallest *open* write id. (b) Of two committed outputs with the same
range only the one with the higher visibility id is current (HIVE-29210).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from compactor.acid.layout import Base, Delta, is_hidden, parse_bucket, parse_directory
from compactor.acid.snapshot import RangeValidity, ValidTxnList, ValidWriteIdList
from compactor.errors import NotEnoughHistory


@dataclass(frozen=True, kw_only=True, order=True)
class ListedFile:
    """A file below a table's or partition's location.

    path: relative to the location, `/`-separated, e.g. `delta_0000001_0000001_0000/bucket_00000_0`. size: bytes.
    """

    path: str
    size: int

    @property
    def directory(self) -> str:
        """First path component, empty for a file directly in the location."""
        return self.path.partition("/")[0] if "/" in self.path else ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What lies below a location at one moment.

    directories: names of the location's direct sub-directories, empty ones included. files: every file below the
    location. compacted_bases: bases whose `_metadata_acid` says that a Hive 2 compaction wrote them
    (AcidUtils.MetaDataFile).
    """

    directories: frozenset[str]
    files: tuple[ListedFile, ...] = ()
    compacted_bases: frozenset[str] = frozenset()

    def data_files(self, directory: str) -> tuple[ListedFile, ...]:
        """Non-empty visible files below one of the directories, by path; zero-length files hold no rows."""
        return self._data_files.get(directory, ())

    def all_files(self, directory: str) -> tuple[ListedFile, ...]:
        """Every file below one of the directories, hidden and empty ones among them; '': those directly in the location."""
        return self._all_files.get(directory, ())

    def bytes_in(self, directory: str) -> int:
        return sum(f.size for f in self.data_files(directory))

    @cached_property
    def _all_files(self) -> Mapping[str, tuple[ListedFile, ...]]:
        """By directory, in one pass: a removal asks for each of thousands of deltas."""
        found: dict[str, list[ListedFile]] = {}
        for file in self.files:
            found.setdefault(file.directory, []).append(file)
        return {directory: tuple(files) for directory, files in found.items()}

    @cached_property
    def _data_files(self) -> Mapping[str, tuple[ListedFile, ...]]:
        """By directory, in one pass: a plan asks for each of thousands of deltas."""
        found: dict[str, list[ListedFile]] = {}
        for file in sorted(self.files):
            directory = file.directory
            if directory and file.size > 0 and not _any_hidden(file.path[len(directory) + 1 :]):
                found.setdefault(directory, []).append(file)
        return {directory: tuple(files) for directory, files in found.items()}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one reader may see of one table."""

    txns: ValidTxnList
    write_ids: ValidWriteIdList


@dataclass(frozen=True, kw_only=True)
class DirectoryState:
    """A location as one snapshot sees it (Hive's AcidDirectory).

    base: None when there is none. deltas: current ones in reading order, delete deltas among them. originals:
    files of before the table became transactional, empty as soon as there is a base. obsolete, aborted: entry
    names that a cleaner may remove once nobody needs them. uncompacted_aborts: a current delta contains aborted
    write ids, so their metadata must be kept.
    """

    base: Base | None
    deltas: tuple[Delta, ...]
    originals: tuple[ListedFile, ...]
    obsolete: tuple[str, ...]
    aborted: tuple[str, ...]
    uncompacted_aborts: bool

    @property
    def insert_deltas(self) -> tuple[Delta, ...]:
        return tuple(d for d in self.deltas if not d.is_delete)

    @property
    def delete_deltas(self) -> tuple[Delta, ...]:
        return tuple(d for d in self.deltas if d.is_delete)

    @property
    def obsolete_bases(self) -> tuple[str, ...]:
        return tuple(n for n in self.obsolete if n.startswith("base_"))


@dataclass(kw_only=True)
class _Sorted:
    """Entries after step 1; mutable only while one call sorts them."""

    bases: list[Base] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    partly_aborted: set[str] = field(default_factory=set)
    oldest_base: Base | None = None


def directory_state(listing: Listing, snapshot: Snapshot, *, whole_ranges: bool = False) -> DirectoryState:
    """The state of a location for a snapshot.

    whole_ranges: take only deltas that lie below the high water mark as a whole, as a compaction must; a reader
    takes a partly visible delta and filters its rows.

    Raises UnparsableName for an entry that only looks like an ACID directory, NotEnoughHistory when the snapshot
    is older than every base that is left.
    """
    found = _sort_entries(listing, snapshot)
    base, losers = _best_base(found.bases, listing, snapshot)
    if base is None and found.oldest_base is not None and _is_compacted(found.oldest_base, listing):
        raise NotEnoughHistory(
            f"{found.oldest_base.name} is newer than the snapshot {snapshot.write_ids.to_string()} and "
            "no older base is left"
        )
    originals = _originals(listing)
    deltas, covered = _working_deltas(found.deltas, base, snapshot.write_ids, whole_ranges=whole_ranges)
    obsolete = [b.name for b in losers] + covered
    if base is not None:
        obsolete += [f.path for f in originals]
    return DirectoryState(
        base=base,
        deltas=tuple(deltas),
        originals=() if base is not None else originals,
        obsolete=tuple(sorted(obsolete)),
        aborted=tuple(sorted(found.aborted)),
        uncompacted_aborts=any(d.name in found.partly_aborted for d in deltas),
    )


def _sort_entries(listing: Listing, snapshot: Snapshot) -> _Sorted:
    found = _Sorted()
    for name in sorted(listing.directories):
        entry = parse_directory(name)
        if entry is None:
            continue
        if snapshot.txns.is_aborted(entry.visibility_txn):
            found.aborted.append(name)
        elif not snapshot.txns.is_valid(entry.visibility_txn):
            continue
        elif isinstance(entry, Base):
            _sort_base(entry, found, listing, snapshot.write_ids)
        else:
            _sort_delta(entry, found, snapshot.write_ids)
    return found


def _sort_base(base: Base, found: _Sorted, listing: Listing, write_ids: ValidWriteIdList) -> None:
    if write_ids.is_aborted(base.write_id) and not _is_compacted(base, listing):
        found.aborted.append(base.name)
        return
    if found.oldest_base is None or base.write_id < found.oldest_base.write_id:
        found.oldest_base = base
    found.bases.append(base)


def _sort_delta(delta: Delta, found: _Sorted, write_ids: ValidWriteIdList) -> None:
    aborts = write_ids.range_aborted(delta.min_write_id, delta.max_write_id)
    if aborts is RangeValidity.ALL:
        found.aborted.append(delta.name)
        return
    if aborts is RangeValidity.SOME:
        found.partly_aborted.add(delta.name)
    if write_ids.range_validity(delta.min_write_id, delta.max_write_id) is not RangeValidity.NONE:
        found.deltas.append(delta)


def _is_compacted(base: Base, listing: Listing) -> bool:
    return base.visibility_txn > 0 or base.name in listing.compacted_bases


def _best_base(bases: Iterable[Base], listing: Listing, snapshot: Snapshot) -> tuple[Base | None, list[Base]]:
    """The base to read and the visible ones that lost; a base above the snapshot is neither."""

    def usable(base: Base) -> bool:
        if _is_compacted(base, listing):
            return snapshot.write_ids.is_valid_base(base.write_id)
        return snapshot.write_ids.is_valid(base.write_id)

    def rank(base: Base) -> tuple[int, bool, int]:
        return base.write_id, _is_compacted(base, listing), base.visibility_txn

    candidates = sorted((b for b in bases if usable(b)), key=rank)
    if not candidates:
        return None, []
    return candidates[-1], candidates[:-1]


def _originals(listing: Listing) -> tuple[ListedFile, ...]:
    """Visible files that are not inside an ACID directory, such as `000000_0` or `1/000000_0` of a UNION ALL."""
    return tuple(
        sorted(
            f
            for f in listing.files
            if f.size > 0
            and not _any_hidden(f.path)
            and parse_bucket(f.name) is not None
            and (not f.directory or parse_directory(f.directory) is None)
        )
    )


def _any_hidden(path: str) -> bool:
    return any(is_hidden(part) for part in path.split("/")) or path.endswith("_flush_length")


def _delta_order(delta: Delta) -> tuple[int, int, int, int, str]:
    """ParsedDeltaLight.compareTo: wider ranges first, no statement id first; then HIVE-29210's higher visibility."""
    return delta.min_write_id, -delta.max_write_id, delta.statement_id, -delta.visibility_txn, delta.name


def _working_deltas(
    deltas: Iterable[Delta], base: Base | None, write_ids: ValidWriteIdList, *, whole_ranges: bool
) -> tuple[list[Delta], list[str]]:
    """(current deltas in order, names of those that are covered)."""
    current: list[Delta] = []
    obsolete: list[str] = []
    reached = base.write_id if base is not None else 0
    statement = -1
    taken: dict[tuple[object, ...], Delta] = {}
    for delta in sorted(deltas, key=_delta_order):
        identity = (delta.kind, delta.min_write_id, delta.max_write_id, delta.statement_id)
        if identity in taken:
            obsolete.append(delta.name)
        elif delta.max_write_id > reached:
            above = write_ids.range_validity(reached + 1, delta.max_write_id)
            if above is RangeValidity.NONE or (whole_ranges and delta.max_write_id > write_ids.high_water):
                continue
            reached, statement = delta.max_write_id, delta.statement_id
            current.append(delta)
            taken[identity] = delta
        elif _belongs_to_last(delta, current, reached, statement):
            current.append(delta)
            taken[identity] = delta
        else:
            obsolete.append(delta.name)
    return current, obsolete


def _belongs_to_last(delta: Delta, current: list[Delta], reached: int, statement: int) -> bool:
    """Another statement of the same transaction, or the other half of a delta + delete_delta pair."""
    if not current:
        return False
    if delta.max_write_id == reached and statement >= 0:
        return True
    last = current[-1]
    return (delta.min_write_id, delta.max_write_id, delta.statement_id) == (
        last.min_write_id,
        last.max_write_id,
        last.statement_id,
    )
