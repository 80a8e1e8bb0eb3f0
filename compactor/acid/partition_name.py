"""Partition names as directories and as PART_NAME: `p=x/q=y`, escaped as Hive does it.

Sources: Hive `FileUtils.escapePathName`, `unescapePathName`, `makePartName`, `Warehouse.makeSpecFromName`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from compactor.errors import UnparsableName

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for a NULL or empty partition value."""

_ESCAPED = re.compile("[\x01-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def escape(value: str | None) -> str:
    """The form of a value inside a path: reserved characters as %XX; None and '' as the default partition."""
    if not value:
        return DEFAULT_PARTITION
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(text: str) -> str:
    """Undo `escape`; a '%' that starts no escape stays as it is."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def partition_name(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """`dt=2024-01-01/n=7` for the partition columns and their values, in the table's order.

    ValueError when their numbers differ.
    """
    pairs = zip(columns, values, strict=True)
    return "/".join(f"{escape(column.lower())}={escape(value)}" for column, value in pairs)


def partition_values(name: str) -> dict[str, str]:
    """Column to unescaped value, in the name's order; NULL appears as DEFAULT_PARTITION.

    UnparsableName when a part is no `column=value`.
    """
    values: dict[str, str] = {}
    for part in name.split("/"):
        column, equals, value = part.partition("=")
        if not (column and equals and value):
            raise UnparsableName(f"{name!r} is no partition name: {part!r} is not of the form column=value")
        values[unescape(column).lower()] = unescape(value)
    return values
