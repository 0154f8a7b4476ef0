"""Where the rows of compacted rowsets went: deltas that arrived meanwhile follow them.

    input row id → number of the row over all outputs → (output, row id there)

    input a   0 1 2 3        output 0   a0 b0 a1          a → 0 2 3 -1     b → 1 4
    input b   0 1            output 1   a2 b1             outputs start at 0 and 3

Invariants: (1) two input rows never have the same number; (2) numbers ascend with the keys; (3) a
row that has no row of its own any more (dropped, or a dead one whose key lives on elsewhere) is -1.

Threads: immutable, share freely.

Source: Kudu compaction.cc, "ReupdateMissedDeltas", which counts rows in a second scan instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kudulite.delta.delta_file import DeltaRows
from kudulite.delta.delta_rows import sort_rows, take_rows


@dataclass(frozen=True)
class RowIdMap:
    """`numbers` has int64[n] per input rowset id; `row_counts` is that of each output, in order."""

    numbers: Mapping[str, np.ndarray]
    row_counts: Sequence[int]

    @property
    def starts(self) -> np.ndarray:
        """int64[outputs + 1]: the number of each output's first row, and of the row after all."""
        return np.cumsum([0, *self.row_counts])

    def locate(self, input_id: str, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[m] outputs and int64[m] row ids there, both -1 for rows that are gone."""
        numbers = self.numbers[input_id][rowids]
        outputs = np.searchsorted(self.starts, numbers, "right") - 1
        return outputs, np.where(numbers < 0, -1, numbers - self.starts[outputs])

    def map_deltas(self, input_id: str, rows: DeltaRows) -> dict[int, DeltaRows]:
        """Return changes of an input's rows as those of the outputs, by output, by row id.

        Of one row they keep their order. Changes of rows that are gone are left out: such a row was
        dead, or its key was to be left out of the compaction.
        """
        numbers = self.numbers[input_id][rows.rowids]
        moved = replace(rows, rowids=numbers)
        if (numbers < 0).any():
            moved = take_rows(moved, np.flatnonzero(numbers >= 0))
        moved = sort_rows(moved)
        bounds = np.searchsorted(moved.rowids, self.starts).tolist()
        found = {}
        for output, (low, high) in enumerate(itertools.pairwise(bounds)):
            if low < high:
                part = take_rows(moved, np.arange(low, high))
                found[output] = replace(part, rowids=part.rowids - self.starts[output])
        return found
