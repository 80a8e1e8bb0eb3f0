"""Text to statements. The grammar stands in statements.lark; what a grammar cannot say is checked here.

Strings are unescaped as Hive does it (BaseSemanticAnalyzer.unescapeSQLString), identifiers are lower case, and values
of partitions are text whatever type they are written in, because that is how Hive names partitions.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final, NoReturn

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from compactor.acid.partition_name import DEFAULT_PARTITION
from compactor.errors import UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.sql.statements import (
    AbortCompactions,
    AbortTransactions,
    AlterTableCompact,
    OrderKey,
    PartitionSpec,
    ShowCompactions,
    ShowLocks,
    ShowTransactions,
    Statement,
)

DEFAULT_DATABASE: Final = "default"

_TYPES: Final = {
    kind.name.lower(): kind for kind in (CompactionType.MAJOR, CompactionType.MINOR, CompactionType.REBALANCE)
}
_STATES: Final = {state.name.lower().replace("_", " "): state for state in CompactionState}
_SPOKEN: Final = {
    "WORD": "a name",
    "QUOTED_NAME": "a name",
    "STRING": "a quoted text",
    "NUMBER": "a number",
    "MINUS": "a number",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "DOT": "'.'",
    "EQUAL": "'='",
    "SEMICOLON": "';'",
    "$END": "the end",
}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_NUMBER_SUFFIX: Final = re.compile(r"(bd|[lsy])$", re.IGNORECASE)


def parse(text: str) -> list[Statement]:
    """Every statement of a text, separated by ';'; an empty text has none.

    Raises UsageError with line, column, the place in the text and what could stand there.
    """
    try:
        tree = _grammar().parse(text)
        return list(_Statements(text).transform(tree))
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except VisitError as error:
        raise error.orig_exc from None


@cache
def _grammar() -> Lark:
    source = files(__package__).joinpath("statements.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", maybe_placeholders=True)


@v_args(inline=True)
class _Statements(Transformer[Token, list[Statement]]):
    """Folds the tree from the leaves up; a method's name is its rule's."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def start(self, *statements: Statement | None) -> list[Statement]:
        return [statement for statement in statements if statement is not None]

    def alter_table_compact(self, *parts: Any) -> AlterTableCompact:
        _, _, table, partition, compact, kind, buckets, wait, pool, properties, order_by = parts
        if kind is not CompactionType.REBALANCE and (buckets is not None or order_by):
            clause = "CLUSTERED INTO" if buckets is not None else "ORDER BY"
            self._fail(compact, f"{clause} belongs to COMPACT 'rebalance' only")
        return AlterTableCompact(
            table=table,
            type=kind,
            partition=partition,
            and_wait=wait is not None,
            pool=pool,
            buckets=buckets,
            properties=properties or {},
            order_by=order_by or (),
        )

    def show_compactions(self, *parts: Any) -> ShowCompactions:
        _, _, scope, pool, kind, state, order_by, limit = parts
        database, table, partition = scope or (None, None, None)
        return ShowCompactions(
            database=database,
            table=table,
            partition=partition,
            pool=pool,
            type=kind,
            state=state,
            order_by=order_by or (),
            limit=limit,
        )

    def show_one_compaction(self, _show: Token, _compactions: Token, compaction_id: int) -> ShowCompactions:
        return ShowCompactions(compaction_id=compaction_id)

    def show_transactions(self, *_keywords: Token) -> ShowTransactions:
        return ShowTransactions()

    def show_locks(self, _show: Token, _locks: Token, scope: Any, extended: Token | None) -> ShowLocks:
        database, table, partition = scope or (None, None, None)
        return ShowLocks(database=database, table=table, partition=partition, extended=extended is not None)

    def abort_transactions(self, _abort: Token, _transactions: Token, *ids: Token) -> AbortTransactions:
        return AbortTransactions(ids=tuple(self._integer(number) for number in ids))

    def abort_compactions(self, _abort: Token, _compactions: Token, *ids: Token) -> AbortCompactions:
        return AbortCompactions(ids=tuple(self._integer(number) for number in ids))

    def database_filter(self, _keyword: Token, name: str) -> tuple[str, None, None]:
        return name, None, None

    def table_filter(
        self, table: TableName, partition: PartitionSpec | None
    ) -> tuple[None, TableName, PartitionSpec | None]:
        return None, table, partition

    def compaction_id(self, _keyword: Token, number: Token) -> int:
        return self._integer(number)

    def pool(self, _keyword: Token, name: Token) -> str:
        return _unquoted(name)

    def type_filter(self, _keyword: Token, kind: CompactionType) -> CompactionType:
        return kind

    def status_filter(self, _keyword: Token, word: Token) -> CompactionState:
        state = _STATES.get(_unquoted(word).strip().lower().replace("_", " "))
        return state or self._fail(word, "no state of a compaction", expected=[f"'{name}'" for name in _STATES])

    def limit(self, _keyword: Token, number: Token) -> int:
        return self._integer(number)

    def compaction_type(self, word: Token) -> CompactionType:
        kind = _TYPES.get(_unquoted(word).strip().lower())
        return kind or self._fail(word, "no type of compaction", expected=[f"'{name}'" for name in _TYPES])

    def buckets(self, _clustered: Token, _into: Token, number: Token, _buckets: Token) -> int:
        count = self._integer(number)
        return count if count > 0 else self._fail(number, "too few buckets", expected=["a number above 0"])

    def and_wait(self, *_keywords: Token) -> bool:
        return True

    def properties(self, _with: Token, _overwrite: Token, _keyword: Token, *pairs: tuple[str, str]) -> dict[str, str]:
        return dict(pairs)

    def property(self, key: Token, value: Token) -> tuple[str, str]:
        return _unquoted(key), _unquoted(value)

    def order_by(self, _order: Token, _by: Token, *keys: OrderKey) -> tuple[OrderKey, ...]:
        return keys

    def order_key(self, column: str, direction: Token | None, _nulls: Token | None, place: Token | None) -> OrderKey:
        return OrderKey(
            column=column,
            descending=direction is not None and direction.type == "DESC",
            nulls_first=None if place is None else place.type == "FIRST",
        )

    def table_name(self, first: str, second: str | None) -> TableName:
        database, table = (DEFAULT_DATABASE, first) if second is None else (first, second)
        return TableName(database=database, table=table)

    def partition_spec(self, keyword: Token, *values: tuple[str, str]) -> PartitionSpec:
        columns = [column for column, _ in values]
        twice = next((column for column in columns if columns.count(column) > 1), None)
        if twice is not None:
            self._fail(keyword, f"partition column {twice} is named twice")
        return values

    def partition_value(self, column: str, value: Token | str) -> tuple[str, str]:
        return column, _unquoted(value) if isinstance(value, Token) else value

    def typed_literal(self, _type: Token, value: Token) -> str:
        return _unquoted(value)

    def number(self, minus: Token | None, digits: Token) -> str:
        return ("-" if minus else "") + _NUMBER_SUFFIX.sub("", digits)

    def boolean(self, word: Token) -> str:
        return word.lower()

    def null(self, _word: Token) -> str:
        return DEFAULT_PARTITION

    def identifier(self, name: Token) -> str:
        text = name[1:-1].replace("``", "`") if name.type == "QUOTED_NAME" else str(name)
        return text.lower()

    def string(self, token: Token) -> Token:
        # Stays a token, quotes and all, until its user knows that it will not have to point at it.
        return token

    def _integer(self, number: Token) -> int:
        return int(number) if number.isdecimal() else self._fail(number, "not a whole number")

    def _fail(self, token: Token, problem: str, *, expected: list[str] | None = None) -> NoReturn:
        raise _error(self._text, problem, line=token.line or 1, column=token.column or 1, expected=expected or [])


