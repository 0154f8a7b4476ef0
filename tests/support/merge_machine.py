"""Random steps of a tablet's rowsets on disk, beside a list of every version of every row.

Rowsets come from bulk commits and flushes; rows in them are updated and deleted, jump from one
rowset to another, are deleted and inserted by one commit, or are masked (inserted and deleted at
one moment). Columns come and go, the ancient history mark moves on, rowsets end. Merging
compactions run in between, with deltas that arrive while they do.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rowset_versions import Row, RowSetVersions

from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    create_delta_file,
)
from kudulite.delta.delta_history import merge_redo, stamped
from kudulite.delta.delta_rows import sort_rows, without_unset
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset.flush_image import flush_image
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowHistory, write_rowsets
from kudulite.wal.row_changes import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE

KEYS = {
    "int64": [(i,) for i in (-70_000, -300, -2, -1, 0, 1, 2, 300, 70_000)],
    "string": [(s,) for s in ("", "a", "a\0", "aa", "ab", "b", "ba", "c")],
    "string,int32": [(s, i) for s in ("", "a", "b") for i in (-1, 2, 70_000)],
    "int64,int32": [(i, j) for i in (-1, 5, 6) for j in (0, 1, 9)],
}
TYPES = ("int64", "string", "bool", "double", "decimal(10, 2)")
STEPS = (
    *("bulk_insert", "bulk_insert", "replace", "bulk_change", "bulk_change"),
    *("twice_at_once", "delta_flush", "delta_flush", "flush", "flush", "flush"),
    *("overwrite", "add_column", "drop_column", "move_mark"),
    *("merge", "merge", "merge", "merge"),
)
VALUES: dict[str, list] = {
    "int64": [0, 1, -5, 1 << 40],
    "string": ["", "x", "yy"],
    "bool": [True, False],
    "double": [0.0, 1.5],
    "decimal": [Decimal("1.25"), Decimal("0.00")],
}


class MergeMachine(RowSetVersions):
    """Takes random steps, the same for the same seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        key = self.random.choice(sorted(KEYS))
        self.keys = self.random.sample(KEYS[key], self.random.randint(2, len(KEYS[key])))
        types = key.split(",")
        columns = [Column(0, f"k{i}", parse_type(t), nullable=False) for i, t in enumerate(types)]
        columns += [Column(0, f"c{i}", parse_type(t)) for i, t in enumerate(TYPES[:3])]
        schema = Schema.build(columns, [f"k{i}" for i in range(len(types))])
        super().__init__(folder, schema)
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
        self._commit(keys, masked)

    def replace(self) -> None:
        """One commit deletes rows and inserts rows with the same keys."""
        self.now += self.random.randint(1, 3)
        keys = {key for key in self.keys if key in self.live and self.random.random() < 0.4}
        of_rowset: dict[str, list] = {}
        for key in sorted(keys, key=self.encoded):
            of_rowset.setdefault(self.place[key], []).append((self.now, key, None))
        for rowset_id, changes in of_rowset.items():
            self._redo(rowset_id, [changes], one_moment=True)
        masked = {key for key in self.keys if self.random.random() < 0.1} - keys
        self._commit(keys, masked, self.now)

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
        self._commit({key for key in self.keys if self.random.random() < 0.5}, set(), self.now)

    def bulk_change(self) -> None:
        """One commit updates and deletes rows of one rowset."""
        rowset_id = self._some_rowset()
        if rowset_id is None:
            return
        self.now += self.random.randint(1, 3)
        changes = self._random_changes(rowset_id, {self.now})
        self._redo(rowset_id, [changes], one_moment=True)

    def twice_at_once(self) -> None:
        """Two parts of one commit update rows of one rowset, maybe the same cells."""
        rowset_id = self._some_rowset()
        if rowset_id is None:
            return
        self.now += 1
        files = [self._random_changes(rowset_id, {self.now}, deletes=0.0) for _ in range(2)]
        self._redo(rowset_id, files, one_moment=True)

    def delta_flush(self) -> None:
        """The DeltaMemStore of one rowset becomes a REDO file."""
        rowset_id = self._some_rowset()
        if rowset_id is None:
            return
        moments = {self.now + self.random.randint(1, 9) for _ in range(3)}
        changes = self._random_changes(rowset_id, moments)
        self._redo(rowset_id, [changes], one_moment=False)
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
                op, cells = CHANGE_INSERT, self._random_row()
                alive[key] = cells
            elif self.random.random() < 0.6:
                op, cells = CHANGE_UPDATE, self._random_cells()
                alive[key] = alive[key] | cells
            else:
                op, cells = CHANGE_DELETE, {}
                del alive[key]
            self._apply(memory, self.now, key, op, cells)
            self.note(self.now, key, alive.get(key))
        image = flush_image(memory.snapshot())
        history = RowHistory(image.insert_timestamps, image.undo, image.redo)
        metas = write_rowsets(
            self.file_system, self.folder, self.schema, image.keys, image.rows, history
        )
        self.adopt(metas, set(alive))

    def add_column(self) -> None:
        """A column that all rows show the default of."""
        if len(self.schema) > 8:
            return
        column_type = parse_type(self.random.choice(TYPES))
        default = self.random.choice([None, *VALUES[column_type.name]])
        name = f"c{self.schema.next_column_id}"
        self.schema = self.schema.with_column(
            Column(-1, name, column_type, default is None, read_default=default)
        )

    def drop_column(self) -> None:
        """A column that files and deltas go on having."""
        if len(self.schema.value_columns) > 1:
            name = self.random.choice(self.schema.value_columns).name
            self.schema = self.schema.without_column(name)

    def move_mark(self) -> None:
        """Nobody reads before the mark any more; what ended up to it goes."""
        self.mark = self.random.randint(self.mark, self.now)
        for rowset_id, meta in list(self.rowsets.items()):
            if meta.delete_timestamp is not None and meta.delete_timestamp <= self.mark:
                del self.rowsets[rowset_id]

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

    # -- how it happens

    def _commit(self, keys: set[tuple], masked: set[tuple], timestamp: int = 0) -> None:
        if not keys and not masked:
            return
        if not timestamp:
            self.now += self.random.randint(1, 3)
        ordered = sorted(keys | masked, key=self.encoded)
        rows = {key: self._random_row() for key in ordered}
        columns = [
            pa.array([key[at] for key in ordered], column.type.arrow)
            for at, column in enumerate(self.schema.key_columns)
        ]
        columns += [
            pa.array([rows[key][column.id] for key in ordered], column.type.arrow)
            for column in self.schema.value_columns
        ]
        table = pa.Table.from_arrays(columns, schema=self.schema.arrow_schema())
        encoded = KeyArray.from_bytes([self.encoded(k) for k in ordered], self.width)
        metas = []
        for meta in write_rowsets(self.file_system, self.folder, self.schema, encoded, table):
            stamped_meta = replace(meta, insert_timestamp=self.now)
            hidden = self.rowids(stamped_meta, masked)
            if hidden:
                ops = np.full(len(hidden), OP_DELETE, np.uint8)
                rowids = np.array(sorted(hidden.values()), np.int64)
                mask = create_delta_file(
                    self.file_system, self.folder / meta.id, "redo", DeltaRows(rowids, ops, {})
                )
                stamped_meta = stamped_meta.with_redo((mask.stamped(self.now),))
            metas.append(stamped_meta)
        for key in keys:
            self.note(self.now, key, rows[key])
        self.adopt(metas, keys)

    def _random_changes(
        self, rowset_id: str, moments: set[int], deletes: float = 0.25
    ) -> list[tuple[int, tuple, Row | None]]:
        """(timestamp, key, cells or None for a delete) in order of time, each possible then."""
        found = []
        dead: set[tuple] = set()
        for moment in sorted(moments):
            for key in sorted(self.live, key=self.encoded):
                if self.place[key] != rowset_id or key in dead or self.random.random() < 0.4:
                    continue
                if self.random.random() < deletes:
                    dead.add(key)
                    found.append((moment, key, None))
                else:
                    found.append((moment, key, self._random_cells()))
        return found

    def _redo(
        self,
        rowset_id: str,
        files: list[list[tuple[int, tuple, Row | None]]],
        one_moment: bool,
    ) -> None:
        """Write changes as REDO files, and note the versions that they make."""
        for changes in files:
            if not changes:
                continue
            meta = self.rowsets[rowset_id]
            rowids = self.rowids(meta, {key for _, key, _ in changes})
            columns = {}
            for column in self.schema.value_columns:
                is_set = np.array([row is not None and column.id in row for _, _, row in changes])
                cells = [None if row is None else row.get(column.id) for _, _, row in changes]
                columns[column.id] = DeltaColumn(pa.array(cells, column.type.arrow), is_set)
            ops = [OP_DELETE if row is None else OP_UPDATE for _, _, row in changes]
            rows = DeltaRows(
                np.array([rowids[key] for _, key, _ in changes], np.int64),
                np.array(ops, np.uint8),
                columns,
                np.array([moment for moment, _, _ in changes], np.uint64),
            )
            rows = without_unset(sort_rows(rows))
            target = self.folder / rowset_id
            if one_moment:
                rows = replace(rows, timestamps=None)
                delta = create_delta_file(self.file_system, target, "redo", rows)
                delta = delta.stamped(changes[0][0])
            else:
                delta = create_delta_file(self.file_system, target, "redo", rows)
            self.rowsets[rowset_id] = meta.with_redo((delta,))
            for moment, key, row in changes:
                self.note(moment, key, None if row is None else self.live[key] | row)

    def _apply(self, memory: MemRowSet, timestamp: int, key: tuple, op: int, cells: Row) -> None:
        columns = {}
        for at, column in enumerate(self.schema.key_columns):
            columns[column.id] = pa.array([key[at]], column.type.arrow)
        for column in self.schema.value_columns:
            if column.id in cells:
                columns[column.id] = pa.array([cells[column.id]], column.type.arrow)
        memory.apply(
            [self.encoded(key)],
            np.array([op], np.uint8),
            columns,
            {},
            np.array([timestamp], np.uint64),
        )

    def _some_rowset(self) -> str | None:
        ids = sorted(set(self.place.values()), key=list(self.rowsets).index)
        return self.random.choice(ids) if ids else None

    def _random_row(self) -> Row:
        return {column.id: self._cell(column) for column in self.schema.value_columns}

    def _random_cells(self) -> Row:
        columns = self.schema.value_columns
        chosen = self.random.sample(columns, self.random.randint(1, len(columns)))
        return {column.id: self._cell(column) for column in chosen}

    def _cell(self, column: Column) -> Any:
        values = VALUES[column.type.name]
        return self.random.choice([None, *values] if column.nullable else values)
