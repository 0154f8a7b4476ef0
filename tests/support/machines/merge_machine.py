"""Random steps of a tablet's rowsets on disk, beside a list of every version of every row.

Rowsets come from bulk commits and flushes; rows in them are updated and deleted, jump from one
rowset to another, are deleted and inserted by one commit, or are masked (inserted and deleted at
one moment). Columns come and go, the ancient history mark moves on, rowsets end. All compactions
run in between, with deltas that arrive while rowsets are merged.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import BlockCache
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    create_delta_file,
    sort_rows,
    without_unset,
)
from kudulite.delta.delta_history import merge_redo, stamped
from kudulite.model.encoded_key import decode_key, encode_key, key_width
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset.delta_compaction import compact_columns, merge_redo_files, merge_undo_files
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta, is_fully_ancient, without_ancient_undo
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.oracle.version_model import Row, Version, VersionModel


class RowSetVersions:
    """Rowsets by id, the rows that are live in them, and the versions of all rows by column id.

    `mark` is the ancient history mark: nobody reads before it. Time stands at `now`.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        self.folder = folder
        self.schema = schema
        self.storage = LocalStorage()
        self.cache = BlockCache(LocalStorage(), 1 << 22)
        self.now, self.mark = 10, 0
        self.rowsets: dict[str, RowSetMeta] = {}
        self.versions = VersionModel()
        self.live: dict[tuple, Row] = {}
        self.place: dict[tuple, str] = {}  # live key → its rowset

    def note(self, timestamp: int, key: tuple, row: Row | None) -> None:
        """Note that a row was written, or deleted."""
        self.versions.add(key, Version(timestamp, row))
        if row is None:
            self.live.pop(key, None)
            self.place.pop(key, None)
        else:
            self.live[key] = row

    def install(self, metas: Sequence[RowSetMeta], keys: set[tuple]) -> None:
        """Take rowsets in; those of the keys that they have are live there."""
        for meta in metas:
            self.rowsets[meta.id] = meta
            for key in self.rowids(meta, keys):
                self.place[key] = meta.id

    @property
    def width(self) -> int | None:
        """Bytes of an encoded key."""
        return key_width(self.schema.key_types)

    def encoded(self, key: tuple) -> bytes:
        """The encoded form of a key."""
        return encode_key(key, self.schema.key_types)

    def opened(self, metas: Sequence[RowSetMeta]) -> list[DiskRowSet]:
        """The rowsets, without memory."""
        return [DiskRowSet(meta, self.folder / meta.id, self.cache) for meta in metas]

    def rowids(self, meta: RowSetMeta, keys: set[tuple]) -> dict[tuple, int]:
        """The row ids of those of the keys that the rowset has, dead or not."""
        (rowset,) = self.opened([meta])
        found = {key: rowset.key_index.find_one(self.encoded(key)) for key in keys}
        return {key: rowid for key, rowid in found.items() if rowid >= 0}

    def check(self) -> None:
        """Compare the rowsets with the versions at every moment from the mark on."""
        stamps = {*self.versions.moments(), self.mark, self.now + 1}
        rowsets = self.opened(list(self.rowsets.values()))
        for timestamp in sorted(stamp for stamp in stamps if stamp >= self.mark):
            found = self._scan(rowsets, timestamp)
            assert found == self._expected(timestamp), f"at {timestamp} of {self.now}"
        for key, rowset_id in self.place.items():
            at = [
                r.meta.id
                for r in rowsets
                if r.meta.delete_timestamp is None
                and r.find_one(self.encoded(key), self.width, self.now) >= 0
            ]
            assert at == [rowset_id]
        for rowset in rowsets:
            check_rowset(rowset, self.folder / rowset.meta.id)

    def _expected(self, timestamp: int) -> dict[tuple, list]:
        columns = self.schema.value_columns
        return {
            key: [row.get(column.id, column.read_default) for column in columns]
            for key, row in self.versions.at(timestamp).items()
        }

    def _scan(self, rowsets: Sequence[DiskRowSet], timestamp: int) -> dict[tuple, list]:
        names = tuple(column.name for column in self.schema.value_columns)
        spec = ScanSpec(
            self.schema, names, bind_predicates([], self.schema), timestamp, with_keys=True
        )
        found: dict[tuple, list] = {}
        for rowset in rowsets:
            if not rowset.is_visible(timestamp):
                continue
            for block in rowset.blocks(spec):
                scanned = rowset.read_block(block, spec)
                if scanned is None:
                    continue
                assert scanned.keys is not None
                cells = zip(*(c.to_pylist() for c in scanned.batch.columns), strict=True)
                for code, row in zip(scanned.keys, cells, strict=True):
                    key = decode_key(code, self.schema.key_types)
                    assert key not in found, f"{key} is live twice at {timestamp}"
                    found[key] = list(row)
        return found


