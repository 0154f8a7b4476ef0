"""ScanSettings: the setters of a scanner or a scan token builder, with kudu-python's names.

Every setter returns the object itself. Columns and values are checked when they are set, against
the schema that the table had when the object was made.

Differences from kudu-python: a snapshot is inclusive, and may also be ISO text or a HybridTime. A
scan with a snapshot needs no read mode. The latest state always includes one's own writes. A bound
needs the leading key columns only. Settings about servers are accepted and have no effect: replica
selection, cache blocks, timeouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, cast

from kudulite.catalog.read_request import ReadRequest
from kudulite.catalog.scan_plan import tightest
from kudulite.catalog.table_store import TableStore
from kudulite.client.kudu_names import (
    READ_AT_SNAPSHOT,
    READ_MODES,
    REPLICA_SELECTIONS,
    checked_choice,
)
from kudulite.client.row_reader import BATCH_BYTES_DEFAULT
from kudulite.errors import OptionError, SchemaError, TimestampError, UsageError
from kudulite.model.aliases import Moment
from kudulite.model.partial_row import PartialRow
from kudulite.model.predicate import Predicate, bind_predicates
from kudulite.model.schema import Column, Schema

# A row whose first key columns are set, a dict of them, or their values.
Bound = PartialRow | Mapping[str, Any] | Sequence[Any]


class ScanSettings:
    """The settings of a scan of one table."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._schema: Schema = store.newest().schema
        self._request = ReadRequest(tuple(self._schema.names))
        self._read_mode: str | None = None
        self._batch_bytes = BATCH_BYTES_DEFAULT

    def __repr__(self) -> str:
        where = " and ".join(map(str, self._request.where))
        return (
            f"<kudulite {type(self).__name__} of table {self._store.name!r}:"
            f" {', '.join(self._request.columns or ())}{' where ' if where else ''}{where}>"
        )

    def _check_may_change(self) -> None:
        """Raise UsageError if the scan has begun; only a scanner can have."""

    def _projected(self) -> Sequence[Column]:
        return [self._schema.column(name) for name in self._request.columns or ()]

    def _with(self, **changed: Any) -> Self:
        self._request = replace(self._request, **changed)
        return self

    def set_projected_column_names(self, names: str | Sequence[str]) -> Self:
        """Set the columns to read; an empty list gives rows without cells."""
        self._check_may_change()
        given = [names] if isinstance(names, str) else list(names)
        for name in given:
            self._schema.column(name)
        return self._with(columns=tuple(given))

    def set_projected_column_indexes(self, indexes: Sequence[int]) -> Self:
        """Set the columns to read by their index in the table."""
        return self.set_projected_column_names([self._schema.at(index).name for index in indexes])

    def add_predicate(self, predicate: Predicate) -> Self:
        """Read only rows that meet the predicate, as in `table["column"] >= value`.

        Several predicates must all hold.
        """
        self._check_may_change()
        try:
            bind_predicates([predicate], self._schema)
        except SchemaError as error:
            raise type(error)(f"table {self._store.name!r}: {error}") from error
        return self._with(where=(*self._request.where, predicate))

    def add_predicates(self, predicates: Iterable[Predicate]) -> Self:
        """Read only rows that meet all of the predicates."""
        for predicate in predicates:
            self.add_predicate(predicate)
        return self

    def new_bound(self) -> PartialRow:
        """Return an empty row; set its key columns to use it as a bound."""
        return self._schema.new_row()

    def add_lower_bound(self, bound: Bound) -> Self:
        """Read only keys at or above `bound`, which has all key columns or the first of them."""
        self._check_may_change()
        lower, upper = self._request.bounds
        return self._with(bounds=(tightest(max, lower, self._encoded(bound)), upper))

    def add_exclusive_upper_bound(self, bound: Bound) -> Self:
        """Read only keys below `bound`."""
        self._check_may_change()
        lower, upper = self._request.bounds
        return self._with(bounds=(lower, tightest(min, upper, self._encoded(bound))))

    def add_upper_bound(self, bound: Bound) -> Self:
        """The same as `add_exclusive_upper_bound`; the name of scan token builders for it."""
        return self.add_exclusive_upper_bound(bound)

    def set_read_mode(self, read_mode: str) -> Self:
        """Set the read mode: READ_LATEST, READ_AT_SNAPSHOT or READ_YOUR_WRITES."""
        self._check_may_change()
        self._read_mode = checked_choice("read mode", read_mode, READ_MODES)
        return self

    def set_snapshot(self, timestamp: Moment, format: str | None = None) -> Self:
        """Read as of a moment, inclusive: datetime, ISO text, HybridTime, or text in a `format`.

        A moment without a time zone is UTC. `format` is as in `datetime.strptime`.
        """
        self._check_may_change()
        if format is not None:
            try:
                timestamp = datetime.strptime(cast(str, timestamp), format)
            except (TypeError, ValueError) as error:
                raise TimestampError(f"{timestamp!r} is not a moment: {error}") from error
        return self._with(at=timestamp)

    def set_fault_tolerant(self) -> Self:
        """Return the rows in key order."""
        self._check_may_change()
        return self._with(ordered=True)

    def set_batch_size_bytes(self, batch_size: int) -> Self:
        """Set the approximate size of a batch; it has at least one row."""
        self._check_may_change()
        if batch_size < 0:
            raise OptionError(f"batch size of {batch_size} bytes is below 0")
        self._batch_bytes = max(1, batch_size)
        return self

    def set_selection(self, replica_selection: str) -> Self:
        """Check the name only: there are no replicas."""
        checked_choice("replica selection", replica_selection, REPLICA_SELECTIONS)
        return self

    def set_cache_blocks(self, cache_blocks: bool) -> Self:
        """Do nothing: scans do not use the block cache."""
        return self

    def set_timeout_millis(self, millis: int) -> Self:
        """Do nothing: a scan waits only for the disk."""
        return self

    def _checked(self) -> ReadRequest:
        """Return what was set. Raises UsageError for a snapshot in a mode that has none."""
        if self._request.at is not None and self._read_mode not in (None, READ_AT_SNAPSHOT):
            raise UsageError(
                f"table {self._store.name!r}: a scan in read mode {self._read_mode!r} was given a"
                f" snapshot; set_read_mode({READ_AT_SNAPSHOT!r}), or leave the snapshot out"
            )
        return self._request

    def _encoded(self, bound: Bound) -> bytes | None:
        """Return a bound as an encoded key prefix; None if it has no columns."""
        row = bound if isinstance(bound, PartialRow) else self._schema.new_row(bound)
        names = self._schema.key_names
        if set(row) != set(names[: len(row)]):
            raise SchemaError(
                f"table {self._store.name!r}: a bound has the columns {', '.join(row)}; expected"
                f" the primary key ({', '.join(names)}) or the first columns of it"
            )
        values = [row[name] for name in names[: len(row)]]
        return self._schema.key_encoder.prefix(values) if values else None
