"""Random ACID tables: files as any of Hive's writers leaves them, and what every row in them is.

The files are made from the events, and a test's oracle reads the events, never the files. Shapes are drawn by
Hypothesis, so that they shrink; values come from a seed.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import orc

from compactor.acid.layout import decode_bucket, encode_bucket
from compactor.acid.records import Event, Operation, RowId
from compactor.acid.schema import HiveType, parse_type, struct_of
from compactor.acid.snapshot import ValidWriteIdList
from compactor.orc.assembler import AcidStats, FileAssembler, Template
from compactor.orc.compression import ENCODABLE
from compactor.orc.nulls import hide_in_nulls
from compactor.orc.types import acid_type
from tests.orc.acid_files import FS, delete, event_table

Columns = tuple[tuple[str, str], ...]
Row = tuple[Any, ...]
BUCKETS = (0, 1)
_PAD_BYTES = 400_000
"""Of a row of a large stripe: three of them are too large to be joined with their neighbours."""
_FOREIGN_CODECS = {0: "uncompressed", 1: "zlib", 2: "snappy", 4: "lz4", 5: "zstd"}
_CHAINS: tuple[tuple[str, ...], ...] = (
    ("smallint", "int", "bigint"),
    ("int", "string"),
    ("tinyint", "double"),
    ("float", "double"),
    ("decimal(5,2)", "decimal(12,4)"),
    ("varchar(3)", "varchar(9)", "string"),
    ("char(4)", "string"),
    ("struct<x:int>", "struct<x:bigint,y:string>", "struct<z:array<date>,x:bigint,y:string>"),
    ("array<int>", "array<bigint>"),
    ("map<string,smallint>", "map<string,int>"),
    ("array<struct<c:char(4)>>", "array<struct<c:string,d:timestamp>>"),
    ("boolean",),
    ("date",),
    ("timestamp",),
    ("timestamp with local time zone",),
    ("binary",),
    ("string",),
)
"""What a column's type may become, by `ALTER TABLE … CHANGE COLUMN`."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a writer writes. foreign: pyarrow alone writes the file, so that it has no `hive.acid.*` metadata."""

    codec: int
    stripe_rows: int
    block: int
    large: bool
    foreign: bool


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of an ACID table.

    path: relative to the location. columns: those of the table when it was written. plain: it has no ACID columns; the
    row ids of its events are those that Hive gives them. uncommitted: what a streaming writer wrote after its last
    commit.
    """

    path: str
    events: tuple[Event, ...]
    columns: Columns
    style: Style
    plain: bool = False
    uncommitted: tuple[Event, ...] = ()

    @property
    def directory(self) -> str:
        return self.path.partition("/")[0] if "/" in self.path else ""


@dataclass(frozen=True, kw_only=True)
class AcidTable:
    """Files of one place and the snapshot of a compaction. columns: the table's, which are the newest."""

    columns: Columns
    files: tuple[File, ...]
    write_ids: ValidWriteIdList

    def __repr__(self) -> str:
        """A line a file: the rows of large stripes would fill pages."""
        files = "".join(
            f"\n  {f.path} {f.columns[1:]} {f.style}{' plain' * f.plain} +{len(f.uncommitted)}"
            f" {[(*astuple(e.row_id), e.current_write_id, (e.row or ())[1:]) for e in f.events]}"
            for f in self.files
        )
        return f"{self.columns} aborted {sorted(self.write_ids.aborted)}{files}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def lay_out(self, root: Path) -> None:
        for file in self.files:
            write_file(root / file.path, file)

    def events(self, *, of: Callable[[File], bool] = lambda _: True) -> list[Event]:
        """All that was committed to files, with rows as the newest columns show them."""
        wanted = struct_of(self.columns)
        return [
            event if event.row is None else replace(event, row=read_as(event.row, struct_of(file.columns), wanted))
            for file in self.files
            if of(file)
            for event in file.events
        ]


def read_as(value: Any, found: HiveType, wanted: HiveType) -> Any:
    """A row or value of a file as a reader of the table sees it: Hive's schema evolution of ORC, in plain Python.

    A row is a tuple, whose columns match by position; a struct is a dict, whose fields match by name.
    """
    if value is None:
        return None
    inner = [child for _, child in found.children]
    if isinstance(value, dict):
        kinds = dict(found.children)
        return {n: read_as(value[n], kinds[n], w) if n in kinds else None for n, w in wanted.children}
    if wanted.kind == "struct":
        given = [read_as(v, f, w) for v, f, (_, w) in zip(value, inner, wanted.children, strict=False)]
        return (*given, *[None] * (len(wanted.children) - len(given)))
    if wanted.kind == "array":
        return [read_as(v, inner[0], wanted.children[0][1]) for v in value]
    if wanted.kind == "map":
        return [(k, read_as(v, inner[1], wanted.children[1][1])) for k, v in value]
    text = value.rstrip(" ") if found.kind == "char" and wanted.kind == "string" else value
    return str(text) if wanted.kind == "string" else text