def check_rowset(rowset: DiskRowSet, folder: Path) -> None:
    """Walking back through UNDO, each change must find what it changes."""
    meta = rowset.meta
    alive = dict.fromkeys(range(meta.row_count), True)
    for delta in meta.undo:
        rows = stamped(DeltaFile(LocalStorage(), folder / delta.ref.name, delta, meta.row_count))
        assert rows.timestamps is not None
        for at, rowid in enumerate(rows.rowids.tolist()):
            op = int(rows.ops[at])
            if op != OP_UPDATE:
                assert alive[rowid] == (op == OP_DELETE), f"row {rowid} of {meta.id}"
                alive[rowid] = op != OP_DELETE
            sets = [c for c, v in rows.columns.items() if v.is_set is None or v.is_set[at]]
            assert bool(sets) == (op != OP_DELETE)
            if op == OP_UPDATE:
                assert alive[rowid]
            assert int(rows.timestamps[at]) > meta.insert_timestamp
    if meta.delete_timestamp is None:
        assert meta.live_row_count == rowset.live_row_count(1 << 62)


KEYS = {
    "int64": [(i,) for i in (-70_000, -300, -2, -1, 0, 1, 2, 300, 70_000)],
    "string": [(s,) for s in ("", "a", "a\0", "aa", "ab", "b", "ba", "c")],
    "string,int32": [(s, i) for s in ("", "a", "b") for i in (-1, 2, 70_000)],
    "int64,int32": [(i, j) for i in (-1, 5, 6) for j in (0, 1, 9)],
}
TYPES = ("int8", "string", "array(int32)", "bool", "float", "decimal(4, 2)", "int64", "varchar(5)")
WIDER = ("int16", "int32", "int64", "double", "decimal(10, 2)", "decimal(30, 2)", "string")
VALUES: dict[str, list] = {
    "int8": [0, 1, -5],
    "int16": [0, 1, 300],
    "int32": [0, 1, 1 << 30],
    "int64": [0, 1, -5, 1 << 40],
    "varchar": ["", "x", "yy"],
    "float": [0.0, 1.5],
    "string": ["", "x", "yy"],
    "bool": [True, False],
    "double": [0.0, 1.5],
    "decimal": [Decimal("1.25"), Decimal("-0.50")],
    "array": [[], [None], [1, None, -5]],
}


