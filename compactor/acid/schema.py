"""Hive types: parsing `struct<a:int,b:array<decimal(10,2)>>`, and which conversions schema evolution allows.

Sources: Hive `TypeInfoUtils` (type strings), `HiveConf.HIVE_ORC_FORCE_POSITIONAL_SCHEMA_EVOLUTION`; ORC
`SchemaEvolution` and `ConvertTreeReaderFactory` (conversions).

Files are matched to the table by column position, not by name: a renamed column keeps its values. The fields of a
column that is a struct are matched by name, and those of structs below an array or a map by position again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from compactor.errors import FormatError

INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
STRINGS = ("string", "varchar", "char")
_ALIASES = {"integer": "int", "dec": "decimal", "numeric": "decimal", "real": "double"}
_PRIMITIVES = frozenset(
    {
        *INTEGERS,
        *STRINGS,
        "boolean",
        "float",
        "double",
        "binary",
        "timestamp",
        "timestamp with local time zone",
        "date",
        "decimal",
    }
)
_TOKEN = re.compile(r"\s*(timestamp with local time zone|`(?:[^`]|``)*`|[^\s<>(),:`]+|[<>(),:])", re.IGNORECASE)


@dataclass(frozen=True)
class HiveType:
    """A Hive type as a tree.

    kind: `int`, `struct`, … length: of char and varchar. precision, scale: of decimal. children: (field name,
    type) of a struct; (`item`, type) of an array; (`key`, …), (`value`, …) of a map; (`0`, …) … of a uniontype.
    """

    kind: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    children: tuple[tuple[str, HiveType], ...] = field(default=())

    def __str__(self) -> str:
        inner = [str(t) for _, t in self.children]
        match self.kind:
            case "char" | "varchar":
                return f"{self.kind}({self.length})"
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
            case "struct":
                return f"struct<{','.join(f'{n}:{t}' for n, t in self.children)}>"
            case "array" | "map" | "uniontype":
                return f"{self.kind}<{','.join(inner)}>"
            case _:
                return self.kind


def struct_of(columns: tuple[tuple[str, str], ...]) -> HiveType:
    """The struct type of a table's columns, given (name, type string)."""
    return HiveType("struct", children=tuple((name, parse_type(text)) for name, text in columns))


def parse_type(text: str) -> HiveType:
    """Parse a Hive type string; FormatError with the place when it is not one."""
    tokens = _tokens(text)
    parsed, rest = _type(tokens, 0, text)
    if rest != len(tokens):
        raise FormatError(f"type {text!r}: unexpected {tokens[rest]!r} after {parsed}")
    return parsed


ROW = 1
"""Level of a table's row: its columns match by position."""
COLUMN = 0
"""Level of a column's own value: the fields of a struct match by name, and so on down through structs."""


def matching_field(found: HiveType, wanted: HiveType, position: int, level: int) -> int | None:
    """Where in the struct `found` the field at `position` of the struct `wanted` stands; None: the file has none.

    level: as of `can_read_as`.
    """
    if level != COLUMN:
        return position if position < len(found.children) else None
    names = [name for name, _ in found.children]
    name = wanted.children[position][0]
    return names.index(name) if name in names else None


def below(level: int, kind: str) -> int:
    """The level of the values inside a value of `kind` at `level` (SchemaEvolution's positionalLevels)."""
    return COLUMN if level == COLUMN and kind == "struct" else level - 1


def can_read_as(found: HiveType, wanted: HiveType, level: int = ROW) -> bool:
    """May a file column of type `found` be rewritten as `wanted` so that every reader goes on seeing the same values?

    A narrower set than ConvertTreeReaderFactory's: conversions that can turn a value into null (string to int)
    or that print numbers as text stay with the engine that defines them. Texts become each other, as files of LOAD DATA
    ask for, whose columns are all strings: Hive cuts what is longer than a varchar or char whenever it reads it.
    level: ROW when the types are those of whole rows, COLUMN for a column.
    """
    if found.kind == wanted.kind:
        return _same_kind(found, wanted, level)
    if found.kind in INTEGERS:
        return _holds_integers(found.kind, wanted)
    if found.kind in STRINGS:
        return wanted.kind in STRINGS
    return found.kind == "float" and wanted.kind == "double"


