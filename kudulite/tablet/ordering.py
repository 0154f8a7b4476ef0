"""Writes with an ordering column: the change of a key with the highest value wins permanently.

    change      newer than the write's other rows of its key     else superseded (see below)
                newer than the row, if the key is live           else outdated
                newer than the tombstone, if it is not           else outdated

A delete leaves a tombstone with its ordering value (tombstones.py), even for a key that never
existed, so that an older change that arrives later does not restore the row. With an ordering,
insert and update both mean upsert, update_ignore means upsert_ignore, and delete means
delete_ignore, because the row that they refer to may have been discarded as outdated.

A change is newer if its ordering value is higher (NaN is the highest, -0.0 equals 0.0). Of equal
values, a delete is newer than an upsert; of two upserts, the one with the greater cells is newer,
compared column by column in the table's order (`compare` in tombstones.py), where a cell that the
change leaves is the row's. No change is newer than itself.

If changes leave cells, those of a key apply one after the other, in their order, so that each sets
its own cells. One that arrives after a newer change was written is outdated with all its cells.

Writes without an ordering column do not follow these rules: a live row keeps the ordering value
that they gave it, their deletes leave no tombstone, and an overwrite removes all tombstones.

**Invariants**: applying the same changes in any order, batching or number of times gives the same
table, if all set the same columns, none of them immutable, and no delete among them is older than
the history retention.

**Threads**: any; an `Ordering` is immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import RowError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.model.types import joined
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import KeyedOperations
from kudulite.tablet.tablet import RowLocations, Tablet
from kudulite.tablet.tombstones import (
    compare,
    equals_previous,
    last_of_runs,
    sort_keys,
    sorted_positions,
)


@dataclass(frozen=True)
class Ordering:
    """The comparison of an ordered write: `column`, then all `columns` that it sets, of `rows`.

    `rows` is the whole batch; row numbers are positions in it. `is_set` is that of the batch.
    """

    table: str
    column: Column
    columns: Sequence[Column]
    rows: pa.Table
    is_set: Sequence[np.ndarray] | None = None

    def applied(self, keyed: KeyedOperations) -> KeyedOperations:
        """Return the operations that apply, those of one key from the oldest to the newest.

        That is one per key unless some leave cells. Raises RowError for a null ordering value.
        """
        values = self.values(keyed.rows)
        if values.null_count:
            raise RowError(
                f"table {self.table!r}: ordering column {self.column.name!r} is null in"
                f" {values.null_count} rows; every row of an ordered write needs a value; nothing"
                " was written",
                reason=RowError.REASON_NULL,
                row_count=values.null_count,
            )
        is_delete = keyed.operations >= Operation.DELETE
        chosen = self._newest(keyed, values) if self.is_set is None else self._oldest_first(keyed)
        skips = np.isin(keyed.operations, (Operation.UPSERT_IGNORE, Operation.UPDATE_IGNORE))
        upserts = np.where(skips, Operation.UPSERT_IGNORE, Operation.UPSERT)
        operations = np.where(is_delete, Operation.DELETE_IGNORE, upserts)
        return KeyedOperations(
            rows=keyed.rows[chosen],
            group=keyed.group[chosen],
            operations=operations[chosen].astype(np.uint8),
            key_count=keyed.key_count,
        )

    def _oldest_first(self, keyed: KeyedOperations) -> np.ndarray:
        """Return all positions, those of one key from the oldest operation to the newest."""
        is_delete = keyed.operations >= Operation.DELETE
        keys = [
            pa.array(keyed.group),
            *sort_keys(self.values(keyed.rows), exact=False),
            pa.array(is_delete.astype(np.uint8)),
        ]
        for column in self.columns:
            keys += sort_keys(self._column_values(column, keyed.rows), exact=True)
        return sorted_positions(keys)

    def _newest(self, keyed: KeyedOperations, values: pa.Array) -> np.ndarray:
        """Return the position of the newest operation of each key."""
        is_delete = keyed.operations >= Operation.DELETE
        keys = [
            pa.array(keyed.group),
            *sort_keys(values, exact=False),
            pa.array(is_delete.astype(np.uint8)),
        ]
        order = sorted_positions(keys)
        group = keyed.group[order]
        last = last_of_runs(group)
        newest: np.ndarray = order[last]
        # A tie: the previous row has the same key, value and kind. Equal deletes are all the same.
        is_tied = equals_previous([key.take(pa.array(order)) for key in keys])
        tied = is_tied[last] & ~is_delete[newest]
        if tied.any():
            starts = np.maximum.accumulate(np.where(is_tied, 0, np.arange(len(order))))
            is_candidate = tied[group] & (starts == starts[last][group])
            newest[tied] = self._greatest(keyed, order[is_candidate])
        return newest

    def _greatest(self, keyed: KeyedOperations, among: np.ndarray) -> np.ndarray:
        """Return the position of each key's row with the greatest cells; `among`: positions."""
        groups = keyed.group[among]
        keys = [pa.array(groups)]
        for column in self.columns:
            keys += sort_keys(self._column_values(column, keyed.rows[among]), exact=True)
        order = sorted_positions(keys)
        greatest: np.ndarray = among[order[last_of_runs(groups[order])]]
        return greatest

    def is_outdated(
        self, keyed: KeyedOperations, keys: KeyArray, locations: RowLocations, tablet: Tablet
    ) -> np.ndarray:
        """Return bool[n]: whether the tablet holds a row or tombstone as new as an operation.

        `keys` and `locations` belong to the n operations.
        """
        values = self.values(keyed.rows)
        is_delete = keyed.operations >= Operation.DELETE
        outdated = np.zeros(len(values), dtype=bool)
        for index in np.unique(locations.rowset_index[locations.is_found]):
            at = np.flatnonzero(locations.rowset_index == index)
            stored = tablet.rowsets[index].read_rows(
                locations.rowid[at], [self.column], TIMESTAMP_MAX
            )
            sign = compare(stored, [values.take(pa.array(at))], exact=False)
            outdated[at] = sign > 0
            tied = at[(sign == 0) & ~is_delete[at]]
            if len(tied):
                outdated[tied] = self._holds_greater(keyed.rows[tied], locations.take(tied), tablet)
        dead = np.flatnonzero(~locations.is_found)
        if len(dead) and len(tablet.tombstones.metas):
            deleted_with = tablet.tombstones.values_of(keys.take(dead), self.column)
            known = np.flatnonzero(deleted_with.is_valid().to_numpy(zero_copy_only=False))
            given = values.take(pa.array(dead[known]))
            sign = compare([deleted_with.take(pa.array(known))], [given], exact=False)
            outdated[dead[known[sign >= 0]]] = True
        return outdated

    def _holds_greater(
        self, numbers: np.ndarray, locations: RowLocations, tablet: Tablet
    ) -> np.ndarray:
        """Return bool[m]: whether rows of one rowset are at least as great as the batch's rows."""
        rowset = tablet.rowsets[locations.rowset_index[0]]
        stored = rowset.read_rows(locations.rowid, self.columns, TIMESTAMP_MAX)
        given = [self._column_values(column, numbers) for column in self.columns]
        if self.is_set is not None:
            masks = [pa.array(is_set[numbers]) for is_set in self.is_set]
            given = [pc.if_else(*cells) for cells in zip(masks, given, stored, strict=True)]
        return compare(stored, given, exact=True) >= 0

    def values(self, numbers: np.ndarray) -> pa.Array:
        """Return the ordering values of int64[n] rows."""
        return self._column_values(self.column, numbers)

    def _column_values(self, column: Column, numbers: np.ndarray) -> pa.Array:
        return joined(self.rows.column(column.name).take(pa.array(numbers)))
