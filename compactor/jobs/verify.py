"""Verification of a job's output before it is published (the worker's step 6).

What is there must be what the plan promised and what the tasks reported: every file, no file more, sizes, row
accounting. The order of row ids was checked while the files grew; here the tails are asked again: a key index with one
ascending entry a stripe, each of which is the last row id that the stripe's statistics allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compactor.acid.layout import is_hidden
from compactor.acid.planning import CompactionPlan, ItemKind, PlanItem
from compactor.errors import VerificationError
from compactor.orc.reader import OrcSource
from compactor.orc.rewrite import ItemResult
from compactor.orc.tail import ACID_COLUMNS, OrcTail
from compactor.storage.filesystem import FileSystem, open_location
from compactor.storage.parquet_footer import read_footer

_ROW_ID_COLUMNS = (2, 3, 4)
"""Numbers of originalTransaction, bucket and rowId in an ACID file's statistics."""


def verify_output(plan: CompactionPlan, results: Sequence[ItemResult]) -> None:
    """Raises VerificationError at the first thing that is not as promised."""
    fs, root = open_location(plan.location)
    if [r.output for r in results] != [i.output for i in plan.items]:
        raise VerificationError(f"{len(results)} results for {len(plan.items)} planned files")
    _check_files(fs, root, plan, results)
    for item, result in zip(plan.items, results, strict=True):
        _check_rows(item, result)
        if item.format == "orc":
            _check_tail(fs, f"{root}/{item.output}", item, result)
        elif item.format == "parquet":
            _check_footer(fs, f"{root}/{item.output}", result)


def _check_files(fs: FileSystem, root: str, plan: CompactionPlan, results: Sequence[ItemResult]) -> None:
    promised = {r.output: r.size for r in results}
    found = {
        f"{directory}/{file.path}": file.size
        for directory in plan.directories
        for file in fs.listing(f"{root}/{directory}").files
        if not is_hidden(file.name)
    }
    if found != promised:
        missing, extra = sorted(promised.keys() - found.keys()), sorted(found.keys() - promised.keys())
        wrong = sorted(p for p in promised.keys() & found.keys() if promised[p] != found[p])
        raise VerificationError(f"output files: missing {missing}, unexpected {extra}, wrong size {wrong}")


def _check_rows(item: PlanItem, result: ItemResult) -> None:
    # A format whose rows nobody counts before they are read has nothing to hold them against.
    if all(s.rows >= 0 for s in item.sources) and result.rows_in != item.rows_in:
        raise VerificationError(f"{item.output}: {result.rows_in} rows read, {item.rows_in} planned")
    accounted = result.rows_out + result.rows_deleted + result.rows_invalid
    if result.rows_in != accounted:
        raise VerificationError(
            f"{item.output}: {result.rows_in} rows read, but {result.rows_out} written, {result.rows_deleted} deleted "
            f"and {result.rows_invalid} aborted"
        )
    if result.rows_deleted > sum(d.rows for d in item.deletes):
        raise VerificationError(f"{item.output}: more rows deleted than there are delete events")


def _check_tail(fs: FileSystem, path: str, item: PlanItem, result: ItemResult) -> None:
    with OrcSource(fs, path) as source:
        if source.tail.rows != result.rows_out:
            raise VerificationError(f"{path}: {source.tail.rows} rows in the footer, {result.rows_out} written")
        if item.kind is not ItemKind.PLAIN:
            _check_keys(source.tail, repeats=item.kind is ItemKind.DELETES)


def _check_footer(fs: FileSystem, path: str, result: ItemResult) -> None:
    footer = read_footer(fs, path)
    grouped = sum(footer.group_rows(position) for position in range(len(footer.groups)))
    if not footer.rows == grouped == result.rows_out:
        raise VerificationError(
            f"{path}: {footer.rows} rows in the footer, {grouped} in its row groups, {result.rows_out} written"
        )


def _check_keys(tail: OrcTail, *, repeats: bool) -> None:
    """repeats: two events may be about one row."""
    index = tail.key_index()
    if not tail.is_acid or index is None or len(tail.metadata.stripe_stats) != len(index):
        raise VerificationError(f"{tail.path}: the key index has not one entry for each stripe")
    if any(b < a or (a == b and not repeats) for a, b in pairwise(index)):
        raise VerificationError(f"{tail.path}: the entries of the key index do not ascend")
    for stripe, (last, statistics) in enumerate(zip(index, tail.metadata.stripe_stats, strict=True)):
        for column, value in zip(_ROW_ID_COLUMNS, (last.write_id, last.bucket, last.row_id), strict=True):
            found = statistics.col_stats[column].int_statistics
            if found.maximum != value:
                raise VerificationError(
                    f"{tail.path}: stripe {stripe} ends at {last} by the key index, but its "
                    f"{ACID_COLUMNS[column - 1]} goes up to {found.maximum}"
                )
            if found.minimum != found.maximum:
                # Of several write ids or buckets the last one is the largest; the columns after it begin anew.
                break
