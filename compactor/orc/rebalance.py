"""The tasks of a rebalance: find the live rows of some files, and write one output bucket from stretches of them.

1. `scan`: row ids of every stripe, which of them are live, and where they change their write id or bucket. Only the
   ACID columns are read.
2. The driver puts the runs of all files into the new order and cuts it into buckets (`compactor.acid.rebalance`).
3. `write_bucket`: one output stripe after the other.

A stripe whose rows stay together keeps its bytes, but for the ACID columns (`renumber`); others are decoded and
encoded. Memory of `write_bucket`: `HELD_BYTES` of decoded stripes, since rows of many source buckets may alternate,
and one output stripe; what does not fit is kept in a temporary file and mapped. Sources: as in `compactor.acid.rebalance`.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from compactor.acid.layout import encode_bucket
from compactor.acid.rebalance import Int64Array, Pieces, Place, Runs
from compactor.acid.records import Operation, RowId
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.sources import SourceFile
from compactor.errors import UnsupportedData, VerificationError
from compactor.orc.assembler import AcidStats, FileAssembler, Template
from compactor.orc.deletes import DeleteSet
from compactor.orc.reader import BoolArray, Keys, OrcSource
from compactor.orc.renumber import renumbered
from compactor.orc.rewrite import ENCODE_BYTES, ItemResult
from compactor.orc.tail import ACID_COLUMNS
from compactor.orc.types import acid_type
from compactor.storage.filesystem import FileSystem

HELD_BYTES = 192 << 20
"""Decoded stripes that a task keeps in memory while it still needs rows of them."""


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """Some files of one bucket. sources: (number of the file in the plan, file)."""

    location: str
    sources: tuple[tuple[int, SourceFile], ...]
    deletes: tuple[SourceFile, ...]
    write_ids: ValidWriteIdList


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a ScanTask found. masks: live rows of the stripes that have others too, zlib of packed bits."""

    runs: Runs
    masks: Mapping[Place, bytes]
    deleted: int
    invalid: int


@dataclass(frozen=True, kw_only=True)
class BucketTask:
    """One output file. output: relative to the location; first_row: number of its first row among all rows.

    sources: file by number, those of `pieces`. masks: as in `Scan`. moved: stripes that stand in `pieces` as a whole
    and may keep their bytes. template: file whose schema, codec and versions the output takes, None without one.
    write_id: of every row; None: each keeps its own.
    """

    location: str
    output: str
    bucket: int
    first_row: int
    pieces: Pieces
    sources: Mapping[int, SourceFile]
    masks: Mapping[Place, bytes]
    moved: frozenset[Place]
    template: SourceFile | None
    row_type: HiveType
    write_id: int | None
    compression: int

    def stretches(self) -> Iterator[tuple[int, int, Place | None]]:
        """(first, stop, stripe) of what is written at once: a stripe that moves, or the rows between two of them."""
        at = first = 0
        for position, rows in enumerate(self.pieces.rows.tolist()):
            place = _place(self.pieces, position)
            if place in self.moved:
                if first < at:
                    yield first, at, None
                yield at, at + rows, place
                first = at + rows
            at += rows
        if first < at:
            yield first, at, None


def scan(fs: FileSystem, root: str, task: ScanTask) -> Scan:
    """Find the live rows of files. Raises CorruptFile, UnsupportedData, VerificationError for row ids out of order."""
    deletes = DeleteSet.load(fs, [f"{root}/{d.path}" for d in task.deletes], task.write_ids)
    found: list[Runs] = []
    masks: dict[Place, bytes] = {}
    deleted = invalid = 0
    for number, file in task.sources:
        with OrcSource(fs, f"{root}/{file.path}", synthetic=file.synthetic) as source:
            if source.tail.rows != file.rows:
                raise VerificationError(
                    f"{source.path} has {source.tail.rows} rows, {file.rows} when the compaction was planned"
                )
            for stripe in range(source.stripes):
                keys = source.keys(stripe)
                _check_events(keys, source.path)
                valid = keys.visible(task.write_ids)
                live = valid & deletes.survivors(keys)
                invalid += int(np.count_nonzero(~valid))
                deleted += int(np.count_nonzero(valid & ~live))
                if not live.all():
                    masks[number, stripe] = pack(live)
                if live.any():
                    found.append(_runs(keys, live, number, stripe))
    return Scan(runs=Runs.joined(found), masks=masks, deleted=deleted, invalid=invalid)


