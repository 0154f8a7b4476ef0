"""What one flush did to rows of a tablet: one effect per key, all at one timestamp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

CHANGE_INSERT, CHANGE_UPDATE, CHANGE_DELETE = 0, 1, 2  # on disk: do not renumber


@dataclass(frozen=True, eq=False)
class RowChanges:
    """n changes at `timestamp`: `ops` uint8[n] of CHANGE_ constants, each key at most once.

    `columns` has, by column id, n cells each, null where a row does not set the column; the key
    columns are always there, and an INSERT sets all columns of the table. `is_set` has bool[n] for
    the columns that not every row sets; a column without it is set by all rows. The arrays are of
    the columns' exact Arrow types and are never changed.
    """

    timestamp: int
    ops: np.ndarray
    columns: Mapping[int, pa.Array]
    is_set: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """The number of changes, 1 or more in a record."""
        return len(self.ops)