def _unquoted(literal: Token) -> str:
    return _ESCAPE.sub(_unescaped, literal[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "u" and len(code) == 5:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def _syntax_error(text: str, error: UnexpectedInput) -> UsageError:
    line, column = error.line, error.column
    match error:
        case UnexpectedToken(token=Token(type="$END")):
            problem, (line, column) = "the statement ends too early", _end(text)
        case UnexpectedToken(token=token):
            problem = f"unexpected {str(token)!r}"
        case UnexpectedCharacters(char=char) if char in {"'", '"', "`"}:
            problem = f"no second {char} follows"
        case UnexpectedCharacters(char=char):
            problem = f"unexpected {char!r}"
        case _:
            problem = "not understood"
    return _error(text, problem, line=line, column=column, expected=_expected(text))


def _expected(text: str) -> list[str]:
    """What could stand where parsing fails, in a person's words, each once.

    Asked of the parser itself: the error's own list holds what any statement in the same lookahead state would take.
    """
    parser = _grammar().parse_interactive(text)
    with suppress(UnexpectedInput):
        parser.exhaust_lexer()
    return sorted({_SPOKEN.get(name, name) for name in parser.accepts()})  # type: ignore[no-untyped-call]


def _end(text: str) -> tuple[int, int]:
    lines = text.rstrip().split("\n")
    return len(lines), len(lines[-1]) + 1


def _error(text: str, problem: str, *, line: int, column: int, expected: list[str]) -> UsageError:
    lines = text.split("\n")
    excerpt = lines[line - 1].rstrip() if line <= len(lines) else ""
    pointer = "".join("\t" if char == "\t" else " " for char in excerpt[: column - 1]).ljust(column - 1) + "^"
    message = f"line {line}, column {column}: {problem}\n  {excerpt}\n  {pointer}"
    return UsageError(message, hint=f"expected {', '.join(expected)}" if expected else "")