def write_bucket(fs: FileSystem, root: str, task: BucketTask) -> ItemResult:
    """Write one output file below `root`; it appears under its final name only when complete.

    Running a task twice writes equal files. Raises BeyondArrow when values that pyarrow cannot hold must be decoded.
    """
    template = output_template(fs, root, task.template, acid_type(task.row_type), compression=task.compression)
    with fs.write_atomically(f"{root}/{task.output}") as stream, _Stripes(fs, root, task) as stripes:
        out = FileAssembler(stream, template)
        for first, stop, place in task.stretches():
            if place is not None:
                _move(fs, root, task, place, (first, stop), out, template)
            else:
                _encode(task, stripes, (first, stop), out)
        size = out.finish(AcidStats(inserts=task.pieces.total))
    return ItemResult(
        output=task.output,
        size=size,
        rows_in=task.pieces.total,
        rows_out=out.rows,
        rows_deleted=0,
        rows_invalid=0,
        stripes_copied=out.stripes_copied,
        stripes_encoded=out.stripes_encoded,
        bytes_copied=out.bytes_copied,
        bytes_encoded=out.bytes_encoded,
    )


def output_template(
    fs: FileSystem, root: str, template: SourceFile | None, file_type: HiveType, *, compression: int
) -> Template:
    """What the stripes of a file of `file_type` have in common. template, compression: as in BucketTask."""
    if template is None:
        return Template.fresh(file_type, compression=compression)
    with OrcSource(fs, f"{root}/{template.path}") as source:
        return Template.like(source.tail, file_type)


def _move(
    fs: FileSystem,
    root: str,
    task: BucketTask,
    place: Place,
    rows: tuple[int, int],
    out: FileAssembler,
    template: Template,
) -> None:
    """Append a stripe whose bytes stay as they are, but for the ACID columns."""
    file = task.sources[place[0]]
    with OrcSource(fs, f"{root}/{file.path}") as source:
        if source.stripe_rows(place[1]) != rows[1] - rows[0]:
            raise VerificationError(f"{source.path}: stripe {place[1]} is another one than when it was planned")
        write_ids = _given(task, rows) if task.write_id is not None else source.keys(place[1]).write_id
        columns, last = _acid_columns(task, write_ids, rows)
        ids = pa.Table.from_arrays(columns, names=ACID_COLUMNS[:5])
        out.lift(renumbered(source, place[1], ids, template), last, block_size=source.tail.block_size)


def _encode(task: BucketTask, stripes: _Stripes, rows: tuple[int, int], out: FileAssembler) -> None:
    """Append stripes of decoded rows."""
    done, stop = rows
    while done < stop:
        end = min(done + stripes.rows_of(ENCODE_BYTES, task.pieces.cut(done, done + 1)), stop)
        write_ids, values = stripes.gather(task.pieces.cut(done, end))
        columns, last = _acid_columns(task, write_ids, (done, end))
        out.append(pa.Table.from_arrays([*columns, values], names=ACID_COLUMNS), last)
        done = end


def _given(task: BucketTask, rows: tuple[int, int]) -> Int64Array:
    return np.full(rows[1] - rows[0], task.write_id, dtype=np.int64)


def _acid_columns(task: BucketTask, write_ids: Int64Array, rows: tuple[int, int]) -> tuple[list[pa.Array], RowId]:
    """The five ACID columns of rows of the output, and the last row's id. rows: (first, stop) inside the bucket."""
    count, bucket = rows[1] - rows[0], encode_bucket(task.bucket)
    numbers = np.arange(task.first_row + rows[0], task.first_row + rows[1], dtype=np.int64)
    columns = [
        pa.array(np.full(count, Operation.INSERT, dtype=np.int32)),
        pa.array(write_ids),
        pa.array(np.full(count, bucket, dtype=np.int32)),
        pa.array(numbers),
        pa.array(write_ids),
    ]
    return columns, RowId(int(write_ids[-1]), bucket, int(numbers[-1]))


