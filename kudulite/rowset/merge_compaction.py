"""Merging compaction: several DiskRowSets become fewer, with disjoint keys and all their history.

    inputs, by key     ├──a──────────┤   ├──c──┤
                          ├───b────────┤            ├──d──┤
    windows            │  │  │  │    │ │ │     │    │     │     all rows of all inputs up to a key
    outputs            ├──0─────────┤├──1──────┤├───2─────┤     full row groups, full rowsets

A window ends at the smallest last key of its inputs' batches in memory, so rows with the same key
are in one window. Memory holds a row group of each input in the window (a quarter of one if there
are more than four inputs), the deltas of these inputs,
and a row group, the keys and the deltas of an output that is not full yet. Inputs with disjoint
keys are read one after the other, and their rows are neither sorted nor copied.

A row of an output has the newest image of its key, at most one REDO (the DELETE of a deleted row),
and UNDO back to the ancient history mark, with the versions of the key in all inputs. Versions in
rowsets that are not inputs stay there. Keys deleted at or before the mark are left out.

`RowIdMap` gives the new place of each input row, so that deltas which arrive meanwhile can follow:

    input row id → number of the row over all outputs → (output, row id there)

    input a   0 1 2 3        output 0   a0 b0 a1          a → 0 2 3 -1     b → 1 4
    input b   0 1            output 1   a2 b1             outputs start at 0 and 3

A row without a place of its own has -1: one that was left out, and a ghost row whose versions are
part of another row.

**Invariants**: (1) a snapshot at the mark or later sees in the outputs the same rows as in the
inputs; (2) keys of outputs are disjoint; an output is never empty; (3) no two input rows have the
same number; (4) numbers ascend with the keys.

**Threads**: any; inputs never change, and no other thread sees the outputs before they are
published. A RowIdMap is immutable.

**Source**: Kudu tablet.cc, DoMergeCompactionOrFlush, its first phase; compaction.cc, and its
ReupdateMissedDeltas, which counts rows in a second scan instead of keeping a map.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.delta.delta_file import DeltaRows, sort_rows, take_rows
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge import OrderedStream, merge_windows
from kudulite.rowset.row_versions import RowVersions, merge_row_versions, read_row_versions
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowSetWriter
from kudulite.shown.progress import Progress
from kudulite.storage.new_files import NewFiles

# The rows of one window, of all inputs together.
_WINDOW_ROWS = 2 * ROW_GROUP_ROWS
_WINDOW_BYTES = 256 << 20
# More inputs than this are read in parts of row groups: all of them may be in one window.
_WHOLE_INPUTS_MAX = 4


@dataclass(frozen=True)
class MergedRowSets:
    """The new rowsets of a merging compaction, in order of keys, and the new place of each row."""

    rowsets: tuple[RowSetMeta, ...]
    row_map: RowIdMap


def merge_rowsets(
    files: NewFiles,
    folder: Path,
    schema: Schema,
    inputs: Sequence[DiskRowSet],
    mark: int,
    without: KeyArray | None = None,
) -> MergedRowSets:
    """Write the rows of `inputs` to new rowsets under their `folder`.

    The inputs have no changes in memory and no delete timestamp. History up to the ancient history
    `mark` is left out, and so are all versions of the ascending keys `without`. The caller syncs
    the `files`. Raises StorageError, CorruptionError; no superblock then refers to those written
    so far.
    """
    numbers = {rowset.meta.id: np.full(rowset.meta.row_count, -1) for rowset in inputs}
    oldest = min(rowset.meta.insert_timestamp for rowset in inputs)
    read = partial(
        read_row_versions,
        schema=schema,
        mark=mark,
        without=without,
        in_parts=len(inputs) > _WHOLE_INPUTS_MAX,
    )
    streams = [OrderedStream(rowset.key_min, partial(read, rowset)) for rowset in inputs]
    count = 0
    total = sum(rowset.meta.row_count for rowset in inputs)
    with (
        Progress(f"merge of {len(inputs)} rowsets", total) as progress,
        RowSetWriter(files, folder, schema) as writer,
    ):
        for window in merge_windows(streams, _row_limit):
            merged, new_places = merge_row_versions([rows for _, rows in window], schema)
            for (at, rows), places in zip(window, new_places, strict=True):
                new_rowids = numbers[inputs[at].meta.id]
                new_rowids[rows.rowids] = np.where(places < 0, -1, places + count)
            count += len(merged)
            writer.add(merged.images(schema, mark, oldest))
            progress.add(sum(len(rows.rowids) for _, rows in window))
        rowsets = writer.finish()
    return MergedRowSets(rowsets, RowIdMap(numbers, [meta.row_count for meta in rowsets]))


def _row_limit(blocks: Sequence[RowVersions]) -> int:
    """Return how many rows of each block a window takes, so that its memory stays bounded."""
    size = max(rows.row_bytes for rows in blocks)
    return max(1, min(_WINDOW_ROWS, _WINDOW_BYTES // size) // len(blocks))


@dataclass(frozen=True)
class RowIdMap:
    """`numbers` has int64[n] per input rowset id; `row_counts` is by output, in order."""

    numbers: Mapping[str, np.ndarray]
    row_counts: Sequence[int]

    @property
    def starts(self) -> np.ndarray:
        """int64[outputs + 1]: the number of each output's first row, then the count of all rows."""
        return np.cumsum([0, *self.row_counts])

    def locate(self, input_id: str, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[m] outputs and int64[m] row ids in them, -1 for rows without a place."""
        numbers = self.numbers[input_id][rowids]
        outputs = np.searchsorted(self.starts, numbers, "right") - 1
        return outputs, np.where(numbers < 0, -1, numbers - self.starts[outputs])

    def map_deltas(self, input_id: str, rows: DeltaRows) -> dict[int, DeltaRows]:
        """Return changes of an input's rows as changes of the outputs, by output, by row id.

        Changes of one row keep their order. Changes of rows without a place are left out: such a
        row was dead, or its key was left out of the compaction.
        """
        numbers = self.numbers[input_id][rows.rowids]
        moved = replace(rows, rowids=numbers)
        if (numbers < 0).any():
            moved = take_rows(moved, np.flatnonzero(numbers >= 0))
        moved = sort_rows(moved)
        bounds = np.searchsorted(moved.rowids, self.starts).tolist()
        by_output = {}
        for output, (low, high) in enumerate(itertools.pairwise(bounds)):
            if low < high:
                part = take_rows(moved, np.arange(low, high))
                by_output[output] = replace(part, rowids=part.rowids - self.starts[output])
        return by_output
