"""Matching rows: MERGE against a source, and rows named by their row ids.

Source: Hive `MergeRewriter`, `GenericUDFCardinalityViolation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.acid.schema import HiveType
from compactor.errors import UsageError
from compactor.metastore.catalog import Table
from compactor.orc.reader import Int64Array
from compactor.table.changes import Changes
from compactor.table.conform import conformed_column
from compactor.table.expressions import assigned, positions_where
from compactor.table.scan import Place, RowIds, ScanBatch
from compactor.table.values import table_type

SOURCE = "source."
"""Prefix of the source's columns in the expressions of a merge."""
_ROW_ID = (("write_id", HiveType("bigint")), ("bucket", HiveType("int")), ("row_id", HiveType("bigint")))


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What MERGE does. Expressions see the table's columns and the source's as `source.<name>`.

    on: columns, present in both, that must be equal; null equals nothing. delete: condition for a matched row to go,
    True for all. update: assignments for the matched rows that stay. insert: assignments for source rows without a
    match, which must name every column; True takes the columns of the same names.
    """

    on: Sequence[str]
    delete: pc.Expression | bool = False
    update: Mapping[str, object] | None = None
    insert: Mapping[str, object] | bool = False


def merge_changes(
    merge: Merge, source: pa.Table, table: Table, scan: Iterable[tuple[Place, ScanBatch]], changes: Changes
) -> pa.Table | None:
    """Collect what happens to matched rows in `changes`; the rows to insert, None when nothing is to be.

    UsageError for unknown columns and for a row that matches several source rows.
    """
    source = source.rename_columns([SOURCE + name.lower() for name in source.column_names])
    kinds = dict((*table_type(table.columns).children, *table_type(table.partition_columns).children))
    on = [name.lower() for name in merge.on]
    source_keys = [conformed_column(_column(source, SOURCE + n, table), _kind(kinds, n, table), n) for n in on]
    matched = np.zeros(source.num_rows, dtype=np.bool_)
    for place, batch in scan:
        rows = pa.Table.from_batches([batch.rows])
        ours, theirs = equal_pairs([rows.column(n) for n in on], source_keys)
        matched[theirs] = True
        if not len(ours) or batch.row_ids is None:
            continue
        _check_cardinality(ours, merge, table)
        joined = _beside(rows.take(pa.array(ours)), source.take(pa.array(theirs)))
        _change(merge, place, batch.row_ids.take(ours), joined, table, changes)
    if merge.insert is False:
        return None
    missing = source.filter(pa.array(~matched))
    wanted = merge.insert
    if wanted is True:
        wanted = {name: pc.field(SOURCE + name) for name in kinds}
    chosen = {name.lower(): value for name, value in wanted.items()}
    if set(chosen) != set(kinds):
        raise UsageError(f"the insert of a merge into {table.name} must name each column: {', '.join(kinds)}")
    return pa.Table.from_arrays(assigned(missing, chosen, tuple(kinds.items())), names=list(kinds))


def matching_row_ids(named: pa.Table, place: Place, batch: ScanBatch, table: Table) -> Int64Array:
    """Positions of the rows of a batch that `named` names: write_id, bucket, row_id and partition columns.

    Row ids repeat from partition to partition, so the partition columns belong to them.
    """
    partition = table_type(table.partition_columns).children
    named = named.rename_columns([name.lower() for name in named.column_names])
    wanted = [conformed_column(_column(named, n, table), kind, n) for n, kind in (*_ROW_ID, *partition)]
    if batch.row_ids is None:
        raise UsageError(f"{place.location}: the rows of an insert-only table have no row ids")
    ids = batch.row_ids
    ours = [pa.array(ids.write_id), pa.array(ids.bucket, pa.int32()), pa.array(ids.row_id)]
    found, _ = equal_pairs([*ours, *(batch.rows.column(n) for n, _ in partition)], wanted)
    return np.unique(found)


def equal_pairs(
    left: Sequence[pa.Array | pa.ChunkedArray], right: Sequence[pa.Array | pa.ChunkedArray]
) -> tuple[Int64Array, Int64Array]:
    """Positions (left, right) of all pairs of rows with equal keys, by left position; null equals nothing."""
    names = [f"key{n}" for n in range(len(left))]
    ours = pa.table([*left, pa.array(np.arange(len(left[0])))], names=[*names, "left"])
    theirs = pa.table([*right, pa.array(np.arange(len(right[0])))], names=[*names, "right"])
    pairs = ours.join(theirs, keys=names, join_type="inner", use_threads=False)
    positions, others = (pairs.column(n).to_numpy().astype(np.int64) for n in ("left", "right"))
    order = np.lexsort((others, positions))
    return positions[order], others[order]


def _change(merge: Merge, place: Place, ids: RowIds, joined: pa.Table, table: Table, changes: Changes) -> None:
    if isinstance(merge.delete, bool):
        going = np.arange(len(ids)) if merge.delete else np.zeros(0, dtype=np.int64)
    else:
        going = positions_where(merge.delete, joined)
    if len(going):
        changes.delete(place, ids.take(going))
    staying = np.setdiff1d(np.arange(len(ids)), going)
    if merge.update is None or not len(staying):
        return
    columns = table_type(table.columns).children
    lowered = {name.lower(): value for name, value in merge.update.items()}
    new = assigned(joined.take(pa.array(staying)), lowered, columns)
    changes.update(place, ids.take(staying), pa.Table.from_arrays(new, names=[n for n, _ in columns]))


def _check_cardinality(ours: Int64Array, merge: Merge, table: Table) -> None:
    changing = merge.update is not None or merge.delete is not False
    if changing and np.any(ours[1:] == ours[:-1]):
        raise UsageError(
            f"a row of {table.name} matches more than one row of the source", hint="make the source unique by `on`"
        )


def _beside(rows: pa.Table, source: pa.Table) -> pa.Table:
    return pa.table([*rows.columns, *source.columns], names=[*rows.column_names, *source.column_names])


def _column(rows: pa.Table, name: str, table: Table) -> pa.ChunkedArray:
    if name not in rows.column_names:
        raise UsageError(f"the rows to match with {table.name} lack column {name.removeprefix(SOURCE)}")
    return rows.column(name)


def _kind(kinds: Mapping[str, HiveType], name: str, table: Table) -> HiveType:
    if name not in kinds:
        raise UsageError(f"table {table.name} has no column {name}", hint=f"its columns are: {', '.join(kinds)}")
    return kinds[name]
