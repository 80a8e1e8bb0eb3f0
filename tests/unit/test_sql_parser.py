from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import UsageError
from compactor.metastore.catalog import TableName
from compactor.metastore.compaction import CompactionState, CompactionType
from compactor.sql.parser import parse
from compactor.sql.statements import (
    AbortCompactions,
    AbortTransactions,
    AlterTableCompact,
    OrderKey,
    ShowCompactions,
    ShowLocks,
    ShowTransactions,
    Statement,
)

TABLE = TableName(database="db", table="t")


def one(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def partition_of(text: str) -> object:
    statement = one(f"ALTER TABLE db.t PARTITION ({text}) COMPACT 'major'")
    assert isinstance(statement, AlterTableCompact)
    return statement.partition


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("'major'", CompactionType.MAJOR),
        ("'MINOR'", CompactionType.MINOR),
        ('"Rebalance"', CompactionType.REBALANCE),
    ],
)
def test_a_compaction_is_asked_for_by_type(word: str, kind: CompactionType) -> None:
    assert one(f"ALTER TABLE db.t COMPACT {word}") == AlterTableCompact(table=TABLE, type=kind)


def test_keywords_and_names_ignore_case_and_a_name_without_database_is_in_the_default_one() -> None:
    assert one("alter TABLE Sales compact 'major'") == AlterTableCompact(
        table=TableName(database="default", table="sales"), type=CompactionType.MAJOR
    )


def test_every_clause_of_a_compaction_is_understood() -> None:
    statement = one(
        "ALTER TABLE db.t PARTITION (p='x') COMPACT 'rebalance' CLUSTERED INTO 4 BUCKETS AND WAIT POOL 'etl' "
        "WITH OVERWRITE TBLPROPERTIES ('a'='1', \"b\"='it''s') ORDER BY x, `y z` DESC NULLS LAST, z ASC NULLS FIRST".replace(
            "''", "\\'"
        )
    )
    assert statement == AlterTableCompact(
        table=TABLE,
        type=CompactionType.REBALANCE,
        partition=(("p", "x"),),
        and_wait=True,
        pool="etl",
        buckets=4,
        properties={"a": "1", "b": "it's"},
        order_by=(
            OrderKey(column="x"),
            OrderKey(column="y z", descending=True, nulls_first=False),
            OrderKey(column="z", nulls_first=True),
        ),
    )
    assert [str(key) for key in statement.order_by] == ["`x` ASC", "`y z` DESC NULLS LAST", "`z` ASC NULLS FIRST"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p='x'", (("p", "x"),)),
        ("P='X', q=1", (("p", "X"), ("q", "1"))),
        ("q=-5", (("q", "-5"),)),
        ("q=10L, r=2.50bd", (("q", "10"), ("r", "2.50"))),
        ("d=date '2024-02-29'", (("d", "2024-02-29"),)),
        ("d=TIMESTAMP '2024-02-29 00:00:00'", (("d", "2024-02-29 00:00:00"),)),
        ("b=TRUE", (("b", "true"),)),
        ("n=NULL", (("n", "__HIVE_DEFAULT_PARTITION__"),)),
        ("`a``b`=''", (("a`b", ""),)),
        (r"p='a\'b\\c\u00e9\n\101'", (("p", "a'b\\cé\nA"),)),
        ('p="it\'s; -- no comment"', (("p", "it's; -- no comment"),)),
        ("date=date '2024-01-01', type='x'", (("date", "2024-01-01"), ("type", "x"))),
    ],
)
def test_values_of_partitions_are_text_whatever_they_are_written_as(text: str, expected: object) -> None:
    assert partition_of(text) == expected


def test_keywords_can_be_names_where_no_keyword_can_stand() -> None:
    assert one("ALTER TABLE compact.wait COMPACT 'minor'") == AlterTableCompact(
        table=TableName(database="compact", table="wait"), type=CompactionType.MINOR
    )
    assert one("SHOW COMPACTIONS `type`") == ShowCompactions(table=TableName(database="default", table="type"))


