"""Conflict check: rebases the staged parts of a write to a newer version of a tablet.

A staged part was resolved against an older version. Most of it is still correct: a row that another
commit has updated keeps its row id, and the later timestamp wins. A conflict arises only where a
key has changed between present and absent, or two parts of the write change the same key:

    staged insert    another commit, or another part of this write, has inserted the key
    staged delta     another commit has deleted the row, or removed its rowset;
                     or two parts of this write change the same row, and one deletes rows or has
                     left out cells that are equal to the row's

Such rows are removed from the staged files (a DELETE at the same timestamp hides an inserted row; a
REDO file is written again without them) and resolved again, in the order of the parts, against the
newest version. All other rows stay in their files.

A computed write (one with `read_at`) is not rebased over changes of its own keys. Any change of one
of them after `read_at` fails the commit, also a change that is no conflict in the sense above,
because the write's values were computed from the older row:

    staged at V     each key is looked up in V                         (resolve.py)
    rebased         the keys of all parts are looked up in the newest version
    resolved again  the keys of rows that the rebase resolves again

A row that an IGNORE operation ignored stays ignored: the version that the write read decides.
Several rows of one key in one part are staged as one. If an UPDATE_IGNORE no longer finds its row,
that one is counted as ignored, and the others stay counted as updated.

**Invariants**: after `rebase`, no two parts insert the same key, and each staged delta changes a
row that is live in the newest version.

**Threads**: any; a `ConflictCheck` is immutable, and writes new files only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import BlockCache
from kudulite.basefile.key_index import KeyIndex
from kudulite.delta.delta_file import (
    OP_DELETE,
    DeltaFile,
    DeltaRows,
    take_cells,
    take_rows,
    without_unset,
)
from kudulite.model.encoded_key import decode_keys
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.operation import Operation
from kudulite.tablet.operation_batch import OperationBatch
from kudulite.tablet.resolve import Resolver
from kudulite.tablet.row_effects import WriteCounts
from kudulite.tablet.staged_tablet import StagedDelta, StagedTablet
from kudulite.tablet.tablet import Tablet


@dataclass(frozen=True)
class Conflict:
    """Rows of one staged file that must be resolved again: `at` row ids or positions, ascending."""

    part: int
    rowset: RowSetMeta | None
    delta: StagedDelta | None
    at: np.ndarray


@dataclass(frozen=True)
class ConflictCheck:
    """Rebases the parts of one write in one tablet to a newer version of the tablet."""

    resolver: Resolver
    cache: BlockCache

    def rebase(
        self,
        parts: Sequence[StagedTablet],
        before: Tablet,
        now: Tablet,
    ) -> list[StagedTablet]:
        """Return parts that are valid for `now`; each of `parts` is valid alone for `before`.

        If `before` is `now`, the parts are compared only with each other. Raises RowError, and
        ConflictError if a key of a computed write has changed since its rows were read.
        """
        self._check_unchanged(parts, before, now)
        conflicts = self._conflicts(parts, before, now)
        if not conflicts:
            return list(parts)
        recovered = [self._recover(parts[c.part], c, before) for c in conflicts]
        rebased = list(parts)
        for conflict in conflicts:
            rebased[conflict.part] = self._without(rebased[conflict.part], conflict)
        rows = pa.concat_tables([rows for rows, _ in recovered]).combine_chunks()
        operations = np.concatenate([operations for _, operations in recovered])
        batch = OperationBatch.of(rows, operations, self.resolver.schema, self.resolver.spec)
        rebased.append(self.resolver.resolve(batch, now))
        return rebased

    def without_keys(
        self, parts: Sequence[StagedTablet], keys: KeyArray, before: Tablet
    ) -> list[StagedTablet]:
        """Return `parts`, each valid for `before`, without their rows of ascending `keys`."""
        left, locations = list(parts), before.locate(keys, TIMESTAMP_MAX)
        for index, part in enumerate(parts):
            for meta in part.rowsets:
                rowset = self._staged_rowset(part, meta)
                at = np.sort(_keys_of(rowset).find(keys))
                at = at[at >= 0]
                at = np.compress(~rowset.applier(TIMESTAMP_MAX).is_deleted(at), at)
                if len(at):
                    left[index] = self._without(left[index], Conflict(index, meta, None, at))
            for delta in part.deltas:
                base = before.rowset(delta.rowset_id)
                assert base is not None
                is_own = locations.rowset_index == before.rowsets.index(base)
                file = self._delta_file(part, delta, before)
                at = np.flatnonzero(np.isin(file.rowids, locations.rowid[is_own]))
                if len(at):
                    left[index] = self._without(left[index], Conflict(index, None, delta, at))
        return left

    def with_deletes(self, parts: Sequence[StagedTablet], now: Tablet) -> list[StagedTablet]:
        """Return `parts`, valid for `now`, and one that deletes all rows that they do not have.

        A row that they leave as it is has its place in a file that changes nothing.
        """
        deltas: list[StagedDelta] = []
        for rowset in now.rowsets:
            assert isinstance(rowset, DiskRowSet)
            is_absent = self._is_absent(rowset, parts, now)
            if is_absent.any():
                rowids = np.flatnonzero(is_absent)
                ops = np.full(len(rowids), OP_DELETE, dtype=np.uint8)
                delete = DeltaRows(rowids, ops, {})
                deltas.append(self.resolver.stage_delta(now.id, rowset.meta.id, delete))
        if not deltas:
            return list(parts)
        counts = WriteCounts(deleted=sum(delta.meta.delete_count for delta in deltas))
        return [*parts, StagedTablet(now.id, deltas=tuple(deltas), counts=counts)]

    def _is_absent(
        self, rowset: DiskRowSet, parts: Sequence[StagedTablet], now: Tablet
    ) -> np.ndarray:
        """Return bool[n]: which rows of a rowset are live, and in no delta of the parts."""
        meta = rowset.meta
        is_absent = np.full(meta.row_count, meta.delete_timestamp is None)
        if meta.delete_timestamp is None:
            is_absent[rowset.applier(TIMESTAMP_MAX).deleted] = False
            for part in parts:
                for delta in part.deltas:
                    if delta.rowset_id == meta.id:
                        is_absent[self._delta_file(part, delta, now).rowids] = False
        return is_absent

    # -- finding conflicts

    def _check_unchanged(self, parts: Sequence[StagedTablet], before: Tablet, now: Tablet) -> None:
        if self.resolver.spec.read_at is None or now is before:
            return
        arrays = [keys for part in parts for keys in self._inserted_keys(part)]
        for part in parts:
            for delta in part.deltas:
                base = before.rowset(delta.rowset_id)
                assert base is not None
                file = self._delta_file(part, delta, before)
                arrays.append(base.key_index.keys(file.rowids))
        if arrays:
            keys = KeyArray.concat(arrays)
            self.resolver.check_unchanged(keys.take(keys.sort_order()), now)

    def _conflicts(
        self, parts: Sequence[StagedTablet], before: Tablet, now: Tablet
    ) -> list[Conflict]:
        conflicts: list[Conflict] = []
        staged = [
            (index, self._staged_rowset(part, meta))
            for index, part in enumerate(parts)
            for meta in part.rowsets
        ]
        repeated = _repeated_keys([rowset for _, rowset in staged])
        for index, rowset in staged:
            rowids = self._insert_conflicts(rowset, before, now, repeated)
            if len(rowids):
                conflicts.append(Conflict(index, rowset.meta, None, rowids))
        conflicts += self._delta_conflicts(parts, before, now)
        return sorted(conflicts, key=lambda conflict: conflict.part)

    def _staged_rowset(self, part: StagedTablet, meta: RowSetMeta) -> DiskRowSet:
        folder = self.resolver.rowset_folder(part.tablet_id) / meta.id
        return DiskRowSet(meta, folder, self.cache)

    def _inserted_keys(self, part: StagedTablet) -> list[KeyArray]:
        rowsets = [self._staged_rowset(part, meta) for meta in part.rowsets]
        return [keys for rowset in rowsets for keys in _live_keys(rowset)]

    def _insert_conflicts(
        self, rowset: DiskRowSet, before: Tablet, now: Tablet, repeated: KeyArray | None
    ) -> np.ndarray:
        """Return the row ids of a staged rowset whose keys are also live elsewhere."""
        hits = [np.empty(0, dtype=np.int64)]
        if repeated is not None:
            positions = _keys_of(rowset).find(repeated)
            hits.append(positions[positions >= 0])
        if not self.resolver.spec.ends_rows:
            hits += _hits_since(rowset, before, now)
        rowids = np.unique(np.concatenate(hits))
        is_deleted = rowset.applier(TIMESTAMP_MAX).is_deleted(rowids)
        return np.compress(~is_deleted, rowids)

    def _delta_conflicts(
        self, parts: Sequence[StagedTablet], before: Tablet, now: Tablet
    ) -> Iterator[Conflict]:
        """Yield the rows of staged deltas that are deleted or repeated."""
        for rowset_id in {delta.rowset_id for part in parts for delta in part.deltas}:
            staged = [
                (index, delta, self._delta_file(part, delta, before))
                for index, part in enumerate(parts)
                for delta in part.deltas
                if delta.rowset_id == rowset_id
            ]
            conflicting = _deleted_since(rowset_id, before, now)
            if self.resolver.spec.skips_unchanged:
                # Cells that were equal, and therefore left out, may differ now.
                conflicting = np.union1d(conflicting, _updated_since(rowset_id, before, now))
            is_partial = self.resolver.spec.leaves_equal_cells
            if is_partial or any(file.meta.delete_count for _, _, file in staged):
                twice = _repeated_rowids([file.rowids for _, _, file in staged])
                conflicting = np.union1d(conflicting, twice)
            for index, delta, file in staged:
                hit = np.isin(file.rowids, conflicting)
                if hit.any():
                    yield Conflict(index, None, delta, np.flatnonzero(hit))

    def _delta_file(self, part: StagedTablet, delta: StagedDelta, before: Tablet) -> DeltaFile:
        base = before.rowset(delta.rowset_id)
        assert base is not None
        path = self._path(part, delta)
        return DeltaFile(self.cache.storage, path, delta.meta, base.meta.row_count)

    def _path(self, part: StagedTablet, delta: StagedDelta) -> Path:
        folder = self.resolver.rowset_folder(part.tablet_id) / delta.rowset_id
        return folder / delta.meta.ref.name

    # -- removing rows and resolving them again

    def _recover(
        self, part: StagedTablet, conflict: Conflict, before: Tablet
    ) -> tuple[pa.Table, np.ndarray]:
        """Return the rows of a conflict as the write provided them, and their operations uint8[n].

        The rows have key and value columns. An update of a MERGE becomes an update_ignore: its row
        was there when the write read it.
        """
        schema = self.resolver.schema
        names = [*schema.key_names, *self.resolver.spec.value_columns]
        if conflict.rowset is not None:
            columns = [schema.column(name) for name in names]
            rowset = self._staged_rowset(part, conflict.rowset)
            arrays = rowset.read_rows(conflict.at, columns, TIMESTAMP_MAX)
            inserts = self._operations(np.full(len(conflict.at), Operation.INSERT, dtype=np.uint8))
            return pa.Table.from_arrays(arrays, names=names), inserts
        assert conflict.delta is not None
        base = before.rowset(conflict.delta.rowset_id)
        assert base is not None
        rows = self._delta_file(part, conflict.delta, before).read()
        rowids = rows.rowids[conflict.at]
        arrays = decode_keys(base.key_index.keys(rowids), schema.key_types)
        for name in self.resolver.spec.value_columns:
            column = schema.column(name)
            unset = None
            if self.resolver.spec.leaves_equal_cells:
                unset = base.read_rows(rowids, [column], TIMESTAMP_MAX)[0]
            arrays.append(take_cells(rows, column, conflict.at, unset))
        is_delete = rows.ops[conflict.at] == OP_DELETE
        changes = np.where(is_delete, Operation.DELETE_IGNORE, Operation.UPDATE_IGNORE)
        return pa.Table.from_arrays(arrays, names=names), self._operations(changes)

    def _operations(self, of_merge: np.ndarray) -> np.ndarray:
        """Return the operations of recovered rows: `of_merge` in a MERGE, else the write's own."""
        operation = self.resolver.spec.operation
        if operation is None:
            assert self.resolver.spec.is_merge
            return of_merge.astype(np.uint8)
        return np.full(len(of_merge), int(operation), dtype=np.uint8)

    def _without(self, part: StagedTablet, conflict: Conflict) -> StagedTablet:
        """Return the part without the rows of a conflict, both in its files and in its counts."""
        if conflict.rowset is not None:
            ops = np.full(len(conflict.at), OP_DELETE, dtype=np.uint8)
            hide = DeltaRows(conflict.at, ops, {})
            mask = self.resolver.stage_delta(part.tablet_id, conflict.rowset.id, hide)
            current = next(r for r in part.rowsets if r.id == conflict.rowset.id)
            return part.with_masked_rowset(current.with_redo((mask.meta,)), len(conflict.at))
        assert conflict.delta is not None
        return self._without_delta_rows(part, conflict.delta, conflict.at)

    def _without_delta_rows(
        self, part: StagedTablet, delta: StagedDelta, at: np.ndarray
    ) -> StagedTablet:
        path = self._path(part, delta)
        rows = DeltaFile(self.cache.storage, path, delta.meta, 1 << 32).read()
        delete_count = int(np.count_nonzero(rows.ops[at] == OP_DELETE))
        fewer = WriteCounts(updated=delete_count - len(at), deleted=-delete_count)
        if self.resolver.spec.skips_unchanged and delta.is_no_op:
            fewer = WriteCounts(unchanged=-len(at))
        keep = np.ones(len(rows.rowids), dtype=bool)
        keep[at] = False
        if not keep.any():
            return part.with_delta(delta, None, fewer)
        rest = without_unset(take_rows(rows, np.flatnonzero(keep)))
        new = self.resolver.stage_delta(part.tablet_id, delta.rowset_id, rest)
        return part.with_delta(delta, new, fewer)


