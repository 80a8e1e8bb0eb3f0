"""Reading ORC files stripe by stripe: row identities as numpy arrays, rows as Arrow batches.

Only what pyarrow's ORC reader decodes is decoded here; a timestamp outside 1677–2262 is BeyondArrow.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import orc

from compactor.acid.layout import flush_length_file
from compactor.acid.records import RowId, SyntheticIds
from compactor.acid.schema import HiveType, can_read_as
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import BeyondArrow, CorruptFile, PathNotFound, UnsupportedData
from compactor.orc.evolution import converted
from compactor.orc.tail import ACID_COLUMNS, OrcTail, read_tail, stripe_length
from compactor.orc.types import arrow_type
from compactor.storage.calendar import to_proleptic
from compactor.storage.filesystem import FileSystem

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_KEYS = list(ACID_COLUMNS[:5])
_AT_ONCE_BYTES = 1 << 20
_TOGETHER_BYTES, _WIDEST = 8 << 20, 16
"""Of columns with values of a fixed width, and the widest of those."""
_FIXED_WIDTH = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date", "timestamp"}
)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The ACID columns of consecutive rows, one array element a row."""

    operation: Int64Array
    write_id: Int64Array
    bucket: Int64Array
    row_id: Int64Array
    current_write_id: Int64Array

    def __len__(self) -> int:
        return len(self.row_id)

    def at(self, position: int) -> RowId:
        return RowId(int(self.write_id[position]), int(self.bucket[position]), int(self.row_id[position]))

    def chosen(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Keys:
        """Some of the rows, by a mask or by positions."""
        return Keys(
            operation=self.operation[rows],
            write_id=self.write_id[rows],
            bucket=self.bucket[rows],
            row_id=self.row_id[rows],
            current_write_id=self.current_write_id[rows],
        )

    @classmethod
    def joined(cls, parts: Sequence[Keys]) -> Keys:
        return cls(
            operation=np.concatenate([k.operation for k in parts]),
            write_id=np.concatenate([k.write_id for k in parts]),
            bucket=np.concatenate([k.bucket for k in parts]),
            row_id=np.concatenate([k.row_id for k in parts]),
            current_write_id=np.concatenate([k.current_write_id for k in parts]),
        )

    def within(self, after: RowId | None, up_to: RowId | None) -> BoolArray:
        """Which rows come after `after` and not after `up_to`; None: no limit."""
        inside: BoolArray = np.ones(len(self), dtype=np.bool_)
        if after is not None:
            inside &= ~self._at_most(after)
        if up_to is not None:
            inside &= self._at_most(up_to)
        return inside

    def _at_most(self, bound: RowId) -> BoolArray:
        w, b, r = self.write_id, self.bucket, self.row_id
        in_bucket = (b < bound.bucket) | ((b == bound.bucket) & (r <= bound.row_id))
        before: BoolArray = (w < bound.write_id) | ((w == bound.write_id) & in_bucket)
        return before

    def ascending(self, *, repeats: bool = False) -> bool:
        """Row ids ascend in ACID order. repeats: equal neighbours are allowed."""
        w, b, r = np.diff(self.write_id), np.diff(self.bucket), np.diff(self.row_id)
        return bool(np.all((w > 0) | ((w == 0) & ((b > 0) | ((b == 0) & (r > -1 if repeats else r > 0))))))

    def visible(self, write_ids: ValidWriteIdList) -> BoolArray:
        """Which events were written by a valid write id."""
        current = self.current_write_id
        exceptions = write_ids.open | write_ids.aborted
        seen: BoolArray = current <= write_ids.high_water
        if exceptions:
            seen &= ~np.isin(current, np.fromiter(exceptions, dtype=np.int64, count=len(exceptions)))
        return seen


class OrcSource:
    """An open ORC file.

    path: inside the file system. synthetic: row ids for a file without ACID columns that belongs to an ACID table.
    Raises PathNotFound, CorruptFile.
    """

    def __init__(self, fs: FileSystem, path: str, *, synthetic: SyntheticIds | None = None) -> None:
        self.path = path
        self.synthetic = synthetic
        self.stream = _committed_part(fs, path)
        try:
            self.tail: OrcTail = read_tail(self.stream, path)
        except BaseException:
            self.stream.close()
            raise

    def __enter__(self) -> OrcSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stream.close()

    @property
    def stripes(self) -> int:
        return len(self.tail.footer.stripes)

    def stripe_rows(self, stripe: int) -> int:
        return int(self.tail.footer.stripes[stripe].number_of_rows)

    def keys(self, stripe: int) -> Keys:
        """Row identities of a stripe, read or synthesised."""
        if self.synthetic is not None:
            return self._synthetic_keys(stripe, self.synthetic)
        batch = self._read(stripe, _KEYS)
        columns = [batch.column(batch.schema.get_field_index(name)) for name in _KEYS]
        if any(c.null_count for c in columns):
            raise CorruptFile(f"{self.path}: stripe {stripe} has rows without a row id")
        operation, write_id, bucket, row_id, current = (
            c.to_numpy(zero_copy_only=False).astype(np.int64, copy=False) for c in columns
        )
        return Keys(operation=operation, write_id=write_id, bucket=bucket, row_id=row_id, current_write_id=current)

    def rows(self, stripe: int, wanted: HiveType, keep: BoolArray | None = None) -> pa.StructArray:
        """The table's columns of a stripe as a struct of type `wanted`, dates in the proleptic calendar.

        keep: which rows, None for all. The columns of a large stripe are decoded and filtered a few at a time.
        Raises BeyondArrow for unions and for values that pyarrow cannot hold, UnsupportedData for conversions that
        would lose some.
        """
        # pyarrow's reader knows unions, but nothing that its rows go through does.
        arrow_type(wanted)
        found = self.tail.row_type
        if not can_read_as(found, wanted):
            raise UnsupportedData(f"{self.path}: columns of type {found} cannot be rewritten as {wanted}")
        chosen = None if keep is None or keep.all() else pa.array(keep)
        count = self.stripe_rows(stripe) if keep is None else int(np.count_nonzero(keep))
        columns: dict[int, pa.Array] = {}
        nulls: pa.Array | None = None
        for together in self._decoded_together(stripe, found):
            struct = self._decoded(stripe, found, together)
            nulls = struct.is_null() if struct.null_count else None
            if chosen is not None and nulls is not None:
                nulls = nulls.filter(chosen)
            for place, at in enumerate(together):
                column = struct.field(place) if chosen is None else struct.field(place).filter(chosen)
                old, new = found.children[at][1], wanted.children[at][1]
                columns[at] = converted(column if self.tail.proleptic else to_proleptic(column), old, new)
        # Columns that were added to the table after the file was written.
        arrays = [
            columns[at] if at in columns else pa.nulls(count, arrow_type(child))
            for at, (_, child) in enumerate(wanted.children)
        ]
        fields = [pa.field(name, a.type) for (name, _), a in zip(wanted.children, arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)

    def _decoded_together(self, stripe: int, found: HiveType) -> Iterable[Sequence[int]]:
        """Positions of columns that are worth one call of the decoder, which needs several times the memory of a column.

        Each call costs the stripe's footer, and memory that malloc gives back and takes again. pyarrow, which selects by
        name, splits a name at its dots.
        """
        count = len(found.children)
        small = stripe_length(self.tail.footer.stripes[stripe]) <= _AT_ONCE_BYTES
        if small or any("." in name for name, _ in found.children):
            return [range(count)]
        narrow = [at for at, (_, child) in enumerate(found.children) if child.kind in _FIXED_WIDTH]
        step = max(_TOGETHER_BYTES // (_WIDEST * self.stripe_rows(stripe)), 1)
        others = ([at] for at in range(count) if found.children[at][1].kind not in _FIXED_WIDTH)
        return [*(narrow[at : at + step] for at in range(0, len(narrow), step)), *others]

    def _decoded(self, stripe: int, found: HiveType, together: Sequence[int]) -> pa.StructArray:
        """Some of the table's columns of a stripe as a struct."""
        chosen = None if len(together) == len(found.children) else [found.children[at][0] for at in together]
        if self.tail.is_acid:
            return self._read(stripe, ["row"] if chosen is None else [f"row.{name}" for name in chosen]).column(0)
        batch = self._read(stripe, chosen)
        return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))

    def _read(self, stripe: int, columns: list[str] | None) -> pa.RecordBatch:
        try:
            return self._file.read_stripe(stripe, columns=columns)
        except pa.ArrowNotImplementedError as error:
            raise BeyondArrow(f"{self.path}: {error}") from error
        except (pa.ArrowException, OSError) as error:
            if "out of range" in str(error):
                raise BeyondArrow(f"{self.path}: {error}") from error
            raise CorruptFile(f"{self.path}: stripe {stripe} cannot be read: {error}") from error

    @cached_property
    def _file(self) -> orc.ORCFile:
        try:
            return orc.ORCFile(self.stream)
        except (pa.ArrowException, OSError) as error:
            raise CorruptFile(f"{self.path}: {error}") from error

    @cached_property
    def _first_rows(self) -> list[int]:
        """Number of rows before each stripe."""
        return list(accumulate((s.number_of_rows for s in self.tail.footer.stripes), initial=0))

    def _synthetic_keys(self, stripe: int, ids: SyntheticIds) -> Keys:
        count = self.stripe_rows(stripe)
        first = ids.first_row_id + self._first_rows[stripe]
        return Keys(
            operation=np.zeros(count, dtype=np.int64),
            write_id=np.full(count, ids.write_id, dtype=np.int64),
            bucket=np.full(count, ids.bucket, dtype=np.int64),
            row_id=np.arange(first, first + count, dtype=np.int64),
            # An original row was written before any transaction, so it is valid for everyone.
            current_write_id=np.full(count, ids.write_id, dtype=np.int64),
        )


def _committed_part(fs: FileSystem, path: str) -> pa.NativeFile:
    """A streaming file ends where its side file says; what follows belongs to no committed transaction.

    The side file is a list of 8-byte big-endian lengths, the last one counts (OrcAcidUtils.getLastFlushLength).
    """
    stream = fs.open(path)
    side = flush_length_file(path)
    try:
        with fs.open(side) as lengths:
            raw = bytes(lengths.read())
    except PathNotFound:
        # The file is complete; a streaming writer removes the side file last.
        return stream
    length = int.from_bytes(raw[len(raw) // 8 * 8 - 8 : len(raw) // 8 * 8], "big") if len(raw) >= 8 else 0
    if length > stream.size():
        raise CorruptFile(f"{path}: shorter than the {length} bytes that {side} says were committed")
    return stream if length == stream.size() else pa.PythonFile(_Prefix(stream, length), mode="r")


class _Prefix(io.RawIOBase):
    """The first `length` bytes of a file as a file."""

    def __init__(self, stream: pa.NativeFile, length: int) -> None:
        super().__init__()
        self._stream = stream
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._length

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        data = bytes(self._stream.read_at(count, self._position))
        self._position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