def test_names_may_begin_with_a_digit() -> None:
    assert one("ALTER TABLE 1a.5_b COMPACT 'minor'") == AlterTableCompact(
        table=TableName(database="1a", table="5_b"), type=CompactionType.MINOR
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SHOW COMPACTIONS", ShowCompactions()),
        ("show compactions CompactionId = 17", ShowCompactions(compaction_id=17)),
        ("SHOW COMPACTIONS DATABASE sales", ShowCompactions(database="sales")),
        ("SHOW COMPACTIONS SCHEMA sales", ShowCompactions(database="sales")),
        ("SHOW COMPACTIONS db.t", ShowCompactions(table=TABLE)),
        ("SHOW COMPACTIONS db.t PARTITION (p=1)", ShowCompactions(table=TABLE, partition=(("p", "1"),))),
        ("SHOW COMPACTIONS POOL 'etl'", ShowCompactions(pool="etl")),
        ("SHOW COMPACTIONS TYPE 'MAJOR'", ShowCompactions(type=CompactionType.MAJOR)),
        ("SHOW COMPACTIONS STATUS 'working'", ShowCompactions(state=CompactionState.WORKING)),
        (
            "SHOW COMPACTIONS STATUS 'Ready for cleaning'",
            ShowCompactions(state=CompactionState.READY_FOR_CLEANING),
        ),
        ("SHOW COMPACTIONS STATUS 'DID_NOT_INITIATE'", ShowCompactions(state=CompactionState.DID_NOT_INITIATE)),
        ("SHOW COMPACTIONS LIMIT 0", ShowCompactions(limit=0)),
        (
            "SHOW COMPACTIONS DATABASE db POOL 'p' TYPE 'minor' STATUS 'failed' ORDER BY starttime DESC LIMIT 5",
            ShowCompactions(
                database="db",
                pool="p",
                type=CompactionType.MINOR,
                state=CompactionState.FAILED,
                order_by=(OrderKey(column="starttime", descending=True),),
                limit=5,
            ),
        ),
    ],
)
def test_compactions_are_shown_with_their_filters(text: str, expected: ShowCompactions) -> None:
    assert one(text) == expected


def test_statements_are_separated_by_semicolons_and_comments_are_left_out() -> None:
    statements = parse(
        """
        -- first; not a statement
        SHOW COMPACTIONS; /* between
        ; them */ ;
        ALTER TABLE db.t -- the table
          COMPACT 'major';;
        """
    )
    assert statements == [ShowCompactions(), AlterTableCompact(table=TABLE, type=CompactionType.MAJOR)]


@pytest.mark.parametrize("text", ["", "  \n", ";;", "-- nothing", "/* nothing */;"])
def test_a_text_may_hold_no_statement(text: str) -> None:
    assert parse(text) == []