def _deleted_since(rowset_id: str, before: Tablet, now: Tablet) -> np.ndarray:
    """Return the row ids of a rowset that are live in `before` but not in `now`."""
    old, current = before.rowset(rowset_id), now.rowset(rowset_id)
    assert old is not None
    if current is None or current.meta.delete_timestamp is not None:
        return np.arange(old.meta.row_count)
    if old.meta.redo == current.meta.redo:
        return np.empty(0, dtype=np.int64)
    return np.setdiff1d(current.applier(TIMESTAMP_MAX).deleted, old.applier(TIMESTAMP_MAX).deleted)


def _updated_since(rowset_id: str, before: Tablet, now: Tablet) -> np.ndarray:
    """Return the row ids of a rowset with a change in `now` that `before` has not.

    After a compaction of the rowset these are all.
    """
    old, current = before.rowset(rowset_id), now.rowset(rowset_id)
    assert old is not None
    redo = () if current is None else current.meta.redo
    known = len(old.meta.redo)
    if current is None or current.meta.base != old.meta.base or redo[:known] != old.meta.redo:
        return np.arange(old.meta.row_count)
    storage, folder, count = current.storage, current.folder, current.meta.row_count
    newer = [DeltaFile(storage, folder / m.ref.name, m, count).rowids for m in redo[known:]]
    return np.unique(np.concatenate([np.empty(0, np.int64), *newer]))


