"""Row-index positions of a stripe that was laid out without compression, once its streams are compressed.

A row-index entry says where its row group begins in every stream of the column. In an uncompressed stream the place
is one number, the byte. In a compressed one it is two: where the block begins in the stream's compressed bytes, and
the byte inside the decompressed block. What follows the place (values into a run, bits into a byte) stays the same.

Sources: ORC v1 specification, "Indexes" and "Column Encodings"; ORC C++ `ColumnWriter::recordPosition`; ORC Java
`PositionProvider`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from compactor.errors import UnsupportedData
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import Blocks

_BYTES, _RUN, _BITS = 0, 1, 2
"""How many numbers follow a place: none; the values of a run; the bytes of a run and the bits of a byte."""
_NUMBERS = ((pb.Stream.DATA, _RUN),)
_FLOATS = ((pb.Stream.DATA, _BYTES),)
_TEXT = ((pb.Stream.DATA, _BYTES), (pb.Stream.LENGTH, _RUN))
_INSTANTS = ((pb.Stream.DATA, _RUN), (pb.Stream.SECONDARY, _RUN))
_COLLECTIONS = ((pb.Stream.LENGTH, _RUN),)
_PLACES: dict[int, tuple[tuple[pb.Stream.Kind, int], ...]] = {
    pb.Type.BOOLEAN: ((pb.Stream.DATA, _BITS),),
    pb.Type.BYTE: _NUMBERS,
    pb.Type.SHORT: _NUMBERS,
    pb.Type.INT: _NUMBERS,
    pb.Type.LONG: _NUMBERS,
    pb.Type.DATE: _NUMBERS,
    pb.Type.FLOAT: _FLOATS,
    pb.Type.DOUBLE: _FLOATS,
    pb.Type.STRING: _TEXT,
    pb.Type.BINARY: _TEXT,
    pb.Type.DECIMAL: ((pb.Stream.DATA, _BYTES), (pb.Stream.SECONDARY, _RUN)),
    pb.Type.TIMESTAMP: _INSTANTS,
    pb.Type.TIMESTAMP_INSTANT: _INSTANTS,
    pb.Type.LIST: _COLLECTIONS,
    pb.Type.MAP: _COLLECTIONS,
    pb.Type.STRUCT: (),
}
"""Streams in the order of an entry's places, after PRESENT: of every type that Arrow has."""
_DICTIONARIES = (pb.ColumnEncoding.DICTIONARY, pb.ColumnEncoding.DICTIONARY_V2)


def recorded(kind: int, encoding: int, *, present: bool) -> tuple[tuple[pb.Stream.Kind, int], ...]:
    """(stream, numbers after its place) of a row-index entry, in order.

    kind: Type.Kind. encoding: ColumnEncoding.Kind. present: the column has nulls.
    """
    places = _NUMBERS if encoding in _DICTIONARIES else _PLACES[kind]
    return ((pb.Stream.PRESENT, _BITS), *places) if present else places


def moved(index: pb.RowIndex, places: Sequence[tuple[Blocks, int]]) -> pb.RowIndex:
    """The row index of a column for its compressed streams.

    places: as `recorded`, with the stream's blocks. UnsupportedData when an entry holds other places than these:
    better no stripe than one with wrong seeks.
    """
    expected = sum(1 + after for _, after in places)
    found = pb.RowIndex()
    for entry in index.entry:
        if len(entry.positions) != expected:
            raise UnsupportedData(f"pyarrow's ORC writer records {len(entry.positions)} positions, not {expected}")
        numbers = iter(entry.positions)
        positions: list[int] = []
        for blocks, after in places:
            positions.extend(blocks.place(next(numbers)))
            positions.extend(islice(numbers, after))
        found.entry.add(positions=positions, statistics=entry.statistics)
    return found
