"""Running one plan item: read its sources stripe by stripe, write its output file.

For every source stripe, in order:

1. From the tail alone: may it be copied raw (same template, trusted statistics, key index), can a delete fall into
   its key range, are all its write ids valid, is it large enough to be worth keeping?
2. Yes to all: copy its bytes.
3. Otherwise read its row ids and find the rows that survive. None: drop the stripe. All, and it may be copied and
   is large enough: copy it after all.
4. Otherwise decode the columns, take the survivors, and encode them together with their neighbours.

The order of row ids is checked as the file grows: a violation is an error, never a silently wrong file.
Memory: one decoded stripe plus `ENCODE_BYTES` of decoded rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.records import Operation, RowId
from compactor.acid.schema import HiveType
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import UnsupportedData, VerificationError
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, Template
from compactor.orc.deletes import DeleteSet, check_deletes
from compactor.orc.reader import BoolArray, Keys, OrcSource
from compactor.orc.tail import stripe_length
from compactor.orc.types import acid_arrow_schema, acid_type
from compactor.storage.filesystem import FileSystem

SMALL_STRIPE_BYTES = 1 << 20
"""Stripes below this size are joined with their neighbours: every stripe costs readers two seeks and a footer."""
ENCODE_BYTES = 48 << 20
"""Decoded bytes that become one stripe, about 8-16 MB once encoded."""
_WRITE_ID, _BUCKET, _ROW_ID, _CURRENT = 2, 3, 4, 5
_LOWEST = -(1 << 62)


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """What became of a plan item; `verify` in the worker holds it against the plan.

    rows_in = rows_out + rows_deleted + rows_invalid. rows_invalid: events of aborted write ids.
    """

    output: str
    size: int
    rows_in: int
    rows_out: int
    rows_deleted: int
    rows_invalid: int
    stripes_copied: int
    stripes_encoded: int
    bytes_copied: int
    bytes_encoded: int


def run_item(
    fs: FileSystem, root: str, item: PlanItem, row_type: HiveType, write_ids: ValidWriteIdList, *, compression: int
) -> ItemResult:
    """Write the output of an ORC item below `root`; it appears under its final name only when complete.

    compression: codec of a file that has no source to take it from. Running an item twice writes equal files.
    """
    with fs.write_atomically(f"{root}/{item.output}") as stream:
        rewrite = _Rewrite(fs, root, item, row_type, write_ids, stream, compression)
        match item.kind:
            case ItemKind.ROWS | ItemKind.PLAIN:
                return rewrite.rows()
            case ItemKind.DELETES:
                return rewrite.deletes()


class _Rewrite:
    """One run of one item; holds the state that grows with the output."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        item: PlanItem,
        row_type: HiveType,
        write_ids: ValidWriteIdList,
        stream: pa.NativeFile,
        compression: int,
    ) -> None:
        self._fs, self._root, self._item = fs, root, item
        self._row_type, self._write_ids = row_type, write_ids
        self._acid = item.kind is not ItemKind.PLAIN
        file_type = acid_type(row_type) if self._acid else row_type
        self._template = _template(fs, root, item.sources, file_type, compression)
        self._out = FileAssembler(stream, self._template)
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._last: RowId | None = None
        self._rows_in = self._deleted = self._invalid = 0

    def rows(self) -> ItemResult:
        deletes = DeleteSet.load(self._fs, [self._path(d) for d in self._item.deletes], self._write_ids)
        for source in self._open_sources():
            for stripe in range(source.stripes):
                self._rows_in += source.stripe_rows(stripe)
                if self._acid:
                    self._acid_stripe(source, stripe, deletes)
                else:
                    self._plain_stripe(source, stripe)
        self._flush()
        size = self._out.finish(AcidStats(inserts=self._out.rows) if self._acid else None)
        return self._result(size)

    def deletes(self) -> ItemResult:
        """Delete events of all sources, sorted by row id and then by who deleted; 40 bytes an event in memory."""
        found: list[Keys] = []
        for source in self._open_sources():
            for stripe in range(source.stripes):
                keys = source.keys(stripe)
                check_deletes(keys, source.path)
                keep = keys.visible(self._write_ids)
                self._rows_in += len(keys)
                self._invalid += int(np.count_nonzero(~keep))
                found.append(_chosen(keys, keep))
        if found:
            merged = _concatenated(found)
            order = np.lexsort((merged.current_write_id, merged.row_id, merged.bucket, merged.write_id))
            self._encode(_chosen(merged, order), None)
        self._flush()
        return self._result(self._out.finish(AcidStats(deletes=self._out.rows)))

    def _open_sources(self) -> Iterator[OrcSource]:
        for file in self._item.sources:
            with OrcSource(self._fs, self._path(file), synthetic=file.synthetic) as source:
                if source.tail.rows != file.rows:
                    raise VerificationError(
                        f"{source.path} has {source.tail.rows} rows, {file.rows} when the compaction was planned"
                    )
                yield source

    def _acid_stripe(self, source: OrcSource, stripe: int, deletes: DeleteSet) -> None:
        bounds = _key_bounds(source, stripe)
        copyable = source.synthetic is None and bounds is not None and self._template.accepts(source.tail)
        large = stripe_length(source.tail.footer.stripes[stripe]) >= SMALL_STRIPE_BYTES
        if copyable and large and bounds is not None:
            first, last = bounds
            certain = not deletes.may_hit(first, last) and _all_valid(source, stripe, self._write_ids)
            if certain and (self._last is None or first > self._last):
                self._copy(source, stripe, last)
                return
        keys = source.keys(stripe)
        keep = self._survivors(keys, deletes)
        if not keep.any():
            return
        self._check_order(keys, keep, source.path)
        if not keep.all():
            self._decode(source, stripe, keys, keep)
        elif copyable and large:
            self._copy(source, stripe, keys.at(-1))
        else:
            try:
                self._decode(source, stripe, keys, keep)
            except UnsupportedData:
                # What cannot be decoded can still be copied whole, however small.
                if not copyable:
                    raise
                self._copy(source, stripe, keys.at(-1))

    def _plain_stripe(self, source: OrcSource, stripe: int) -> None:
        copyable = _statistics_trusted(source, stripe) and self._template.accepts(source.tail)
        if copyable and stripe_length(source.tail.footer.stripes[stripe]) >= SMALL_STRIPE_BYTES:
            self._copy(source, stripe, None)
            return
        try:
            rows = source.rows(stripe, self._row_type)
        except UnsupportedData:
            if not copyable:
                raise
            self._copy(source, stripe, None)
            return
        self._add(pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)]))

    def _survivors(self, keys: Keys, deletes: DeleteSet) -> BoolArray:
        valid = keys.visible(self._write_ids)
        if self._item.kind is ItemKind.ROWS and np.any(keys.operation != Operation.INSERT):
            raise UnsupportedData(
                "the file holds update or delete events among its rows, as Hive before 3.0 wrote them",
                hint="run a major compaction in Hive 2 before the upgrade, as Hive's upgrade guide asks",
            )
        keep = valid & deletes.survivors(keys)
        self._invalid += int(np.count_nonzero(~valid))
        self._deleted += int(np.count_nonzero(valid & ~keep))
        return keep

    def _check_order(self, keys: Keys, keep: BoolArray, path: str) -> None:
        first = keys.at(int(np.argmax(keep)))
        if not keys.ascending() or (self._last is not None and first <= self._last):
            raise VerificationError(
                f"{path}: row ids do not ascend at {first} (after {self._last}); the files of this bucket overlap",
                hint="two writers used the same row ids; look at the files of this bucket and move the intruder away",
            )

    def _copy(self, source: OrcSource, stripe: int, last: RowId | None) -> None:
        self._flush()
        self._out.copy(source, stripe, last)
        self._last = last

    def _decode(self, source: OrcSource, stripe: int, keys: Keys, keep: BoolArray) -> None:
        rows: pa.Array = source.rows(stripe, self._row_type)
        if not keep.all():
            rows = rows.filter(pa.array(keep))
            keys = _chosen(keys, keep)
        self._encode(keys, rows)

    def _encode(self, keys: Keys, rows: pa.Array | None) -> None:
        """Queue events for encoding; rows None: delete events."""
        schema = acid_arrow_schema(self._row_type)
        columns: Sequence[pa.Array] = [
            pa.array(keys.operation, type=pa.int64()).cast(pa.int32()),
            pa.array(keys.write_id),
            pa.array(keys.bucket, type=pa.int64()).cast(pa.int32()),
            pa.array(keys.row_id),
            pa.array(keys.current_write_id),
            pa.nulls(len(keys), schema.field("row").type) if rows is None else rows,
        ]
        self._last = keys.at(-1) if len(keys) else self._last
        self._add(pa.Table.from_arrays(columns, names=schema.names))

    def _add(self, table: pa.Table) -> None:
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= ENCODE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._out.append(pa.concat_tables(self._pending), self._last)
        self._pending = []
        self._pending_bytes = 0

    def _path(self, file: SourceFile) -> str:
        return f"{self._root}/{file.path}"

    def _result(self, size: int) -> ItemResult:
        return ItemResult(
            output=self._item.output,
            size=size,
            rows_in=self._rows_in,
            rows_out=self._out.rows,
            rows_deleted=self._deleted,
            rows_invalid=self._invalid,
            stripes_copied=self._out.stripes_copied,
            stripes_encoded=self._out.stripes_encoded,
            bytes_copied=self._out.bytes_copied,
            bytes_encoded=self._out.bytes_encoded,
        )


