"""`verify = full`: a checksum of the live rows before and after, computed before anything is published.

For every plan item the rows that its output must hold are read again from the sources, as a reader of the snapshot
sees them, and so is the output; in Spark tasks, which share nothing with those that wrote it but the readers:

    ROWS      insert events of valid write ids, deletes applied when the item has delete files
    DELETES   delete events of valid write ids
    PLAIN     all rows, each with its place in the item

A row's hash covers all columns and its ROW__ID, operation and current write id (of a plain row its place), so that
rows that were swapped, doubled, lost, changed or brought back to life are found. Sums of hashes do not depend on the
order in which tasks end; that the row ids of an output ascend is checked besides. Memory of a task: a stripe with its
hashes, and the deletes of `DeleteWindow`.

A rebalance gives every row a new place and a new ROW__ID: there the live rows of all sources are compared with those
of all buckets, each by its columns and, unless they were ordered, by its write id, which stays.

What pyarrow cannot decode is not compared by value: where an item holds a timestamp outside 1677-2262 or a union, the
columns that contain these types are left out of its checksum; of Avro, SequenceFile and RCFile the whole item is.
`verify_rows` says so. What it decodes is compared in copied and in re-encoded stripes alike; of text, the lines are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyarrow import orc

from compactor.acid.items import ItemKind, PlanItem
from compactor.acid.planning import CompactionPlan
from compactor.acid.rebalance import RebalancePlan
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import BeyondArrow, CorruptFile, UnsupportedData, VerificationError
from compactor.jobs.row_hash import Hashes, hash_rows, joined, mixed
from compactor.jobs.stretches import Each, Stretch, stretches_of
from compactor.jobs.text import text_digest
from compactor.orc.deletes import DeleteWindow
from compactor.orc.evolution import converted
from compactor.orc.reader import BoolArray, Keys, OrcSource
from compactor.orc.rewrite import ItemResult
from compactor.orc.types import arrow_type
from compactor.storage.calendar import to_proleptic
from compactor.storage.filesystem import FileSystem, open_location
from compactor.storage.parquet import open_parquet, parquet_batches

_SECOND = np.uint64(0xA0761D6478BD642F)
_NOT_ALWAYS_DECODED = ("timestamp", "timestamp with local time zone", "uniontype")
_MASK = (1 << 64) - 1
_ROW_IDENTITY = ("operation", "write_id", "bucket", "row_id", "current_write_id")
_Key = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """Of some rows. first, last: row ids of the first and the last one; ascending: those in between go upwards."""

    rows: int = 0
    sums: tuple[int, int] = (0, 0)
    first: _Key | None = None
    last: _Key | None = None
    ascending: bool = True

    def then(self, other: Checksum) -> Checksum:
        """Of these rows and those that follow."""
        meet = self.last is None or other.first is None or self.last <= other.first
        return Checksum(
            rows=self.rows + other.rows,
            sums=((self.sums[0] + other.sums[0]) & _MASK, (self.sums[1] + other.sums[1]) & _MASK),
            first=self.first or other.first,
            last=other.last or self.last,
            ascending=self.ascending and other.ascending and meet,
        )

    def of_same_rows(self, other: Checksum) -> bool:
        return (self.rows, self.sums) == (other.rows, other.sums)


@dataclass(frozen=True, kw_only=True)
class _TextTask:
    """A text item and the location of its plan."""

    location: str
    item: PlanItem


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A stretch of an item's output or of one of its sources. item: its position in the plan.

    like: the item's output file. place: of the first row among all rows of this side of the item. columns: positions
    of those that are hashed, None for all. identity: those of `Keys` that are.
    """

    item: int
    output: bool
    location: str
    like: str
    kind: ItemKind
    format: str
    stretch: Stretch
    place: int
    deletes: tuple[str, ...]
    row_type: HiveType
    write_ids: ValidWriteIdList
    columns: tuple[int, ...] | None = None
    identity: tuple[str, ...] = _ROW_IDENTITY


_Found = dict[int, list[tuple[_Task, Checksum]]]
"""Checksums by item; an item with a value that pyarrow cannot hold is missing."""


def verify_rows(each: Each, plan: CompactionPlan) -> tuple[str, ...]:
    """Compare the rows of every output file with those of its sources. each: where to run, such as `OnSpark`.

    Returns sentences about what could not be compared; none when everything was. Raises VerificationError for the
    first item whose rows differ, CorruptFile for a file that cannot be read, JobError.
    """
    _compare_texts(each, [_TextTask(location=plan.location, item=i) for i in plan.items if i.format == "text"])
    fs, root = open_location(plan.location)
    tasks = [
        task
        for number, item in enumerate(plan.items)
        if item.format in ("orc", "parquet")
        for task in _tasks(fs, root, plan, number)
    ]
    found = _checksums(each, tasks)
    missing = {task.item for task in tasks} - found.keys()
    kept, left = _columns_always_decoded(plan.row_type)
    again = [replace(task, columns=kept) for task in tasks if task.item in missing and task.format == "orc"]
    found_again = _checksums(each, again)
    notes: list[str] = []
    for number, item in enumerate(plan.items):
        if item.format == "text":
            continue
        if number in found_again:
            notes.append(f"{item.output}: not compared, for values that pyarrow cannot hold: {', '.join(left)}")
        elif number in missing or item.format not in ("orc", "parquet"):
            notes.append(f"{item.output}: its rows are not compared, pyarrow cannot read them ({item.format})")
            continue
        _compare(item.output, found_again[number] if number in missing else found.get(number, []))
    return tuple(notes)


