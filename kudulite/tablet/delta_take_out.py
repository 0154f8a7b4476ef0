"""Turns cells of a staged delta back into the cells of the write's rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.delta.delta_file import DeltaRows
from kudulite.model.schema import Column
from kudulite.tablet.operation import WriteSpec


def set_masks(rows: pa.Table, spec: WriteSpec) -> list[np.ndarray] | None:
    """Return which rows set each value column of the write: all (None), or those not null."""
    if not spec.ignore_null:
        return None
    return [rows.column(name).is_valid().to_numpy() for name in spec.value_columns]


def take_rows_out(rows: DeltaRows, column: Column, at: np.ndarray) -> pa.Array:
    """Return a column's values at positions `at`, null where the delta does not set it."""
    delta = rows.columns.get(column.id)
    if delta is None:
        return pa.nulls(len(at), column.type.arrow)
    values = delta.values.take(pa.array(at))
    if delta.is_set is None:
        return values
    return pc.if_else(pa.array(delta.is_set[at]), values, pa.scalar(None, column.type.arrow))
