"""Which bucket a row belongs to: Hive's bucketing hash, versions 1 and 2.

    bucket = (hash & 0x7fffffff) % number of buckets, hash = 31 * hash of the columns before + hash of the column

Version 2 hashes a value with Murmur3 (32 bit, seed 104729) over its big-endian bytes; version 1 with Java's hashCode.
Sources: Hive `ObjectInspectorUtils.getBucketHashCode`, `getBucketHashCodeOld`, `hashCodeMurmur`, `hashCode`;
`org.apache.hive.common.util.Murmur3.hash32`.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.schema import HiveType
from compactor.errors import UnsupportedData
from compactor.metastore.catalog import Table
from compactor.orc.reader import Int64Array
from compactor.table.values import table_type

T = TypeVar("T")
UInt32Array = npt.NDArray[np.uint32]
_SEED = 104_729
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF


def row_buckets(rows: pa.Table, table: Table) -> Int64Array:
    """Bucket number of each row; 0 for every row of a table that is not bucketed.

    Raises UnsupportedData for a bucketing column whose hash is not known here (binary, timestamp).
    """
    if table.bucket_count <= 0:
        return np.zeros(rows.num_rows, dtype=np.int64)
    version = int(table.parameters.get("bucketing_version", "1"))
    kinds = dict(table_type(table.columns).children)
    columns = [(rows.column(name), kinds[name], name) for name in table.bucket_columns]
    return bucket_numbers(columns, table.bucket_count, version=version)


def bucket_numbers(
    columns: Sequence[tuple[pa.ChunkedArray, HiveType, str]], buckets: int, *, version: int = 2
) -> Int64Array:
    """Bucket number of each row. columns: (values, Hive type, name) of the bucketing columns in their order."""
    total: UInt32Array = np.zeros(len(columns[0][0]), dtype=np.uint32)
    for values, kind, name in columns:
        total = total * np.uint32(31) + _hashes(values, kind, name, version)
    return (total & np.uint32(0x7FFFFFFF)).astype(np.int64) % buckets


def murmur3(data: bytes) -> int:
    """Murmur3.hash32(data) as an unsigned number."""
    whole = len(data) // 4 * 4
    state = _SEED
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = (_rotated(state ^ _mixed(word), 13) * 5 + 0xE6546B64) & _MASK
    if tail := data[whole:]:
        # Java's bytes are signed and only the lowest one is masked off again by the shifts above it.
        word = 0
        for at, byte in enumerate(tail):
            word ^= ((byte - 256 if byte > 127 else byte) << 8 * at) & _MASK
        state ^= _mixed(word)
    return int(_finished(np.array([state ^ len(data)], dtype=np.uint32))[0])


def _hashes(values: pa.ChunkedArray, kind: HiveType, name: str, version: int) -> UInt32Array:
    """The hash of each value, 0 for null."""
    if kind.kind in ("array", "map", "struct"):
        found = _nested_hashes(values, kind, name, version)
    elif version >= 2:
        found = _murmur_hashes(values, kind, name)
    else:
        found = _java_hashes(values, kind, name)
    return np.where(_nulls(values), np.uint32(0), found)


def _nested_hashes(values: pa.ChunkedArray, kind: HiveType, name: str, version: int) -> UInt32Array:
    array = values.combine_chunks()
    children = [child for _, child in kind.children]
    total: UInt32Array = np.zeros(len(array), dtype=np.uint32)
    if kind.kind == "struct":
        for at, child in enumerate(children):
            total = total * np.uint32(31) + _hashes(pa.chunked_array([array.field(at)]), child, name, version)
        return total
    if kind.kind == "array":
        parts = _hashes(pa.chunked_array([array.values]), children[0], name, version)
    else:
        # Hive hashes the values of a map by version 1 whatever the table's version is.
        items = _hashes(pa.chunked_array([array.items]), children[1], name, 1)
        parts = _hashes(pa.chunked_array([array.keys]), children[0], name, version) ^ items
    factor = 31 if kind.kind == "array" else 1
    bounds = array.offsets.to_pylist()
    for row, (start, stop) in enumerate(pairwise(bounds)):
        combined = 0
        for part in parts[start:stop].tolist():
            combined = (combined * factor + part) & _MASK
        total[row] = combined
    return total


def _murmur_hashes(values: pa.ChunkedArray, kind: HiveType, name: str) -> UInt32Array:  # noqa: PLR0911 - one a type
    match kind.kind:
        case "boolean" | "tinyint":
            return _integers(values).astype(np.uint32)
        case "smallint":
            return _each([struct.pack(">h", v) for v in _integers(values).tolist()])
        case "int" | "date":
            return _murmur_words([_integers(values).astype(np.int32).view(np.uint32)], length=4)
        case "bigint":
            longs = _integers(values).view(np.uint64)
            high, low = (longs >> np.uint64(32)).astype(np.uint32), longs.astype(np.uint32)
            return _murmur_words([high, low], length=8)
        case "float":
            # Hive converts the bits, as a number, to a float once more.
            bits = _floats(values, np.float32).view(np.int32)
            return _murmur_words([bits.astype(np.float32).view(np.uint32)], length=4)
        case "double":
            doubles = _floats(values, np.float64).view(np.int64).astype(np.float64).view(np.uint64)
            high, low = (doubles >> np.uint64(32)).astype(np.uint32), doubles.astype(np.uint32)
            return _murmur_words([high, low], length=8)
        case "string" | "varchar":
            return _each([v.encode() for v in _objects(values, "")])
        case "char":
            return _each([v.rstrip(" ").encode() for v in _objects(values, "")])
        case "decimal":
            return _each([_unscaled(v) for v in _objects(values, decimal.Decimal(0))])
        case _:
            raise UnsupportedData(f"bucketing column {name}: rows cannot be hashed by a {kind}")


def _java_hashes(values: pa.ChunkedArray, kind: HiveType, name: str) -> UInt32Array:
    match kind.kind:
        case "boolean" | "tinyint" | "smallint" | "int" | "date":
            return _integers(values).astype(np.uint32)
        case "bigint":
            return _folded(_integers(values).view(np.uint64))
        case "float":
            return _floats(values, np.float32).view(np.uint32)
        case "double":
            return _folded(_floats(values, np.float64).view(np.uint64))
        case "string":
            return np.array([_java_text(v.encode(), 0) for v in _objects(values, "")], dtype=np.uint32)
        case "varchar" | "char":
            texts = [v.rstrip(" ") if kind.kind == "char" else v for v in _objects(values, "")]
            return np.array([_java_text(v.encode(), 1) for v in texts], dtype=np.uint32)
        case _:
            raise UnsupportedData(f"bucketing column {name}: version 1 cannot hash rows by a {kind}")


def _java_text(data: bytes, start: int) -> int:
    """31 * hash + byte from `start` on: 0 for string, 1 for what Hive keeps as Hadoop's Text."""
    total = start
    for byte in data:
        total = (total * 31 + (byte - 256 if byte > 127 else byte)) & _MASK
    return total