@pytest.mark.parametrize(
    ("text", "line", "column", "problem", "expected"),
    [
        ("ALTER TABEL db.t", 1, 7, "unexpected 'TABEL'", "TABLE"),
        ("ALTER TABLE db.t", 1, 17, "ends too early", "COMPACT, PARTITION"),
        ("ALTER TABLE db.t COMPACT", 1, 25, "ends too early", "a quoted text"),
        ("ALTER TABLE db.t COMPACT major", 1, 26, "unexpected 'major'", "a quoted text"),
        ("ALTER TABLE db.t COMPACT 'mega'", 1, 26, "no type of compaction", "'major', 'minor', 'rebalance'"),
        ("ALTER TABLE db.t\n  COMPACT 'major", 2, 11, "no second ' follows", "a quoted text"),
        ("ALTER TABLE db.t # COMPACT", 1, 18, "unexpected '#'", "COMPACT, PARTITION"),
        ("ALTER TABLE db.t PARTITION (p) COMPACT 'major'", 1, 30, "unexpected ')'", "'='"),
        ("ALTER TABLE db.t PARTITION () COMPACT 'major'", 1, 29, "unexpected ')'", "a name"),
        ("SHOW COMPACTIONS;\n\tSHOW COMPACTIONS STATUS 'lost'", 2, 26, "no state of a compaction", "'initiated'"),
        ("SHOW COMPACTIONS LIMIT many", 1, 24, "unexpected 'many'", "a number"),
        ("SHOW COMPACTIONS COMPACTIONID 5", 1, 31, "unexpected '5'", "'='"),
        ("DROP TABLE db.t", 1, 1, "unexpected 'DROP'", "ALTER, SHOW"),
        (
            "ALTER TABLE db.t COMPACT 'rebalance' CLUSTERED INTO 0 BUCKETS",
            1,
            53,
            "too few buckets",
            "a number above 0",
        ),
    ],
)
def test_an_error_shows_the_place_and_what_could_stand_there(
    text: str, line: int, column: int, problem: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    where, excerpt, pointer = caught.value.message.split("\n")
    assert where.startswith(f"line {line}, column {column}: ")
    assert problem in where
    assert excerpt == "  " + text.split("\n")[line - 1]
    assert pointer.index("^") == column + 1
    assert expected in caught.value.hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ALTER TABLE db.t COMPACT 'major' CLUSTERED INTO 4 BUCKETS", "CLUSTERED INTO belongs to COMPACT 'rebalance'"),
        ("ALTER TABLE db.t COMPACT 'minor' ORDER BY x", "ORDER BY belongs to COMPACT 'rebalance'"),
        ("ALTER TABLE db.t PARTITION (p=1, P=2) COMPACT 'major'", "partition column p is named twice"),
        ("SHOW COMPACTIONS LIMIT 1.5", "not a whole number"),
    ],
)
def test_what_the_grammar_cannot_say_is_refused_too(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse(text)


@given(st.text(alphabet="ALTERSHOWcompactions'\"`(),;=.-*/ \n\\1xé"))
def test_any_text_is_statements_or_a_usage_error(text: str) -> None:
    try:
        statements = parse(text)
    except UsageError as error:
        assert error.message.startswith("line ")  # noqa: PT017 -- most texts are errors, a few are statements
    else:
        assert all(isinstance(statement, Statement) for statement in statements)


@given(st.text())
def test_any_value_survives_quoting(value: str) -> None:
    literal = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert partition_of(f"p={literal}") == (("p", value),)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("SHOW TRANSACTIONS", ShowTransactions()),
        ("show locks", ShowLocks()),
        ("SHOW LOCKS EXTENDED", ShowLocks(extended=True)),
        ("SHOW LOCKS db.t", ShowLocks(table=TABLE)),
        ("SHOW LOCKS db.t PARTITION (p='x') EXTENDED", ShowLocks(table=TABLE, partition=(("p", "x"),), extended=True)),
        ("SHOW LOCKS DATABASE Db extended", ShowLocks(database="db", extended=True)),
        ("SHOW LOCKS SCHEMA db", ShowLocks(database="db")),
        ("ABORT TRANSACTIONS 7", AbortTransactions(ids=(7,))),
        ("abort transactions 7 8 0000009", AbortTransactions(ids=(7, 8, 9))),
        ("ABORT COMPACTIONS 1 2", AbortCompactions(ids=(1, 2))),
    ],
)
def test_transactions_and_locks_are_shown_and_ended_as_in_hive(text: str, statement: Statement) -> None:
    assert one(text) == statement


def test_tables_may_be_called_like_the_words_of_these_statements() -> None:
    assert one("SHOW LOCKS locks.transactions") == ShowLocks(table=TableName(database="locks", table="transactions"))
    assert one("SHOW COMPACTIONS abort.extended") == ShowCompactions(
        table=TableName(database="abort", table="extended")
    )


@pytest.mark.parametrize("text", ["ABORT TRANSACTIONS", "ABORT COMPACTIONS 1.5", "ABORT TRANSACTIONS 1, 2", "ABORT 3"])
def test_ids_are_whole_numbers_side_by_side(text: str) -> None:
    with pytest.raises(UsageError, match="line 1"):
        parse(text)
