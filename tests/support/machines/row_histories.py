"""Random histories of a few rows, the dictionary of their versions, and every way to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from kudulite.basefile.block_cache import BlockCache
from kudulite.model.condition import Predicate
from kudulite.model.encoded_key import encode_key, key_width
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset import rowset_writer
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.oracle.version_model import Row, VersionModel

KEYS = {
    "int64": [(i,) for i in (-300, -1, 0, 1, 300)],
    "string": [(s,) for s in ("", "a", "a\0", "ab", "b")],
    "string,int32": [(s, i) for s in ("", "a") for i in (-1, 2, 70_000)],
    "int64,int32": [(i, j) for i in (-1, 5) for j in (0, 1, 9)],
}
VALUES = {
    "a": ("int64", st.none() | st.integers(-3, 3)),
    "s": ("string", st.none() | st.sampled_from(["", "x", "yy"])),
    "b": ("bool", st.none() | st.booleans()),
    "l": (
        "array(int32)",
        st.none() | st.lists(st.none() | st.integers(-3, 3), max_size=3),
    ),
}


@dataclass(frozen=True)
class Change:
    """One effect on one row: an INSERT has all values, an UPDATE some, a DELETE none."""

    timestamp: int
    key: tuple
    op: int
    values: Row


@dataclass
class Versions:
    """The rows of a table by key, after each moment at which any of them changed."""

    schema: Schema
    keys: list[tuple]
    changes: list[Change] = field(default_factory=list)

    @property
    def of_rows(self) -> VersionModel:
        """The versions that the changes make."""
        made = VersionModel()
        for change in self.changes:
            made.change(change.timestamp, change.key, change.op, change.values)
        return made

    def at(self, timestamp: int) -> dict[tuple, Row]:
        """Return the rows that a snapshot sees."""
        return self.of_rows.at(timestamp)

    def moments(self) -> list[int]:
        """Every timestamp of a change, the one before it, one before all, and one after all."""
        return sorted({0, *self.of_rows.moments()})

    def encoded(self, key: tuple) -> bytes:
        """The encoded form of a key."""
        return encode_key(key, self.schema.key_types)


def make_schema(key: str) -> Schema:
    """A schema with key columns of the given types and the columns of `VALUES`."""
    types = key.split(",")
    columns = [Column(0, f"k{i}", parse_type(t), nullable=False) for i, t in enumerate(types)]
    columns += [Column(0, name, parse_type(t)) for name, (t, _) in VALUES.items()]
    return Schema.build(columns, [f"k{i}" for i in range(len(types))])


@st.composite
def new_versions(draw: Callable, min_size: int = 1, max_size: int = 20) -> Versions:
    """Draw a table without rows, then extend it."""
    key = draw(st.sampled_from(sorted(KEYS)))
    versions = Versions(make_schema(key), KEYS[key])
    extend(draw, versions, min_size, max_size, live_only=None)
    return versions


def extend(
    draw: Callable,
    versions: Versions,
    min_size: int,
    max_size: int,
    live_only: set[tuple] | None,
) -> list[Change]:
    """Add changes after those there are; a key changes at most once at one moment.

    `live_only` are the keys of a DiskRowSet: of these, only rows that are live may change, and a
    deleted one never comes back.
    """
    live = set(versions.at(1 << 60))
    if live_only is not None:
        live &= live_only
    timestamp = versions.changes[-1].timestamp + 1 if versions.changes else 10
    added: list[Change] = []
    at_once: set[tuple] = set()
    for _ in range(draw(st.integers(min_size, max_size))):
        key = draw(st.sampled_from(versions.keys))
        step = draw(st.integers(0, 2))
        if step or key in at_once:
            timestamp, at_once = timestamp + max(step, 1), set()
        if live_only is not None and key not in live:
            continue
        at_once.add(key)
        if key not in live:
            live.add(key)
            values = {name: draw(strategy) for name, (_, strategy) in VALUES.items()}
            added.append(Change(timestamp, key, CHANGE_INSERT, values))
        elif draw(st.integers(0, 2)):
            names = draw(st.sets(st.sampled_from(sorted(VALUES)), min_size=1))
            values = {name: draw(VALUES[name][1]) for name in sorted(names)}
            added.append(Change(timestamp, key, CHANGE_UPDATE, values))
        else:
            live.discard(key)
            added.append(Change(timestamp, key, CHANGE_DELETE, {}))
    versions.changes += added
    return added


def columns_of(
    schema: Schema, changes: Sequence[Change], with_keys: bool
) -> tuple[dict[int, pa.Array], dict[int, np.ndarray]]:
    """Changes as RowChanges has them: values by column id, and which rows set them."""
    columns: dict[int, pa.Array] = {}
    is_set: dict[int, np.ndarray] = {}
    if with_keys:
        for at, column in enumerate(schema.key_columns):
            columns[column.id] = pa.array([c.key[at] for c in changes], column.type.arrow)
    for column in schema.value_columns:
        given = np.array([column.name in change.values for change in changes], bool)
        if given.any():
            cells = [change.values.get(column.name) for change in changes]
            columns[column.id] = pa.array(cells, column.type.arrow)
            if not given.all():
                is_set[column.id] = given
    return columns, is_set


def apply_changes(memory: MemRowSet, versions: Versions, changes: Sequence[Change]) -> None:
    """Apply changes to a MemRowSet in one call."""
    columns, is_set = columns_of(versions.schema, changes, with_keys=True)
    memory.apply(
        [versions.encoded(change.key) for change in changes],
        np.array([change.op for change in changes], np.uint8),
        columns,
        is_set,
        np.array([change.timestamp for change in changes], np.uint64),
    )


def in_batches(draw: Callable, changes: Sequence[Change]) -> list[list[Change]]:
    """Cut changes into runs of neighbours, one row each or more."""
    batches: list[list[Change]] = []
    rest = list(changes)
    while rest:
        count = draw(st.sampled_from([1, 1, 2, 5]))
        batches.append(rest[:count])
        rest = rest[count:]
    return batches


def check_reads(
    rowsets: Sequence[RowSet], versions: Versions, timestamp: int, only: set[tuple] | None = None
) -> None:
    """Compare every way to read rowsets of disjoint keys with the dictionary, at one moment.

    `only` are the keys that these rowsets may hold.
    """
    rows = versions.at(timestamp)
    if only is not None:
        rows = {key: row for key, row in rows.items() if key in only}
    visible = [rowset for rowset in rowsets if rowset.is_visible(timestamp)]
    assert sum(rowset.live_row_count(timestamp) for rowset in visible) == len(rows)
    for rowset in visible:
        _check_lookups(rowset, versions, rows, timestamp)
    found = {key for rowset in visible for key in _live_keys(rowset, versions, timestamp)}
    assert found == set(rows)
    encoded = sorted(versions.encoded(key) for key in versions.keys)
    for predicates, lower, upper in (
        ([], None, None),
        ([Predicate("a", ">=", 0)], encoded[1], encoded[-1]),
        ([Predicate("s", "is_null")], encoded[2] + b"\0", None),
    ):
        bound = bind_predicates(predicates, versions.schema)
        spec = ScanSpec(
            versions.schema, tuple(versions.schema.names), bound, timestamp, lower, upper, True
        )
        _check_scan(visible, spec, versions, rows, predicates)


def _live_keys(rowset: RowSet, versions: Versions, timestamp: int) -> list[tuple]:
    width = key_width(versions.schema.key_types)
    return [
        key
        for key in versions.keys
        if rowset.find_one(versions.encoded(key), width, timestamp) >= 0
    ]


def _check_lookups(
    rowset: RowSet, versions: Versions, rows: dict[tuple, Row], timestamp: int
) -> None:
    schema = versions.schema
    width = key_width(schema.key_types)
    keys = sorted(versions.keys, key=versions.encoded)
    encoded = [versions.encoded(key) for key in keys]
    found = rowset.find(KeyArray.from_bytes(encoded, width), timestamp).tolist()
    assert found == [rowset.find_one(key, width, timestamp) for key in encoded]
    live = [(key, rowid) for key, rowid in zip(keys, found, strict=True) if rowid >= 0]
    for key, rowid in live:
        cells = rowset.read_row(rowid, schema.columns, timestamp)
        assert cells == _cells(key, rows[key])
    backwards = live[::-1]
    if backwards:
        rowids = np.array([rowid for _, rowid in backwards], np.int64)
        arrays = rowset.read_rows(rowids, schema.columns, timestamp)
        expected = [_cells(key, rows[key]) for key, _ in backwards]
        assert [list(row) for row in zip(*(a.to_pylist() for a in arrays), strict=True)] == expected


def _check_scan(
    rowsets: Sequence[RowSet],
    spec: ScanSpec,
    versions: Versions,
    rows: dict[tuple, Row],
    predicates: list[Predicate],
) -> None:
    expected = sorted(
        (code, _cells(key, row))
        for key, row in rows.items()
        if (code := versions.encoded(key)) >= (spec.lower or b"")
        and (spec.upper is None or code < spec.upper)
        and all(_matches(predicate, row) for predicate in predicates)
    )
    found: list[tuple[bytes, list]] = []
    for rowset in rowsets:
        own = _scanned(rowset, spec)
        assert [key for key, _ in own] == sorted(key for key, _ in own)
        found += own
    assert sorted(found) == expected


def _scanned(rowset: RowSet, spec: ScanSpec) -> list[tuple[bytes, list]]:
    found = []
    for block in rowset.blocks(spec):
        result = rowset.read_block(block, spec)
        if result is None:
            continue
        assert result.keys is not None
        assert result.batch.schema.equals(spec.schema.arrow_schema(spec.names))
        cells = zip(*(column.to_pylist() for column in result.batch.columns), strict=True)
        found += zip(result.keys, map(list, cells), strict=True)
    return found


def _matches(predicate: Predicate, row: Row) -> bool:
    value = row[predicate.column]
    if predicate.op == "is_null":
        return value is None
    return value is not None and value >= predicate.value


def _cells(key: tuple, row: Row) -> list[Any]:
    return [*key, *(row[name] for name in VALUES)]


def in_memory(versions: Versions) -> MemRowSet:
    """A MemRowSet with all changes, applied in one call."""
    memory = MemRowSet(versions.schema)
    apply_changes(memory, versions, versions.changes)
    return memory


def flushed(memory: MemRowSet, folder: Path, rows_max: int) -> list[RowSetMeta]:
    """Write a MemRowSet to rowsets of at most so many rows."""
    image = flush_image(memory.snapshot())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowset_writer, "ROW_GROUP_ROWS", rows_max)
        patch.setattr(rowset_writer, "ROWSET_ROWS_MAX", rows_max)
        metas = list(write_rowsets(NewFiles(LocalStorage()), folder, memory.schema, image))
    assert all(RowSetMeta.from_json(meta.to_json()) == meta for meta in metas)
    for meta in metas:
        assert {path.name for path in (folder / meta.id).iterdir()} == set(meta.file_names)
    return metas


def opened(metas: list[RowSetMeta], folder: Path) -> list[DiskRowSet]:
    """The rowsets, each with its own cache."""
    return [
        DiskRowSet(meta, folder / meta.id, BlockCache(LocalStorage(), 1 << 20)) for meta in metas
    ]
