"""Rows that a write computes from rows of the table: at one moment, and again where they change.

    update, delete     the keys of rows that match a condition, with the cells to set
    restore            the inverse of what changed since a moment

A write of many rows takes long, and other writers change some of them meanwhile. `MatchingRows` and
`RestoredRows` compute the rows of such keys alone, for the commit (a `Reread`, writes/commit.py).

**Threads**: any; all objects are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.model.cell import Cell
from kudulite.model.encoded_key import encode_keys
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Schema
from kudulite.model.types import joined
from kudulite.reads.lookup import KeyLookup
from kudulite.reads.scan import Changes
from kudulite.table.read_request import ReadRequest
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import UPDATE_POSTIMAGE, UPDATE_PREIMAGE
from kudulite.tablet.row_effects import cells_differ
from kudulite.tablet.tablet_scan import CHANGE_TYPE, CHANGE_TYPES

_CONSTANT_BYTES_MAX = 16 << 20
# The operations that undo the changes of CHANGE_TYPES; of rows that are there at that moment.
_INVERSES = ("delete_ignore", "update", None, "insert")


@dataclass(frozen=True)
class MatchingRows:
    """The keys of the rows that match `predicates`, with the `cells` to set, by column."""

    store: TableStore
    predicates: BoundPredicates
    cells: Mapping[str, Cell]

    def __call__(
        self, since: int, until: int
    ) -> tuple[Mapping[str, KeyArray], Iterable[pa.RecordBatch]]:
        """Return the keys that changed in (since, until], and the rows of those that match then."""
        predicates, keys = self.predicates, self.store.newest().schema.key_names
        names = list(dict.fromkeys((*read_names(keys, self.cells), *predicates.columns)))
        changes = Changes(self.store, ReadRequest.of(names, start=since, at=until)).to_arrow()
        live = changes.filter(pc.not_equal(changes.column(CHANGE_TYPE), "delete")).combine_chunks()
        matching = live.filter(pa.array(predicates.evaluate(live)))
        keys_changed = KeyLookup(self.store).keys_by_tablet(changes.select(keys))
        return keys_changed, with_cells(matching.to_batches(), keys, self.cells)


@dataclass(frozen=True)
class RestoredRows:
    """The inverse of all changes after `moment`, as `undone` gives it."""

    store: TableStore
    moment: Any
    names: Sequence[str]

    def __call__(
        self, since: int, until: int
    ) -> tuple[Mapping[str, KeyArray], Iterable[pa.RecordBatch]]:
        """Return the keys that changed in (since, until], and the inverse of all their changes."""
        schema = self.store.newest().schema
        request = ReadRequest.of(schema.key_names, start=since, at=until)
        changed = Changes(self.store, request).to_arrow()
        if not changed.num_rows:
            return {}, ()
        keys = _keys_of(changed, schema)
        keys = keys.take(keys.sort_order())
        request = ReadRequest.of(start=self.moment, at=until, images="both")
        request = replace(request, bounds=(keys[0], keys[len(keys) - 1] + b"\0"))

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in Changes(self.store, request).to_batches():
                is_changed = keys.find(_keys_of(batch, schema)) >= 0
                yield undone(batch.filter(pa.array(is_changed)), self.names)

        return KeyLookup(self.store).keys_by_tablet(changed.select(schema.key_names)), rows()


def _keys_of(rows: pa.Table | pa.RecordBatch, schema: Schema) -> KeyArray:
    columns = [joined(rows.column(name)) for name in schema.key_names]
    return encode_keys(columns, schema.key_types)


def read_names(keys: Sequence[str], cells: Mapping[str, Cell]) -> list[str]:
    """Return the columns to read: `keys`, and those that cells are computed from."""
    return list(dict.fromkeys((*keys, *(name for cell in cells.values() for name in cell.columns))))


def with_cells(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], cells: Mapping[str, Cell]
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of batches with a column of each cell; cut where constants are large."""
    size = sum(cell.nbytes for cell in cells.values())
    step = max(1, _CONSTANT_BYTES_MAX // max(1, size))
    for batch in batches:
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            row = part.select(keys)
            for name, cell in cells.items():
                row = row.append_column(name, cell.of(part))
            yield row


def undone(changes: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the operations that undo changes with both images: rows, and the operation of each.

    A row that was inserted is deleted. A row that differs from the row before becomes that row.
    """
    kinds = changes.column(CHANGE_TYPE)
    is_undone = pc.not_equal(kinds, UPDATE_POSTIMAGE).to_numpy(False)
    then_at = np.flatnonzero(pc.equal(kinds, UPDATE_PREIMAGE).to_numpy(False))
    before, after = changes.take(pa.array(then_at)), changes.take(pa.array(then_at + 1))
    is_other = np.zeros(len(then_at), bool)
    for name in names:
        is_other |= cells_differ(after.column(name), before.column(name))
    is_undone[then_at] = is_other
    inverse = pa.array(_INVERSES).take(pc.index_in(kinds, pa.array(CHANGE_TYPES)))
    columns = {name: changes.column(name) for name in names}
    return pa.RecordBatch.from_pydict({**columns, CHANGE_TYPE: inverse}).filter(pa.array(is_undone))