def _keys_of(rowset: DiskRowSet) -> KeyIndex:
    """Return the keys of a staged rowset, which the cache should not keep: its file will move."""
    meta, path = rowset.meta, rowset.folder / rowset.meta.key_index.name
    return KeyIndex(rowset.storage, path, meta.key_index, meta.row_count)


def _live_keys(rowset: DiskRowSet) -> Iterator[KeyArray]:
    """Yield the ascending keys of a staged rowset that are not deleted, in several arrays."""
    applier, start = rowset.applier(TIMESTAMP_MAX), 0
    for keys in _keys_of(rowset).batches():
        live = applier.selection(start, start + len(keys))
        start += len(keys)
        keys = keys if live is None else keys.take(np.flatnonzero(live))
        if len(keys):
            yield keys


def _hits_since(rowset: DiskRowSet, before: Tablet, now: Tablet) -> Iterator[np.ndarray]:
    """Yield row ids of a staged rowset whose keys are live in rowsets that are not in `before`."""
    overlapping = now.current.overlapping(rowset.key_min, rowset.key_max + b"\0")
    if all(isinstance(o, DiskRowSet) and before.rowset(o.meta.id) is not None for o in overlapping):
        return
    start = 0
    for keys in _keys_of(rowset).batches():
        for other, low, high in now.current.probe_ranges(keys):
            assert isinstance(other, DiskRowSet)
            if before.rowset(other.meta.id) is None:
                is_hit = other.find(keys.slice(low, high), TIMESTAMP_MAX) >= 0
                yield np.flatnonzero(is_hit) + (start + low)
        start += len(keys)


