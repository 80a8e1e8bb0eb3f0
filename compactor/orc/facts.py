"""What the tails of ORC files say about them and their stripes, for the plan.

What may be trusted, and what not:

- Hive's streaming ingest writes stripes without row indexes whose statistics count no values (`OrcRecordUpdater`): a
  stripe's statistics must count all its rows.
- Files of inserts are sorted, and `hive.acid.key.index` names the last row id of each stripe
  (`OrcRawRecordMerger.discoverKeyBounds`). Statistics of a single write id and bucket tell it as well.
- Trino writes a key index that does not say where a stripe of delete events ends (`OrcFileWriter.updateUserMetadata`:
  the number of events), one entry however many stripes there are, and delete events in any order. So delete events
  are bounded by their statistics alone, and an index that contradicts the statistics is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

from compactor.acid.layout import flush_length_file
from compactor.acid.records import Operation, RowId
from compactor.acid.schema import HiveType
from compactor.acid.sources import FileFacts
from compactor.acid.stripes import StripeFacts
from compactor.errors import CorruptFile, PathNotFound, UnsupportedData
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import Template
from compactor.orc.reader import OrcSource
from compactor.orc.tail import OrcTail, stripe_length
from compactor.orc.types import acid_type
from compactor.storage.filesystem import FileSystem

_OPERATION, _WRITE_ID, _BUCKET, _ROW_ID, _CURRENT = 1, 2, 3, 4, 5
_BELOW, _ABOVE = -(1 << 62), 1 << 62
_LENGTH_BYTES = 8


def orc_facts(fs: FileSystem, path: str) -> FileFacts:
    """What a plan needs to know of a file, from its tail alone; of a streaming file, of its committed part.

    Raises PathNotFound, CorruptFile; UnsupportedData for encrypted columns, which nobody here has the keys of.
    """
    try:
        source = OrcSource(fs, path)
    except CorruptFile:
        if _nothing_committed(fs, path):
            return FileFacts(rows=0, row_type=HiveType("struct"), acid=True)
        raise
    with source:
        tail = source.tail
    if is_encrypted(tail):
        raise UnsupportedData(
            f"{path} has encrypted columns, whose keys the compactor does not have",
            hint="compact the table with an engine that has the keys",
        )
    row_type = tail.row_type
    return FileFacts(
        rows=tail.rows,
        row_type=row_type,
        acid=tail.is_acid,
        stripes=stripe_facts(tail),
        template=_digest(tail, row_type),
        compression=tail.postscript.compression,
    )


def stripe_facts(tail: OrcTail) -> tuple[StripeFacts, ...]:
    """One entry a stripe, from the column statistics and the key index."""
    if not tail.is_acid:
        return tuple(
            StripeFacts(rows=s.number_of_rows, size=stripe_length(s), trusted=_is_indexed(tail, at))
            for at, s in enumerate(tail.footer.stripes)
        )
    index = _ascending(tail.key_index())
    found: list[StripeFacts] = []
    for at in range(len(tail.footer.stripes)):
        found.append(_acid_stripe(tail, at, None if index is None else index[at], found[-1] if found else None))
    return tuple(found)


def _digest(tail: OrcTail, row_type: HiveType) -> bytes:
    """The template's digest; empty when an output that takes it could not hold this file's own stripes."""
    template = Template.like(tail, acid_type(row_type) if tail.is_acid else row_type)
    return template_digest(template) if template.accepts(tail) else b""


def template_digest(template: Template) -> bytes:
    """Equal for two templates exactly when they are equal, whichever process asks."""
    compared = [(f.name, getattr(template, f.name)) for f in fields(template) if f.compare]
    return hashlib.blake2b(repr(compared).encode(), digest_size=16).digest()


def is_encrypted(tail: OrcTail) -> bool:
    """Some columns can only be read with a key (ORC v1 specification, "Column Encryption")."""
    return tail.footer.HasField("encryption") or any(s.encrypted_local_keys for s in tail.footer.stripes)


def _acid_stripe(tail: OrcTail, at: int, indexed_last: RowId | None, before: StripeFacts | None) -> StripeFacts:
    """indexed_last: of the key index. before: the stripe before this one in the file."""
    stripe = tail.footer.stripes[at]
    if not _is_indexed(tail, at):
        return StripeFacts(rows=stripe.number_of_rows, size=stripe_length(stripe), trusted=False, last=indexed_last)
    columns = tail.metadata.stripe_stats[at].col_stats
    inserts_only = _range(columns, _OPERATION) == (Operation.INSERT, Operation.INSERT)
    low, high = _bound(columns, 0), _bound(columns, 1)
    first, last = low, high
    if inserts_only:
        if high is not None and high.row_id == _ABOVE:
            last = indexed_last if _agrees(columns, indexed_last) else None
        if first is not None and before is not None and before.inserts_only and before.last is not None:
            first = max(first, RowId(before.last.write_id, before.last.bucket, before.last.row_id + 1))
    return StripeFacts(
        rows=stripe.number_of_rows,
        size=stripe_length(stripe),
        trusted=first is not None and last is not None,
        first=first,
        last=last,
        write_ids=_range(columns, _CURRENT),
        inserts_only=inserts_only,
    )


def _is_indexed(tail: OrcTail, at: int) -> bool:
    """The stripe has row indexes and statistics of every row."""
    if not tail.footer.row_index_stride or at >= len(tail.metadata.stripe_stats):
        return False
    columns = tail.metadata.stripe_stats[at].col_stats
    return bool(columns) and columns[0].number_of_values == tail.footer.stripes[at].number_of_rows


def _bound(columns: Sequence[pb.ColumnStatistics], side: int) -> RowId | None:
    """A row id at or below every one of a stripe (side 0), or at or above (side 1).

    Exact in the row id where all rows have one write id and one bucket property.
    """
    found: list[int] = []
    for column in (_WRITE_ID, _BUCKET, _ROW_ID):
        bounds = _range(columns, column)
        if bounds is None:
            return None
        found.append(bounds[side])
        if bounds[0] != bounds[1]:
            break
    return RowId(*(found + [(_BELOW, _ABOVE)[side]] * (3 - len(found))))


def _agrees(columns: Sequence[pb.ColumnStatistics], last: RowId | None) -> bool:
    """Can `last` be the last row id of sorted rows with these statistics?"""
    if last is None:
        return False
    write_id, bucket, row_id = (_range(columns, c) or (1, 0) for c in (_WRITE_ID, _BUCKET, _ROW_ID))
    return (
        last.write_id == write_id[1] and bucket[0] <= last.bucket <= bucket[1] and row_id[0] <= last.row_id <= row_id[1]
    )


def _range(columns: Sequence[pb.ColumnStatistics], column: int) -> tuple[int, int] | None:
    """(minimum, maximum) of an integer column; None when the statistics do not tell."""
    if not columns:
        return None
    found = columns[column].int_statistics
    return (found.minimum, found.maximum) if found.HasField("minimum") and found.HasField("maximum") else None


def _ascending(index: Sequence[RowId] | None) -> Sequence[RowId] | None:
    """The key index, unless its entries do not ascend or are no row ids."""
    if index is None or any(a >= b for a, b in pairwise(index)):
        return None
    return index if all(abs(n) < _ABOVE for k in index for n in (k.write_id, k.bucket, k.row_id)) else None


def _nothing_committed(fs: FileSystem, path: str) -> bool:
    """A streaming writer says 0 before its first commit, or was stopped while it said so (OrcRecordUpdater)."""
    try:
        with fs.open(flush_length_file(path)) as lengths:
            raw = bytes(lengths.read())
    except PathNotFound:
        return False
    whole = len(raw) // _LENGTH_BYTES * _LENGTH_BYTES
    return int.from_bytes(raw[whole - _LENGTH_BYTES : whole], "big") == 0 if whole else True