def _compare_texts(each: Each, tasks: Sequence[_TextTask]) -> None:
    """Raises VerificationError for the first item whose lines are others than those of its sources."""
    if not tasks:
        return
    for task, same in zip(tasks, each(tasks, lines_agree, size=lambda task: task.item.bytes_in), strict=True):
        if not same:
            raise VerificationError(f"{task.item.output}: its lines are not those of its sources")


def lines_agree(task: _TextTask) -> bool:
    """On an executor: whether readers see the same lines in the output of a text item as in its sources."""
    fs, root = open_location(task.location)
    skipped = task.item.skipped
    before = text_digest(fs, root, [source.path for source in task.item.sources], skipped)
    return before == text_digest(fs, root, [task.item.output], skipped)


def verify_moved_rows(each: Each, plan: RebalancePlan, results: Sequence[ItemResult]) -> tuple[str, ...]:
    """Compare the rows of a rebalance's buckets with the live rows of its sources; as `verify_rows` otherwise."""
    fs, root = open_location(plan.location)
    tasks = list(_moved(fs, root, plan, results))
    found = _checksums(each, tasks)
    notes: tuple[str, ...] = ()
    if tasks and not found:
        kept, left = _columns_always_decoded(plan.row_type)
        found = _checksums(each, [replace(task, columns=kept) for task in tasks])
        notes = (f"{plan.directory}: not compared, for values that pyarrow cannot hold: {', '.join(left)}",)
    _compare(plan.directory, found.get(0, []))
    return notes


def _moved(fs: FileSystem, root: str, plan: RebalancePlan, results: Sequence[ItemResult]) -> Iterator[_Task]:
    sources = [(s.path, s.synthetic, tuple(d.path for d in b.deletes)) for b in plan.sources for s in b.sources]
    for output, files in ((False, sources), (True, [(r.output, None, ()) for r in results])):
        for path, synthetic, deletes in files:
            for stretch in stretches_of(fs, root, path, synthetic):
                yield _Task(
                    item=0,
                    output=output,
                    location=plan.location,
                    like=path,
                    kind=ItemKind.ROWS,
                    format="orc",
                    stretch=stretch,
                    place=0,
                    deletes=deletes,
                    row_type=plan.row_type,
                    write_ids=plan.write_ids,
                    identity=() if plan.order_by else ("write_id",),
                )


def _compare(output: str, found: Sequence[tuple[_Task, Checksum]]) -> None:
    before, after = Checksum(), Checksum()
    for task, checksum in found:
        if task.output:
            after = after.then(checksum)
        else:
            before = before.then(checksum)
    if not before.of_same_rows(after):
        raise VerificationError(
            f"{output}: its {after.rows} rows are not the {before.rows} live rows of its sources "
            f"(checksums {after.sums[0]:016x} and {before.sums[0]:016x})"
        )
    if not after.ascending:
        raise VerificationError(f"{output}: the row ids do not ascend")


def _tasks(fs: FileSystem, root: str, plan: CompactionPlan, number: int) -> Iterator[_Task]:
    """Of one item: its sources in order, then its output."""
    item = plan.items[number]
    place = 0
    files = [(s.path, s.synthetic, s.rows, False) for s in item.sources] + [(item.output, None, 0, True)]
    for path, synthetic, rows, output in files:
        stretches = (
            stretches_of(fs, root, path, synthetic)
            if item.format == "orc"
            else [Stretch(path=path, start=0, stop=0, rows_before=0, size=fs.size(f"{root}/{path}"))]
        )
        for stretch in stretches:
            yield _Task(
                item=number,
                output=output,
                location=plan.location,
                like=item.output,
                kind=item.kind,
                format=item.format,
                stretch=stretch,
                place=stretch.rows_before + (0 if output else place),
                deletes=() if output else tuple(d.path for d in item.deletes),
                row_type=plan.row_type,
                write_ids=plan.write_ids,
            )
        place += rows


def _checksums(each: Each, tasks: Sequence[_Task]) -> _Found:
    outcomes = each(tasks, checksum_of, size=lambda task: task.stretch.size)
    found: _Found = {}
    for task, checksum in zip(tasks, outcomes, strict=True):
        if checksum is not None:
            found.setdefault(task.item, []).append((task, checksum))
    for task, checksum in zip(tasks, outcomes, strict=True):
        if checksum is None:
            found.pop(task.item, None)
    return found


def checksum_of(task: _Task) -> Checksum | None:
    """On an executor: of the rows that a task reads; None when pyarrow cannot hold one of their values."""
    fs, root = open_location(task.location)
    try:
        if task.format == "parquet":
            return _parquet(fs, root, task)
        with OrcSource(fs, f"{root}/{task.stretch.path}", synthetic=task.stretch.synthetic) as source:
            return _plain(source, task) if task.kind is ItemKind.PLAIN else _events(fs, root, source, task)
    except BeyondArrow:
        return None


