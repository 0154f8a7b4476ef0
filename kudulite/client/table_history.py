"""TableHistory: what changed in a table, and what one row was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kudulite.catalog.read_request import ReadRequest
from kudulite.catalog.snapshot import choose_snapshot, newest_change
from kudulite.catalog.table_store import TableStore
from kudulite.client.changes import Changes
from kudulite.client.row_history import row_history
from kudulite.client.scan_token import ChangeToken, make_change_tokens
from kudulite.model.predicate import Predicate


class TableHistory:
    """The part of `Table` that looks at changes."""

    _store: TableStore

    def changes(
        self,
        start: Any,
        end: Any = None,
        columns: Sequence[str] | None = None,
        where: Sequence[Predicate] | Predicate = (),
        images: str = "after",
    ) -> Changes:
        """Return what changed in (start, end], one row per key; `end` None is now.

        The moments are given as a scan's `at`. Each row has `_change_type` (insert, update,
        delete) and `_commit_timestamp`, its newest change in the window; with images="both" also
        `_before`, the row at `start`. What came and went within the window is not told. A row meets
        `where` when it does at either end. Raises TimestampError, ColumnNotFoundError, SchemaError,
        OptionError.
        """
        request = replace(ReadRequest.of(columns, where), start=start, at=end, images=images)
        return Changes(self._store, request)

    def change_tokens(
        self,
        start: Any,
        end: Any = None,
        columns: Sequence[str] | None = None,
        where: Sequence[Predicate] | Predicate = (),
        images: str = "after",
        split_size_bytes: int | None = None,
    ) -> list[ChangeToken]:
        """Plan `changes` as picklable pieces, all of one window; see `ChangeToken`."""
        request = replace(ReadRequest.of(columns, where), start=start, at=end, images=images)
        return make_change_tokens(self._store, request, split_size_bytes)

    def newest_change(self) -> int:
        """Return when the table changed last (or was made), a HybridTime, settled.

        Every change up to it is there, and none will come. Unlike `current_timestamp` it stays the
        same while nobody writes, and it takes no lock when nothing has changed.
        """
        return choose_snapshot(self._store, newest_change(self._store))

    def history(self, key: Any) -> pa.Table:
        """Return every version of one row that the retention still holds, the oldest first.

        A version has `_change_type` and `_commit_timestamp` as in `changes`; a delete shows the row
        that it took away. Of the oldest version both are null when its moment is forgotten. The
        table is empty when there was no such row.
        """
        return row_history(self._store, key)
