"""The versions of one key: its rows in all rowsets, dead or alive, put together by time.

Source: Kudu has no counterpart; the rules are those of the diff scan, moment by moment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Schema
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.rowset.row_life import RowLife, find_row
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.diff_scan import CHANGE_TYPES, DELETE, INSERT, UPDATE
from kudulite.tablet.tablet import Tablet


@dataclass(frozen=True)
class KeyVersion:
    """One version of a row, from `timestamp` on; None: from before what was asked for.

    `cells` are arrays of one value for each column; of a delete, those of the row before.
    """

    timestamp: int | None
    change_type: str | None
    cells: list[pa.Array]

    @property
    def is_delete(self) -> bool:
        """Whether the row is not there any more."""
        return self.change_type == CHANGE_TYPES[DELETE]


def key_history(
    tablets: Sequence[Tablet], key: bytes, schema: Schema, start: int
) -> list[KeyVersion]:
    """Return the KeyVersions of an encoded key, the one at `start` first if it was there then."""
    spec = ScanSpec(
        schema, (), bind_predicates((), schema), TIMESTAMP_MAX, key, key + b"\0", with_keys=True
    )
    lives = (find_row(rowset, spec) for tablet in tablets for rowset in tablet.rowsets)
    rows = [row for row in lives if row is not None]
    column_ids = {column.id for column in schema.columns}
    moments = _moments(rows, start, column_ids)
    holders = [next((row for row in rows if row.is_there(at)), None) for at in moments]
    shown: list[tuple[int | None, int | None, RowLife, int]] = []
    for number, (at, holder) in enumerate(zip(moments, holders, strict=True)):
        if number == 0:
            if holder is not None:
                shown.append((None, None, holder, at))
            continue
        before = holders[number - 1]
        if holder is not None:
            shown.append((at, INSERT if before is None else UPDATE, holder, at))
        elif before is not None:
            shown.append((at, DELETE, before, moments[number - 1]))
    images = {
        row: row.images(schema.columns, sorted({at for _, _, other, at in shown if other is row}))
        for row in dict.fromkeys(row for _, _, row, _ in shown)
    }
    return [
        KeyVersion(stamp, None if kind is None else CHANGE_TYPES[kind], images[row][at])
        for stamp, kind, row, at in shown
    ]


def _moments(rows: Sequence[RowLife], start: int, column_ids: Collection[int]) -> list[int]:
    """Return `start` and when any of the rows changed after it, ascending."""
    changed: set[int] = set()
    for row in rows:
        changed |= row.moments(start, column_ids)
    return [start, *sorted(changed)]