class RandomRowSets(RowSetVersions):
    """Rowsets of random rows with some of the keys of `KEYS`."""

    def __init__(self, folder: Path, seed: int, key: str = "") -> None:
        """`key` is one of `KEYS`, or chosen."""
        self.random = random.Random(seed)
        key = key or self.random.choice(sorted(KEYS))
        self.keys = self.random.sample(KEYS[key], self.random.randint(2, len(KEYS[key])))
        types = key.split(",")
        columns = [Column(0, f"k{i}", parse_type(t), nullable=False) for i, t in enumerate(types)]
        columns += [Column(0, f"c{i}", parse_type(t)) for i, t in enumerate(TYPES[:3])]
        schema = Schema.build(columns, [f"k{i}" for i in range(len(types))])
        super().__init__(folder, schema)

    def commit(self, keys: set[tuple], masked: set[tuple], timestamp: int = 0) -> None:
        """One commit inserts rows: those of `keys`, and, never to be seen, those `masked`."""
        if not keys and not masked:
            return
        if not timestamp:
            self.now += self.random.randint(1, 3)
        ordered = sorted(keys | masked, key=self.encoded)
        rows = {key: self.random_row() for key in ordered}
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
        for meta in write_rowsets(
            NewFiles(self.storage), self.folder, self.schema, RowImages(encoded, table)
        ):
            stamped_meta = replace(meta, insert_timestamp=self.now)
            hidden = self.rowids(stamped_meta, masked)
            if hidden:
                ops = np.full(len(hidden), OP_DELETE, np.uint8)
                rowids = np.array(sorted(hidden.values()), np.int64)
                mask = create_delta_file(
                    NewFiles(self.storage),
                    self.folder / meta.id,
                    "redo",
                    DeltaRows(rowids, ops, {}),
                )
                stamped_meta = stamped_meta.with_redo((mask.stamped(self.now),))
            metas.append(stamped_meta)
        for key in keys:
            self.note(self.now, key, rows[key])
        self.install(metas, keys)

    def random_changes(
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
                    found.append((moment, key, self.random_cells()))
        return found

    def redo(
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
                delta = create_delta_file(NewFiles(self.storage), target, "redo", rows)
                delta = delta.stamped(changes[0][0])
            else:
                delta = create_delta_file(NewFiles(self.storage), target, "redo", rows)
            self.rowsets[rowset_id] = meta.with_redo((delta,))
            for moment, key, row in changes:
                self.note(moment, key, None if row is None else self.live[key] | row)

    def apply(self, memory: MemRowSet, timestamp: int, key: tuple, op: int, cells: Row) -> None:
        """One change of one row in memory."""
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

    def some_rowset(self) -> str | None:
        """A rowset with live rows."""
        ids = sorted(set(self.place.values()), key=list(self.rowsets).index)
        return self.random.choice(ids) if ids else None

    def random_row(self) -> Row:
        """A cell of each column."""
        return {column.id: self.cell(column) for column in self.schema.value_columns}

    def random_cells(self) -> Row:
        """A cell of some columns."""
        columns = self.schema.value_columns
        chosen = self.random.sample(columns, self.random.randint(1, len(columns)))
        return {column.id: self.cell(column) for column in chosen}

    def cell(self, column: Column) -> Any:
        """A value that the column may have."""
        values = VALUES[column.type.name]
        return self.random.choice([None, *values] if column.nullable else values)


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
        metas = write_rowsets(NewFiles(self.storage), self.folder, self.schema, image)
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
                NewFiles(self.storage), self.folder / meta.id, meta, start, stop
            ),
            lambda meta: len(meta.redo),
        )

    def merge_undo(self) -> None:
        """Adjacent UNDO files of a rowset become one."""
        self._compact(
            lambda meta, start, stop: merge_undo_files(
                NewFiles(self.storage), self.folder / meta.id, meta, start, stop, mark=self.mark
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
            new = compact_columns(NewFiles(self.storage), rowset, self.schema, ids, self.mark)
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
            NewFiles(self.storage), self.folder, self.schema, self.opened(before), self.mark
        )
        for _ in range(self.random.choice([0, 0, 1, 2])):
            getattr(self, self.random.choice(["bulk_change", "twice_at_once", "delta_flush"]))()
        outputs = list(merged.rowsets)
        for meta in before:
            for delta in self.rowsets[meta.id].redo[len(meta.redo) :]:
                file = DeltaFile(
                    LocalStorage(), self.folder / meta.id / delta.ref.name, delta, meta.row_count
                )
                for index, rows in merged.row_map.map_deltas(meta.id, stamped(file)).items():
                    output = outputs[index]
                    target = self.folder / output.id
                    redo = create_delta_file(
                        NewFiles(self.storage), target, "redo", merge_redo([rows])
                    )
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
