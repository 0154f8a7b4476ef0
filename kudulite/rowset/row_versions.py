"""Rows with all their versions: the input of merging compactions and of flushes.

A DiskRowSet is read block by block. A MemRowSet is read as a whole: its rows as first inserted are
the base data, and all later changes are REDO.

    a row      inserted@10   updated@20   updated@30   deleted@40
    here       inserted 10, changes: 30 set back, 20 set back, deleted 40, image: the newest

REDO updates are applied to the image, and `changes` take the image back like UNDO does. `inserted`
and `deleted` are the row's first insert and last delete. A key that was deleted and inserted again
has several spans, each from an insert to its delete. In one row, `changes` have the older spans,
each from its REINSERT to the DELETE at its insert.

Merging joins the rows of a key from several rowsets into one row with all versions:

    input a    insert@10 … delete@20                       UNDO                  from
    input b    insert@30 … update@35 … delete@40           60 set back           c
    input c    insert@50 … update@60                       50 DELETE             c
                                                           40 REINSERT, image    b
    image: that of c, the newest                           35 set back           b
    inserted: 10, in a                                     30 DELETE             b
                                                           20 REINSERT, image    a

An input's row may have several spans already, and spans of other inputs may lie between them, so
merging orders the changes by span. Two spans of a key never overlap, so all changes of one precede
all changes of a span that deleted earlier. Timestamps alone would not do: a commit may delete and
insert a row at one timestamp. A row without history is only gathered, and a window with one input
is returned as it is.

From a DiskRowSet these are left out: changes at or before the ancient history mark, rows that were
deleted by then, rows that no snapshot ever saw (inserted and deleted at one timestamp), and columns
that were dropped from the schema. Columns that were added later have their read default. From a
MemRowSet nothing is left out.

A flush writes a MemRowSet with each change after a row's first insert as one UNDO of the same
timestamp. A DELETE that is the row's last change stays REDO, and the base data keeps the row's last
image for readers of the past.

**Invariants**: (1) keys ascend; (2) `changes` are by row, newest first, down to the row's first
insert, which is not part of them; (3) a REINSERT sets all columns except the key, and no change
sets a key column; (4) all changes and deletes are after the mark; an insert timestamp is exact if
it is after the mark, else any timestamp up to it; (5) at most one row of a key is live, and the
delete timestamps of a key's rows differ.

**Threads**: any: pure functions; a block is immutable once made.

**Source**: Kudu tablet.cc, DoMergeCompactionOrFlush; compaction.cc, MemRowSetCompactionInput,
DiskRowSetCompactionInput, MergeCompactionInput, MergeDuplicatedRowHistory,
ApplyMutationsAndGenerateUndos, RemoveAncientUndos.
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
    read_deltas,
    without_ancient,
)
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.model.types import widened
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSetSnapshot
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.rowset import Block, constant

# The delete timestamp of a live row: after every timestamp.
NEVER = np.uint64(2**64 - 1)
_NO_CHANGES = DeltaRows(np.empty(0, np.int64), np.empty(0, np.uint8), {}, np.empty(0, np.uint64))


@dataclass(frozen=True)
class RowVersions:
    """n rows in key order: their `rowids` (int64[n]), and their newest cells by column id.

    `inserted` and `deleted` are uint64[n], NEVER for a live row. Row ids are those of the rowset,
    but those of `changes` are positions in this block.
    """

    keys: KeyArray
    rowids: np.ndarray
    columns: dict[int, pa.Array]
    inserted: np.ndarray
    deleted: np.ndarray
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
            self.inserted[start:stop],
            self.deleted[start:stop],
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
            self.inserted[at],
            self.deleted[at],
            take_rows(changes, np.flatnonzero(changes.rowids >= 0)),
        )

    def images(self, schema: Schema, mark: int, oldest: int) -> RowImages:
        """Return the rows with columns of `schema`, as rowsets store them.

        The rows inserted at or before the ancient history `mark` get the insert timestamp `oldest`,
        which is at or before all of them: a read at the mark or later returns the same rows.
        """
        columns = [self.columns[column.id] for column in schema.columns]
        dead = np.flatnonzero(self.deleted != NEVER)
        deletes = _changes_of(dead, OP_DELETE, self.deleted[dead], {})
        return RowImages(
            keys=self.keys,
            rows=pa.Table.from_arrays(columns, schema=schema.arrow_schema()),
            insert_timestamps=np.where(self.inserted <= mark, np.uint64(oldest), self.inserted),
            undo=self.changes if len(self.changes.rowids) else None,
            redo=deletes if len(dead) else None,
        )


def read_row_versions(
    rowset: DiskRowSet,
    schema: Schema,
    mark: int,
    without: KeyArray | None = None,
    *,
    in_parts: bool = False,
) -> Iterator[RowVersions]:
    """Yield the rows of a rowset in key order, without ancient history.

    The rowset has no changes in memory. Rows with the ascending keys `without` are left out. Each
    block is of one row group, or a part of one where asked for, and not empty. Memory holds one
    block, and the rowset's keys and deltas.
    """
    assert rowset.dms is None and rowset.meta.delete_timestamp is None
    history = _History.of(rowset, schema, mark)
    index = rowset.key_index  # one reference for all blocks: the cache may be too small to keep it
    base = rowset.base
    for block in base.parts(schema.columns) if in_parts else base.row_groups():
        keys = index.slice(block.start, block.stop)
        versions = _read_block(rowset, schema, history, block, keys)
        keep = (versions.deleted > mark) & (versions.deleted != versions.inserted)
        if without is not None:
            keep &= without.find(versions.keys) < 0
        if not keep.all():
            versions = versions.take(np.flatnonzero(keep))
        if len(versions):
            yield versions


def span_ends(versions: RowVersions) -> np.ndarray:
    """Return uint64[n] for n changes: the delete timestamp of the span that each belongs to."""
    changes = versions.changes
    assert changes.timestamps is not None
    count = len(changes.rowids)
    revivals = np.where(changes.ops == OP_REINSERT, np.arange(count), -1)
    newest = np.maximum.accumulate(revivals)
    is_own = newest >= np.searchsorted(changes.rowids, changes.rowids)
    return np.where(is_own, changes.timestamps[newest], versions.deleted[changes.rowids])


@dataclass(frozen=True)
class _RowTimestamps:
    """Timestamps of some rows, by ascending row id."""

    rowids: np.ndarray
    timestamps: np.ndarray

    @staticmethod
    def of(rows: DeltaRows, at: np.ndarray) -> _RowTimestamps:
        assert rows.timestamps is not None
        return _RowTimestamps(rows.rowids[at], rows.timestamps[at])

    def spread(self, start: int, stop: int, others: int | np.uint64) -> np.ndarray:
        """Return uint64[stop - start] for rows start..stop, `others` where a row has none."""
        result = np.full(stop - start, others, np.uint64)
        low, high = np.searchsorted(self.rowids, [start, stop])
        result[self.rowids[low:high] - start] = self.timestamps[low:high]
        return result


@dataclass(frozen=True)
class _History:
    """The deltas of a rowset: UPDATEs and DELETEs of its REDO, and its UNDO after the mark.

    `inserts` has the UNDO DELETEs that are the last change of their rows; `undo` is without them.
    """

    updates: DeltaRows
    deletes: _RowTimestamps
    undo: DeltaRows
    inserts: _RowTimestamps
    insert_timestamp: int
    mark: int

    @staticmethod
    def of(rowset: DiskRowSet, schema: Schema, mark: int) -> _History:
        """Read the delta files of a rowset; O(changes)."""
        redo = merge_redo(_read_files(rowset, rowset.meta.redo, schema))
        undo = merge_undo(_read_files(rowset, rowset.meta.undo, schema))
        undo = without_ancient(undo, mark)
        is_last = np.append(undo.rowids[1:] != undo.rowids[:-1], True)[: len(undo.rowids)]
        is_insert = is_last & (undo.ops == OP_DELETE)
        return _History(
            updates=take_rows(redo, np.flatnonzero(redo.ops == OP_UPDATE)),
            deletes=_RowTimestamps.of(redo, np.flatnonzero(redo.ops == OP_DELETE)),
            undo=_completed(take_rows(undo, np.flatnonzero(~is_insert)), schema.value_columns),
            inserts=_RowTimestamps.of(undo, np.flatnonzero(is_insert)),
            insert_timestamp=rowset.meta.insert_timestamp,
            mark=mark,
        )


def _read_files(
    rowset: DiskRowSet, entries: Sequence[DeltaFileMeta], schema: Schema
) -> list[DeltaRows]:
    """Return an empty part, so that there is at least one, then the changes of each file."""
    files = read_deltas(rowset.storage, rowset.folder, entries, rowset.meta.row_count)
    return [_NO_CHANGES, *(_in_schema(rows, schema) for rows in files)]


def _in_schema(rows: DeltaRows, schema: Schema) -> DeltaRows:
    """Return changes with the columns of a schema, without UPDATEs that set none of them."""
    columns = {}
    sets_any = rows.ops != OP_UPDATE
    for column_id, column in rows.columns.items():
        wanted = schema.column_by_id(column_id)
        if wanted is not None:
            values = widened(column.values, wanted.type.arrow)
            columns[column_id] = DeltaColumn(values, column.is_set)
            sets_any |= True if column.is_set is None else column.is_set
    result = replace(rows, columns=columns)
    return result if sets_any.all() else take_rows(result, np.flatnonzero(sets_any))


def _completed(undo: DeltaRows, columns: Sequence[Column]) -> DeltaRows:
    """Return changes whose REINSERTs also set the columns that were added after their files.

    A row deleted before a column was added has the column's read default, like all older rows.
    """
    revives = undo.ops == OP_REINSERT
    if not revives.any():
        return undo
    count = len(revives)
    completed = dict(undo.columns)
    for column in columns:
        present = undo.columns.get(column.id)
        is_set = np.zeros(count, dtype=bool)
        values = constant(column, 1)
        if present is not None:
            is_set = np.ones(count, dtype=bool) if present.is_set is None else present.is_set
            values = pa.concat_arrays([present.values, values])
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
        inserted=history.inserts.spread(start, stop, history.insert_timestamp),
        deleted=history.deletes.spread(start, stop, NEVER),
        changes=merge_undo([undo, rows_between(history.undo, start, stop)]),
    )


def memrowset_versions(snapshot: MemRowSetSnapshot) -> RowVersions:
    """Return all rows of a MemRowSet with all their history, ghost rows too; O(changes) memory."""
    schema, order, slots = snapshot.schema, snapshot.sorted_keys, snapshot.changes.rowids
    row_of_slot = np.empty(len(order), np.int64)
    row_of_slot[order.rowids] = np.arange(len(order))
    inserts, redo = _inserts_and_redo(snapshot, row_of_slot[slots])
    base = {c.id: apply_updates(inserts, c.id, 0, constant(c, len(order))) for c in schema.columns}
    is_last = np.append(redo.rowids[1:] != redo.rowids[:-1], True)[: len(redo.rowids)]
    is_end = is_last & (redo.ops == OP_DELETE)
    deletes = _RowTimestamps.of(redo, np.flatnonzero(is_end))
    return RowVersions(
        keys=order.keys,
        rowids=order.rowids,
        columns={c: apply_updates(redo, c, 0, cells) for c, cells in base.items()},
        inserted=snapshot.insert_timestamps[order.rowids],
        deleted=deletes.spread(0, len(order), NEVER),
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
    return memrowset_versions(snapshot).images(snapshot.schema, mark=0, oldest=0)


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
    newest, ghost_images = {}, {}
    for column in schema.columns:
        images = pa.concat_arrays([part.columns[column.id] for part in parts])
        newest[column.id] = images.take(heads)
        if column not in schema.key_columns:
            ghost_images[column.id] = images.take(ghosts)
    merged = RowVersions(
        keys=order.keys.take(order.heads),
        rowids=np.arange(len(order.heads)),
        columns=newest,
        inserted=order.first_inserts,
        deleted=order.deleted[order.heads],
        changes=_merged_changes(parts, order, ghost_images),
    )
    return merged, order.places()


@dataclass(frozen=True)
class _Order:
    """The N rows of all parts, one after the other, in order of their m keys.

    `sorted` has their positions by key, newest first; `starts` (int64[m]) has the position in
    `sorted` where each key begins; `key_of` (int64[N]) has the number of each row's key.
    """

    keys: KeyArray
    inserted: np.ndarray
    deleted: np.ndarray
    sorted: np.ndarray
    starts: np.ndarray
    key_of: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def of(parts: Sequence[RowVersions]) -> _Order:
        keys = KeyArray.concat([part.keys for part in parts])
        deleted = np.concatenate([part.deleted for part in parts])
        order = keys.sort_order()
        repeats = keys.take(order).equals_previous()
        key_of = np.empty(len(order), np.int64)
        key_of[order] = np.cumsum(~repeats) - 1
        if repeats.any():
            _put_newest_first(order, repeats, deleted)
        return _Order(
            keys=keys,
            inserted=np.concatenate([part.inserted for part in parts]),
            deleted=deleted,
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
    def first_inserts(self) -> np.ndarray:
        """uint64[m]: the first insert of each key."""
        return np.minimum.reduceat(self.inserted[self.sorted], self.starts)

    def later_inserts(self) -> np.ndarray:
        """int64[N - m]: the rows that are not the first insert of their key."""
        return np.flatnonzero(self.inserted != self.first_inserts[self.key_of])

    def places(self) -> list[np.ndarray]:
        """Return for each part the number of the key of each row, -1 for ghosts."""
        place = self.key_of.copy()
        place[self.ghosts] = -1
        return [place[low:high] for low, high in zip(self.offsets, self.offsets[1:], strict=False)]


def _put_newest_first(order: np.ndarray, repeats: np.ndarray, deleted: np.ndarray) -> None:
    """Sort the rows of each key that has several by delete timestamp, newest first, in place."""
    is_one_of_several = repeats.copy()
    is_one_of_several[:-1] |= repeats[1:]
    at = np.flatnonzero(is_one_of_several)
    key = np.cumsum(~repeats)[at]
    rows = order[at]
    order[at] = rows[np.lexsort((~deleted[rows], key))]


def _merged_changes(
    parts: Sequence[RowVersions], order: _Order, ghost_images: dict[int, pa.Array]
) -> DeltaRows:
    """Return the changes of all parts by key and span; `ghost_images` are by column id."""
    changes, ends = [], []
    for part, offset in zip(parts, order.offsets.tolist(), strict=False):
        keys = order.key_of[part.changes.rowids + offset]
        changes.append(replace(part.changes, rowids=keys))
        ends.append(span_ends(part))
    ghosts = order.ghosts
    if not len(ghosts):
        return sort_rows(concat_rows(changes))
    inserts = order.later_inserts()
    oldest_ends = np.concatenate(
        [_oldest_span_ends(part, e) for part, e in zip(parts, ends, strict=True)]
    )
    revived = {column_id: DeltaColumn(values) for column_id, values in ghost_images.items()}
    all_changes = concat_rows(
        [
            _changes_of(order.key_of[ghosts], OP_REINSERT, order.deleted[ghosts], revived),
            *changes,
            _changes_of(order.key_of[inserts], OP_DELETE, order.inserted[inserts], {}),
        ]
    )
    span_end = np.concatenate([order.deleted[ghosts], *ends, oldest_ends[inserts]])
    return take_rows(all_changes, np.lexsort((~span_end, all_changes.rowids)))


def _changes_of(
    rowids: np.ndarray, op: int, timestamps: np.ndarray, columns: dict[int, DeltaColumn]
) -> DeltaRows:
    return DeltaRows(rowids, np.full(len(rowids), op, np.uint8), columns, timestamps)


def _oldest_span_ends(part: RowVersions, ends: np.ndarray) -> np.ndarray:
    """Return uint64[n]: the delete timestamp of the oldest span in each row of a part.

    `ends` has that of the span of each change.
    """
    result = part.deleted.copy()
    result[part.changes.rowids] = ends  # a repeated index keeps its last value: the oldest span
    return result