def pack(live: BoolArray) -> bytes:
    return zlib.compress(np.packbits(live).tobytes(), 1)


def unpack(packed: bytes, rows: int) -> BoolArray:
    bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    return np.unpackbits(bits, count=rows).astype(np.bool_)


def write_sorted(fs: FileSystem, path: str, batches: Iterable[pa.RecordBatch], template: Template) -> None:
    """Write rows that a sort has put in order, as a file without ACID columns; no rows, no file.

    batches: one column, the rows as structs. Memory: one output stripe.
    """
    filled = (b for b in batches if b.num_rows)
    first = next(filled, None)
    if first is None:
        return
    pending: list[pa.RecordBatch] = []
    with fs.write_atomically(path) as stream:
        out = FileAssembler(stream, template)
        for batch in chain([first], filled):
            pending.append(pa.RecordBatch.from_struct_array(batch.column(0)))
            if sum(b.nbytes for b in pending) >= ENCODE_BYTES:
                out.append(pa.Table.from_batches(pending), None)
                pending = []
        if pending:
            out.append(pa.Table.from_batches(pending), None)
        out.finish(None)


def live_rows(source: OrcSource, stripe: int, row_type: HiveType, mask: bytes | None) -> pa.StructArray:
    """The table's columns of a stripe's live rows. mask: None when all are."""
    rows = source.rows(stripe, row_type)
    return rows if mask is None else rows.filter(pa.array(unpack(mask, len(rows))))


class _Stripes:
    """Decoded stripes of a task, each until its last row was used."""

    def __init__(self, fs: FileSystem, root: str, task: BucketTask) -> None:
        self._fs, self._root, self._task = fs, root, task
        self._left = Counter(_places(task.pieces, weights=task.pieces.rows))
        self._held: OrderedDict[Place, tuple[Int64Array, pa.StructArray]] = OrderedDict()
        self._spilled: dict[Place, tuple[Int64Array, Path]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._bytes_seen = self._rows_seen = 0

    def __enter__(self) -> _Stripes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def rows_of(self, size: int, following: Pieces) -> int:
        """How many rows are about `size` decoded bytes, judged by what was decoded so far and what comes next."""
        self._stripe(_place(following, 0))
        return max(size * self._rows_seen // max(self._bytes_seen, 1), 1)

    def gather(self, pieces: Pieces) -> tuple[Int64Array, pa.StructArray]:
        """Write ids and rows of `pieces`, in their order. A stripe whose last rows these are is let go."""
        places = np.stack([pieces.source, pieces.stripe], axis=1)
        once, owner = np.unique(places, axis=0, return_inverse=True)
        if len(once) == len(places):
            parts = [self._take(pieces.cut_out(slice(i, i + 1))) for i in range(len(places))]
            return np.concatenate([ids for ids, _ in parts]), pa.concat_arrays([rows for _, rows in parts])
        parts = [self._take(pieces.cut_out(owner.ravel() == i)) for i in range(len(once))]
        order = np.argsort(np.argsort(np.repeat(owner.ravel(), pieces.rows), kind="stable"), kind="stable")
        all_ids, all_rows = np.concatenate([ids for ids, _ in parts]), pa.concat_arrays([rows for _, rows in parts])
        return all_ids[order], all_rows.take(pa.array(order))

    def _take(self, pieces: Pieces) -> tuple[Int64Array, pa.StructArray]:
        """Write ids and rows of pieces of one stripe."""
        place = _place(pieces, 0)
        write_ids, rows = self._stripe(place)
        wanted = _positions(pieces.start, pieces.rows)
        first, count = int(wanted[0]), len(wanted)
        consecutive = int(wanted[-1]) - first + 1 == count
        self._used(place, count)
        # A small slice would keep its whole stripe in memory.
        sliced = consecutive and 2 * count > len(rows)
        return write_ids[wanted], rows.slice(first, count) if sliced else rows.take(pa.array(wanted))

    def _stripe(self, place: Place) -> tuple[Int64Array, pa.StructArray]:
        if place in self._held:
            self._held.move_to_end(place)
            return self._held[place]
        if place in self._spilled:
            write_ids, path = self._spilled[place]
            return write_ids, pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0).column(0)
        decoded = self._decoded(place)
        self._held[place] = decoded
        self._bytes_seen += decoded[1].nbytes
        self._rows_seen += len(decoded[1])
        while len(self._held) > 1 and sum(rows.nbytes for _, rows in self._held.values()) > HELD_BYTES:
            self._spill(*self._held.popitem(last=False))
        return decoded

    def _decoded(self, place: Place) -> tuple[Int64Array, pa.StructArray]:
        number, stripe = place
        file, mask = self._task.sources[number], self._task.masks.get(place)
        with OrcSource(self._fs, f"{self._root}/{file.path}", synthetic=file.synthetic) as source:
            rows = live_rows(source, stripe, self._task.row_type, mask)
            if self._task.write_id is not None:
                return np.full(len(rows), self._task.write_id, dtype=np.int64), rows
            write_ids = source.keys(stripe).write_id
            return write_ids if mask is None else write_ids[unpack(mask, len(write_ids))], rows

    def _spill(self, place: Place, decoded: tuple[Int64Array, pa.StructArray]) -> None:
        write_ids, rows = decoded
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="compactor-")
        path = Path(self._folder.name) / f"{place[0]}-{place[1]}"
        batch = pa.RecordBatch.from_arrays([rows], names=["row"])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._spilled[place] = write_ids, path

    def _used(self, place: Place, rows: int) -> None:
        self._left[place] -= rows
        if self._left[place] == 0:
            self._held.pop(place, None)
            spilled = self._spilled.pop(place, None)
            if spilled is not None:
                spilled[1].unlink()


