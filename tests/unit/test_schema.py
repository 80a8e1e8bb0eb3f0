"""Hive's type strings, and which types may be rewritten as which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.schema import HiveType, can_read_as, parse_type, struct_of
from compactor.errors import FormatError

_SIMPLE = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "timestamp",
    "date",
]


def hive_types() -> st.SearchStrategy[HiveType]:
    leaves = st.one_of(
        st.sampled_from([HiveType(k) for k in [*_SIMPLE, "timestamp with local time zone"]]),
        st.integers(1, 255).map(lambda n: HiveType("char", length=n)),
        st.integers(1, 65535).map(lambda n: HiveType("varchar", length=n)),
        st.integers(1, 38).flatmap(
            lambda p: st.integers(0, p).map(lambda s: HiveType("decimal", precision=p, scale=s)),
        ),
    )
    names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)

    def nested(inner: st.SearchStrategy[HiveType]) -> st.SearchStrategy[HiveType]:
        fields = st.lists(st.tuples(names, inner), min_size=1, max_size=3)
        return st.one_of(
            inner.map(lambda t: HiveType("array", children=(("item", t),))),
            st.tuples(inner, inner).map(lambda t: HiveType("map", children=(("key", t[0]), ("value", t[1])))),
            fields.map(lambda f: HiveType("struct", children=tuple(f))),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda ts: HiveType("uniontype", children=tuple((str(i), t) for i, t in enumerate(ts)))
            ),
        )

    return st.recursive(leaves, nested, max_leaves=6)


@given(hive_types())
def test_a_printed_type_parses_to_itself(hive_type: HiveType) -> None:
    assert parse_type(str(hive_type)) == hive_type


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("INT", "int"),
        ("decimal", "decimal(10,0)"),
        ("decimal(7)", "decimal(7,0)"),
        ("numeric(7, 2)", "decimal(7,2)"),
        ("integer", "int"),
        (" struct< a : int , `b` : array<string> > ", "struct<a:int,b:array<string>>"),
        ("timestamp with local time zone", "timestamp with local time zone"),
        ("map<string,array<struct<x:decimal(3,1)>>>", "map<string,array<struct<x:decimal(3,1)>>>"),
    ],
)
def test_hives_ways_to_write_a_type_are_understood(text: str, printed: str) -> None:
    assert str(parse_type(text)) == printed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends too early"),
        ("text", "'text' is no Hive type"),
        ("int int", "unexpected 'int'"),
        ("array<int", "'>' expected, the end found|'>' expected"),
        ("array<int,int>", "array takes 1"),
        ("map<int>", "map takes 2"),
        ("struct<a int>", "':' expected"),
        ("struct<", "ends too early"),
        ("decimal(x)", "a number is expected"),
        ("varchar(10", "'\\)' expected"),
    ],
)
def test_what_is_no_type_is_a_format_error_that_says_why(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_type(text)


def test_a_table_is_the_struct_of_its_columns() -> None:
    assert str(struct_of((("id", "int"), ("v", "varchar(3)")))) == "struct<id:int,v:varchar(3)>"


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("tinyint", "bigint"),
        ("int", "double"),
        ("int", "decimal(10,0)"),
        ("bigint", "decimal(38,19)"),
        ("float", "double"),
        ("varchar(5)", "string"),
        ("varchar(5)", "varchar(9)"),
        ("char(5)", "string"),
        ("bigint", "string"),
        ("char(5)", "varchar(5)"),
        ("string", "varchar(5)"),
        ("string", "char(5)"),
        ("varchar(9)", "varchar(5)"),
        ("char(5)", "char(9)"),
        ("array<string>", "array<varchar(5)>"),
        ("decimal(5,2)", "decimal(8,4)"),
        ("struct<a:int>", "struct<b:bigint,c:string>"),
        ("struct<s:struct<a:int,b:string>>", "struct<t:struct<b:string,c:int,a:bigint>>"),
        ("struct<l:array<struct<a:int>>>", "struct<l:array<struct<b:int,c:int>>>"),
        ("array<int>", "array<bigint>"),
        ("map<string,struct<a:int>>", "map<string,struct<a:int,b:int>>"),
    ],
)
def test_a_wider_type_and_any_text_may_be_read(found: str, wanted: str) -> None:
    assert can_read_as(parse_type(found), parse_type(wanted))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("bigint", "int"),
        ("bigint", "double"),
        ("int", "decimal(11,2)"),
        ("double", "float"),
        ("double", "string"),
        ("string", "int"),
        ("int", "varchar(5)"),
        ("varchar(9)", "binary"),
        ("decimal(5,2)", "decimal(5,3)"),
        ("decimal(5,2)", "decimal(9,1)"),
        ("struct<a:int,b:int>", "struct<a:int>"),
        ("struct<s:struct<a:int>>", "struct<s:struct<b:int>>"),
        ("struct<s:struct<a:int,b:string>>", "struct<s:struct<a:string,b:int>>"),
        ("timestamp", "date"),
        ("uniontype<int>", "uniontype<int,string>"),
    ],
)
def test_a_type_that_could_lose_a_value_is_not_read(found: str, wanted: str) -> None:
    assert not can_read_as(parse_type(found), parse_type(wanted))


@given(hive_types())
def test_every_type_reads_as_itself(hive_type: HiveType) -> None:
    assert can_read_as(hive_type, hive_type)
