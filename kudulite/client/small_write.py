"""Small Arrow batches: a few rows of one tablet are written through its write-ahead log.

    up to `small_write_rows_max` rows, all of one tablet     one record in the tablet's log
    everything else                                          a bulk write (bulk_write.py)

Either way the write is all or nothing, durable and visible when it returns. A bulk write makes new
files for each tablet that it touches. A record costs one append and one fsync, but is atomic in one
tablet only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.catalog.bulk_write import WriteState
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.row_write import RowWriter
from kudulite.catalog.stage import Stager
from kudulite.catalog.table_store import TableStore
from kudulite.client.bulk_write import WriteResult
from kudulite.errors import RowError
from kudulite.model.schema import Schema
from kudulite.tablet.operation import Operation, WriteSpec
from kudulite.tablet.row_failure import raise_row_error
from kudulite.tablet.row_operation import RowOperation, RowWriteResult

Batches = Iterable[pa.RecordBatch | pa.Table]
# All rows of an operation that depend on the key's presence are refused for the same reason.
_KEY_REASONS = (RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND)


@dataclass(frozen=True)
class SmallWrite:
    """Writes batches of one operation if they are small enough."""

    store: TableStore
    operation: Operation
    names: Sequence[str]
    ignore_null: bool

    def write(self, batches: Batches) -> tuple[WriteResult | None, Batches]:
        """Return (result, batches); the result is None when the batches need a bulk write.

        Raises RowError and SchemaError as a bulk write does; the table is then as it was.
        """
        rows, batches = self._collect(batches)
        if rows is None:
            return None, batches
        manifest = self.store.newest()
        spec = WriteSpec.build(
            manifest.schema,
            list(self.names),
            table=self.store.name,
            operation=self.operation,
            ignore_null=self.ignore_null,
        )
        stager = Stager(self.store, WriteState("", manifest.version, "", spec), manifest)
        checked = stager.checked_rows(rows)
        codes = np.full(rows.num_rows, int(self.operation), dtype=np.uint8)
        stager.check_nulls(checked, codes)
        if not self._is_of_one_tablet(manifest, checked):
            return None, [rows]
        operations = self._operations(manifest.schema, checked)
        result = RowWriter(self.store).write(operations, is_atomic=True)
        self._raise_failures(manifest.schema, checked, result)
        if result.failures:
            return None, [rows]
        version = self.store.newest().version
        return WriteResult(**vars(result.counts), timestamp=result.timestamp, version=version), []

    def _collect(self, batches: Batches) -> tuple[pa.Table | None, Batches]:
        """Return all rows and no batches, or None and all batches when they exceed the limit."""
        limit = self.store.environment.small_write_rows_max
        taken: list[pa.RecordBatch | pa.Table] = []
        count = 0
        waiting = iter(batches)
        for batch in waiting:
            taken.append(batch)
            count += batch.num_rows
            if count > limit:
                return None, itertools.chain(taken, waiting)
        if not count:
            return None, taken
        return pa.concat_tables(
            pa.Table.from_batches([b]) if isinstance(b, pa.RecordBatch) else b for b in taken
        ), ()

    def _is_of_one_tablet(self, manifest: Manifest, rows: pa.Table) -> bool:
        columns = {name: rows.column(name).chunk(0) for name in manifest.schema.key_names}
        index = manifest.partition.tablet_index(columns, rows.num_rows)
        return bool(index[0] >= 0 and (index == index[0]).all())

    def _operations(self, schema: Schema, rows: pa.Table) -> list[RowOperation]:
        columns = [_cells(rows.column(name), schema, name) for name in rows.column_names]
        names, keys = rows.column_names, set(schema.key_names)
        cells = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        if self.ignore_null:
            cells = (
                {name: v for name, v in row.items() if v is not None or name in keys}
                for row in cells
            )
        return [RowOperation(self.operation, row) for row in cells]

    def _raise_failures(self, schema: Schema, rows: pa.Table, result: RowWriteResult) -> None:
        """Raise the error of a bulk write, if its error would be the same.

        Other failures are left to a bulk write. It checks the combined rows of each key, so a value
        that is missing in one row may be set by a later one.
        """
        failures = result.failures
        for failure in failures:
            if failure.error is not None:
                raise failure.error
        if failures and all(failure.reason in _KEY_REASONS for failure in failures):
            refused = np.array([failure.row for failure in failures])
            reason = failures[0].reason
            raise_row_error(self.store.name, self.operation.label, reason, rows, schema, refused)


def _cells(column: pa.ChunkedArray, schema: Schema, name: str) -> list[object]:
    """Return a column's cells as Python values; moments as whole microseconds."""
    if schema.column(name).type.is_timestamp:  # Python's datetime ends with the year 9999
        column = column.cast(pa.int64())
    cells: list[object] = column.to_pylist()
    return cells
