"""Predicates and assignments as pyarrow compute expressions, evaluated row by row in the rows' order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from compactor.acid.schema import HiveType
from compactor.errors import UsageError
from compactor.orc.reader import Int64Array
from compactor.table.conform import conformed_column, single_value


def positions_where(predicate: pc.Expression, rows: pa.Table) -> Int64Array:
    """Positions of the rows for which the predicate is true; null counts as false, as in SQL.

    UsageError when it names an unknown column or is no condition.
    """
    found = evaluate(predicate, rows)
    if not pa.types.is_boolean(found.type):
        raise UsageError(f"{predicate} is no condition: it yields {found.type}")
    mask = pc.fill_null(found, fill_value=False).to_numpy()
    return np.flatnonzero(mask).astype(np.int64)


def evaluate(expression: pc.Expression, rows: pa.Table) -> pa.ChunkedArray:
    """The value of an expression for each row; UsageError when it does not fit the columns."""
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
        ]
    )
    try:
        # One thread keeps the rows in order.
        return plan.to_table(use_threads=False).column(0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise UsageError(f"{expression} cannot be evaluated: {error}") from error


def assigned(
    rows: pa.Table, assignments: Mapping[str, object], columns: tuple[tuple[str, HiveType], ...]
) -> list[pa.ChunkedArray]:
    """The values of `columns` after SET: an assignment is an expression over `rows` or a plain Python value.

    A column without an assignment keeps its value in `rows`. UsageError when a value does not fit its column.
    """
    values: list[pa.ChunkedArray] = []
    for name, kind in columns:
        if name not in assignments:
            values.append(rows.column(name))
            continue
        value = assignments[name]
        if isinstance(value, pc.Expression):
            values.append(conformed_column(evaluate(value, rows), kind, name))
        else:
            values.append(single_value(value, kind, rows.num_rows, name))
    return values
