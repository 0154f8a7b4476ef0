"""Operation batch: rows of a write with an operation each, their keys, and which cells they set.

**Threads**: immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kudulite.model.encoded_key import encode_keys
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.model.types import joined
from kudulite.tablet.operation import WriteSpec, mask_of


@dataclass(frozen=True)
class OperationBatch:
    """Operations for one tablet. `rows` holds the whole batch, key and value columns.

    `row_numbers` int64[n] are the tablet's rows in it, in batch order; `keys` their n encoded keys;
    `operations` uint8[n]. `is_set` is None if every row sets every value column, else a bool
    array per value column over the whole batch. Operations for several tablets have the number of
    the tablet of each row, `tablets` int64[n].
    """

    rows: pa.Table
    row_numbers: np.ndarray
    keys: KeyArray
    operations: np.ndarray
    is_set: Sequence[np.ndarray] | None
    tablets: np.ndarray | None = None

    @staticmethod
    def of(
        rows: pa.Table, operations: np.ndarray, schema: Schema, spec: WriteSpec
    ) -> OperationBatch:
        """Return the batch of all `rows`, with an operation for each."""
        columns = [joined(rows.column(name)) for name in schema.key_names]
        is_set = None
        if spec.ignore_null or spec.partial_columns:
            is_set = [cells_set(rows, name, spec) for name in spec.value_columns]
        keys = encode_keys(columns, schema.key_types)
        return OperationBatch(rows, np.arange(rows.num_rows), keys, operations, is_set)

    def sort_order(self) -> np.ndarray:
        """Return the order of the operations by tablet and key; those of one key stay in order."""
        order = self.keys.sort_order()
        if self.tablets is None:
            return order
        return order[np.argsort(self.tablets[order], kind="stable")]

    def of_tablet(self, row_numbers: np.ndarray) -> OperationBatch:
        """Return the part of a batch of all rows that is for one tablet."""
        keys, operations = self.keys.take(row_numbers), self.operations[row_numbers]
        return replace(self, row_numbers=row_numbers, keys=keys, operations=operations)


def cells_set(rows: pa.Table, name: str, spec: WriteSpec) -> np.ndarray:
    """Return bool[n]: which of the rows of a write set a value column."""
    is_set: np.ndarray = np.ones(rows.num_rows, dtype=bool)
    if name in spec.partial_columns:
        is_set = rows.column(mask_of(name)).to_numpy()
    if spec.ignore_null:
        is_set = is_set & rows.column(name).is_valid().to_numpy()
    return is_set
