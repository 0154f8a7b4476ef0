"""Resolves the rows of a write against one version of a tablet, to files or to a record.

    rows -> sort by key -> look up each key -> one effect per key -> new rowsets + REDO files
                                                                  -> a record of the log

Files are written where they stay, in the tablet's folder, under names that bear the write's id.
Values are copied once, from the caller's batch to the files. A commit stamps the entries with its
timestamp and lists them in the next version. A conflict check may take staged rows out
again, and turn the cells of a staged delta back into cells of the write's rows.

A computed write (one with `read_at`) leaves out the cells that are equal to those of the row, so a
caller may give whole rows and pays for what differs. Rows that do not differ at all are staged in a
file of their own, which the commit drops: it is there for the conflict check, which finds a row of
two parts, and gives a cell that was left out the value of the row.

**Invariants**: staged files are not visible until a commit installs them.

**Threads**: a resolver is immutable; several threads may resolve different tablets of one batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.basefile.base_data import group_rows_of
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_UPDATE,
    DeltaColumn,
    DeltaFileMeta,
    DeltaRows,
    create_delta_file,
    create_delta_files,
    slice_rows,
    without_unset,
)
from kudulite.errors import RowError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowSetWriter
from kudulite.storage.names import ROWSET_FOLDER, TABLET_FOLDER
from kudulite.storage.new_files import NewFiles
from kudulite.tablet.operation import (
    Operation,
    WriteSpec,
    raise_changed_keys,
    raise_row_error,
)
from kudulite.tablet.operation_batch import OperationBatch
from kudulite.tablet.ordering import Ordering
from kudulite.tablet.row_effects import (
    ACTION_DELETE,
    ACTION_INSERT,
    ACTION_UPDATE,
    SOURCE_DEFAULT,
    SOURCE_KEEP,
    KeyedOperations,
    KeyEffects,
    WriteCounts,
    cells_differ,
    collapse,
)
from kudulite.tablet.row_gather import RowGather
from kudulite.tablet.staged_tablet import StagedDelta, StagedTablet
from kudulite.tablet.tablet import RowLocations, Tablet
from kudulite.tablet.tombstones import StagedTombstones, last_of_runs
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE, RowChanges

# Of these many rows in each chunk on average, the calls for each chunk cost little.
_ROWS_PER_CHUNK = 1000
# Changes of so many rows are gathered in one call for each column, also for several rowsets.
_GATHERED_ROWS = 1 << 15
# So many stored cells are read at once to compare them with new ones.
_CELLS_MAX = 1 << 20


class _OldRows(NamedTuple):
    """The rows of a tablet at the locations of a write's keys."""

    tablet: Tablet
    locations: RowLocations

    def differ(
        self, rows: RowGather, columns: Sequence[Column], keys: np.ndarray, numbers: np.ndarray
    ) -> list[np.ndarray]:
        """Return bool[m] per column: where a cell of row `numbers` differs from the old one.

        A number may also be SOURCE_DEFAULT.
        `keys` int64[m] are the indices of the rows' keys, which are found. Several columns are read
        together, as many as have few cells.
        """
        found = [np.zeros(len(keys), dtype=bool) for _ in columns]
        rowset_index = self.locations.rowset_index[keys]
        step = rows.rows_at_once
        for index in np.unique(rowset_index):
            of_rowset = np.flatnonzero(rowset_index == index)
            for start in range(0, len(of_rowset), step):
                at = of_rowset[start : start + step]
                rowids = self.locations.rowid[keys[at]]
                width = max(1, _CELLS_MAX // len(at))
                for first in range(0, len(columns), width):
                    some = columns[first : first + width]
                    cells = self.tablet.rowsets[index].read_rows(rowids, some, TIMESTAMP_MAX)
                    for differs, column, old in zip(found[first:], some, cells, strict=False):
                        new = _values(rows, column, numbers[at], len(at))
                        differs[at] = cells_differ(new, old)
        return found


# Returns where the keys of a batch are live; each is that of one of the given rows.
Locate = Callable[[KeyArray, np.ndarray], RowLocations]


class ResolvedRows(NamedTuple):
    """The effects of the batch `rows` on k keys; `firsts` int64[k] is a row that has each key.

    The effects have sources of the columns `names`. `deletes` are those of an ordered write, which
    need a tombstone each: their keys, and the rows of the batch.
    """

    rows: RowGather
    keys: KeyArray
    locations: RowLocations
    firsts: np.ndarray
    effects: KeyEffects
    names: Sequence[str]
    counts: WriteCounts
    ordering: Ordering | None = None
    deletes: tuple[np.ndarray, np.ndarray] | None = None

    def source_of(self, column: Column) -> np.ndarray | None:
        """Return where each key's cell comes from; None if the write does not set the column."""
        if column.name not in self.names:
            return None
        return self.effects.sources[self.names.index(column.name)]


@dataclass(frozen=True)
class Resolver:
    """Resolves the batches of one write to its new `files`; `folder` is the table's.

    New tombstone files may omit tombstones at or before the ancient history `mark`.
    """

    files: NewFiles
    folder: Path
    table: str
    schema: Schema
    spec: WriteSpec
    mark: int = 0

    def resolve(self, batch: OperationBatch, tablet: Tablet) -> StagedTablet:
        """Stage the changes of `batch` to `tablet`. Raises as `effects`."""
        resolved = self.effects(batch, tablet)
        rowsets = self._stage_inserts(resolved, tablet.id)
        deltas = self._stage_deltas(resolved, tablet)
        tombstones = self._stage_tombstones(resolved, tablet)
        return StagedTablet(tablet.id, rowsets, deltas, resolved.counts, tombstones)

    def effects(
        self, batch: OperationBatch, tablet: Tablet, locate: Locate | None = None
    ) -> ResolvedRows:
        """Return the effects of `batch` on `tablet`; `locate` finds its keys in another way.

        A batch of several tablets needs a `locate`, and its spec may need nothing else of them.

        Raises RowError if an operation other than an IGNORE one cannot apply, and ConflictError as
        `check_unchanged` does.
        """
        keys, keyed, has_repeats = self._keyed(batch)
        self.check_unchanged(keys, tablet)
        if locate is None:
            locations = self._locate(keys, tablet)
        else:
            locations = locate(keys, keyed.first_rows())
        if self.spec.is_merge and has_repeats:
            self._refuse_repeats(batch.rows, keyed, locations.is_found)
        row_count = len(keyed.rows)
        ordering = self._ordering(batch)
        if ordering is not None:
            keys, locations, keyed = self._applied(ordering, keys, locations, keyed, tablet)
        superseded_count = row_count - len(keyed.rows)
        names = self.spec.value_columns
        immutable = [at for at, name in enumerate(names) if name in self.spec.immutable_columns]
        rows, old_rows = RowGather(batch.rows), _OldRows(tablet, locations)
        exists, keeps_cells = locations.is_found, None
        if self.spec.is_overwrite:
            exists = np.zeros(len(keys), dtype=bool)
        elif immutable and self.spec.leaves_equal_cells:
            keeps_cells = self._keeps_immutable(rows, keyed, old_rows)
        effects = collapse(keyed, exists, len(names), batch.is_set, immutable, keeps_cells)
        for failure in effects.failures:
            raise_row_error(
                self.table, self._what(), failure.reason, batch.rows, self.schema, failure.rows
            )
        firsts, counts = keyed.first_rows(), effects.counts + WriteCounts(ignored=superseded_count)
        resolved = ResolvedRows(rows, keys, locations, firsts, effects, names, counts)
        self._check_required(resolved)
        if self.spec.replaces_rows:
            resolved = self._as_updates(resolved)
        if self.spec.leaves_equal_cells:
            resolved = self._without_equal_cells(resolved, old_rows)
        if self.spec.skips_unchanged:
            effects, counts = resolved.effects, resolved.counts
            count = int(np.count_nonzero((effects.action == ACTION_UPDATE) & ~_is_change(effects)))
            counts += WriteCounts(updated=-count, unchanged=count)
            resolved = resolved._replace(counts=counts)
        if ordering is not None:
            resolved = resolved._replace(ordering=ordering, deletes=_newest_deletes(keyed))
        return resolved

    def _keyed(self, batch: OperationBatch) -> tuple[KeyArray, KeyedOperations, bool]:
        """Return the keys of a batch, ascending, their operations, and whether a key repeats."""
        order = batch.sort_order()
        keys = batch.keys.take(order)
        repeats = keys.equals_previous()
        keyed = KeyedOperations(
            rows=batch.row_numbers[order],
            group=np.cumsum(~repeats) - 1,
            operations=batch.operations[order],
            key_count=int(np.count_nonzero(~repeats)),
        )
        has_repeats = bool(repeats.any())
        if has_repeats:
            keys = keys.take(np.flatnonzero(~repeats))
            if self.spec.is_merge:
                keyed = keyed.inserts_first()
        return keys, keyed, has_repeats

    def changes(
        self, resolved: ResolvedRows, timestamp: int
    ) -> tuple[RowChanges, np.ndarray] | None:
        """Return the effects as a record of the log, and int64[m]: which of the keys it changes.

        None where nothing changes.
        """
        effects = resolved.effects
        is_insert = effects.action == ACTION_INSERT
        is_changed = (effects.action >= ACTION_UPDATE) & _is_change(effects)
        at = np.flatnonzero(is_insert | is_changed)
        if not len(at):
            return None
        is_insert, is_delete = is_insert[at], effects.action[at] == ACTION_DELETE
        key_columns, firsts = self.schema.key_columns, resolved.firsts[at]
        columns = {c.id: resolved.rows.take(c.name, firsts) for c in key_columns}
        is_set = {}
        for column in self.schema.value_columns:
            source = self._sources(resolved, column, at)
            source[is_insert & (source == SOURCE_KEEP)] = SOURCE_DEFAULT
            sets = source != SOURCE_KEEP
            if sets.any():
                columns[column.id] = _values(resolved.rows, column, source, len(at))
            if not sets.all() and column.id in columns:
                is_set[column.id] = sets
        kept = np.where(is_insert, CHANGE_INSERT, CHANGE_UPDATE)
        ops = np.where(is_delete, CHANGE_DELETE, kept).astype(np.uint8)
        return RowChanges(timestamp, ops, columns, is_set), at

    def check_unchanged(self, keys: KeyArray, tablet: Tablet) -> None:
        """Raise ConflictError if any of ascending `keys` has changed since the write's `read_at`.

        Changes in memory are not seen: a commit flushes them before its last check.
        """
        read_at = self.spec.read_at
        if read_at is None or tablet.timestamp_max <= read_at:
            return
        column_ids = {column.id for column in self.schema.columns}
        changed = tablet.changed_since(keys, read_at, column_ids)
        if changed.any():
            found = keys.take(np.flatnonzero(changed))
            raise_changed_keys(self.table, self.schema, found, read_at)

    def _refuse_repeats(self, rows: pa.Table, keyed: KeyedOperations, found: np.ndarray) -> None:
        """Raise RowError if two rows of a MERGE of one operation change one row."""
        is_upsert = self.spec.operation is Operation.UPSERT
        if not is_upsert and self.spec.operation is not Operation.UPDATE_IGNORE:
            return
        is_repeated = np.bincount(keyed.group) > 1
        for at, reason in (
            (is_repeated & found, RowError.REASON_REPEATED),
            (is_repeated & ~found & is_upsert, RowError.REASON_ALREADY_PRESENT),
        ):
            if at.any():
                numbers = keyed.rows[at[keyed.group]]
                raise_row_error(self.table, self._what(), reason, rows, self.schema, numbers)

    def _keeps_immutable(
        self, rows: RowGather, keyed: KeyedOperations, old_rows: _OldRows
    ) -> np.ndarray:
        """Return bool[n]: which operations, each the only one of its key, change no immutable cell.

        An operation on an absent key changes none. One of several operations on a key would have to
        be compared with the row that those before it leave, so none of these is in the result.
        """
        is_only = (np.bincount(keyed.group, minlength=keyed.key_count) == 1)[keyed.group]
        is_found = old_rows.locations.is_found[keyed.group]
        at = np.flatnonzero(is_only & is_found)
        is_kept: np.ndarray = is_only
        for name in self.spec.immutable_columns:
            column, numbers = self.schema.column(name), keyed.rows[at]
            is_kept[at] &= ~old_rows.differ(rows, [column], keyed.group[at], numbers)[0]
        return is_kept

    def _as_updates(self, resolved: ResolvedRows) -> ResolvedRows:
        """Return the rows of an overwrite with updates of all columns of those that are there."""
        effects, columns = resolved.effects, self.schema.value_columns
        is_update = resolved.locations.is_found & (effects.action == ACTION_INSERT)
        count = int(np.count_nonzero(is_update))
        default = np.full(len(is_update), SOURCE_DEFAULT)
        found = [resolved.source_of(column) for column in columns]
        effects = replace(
            effects,
            action=np.where(is_update, ACTION_UPDATE, effects.action),
            sources=[default if source is None else source for source in found],
        )
        counts = resolved.counts + WriteCounts(inserted=-count, updated=count)
        names = [column.name for column in columns]
        return resolved._replace(effects=effects, names=names, counts=counts)

    def _without_equal_cells(self, resolved: ResolvedRows, old_rows: _OldRows) -> ResolvedRows:
        """Return the rows without the cells that are equal to those of the row."""
        effects = resolved.effects
        updated = np.flatnonzero((effects.action == ACTION_UPDATE) & ~effects.is_replaced)
        sources = list(effects.sources)
        # Columns may share one array of sources. These have cells in the same rows, so their old
        # cells are read in one call, and each gets an array of its own.
        sharing: dict[int, list[int]] = {}
        for place, source in enumerate(sources):
            sharing.setdefault(id(source), []).append(place)
        for places in sharing.values():
            source = sources[places[0]]
            at = updated[source[updated] != SOURCE_KEEP]
            columns = [self.schema.column(resolved.names[place]) for place in places]
            differ = old_rows.differ(resolved.rows, columns, at, source[at])
            for place, differs in zip(places, differ, strict=True):
                sources[place] = source.copy()
                sources[place][at[~differs]] = SOURCE_KEEP
        return resolved._replace(effects=replace(effects, sources=sources))

    def _locate(self, keys: KeyArray, tablet: Tablet) -> RowLocations:
        if self.spec.ends_rows:
            return RowLocations.nowhere(len(keys))
        return tablet.locate(keys, TIMESTAMP_MAX)

    def _ordering(self, batch: OperationBatch) -> Ordering | None:
        if self.spec.ordering_column is None:
            return None
        columns = [self.schema.column(name) for name in self.spec.value_columns]
        column = self.schema.column(self.spec.ordering_column)
        return Ordering(self.table, column, columns, batch.rows, batch.is_set)

    def _applied(
        self,
        ordering: Ordering,
        keys: KeyArray,
        locations: RowLocations,
        keyed: KeyedOperations,
        tablet: Tablet,
    ) -> tuple[KeyArray, RowLocations, KeyedOperations]:
        """Return the keys for which the write has a newer change than the tablet.

        With them, the locations of those keys, and their operations that apply.
        """
        found = ordering.applied(keyed)
        if self.spec.is_overwrite:
            return keys, locations, found
        own_keys, own_locations = keys.take(found.group), locations.take(found.group)
        left = np.flatnonzero(~ordering.is_outdated(found, own_keys, own_locations, tablet))
        kept, group = np.unique(found.group[left], return_inverse=True)
        operations = KeyedOperations(found.rows[left], group, found.operations[left], len(kept))
        return keys.take(kept), locations.take(kept), operations

    def _stage_tombstones(self, resolved: ResolvedRows, tablet: Tablet) -> StagedTombstones | None:
        """Stage a tombstone with the ordering value of each delete, even of absent keys."""
        if resolved.ordering is None or resolved.deletes is None:
            return None
        deletes, rows = resolved.deletes
        known = tablet.tombstones
        if self.spec.is_overwrite:
            known = replace(known, metas=())
        return known.stage(
            resolved.keys.take(deletes),
            resolved.ordering.values(rows),
            column=resolved.ordering.column,
            schema=self.schema,
            mark=self.mark,
            files=self.files,
        )

    def _what(self) -> str:
        return self.spec.operation.label if self.spec.operation is not None else "mixed batch"

    def _stage_inserts(self, resolved: ResolvedRows, tablet_id: str) -> tuple[RowSetMeta, ...]:
        keys = resolved.keys
        at = np.flatnonzero(resolved.effects.action == ACTION_INSERT)
        if not len(at):
            return ()
        rows = resolved.rows.rows
        new_keys = keys if len(at) == len(keys) else keys.take(at)
        folder = self.rowset_folder(tablet_id)
        with RowSetWriter(self.files, folder, self.schema) as writer:
            # Rows are gathered a row group at a time: all of them would be a second copy of the
            # batch in memory. From many chunks more at once, as each costs a call for each column.
            step = group_rows_of(rows.nbytes // rows.num_rows)
            step *= -(-resolved.rows.chunk_count * _ROWS_PER_CHUNK // step)
            for start in range(0, len(at), step):
                part = at[start : start + step]
                part_keys = new_keys.slice(start, start + len(part))
                writer.add(RowImages(part_keys, self._new_rows(resolved, part)))
            return writer.finish()

    def _new_rows(self, resolved: ResolvedRows, at: np.ndarray) -> pa.Table:
        """Return the rows of int64[m] inserted keys, with all columns."""
        rows = resolved.rows
        arrays = [rows.take(name, resolved.firsts[at]) for name in self.schema.key_names]
        for column in self.schema.value_columns:
            source = resolved.source_of(column)
            arrays.append(_values(rows, column, None if source is None else source[at], len(at)))
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow_schema())

    def _stage_deltas(self, resolved: ResolvedRows, tablet: Tablet) -> tuple[StagedDelta, ...]:
        effects = resolved.effects
        changed = effects.action >= ACTION_UPDATE
        staged = []
        parts = [changed]
        # Rows that do not differ are in a file of their own, which the commit drops (see the head).
        if self.spec.leaves_equal_cells:
            differs = _is_change(effects)
            parts = [changed & differs, changed & ~differs]
        for part in parts:
            staged += self._stage_changes(resolved, np.flatnonzero(part), tablet)
        return tuple(staged)

    def _stage_changes(
        self, resolved: ResolvedRows, at: np.ndarray, tablet: Tablet
    ) -> list[StagedDelta]:
        """Write the changes of the keys `at` to a REDO file for each rowset, large ones to more.

        Few rows are gathered for several rowsets in one call per column, because a call has a cost
        of its own. Many rows are gathered and written part by part: the cells of all rowsets at
        once would be a second copy of a large batch.
        """
        rowset_index = resolved.locations.rowset_index[at]
        order = np.argsort(rowset_index, kind="stable")  # within a rowset as before, by row id
        at, rowset_index = at[order], rowset_index[order]
        starts = np.flatnonzero(np.diff(rowset_index, prepend=-1))
        # No part has more rows than one Arrow array of each column can hold.
        starts = np.union1d(starts, np.arange(0, len(at), resolved.rows.rows_at_once))
        ids = [tablet.rowsets[index].meta.id for index in rowset_index[starts]]
        folders = [self.rowset_folder(tablet.id) / rowset_id for rowset_id in ids]
        metas: list[DeltaFileMeta] = []
        for group in _groups(np.diff(starts, append=len(at))):
            rows = self._delta_rows(resolved, at[group[0] : group[-1]])
            cuts = itertools.pairwise([bound - group[0] for bound in group])
            changes = [without_unset(slice_rows(rows, *cut)) for cut in cuts]
            parts = list(zip(folders[len(metas) :], changes, strict=False))
            metas += create_delta_files(self.files, "redo", parts)
        return [StagedDelta(*staged) for staged in zip(ids, metas, strict=True)]

    def stage_delta(self, tablet_id: str, rowset_id: str, delta: DeltaRows) -> StagedDelta:
        """Write one REDO file for a rowset, which may be one of the write itself."""
        folder = self.rowset_folder(tablet_id) / rowset_id
        return StagedDelta(rowset_id, create_delta_file(self.files, folder, "redo", delta))

    def rowset_folder(self, tablet_id: str) -> Path:
        """Return the folder of a tablet's rowsets."""
        return self.folder / TABLET_FOLDER / tablet_id / ROWSET_FOLDER

    def _delta_rows(self, resolved: ResolvedRows, at: np.ndarray) -> DeltaRows:
        effects = resolved.effects
        deletes = effects.action[at] == ACTION_DELETE
        columns = {}
        for column in self.schema.value_columns:
            source = self._sources(resolved, column, at)
            is_set = source != SOURCE_KEEP
            if is_set.any():
                values = _values(resolved.rows, column, source, len(at))
                columns[column.id] = DeltaColumn(values, is_set)
        ops = np.where(deletes, OP_DELETE, OP_UPDATE).astype(np.uint8)
        return DeltaRows(resolved.locations.rowid[at], ops, columns)

    def _sources(self, resolved: ResolvedRows, column: Column, at: np.ndarray) -> np.ndarray:
        """Return where the cells of changed keys `at` come from, as an array of its own."""
        effects = resolved.effects
        found = resolved.source_of(column)
        source = np.full(len(at), SOURCE_KEEP) if found is None else found[at].copy()
        # A row that was deleted and inserted again keeps no cell of the old one.
        source[effects.is_replaced[at] & (source == SOURCE_KEEP)] = SOURCE_DEFAULT
        source[effects.action[at] == ACTION_DELETE] = SOURCE_KEEP
        return source

    def _check_required(self, resolved: ResolvedRows) -> None:
        """Refuse new rows without a value for a NOT NULL column that has no default."""
        effects = resolved.effects
        is_replaced = (effects.action == ACTION_UPDATE) & effects.is_replaced
        at = np.flatnonzero((effects.action == ACTION_INSERT) | is_replaced)
        for column in self.schema.value_columns:
            if column.nullable or column.write_default is not None:
                continue
            source = resolved.source_of(column)
            missing = at if source is None else at[source[at] < 0]
            if len(missing):
                what, numbers = f"{self._what()}, column {column.name!r}", resolved.firsts[missing]
                reason = RowError.REASON_MISSING
                raise_row_error(self.table, what, reason, resolved.rows.rows, self.schema, numbers)


def _is_change(effects: KeyEffects) -> np.ndarray:
    """Return bool[k]: which rows that are there are deleted, or get a cell."""
    differs = effects.is_replaced | (effects.action == ACTION_DELETE)
    changed: np.ndarray = np.logical_or.reduce(
        [differs, *(source != SOURCE_KEEP for source in effects.sources)]
    )
    return changed


def _newest_deletes(keyed: KeyedOperations) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the keys of an ordered write that it deletes, and the rows that do; None for none.

    `keyed` has the operations of one key from the oldest to the newest, which decides.
    """
    newest = last_of_runs(keyed.group)
    is_delete = keyed.operations[newest] >= Operation.DELETE
    if not is_delete.any():
        return None
    return np.flatnonzero(is_delete), keyed.rows[newest[is_delete]]


def _groups(lengths: np.ndarray) -> Iterator[list[int]]:
    """Yield the bounds of the parts of each group, where the parts have `lengths` rows.

    Neighbouring parts are one group while it has at most _GATHERED_ROWS rows; a part with more is a
    group alone. Lengths 3, 2 and 9 with a limit of 6 are the groups [0, 3, 5] and [5, 14].
    """
    bounds = [0]
    for length in lengths.tolist():
        if len(bounds) > 1 and bounds[-1] + length - bounds[0] > _GATHERED_ROWS:
            yield bounds
            bounds = bounds[-1:]
        bounds.append(bounds[-1] + length)
    if len(bounds) > 1:
        yield bounds


def _values(rows: RowGather, column: Column, source: np.ndarray | None, count: int) -> pa.Array:
    """Return `count` values of a column: from rows, the write default, or null where kept."""
    default = pa.scalar(column.write_default, column.type.arrow)
    if source is None:
        return pa.repeat(default, count)
    if (source >= 0).all():
        return rows.take(column.name, source)
    if column.name in rows.rows.column_names:
        is_given = source >= 0
        given = rows.take(column.name, source[is_given])
        values = given.take(pa.array(np.cumsum(is_given) - 1, mask=~is_given))
    else:  # no row provides the column, but a replaced row gets its default
        values = pa.nulls(count, column.type.arrow)
    if column.write_default is None:
        return values
    return pc.if_else(pa.array(source == SOURCE_DEFAULT), default, values)