def _holds_integers(found: str, wanted: HiveType) -> bool:
    match wanted.kind:
        case "string":
            return True
        case "double":
            return found != "bigint"
        case "decimal":
            return wanted.precision - wanted.scale >= _DIGITS[found]
        case kind:
            return kind in INTEGERS and INTEGERS.index(found) < INTEGERS.index(kind)


def _same_kind(found: HiveType, wanted: HiveType, level: int) -> bool:
    if found == wanted:
        return True
    inside = below(level, found.kind)
    match found.kind:
        case "struct":
            places = [matching_field(found, wanted, position, level) for position in range(len(wanted.children))]
            taken = [(at, kind) for at, (_, kind) in zip(places, wanted.children, strict=True) if at is not None]
            every = {at for at, _ in taken} == set(range(len(found.children)))
            return every and all(can_read_as(found.children[at][1], kind, inside) for at, kind in taken)
        case "array" | "map":
            pairs = zip(found.children, wanted.children, strict=True)
            return all(can_read_as(f, w, inside) for (_, f), (_, w) in pairs)
        case "decimal":
            return wanted.scale >= found.scale and wanted.precision - wanted.scale >= found.precision - found.scale
        case kind:
            return kind in ("varchar", "char")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise FormatError(f"type {text!r} cannot be understood at {stripped[position:]!r}")
        tokens.append(match[1])
        position = match.end()
    return tokens


def _type(tokens: list[str], at: int, text: str) -> tuple[HiveType, int]:
    if at >= len(tokens):
        raise FormatError(f"type {text!r} ends too early")
    kind = _ALIASES.get(tokens[at].lower(), tokens[at].lower())
    at += 1
    if kind in ("char", "varchar"):
        (length,), at = _parameters(tokens, at, text, (0,))
        return HiveType(kind, length=length), at
    if kind == "decimal":
        (precision, scale), at = _parameters(tokens, at, text, (10, 0))
        return HiveType(kind, precision=precision, scale=scale), at
    if kind in _PRIMITIVES:
        return HiveType(kind), at
    if kind in ("array", "map", "uniontype", "struct"):
        return _nested(kind, tokens, _expect(tokens, at, "<", text), text)
    raise FormatError(f"type {text!r}: {kind!r} is no Hive type")


def _nested(kind: str, tokens: list[str], at: int, text: str) -> tuple[HiveType, int]:
    children: list[tuple[str, HiveType]] = []
    names = {"array": ("item",), "map": ("key", "value")}.get(kind, ())
    while True:
        if kind == "struct":
            if at >= len(tokens):
                raise FormatError(f"type {text!r} ends too early")
            name = _unquote(tokens[at])
            at = _expect(tokens, at + 1, ":", text)
        else:
            name = names[len(children)] if len(children) < len(names) else str(len(children))
        child, at = _type(tokens, at, text)
        children.append((name, child))
        if at < len(tokens) and tokens[at] == ",":
            at += 1
            continue
        at = _expect(tokens, at, ">", text)
        if names and len(children) != len(names):
            raise FormatError(f"type {text!r}: {kind} takes {len(names)} type(s), not {len(children)}")
        return HiveType(kind, children=tuple(children)), at


def _parameters(tokens: list[str], at: int, text: str, defaults: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    if at >= len(tokens) or tokens[at] != "(":
        return defaults, at
    values: list[int] = []
    at += 1
    while True:
        if at >= len(tokens) or not tokens[at].isdigit():
            raise FormatError(f"type {text!r}: a number is expected between the parentheses")
        values.append(int(tokens[at]))
        at += 1
        if at < len(tokens) and tokens[at] == ",":
            at += 1
            continue
        return (*values, *defaults[len(values) :])[: len(defaults)], _expect(tokens, at, ")", text)


def _expect(tokens: list[str], at: int, token: str, text: str) -> int:
    if at >= len(tokens) or tokens[at] != token:
        found = tokens[at] if at < len(tokens) else "the end"
        raise FormatError(f"type {text!r}: {token!r} expected, {found!r} found")
    return at + 1


def _unquote(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token
