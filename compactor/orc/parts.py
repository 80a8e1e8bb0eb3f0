"""What a task makes of a part: stripes of its own in a part file, and the list of what goes into the output.

    Span       stripes that stand in a file, a source or a part file, and go into the output as they are
    NeedsJvm   stripes whose rows Arrow cannot hold; the JVM writes what survives of them into another part file

Part files lie in the output directory, which nobody sees before it is published, under names that nobody sees after.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.records import RowId, SyntheticIds
from compactor.acid.schema import HiveType
from compactor.acid.stripes import Part, StripeUse
from compactor.errors import BeyondArrow, VerificationError
from compactor.orc.assembler import AcidStats, FileAssembler, Template
from compactor.orc.reader import BoolArray, OrcSource
from compactor.orc.types import acid_type
from compactor.storage.filesystem import FileSystem


@dataclass(frozen=True, kw_only=True)
class Span:
    """Stripes of a file that go into the output as they are.

    path: relative to the location. stop: exclusive, None: to the file's end. encoded: the file is a part file.
    """

    path: str
    start: int
    stop: int | None
    encoded: bool


@dataclass(frozen=True, kw_only=True)
class MaskedStripe:
    """A stripe that the JVM has to rewrite. keep: zlib of numpy.packbits of the mask of surviving rows."""

    path: str
    stripe: int
    keep: bytes
    synthetic: SyntheticIds | None


@dataclass(frozen=True, kw_only=True)
class NeedsJvm:
    """A part file that the JVM has to write. output: relative to the location. rows: how many it will have."""

    output: str
    rows: int
    stripes: tuple[MaskedStripe, ...]


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """What a part contributes to the output, in row order. Counts are those of `ItemResult`."""

    pieces: tuple[Span | NeedsJvm, ...]
    rows_in: int
    rows_deleted: int
    rows_invalid: int

    def completed(self) -> PartResult:
        """The same when the JVM has written its files."""
        return replace(
            self,
            pieces=tuple(
                Span(path=p.output, start=0, stop=None, encoded=True) if isinstance(p, NeedsJvm) else p
                for p in self.pieces
            ),
        )


def encodes(item: PlanItem, part: Part) -> bool:
    """Is there anything to encode in a part?"""
    return item.kind is ItemKind.DELETES or any(run.use is not StripeUse.COPY for run in part.runs)


def part_file(item: PlanItem, number: int) -> str:
    """Path of a part file; Hive, Trino and Spark take no notice of names that begin with '_'."""
    directory = item.output.rpartition("/")[0]
    return f"{directory}/_part_{item.bucket:05d}_{number:05d}"


def output_template(fs: FileSystem, root: str, item: PlanItem, row_type: HiveType) -> Template:
    """What the stripes of an item's output have in common."""
    file_type = row_type if item.kind is ItemKind.PLAIN else acid_type(row_type)
    if item.template is None:
        return Template.fresh(file_type, compression=item.compression)
    with OrcSource(fs, f"{root}/{item.sources[item.template].path}") as source:
        return replace(Template.like(source.tail, file_type), compression=item.compression)


def acid_stats(kind: ItemKind, rows: int) -> AcidStats | None:
    match kind:
        case ItemKind.ROWS:
            return AcidStats(inserts=rows)
        case ItemKind.DELETES:
            return AcidStats(deletes=rows)
        case ItemKind.PLAIN:
            return None


@contextlib.contextmanager
def opened(fs: FileSystem, root: str, file: SourceFile) -> Iterator[OrcSource]:
    """A source of an item; VerificationError when it is not what was planned."""
    with OrcSource(fs, f"{root}/{file.path}", synthetic=file.synthetic) as source:
        if source.tail.rows != file.rows:
            raise VerificationError(
                f"{source.path} has {source.tail.rows} rows, {file.rows} when the compaction was planned"
            )
        yield source


class Sink(Protocol):
    """Where stripes go, in row order. file: the source as the plan knows it."""

    def copy(self, source: OrcSource, file: SourceFile, stripe: int, last: RowId | None) -> None: ...

    def append(self, table: pa.Table, last: RowId | None) -> None: ...

    def divert(self, file: SourceFile, stripe: int, keep: BoolArray) -> None:
        """Let the JVM rewrite the rows `keep` of a stripe."""

    @property
    def diverting(self) -> bool:
        """The last thing that came went to the JVM."""


class WholeFile:
    """The final file."""

    diverting = False

    def __init__(self, out: FileAssembler) -> None:
        self._out = out

    def copy(self, source: OrcSource, file: SourceFile, stripe: int, last: RowId | None) -> None:
        self._out.copy(source, stripe, last)

    def append(self, table: pa.Table, last: RowId | None) -> None:
        self._out.append(table, last)

    def divert(self, file: SourceFile, stripe: int, keep: BoolArray) -> None:
        raise BeyondArrow(f"{file.path}: stripe {stripe} is beyond Arrow")


class PartFile:
    """A part file, opened when the first stripe comes, and the list of what goes into the output."""

    def __init__(self, fs: FileSystem, root: str, path: str, template: Template, stack: contextlib.ExitStack) -> None:
        self._fs, self._root, self._path = fs, root, path
        self._template, self._stack = template, stack
        self._out: FileAssembler | None = None
        self.pieces: list[Span | NeedsJvm] = []

    @property
    def diverting(self) -> bool:
        return bool(self.pieces) and isinstance(self.pieces[-1], NeedsJvm)

    def copy(self, source: OrcSource, file: SourceFile, stripe: int, last: RowId | None) -> None:
        self._add(file.path, stripe, encoded=False)

    def append(self, table: pa.Table, last: RowId | None) -> None:
        if self._out is None:
            # After a power cut nobody asks for it: the compaction begins anew.
            path = f"{self._root}/{self._path}"
            stream = self._stack.enter_context(self._fs.write_atomically(path, durable=False))
            self._out = FileAssembler(stream, self._template)
        self._out.append(table, last)
        self._add(self._path, self._out.stripes - 1, encoded=True)

    def divert(self, file: SourceFile, stripe: int, keep: BoolArray) -> None:
        masked = MaskedStripe(
            path=file.path, stripe=stripe, keep=zlib.compress(np.packbits(keep).tobytes()), synthetic=file.synthetic
        )
        rows = int(np.count_nonzero(keep))
        before = self.pieces[-1] if self.pieces else None
        if isinstance(before, NeedsJvm):
            self.pieces[-1] = NeedsJvm(output=before.output, rows=before.rows + rows, stripes=(*before.stripes, masked))
        else:
            output = f"{self._path}_jvm{sum(isinstance(p, NeedsJvm) for p in self.pieces)}"
            self.pieces.append(NeedsJvm(output=output, rows=rows, stripes=(masked,)))

    def finish(self, kind: ItemKind) -> None:
        if self._out is not None:
            self._out.finish(acid_stats(kind, self._out.rows))

    def _add(self, path: str, stripe: int, *, encoded: bool) -> None:
        before = self.pieces[-1] if self.pieces else None
        if isinstance(before, Span) and (before.path, before.stop) == (path, stripe):
            self.pieces[-1] = Span(path=path, start=before.start, stop=stripe + 1, encoded=encoded)
        else:
            self.pieces.append(Span(path=path, start=stripe, stop=stripe + 1, encoded=encoded))
