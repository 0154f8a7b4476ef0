"""Joins the rows of several rowsets that have a key in common into one row with all its lives.

    input a    insert@10 … delete@20                       UNDO                  from
    input b    insert@30 … update@35 … delete@40           60 set back           c
    input c    insert@50 … update@60                       50 DELETE             c
                                                           40 REINSERT, image    b
    image: that of c, the newest                           35 set back           b
    began: 10, of the oldest                               30 DELETE             b
                                                           20 REINSERT, image    a

A row of an input may itself be several lives, put together before; another input's may lie between
them. So what is merged are lives: in each row's changes a life goes from its REINSERT (or the top)
to the DELETE at its insert (or the end). Two lives of a key are never at one time, so all changes
of one stand before all of another that ended earlier. At equal timestamps (a row deleted and
inserted by one commit) this order is right where one by timestamp alone would not be.

A row without history is gathered and nothing more. Where only one input has keys nothing is.

Invariants: (1) of a key at most one row is live; (2) ends of one key's rows differ, since no row
began and ended at one moment.

Threads: pure functions over immutable values.

Source: Kudu compaction.cc, MergeCompactionInput and MergeDuplicatedRowHistory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, DeltaColumn, DeltaRows
from kudulite.delta.delta_rows import concat_rows, sort_rows, take_rows
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.row_lives import NEVER, RowLives, life_ends
from kudulite.rowset.rowset_writer import RowHistory


@dataclass(frozen=True)
class MergedRows:
    """m rows with strictly ascending keys, as RowLives has them.

    `places` has for each part that was merged int64[n]: which of the m its rows have become, -1 for
    a dead row that is a former life of another now.
    """

    keys: KeyArray
    columns: dict[int, pa.Array]
    began: np.ndarray
    ended: np.ndarray
    changes: DeltaRows
    places: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.keys)

    def table(self, schema: Schema) -> pa.Table:
        """Return the newest images as a table of `schema`."""
        columns = [self.columns[column.id] for column in schema.columns]
        return pa.Table.from_arrays(columns, schema=schema.arrow_schema())

    def history(self, mark: int, oldest: int) -> RowHistory:
        """Return the deltas of the rows; `oldest` is a timestamp up to all their first inserts."""
        # Rows inserted at or before the mark get the oldest timestamp: no legal read can tell the
        # difference.
        began = np.where(self.began <= mark, np.uint64(oldest), self.began)
        dead = np.flatnonzero(self.ended != NEVER)
        ops = np.full(len(dead), OP_DELETE, np.uint8)
        return RowHistory(began, self.changes, DeltaRows(dead, ops, {}, self.ended[dead]))


def merge_lives(parts: Sequence[RowLives], schema: Schema) -> MergedRows:
    """Return the rows of parts (at least one) with columns of `schema`, one row per key."""
    if len(parts) == 1:
        rows = parts[0]
        places = [np.arange(len(rows))]
        return MergedRows(rows.keys, rows.columns, rows.began, rows.ended, rows.changes, places)
    order = _Order.of(parts)
    heads, ghosts = pa.array(order.heads), pa.array(order.ghosts)
    newest, former = {}, {}
    for column in schema.columns:
        images = pa.concat_arrays([part.columns[column.id] for part in parts])
        newest[column.id] = images.take(heads)
        if column not in schema.key_columns:
            former[column.id] = images.take(ghosts)
    return MergedRows(
        keys=order.keys.take(order.heads),
        columns=newest,
        began=order.began_of_keys,
        ended=order.ended[order.heads],
        changes=_merged_changes(parts, order, former),
        places=order.places(),
    )


@dataclass(frozen=True)
class _Order:
    """N rows of parts, one after the other, and how they go together to m keys.

    `sorted` are their positions by key, newest first; `starts` (int64[m]) is where in it a key
    begins; `key_of` (int64[N]) which key a row has.
    """

    keys: KeyArray
    began: np.ndarray
    ended: np.ndarray
    sorted: np.ndarray
    starts: np.ndarray
    key_of: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def of(parts: Sequence[RowLives]) -> _Order:
        keys = KeyArray.concat([part.keys for part in parts])
        ended = np.concatenate([part.ended for part in parts])
        order = keys.sort_order()
        repeats = keys.take(order).equals_previous()
        key_of = np.empty(len(order), np.int64)
        key_of[order] = np.cumsum(~repeats) - 1
        if repeats.any():
            _put_newest_first(order, repeats, ended)
        return _Order(
            keys=keys,
            began=np.concatenate([part.began for part in parts]),
            ended=ended,
            sorted=order,
            starts=np.flatnonzero(~repeats),
            key_of=key_of,
            offsets=np.cumsum([0, *(len(part) for part in parts)]),
        )

    @cached_property
    def heads(self) -> np.ndarray:
        """int64[m]: the newest row of each key."""
        return self.sorted[self.starts]

    @cached_property
    def ghosts(self) -> np.ndarray:
        """int64[N - m]: the other rows, by key, newest first."""
        is_ghost = np.ones(len(self.sorted), dtype=bool)
        is_ghost[self.starts] = False
        return self.sorted[is_ghost]

    @cached_property
    def began_of_keys(self) -> np.ndarray:
        """uint64[m]: the first insert of each key."""
        return np.minimum.reduceat(self.began[self.sorted], self.starts)

    def later_begins(self) -> np.ndarray:
        """int64[N - m]: the rows whose begin is not the first of their key."""
        return np.flatnonzero(self.began != self.began_of_keys[self.key_of])

    def places(self) -> list[np.ndarray]:
        """The key that each row stands for, -1 for ghosts, by part."""
        place = self.key_of.copy()
        place[self.ghosts] = -1
        return [place[low:high] for low, high in zip(self.offsets, self.offsets[1:], strict=False)]


def _put_newest_first(order: np.ndarray, repeats: np.ndarray, ended: np.ndarray) -> None:
    """Sort the rows of each key that has several by their end, newest first, in place."""
    is_one_of_several = repeats.copy()
    is_one_of_several[:-1] |= repeats[1:]
    at = np.flatnonzero(is_one_of_several)
    key = np.cumsum(~repeats)[at]
    rows = order[at]
    order[at] = rows[np.lexsort((~ended[rows], key))]


def _merged_changes(
    parts: Sequence[RowLives], order: _Order, former: dict[int, pa.Array]
) -> DeltaRows:
    """Return the changes of all parts by key and life; `former` are the ghosts' images."""
    changes, ends = [], []
    for part, offset in zip(parts, order.offsets.tolist(), strict=False):
        keys = order.key_of[part.changes.rowids + offset]
        changes.append(replace(part.changes, rowids=keys))
        ends.append(life_ends(part))
    ghosts = order.ghosts
    if not len(ghosts):
        return sort_rows(concat_rows(changes))
    begins = order.later_begins()
    oldest_ends = np.concatenate(
        [_oldest_life_ends(part, e) for part, e in zip(parts, ends, strict=True)]
    )
    revived = {column_id: DeltaColumn(values) for column_id, values in former.items()}
    all_changes = concat_rows(
        [
            _moments(order.key_of[ghosts], OP_REINSERT, order.ended[ghosts], revived),
            *changes,
            _moments(order.key_of[begins], OP_DELETE, order.began[begins], {}),
        ]
    )
    life = np.concatenate([order.ended[ghosts], *ends, oldest_ends[begins]])
    return take_rows(all_changes, np.lexsort((~life, all_changes.rowids)))


def _moments(
    rowids: np.ndarray, op: int, timestamps: np.ndarray, columns: dict[int, DeltaColumn]
) -> DeltaRows:
    return DeltaRows(rowids, np.full(len(rowids), op, np.uint8), columns, timestamps)


def _oldest_life_ends(part: RowLives, ends: np.ndarray) -> np.ndarray:
    """Return uint64[n]: when the oldest life ended that is in each row of a part."""
    result = part.ended.copy()
    result[part.changes.rowids] = ends  # of a repeated index the last one stays: the oldest
    return result
