"""Row numbers, shares and ORDER BY clauses of a rebalance, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.directory import Listing, Snapshot
from compactor.acid.layout import MAX_BUCKETS, encode_bucket
from compactor.acid.rebalance import (
    Pieces,
    Runs,
    SortKey,
    check_buckets,
    check_order,
    in_row_order,
    order_clause,
    parse_order_by,
    shares,
    why_never_rebalanced,
    why_not_now,
)
from compactor.acid.schema import parse_type
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import UsageError, VerificationError
from compactor.sql.parser import parse
from compactor.sql.statements import AlterTableCompact

Run = tuple[int, int, int, int, int, int]
"""source, stripe, write id, bucket, first row id, rows; the row ids of a run are consecutive here."""


def runs(*given_runs: Run) -> Runs:
    starts: dict[tuple[int, int], int] = {}
    columns: list[tuple[int, ...]] = []
    for source, stripe, write_id, bucket, first, rows in given_runs:
        start = starts.get((source, stripe), 0)
        starts[source, stripe] = start + rows
        columns.append((source, stripe, start, rows, write_id, encode_bucket(bucket), first, first + rows - 1))
    arrays = np.array(columns, dtype=np.int64).reshape(-1, 8).T
    names = ("source", "stripe", "start", "rows", "write_id", "bucket", "first", "last")
    return Runs(**dict(zip(names, arrays, strict=True)))


def as_list(pieces: Pieces) -> list[tuple[int, ...]]:
    return list(zip(*(a.tolist() for a in (pieces.source, pieces.stripe, pieces.start, pieces.rows)), strict=True))


def test_rows_are_ordered_by_write_id_then_bucket_then_row_id_across_files() -> None:
    pieces = in_row_order(
        runs((0, 0, 1, 0, 0, 3), (0, 0, 2, 0, 0, 2), (0, 1, 2, 0, 2, 4), (1, 0, 1, 1, 0, 5), (1, 0, 2, 1, 7, 1))
    )
    assert as_list(pieces) == [(0, 0, 0, 3), (1, 0, 0, 5), (0, 0, 3, 2), (0, 1, 0, 4), (1, 0, 5, 1)]


def test_a_stripe_that_stays_together_is_one_piece() -> None:
    one_bucket = in_row_order(runs(*((0, 0, write_id, 0, 0, 2) for write_id in range(1, 100))))
    assert as_list(one_bucket) == [(0, 0, 0, 198)]


def test_no_rows_are_no_pieces() -> None:
    assert as_list(in_row_order(runs())) == []


def test_row_ids_that_occur_twice_are_an_error() -> None:
    with pytest.raises(VerificationError, match=r"write id 3.*occur in two files"):
        in_row_order(runs((0, 0, 3, 0, 0, 5), (1, 0, 3, 0, 4, 5)))


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 40))
def test_the_shares_cut_all_rows_into_stretches_without_gap_or_overlap(sizes: list[int], buckets: int) -> None:
    pieces = in_row_order(runs(*((n, 0, n + 1, 0, 0, rows) for n, rows in enumerate(sizes))))
    rows = [(n, i) for n, size in enumerate(sizes) for i in range(size)]
    cut = [pieces.cut(first, stop) for first, stop in shares(pieces.total, buckets)]
    found = [
        (source, start + i)
        for piece in cut
        for source, _, start, count in (as_list(piece) if sizes else [])
        for i in range(count)
    ]
    assert found == rows
    assert len(cut) <= buckets
    if rows:
        # The formula of Hive's query, row by row.
        size = -(-len(rows) // buckets)
        assert [p.total for p in cut] == [len([n for n in range(len(rows)) if n // size == b]) for b in range(len(cut))]


def test_four_buckets_of_eighteen_rows_are_those_of_hives_own_test() -> None:
    assert shares(18, 4) == [(0, 5), (5, 10), (10, 15), (15, 18)]


@pytest.mark.parametrize(
    ("rows", "buckets", "expected"),
    [(0, 3, [(0, 0)]), (1, 3, [(0, 1)]), (4, 3, [(0, 2), (2, 4)]), (3, 3, [(0, 1), (1, 2), (2, 3)])],
)
def test_a_bucket_without_rows_gets_no_file_and_no_rows_get_one(
    rows: int, buckets: int, expected: list[tuple[int, int]]
) -> None:
    assert shares(rows, buckets) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ()),
        ("  ", ()),
        ("b", (("b", False, False),)),
        ("ORDER BY b DESC", (("b", True, True),)),
        ("order\n by A asc , `x ``y` desc nulls last", (("a", False, False), ("x `y", True, False))),
        ("a NULLS FIRST,b Desc Nulls First", (("a", False, True), ("b", True, True))),
    ],
)
def test_the_clause_is_read_with_and_without_its_keywords(
    text: str | None, expected: tuple[tuple[str, bool, bool], ...]
) -> None:
    keys = tuple(SortKey(column=c, descending=d, nulls_first=n) for c, d, n in expected)
    assert parse_order_by(text) == keys


def test_what_a_statement_orders_by_is_what_the_worker_reads_from_the_queue() -> None:
    (statement,) = parse("ALTER TABLE t COMPACT 'rebalance' ORDER BY a, `b c` DESC NULLS LAST")
    assert isinstance(statement, AlterTableCompact)
    keys = parse_order_by(", ".join(str(key) for key in statement.order_by))
    assert keys == (
        SortKey(column="a", descending=False, nulls_first=False),
        SortKey(column="b c", descending=True, nulls_first=False),
    )
    assert order_clause(keys) == "ORDER BY `a` ASC NULLS LAST, `b c` DESC NULLS LAST"
    assert parse_order_by(order_clause(keys)) == keys
    assert order_clause(()) is None


@pytest.mark.parametrize("text", ["a b", "a,", ",a", "ORDER BY", "lower(a)", "t.a", "a DESC ASC", "`a"])
def test_a_clause_that_is_not_understood_says_where(text: str) -> None:
    with pytest.raises(UsageError, match="ORDER BY is not understood at"):
        parse_order_by(text)


def test_keys_must_be_columns_that_have_an_order() -> None:
    row_type = parse_type("struct<id:int,m:map<string,int>>")
    check_order(parse_order_by("ID"), row_type)
    with pytest.raises(UsageError, match="ORDER BY day: there is no such column") as unknown:
        check_order(parse_order_by("id, day"), row_type)
    assert "the rows have id, m" in unknown.value.hint
    with pytest.raises(UsageError, match=r"values of type map<string,int> have no order"):
        check_order(parse_order_by("m"), row_type)


@pytest.mark.parametrize("buckets", [0, -1, MAX_BUCKETS + 1])
def test_a_number_of_buckets_that_no_table_has_is_an_error(buckets: int) -> None:
    with pytest.raises(UsageError, match="buckets"):
        check_buckets(buckets)


def test_any_other_number_of_buckets_and_none_are_fine() -> None:
    for buckets in (None, 1, MAX_BUCKETS):
        check_buckets(buckets)


def test_only_full_acid_tables_that_are_not_bucketed_are_rebalanced() -> None:
    assert why_never_rebalanced(full_acid=True, bucketed=False) == ""
    assert "insert-only" in why_never_rebalanced(full_acid=False, bucketed=False)
    assert "CLUSTERED BY" in why_never_rebalanced(full_acid=True, bucketed=True)


SNAPSHOT = Snapshot(
    txns=ValidTxnList(high_water=99, aborted=frozenset({60}), open=frozenset({70})),
    write_ids=ValidWriteIdList(table="d.t", high_water=4),
)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("delete_delta_0000006_0000006_0000", "above the high water mark 4"),
        ("delete_delta_0000003_0000006_v0000050", "above the high water mark 4"),
        ("delete_delta_0000003_0000006_v0000060", ""),
        ("delete_delta_0000004_0000004_0000", ""),
        ("delta_0000006_0000006_0000", ""),
        ("base_0000004_v0000050", "has the range that the output would have"),
        ("base_0000004_v0000060", ""),
        ("base_0000004_v0000070", ""),
        ("base_0000004", ""),
        ("base_0000003_v0000050", ""),
    ],
)
def test_deletes_above_the_mark_and_a_base_at_it_stand_in_the_way(name: str, reason: str) -> None:
    found = why_not_now(Listing(directories=frozenset({name, "delta_0000001_0000001_0000"})), SNAPSHOT)
    assert (reason in found) if reason else found == ""