def _folded(longs: npt.NDArray[np.uint64]) -> UInt32Array:
    return ((longs >> np.uint64(32)) ^ longs).astype(np.uint32)


def _murmur_words(big_endian: Sequence[UInt32Array], *, length: int) -> UInt32Array:
    """Hashes of values that are whole 32-bit words; Murmur reads their bytes as little-endian words."""
    state: UInt32Array = np.full(len(big_endian[0]), _SEED, dtype=np.uint32)
    for word in big_endian:
        mixed = word.byteswap() * np.uint32(_C1)
        mixed = ((mixed << np.uint32(15)) | (mixed >> np.uint32(17))) * np.uint32(_C2)
        state ^= mixed
        state = ((state << np.uint32(13)) | (state >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
    return _finished(state ^ np.uint32(length))


def _finished(state: UInt32Array) -> UInt32Array:
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _each(data: Sequence[bytes]) -> UInt32Array:
    return np.array([murmur3(d) for d in data], dtype=np.uint32)


def _mixed(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 15) * _C2 & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _MASK


def _unscaled(value: decimal.Decimal) -> bytes:
    """BigInteger bytes of the digits without trailing zeros after the point (HiveDecimalWritable.getInternalStorage)."""
    sign, digits, exponent = value.as_tuple()
    number, scale = int("".join(map(str, digits))), -int(exponent)
    while scale > 0 and number % 10 == 0:
        number, scale = number // 10, scale - 1
    number = -number if sign else number
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def _nulls(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = values.is_null().to_numpy()
    return found


def _integers(values: pa.ChunkedArray) -> Int64Array:
    plain = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    found: Int64Array = pc.fill_null(plain.cast(pa.int64()), 0).to_numpy().astype(np.int64)
    return found


def _floats(values: pa.ChunkedArray, kind: type[np.float32 | np.float64]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = pc.fill_null(values, 0.0).to_numpy().astype(kind)
    # Java knows one NaN only.
    return np.where(np.isnan(found), kind(np.nan), found)


def _objects(values: pa.ChunkedArray, instead: T) -> list[T]:
    return [instead if v is None else v for v in values.to_pylist()]
