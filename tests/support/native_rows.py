"""A native plan read as another Parquet reader would: pyarrow for its files, tokens beside."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kudulite import NativeFile, NativeLimits, NativePlan, Table

# All the ways a plan may take: rows handed over, tokens for changed rows, tokens for whole rowsets.
LIMITS = (
    NativeLimits(excluded_fraction_max=1),
    NativeLimits(),
    NativeLimits(excluded_fraction_max=1, handed_bytes_max=0),
    NativeLimits(excluded_rows_max=0, handed_bytes_max=0, memory_rows_max=0),
)


def rows_of_plan(plan: NativePlan) -> pa.Table:
    """All rows of a plan; `where` is not applied to the files."""
    schema = pa.schema([(column.name, column.type.arrow) for column in plan.columns])
    parts = [rows_of_file(file).cast(schema) for file in plan.files]
    parts.append(plan.rows.cast(schema))
    for token in pickle.loads(pickle.dumps(plan.tokens)):
        parts += [pa.Table.from_batches([batch]).cast(schema) for batch in token.open()]
    return pa.concat_tables(parts)


def rows_of_file(file: NativeFile) -> pa.Table:
    """The rows of one file but for the excluded, columns named as the plan has them."""
    stored = pq.ParquetFile(file.path).read()
    assert stored.num_rows == file.row_count
    arrays, names = [], []
    for item in file.columns:
        column_type = item.column.type.arrow
        if item.stored_name is None:
            values = pa.repeat(pa.scalar(item.default, column_type), file.row_count)
        else:
            values = stored.column(item.stored_name).cast(column_type)
            assert stored.schema.field(item.stored_name).type == item.stored_type
        arrays.append(values)
        names.append(item.column.name)
    keep = np.ones(file.row_count, dtype=bool)
    keep[file.excluded] = False
    return pa.table(arrays, names=names).filter(pa.array(keep))


def native_readings(
    table: Table, at: Any = None, limits: Sequence[NativeLimits] = LIMITS
) -> list[list[dict]]:
    """The rows of a table by native plans of all kinds of limits, each in any order."""
    plans = [table.native_plan(at=at, limits=limit) for limit in limits]
    if limits is LIMITS:
        plans.append(table.native_plan(at=at, is_readable=lambda file: False))
    return [rows_of_plan(plan).to_pylist() for plan in plans]
