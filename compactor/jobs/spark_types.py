"""Hive's column types under Spark's names."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types

from compactor.acid.schema import HiveType

_PLAIN: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    # Hive's timestamp is a reading of a clock on the wall, without a zone.
    "timestamp": types.TimestampNTZType(),
    "timestamp with local time zone": types.TimestampType(),
}


def spark_type(kind: HiveType, instead: Mapping[str, types.DataType] | None = None) -> types.DataType:
    """Spark's type for one of Hive's; what Spark has no name for is text. instead: other ones for some plain types."""
    children = [spark_type(child, instead) for _, child in kind.children]
    match kind.kind:
        case "decimal":
            return types.DecimalType(kind.precision, kind.scale)
        case "array":
            return types.ArrayType(children[0])
        case "map":
            return types.MapType(children[0], children[1])
        case "struct":
            names = [name for name, _ in kind.children]
            return types.StructType([types.StructField(n, t) for n, t in zip(names, children, strict=True)])
        case _:
            return ({**_PLAIN, **(instead or {})}).get(kind.kind, types.StringType())
