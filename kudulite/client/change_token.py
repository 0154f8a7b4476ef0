"""Change tokens: picklable pieces of a diff scan, all of one settled window.

A token names tablets, a key range and the window, not files: whoever opens it reads the tablets'
newest superblocks. It dies only when the ancient history mark passes the start of its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.catalog.diff_plan import (
    choose_window,
    diff_spec,
    known_entries,
    open_tablets,
    plan_diff_pieces,
)
from kudulite.catalog.environment import default_environment
from kudulite.catalog.history import check_not_ancient
from kudulite.catalog.planned_columns import (
    ColumnIds,
    in_schema,
    planned_columns,
    schema_as_planned,
    with_planned_types,
)
from kudulite.catalog.scan_plan import narrowed
from kudulite.catalog.table_store import TableStore
from kudulite.client.changes import wants_before
from kudulite.client.pickled_token import PickledToken
from kudulite.client.scan_token import SPLIT_BYTES_DEFAULT
from kudulite.errors import ConflictError
from kudulite.model.predicate import Predicate
from kudulite.tablet.diff_scan import diff_scan, diff_schema


@dataclass(frozen=True)
class ChangeToken(PickledToken):
    """One piece of a diff scan. `size_bytes` is of base data on disk that may have to be read.

    Tablets of one token may hold the same keys. `column_ids` are what the names meant when the
    scan was planned.
    """

    folder: str
    table_id: str
    tablet_ids: tuple[str, ...]
    columns: tuple[str, ...]
    where: tuple[Predicate, ...]
    column_ids: ColumnIds
    start: int
    end: int
    with_before: bool
    lower: bytes | None
    upper: bytes | None
    size_bytes: int
    row_count_estimate: int

    def open(self) -> Iterator[pa.RecordBatch]:
        """Yield the piece's changes in key order, with the columns of `Changes.schema`.

        Raises ConflictError when the table was deleted and created again, or a column was dropped,
        TimestampError when the ancient history mark has passed the start of the window.
        """
        store = TableStore(Path(self.folder), default_environment())
        manifest = store.newest()
        entries = known_entries(manifest, self.tablet_ids)
        if manifest.table_id == self.table_id:
            check_not_ancient(store, manifest, self.start)
        if entries is None or manifest.table_id != self.table_id:
            raise ConflictError(
                f"table {store.name!r}: tablet {', '.join(self.tablet_ids)} of a change token is"
                " gone: the table was deleted, or created again; ask for the changes again"
            )
        schema = schema_as_planned(store.name, self.column_ids, manifest.schema)
        spec = diff_spec(
            store.name,
            replace(manifest, schema=schema),
            self.columns,
            self.where,
            window=(self.start, self.end),
            with_before=self.with_before,
            column_ids=frozenset(column.id for column in manifest.schema.columns),
        )
        spec = narrowed(spec, self.lower, self.upper)
        changes = diff_scan(open_tablets(store, entries, spec), spec)
        planned = diff_schema(
            replace(spec, schema=with_planned_types(spec.schema, self.column_ids))
        )
        return (in_schema(batch, planned) for batch in changes)


def make_change_tokens(
    store: TableStore,
    *,
    start: Any,
    end: Any,
    columns: Sequence[str] | None,
    where: Sequence[Predicate],
    images: str,
    split_size_bytes: int | None,
) -> list[ChangeToken]:
    """Plan a diff scan and return its tokens, tablets in order and key ranges ascending in each."""
    with_before = wants_before(store, images)
    window = choose_window(store, start, end)
    manifest = store.newest()
    spec = diff_spec(store.name, manifest, columns, where, window=window, with_before=with_before)
    column_ids = planned_columns(manifest.schema, spec.names, where)
    pieces = plan_diff_pieces(store, manifest, spec, split_size_bytes or SPLIT_BYTES_DEFAULT)
    return [
        ChangeToken(
            folder=str(store.folder),
            table_id=manifest.table_id,
            tablet_ids=tablet_ids,
            columns=spec.names,
            where=tuple(where),
            column_ids=column_ids,
            start=spec.start,
            end=spec.end,
            with_before=with_before,
            lower=piece.lower,
            upper=piece.upper,
            size_bytes=piece.size_bytes,
            row_count_estimate=piece.row_count,
        )
        for tablet_ids, piece in pieces
    ]