def _events(fs: FileSystem, root: str, source: OrcSource, task: _Task) -> Checksum:
    deletes = DeleteWindow(fs, [f"{root}/{path}" for path in task.deletes], task.write_ids)
    total = Checksum()
    for stripe in range(task.stretch.start, task.stretch.stop):
        keys = source.keys(stripe)
        if not len(keys):
            continue
        keep: BoolArray = np.ones(len(keys), dtype=np.bool_)
        if not task.output:
            # What the output holds counts, whether it should be there or not.
            keep = keys.visible(task.write_ids)
            keep &= deletes.covering(keys.at(0), keys.at(-1)).survivors(keys)
        keys = keys.chosen(keep)
        if len(keys):
            rows = None if task.kind is ItemKind.DELETES else _rows(source, stripe, task, keep)
            total = total.then(_of_events(keys, rows, task.identity))
    return total


def _plain(source: OrcSource, task: _Task) -> Checksum:
    total, place = Checksum(), task.place
    for stripe in range(task.stretch.start, task.stretch.stop):
        keep: BoolArray = np.ones(source.stripe_rows(stripe), dtype=np.bool_)
        total = total.then(_of_places(_rows(source, stripe, task, keep), place))
        place += source.stripe_rows(stripe)
    return total


def _parquet(fs: FileSystem, root: str, task: _Task) -> Checksum:
    with open_parquet(fs, f"{root}/{task.like}") as file:
        schema = file.schema_arrow
    total, place = Checksum(), task.place
    try:
        for batch in parquet_batches(fs, f"{root}/{task.stretch.path}", schema):
            total = total.then(_of_places(batch.to_struct_array(), place))
            place += batch.num_rows
    except UnsupportedData as error:
        raise BeyondArrow(error.message) from error
    return total


def _of_events(keys: Keys, rows: pa.StructArray | None, identity: tuple[str, ...]) -> Checksum:
    columns = (getattr(keys, name) for name in identity)
    identities = joined((mixed(column.astype(np.uint64)) for column in columns), len(keys))
    hashes = identities if rows is None else joined(iter((identities, hash_rows(rows))), len(keys))
    if identity != _ROW_IDENTITY:
        return _summed(hashes)
    return replace(
        _summed(hashes), first=_key(keys, 0), last=_key(keys, -1), ascending=keys.ascending(repeats=rows is None)
    )


def _key(keys: Keys, at: int) -> _Key:
    return int(keys.write_id[at]), int(keys.bucket[at]), int(keys.row_id[at]), int(keys.current_write_id[at])


def _of_places(rows: pa.StructArray, place: int) -> Checksum:
    places = mixed(np.arange(place, place + len(rows), dtype=np.uint64))
    return _summed(joined(iter((places, hash_rows(rows))), len(rows)))


def _summed(hashes: Hashes) -> Checksum:
    second = mixed(hashes ^ _SECOND)
    return Checksum(rows=len(hashes), sums=(int(hashes.sum(dtype=np.uint64)), int(second.sum(dtype=np.uint64))))


def _rows(source: OrcSource, stripe: int, task: _Task, keep: BoolArray) -> pa.StructArray:
    """The chosen columns of the chosen rows, as the output's type has them."""
    if task.columns is None:
        return source.rows(stripe, task.row_type, keep)
    found = source.tail.row_type.children
    chosen = pa.array(keep)
    columns: list[pa.Array] = []
    for position in task.columns:
        wanted = task.row_type.children[position][1]
        if position >= len(found):
            columns.append(pa.nulls(int(np.count_nonzero(keep)), arrow_type(wanted)))
            continue
        name, kind = found[position]
        column = _column(source, stripe, name).filter(chosen)
        columns.append(converted(column if source.tail.proleptic else to_proleptic(column), kind, wanted))
    return pa.StructArray.from_arrays(columns, names=[task.row_type.children[p][0] for p in task.columns])


def _column(source: OrcSource, stripe: int, name: str) -> pa.Array:
    try:
        batch = orc.ORCFile(source.stream).read_stripe(stripe, columns=[f"row.{name}" if source.tail.is_acid else name])
    except pa.ArrowNotImplementedError as error:
        raise BeyondArrow(f"{source.path}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptFile(f"{source.path}: column {name} of stripe {stripe} cannot be read: {error}") from error
    column = batch.column(0)
    return column.flatten()[0] if source.tail.is_acid else column


def _columns_always_decoded(row_type: HiveType) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions of the columns whose every value pyarrow can hold, and the names of the others."""
    left = {p for p, (_, kind) in enumerate(row_type.children) if _may_be_undecoded(kind)}
    kept = tuple(p for p in range(len(row_type.children)) if p not in left)
    return kept, tuple(row_type.children[p][0] for p in sorted(left))


def _may_be_undecoded(kind: HiveType) -> bool:
    return kind.kind in _NOT_ALWAYS_DECODED or any(_may_be_undecoded(child) for _, child in kind.children)
