"""A write with an ordering column: of each key only the row with the highest value counts.

It counts against the rows of the same write and against the row that the tablet holds; a row whose
value is lower than the held one is ignored. Equal values: the later row of the write wins. With an
ordering, insert and update both mean upsert, and delete means delete_ignore: the rows that came
before may have been dropped, so only the newest state of a key is meaningful.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import RowError
from kudulite.model.schema import Column
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.tablet.collapse import KeyedOperations
from kudulite.tablet.operation import Operation
from kudulite.tablet.tablet import RowLocations, Tablet


def newest_rows(
    table: str,
    keyed: KeyedOperations,
    rows: pa.Table,
    ordering: Column,
    found: RowLocations,
    tablet: Tablet,
) -> KeyedOperations:
    """Return at most one operation per key: its newest, unless the tablet holds a newer row."""
    values = rows.column(ordering.name).combine_chunks().take(pa.array(keyed.rows))
    if values.null_count:
        raise RowError(
            f"table {table!r}: ordering column {ordering.name!r} is null in {values.null_count}"
            " rows; every row of an ordered write needs a value; nothing was written",
            reason=RowError.REASON_NULL,
            row_count=values.null_count,
        )
    by_value = pc.sort_indices(
        pa.table({"group": keyed.group, "value": values, "row": np.arange(len(values))}),
        sort_keys=[("group", "ascending"), ("value", "ascending"), ("row", "ascending")],
    ).to_numpy()
    groups = keyed.group[by_value]
    is_newest = np.append(groups[1:] != groups[:-1], True) if len(groups) else groups == 0
    newest = by_value[is_newest]
    held = _held_is_newer(
        values.take(pa.array(newest)), keyed.group[newest], ordering, found, tablet
    )
    newest = newest[~held]
    operations = keyed.operations[newest]
    is_delete = operations >= Operation.DELETE
    return KeyedOperations(
        rows=keyed.rows[newest],
        group=keyed.group[newest],
        operations=np.where(is_delete, Operation.DELETE_IGNORE, Operation.UPSERT).astype(np.uint8),
        key_count=keyed.key_count,
    )


def _held_is_newer(
    values: pa.Array,
    groups: np.ndarray,
    ordering: Column,
    found: RowLocations,
    tablet: Tablet,
) -> np.ndarray:
    """Return bool[k]: whether the tablet's row of each key has a higher ordering value."""
    newer = np.zeros(len(groups), dtype=bool)
    for index in np.unique(found.rowset_index[found.is_found]):
        at = np.flatnonzero(found.rowset_index[groups] == index)
        rowids = found.rowid[groups[at]]
        held = tablet.rowsets[index].read_rows(rowids, [ordering], TIMESTAMP_MAX)[0]
        given = values.take(pa.array(at))
        greater = pc.greater(held, given)
        if pa.types.is_floating(held.type):  # NaN is the greatest, as in the sort above
            greater = pc.or_(greater, pc.and_not(pc.is_nan(held), pc.is_nan(given)))
        newer[at] = pc.fill_null(greater, False).to_numpy(zero_copy_only=False)
    return newer