def write_file(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    row_type = struct_of(file.columns)
    table = event_table((*file.events, *file.uncommitted), row_type)
    if file.plain:
        rows = table.column("row").combine_chunks()
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
    if file.style.foreign and not file.uncommitted and not re.search(r"\b(var)?char\b", str(row_type)):
        _by_pyarrow(path, table, file.style)
    else:
        _by_assembler(path, file, table, row_type)


def _by_pyarrow(path: Path, table: pa.Table, style: Style) -> None:
    with orc.ORCWriter(
        str(path), compression=_FOREIGN_CODECS[style.codec], stripe_size=1, dictionary_key_size_threshold=0.8
    ) as writer:
        for start in range(0, table.num_rows, style.stripe_rows):
            writer.write(hide_in_nulls(table.slice(start, style.stripe_rows)))


def _by_assembler(path: Path, file: File, table: pa.Table, row_type: HiveType) -> None:
    template = Template.fresh(row_type if file.plain else acid_type(row_type), compression=file.style.codec)
    count, lengths = len(file.events), []
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, replace(template, block_size=file.style.block))
        for first, stop in ((0, count), (count, table.num_rows))[: 1 + bool(file.uncommitted)]:
            for start in range(first, stop, file.style.stripe_rows):
                end = min(start + file.style.stripe_rows, stop)
                last = (*file.events, *file.uncommitted)[end - 1].row_id
                out.append(table.slice(start, end - start), None if file.plain else last)
            lengths.append(out.finish(None if file.plain else AcidStats(inserts=out.rows)))
    if file.uncommitted:
        path.with_name(f"{path.name}_flush_length").write_bytes(lengths[0].to_bytes(8, "big"))


@lru_cache(maxsize=16)
def pad(seed: int) -> bytes:
    """Bytes that no codec makes shorter."""
    return random.Random(seed).randbytes(_PAD_BYTES)


def value_of(rng: random.Random, kind: HiveType) -> Any:
    if rng.random() < 0.15:
        return None
    return _PLAIN[kind.kind](rng, kind)


def _text(rng: random.Random, kind: HiveType) -> str:
    return "".join(rng.choice("ab ☃ä") for _ in range(rng.randint(0, kind.length or 7)))


def _moment(rng: random.Random, kind: HiveType) -> dt.datetime:
    zone = None if kind.kind == "timestamp" else dt.UTC
    return dt.datetime(1700, 1, 1, tzinfo=zone) + dt.timedelta(
        days=rng.randint(0, 200_000), microseconds=rng.randint(0, 10**11)
    )


def _integer(bits: int) -> Callable[[random.Random, HiveType], int]:
    return lambda rng, _: rng.choice([rng.randint(-9, 9), rng.randint(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)])


_PLAIN: dict[str, Callable[[random.Random, HiveType], Any]] = {
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": _integer(64),
    "boolean": lambda rng, _: rng.random() < 0.5,
    "float": lambda rng, _: rng.randint(-9999, 9999) / 8,
    "double": lambda rng, _: rng.choice([-0.0, rng.random() * 10 ** rng.randint(-200, 200)]),
    "decimal": lambda rng, kind: decimal.Decimal(rng.randint(-(10**kind.precision) + 1, 10**kind.precision - 1)).scaleb(
        -kind.scale
    ),
    "string": _text,
    "varchar": _text,
    "char": lambda rng, kind: _text(rng, kind).ljust(kind.length),
    "binary": lambda rng, _: rng.randbytes(rng.randint(0, 5)),
    "date": lambda rng, _: dt.date(1583, 1, 1) + dt.timedelta(days=rng.randint(0, 300_000)),
    "timestamp": _moment,
    "timestamp with local time zone": _moment,
    "array": lambda rng, kind: [value_of(rng, kind.children[0][1]) for _ in range(rng.randint(0, 3))],
    "map": lambda rng, kind: [(k, value_of(rng, kind.children[1][1])) for k in "kl"[: rng.randint(0, 2)]],
    "struct": lambda rng, kind: {name: value_of(rng, child) for name, child in kind.children},
}


