"""Merging compaction: several DiskRowSets become fewer, side by side, with all their history.

    inputs, by key     ├──a──────────┤   ├──c──┤
                          ├───b────────┤            ├──d──┤
    windows            │  │  │  │    │ │ │     │    │     │     all rows of all inputs up to a key
    outputs            ├──0─────────┤├──1──────┤├───2─────┤     full row groups, full rowsets

A window ends where the first of the inputs in it has no more rows in hand, so whatever rows have a
key in common are in one window. In memory are a row group of each input that the window is in, the
deltas of these inputs, and the rows of an output that is not full yet. Inputs side by side are read
one after the other, and their rows are neither sorted nor copied.

A row of an output has the newest image of its key, at most one REDO (the DELETE of a row that is
dead now), and UNDO back to the ancient history mark, of all lives of the key in all inputs. What a
key was in rowsets that are not among the inputs stays there. Keys that are dead since the mark are
left out.

Invariants: (1) a snapshot at the mark or later sees in the outputs what it saw in the inputs;
(2) keys of outputs are disjoint; an output is never empty.

Threads: any; inputs never change, and nobody knows the outputs before they are published.

Source: Kudu tablet.cc, DoMergeCompactionOrFlush, its first phase; compaction.cc.

Where the rows of compacted rowsets went: deltas that arrived meanwhile follow them.

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
from functools import partial
from pathlib import Path

import numpy as np

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.delta.delta_file import DeltaRows, sort_rows, take_rows
from kudulite.fs.file_system import FileSystem
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge import OrderedStream, merge_windows
from kudulite.rowset.row_versions import RowVersions, merge_row_versions, read_row_versions
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowImages, rows_per_rowset, write_rowsets

# What is put in order at once, of all inputs together.
_WINDOW_ROWS = 2 * ROW_GROUP_ROWS
_WINDOW_BYTES = 256 << 20


@dataclass(frozen=True)
class MergedRowSets:
    """What a merging compaction has written, in order of keys, and where the rows went."""

    rowsets: tuple[RowSetMeta, ...]
    row_map: RowIdMap


def merge_rowsets(
    file_system: FileSystem,
    folder: Path,
    schema: Schema,
    inputs: Sequence[DiskRowSet],
    mark: int,
    without: KeyArray | None = None,
) -> MergedRowSets:
    """Write the rows of `inputs` (no memory, not ended) to new rowsets under their `folder`.

    History up to the ancient history `mark` is left out, and so are the rows with the ascending
    keys `without`, from all of history. The rowsets are durable but for their names in `folder`,
    which is for the caller. Raises StorageError, CorruptionError; then there are files that nobody
    refers to.
    """
    numbers = {rowset.meta.id: np.full(rowset.meta.row_count, -1) for rowset in inputs}
    oldest = min(rowset.meta.insert_timestamp for rowset in inputs)
    writer = _Writer(file_system, folder, schema)
    streams = [
        OrderedStream(rowset.key_min, partial(read_row_versions, rowset, schema, mark, without))
        for rowset in inputs
    ]
    count = 0
    for window in merge_windows(streams, _row_limit):
        merged, new_places = merge_row_versions([rows for _, rows in window], schema)
        for (at, rows), places in zip(window, new_places, strict=True):
            new_rowids = numbers[inputs[at].meta.id]
            new_rowids[rows.rowids] = np.where(places < 0, -1, places + count)
        count += len(merged)
        writer.add(merged.images(schema, mark, oldest))
    rowsets = writer.finish()
    return MergedRowSets(rowsets, RowIdMap(numbers, [meta.row_count for meta in rowsets]))


def _row_limit(blocks: Sequence[RowVersions]) -> int:
    """Return how many rows of each block a window takes, so that its memory stays bounded."""
    size = max(rows.row_bytes for rows in blocks)
    return max(1, min(_WINDOW_ROWS, _WINDOW_BYTES // size) // len(blocks))


class _Writer:
    """Collects merged rows and writes them as soon as they fill a rowset."""

    def __init__(self, file_system: FileSystem, folder: Path, schema: Schema) -> None:
        self._file_system = file_system
        self._folder = folder
        self._schema = schema
        self._written: list[RowSetMeta] = []
        self._parts: list[RowImages] = []
        self._row_count = 0
        self._nbytes = 0

    def add(self, part: RowImages) -> None:
        """Take rows whose keys are above all before; writes those that fill whole rowsets."""
        self._buffer(part)
        step = rows_per_rowset(self._row_count, self._nbytes)
        if self._row_count >= step:
            self._write(self._row_count // step * step)

    def finish(self) -> tuple[RowSetMeta, ...]:
        """Write the rest; returns all rowsets in order of keys."""
        if self._row_count:
            self._write(self._row_count)
        return tuple(self._written)

    def _buffer(self, part: RowImages) -> None:
        self._parts.append(part)
        self._row_count += len(part)
        self._nbytes += part.nbytes

    def _write(self, count: int) -> None:
        """Write the first `count` of the buffered rows."""
        buffered = RowImages.concat(self._parts)
        full = buffered.cut(0, count)
        self._written += write_rowsets(self._file_system, self._folder, self._schema, full)
        self._parts, self._row_count, self._nbytes = [], 0, 0
        if count < len(buffered):
            self._buffer(buffered.cut(count, len(buffered)))


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
