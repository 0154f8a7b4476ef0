"""Changes: what changed in a table between two moments, as Arrow.

    table.changes(start, end)      one row for each key with a change in (start, end]

    the table's columns  _change_type  _commit_timestamp  [_before]
    the row at `end`;    insert        when it changed    the row at `start`,
    of a delete the      update        last: a HybridTime null for an insert
    row at `start`       delete        as in WriteResult.timestamp

The types are names of operations: applied to the table as it was at `start`, with
`operation_column="_change_type"`, the changes make the table as it was at `end`.

The window is checked and settled when the object is made, and read when a result is asked for,
again each time. Memory is bounded by a block of each rowset that a key is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kudulite.catalog.diff_plan import (
    choose_window,
    diff_spec,
    entries_to_diff,
    open_tablets,
)
from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.planned_columns import in_schema, planned_columns, schema_as_planned
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_result import ArrowResult
from kudulite.errors import ConflictError, OptionError
from kudulite.model.predicate import Predicate, bind_predicates
from kudulite.rowset.diff_spec import DiffSpec
from kudulite.tablet.diff_scan import diff_scan, diff_schema

IMAGES = ("after", "both")


class Changes(ArrowResult):
    """The changes of a table in one settled window; see `Table.changes`."""

    def __init__(
        self,
        store: TableStore,
        *,
        start: Any,
        end: Any,
        columns: Sequence[str] | None,
        where: Sequence[Predicate],
        images: str,
    ) -> None:
        self._store = store
        with_before = wants_before(store, images)
        window = choose_window(store, start, end)
        self._manifest = store.newest()  # after settling: it shows all up to the end
        self._spec = diff_spec(
            store.name, self._manifest, columns, where, window=window, with_before=with_before
        )
        self._columns = planned_columns(
            self._spec.schema, self._spec.names, self._spec.predicates.predicates
        )

    @property
    def start(self) -> int:
        """The HybridTime after which the window begins."""
        return self._spec.start

    @property
    def end(self) -> int:
        """The HybridTime of the window's end, inclusive; the start of the next window."""
        return self._spec.end

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return diff_schema(self._spec)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty; each tablet's in key order."""
        spec, groups = self._now()
        for entries in groups:
            for batch in diff_scan(open_tablets(self._store, entries, spec), spec):
                yield in_schema(batch, self.schema)

    def count(self) -> int:
        """Return the number of changes."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _now(self) -> tuple[DiffSpec, list[tuple[TabletEntry, ...]]]:
        """Return the scan as the table's columns are now, and the tablets that it reads together.

        Of the newest version, as for a scan: in a settled window all show the same changes.
        """
        manifest = self._store.newest()
        if manifest.table_id != self._manifest.table_id:
            raise ConflictError(
                f"table {self._store.name!r} was deleted and created again after its changes were"
                " asked for"
            )
        spec, schema = self._spec, manifest.schema
        if schema is not self._manifest.schema:
            schema = schema_as_planned(self._store.name, self._columns, manifest.schema)
            spec = replace(
                spec,
                schema=schema,
                predicates=bind_predicates(spec.predicates.predicates, schema),
                column_ids=frozenset(column.id for column in manifest.schema.columns),
            )
        # After a rename the predicates have names from before, which prune no tablet.
        is_pruned = schema is manifest.schema
        return spec, entries_to_diff(self._store, manifest, spec, is_pruned=is_pruned)


def wants_before(store: TableStore, images: str) -> bool:
    """Return whether changes are to bear the row before. Raises OptionError."""
    if images not in IMAGES:
        raise OptionError(
            f"table {store.name!r}: unknown images {images!r} of changes; known:"
            f" {', '.join(IMAGES)}"
        )
    return images == "both"