def _place(pieces: Pieces, at: int) -> Place:
    return int(pieces.source[at]), int(pieces.stripe[at])


def _places(pieces: Pieces, *, weights: Int64Array) -> dict[Place, int]:
    """Rows wanted of each stripe."""
    once, at = np.unique(np.stack([pieces.source, pieces.stripe], axis=1), axis=0, return_inverse=True)
    rows = np.bincount(at.ravel(), weights=weights, minlength=len(once))
    return {(int(source), int(stripe)): int(n) for (source, stripe), n in zip(once, rows, strict=True)}


def _positions(start: Int64Array, rows: Int64Array) -> Int64Array:
    """start[0], start[0] + 1, … rows[0] of them, then start[1], …"""
    before = np.cumsum(rows) - rows
    positions: Int64Array = np.arange(int(rows.sum()), dtype=np.int64) + np.repeat(start - before, rows)
    return positions


def _runs(keys: Keys, live: BoolArray, source: int, stripe: int) -> Runs:
    write_id, bucket, row_id = keys.write_id[live], keys.bucket[live], keys.row_id[live]
    begins = np.concatenate([[0], np.flatnonzero((np.diff(write_id) != 0) | (np.diff(bucket) != 0)) + 1])
    ends = np.append(begins[1:], len(row_id))
    return Runs(
        source=np.full(len(begins), source, dtype=np.int64),
        stripe=np.full(len(begins), stripe, dtype=np.int64),
        start=begins.astype(np.int64),
        rows=ends - begins,
        write_id=write_id[begins],
        bucket=bucket[begins],
        first=row_id[begins],
        last=row_id[ends - 1],
    )


def _check_events(keys: Keys, path: str) -> None:
    if np.any(keys.operation != Operation.INSERT):
        raise UnsupportedData(
            f"{path} holds update or delete events among its rows, as Hive before 3.0 wrote them",
            hint="run a major compaction in Hive 2 before the upgrade, as Hive's upgrade guide asks",
        )
    if len(keys) and not keys.ascending():
        raise VerificationError(f"{path}: row ids do not ascend inside a stripe")