def _template(
    fs: FileSystem, root: str, sources: Sequence[SourceFile], file_type: HiveType, compression: int
) -> Template:
    """The template of the source with most bytes of the right type, so that most stripes can be copied."""
    best: tuple[int, Template] | None = None
    for file in sources:
        with OrcSource(fs, f"{root}/{file.path}", synthetic=file.synthetic) as source:
            template = Template.like(source.tail, file_type)
            weight = file.size if template.accepts(source.tail) else 0
        if best is None or weight > best[0]:
            best = weight, template
    return best[1] if best is not None else Template.fresh(file_type, compression=compression)


def _statistics_trusted(source: OrcSource, stripe: int) -> bool:
    """Hive's streaming ingest writes stripes whose statistics count no values; Hive must not be made to trust them."""
    if stripe >= len(source.tail.metadata.stripe_stats):
        return False
    statistics = source.tail.metadata.stripe_stats[stripe].col_stats
    return bool(statistics) and statistics[0].number_of_values == source.stripe_rows(stripe)


def _key_bounds(source: OrcSource, stripe: int) -> tuple[RowId, RowId] | None:
    """(a bound at or below the first row id, the last row id) of a stripe; None when the tail does not tell.

    The last one comes from hive.acid.key.index, the first from the column statistics.
    """
    index = source.tail.key_index()
    if index is None or not _statistics_trusted(source, stripe):
        return None
    columns = source.tail.metadata.stripe_stats[stripe].col_stats
    low: list[int] = []
    for column in (_WRITE_ID, _BUCKET, _ROW_ID):
        statistics = columns[column].int_statistics
        if not statistics.HasField("minimum") or not statistics.HasField("maximum"):
            return None
        low.append(statistics.minimum)
        if statistics.minimum != statistics.maximum:
            break
    return RowId(*(low + [_LOWEST] * (3 - len(low)))), index[stripe]


