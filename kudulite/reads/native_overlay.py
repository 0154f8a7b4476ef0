"""Overlays: columns that stand beside base files whose rows are not all as the snapshot has them.

    base file      id  city   price        overlay    kept    is_new 0   new 0 (of price)
                    1  Rome    10.0                   true    false      –
                    2  Oslo    11.0                   true    true       12.5
                    3  Lima     7.0                   false   false      –

    the rows  =  id, city, is_new 0 ? new 0 : price  where kept

The engine joins both by position. It reads only the columns of a query, also of the overlay: the
deltas of a column are read when a query needs it. `new` is undefined where `is_new` is false or
NULL, and a new value may be NULL.

**Invariants**: (1) an overlay has the rows of its files, in the same order; (2) it is read anew
each time, a batch at a time.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from kudulite.delta.scatter import bool_array, spread
from kudulite.model.schema import Column
from kudulite.reads.native_plan import NativeFile

_BITS = pa.bool_()


class Overlay:
    """The columns beside some base files, one after the other; `prefix` begins their names.

    Flags are of `flag_type`: bool, or uint8 for an engine that would unpack their bits.
    """

    def __init__(
        self, files: Sequence[NativeFile], prefix: str, flag_type: pa.DataType = _BITS
    ) -> None:
        self._files = files
        self._flag_type = flag_type
        self.kept = prefix
        """The name of the column that is true for rows of the snapshot."""
        overlaid = {c.name: c for file in files for c in file.overlaid}
        self._names = {
            name: (f"{prefix}is_new{number}", f"{prefix}new{number}")
            for number, name in enumerate(overlaid)
        }
        self._columns: dict[str, tuple[Column, bool]] = {}
        fields = [pa.field(prefix, flag_type)]
        for name, (is_new, new) in self._names.items():
            column = overlaid[name]
            self._columns |= {is_new: (column, False), new: (column, True)}
            fields += [pa.field(is_new, flag_type), pa.field(new, column.type.arrow)]
        self.schema = pa.schema(fields)

    def names_of(self, column: str) -> tuple[str, str] | None:
        """Return the names of the columns that say where a column has new values, and which."""
        return self._names.get(column)

    def read(self, names: Sequence[str], batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the columns of these names, of each file `batch_rows` rows at a time, or all."""
        schema = pa.schema([self.schema.field(name) for name in names])
        for file in self._files:
            step = batch_rows or file.row_count
            for start in range(0, file.row_count, step):
                stop = min(start + step, file.row_count)
                columns = [self._column(file, name, start, stop) for name in names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, file: NativeFile, name: str, start: int, stop: int) -> pa.Array:
        if name == self.kept:
            return self._flags(file.excluded, start, stop, are_set=False)
        column, are_values = self._columns[name]
        cells = file.cells(column)
        if cells is None:
            return pa.nulls(stop - start, column.type.arrow if are_values else self._flag_type)
        if not are_values:
            return self._flags(cells.rowids, start, stop, are_set=True)
        low, high = np.searchsorted(cells.rowids, [start, stop])
        values = cells.values.slice(low, high - low)
        return spread(values, cells.rowids[low:high] - start, stop - start)

    def _flags(self, rowids: np.ndarray, start: int, stop: int, *, are_set: bool) -> pa.Array:
        """Return flags of rows start..stop: `are_set` at the row ids, and not in the other rows."""
        low, high = np.searchsorted(rowids, [start, stop])
        flags = np.full(stop - start, not are_set)
        flags[rowids[low:high] - start] = are_set
        if self._flag_type == _BITS:
            return bool_array(flags)
        return pa.Array.from_buffers(self._flag_type, len(flags), [None, pa.py_buffer(flags)])