def _repeated_keys(rowsets: Sequence[DiskRowSet]) -> KeyArray | None:
    """Return the keys that are live in several staged rowsets, ascending; None if there are none.

    Rowsets that overlap no other one are not read.
    """
    found = [keys for group in _overlapping(rowsets) for keys in _repeats(group)]
    return KeyArray.concat(found) if found else None


def _overlapping(rowsets: Sequence[DiskRowSet]) -> Iterator[list[DiskRowSet]]:
    """Yield the groups of two and more rowsets that overlap, by ascending keys."""
    groups: list[list[DiskRowSet]] = []
    end = b""
    for rowset in sorted(rowsets, key=lambda rowset: rowset.key_min):
        if not groups or rowset.key_min > end:
            groups.append([])
        groups[-1].append(rowset)
        end = max(end, rowset.key_max)
    return (group for group in groups if len(group) > 1)


def _repeats(rowsets: Sequence[DiskRowSet]) -> Iterator[KeyArray]:
    """Yield the keys that are live in several rowsets, ascending; reads all in step, in parts."""
    heads = [
        (keys, rest) for rest in map(_live_keys, rowsets) for keys in itertools.islice(rest, 1)
    ]
    while len(heads) > 1:
        bound = min(keys[len(keys) - 1] for keys, _ in heads)
        stops = [keys.locate(bound, "right") for keys, _ in heads]
        joined = KeyArray.concat(
            [keys.slice(0, stop) for (keys, _), stop in zip(heads, stops, strict=True)]
        )
        joined = joined.take(joined.sort_order())
        repeats = joined.take(np.flatnonzero(joined.equals_previous()))
        if len(repeats):
            yield repeats.take(np.flatnonzero(~repeats.equals_previous()))
        heads = [
            (left, rest)
            for (keys, rest), stop in zip(heads, stops, strict=True)
            for left in _first_of(keys.slice(stop, len(keys)), rest)
        ]


def _first_of(keys: KeyArray, rest: Iterator[KeyArray]) -> Iterator[KeyArray]:
    """Yield `keys`, or the first array after them if they are empty, if there is one."""
    return iter((keys,)) if len(keys) else itertools.islice(rest, 1)


def _repeated_rowids(parts: Sequence[np.ndarray]) -> np.ndarray:
    rowids, counts = np.unique(np.concatenate(parts), return_counts=True)
    return rowids[counts > 1]
