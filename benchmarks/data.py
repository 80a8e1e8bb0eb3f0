"""Tables like Hive's: ten deltas of a million rows of thirteen mixed columns, and delete deltas of every pattern.

The same arguments give the same rows on every machine. Files are cached below the work directory:
`tables/<table>` holds the insert deltas, `tables/<table>-<deletes>` hard links to them and a delete delta.
"""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.layout import DeltaKind, delta_name, encode_bucket
from compactor.acid.records import Operation
from compactor.acid.schema import struct_of
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.compression import compression_kind
from compactor.orc.types import acid_arrow_schema, arrow_type
from compactor.storage.filesystem import open_location
from compactor.table.files import insert_events, last_key, prepare_directory

COLUMNS = (
    ("id", "bigint"),
    ("customer", "int"),
    ("product", "int"),
    ("quantity", "int"),
    ("account", "bigint"),
    ("price", "double"),
    ("weight", "double"),
    ("total", "decimal(18,2)"),
    ("day", "date"),
    ("changed", "timestamp"),
    ("paid", "boolean"),
    ("status", "string"),
    ("note", "string"),
)
ROW_TYPE = struct_of(COLUMNS)
WIDE_COLUMNS = (("id", "bigint"), ("payload", "string"))
"""For tables that are large for their number of rows: a payload of WIDE_BYTES that no codec shrinks."""
WIDE_BYTES = 1000
_MARK = "_complete"
_FORMAT = 1
"""Part of the cache's key: changes whenever the same arguments would give other files."""
_STATUSES = ("new", "paid", "packed", "shipped", "delivered", "returned", "lost", "cancelled")
_WORDS = 4096
_STRIPE_ROWS = {8: 77_000, 64: 500_000}
"""Rows that Hive's writer puts into a stripe of this table at a stripe size in MB (`orc.stripe.size`)."""
_BLOCK_BYTES = {8: 64 << 10, 64: 256 << 10}
_DELETE_STRIPE_ROWS = 500_000

Int64Array = npt.NDArray[np.int64]


class Deletes(enum.Enum):
    """Which rows one later transaction deleted."""

    NONE = "none"
    """No delete delta at all."""
    CLUSTERED = "clustered"
    """1000 rows in four stretches, as a DELETE by a key that follows the load does."""
    SCATTERED_1_IN_10000 = "0.01pct"
    """0.01 % of the rows, chosen at random."""
    SCATTERED_1_IN_100 = "1pct"
    """1 % of the rows, chosen at random."""
    SCATTERED_1_IN_10 = "10pct"
    """10 % of the rows, chosen at random."""


_SHARES = {
    Deletes.SCATTERED_1_IN_10000: 10_000,
    Deletes.SCATTERED_1_IN_100: 100,
    Deletes.SCATTERED_1_IN_10: 10,
}


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table to generate. rows: of each delta, over all its buckets; stripe_mb: 8 or 64; wide: see WIDE_COLUMNS."""

    codec: str
    stripe_mb: int = 8
    deltas: int = 10
    rows: int = 1_000_000
    buckets: int = 1
    wide: bool = False

    @property
    def name(self) -> str:
        kind = "wide" if self.wide else "mixed"
        return f"{kind}-{_FORMAT}-{self.codec}-{self.stripe_mb}mb-{self.deltas}x{self.rows}-{self.buckets}b"

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        return WIDE_COLUMNS if self.wide else COLUMNS

    @property
    def bucket_rows(self) -> int:
        """Rows of one bucket in one delta."""
        return self.rows // self.buckets

    @property
    def total_rows(self) -> int:
        return self.bucket_rows * self.buckets * self.deltas

    def scaled(self, scale: float) -> TableSpec:
        """Fewer rows; of a table of very many deltas fewer deltas too."""
        deltas = self.deltas if self.deltas <= 10 else max(int(self.deltas * scale), 20)
        return replace(self, deltas=deltas, rows=max(int(self.rows * scale), 20 * self.buckets))


def prepared(spec: TableSpec, deletes: Deletes, work: Path) -> Path:
    """The table's location below `work`, generated unless it is there already."""
    plain = work / "tables" / spec.name
    if not _is_complete(plain):
        _generate(spec, plain)
    location = work / "tables" / f"{spec.name}-{deletes.value}"
    if not _is_complete(location):
        shutil.rmtree(location, ignore_errors=True)
        shutil.copytree(plain, location, copy_function=os.link)
        (location / _MARK).unlink()
        _write_deletes(spec, deletes, location)
        (location / _MARK).touch()
    return location


