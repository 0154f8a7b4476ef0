"""A DiskRowSet with a random past, what is done to its deltas, and the dictionary of all versions.

    memory with several lives of each row ─flush─> base, UNDO, REDO
    then, in random order: REDO files (one commit's, or a flush's), columns added, dropped and
    widened, the mark moves on, minor compactions of REDO and UNDO, column compactions,
    history collection

Whatever is done, a read at the mark or later gives what the dictionary gives. REDO that arrives
while a compaction runs is appended to what comes out. Row groups are made small, so that a few rows
are several of them. Same seed, same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from random import Random
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
from kudulite.model.condition import Predicate
from kudulite.model.encoded_key import encode_key, key_width
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset.delta_compaction import compact_columns, merge_redo_files, merge_undo_files
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta, without_ancient_undo
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import verify_file
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.oracle.version_model import VersionModel

# Types of value columns, and some values of each.
VALUES: dict[str, list] = {
    "int64": [-(1 << 40), -1, 0, 7],
    "string": ["", "a", "\0", "some longer text"],
    "bool": [False, True],
    "int32": [-5, 0, 1 << 30],
    "decimal(9, 2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("9999999.99")],
    "decimal(12, 2)": [Decimal("-1.50"), Decimal("9999999999.99")],
    "double": [-0.5, 0.0, 1e300],
    "float": [-0.5, 0.0, 1.5],
    "binary": [b"", b"\xff\0", b"bytes"],
    "array(int32)": [[], [None], [1, None, -5], list(range(9))],
    "array(string)": [[], ["", None], ["a", "some longer text"]],
}


@dataclass(frozen=True)
class Event:
    """One change of one row; values by column id."""

    timestamp: int
    op: int
    values: dict[int, Any]


@dataclass
class RowSetReads:
    """A rowset of `keys` at most, beside the `model` of their versions by column id."""

    rowset: DiskRowSet
    schema: Schema
    keys: Sequence[tuple]
    model: VersionModel
    random: Random

    def _encoded(self, key: tuple) -> bytes:
        return encode_key(key, self.schema.key_types)

    def check(self, timestamp: int) -> None:
        """Compare scans and lookups at one moment; columns come in random order."""
        rowset = self.rowset
        columns = list(self.schema.columns)
        self.random.shuffle(columns)
        expected = {}
        for key in sorted(self.keys, key=self._encoded):
            row = self.model.row(key, timestamp)
            if row is not None:
                cells = {c.id: row.get(c.id, c.read_default) for c in self.schema.value_columns}
                for column, value in zip(self.schema.key_columns, key, strict=True):
                    cells[column.id] = value
                expected[self._encoded(key)] = [cells[column.id] for column in columns]
        if not rowset.is_visible(timestamp):
            assert not expected
            return
        assert rowset.live_row_count(timestamp) == len(expected)
        assert self._scanned(columns, timestamp, []) == expected
        self._check_predicate(columns, timestamp, expected)
        self._check_lookups(columns, timestamp, expected)

    def _scanned(
        self,
        columns: Sequence[Column],
        timestamp: int,
        predicates: Sequence[Predicate],
    ) -> dict[bytes, list]:
        names = tuple(column.name for column in columns)
        bound = bind_predicates(predicates, self.schema)
        spec = ScanSpec(self.schema, names, bound, timestamp, with_keys=True)
        found: dict[bytes, list] = {}
        for block in self.rowset.blocks(spec):
            rows = self.rowset.read_block(block, spec)
            if rows is not None and rows.keys is not None:
                cells = zip(*(column.to_pylist() for column in rows.batch.columns), strict=True)
                found |= zip(rows.keys, map(list, cells), strict=True)
        assert list(found) == sorted(found)
        return found

    def _check_predicate(self, columns: list[Column], timestamp: int, expected: dict) -> None:
        column = self.random.choice(self.schema.value_columns)
        value = self.random.choice(VALUES[str(column.type)])
        at = columns.index(column)
        if column.type.is_array:
            found = self._scanned(columns, timestamp, [Predicate(column.name, "is_not_null")])
            assert found == {key: row for key, row in expected.items() if row[at] is not None}
            return
        found = self._scanned(columns, timestamp, [Predicate(column.name, "=", value)])
        assert found == {key: row for key, row in expected.items() if row[at] == value}

    def _check_lookups(self, columns: list[Column], timestamp: int, expected: dict) -> None:
        rowset = self.rowset
        keys = sorted(map(self._encoded, self.keys))
        width = key_width(self.schema.key_types)
        found = rowset.find(KeyArray.from_bytes(keys, width), timestamp).tolist()
        assert found == [rowset.find_one(key, width, timestamp) for key in keys]
        live = [(key, rowid) for key, rowid in zip(keys, found, strict=True) if rowid >= 0]
        assert [key for key, _ in live] == list(expected)
        if not live:
            return
        self.random.shuffle(live)
        arrays = rowset.read_rows(np.array([rowid for _, rowid in live]), columns, timestamp)
        rows = zip(*(array.to_pylist() for array in arrays), strict=True)
        assert [list(row) for row in rows] == [expected[key] for key, _ in live]
        for key, rowid in live:
            assert rowset.read_row(rowid, columns, timestamp) == expected[key]


# Types of columns that are NOT NULL.
REQUIRED = ("int32", "float", "double", "binary")
WIDER = {"int32": "int64", "decimal(9, 2)": "decimal(12, 2)", "float": "double"}
KEYS: dict[str, list[tuple]] = {
    "int32": [(i,) for i in range(-6, 14)],
    "string,int64": [(s, i) for s in ("", "a", "a\0", "b") for i in (-1, 0, 5)],
}


class DeltaMachine:
    """One rowset in `folder`; `steps` says what was done."""

    def __init__(self, seed: int, folder: Path, storage: LocalStorage | None = None) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.storage = storage or LocalStorage()
        self.model = VersionModel()
        self.mark = 0
        self.now = 10
        self.steps: list[str] = []
        key = self.random.choice(sorted(KEYS))
        self.keys = KEYS[key]
        columns = [
            Column(0, f"k{i}", parse_type(t), nullable=False) for i, t in enumerate(key.split(","))
        ]
        names = [column.name for column in columns]
        columns += [self._new_column(f"c{i}") for i in range(self.random.randint(2, 5))]
        self.schema = Schema.build(columns, names)
        self.meta = self._flushed()

    def _new_column(self, name: str) -> Column:
        type_name = self.random.choice(sorted(VALUES))
        nullable = type_name not in REQUIRED
        default = None
        if not type_name.startswith("array") and (not nullable or self.random.random() < 0.5):
            default = self.random.choice(VALUES[type_name])
        return Column(0, name, parse_type(type_name), nullable=nullable, read_default=default)

    @property
    def set_folder(self) -> Path:
        """The rowset's own folder."""
        return self.folder / self.meta.id

    def opened(self) -> DiskRowSet:
        """The rowset as it is now, with nothing cached."""
        return DiskRowSet(self.meta, self.set_folder, BlockCache(LocalStorage(), 1 << 20))

    # -- what is written

    def _value(self, column: Column) -> Any:
        values = VALUES[str(column.type)]
        return self.random.choice([*values, None] if column.nullable else values)

    def _tick(self) -> int:
        self.now += self.random.choice([0, 0, 1, 2])
        return self.now

    def _flushed(self) -> RowSetMeta:
        """Several lives of rows, written from memory."""
        rows = [self.random.choice(self.keys)]
        changes = []
        for _ in range(self.random.randint(1, 30)):
            key = self.random.choice(rows if self.random.random() < 0.4 else self.keys)
            rows.append(key)
            live = self.model.row(key) is not None
            changes.append((key, self._change(key, live, deletes=0.3)))
        memory = MemRowSet(self.schema)
        for key, event in changes:
            columns = {
                c.id: pa.array([v], c.type.arrow) for c, v in self._cells(key, event).items()
            }
            ops = np.array([event.op], np.uint8)
            memory.apply([self._encoded(key)], ops, columns, {}, event.timestamp)
        image = flush_image(memory.snapshot())
        (meta,) = write_rowsets(NewFiles(self.storage), self.folder, self.schema, image)
        return meta

    def _cells(self, key: tuple, event: Event) -> dict[Column, Any]:
        cells = {self._column(c): value for c, value in event.values.items()}
        if event.op == CHANGE_INSERT:
            cells |= dict(zip(self.schema.key_columns, key, strict=True))
        return cells

    def _column(self, column_id: int) -> Column:
        column = self.schema.column_by_id(column_id)
        assert column is not None
        return column

    def _change(
        self, key: tuple, live: bool, deletes: float, timestamp: int | None = None
    ) -> Event:
        """Add a random change of a row that exists or not, at a moment or now, and return it."""
        columns = self.schema.value_columns
        timestamp = self._tick() if timestamp is None else timestamp
        if not live:
            event = Event(timestamp, CHANGE_INSERT, {c.id: self._value(c) for c in columns})
        elif self.random.random() < deletes:
            event = Event(timestamp, CHANGE_DELETE, {})
        else:
            some = self.random.sample(columns, self.random.randint(1, len(columns)))
            event = Event(timestamp, CHANGE_UPDATE, {c.id: self._value(c) for c in some})
        self.model.change(event.timestamp, key, event.op, event.values)
        return event

    def _encoded(self, key: tuple) -> bytes:
        return encode_key(key, self.schema.key_types)

    def redo(self) -> None:
        """One more REDO file: a commit's with one timestamp, or that of flushed memory."""
        is_commit = self.random.random() < 0.4
        changes: list[tuple[int, Event]] = []
        index = self.opened().key_index
        keys = [key for key in self.keys if index.find_one(self._encoded(key)) >= 0]
        start = self._tick()
        for _ in range(self.random.randint(1, 8)):
            key = self.random.choice(keys)
            rowid = index.find_one(self._encoded(key))
            if self.model.row(key) is None:
                continue
            if is_commit and (self.now > start or rowid in {r for r, _ in changes}):
                break
            moment = start if is_commit else None
            changes.append((rowid, self._change(key, live=True, deletes=0.2, timestamp=moment)))
        if not changes:
            return
        rows = sort_rows(self._delta_rows(changes))
        if is_commit:
            rows = replace(rows, timestamps=None)
        written = create_delta_file(NewFiles(self.storage), self.set_folder, "redo", rows)
        self.meta = self.meta.with_redo((written.stamped(start) if is_commit else written,))

    def _delta_rows(self, changes: Sequence[tuple[int, Event]]) -> DeltaRows:
        events = [event for _, event in changes]
        columns = {}
        for column in self.schema.value_columns:
            values = pa.array([e.values.get(column.id) for e in events], column.type.arrow)
            is_set = np.array([column.id in event.values for event in events])
            columns[column.id] = DeltaColumn(values, is_set)
        deletes = [event.op == CHANGE_DELETE for event in events]
        return without_unset(
            DeltaRows(
                np.array([rowid for rowid, _ in changes], np.int64),
                np.where(deletes, OP_DELETE, OP_UPDATE).astype(np.uint8),
                columns,
                np.array([event.timestamp for event in events], np.uint64),
            )
        )

    # -- what is altered and compacted

    def add_column(self) -> None:
        """A new column, which old rows show with its read default."""
        self.schema = self.schema.with_column(self._new_column(f"c{self.schema.next_column_id}"))

    def drop_column(self) -> None:
        """A value column leaves the schema, if another one is left."""
        if len(self.schema.value_columns) > 1:
            name = self.random.choice(self.schema.value_columns).name
            self.schema = self.schema.without_column(name)

    def widen_column(self) -> None:
        """A value column gets a wider type; files that are there keep the old one."""
        narrow = [c for c in self.schema.value_columns if str(c.type) in WIDER]
        if narrow:
            column = self.random.choice(narrow)
            wider = parse_type(WIDER[str(column.type)])
            self.schema = self.schema.with_changed(column.name, {"type": wider})

    def move_mark(self) -> None:
        """Some of the past need not be read any more."""
        self.mark = self.random.randint(self.mark, self.now)

    def minor(self) -> None:
        """Some neighbours of the REDO files become one."""
        count = len(self.meta.redo)
        if count:
            start = self.random.randrange(count)
            stop = self.random.randint(start + 1, count)
            self._publish(
                lambda: merge_redo_files(
                    NewFiles(self.storage), self.set_folder, self.meta, start, stop
                )
            )
            assert len(self.meta.redo) >= count - (stop - start) + 1

    def minor_undo(self) -> None:
        """Some neighbours of the UNDO files become one, or none where all is ancient."""
        count = len(self.meta.undo)
        if count:
            start = self.random.randrange(count)
            stop = self.random.randint(start + 1, count)
            self._publish(
                lambda: merge_undo_files(
                    NewFiles(self.storage), self.set_folder, self.meta, start, stop, mark=self.mark
                )
            )
            if stop == count and len(self.meta.undo) > start:
                assert self.meta.undo[-1].timestamp_min > self.mark

    def major(self) -> None:
        """Some columns, in any order, maybe key columns, maybe those that were dropped."""
        ids = list(range(self.schema.next_column_id))
        if self.random.random() < 0.8:
            ids = [column.id for column in self.schema.value_columns]
        ids = self.random.sample(ids, self.random.randint(0, len(ids)))
        self._publish(
            lambda: compact_columns(
                NewFiles(self.storage), self.opened(), self.schema, ids, self.mark
            ),
            compacted=set(ids) & {column.id for column in self.schema.value_columns},
        )

    def collect(self) -> None:
        """UNDO files behind the mark leave."""
        self.meta = without_ancient_undo(self.meta, self.mark)
        assert all(delta.timestamp_max > self.mark for delta in self.meta.undo)

    def _publish(self, build: Callable[[], RowSetMeta], compacted: set[int] | None = None) -> None:
        """Build a compaction, maybe while REDO arrives, and put both together."""
        read, schema = self.meta, self.schema
        new = build()
        self._check_compacted(read, new, schema, compacted)
        if self.random.random() < 0.4:
            self.redo()
        arrived = self.meta.redo[len(read.redo) :]
        self.meta = new.with_redo(arrived)

    def step(self) -> None:
        """Do one random thing."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (6, self.redo),
            (1, self.add_column),
            (1, self.drop_column),
            (1, self.widen_column),
            (1, self.move_mark),
            (3, self.minor),
            (2, self.minor_undo),
            (5, self.major),
            (1, self.collect),
        ]
        weights = [weight for weight, _ in actions]
        (_, action), *_ = self.random.choices(actions, weights)
        self.steps.append(action.__name__)
        action()

    # -- what must hold

    def _check_compacted(
        self, old: RowSetMeta, new: RowSetMeta, schema: Schema, compacted: set[int] | None
    ) -> None:
        same = ("id", "row_count", "key_min", "key_max", "key_index", "bloom", "insert_timestamp")
        assert all(getattr(old, name) == getattr(new, name) for name in same)
        assert new.live_row_count == old.live_row_count
        for ref in new.file_refs:
            verify_file(LocalStorage(), self.set_folder / ref.name, ref)
        for delta in (*new.redo, *new.undo):
            self._check_order(
                delta.ref.name,
                DeltaFile(LocalStorage(), self.set_folder / delta.ref.name, delta, 99),
            )
        self._check_steps_back(new)
        ends = [delta.timestamp_max for delta in new.redo]
        assert all(end <= d.timestamp_min for end, d in zip(ends, new.redo[1:], strict=False))
        if compacted is None:
            return
        ids = [c for base in new.base for c in base.column_ids]
        known = {column.id for column in schema.columns}
        keys = {column.id for column in schema.key_columns}
        assert len(ids) == len(set(ids))
        assert compacted <= set(ids) <= known
        assert not any(compacted & set(d.update_counts) for d in new.redo)
        assert all(set(d.update_counts) <= known for d in new.redo)
        if compacted and len(new.base) > 1:
            assert not any(set(base.column_ids) <= keys for base in new.base)

    def _check_steps_back(self, meta: RowSetMeta) -> None:
        """Walking back over all UNDO files a row goes from there to not there, and so on."""
        is_there: dict[int, bool] = {}
        for delta in meta.undo:
            rows = DeltaFile(
                LocalStorage(), self.set_folder / delta.ref.name, delta, meta.row_count
            ).read()
            for rowid, op in zip(rows.rowids.tolist(), rows.ops.tolist(), strict=True):
                if op != OP_UPDATE:
                    assert is_there.get(rowid, True) == (op == OP_DELETE)
                    is_there[rowid] = op != OP_DELETE

    @staticmethod
    def _check_order(name: str, file: DeltaFile) -> None:
        rows = file.read()
        steps = np.diff(rows.rowids)
        if rows.timestamps is None:
            assert (steps > 0).all()
            return
        times = np.diff(rows.timestamps.astype(np.int64))
        in_time = times <= 0 if name.startswith("undo") else times >= 0
        assert ((steps > 0) | ((steps == 0) & in_time)).all()

    def check(self, timestamps: Sequence[int]) -> None:
        """Compare every way to read with the dictionary at moments that may be read."""
        reads = RowSetReads(self.opened(), self.schema, self.keys, self.model, self.random)
        for timestamp in timestamps:
            if timestamp >= self.mark:
                reads.check(timestamp)