def _all_valid(source: OrcSource, stripe: int, write_ids: ValidWriteIdList) -> bool:
    """Every event of the stripe is an insert by a valid write id, as far as the statistics tell."""
    columns: Sequence[pb.ColumnStatistics] = source.tail.metadata.stripe_stats[stripe].col_stats
    operation, current = columns[1].int_statistics, columns[_CURRENT].int_statistics
    if not (operation.HasField("maximum") and current.HasField("minimum") and current.HasField("maximum")):
        return False
    if operation.maximum != Operation.INSERT or current.maximum > write_ids.high_water:
        return False
    return not any(current.minimum <= i <= current.maximum for i in write_ids.open | write_ids.aborted)


def _chosen(keys: Keys, chosen: np.ndarray) -> Keys:
    """Rows by mask or by positions."""
    return Keys(
        operation=keys.operation[chosen],
        write_id=keys.write_id[chosen],
        bucket=keys.bucket[chosen],
        row_id=keys.row_id[chosen],
        current_write_id=keys.current_write_id[chosen],
    )


def _concatenated(parts: Sequence[Keys]) -> Keys:
    return Keys(
        operation=np.concatenate([k.operation for k in parts]),
        write_id=np.concatenate([k.write_id for k in parts]),
        bucket=np.concatenate([k.bucket for k in parts]),
        row_id=np.concatenate([k.row_id for k in parts]),
        current_write_id=np.concatenate([k.current_write_id for k in parts]),
    )
