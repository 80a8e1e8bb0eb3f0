"""Thrift's compact protocol as plain values: what Parquet's footers are written in.

Reading and writing needs no schema, and what is read and written again is the same byte for byte, fields of later
versions included. Source: Apache Thrift, `thrift-compact-protocol.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.IntEnum):
    """Types of the compact protocol, with the Python type of their values."""

    TRUE = 1
    """bool; as the element of a list it stands for both values, whose bytes are kept (int)."""
    FALSE = 2
    """bool."""
    BYTE = 3
    """int."""
    I16 = 4
    """int."""
    I32 = 5
    """int."""
    I64 = 6
    """int."""
    DOUBLE = 7
    """bytes: eight of them."""
    BINARY = 8
    """bytes."""
    LIST = 9
    """ThriftList."""
    SET = 10
    """ThriftList."""
    MAP = 11
    """ThriftMap."""
    STRUCT = 12
    """Struct."""
    UUID = 13
    """bytes: sixteen of them."""


_SIZES = {Kind.DOUBLE: 8, Kind.UUID: 16}


class ThriftError(Exception):
    """The bytes are no Thrift, or end too early."""


@dataclass
class Struct:
    """fields: kind and value by field id, in the order they were written."""

    fields: dict[int, tuple[Kind, Any]] = field(default_factory=dict)

    def get(self, number: int, default: Any = None) -> Any:
        """The value of a field, `default` when there is none."""
        return self.fields[number][1] if number in self.fields else default

    def change(self, number: int, value: Any) -> None:
        """Replace the value of a field that is there."""
        self.fields[number] = self.fields[number][0], value

    def copy(self) -> Struct:
        """A struct whose fields can be changed without changing this one's."""
        return Struct(dict(self.fields))


@dataclass(frozen=True)
class ThriftList:
    """A list or set with the kind of its elements."""

    kind: Kind
    items: list[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class ThriftMap:
    """A map as pairs, with the kinds of keys and values."""

    keys: Kind
    values: Kind
    items: list[tuple[Any, Any]]


def parse(data: bytes) -> tuple[Struct, int]:
    """The struct that `data` starts with, and its length in bytes. Raises ThriftError."""
    reader = _Reader(data)
    try:
        found = reader.struct()
    except (IndexError, ValueError, RecursionError) as error:
        raise ThriftError(f"no Thrift at byte {reader.at}: {error}") from error
    return found, reader.at


def serialize(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> Struct:
        fields: dict[int, tuple[Kind, Any]] = {}
        number = 0
        while header := self._byte():
            delta, kind = header >> 4, Kind(header & 15)
            number = number + delta if delta else self._zigzag()
            fields[number] = kind, self._field(kind)
        return Struct(fields)

    def _field(self, kind: Kind) -> Any:
        return kind is Kind.TRUE if kind in (Kind.TRUE, Kind.FALSE) else self._value(kind)

    def _value(self, kind: Kind) -> Any:
        match kind:
            case Kind.TRUE | Kind.FALSE | Kind.BYTE:
                return self._byte()
            case Kind.I16 | Kind.I32 | Kind.I64:
                return self._zigzag()
            case Kind.DOUBLE | Kind.UUID | Kind.BINARY:
                return self._bytes(_SIZES[kind] if kind in _SIZES else self._varint())
            case Kind.LIST | Kind.SET | Kind.MAP:
                return self._map() if kind is Kind.MAP else self._list()
            case Kind.STRUCT:
                return self.struct()

    def _list(self) -> ThriftList:
        header = self._byte()
        size, element = header >> 4, Kind(header & 15)
        size = self._varint() if size == 15 else size
        return ThriftList(element, [self._value(element) for _ in range(size)])

    def _map(self) -> ThriftMap:
        size = self._varint()
        kinds = self._byte() if size else Kind.BYTE << 4 | Kind.BYTE
        keys, values = Kind(kinds >> 4), Kind(kinds & 15)
        return ThriftMap(keys, values, [(self._value(keys), self._value(values)) for _ in range(size)])

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _bytes(self, count: int) -> bytes:
        found = self._data[self.at : self.at + count]
        if len(found) != count:
            raise ValueError(f"{count} bytes where {len(found)} are left")
        self.at += count
        return found

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in struct.fields.items():
        written = (Kind.TRUE if value else Kind.FALSE) if kind in (Kind.TRUE, Kind.FALSE) else kind
        delta = number - last
        if 0 < delta <= 15:
            out.append(delta << 4 | written)
        else:
            out.append(written)
            _write_zigzag(out, number)
        last = number
        if kind not in (Kind.TRUE, Kind.FALSE):
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: Kind, value: Any) -> None:
    match kind:
        case Kind.TRUE | Kind.FALSE | Kind.BYTE:
            out.append(value)
        case Kind.I16 | Kind.I32 | Kind.I64:
            _write_zigzag(out, value)
        case Kind.DOUBLE | Kind.UUID:
            out += value
        case Kind.BINARY:
            _write_varint(out, len(value))
            out += value
        case Kind.LIST | Kind.SET:
            out.append(min(len(value), 15) << 4 | value.kind)
            if len(value) >= 15:
                _write_varint(out, len(value))
            for item in value:
                _write_value(out, value.kind, item)
        case Kind.MAP:
            _write_varint(out, len(value.items))
            if value.items:
                out.append(value.keys << 4 | value.values)
            for key, item in value.items:
                _write_value(out, value.keys, key)
                _write_value(out, value.values, item)
        case Kind.STRUCT:
            _write_struct(out, value)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_zigzag(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))