def forget(spec: TableSpec, work: Path) -> None:
    """Remove a table and all its variants."""
    for location in (work / "tables").glob(f"{spec.name}*"):
        shutil.rmtree(location)


def data_files(location: Path) -> list[Path]:
    """The insert deltas' files in row order."""
    return sorted(location.glob("delta_*/bucket_*"))


def delete_files(location: Path) -> list[Path]:
    return sorted(location.glob("delete_delta_*/bucket_*"))


def deleted_rows(spec: TableSpec, deletes: Deletes) -> int:
    return sum(len(row_ids) for bucket in range(spec.buckets) for _, row_ids in deleted_keys(spec, deletes, bucket))


def deleted_keys(spec: TableSpec, deletes: Deletes, bucket: int) -> Iterator[tuple[int, Int64Array]]:
    """(write id, ascending row ids) of the deleted rows of a bucket."""
    count = spec.bucket_rows
    if deletes is Deletes.CLUSTERED:
        length = min(250 // spec.buckets or 1, count)
        for write_id in sorted({1 + spec.deltas * quarter // 4 for quarter in range(4)}):
            yield write_id, np.arange(count // 3, count // 3 + length, dtype=np.int64)
    elif deletes is not Deletes.NONE:
        for write_id in range(1, spec.deltas + 1):
            random = np.random.default_rng((7, bucket, write_id))
            chosen = random.choice(count, size=max(count // _SHARES[deletes], 1), replace=False)
            yield write_id, np.sort(chosen).astype(np.int64)


def mixed_rows(seed: Sequence[int], first: int, count: int) -> pa.Table:
    """`count` rows with the ids from `first` on; about 70 bytes a row in ORC with ZLIB or ZSTD."""
    random = np.random.default_rng(seed)
    cents = random.integers(100, 1_000_000, count)
    quantity = random.integers(1, 100, count)
    columns: dict[str, pa.Array] = {
        "id": pa.array(np.arange(first, first + count)),
        "customer": pa.array(random.integers(0, 1_000_000, count)),
        "product": pa.array((random.pareto(1.2, count) * 100).astype(np.int64) % 50_000),
        "quantity": pa.array(quantity),
        "account": pa.array(random.integers(10**9, 10**12, count), mask=random.random(count) < 0.05),
        "price": pa.array(cents / 100),
        "weight": pa.array(random.gamma(2.0, 3.0, count)),
        "total": _decimals(cents * quantity),
        "day": pa.array((19_000 + (first + np.arange(count)) // 50_000 + random.integers(0, 30, count)).astype("i4")),
        "changed": pa.array(1_700_000_000_000_000_000 + random.integers(0, 10**7, count) * 1_000_000_000),
        "paid": pa.array(random.random(count) < 0.8),
        "status": pa.array(_STATUSES).take(pa.array(random.integers(0, len(_STATUSES), count))),
        "note": _notes(random, count),
    }
    arrays = [columns[name].cast(arrow_type(kind), safe=False) for name, kind in ROW_TYPE.children]
    return pa.Table.from_arrays(arrays, names=[name for name, _ in ROW_TYPE.children])


def wide_rows(seed: Sequence[int], first: int, count: int) -> pa.Table:
    letters = np.random.default_rng(seed).integers(33, 127, count * WIDE_BYTES, dtype=np.uint8)
    ids = pa.array(np.arange(first, first + count))
    return pa.table({"id": ids, "payload": _fixed_width(letters, WIDE_BYTES)})


def _notes(random: np.random.Generator, count: int) -> pa.Array:
    """Six words and a token that no other row has."""
    words = pa.array([f"{number * 2654435761 % 2**32:x}"[: 3 + number % 6] for number in range(_WORDS)])
    picked = [words.take(pa.array(random.integers(0, _WORDS, count))) for _ in range(6)]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, count * 32)]
    return pc.binary_join_element_wise(*picked, _fixed_width(digits, 32), " ")


def _decimals(unscaled: Int64Array) -> pa.Array:
    """Non-negative numbers of hundredths as decimal(18,2): low word, high word."""
    words = np.column_stack([unscaled, np.zeros_like(unscaled)])
    return pa.Array.from_buffers(pa.decimal128(18, 2), len(unscaled), [None, pa.py_buffer(words)])


def _fixed_width(letters: npt.NDArray[np.uint8], width: int) -> pa.Array:
    count = len(letters) // width
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))


def _generate(spec: TableSpec, location: Path) -> None:
    shutil.rmtree(location, ignore_errors=True)
    fs, root = open_location(str(location))
    fs.create_directory(root)
    for write_id in range(1, spec.deltas + 1):
        prepare_directory(fs, f"{root}/{_delta(DeltaKind.INSERT, write_id)}", full_acid=True)
    files = [
        (spec, location, write_id, bucket) for write_id in range(1, spec.deltas + 1) for bucket in range(spec.buckets)
    ]
    if spec.total_rows < 1_000_000:
        for file in files:
            _write_file(file)
    else:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            for _ in pool.map(_write_file, files, chunksize=max(len(files) // 40, 1)):
                pass
    (location / _MARK).touch()


def _write_file(file: tuple[TableSpec, Path, int, int]) -> None:
    spec, location, write_id, bucket = file
    count = spec.bucket_rows
    made = (wide_rows if spec.wide else mixed_rows)(
        (write_id, bucket), (write_id - 1) * spec.rows + bucket * count, count
    )
    row_type = struct_of(spec.columns)
    events = insert_events(made, row_type, write_id=write_id, bucket=bucket, statement_id=0)
    stripe_rows = (spec.stripe_mb << 20) // WIDE_BYTES if spec.wide else _STRIPE_ROWS[spec.stripe_mb]
    _write_events(spec, location / _delta(DeltaKind.INSERT, write_id), bucket, events, stripe_rows)


def _write_deletes(spec: TableSpec, deletes: Deletes, location: Path) -> None:
    write_id = spec.deltas + 1
    schema = acid_arrow_schema(struct_of(spec.columns))
    for bucket in range(spec.buckets):
        groups = list(deleted_keys(spec, deletes, bucket))
        if not groups:
            return
        row_ids = np.concatenate([ids for _, ids in groups])
        count = len(row_ids)
        columns = [
            np.full(count, Operation.DELETE, dtype=np.int32),
            np.concatenate([np.full(len(ids), original, dtype=np.int64) for original, ids in groups]),
            np.full(count, encode_bucket(bucket), dtype=np.int32),
            row_ids,
            np.full(count, write_id, dtype=np.int64),
        ]
        arrays = [*map(pa.array, columns), pa.nulls(count, schema.field("row").type)]
        directory = location / _delta(DeltaKind.DELETE, write_id)
        fs, _ = open_location(str(location))
        prepare_directory(fs, str(directory), full_acid=True)
        _write_events(spec, directory, bucket, pa.Table.from_arrays(arrays, schema=schema), _DELETE_STRIPE_ROWS)


def _write_events(spec: TableSpec, directory: Path, bucket: int, events: pa.Table, stripe_rows: int) -> None:
    """A file named as Hive 4 names it, with the attempt id."""
    template = acid_template(struct_of(spec.columns), compression=compression_kind(spec.codec))
    fs, _ = open_location(str(directory))
    with fs.write_atomically(f"{directory}/bucket_{bucket:05d}_0") as stream:
        out = FileAssembler(stream, replace(template, block_size=_BLOCK_BYTES[spec.stripe_mb]))
        for start in range(0, events.num_rows, stripe_rows):
            stripe = events.slice(start, stripe_rows)
            out.append(stripe, last_key(stripe))
        deletes = events.column("operation")[0].as_py() == Operation.DELETE
        out.finish(AcidStats(deletes=events.num_rows) if deletes else AcidStats(inserts=events.num_rows))


def _delta(kind: DeltaKind, write_id: int) -> str:
    return delta_name(kind, write_id, write_id, statement_id=0)


def _is_complete(location: Path) -> bool:
    return (location / _MARK).exists()
