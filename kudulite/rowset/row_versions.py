"""Rows with all their history: the input of merging compactions and flushes.

A DiskRowSet is read block by block, a MemRowSet as a whole: its rows as first inserted are the base
data, all later changes are REDO.

    a row     inserted@10   updated@20   updated@30   deleted@40
    lives     began 10 ── changes: 30 set back, 20 set back ── ended 40,   image: as of its newest

REDO is taken into the image: what it changed is in `changes`, which take the image back as UNDO
does. Only a DELETE stays what it is, the end of the row. A row's first insert is not among its
changes but its begin. Where an earlier compaction has put several lives of a key into one row, the
older ones are among the changes, each from its REINSERT to the DELETE at its insert.

Of a DiskRowSet these are left out: changes at or before the ancient history mark, rows that are
dead since then, rows that no snapshot ever saw (inserted and deleted at one timestamp), and columns
that were dropped from the schema. Columns that were added later show their read default. Of a
MemRowSet nothing is left out.

Invariants: (1) keys ascend; (2) `changes` are by row, newest first, each row's last insert down to
its first but for the begin; (3) a REINSERT sets all columns but the key; (4) all changes and ends
are after the mark; a begin is exact if it is after the mark, else just some moment up to it.

Threads: one reads; a block, once made, is immutable.

Source: Kudu compaction.cc, MemRowSetCompactionInput, DiskRowSetCompactionInput,
ApplyMutationsAndGenerateUndos, RemoveAncientUndos.

Joins the rows of several rowsets that have a key in common into one row with all its lives.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_REINSERT,
    OP_UPDATE,
    DeltaColumn,
    DeltaFileMeta,
    DeltaRows,
    concat_rows,
    rows_between,
    sort_rows,
    take_rows,
)
from kudulite.delta.delta_history import (
    apply_updates,
    invert_changes,
    merge_redo,
    merge_undo,
    without_ancient,
)
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.model.types import widened
from kudulite.rowset.disk_rowset import DiskRowSet, read_deltas
from kudulite.rowset.memrowset import MemRowSetSnapshot
from kudulite.rowset.rowset import Block, constant
from kudulite.rowset.rowset_writer import RowImages

# The end of a row that is live: after every timestamp.
NEVER = np.uint64(2**64 - 1)
_NO_CHANGES = DeltaRows(np.empty(0, np.int64), np.empty(0, np.uint8), {}, np.empty(0, np.uint64))


@dataclass(frozen=True)
class RowVersions:
    """n rows of a rowset in key order: `rowids` int64[n] there, and the newest cells by column id.

    `began` and `ended` are uint64[n]. The row ids of `changes` are positions in this block.
    """

    keys: KeyArray
    rowids: np.ndarray
    columns: dict[int, pa.Array]
    began: np.ndarray
    ended: np.ndarray
    changes: DeltaRows

    def __len__(self) -> int:
        return len(self.rowids)

    @property
    def row_bytes(self) -> int:
        """Bytes of the newest cells of a row, on average; at least 1."""
        size: int = sum(values.nbytes for values in self.columns.values())
        return 1 + size // max(1, len(self))

    def cut(self, start: int, stop: int) -> RowVersions:
        """Return rows start..stop without a copy."""
        if start == 0 and stop >= len(self):
            return self
        return RowVersions(
            self.keys.slice(start, stop),
            self.rowids[start:stop],
            {c: values.slice(start, stop - start) for c, values in self.columns.items()},
            self.began[start:stop],
            self.ended[start:stop],
            rows_between(self.changes, start, stop),
        )

    def take(self, at: np.ndarray) -> RowVersions:
        """Return the rows at int64[m] ascending positions."""
        place = np.full(len(self), -1)
        place[at] = np.arange(len(at))
        changes = replace(self.changes, rowids=place[self.changes.rowids])
        indices = pa.array(at)
        return RowVersions(
            self.keys.take(at),
            self.rowids[at],
            {c: values.take(indices) for c, values in self.columns.items()},
            self.began[at],
            self.ended[at],
            take_rows(changes, np.flatnonzero(changes.rowids >= 0)),
        )

    def images(self, schema: Schema, mark: int, oldest: int) -> RowImages:
        """Return the rows with columns of `schema`, as rowsets store them.

        The rows inserted at or before the ancient history `mark` get the insert timestamp `oldest`,
        which is at or before all of them: no legal read can tell the difference.
        """
        columns = [self.columns[column.id] for column in schema.columns]
        dead = np.flatnonzero(self.ended != NEVER)
        deletes = _changes_of(dead, OP_DELETE, self.ended[dead], {})
        return RowImages(
            keys=self.keys,
            rows=pa.Table.from_arrays(columns, schema=schema.arrow_schema()),
            insert_timestamps=np.where(self.began <= mark, np.uint64(oldest), self.began),
            undo=self.changes if len(self.changes.rowids) else None,
            redo=deletes if len(dead) else None,
        )


def read_row_versions(
    rowset: DiskRowSet, schema: Schema, mark: int, without: KeyArray | None = None
) -> Iterator[RowVersions]:
    """Yield what is left of the rows of a rowset without memory, in key order.

    The rows with the ascending keys `without` are left out. Blocks are of a row group each and have
    rows; beside the one in hand only the rowset's keys and deltas are in memory.
    """
    assert rowset.dms is None and rowset.meta.delete_timestamp is None
    history = _History.of(rowset, schema, mark)
    index = rowset.key_index  # held: a cache may be too small to keep it from block to block
    for block in rowset.base.row_groups():
        keys = index.slice(block.start, block.stop)
        lives = _read_block(rowset, schema, history, block, keys)
        keep = (lives.ended > mark) & (lives.ended != lives.began)
        if without is not None:
            keep &= without.find(lives.keys) < 0
        if not keep.all():
            lives = lives.take(np.flatnonzero(keep))
        if len(lives):
            yield lives


def life_ends(lives: RowVersions) -> np.ndarray:
    """Return uint64[n] for n changes: the end of the life that each is of."""
    changes = lives.changes
    assert changes.timestamps is not None
    count = len(changes.rowids)
    revivals = np.where(changes.ops == OP_REINSERT, np.arange(count), -1)
    newest = np.maximum.accumulate(revivals)
    is_own = newest >= np.searchsorted(changes.rowids, changes.rowids)
    return np.where(is_own, changes.timestamps[newest], lives.ended[changes.rowids])


@dataclass(frozen=True)
class _Moments:
    """Timestamps of some rows, by ascending row id."""

    rowids: np.ndarray
    timestamps: np.ndarray

    @staticmethod
    def of(rows: DeltaRows, at: np.ndarray) -> _Moments:
        assert rows.timestamps is not None
        return _Moments(rows.rowids[at], rows.timestamps[at])

    def spread(self, start: int, stop: int, others: int | np.uint64) -> np.ndarray:
        """Return uint64[stop - start] for rows start..stop, `others` where a row has none."""
        result = np.full(stop - start, others, np.uint64)
        low, high = np.searchsorted(self.rowids, [start, stop])
        result[self.rowids[low:high] - start] = self.timestamps[low:high]
        return result


@dataclass(frozen=True)
class _History:
    """The deltas of a rowset: its UPDATEs and DELETEs of REDO; UNDO after the mark.

    `begins` are the UNDO DELETEs that are the last change of their rows, `undo` is without them.
    """

    updates: DeltaRows
    ends: _Moments
    undo: DeltaRows
    begins: _Moments
    begin_of_all: int
    mark: int

    @staticmethod
    def of(rowset: DiskRowSet, schema: Schema, mark: int) -> _History:
        """Read the delta files of a rowset; O(changes)."""
        redo = merge_redo(_read_files(rowset, rowset.meta.redo, schema))
        undo = merge_undo(_read_files(rowset, rowset.meta.undo, schema))
        undo = without_ancient(undo, mark)
        is_last = np.append(undo.rowids[1:] != undo.rowids[:-1], True)[: len(undo.rowids)]
        is_begin = is_last & (undo.ops == OP_DELETE)
        return _History(
            updates=take_rows(redo, np.flatnonzero(redo.ops == OP_UPDATE)),
            ends=_Moments.of(redo, np.flatnonzero(redo.ops == OP_DELETE)),
            undo=_completed(take_rows(undo, np.flatnonzero(~is_begin)), schema.value_columns),
            begins=_Moments.of(undo, np.flatnonzero(is_begin)),
            begin_of_all=rowset.meta.insert_timestamp,
            mark=mark,
        )


def _read_files(
    rowset: DiskRowSet, entries: Sequence[DeltaFileMeta], schema: Schema
) -> list[DeltaRows]:
    """Return the changes of each file, after a part without any."""
    found = read_deltas(rowset.folder, entries, rowset.meta.row_count)
    return [_NO_CHANGES, *(_fitted(rows, schema) for rows in found)]


def _fitted(rows: DeltaRows, schema: Schema) -> DeltaRows:
    """Return changes with the columns of a schema; an UPDATE that sets none of them is none."""
    columns = {}
    sets_any = rows.ops != OP_UPDATE
    for column_id, column in rows.columns.items():
        wanted = schema.column_by_id(column_id)
        if wanted is not None:
            values = widened(column.values, wanted.type.arrow)
            columns[column_id] = DeltaColumn(values, column.is_set)
            sets_any |= True if column.is_set is None else column.is_set
    found = replace(rows, columns=columns)
    return found if sets_any.all() else take_rows(found, np.flatnonzero(sets_any))


def _completed(undo: DeltaRows, columns: Sequence[Column]) -> DeltaRows:
    """Return changes whose REINSERTs set also the columns that are younger than their files.

    Whatever was dead before a column came shows, at its time, what all old rows show.
    """
    revives = undo.ops == OP_REINSERT
    if not revives.any():
        return undo
    count = len(revives)
    completed = dict(undo.columns)
    for column in columns:
        found = undo.columns.get(column.id)
        is_set = np.zeros(count, dtype=bool)
        values = constant(column, 1)
        if found is not None:
            is_set = np.ones(count, dtype=bool) if found.is_set is None else found.is_set
            values = pa.concat_arrays([found.values, values])
        if is_set[revives].all():
            continue
        at = np.where(is_set, np.arange(count), len(values) - 1)
        is_set = is_set | revives
        completed[column.id] = DeltaColumn(values.take(pa.array(at, mask=~is_set)), is_set)
    return replace(undo, columns=completed)


def _read_block(
    rowset: DiskRowSet, schema: Schema, history: _History, block: Block, keys: KeyArray
) -> RowVersions:
    start, stop = block.start, block.stop
    values = rowset.base.read(block, schema.columns)
    base = {column.id: cells for column, cells in zip(schema.columns, values, strict=True)}
    redo = rows_between(history.updates, start, stop)
    undo = without_ancient(_undo_of(redo, base), history.mark)
    return RowVersions(
        keys=keys,
        rowids=np.arange(start, stop),
        columns={c: apply_updates(redo, c, 0, cells) for c, cells in base.items()},
        began=history.begins.spread(start, stop, history.begin_of_all),
        ended=history.ends.spread(start, stop, NEVER),
        changes=merge_undo([undo, rows_between(history.undo, start, stop)]),
    )


def memrowset_lives(snapshot: MemRowSetSnapshot) -> RowVersions:
    """Return all rows of a MemRowSet with all their history, dead rows too; O(changes) memory.

    A row as it was first inserted is its base data, all later changes are its REDO.
    """
    schema, order, slots = snapshot.schema, snapshot.sorted_keys, snapshot.changes.rowids
    row_of_slot = np.empty(len(order), np.int64)
    row_of_slot[order.rowids] = np.arange(len(order))
    inserts, redo = _inserts_and_redo(snapshot, row_of_slot[slots])
    base = {c.id: apply_updates(inserts, c.id, 0, constant(c, len(order))) for c in schema.columns}
    is_last = np.append(redo.rowids[1:] != redo.rowids[:-1], True)[: len(redo.rowids)]
    is_end = is_last & (redo.ops == OP_DELETE)
    ends = _Moments.of(redo, np.flatnonzero(is_end))
    return RowVersions(
        keys=order.keys,
        rowids=order.rowids,
        columns={c: apply_updates(redo, c, 0, cells) for c, cells in base.items()},
        began=snapshot.insert_timestamps[order.rowids],
        ended=ends.spread(0, len(order), NEVER),
        changes=_undo_of(take_rows(redo, np.flatnonzero(~is_end)), base),
    )


def _inserts_and_redo(
    snapshot: MemRowSetSnapshot, rowids: np.ndarray
) -> tuple[DeltaRows, DeltaRows]:
    """Return the first change of each row, and all others by (row id, time).

    `rowids` int64[n] are the row ids of the snapshot's changes in key order.
    """
    changes = snapshot.changes
    # Slots are numbered in the order of their first changes, so these need not be sorted.
    highest = np.maximum.accumulate(changes.rowids)
    is_first = np.append(True, changes.rowids[1:] > highest[:-1])[: len(rowids)]
    first, later = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    columns = {c.id: changes.column(c.id) for c in snapshot.schema.columns}
    known = {c: column for c, column in columns.items() if column is not None}
    rows = DeltaRows(rowids, changes.ops, known, changes.timestamps())
    inserts = take_rows(rows, first[snapshot.sorted_keys.rowids])
    values = {c.id: known[c.id] for c in snapshot.schema.value_columns if c.id in known}
    later = later[np.argsort(rowids[later], kind="stable")]
    return inserts, take_rows(replace(rows, columns=values), later)


def _undo_of(redo: DeltaRows, base: Mapping[int, pa.Array]) -> DeltaRows:
    return invert_changes(redo, lambda column_id, at: base[column_id].take(pa.array(at)))


def flush_image(snapshot: MemRowSetSnapshot) -> RowImages:
    """Return the rows of a MemRowSet as a flush writes them: O(changes) memory, sorted once."""
    return memrowset_lives(snapshot).images(snapshot.schema, mark=0, oldest=0)


def merge_row_versions(
    parts: Sequence[RowVersions], schema: Schema
) -> tuple[RowVersions, list[np.ndarray]]:
    """Return the rows of parts (at least one) with columns of `schema`, one row per key.

    The list has, for each part, int64[n]: the position of each of its rows in the result, or -1 for
    a ghost row whose versions are part of another row there.
    """
    if len(parts) == 1:
        return parts[0], [np.arange(len(parts[0]))]
    order = _Order.of(parts)
    heads, ghosts = pa.array(order.heads), pa.array(order.ghosts)
    newest, former = {}, {}
    for column in schema.columns:
        images = pa.concat_arrays([part.columns[column.id] for part in parts])
        newest[column.id] = images.take(heads)
        if column not in schema.key_columns:
            former[column.id] = images.take(ghosts)
    merged = RowVersions(
        keys=order.keys.take(order.heads),
        rowids=np.arange(len(order.heads)),
        columns=newest,
        began=order.began_of_keys,
        ended=order.ended[order.heads],
        changes=_merged_changes(parts, order, former),
    )
    return merged, order.places()


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
    def of(parts: Sequence[RowVersions]) -> _Order:
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
        heads: np.ndarray = self.sorted[self.starts]
        return heads

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
    parts: Sequence[RowVersions], order: _Order, former: dict[int, pa.Array]
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
            _changes_of(order.key_of[ghosts], OP_REINSERT, order.ended[ghosts], revived),
            *changes,
            _changes_of(order.key_of[begins], OP_DELETE, order.began[begins], {}),
        ]
    )
    life = np.concatenate([order.ended[ghosts], *ends, oldest_ends[begins]])
    return take_rows(all_changes, np.lexsort((~life, all_changes.rowids)))


def _changes_of(
    rowids: np.ndarray, op: int, timestamps: np.ndarray, columns: dict[int, DeltaColumn]
) -> DeltaRows:
    return DeltaRows(rowids, np.full(len(rowids), op, np.uint8), columns, timestamps)


def _oldest_life_ends(part: RowVersions, ends: np.ndarray) -> np.ndarray:
    """Return uint64[n]: when the oldest life ended that is in each row of a part."""
    result = part.ended.copy()
    result[part.changes.rowids] = ends  # of a repeated index the last one stays: the oldest
    return result