@st.composite
def schemas(draw: st.DrawFn) -> list[Columns]:
    """The columns of a table over time: some are renamed, widened or added from one to the next."""
    chains = draw(st.lists(st.sampled_from(_CHAINS), min_size=1, max_size=4))
    count = draw(st.integers(1, len(chains)))
    steps = [0] * len(chains)
    names = [f"c{i}" for i in range(len(chains))]
    history: list[Columns] = []
    for generation in range(draw(st.integers(1, 3))):
        if generation:
            count = draw(st.integers(count, len(chains)))
            for changed in draw(st.sets(st.integers(0, count - 1), max_size=count)):
                if draw(st.booleans()):
                    names[changed] = f"c{changed}_{generation}"
                else:
                    steps[changed] = min(steps[changed] + 1, len(chains[changed]) - 1)
        kept = [(names[i], chains[i][steps[i]]) for i in range(count)]
        history.append((("pad", "binary"), *kept))
    return history


def styles() -> st.SearchStrategy[Style]:
    return st.builds(
        Style,
        codec=st.sampled_from(sorted(ENCODABLE)),
        stripe_rows=st.sampled_from([1, 3, 4, 100]),
        block=st.sampled_from([1 << 15, 1 << 16, 1 << 18]),
        large=st.booleans(),
        foreign=st.sampled_from([False, False, True]),
    )


