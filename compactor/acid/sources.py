"""The files that an item reads, in the order of their rows, and the row ids of those that hold none. Pure.

Sources: Hive `AcidUtils.getAcidState` (recursive listing, order of originals), `OrcRawRecordMerger` (which files of a
bucket are merged), `HIVE_UNION_SUBDIR_n` (`AbstractFileMergeOperator`: a UNION ALL writes one folder a branch).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import decode_bucket, is_hidden, parse_bucket, parse_directory
from compactor.acid.records import RowId, SyntheticIds, synthetic_ids
from compactor.acid.schema import HiveType
from compactor.acid.stripes import StripeFacts
from compactor.errors import UnsupportedData


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What the tail of a data file says.

    rows: number of rows; -1 in a format that does not tell. row_type: type of the table's columns in this file
    (without the ACID columns). acid: the file has ACID columns. format: as in `compactor.jobs.formats`. stripes: of an
    ORC file. template: equal in two ORC files exactly when their stripes may stand in one file
    (`orc.assembler.Template`), and in two files of another format when they may become one. compression: codec of an
    ORC file (ORC CompressionKind). suffix: how the name of an output must end for readers to find its codec. skipped:
    lines that readers skip at the start and at the end of a text file.
    """

    rows: int
    row_type: HiveType
    acid: bool
    format: str = "orc"
    stripes: tuple[StripeFacts, ...] = ()
    template: bytes = b""
    compression: int = 1
    suffix: str = ""
    skipped: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file that an item reads. path: relative to the location. synthetic: row ids of a file without ACID columns."""

    path: str
    size: int
    rows: int
    synthetic: SyntheticIds | None = None

    @property
    def synthetic_end(self) -> RowId | None:
        """The last row id of a file whose row ids are synthetic."""
        ids = self.synthetic
        return None if ids is None else RowId(ids.write_id, ids.bucket, ids.first_row_id + self.rows - 1)


def originals_and_base(
    state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts], *, full_acid: bool
) -> list[SourceFile]:
    """What lies below the deltas, in row order: the originals, or the base.

    Raises UnsupportedData for an original file whose name Hive would read and nobody here: a base would hide its rows.
    """
    if state.base is not None:
        files = listing.data_files(state.base.name)
        return _sources(files, facts, write_id=state.base.write_id, statement_id=0, full_acid=full_acid)
    for file in listing.files:
        if file.size > 0 and _is_foreign(file):
            raise _nameless(file.path)
    return _sources(state.originals, facts, write_id=0, statement_id=0, full_acid=full_acid)


def delta_sources(
    state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts], *, full_acid: bool
) -> list[SourceFile]:
    """Files of the insert deltas by write id and statement."""
    return [
        source
        for delta in state.insert_deltas
        for source in _sources(
            listing.data_files(delta.name),
            facts,
            write_id=delta.min_write_id,
            statement_id=max(delta.statement_id, 0),
            full_acid=full_acid,
        )
    ]


def delete_sources(state: DirectoryState, listing: Listing, facts: Mapping[str, FileFacts]) -> list[SourceFile]:
    """Files of the delete deltas."""
    return [
        SourceFile(path=f.path, size=f.size, rows=facts[f.path].rows)
        for delta in state.delete_deltas
        for f in listing.data_files(delta.name)
        if facts[f.path].rows
    ]


def by_bucket(sources: Iterable[SourceFile]) -> dict[int, list[SourceFile]]:
    """Sources grouped by bucket, each group in the order given."""
    grouped: dict[int, list[SourceFile]] = {}
    for source in sources:
        parsed = parse_bucket(source.path.rpartition("/")[2])
        if source.synthetic is not None:
            bucket = decode_bucket(source.synthetic.bucket)
        elif parsed is not None:
            bucket = parsed.bucket
        else:
            raise _nameless(source.path)
        grouped.setdefault(bucket, []).append(source)
    return grouped


def _sources(
    files: Iterable[ListedFile],
    facts: Mapping[str, FileFacts],
    *,
    write_id: int,
    statement_id: int,
    full_acid: bool,
) -> list[SourceFile]:
    """Files of one directory that have rows; those without ACID columns get the row ids that Hive gives them."""
    listed = [f for f in files if facts[f.path].rows]
    plain = [(f, facts[f.path].rows) for f in listed if full_acid and not facts[f.path].acid]
    ids = synthetic_ids(plain, write_id=write_id, statement_id=statement_id)
    sources = [SourceFile(path=f.path, size=f.size, rows=facts[f.path].rows, synthetic=ids.get(f.path)) for f in listed]
    return sorted(sources, key=lambda s: s.synthetic.first_row_id if s.synthetic else 0)


def _is_foreign(file: ListedFile) -> bool:
    """A visible file outside of every ACID directory whose name says nothing about its bucket."""
    return (
        (not file.directory or parse_directory(file.directory) is None)
        and not any(map(is_hidden, file.path.split("/")))
        and not file.name.endswith("_flush_length")
        and parse_bucket(file.name) is None
    )


def _nameless(path: str) -> UnsupportedData:
    return UnsupportedData(
        f"{path}: the name does not tell the bucket", hint="rename the file to 00000N_0 or bucket_0000N"
    )
