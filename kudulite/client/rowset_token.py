"""RowSetToken: a picklable piece of a native plan: rows that base files do not show as they are.

Unlike a scan token it names a version: a superblock, and rows of its rowsets by position. So it is
exactly what a plan left over, whatever is compacted meanwhile, and it lives as long as the files of
that version: the grace time after they were replaced. It never needs the log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.catalog.environment import default_environment
from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.planned_columns import (
    ColumnIds,
    PlannedColumn,
    in_schema,
    schema_as_planned,
    with_planned_types,
)
from kudulite.catalog.scan_plan import scan_spec
from kudulite.catalog.table_store import TableStore
from kudulite.client.pickled_token import PickledToken
from kudulite.client.scan import read_ahead
from kudulite.errors import ConflictError, StorageError
from kudulite.model.predicate import Predicate
from kudulite.model.types import parse_type
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.chosen_rows import ChosenRows, chosen_reads
from kudulite.tablet.tablet_scan import BlockRead


@dataclass(frozen=True)
class RowSetToken(PickledToken):
    """Rows of some rowsets of one tablet version, at one settled timestamp; sizes are estimates."""

    folder: str
    table_id: str
    tablet: TabletEntry
    rows: tuple[ChosenRows, ...]
    columns: tuple[str, ...]
    where: tuple[Predicate, ...]
    column_ids: ColumnIds  # of all columns that the plan had
    timestamp: int
    size_bytes: int
    row_count_estimate: int

    def narrowed(self, columns: Sequence[str], where: Sequence[Predicate]) -> RowSetToken:
        """Return a token of fewer columns and of rows that match `where`, too."""
        return replace(self, columns=tuple(columns), where=(*self.where, *where))

    def open(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the order of `columns`.

        Raises ConflictError when the files were replaced longer than the grace time ago, the table
        was deleted, or a column was dropped: plan again.
        """
        store = TableStore(Path(self.folder), default_environment())
        manifest = store.newest()
        if manifest.table_id != self.table_id:
            raise self._outdated(store, "the table was deleted and created again")
        schema = schema_as_planned(store.name, self.column_ids, manifest.schema)
        as_planned = replace(manifest, schema=schema)
        spec = scan_spec(store.name, as_planned, self.columns, self.where, self.timestamp)
        planned = with_planned_types(schema, self.column_ids).arrow_schema(spec.names)
        try:
            for batch in read_ahead(self._reads(store, spec)):
                yield in_schema(batch, planned)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise self._outdated(store, str(error)) from error

    def _reads(self, store: TableStore, spec: ScanSpec) -> Iterator[BlockRead]:
        tablet = store.tablet(self.tablet)
        for chosen in self.rows:
            rowset = tablet.rowset(chosen.rowset_id)
            assert rowset is not None, "the superblock that was planned with lists its rowsets"
            yield from chosen_reads(rowset, chosen.positions(rowset, spec.timestamp), spec)

    def _outdated(self, store: TableStore, reason: str) -> ConflictError:
        return ConflictError(
            f"table {store.name!r}: a version that was planned with can no longer be read"
            f" ({reason}); files that were replaced stay for the grace time: read the table again"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a form for readers that do not trust who sends it; `where` is left out of it."""
        return {
            "table_id": self.table_id,
            "tablet": self.tablet.to_json(),
            "rows": [[rows.rowset_id, rows.only_changed, rows.without.hex()] for rows in self.rows],
            "columns": list(self.columns),
            "column_ids": [[c.name, c.id, str(c.type)] for c in self.column_ids],
            "timestamp": self.timestamp,
            "size_bytes": self.size_bytes,
            "row_count_estimate": self.row_count_estimate,
        }

    @staticmethod
    def from_json(value: dict[str, Any], folder: str) -> RowSetToken:
        """Build a token from `to_json`'s form, of the table in `folder`."""
        return RowSetToken(
            folder=folder,
            table_id=value["table_id"],
            tablet=TabletEntry.from_json(value["tablet"]),
            rows=tuple(
                ChosenRows(rowset_id, only_changed, bytes.fromhex(without))
                for rowset_id, only_changed, without in value["rows"]
            ),
            columns=tuple(value["columns"]),
            where=(),
            column_ids=tuple(
                PlannedColumn(name, column_id, parse_type(column_type))
                for name, column_id, column_type in value["column_ids"]
            ),
            timestamp=value["timestamp"],
            size_bytes=value["size_bytes"],
            row_count_estimate=value["row_count_estimate"],
        )
