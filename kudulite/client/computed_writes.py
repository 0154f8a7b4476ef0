"""ComputedWrites: writes whose rows are computed from rows of the table, in one version each.

    update, delete     of the rows that match a condition: a scan, and a write of what it finds
    restore            the inverse of the changes since a moment

The rows are those of one moment. Where other writers change some of them before they are written:

    few rows           they are computed again in the turn of the write (writes/batch_commit.py)
    many rows          the write is made again, `settled` on a version of its own: the commit
                       computes the rows of changed keys again (writes/commit.py)

So only an alteration, or history that was collected, is in the way of such a write. A function of
the caller (`Table.transform`) is not called in a turn; its rows are read, and it is called, again.

**Threads**: any; the object is immutable.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kudulite.client.batch_writer import BatchWriter
from kudulite.client.bulk_write import BulkWrite, WriteResult
from kudulite.client.computed_rows import (
    MatchingRows,
    RestoredRows,
    read_names,
    undone,
    with_cells,
)
from kudulite.client.row_operations import RowLayout
from kudulite.client.write_plan import WritePlan, check_options
from kudulite.errors import ColumnNotFoundError, ConflictError, OptionError, SchemaError
from kudulite.model.aliases import Moment, Where, WriteOptions
from kudulite.model.cell import Cell, ConstantCell, computed_cell
from kudulite.model.expression import Arithmetic
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Schema
from kudulite.reads.scan import Changes, RowScan
from kudulite.table.read_request import ReadRequest
from kudulite.table.snapshot import check_readable, moment_of
from kudulite.table.table_store import TableStore
from kudulite.table.tags import moment_or_version
from kudulite.table.write_state import WriteState
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS, CHANGE_TYPE

CONDITION_OPTIONS = ("application_id", "application_version", "message")
# How often a write by condition reads its rows, while other writers change them.
ATTEMPTS_MAX = 10
_PAUSE_SECONDS = 0.005
_ALTERED = (
    "the table was altered, or history that it needs was collected, each time; try again later"
)


@dataclass(frozen=True)
class ComputedWrites:
    """The writes of one table whose rows are computed from its rows."""

    store: TableStore

    def where(
        self, operation: str, where: Where, cells: Mapping[str, Any], options: WriteOptions
    ) -> WriteResult:
        """Update (set `cells`) or delete the rows that match a condition, in one version."""
        check_options(self.store.name, options)
        for name in options:
            if name not in CONDITION_OPTIONS:
                raise OptionError(
                    f"table {self.store.name!r}: option {name!r} is for writes of rows; with"
                    f" where=… there are {', '.join(CONDITION_OPTIONS)}"
                )

        labels: dict[str, Any] = {**options}

        def attempt(is_settled: bool) -> WriteResult:
            schema = self.store.newest().schema
            keys, computed = schema.key_names, _cells(self.store.name, schema, cells)
            names, read = [*keys, *computed], read_names(keys, computed)
            if is_settled:
                write = self._settled(operation=operation, columns=names, **labels)
                scan = RowScan(self.store, ReadRequest.of(read, where, at=write.read_at))
                again = MatchingRows(self.store, scan.predicates, computed)
                rows = with_cells(scan.to_batches(), keys, computed)
                return self._writer.run_bulk(write.rereading(again), rows)
            scan = RowScan(self.store, ReadRequest.of(read, where))
            batches = scan.to_batches()
            first = next(batches, None)
            if first is None and options.get("application_id") is None:
                return self._unchanged(scan.timestamp)
            found = itertools.chain(() if first is None else (first,), batches)
            return self._writer.run(
                with_cells(found, keys, computed),
                reread=MatchingRows(self.store, scan.predicates, computed),
                operation=operation,
                columns=names,
                read_at=scan.timestamp,
                **labels,
            )

        return until_unchanged(self.store, operation, attempt)

    def restore(
        self, moment: Moment | None, version: int | None, message: str | None
    ) -> WriteResult:
        """Make the rows of `moment` or of `version` the rows of now; see `Table.restore`."""
        start, manifest = moment_or_version(self.store, moment, version), self.store.newest()
        # Changes may begin before there was a table; its rows of then would be none.
        check_readable(self.store, manifest, moment_of(self.store, manifest, start), start)

        def as_restore(state: WriteState) -> WriteState:  # each row is that of another key
            return state.labelled("restore").restoring().merging()

        def attempt(is_settled: bool) -> WriteResult:
            options: dict[str, Any] = {"operation_column": CHANGE_TYPE, "message": message}
            write = self._settled(**options) if is_settled else None
            at = None if write is None else write.read_at
            changes = Changes(self.store, ReadRequest.of(start=start, at=at, images="both"))
            names = [name for name in changes.schema.names if name not in CHANGE_COLUMNS]
            again = RestoredRows(self.store, changes.start, names)
            batches = (undone(batch, names) for batch in changes.to_batches())
            found = (batch for batch in batches if batch.num_rows)
            if write is not None:
                write = write.changed(as_restore).rereading(again)
                return self._writer.run_bulk(write, found)
            first = next(found, None)
            if first is None:
                return self._unchanged(changes.end)
            return self._writer.run(
                itertools.chain((first,), found),
                change=as_restore,
                reread=again,
                columns=names,
                read_at=changes.end,
                **options,
            )

        return until_unchanged(self.store, "restore", attempt)

    @property
    def _writer(self) -> BatchWriter:
        return BatchWriter(self.store)

    def _settled(self, **options: Any) -> BulkWrite:
        """Begin a bulk write on a version that has all rows of one moment."""
        return self._writer.begin(WritePlan.of(self.store, **options)).settled()

    def _unchanged(self, timestamp: Timestamp) -> WriteResult:
        """Return the result of a write that has nothing to change at a moment."""
        return WriteResult(timestamp=timestamp, version=self.store.newest().version)


def until_unchanged(
    store: TableStore,
    what: str,
    attempt: Callable[[bool], WriteResult],
    why: str = _ALTERED,
    attempts_max: int = ATTEMPTS_MAX,
) -> WriteResult:
    """Return the first result of `attempt` that no other writer was in the way of.

    `attempt` is called with whether it is to be settled: on a version of one moment, with rows
    that change meanwhile read again, which all attempts but the first are. That version costs a
    flush under all locks. Only an alteration, or history that was collected, is in its way.
    `why` says what was in the way each time.
    """
    for number in range(1, attempts_max):
        try:
            return attempt(number > 1)
        except ConflictError:
            time.sleep(random.uniform(0, number * _PAUSE_SECONDS))
    try:
        return attempt(True)
    except ConflictError as error:
        raise ConflictError(
            f"table {store.name!r}: {what} was tried {attempts_max} times, and {why};"
            f" the last time: {error}"
        ) from error


def _cells(table: str, schema: Schema, cells: Mapping[str, Any]) -> dict[str, Cell]:
    """Return checked cells by column: values, and expressions, which may be text.

    Raises OptionError for a key column or an immutable one and for an expression that is not
    possible, ColumnNotFoundError, and SchemaError for a value.
    """
    if not isinstance(cells, Mapping):
        raise OptionError(
            f"table {table!r}: set is a dict of values by column, not {type(cells).__name__}"
        )
    layout = RowLayout(table, schema)
    values = {
        layout.columns.get(name, (name,))[0]: _cell(layout, name, value)
        for name, value in cells.items()
    }
    keys = [name for name in values if name in schema.key_names]
    if keys:
        raise OptionError(
            f"table {table!r}: column {keys[0]!r} is part of the primary key, which never changes;"
            " insert rows with the new keys and delete the old ones"
        )
    fixed = [name for name in values if not schema.column(name).mutable]
    if fixed:
        raise OptionError(
            f"table {table!r}: column {fixed[0]!r} is immutable: its cells keep the values of their"
            " inserts; make it mutable first, with alter_column(…).mutable(True)"
        )
    return values


def _cell(layout: RowLayout, name: str | int, value: Any) -> Cell:
    """Return a value to set, or what computes it: text is an expression where it is no value."""
    if name not in layout.columns:
        raise layout.no_column(name)
    column = layout.schema.column(layout.columns[name][0])
    if isinstance(value, Arithmetic):
        return computed_cell(value.sql, column, layout.schema)
    try:
        [found] = layout.convert({name: value}).values()
    except SchemaError as error:
        if not isinstance(value, str) or column.type.is_array:
            raise
        try:
            return computed_cell(value, column, layout.schema)
        except ColumnNotFoundError as other:
            if value.isidentifier():
                raise SchemaError(f"{error}; nor is it an expression: {other}") from None
            raise
    return ConstantCell(pa.scalar(found, column.type.arrow))
