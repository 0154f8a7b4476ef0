"""Random steps of a tablet's rowsets on disk, beside a list of every version of every row.

Rowsets come from bulk commits and flushes; rows in them are updated and deleted, jump from one
rowset to another, are deleted and inserted by one commit, or are masked (inserted and deleted at
one moment). Columns come and go, the ancient history mark moves on, rowsets end. All compactions
run in between, with deltas that arrive while rowsets are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kudulite.delta.delta_file import DeltaFile, create_delta_file
from kudulite.delta.delta_history import merge_redo, stamped
from kudulite.model.schema import Column
from kudulite.model.types import parse_type
from kudulite.rowset.delta_compaction import compact_columns, merge_redo_files, merge_undo_files
from kudulite.rowset.disk_rowset import write_rowsets
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset import RowSetMeta, is_fully_ancient, without_ancient_undo
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.machines.random_rowsets import TYPES, VALUES, WIDER, RandomRowSets, Row

STEPS = (
    *("bulk_insert", "bulk_insert", "replace", "bulk_change", "bulk_change"),
    *("twice_at_once", "delta_flush", "delta_flush", "flush", "flush", "flush"),
    *("overwrite", "add_column", "drop_column", "widen_column", "move_mark", "collect"),
    *("merge_redo", "merge_undo", "compact_columns", "compact_columns"),
    *("merge", "merge", "merge", "merge"),
)


class MergeMachine(RandomRowSets):
    """Takes random steps, the same for the same seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.merge_count = 0

    def run(self, step_count: int) -> None:
        """Take random steps; what every merge has made is checked, and the end."""
        for _ in range(step_count):
            step = self.random.choice(STEPS)
            getattr(self, step)()
            if step == "merge":
                self.check()
        self.check()

    # -- what happens

    def bulk_insert(self) -> None:
        """One commit inserts rows into new rowsets; some of them it masks."""
        absent = [key for key in self.keys if key not in self.live]
        masked = {key for key in self.keys if self.random.random() < 0.15}
        keys = {key for key in absent if self.random.random() < 0.5} - masked
        self.commit(keys, masked)

    def replace(self) -> None:
        """One commit deletes rows and inserts rows with the same keys."""
        self.now += self.random.randint(1, 3)
        keys = {key for key in self.keys if key in self.live and self.random.random() < 0.4}
        of_rowset: dict[str, list] = {}
        for key in sorted(keys, key=self.encoded):
            of_rowset.setdefault(self.place[key], []).append((self.now, key, None))
        for rowset_id, changes in of_rowset.items():
            self.redo(rowset_id, [changes], one_moment=True)
        masked = {key for key in self.keys if self.random.random() < 0.1} - keys
        self.commit(keys, masked, self.now)

    def overwrite(self) -> None:
        """One commit ends all rowsets and puts other rows in their place."""
        if self.random.random() < 0.7:
            return
        self.now += 1
        for rowset_id, meta in self.rowsets.items():
            if meta.delete_timestamp is None:
                self.rowsets[rowset_id] = replace(meta, delete_timestamp=self.now)
        for key in list(self.live):
            self.note(self.now, key, None)
        self.commit({key for key in self.keys if self.random.random() < 0.5}, set(), self.now)

    def bulk_change(self) -> None:
        """One commit updates and deletes rows of one rowset."""
        rowset_id = self.some_rowset()
        if rowset_id is None:
            return
        self.now += self.random.randint(1, 3)
        changes = self.random_changes(rowset_id, {self.now})
        self.redo(rowset_id, [changes], one_moment=True)

    def twice_at_once(self) -> None:
        """Two parts of one commit update rows of one rowset, maybe the same cells."""
        rowset_id = self.some_rowset()
        if rowset_id is None:
            return
        self.now += 1
        files = [self.random_changes(rowset_id, {self.now}, deletes=0.0) for _ in range(2)]
        self.redo(rowset_id, files, one_moment=True)

    def delta_flush(self) -> None:
        """The DeltaMemStore of one rowset becomes a REDO file."""
        rowset_id = self.some_rowset()
        if rowset_id is None:
            return
        moments = {self.now + self.random.randint(1, 9) for _ in range(3)}
        changes = self.random_changes(rowset_id, moments)
        self.redo(rowset_id, [changes], one_moment=False)
        self.now = max(moments)

    def flush(self) -> None:
        """A MemRowSet becomes rowsets: rows with several versions, and lives."""
        memory = MemRowSet(self.schema)
        keys = [key for key in self.keys if key not in self.live and self.random.random() < 0.6]
        if not keys:
            return
        alive: dict[tuple, Row] = {}
        for _ in range(self.random.randint(1, 2 * len(keys))):
            self.now += self.random.randint(1, 2)
            key = self.random.choice(keys)
            if key not in alive:
                op, cells = CHANGE_INSERT, self.random_row()
                alive[key] = cells
            elif self.random.random() < 0.6:
                op, cells = CHANGE_UPDATE, self.random_cells()
                alive[key] = alive[key] | cells
            else:
                op, cells = CHANGE_DELETE, {}
                del alive[key]
            self.apply(memory, self.now, key, op, cells)
            self.note(self.now, key, alive.get(key))
        image = flush_image(memory.snapshot())
        metas = write_rowsets(self.file_system, self.folder, self.schema, image)
        self.install(metas, set(alive))

    def add_column(self) -> None:
        """A column that all rows show the default of."""
        if len(self.schema) > 8:
            return
        column_type = parse_type(self.random.choice(TYPES))
        default = self.random.choice([None, *VALUES[column_type.name]])
        default = None if column_type.is_array else default
        name = f"c{self.schema.next_column_id}"
        self.schema = self.schema.with_column(
            Column(-1, name, column_type, default is None, read_default=default)
        )

    def drop_column(self) -> None:
        """A column that files and deltas go on having."""
        if len(self.schema.value_columns) > 1:
            name = self.random.choice(self.schema.value_columns).name
            self.schema = self.schema.without_column(name)

    def widen_column(self) -> None:
        """A column whose values are narrower in files that are there."""
        column = self.random.choice(self.schema.value_columns)
        wider = [t for t in map(parse_type, WIDER) if column.type.can_widen_to(t)]
        if wider:
            fields = {"type": self.random.choice(wider)}
            self.schema = self.schema.with_changed(column.name, fields)

    def move_mark(self) -> None:
        """Nobody reads before the mark any more; what ended up to it goes."""
        self.mark = self.random.randint(self.mark, self.now)
        for rowset_id, meta in list(self.rowsets.items()):
            if meta.delete_timestamp is not None and meta.delete_timestamp <= self.mark:
                del self.rowsets[rowset_id]

    def collect(self) -> None:
        """UNDO files leave whose changes are all ancient, and rowsets whose rows are all dead."""
        for rowset_id, meta in list(self.rowsets.items()):
            if is_fully_ancient(meta, self.mark):
                del self.rowsets[rowset_id]
            else:
                self.rowsets[rowset_id] = without_ancient_undo(meta, self.mark)

    def merge_redo(self) -> None:
        """Adjacent REDO files of a rowset become one."""
        self._compact(
            lambda meta, start, stop: merge_redo_files(
                self.file_system, self.folder / meta.id, meta, start, stop
            ),
            lambda meta: len(meta.redo),
        )

    def merge_undo(self) -> None:
        """Adjacent UNDO files of a rowset become one."""
        self._compact(
            lambda meta, start, stop: merge_undo_files(
                self.file_system, self.folder / meta.id, meta, start, stop, mark=self.mark
            ),
            lambda meta: len(meta.undo),
        )

    def _compact(
        self,
        compact: Callable[[RowSetMeta, int, int], RowSetMeta],
        count_of: Callable[[RowSetMeta], int],
    ) -> None:
        metas = [meta for meta in self.rowsets.values() if count_of(meta) > 1]
        if metas:
            meta = self.random.choice(metas)
            start, stop = sorted(self.random.sample(range(count_of(meta) + 1), 2))
            if stop - start > 1:
                self._now_is(meta.id, compact(meta, start, stop))

    def compact_columns(self) -> None:
        """Some columns of a rowset take in their REDO; the others keep theirs."""
        metas = [m for m in self.rowsets.values() if m.redo and m.delete_timestamp is None]
        if metas:
            meta = self.random.choice(metas)
            columns = self.schema.value_columns
            chosen = self.random.sample(columns, self.random.randint(1, len(columns)))
            ids = [column.id for column in chosen]
            (rowset,) = self.opened([meta])
            new = compact_columns(self.file_system, rowset, self.schema, ids, self.mark)
            self._now_is(meta.id, new)

    def _now_is(self, rowset_id: str, meta: RowSetMeta) -> None:
        self.rowsets[rowset_id] = meta
        for path in (self.folder / rowset_id).iterdir():
            if path.name not in meta.file_names:
                path.unlink()

    def merge(self) -> None:
        """Some rowsets are compacted; more deltas may arrive before it is published."""
        open_ids = [m.id for m in self.rowsets.values() if m.delete_timestamp is None]
        if not open_ids:
            return
        chosen = self.random.sample(open_ids, self.random.randint(1, len(open_ids)))
        before = [self.rowsets[rowset_id] for rowset_id in chosen]
        merged = merge_rowsets(
            self.file_system, self.folder, self.schema, self.opened(before), self.mark
        )
        for _ in range(self.random.choice([0, 0, 1, 2])):
            getattr(self, self.random.choice(["bulk_change", "twice_at_once", "delta_flush"]))()
        outputs = list(merged.rowsets)
        for meta in before:
            for delta in self.rowsets[meta.id].redo[len(meta.redo) :]:
                file = DeltaFile(self.folder / meta.id / delta.ref.name, delta, meta.row_count)
                for index, rows in merged.row_map.map_deltas(meta.id, stamped(file)).items():
                    output = outputs[index]
                    target = self.folder / output.id
                    redo = create_delta_file(self.file_system, target, "redo", merge_redo([rows]))
                    outputs[index] = output.with_redo((redo,))
            del self.rowsets[meta.id]
        for meta in outputs:
            assert RowSetMeta.from_json(meta.to_json()) == meta
            names = {path.name for path in (self.folder / meta.id).iterdir()}
            assert names == set(meta.file_names)
        self.rowsets |= {meta.id: meta for meta in outputs}
        for left, right in itertools.pairwise(outputs):
            assert left.key_max < right.key_min
        for key, rowset_id in list(self.place.items()):
            if rowset_id in chosen:
                code = self.encoded(key)
                (self.place[key],) = [m.id for m in outputs if m.key_min <= code <= m.key_max]
        self.merge_count += 1