@dataclass(kw_only=True)
class _Writers:
    """All who wrote to the table, one after the other."""

    draw: st.DrawFn
    rng: random.Random
    history: list[Columns]
    styles: Sequence[Style]
    write_id: int = 0
    generation: int = 0
    files: list[File] = field(default_factory=list)
    rows: list[RowId] = field(default_factory=list)

    def begin(self) -> int:
        """A transaction; now and then somebody has altered the table before it."""
        self.write_id += 1
        self.generation = self.draw(st.integers(self.generation, len(self.history) - 1))
        return self.write_id

    def originals(self) -> None:
        for bucket in BUCKETS:
            first = 0
            for name in (f"{bucket:06d}_0", f"{bucket:06d}_0_copy_1")[: self.draw(st.integers(0, 2))]:
                ids = [RowId(0, encode_bucket(bucket), first + i) for i in range(self.draw(st.integers(1, 6)))]
                first += len(ids)
                self._file(name, ids, plain=True)

    def base(self) -> None:
        """What an earlier compaction made of several write ids."""
        ids = [self.begin() for _ in range(self.draw(st.integers(1, 3)))]
        for bucket in BUCKETS[: self.draw(st.integers(1, 2))]:
            rows = [row for write_id in ids for row in self._new(write_id, bucket)]
            self._file(f"base_{ids[-1]:07d}_v0000003/bucket_{bucket:05d}", rows)

    def insert(self) -> None:
        """One transaction with one or two statements."""
        write_id = self.begin()
        for statement in range(self.draw(st.integers(1, 2))):
            folder = f"delta_{write_id:07d}_{write_id:07d}_{statement:04d}"
            for bucket in BUCKETS[: self.draw(st.integers(1, 2))]:
                self._file(f"{folder}/bucket_{bucket:05d}_0", self._new(write_id, bucket, statement))

    def load(self) -> None:
        """LOAD DATA: files as somebody else wrote them."""
        write_id = self.begin()
        ids = [RowId(write_id, encode_bucket(0), i) for i in range(self.draw(st.integers(1, 6)))]
        cut = self.draw(st.integers(1, len(ids)))
        folder = f"delta_{write_id:07d}_{write_id:07d}_0000"
        self._file(f"{folder}/000000_0", ids[:cut], plain=True)
        self._file(f"{folder}/000000_0_copy_1", ids[cut:], plain=True)

    def stream(self) -> None:
        """A batch of transactions in one file; the last ones may not be committed."""
        ids = [self.begin() for _ in range(self.draw(st.integers(2, 4)))]
        for bucket in BUCKETS[: self.draw(st.integers(1, 2))]:
            rows = [row for write_id in ids for row in self._new(write_id, bucket)]
            behind = [RowId(ids[-1], encode_bucket(bucket), 100 + i) for i in range(self.draw(st.integers(0, 4)))]
            self._file(f"delta_{ids[0]:07d}_{ids[-1]:07d}/bucket_{bucket:05d}", rows, uncommitted=behind)

    def delete(self) -> None:
        """A statement that deletes, or a compaction of several; some rows are deleted twice, some never existed."""
        ids = [self.begin() for _ in range(self.draw(st.integers(1, 2)))]
        chosen = [(row, self.rng.choice(ids)) for row in self._chosen()]
        chosen.sort()
        by_bucket = sorted(chosen, key=lambda pair: decode_bucket(pair[0].bucket))
        statement = "_0000" if len(ids) == 1 else ""
        for bucket, rows in groupby(by_bucket, key=lambda pair: decode_bucket(pair[0].bucket)):
            self.files.append(
                File(
                    path=f"delete_delta_{ids[0]:07d}_{ids[-1]:07d}{statement}/bucket_{bucket:05d}",
                    events=tuple(delete(row, by=write_id) for row, write_id in rows),
                    columns=self.history[self.generation],
                    style=self._style(),
                )
            )

    def _chosen(self) -> list[RowId]:
        """Row ids of a pattern of deletes."""
        rows = sorted(self.rows)
        if not rows:
            return []
        match self.draw(st.sampled_from(["cluster", "scattered", "all", "absent"])):
            case "cluster":
                start = self.draw(st.integers(0, len(rows) - 1))
                return rows[start : start + self.draw(st.integers(1, 5))]
            case "scattered":
                return self.rng.sample(rows, self.draw(st.integers(1, max(len(rows) // 3, 1))))
            case "all":
                return rows
            case _:
                some = self.rng.sample(rows, min(3, len(rows)))
                return sorted({*(replace(row, row_id=row.row_id + 1000) for row in some), *some[:1]})

    def _new(self, write_id: int, bucket: int, statement: int = 0) -> list[RowId]:
        count = self.draw(st.integers(0, 7))
        gap = self.draw(st.sampled_from([0, 0, 5]))
        return [RowId(write_id, encode_bucket(bucket, statement), i + gap * (i > 1)) for i in range(count)]

    def _style(self) -> Style:
        return self.draw(st.sampled_from(self.styles))

    def _file(self, path: str, ids: Sequence[RowId], *, plain: bool = False, uncommitted: Sequence[RowId] = ()) -> None:
        if not ids:
            return
        style, columns = self._style(), self.history[self.generation]
        self.rows += ids
        self.files.append(
            File(
                path=path,
                events=tuple(self._event(row, columns, style) for row in ids),
                columns=columns,
                style=style,
                plain=plain,
                uncommitted=tuple(self._event(row, columns, style) for row in uncommitted),
            )
        )

    def _event(self, row_id: RowId, columns: Columns, style: Style) -> Event:
        padding = pad(self.rng.randrange(8)) if style.large else self.rng.randbytes(3)
        values = [value_of(self.rng, parse_type(text)) for _, text in columns[1:]]
        return Event(
            operation=Operation.INSERT,
            row_id=row_id,
            current_write_id=row_id.write_id,
            row=(padding, *values),
        )


@st.composite
def acid_tables(draw: st.DrawFn) -> AcidTable:
    """Full-ACID tables with some deltas, written with one or two styles and up to three schemas."""
    writers = draw(_writers())
    below = draw(st.sampled_from([None, writers.originals, writers.base]))
    if below is not None:
        below()
    compacted_below = writers.write_id
    kinds = [writers.insert, writers.load, writers.stream, writers.delete, writers.delete]
    for write in draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=5)):
        write()
    writers.insert()
    return draw(_snapshot_of(writers, compacted_below))


@st.composite
def insert_only_tables(draw: st.DrawFn) -> AcidTable:
    """Tables with several deltas of one or two files each."""
    writers = draw(_writers())
    for _ in range(draw(st.integers(2, 5))):
        writers.load()
    return draw(_snapshot_of(writers, 0))


@st.composite
def _writers(draw: st.DrawFn) -> _Writers:
    return _Writers(
        draw=draw,
        rng=random.Random(draw(st.integers(0, 1 << 32))),
        history=draw(schemas()),
        styles=draw(st.lists(styles(), min_size=1, max_size=2)),
    )


@st.composite
def _snapshot_of(draw: st.DrawFn, writers: _Writers, compacted_below: int) -> AcidTable:
    """Some of the writers above `compacted_below` were aborted."""
    later = range(compacted_below + 1, writers.write_id + 1)
    aborted = draw(st.frozensets(st.sampled_from(later), max_size=2))
    return AcidTable(
        columns=writers.history[-1],
        files=tuple(writers.files),
        write_ids=ValidWriteIdList(table="d.t", high_water=writers.write_id, aborted=aborted),
    )
