"""Changes: the rows that changed in a table between two moments, as Arrow.

    table.changes(start, end)      one row for each key with a change in (start, end]

    the table's columns  _change_type  _commit_timestamp  [_before]
    the row at `end`;    insert        when it changed    the row at `start`,
    of a delete the      update        last: a HybridTime null for an insert
    row at `start`       delete        as in WriteResult.timestamp

The types are names of operations: applied to the table as it was at `start`, with
`operation_column="_change_type"`, the changes make the table as it was at `end`.

The window is checked and settled when the object is made. It is read when a result is asked for,
anew each time. Memory is bounded by a block of each rowset that a key is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from kudulite.catalog.diff_plan import entries_to_diff, open_tablets
from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.planned_columns import in_schema
from kudulite.catalog.read_request import Read, ReadRequest, plan_changes
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_result import ArrowResult
from kudulite.rowset.diff_spec import DiffSpec
from kudulite.tablet.diff_scan import diff_scan


class Changes(ArrowResult):
    """The changes of a table in one settled window; see `Table.changes`."""

    def __init__(self, store: TableStore, request: ReadRequest) -> None:
        self._read = plan_changes(store, request)

    @property
    def start(self) -> int:
        """The HybridTime after which the window begins."""
        return self._read.spec.start

    @property
    def end(self) -> int:
        """The HybridTime of the window's end, inclusive; the start of the next window."""
        return self._read.spec.end

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return self._read.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty; each tablet's in key order."""
        read = self._read.newest()
        schema = self.schema
        for batch in change_batches(read, entries_to_diff(read.store, read.manifest, read.spec)):
            yield in_schema(batch, schema)

    def count(self) -> int:
        """Return the number of changes."""
        return sum(batch.num_rows for batch in self.to_batches())


def change_batches(
    read: Read[DiffSpec], groups: Iterable[Sequence[TabletEntry]]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of groups of tablets; tablets of one group may hold the same keys."""
    for entries in groups:
        yield from diff_scan(open_tablets(read.store, entries, read.spec), read.spec)
