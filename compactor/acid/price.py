"""What a compaction costs and what it saves, from its plan alone. Pure.

Costs are counted in bytes: a stripe is either copied as it is or decoded and encoded anew, and the second is some
fifty times slower. `compactor.acid.rates` turns bytes into seconds.

What a reader pays is counted for one full scan, as Hive's and Trino's readers do it: every data file is opened, and
with every data file all delete files of its bucket; the delete events are held in memory while the rows go by. An
opened file weighs as much as `OPEN_BYTES` of data and a delete event as much as `EVENT_BYTES`. The read amplification
is the work of a scan divided by that of a scan after a major compaction: 1 is as good as it gets.

Sources: Hive `VectorizedOrcAcidRowBatchReader.ColumnizedDeleteEventRegistry` (each split opens the delete deltas of its
bucket); Spark `spark.sql.files.openCostInBytes` (4 MiB, the same idea).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import Delta, parse_bucket, parse_directory
from compactor.acid.planning import CompactionPlan, Depth, FileFacts, ItemKind, PlanItem
from compactor.acid.rebalance import RebalancePlan, shares
from compactor.acid.stripes import StripeUse

OPEN_BYTES = 4 << 20
"""Bytes that could be read in the time that opening a file and reading its tail takes."""
EVENT_BYTES = 40
"""A delete event in a reader's memory: five numbers."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What one full scan of a location reads.

    directories: base, deltas and delete deltas that are listed; 1 for original files. files, bytes: of data and delete
    files. delete_events: rows of the delete files. opens: every data file, and with each of them the delete files of
    its bucket. compacted_work: the work of the same scan after a major compaction.
    """

    directories: int
    files: int
    bytes: int
    delete_events: int
    opens: int
    compacted_work: int

    @property
    def work(self) -> int:
        """Bytes, and what opening files and holding delete events weighs."""
        return self.bytes + OPEN_BYTES * self.opens + EVENT_BYTES * self.delete_events

    @property
    def amplification(self) -> float:
        """Work relative to the compacted state; 1 for a location without files."""
        return self.work / self.compacted_work if self.compacted_work else 1.0


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a plan costs, and a full scan before and after it.

    bytes_copied, bytes_encoded: of source stripes that are copied, and of those that are decoded and encoded anew.
    Files of other formats are copied in their own units (row groups, blocks). stripes_*: source stripes by use.
    rows_in: of data files. delete_events: read by the compaction, whether it applies or merges them. tasks: parts that
    can run side by side.
    """

    bytes_copied: int
    bytes_encoded: int
    stripes_copied: int
    stripes_decoded: int
    stripes_coalesced: int
    rows_in: int
    delete_events: int
    tasks: int
    before: Scan
    after: Scan

    @property
    def work_saved(self) -> int:
        """Work that each later full scan is spared."""
        return self.before.work - self.after.work


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file as a scan meets it. rows: None when nobody counted them."""

    bucket: int
    size: int
    rows: int | None
    deletes: bool


def scan_of(state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> Scan:
    """A full scan as things are. facts: by path; a file without facts counts as one whose rows all live."""
    files = _files(state, listing, facts)
    return _scan(files.values(), directories=_directories(state), compacted_work=_compacted_work(files.values()))


def price(plan: CompactionPlan, state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> Price:
    """The price of a plan that was made of `state`.

    facts: of every file that the plan reads; those of the base too, or a minor's scan before and after counts no
    dead row in it.
    """
    files = _files(state, listing, facts)
    compacted = _compacted_work(files.values())
    replaced = _replaced_deltas(plan, state)
    left = [f for path, f in files.items() if path.partition("/")[0] not in replaced]
    directories = _directories(state) - len(replaced)
    if plan.depth is Depth.MAJOR:
        left, directories = [], 0
    stripes, sizes = _uses(plan.items, facts)
    data = [i for i in plan.items if i.kind is not ItemKind.DELETES]
    return Price(
        bytes_copied=sizes[StripeUse.COPY],
        bytes_encoded=sizes[StripeUse.DECODE] + sizes[StripeUse.COALESCE],
        stripes_copied=stripes[StripeUse.COPY],
        stripes_decoded=stripes[StripeUse.DECODE],
        stripes_coalesced=stripes[StripeUse.COALESCE],
        rows_in=sum(max(i.rows_in, 0) for i in data),
        delete_events=sum(i.rows_in for i in plan.items if i.kind is ItemKind.DELETES)
        + sum(d.rows for i in data for d in i.deletes),
        tasks=sum(max(len(i.parts), 1) for i in plan.items),
        before=_scan(files.values(), directories=_directories(state), compacted_work=compacted),
        after=_scan(
            [*left, *(_output(item, files) for item in plan.items)],
            directories=directories + len(plan.directories),
            compacted_work=compacted,
        ),
    )


def price_of_rebalance(
    plan: RebalancePlan, state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]
) -> Price:
    """The price of a rebalance that was planned from `state`; facts as for `price`.

    Copied are the stripes that may keep their bytes under other row ids. The few that a bucket's border or a delete
    falls into are encoded after all: which they are is known when the row ids are read. An order encodes all rows.
    """
    files = _files(state, listing, facts)
    stripes = [(n, at, s.size) for n, f in enumerate(plan.files) for at, s in enumerate(facts[f.path].stripes)]
    moved = [size for n, at, size in stripes if not plan.order_by and (n, at) in plan.movable]
    events = sum(d.rows for bucket in plan.sources for d in bucket.deletes)
    size, live = _without([f for f in files.values() if not f.deletes], events)
    outputs = [
        _File(bucket=bucket, size=size * (stop - first) // max(live or 0, 1), rows=stop - first, deletes=False)
        for bucket, (first, stop) in enumerate(shares(live or 0, plan.buckets))
    ]
    compacted = _compacted_work(files.values())
    return Price(
        bytes_copied=sum(moved),
        bytes_encoded=sum(size for _, _, size in stripes) - sum(moved),
        stripes_copied=len(moved),
        stripes_decoded=len(stripes) - len(moved),
        stripes_coalesced=0,
        rows_in=plan.rows_in,
        delete_events=events,
        tasks=len(outputs),
        before=_scan(files.values(), directories=_directories(state), compacted_work=compacted),
        after=_scan(outputs, directories=1, compacted_work=compacted),
    )


def _uses(items: Iterable[PlanItem], facts: Mapping[str, FileFacts]) -> tuple[Counter[StripeUse], Counter[StripeUse]]:
    """(stripes, bytes) by use. Delete events are merge-sorted: all of their bytes are encoded anew."""
    stripes: Counter[StripeUse] = Counter()
    sizes: Counter[StripeUse] = Counter()
    for item in items:
        runs = [run for part in item.parts for run in part.runs]
        if item.kind is ItemKind.DELETES or not runs:
            whole = StripeUse.DECODE if item.kind is ItemKind.DELETES else StripeUse.COPY
            sizes[whole] += sum(s.size for s in item.sources)
        for run in runs:
            taken = facts[item.sources[run.source].path].stripes[run.start : run.stop]
            stripes[run.use] += len(taken)
            sizes[run.use] += sum(s.size for s in taken)
    return stripes, sizes


def _files(state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> dict[str, _File]:
    """Every file of a scan, by path."""
    found = {f.path: _file(f, facts, deletes=False) for f in state.originals}
    if state.base is not None:
        found |= {f.path: _file(f, facts, deletes=False) for f in listing.data_files(state.base.name)}
    for delta in state.deltas:
        found |= {f.path: _file(f, facts, deletes=delta.is_delete) for f in listing.data_files(delta.name)}
    return found


def _file(listed: ListedFile, facts: Mapping[str, FileFacts], *, deletes: bool) -> _File:
    parsed = parse_bucket(listed.name)
    known = facts.get(listed.path)
    # Some formats do not tell how many rows a file has: -1.
    rows = None if known is None or known.rows < 0 else known.rows
    return _File(bucket=0 if parsed is None else parsed.bucket, size=listed.size, rows=rows, deletes=deletes)


def _replaced_deltas(plan: CompactionPlan, state: DirectoryState) -> set[str]:
    """Names of the deltas whose write ids an output covers: not all of them when there are too many for one minor."""
    outputs = [entry for entry in map(parse_directory, plan.directories) if isinstance(entry, Delta)]
    return {
        delta.name
        for delta in state.deltas
        if any(o.min_write_id <= delta.min_write_id and delta.max_write_id <= o.max_write_id for o in outputs)
    }


def _output(item: PlanItem, files: Mapping[str, _File]) -> _File:
    """The file that an item writes, as large as what goes into it without the deleted rows."""
    sources = [files[s.path] for s in item.sources]
    events = sum(d.rows for d in item.deletes)
    size, rows = _without(sources, events)
    return _File(bucket=item.bucket, size=size, rows=rows, deletes=item.kind is ItemKind.DELETES)


def _without(sources: Sequence[_File], events: int) -> tuple[int, int | None]:
    """Bytes and rows of files without `events` deleted rows; each event is taken to name a row of its own."""
    size = sum(s.size for s in sources)
    counted = [s.rows for s in sources if s.rows is not None]
    if len(counted) < len(sources):
        return size, None
    rows = sum(counted)
    live = max(rows - events, 0)
    return (size * live // rows if rows else size), live


def _scan(files: Iterable[_File], *, directories: int, compacted_work: int) -> Scan:
    data, deletes = _by_bucket(files)
    opens = sum(len(found) * (1 + len(deletes.get(bucket, ()))) for bucket, found in data.items())
    every = [f for group in (data, deletes) for found in group.values() for f in found]
    return Scan(
        directories=directories,
        files=len(every),
        bytes=sum(f.size for f in every),
        delete_events=sum(f.rows or 0 for found in deletes.values() for f in found),
        opens=opens,
        compacted_work=compacted_work,
    )


def _compacted_work(files: Iterable[_File]) -> int:
    """The work of a scan after a major compaction: one file a bucket, without the deleted rows."""
    data, deletes = _by_bucket(files)
    events = {bucket: sum(f.rows or 0 for f in found) for bucket, found in deletes.items()}
    return sum(OPEN_BYTES + _without(found, events.get(bucket, 0))[0] for bucket, found in data.items())


def _by_bucket(files: Iterable[_File]) -> tuple[dict[int, list[_File]], dict[int, list[_File]]]:
    """(data files, delete files)."""
    data: dict[int, list[_File]] = {}
    deletes: dict[int, list[_File]] = {}
    for file in files:
        (deletes if file.deletes else data).setdefault(file.bucket, []).append(file)
    return data, deletes


def _directories(state: DirectoryState) -> int:
    return len(state.deltas) + (state.base is not None or bool(state.originals))
