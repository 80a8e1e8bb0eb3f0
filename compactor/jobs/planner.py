"""From a location on a file system to a plan: list it, judge it, read the tails of the files that would be read.

Shared by the worker and by `compactor plan`, so that what is shown is what would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactor.acid.directory import DirectoryState, ListedFile, Listing, Snapshot, directory_state
from compactor.acid.layout import Base, Delta, parse_directory
from compactor.acid.planning import (
    CompactionPlan,
    Depth,
    FileFacts,
    OutputOptions,
    Refusal,
    files_of,
    plan_compaction,
    worth_doing,
)
from compactor.acid.schema import struct_of
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.sources import by_bucket, delete_sources, delta_sources, originals_and_base
from compactor.acid.stripes import PART_EVENTS, DeleteFacts
from compactor.jobs.formats import FORMATS, facts_of
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import ENCODABLE
from compactor.orc.delete_facts import hits, marks
from compactor.orc.settled import settled
from compactor.storage.filesystem import FileSystem, open_location
from compactor.storage.readahead import read_ahead


@dataclass(frozen=True, kw_only=True)
class CompactionTarget:
    """A table or partition as the planner needs to know it.

    location: as the metastore stores it. columns: (name, Hive type) without partition columns. input_format: class
    name of the storage descriptor. codec, recompress, max_num_delta: as in `OutputOptions`; codec is the table's
    `orc.compress`, recompress its `compactor.recompress` or the installation's, max_num_delta the installation's
    `worker.max_num_delta`. properties: of the table.
    """

    name: str
    location: str
    columns: tuple[tuple[str, str], ...]
    input_format: str
    full_acid: bool
    bucketed: bool
    codec: int = pb.ZLIB
    recompress: int | None = None
    max_num_delta: int = 500
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What lies at a target's location, as one snapshot sees it."""

    fs: FileSystem
    root: str
    listing: Listing
    state: DirectoryState


def survey(target: CompactionTarget, snapshot: Snapshot) -> Survey:
    """List the location for a compaction; snapshot.write_ids must be those `for_compaction`.

    Raises StorageError, UnparsableName, NotEnoughHistory.
    """
    fs, root = open_location(target.location)
    listing = fs.listing(root)
    return Survey(fs=fs, root=root, listing=listing, state=directory_state(listing, snapshot, whole_ranges=True))


def read_facts(target: CompactionTarget, surveyed: Survey, depth: Depth) -> dict[str, FileFacts]:
    """What the tails say of the files that a compaction would read, by path; those of a major hold those of a minor.

    Nothing for a format that is not compacted. Raises CorruptFile for damaged files.
    """
    file_format, table_type = _compacted_format(target), struct_of(target.columns)
    if file_format is None:
        return {}

    def facts(file: ListedFile) -> FileFacts:
        return facts_of(file_format, surveyed.fs, f"{surveyed.root}/{file.path}", table_type, target.properties)

    files = files_of(depth, surveyed.state, surveyed.listing)
    return {file.path: found for file, found in zip(files, read_ahead(facts, files), strict=True)}


def read_delete_facts(
    surveyed: Survey, facts: Mapping[str, FileFacts], depth: Depth, write_ids: ValidWriteIdList
) -> DeleteFacts:
    """What the keys of a full-ACID target's delete files say, as far as a plan of this depth asks.

    A major asks where deletes fall, a minor where to cut when they are more than one task sorts. Raises CorruptFile.
    """
    deletes = by_bucket(delete_sources(surveyed.state, surveyed.listing, facts))
    if depth is Depth.MINOR:
        large = [files for files in deletes.values() if sum(f.rows for f in files) > PART_EVENTS]
        paths = {file.path: len(facts[file.path].stripes) for files in large for file in files}
        return DeleteFacts(marks=marks(surveyed.fs, surveyed.root, paths))
    data = by_bucket(
        originals_and_base(surveyed.state, surveyed.listing, facts, full_acid=True)
        + delta_sources(surveyed.state, surveyed.listing, facts, full_acid=True)
    )
    counted: dict[str, tuple[int, ...]] = {}
    for bucket in data.keys() & deletes.keys():
        stripes = {s.path: facts[s.path].stripes for s in data[bucket] if s.synthetic is None}
        paths = {file.path: len(facts[file.path].stripes) for file in deletes[bucket]}
        counted |= hits(surveyed.fs, surveyed.root, stripes, paths, write_ids)
    return DeleteFacts(hits=counted)


def plan(
    target: CompactionTarget,
    surveyed: Survey,
    snapshot: Snapshot,
    depth: Depth,
    *,
    txn_id: int,
    facts: Mapping[str, FileFacts] | None = None,
) -> CompactionPlan | Refusal:
    """The plan, or why there is nothing worth doing.

    txn_id: the compactor's transaction, part of the output's name. facts: of `read_facts`, when they are there already;
    None: read them. Raises CorruptFile for damaged files, UnsupportedData for files that cannot be joined.
    """
    refusal = worth_doing(depth, surveyed.state, surveyed.listing)
    if refusal is not None:
        return refusal
    file_format = _compacted_format(target)
    leftovers = bool(surveyed.state.obsolete or surveyed.state.aborted)
    if file_format is None:
        return Refusal(reason=f"tables read by {target.input_format} are not compacted", leftovers=leftovers)
    table_type = struct_of(target.columns)
    if facts is None:
        facts = read_facts(target, surveyed, depth)
    deletes = None
    if target.full_acid:
        facts = settled(surveyed.fs, surveyed.root, facts, snapshot.write_ids)
        deletes = read_delete_facts(surveyed, facts, depth, snapshot.write_ids)
    made = plan_compaction(
        depth,
        surveyed.state,
        surveyed.listing,
        facts,
        location=target.location,
        table_type=table_type,
        write_ids=snapshot.write_ids,
        txn_id=txn_id,
        full_acid=target.full_acid,
        bucketed=target.bucketed,
        output=OutputOptions(
            file_format=file_format,
            codec=target.codec if target.codec in ENCODABLE else pb.ZLIB,
            recompress=target.recompress,
            max_files=target.max_num_delta,
        ),
        deletes=deletes,
    )
    twin = _twin(made, surveyed.listing, snapshot)
    if twin is not None:
        return Refusal(reason=f"{twin} has the range that the output would have", leftovers=leftovers)
    return made


def _compacted_format(target: CompactionTarget) -> str | None:
    file_format = FORMATS.get(target.input_format)
    return None if target.full_acid and file_format != "orc" else file_format


def _twin(made: CompactionPlan, listing: Listing, snapshot: Snapshot) -> str | None:
    """A committed compaction with an output's range: a second one would be read twice (HIVE-29210, I3)."""
    wanted = {_range(parse_directory(name)) for name in made.directories}
    for name in sorted(listing.directories):
        entry = parse_directory(name)
        if entry is None or entry.visibility_txn == 0 or not snapshot.txns.is_valid(entry.visibility_txn):
            continue
        if _range(entry) in wanted:
            return name
    return None


def _range(entry: Base | Delta | None) -> tuple[object, ...]:
    if isinstance(entry, Delta):
        return entry.kind, entry.min_write_id, entry.max_write_id
    return ("base", entry.write_id) if entry is not None else ()
