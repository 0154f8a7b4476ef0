"""DiskRowSets that a test writes out cell by cell, and what a snapshot sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    DeltaFileMeta,
    DeltaRows,
    create_delta_file,
    without_unset,
)
from kudulite.model.encoded_key import encode_keys
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles

# (rowid, timestamp, cells by column name); None in place of the cells is a DELETE.
Change = tuple[int, int, Mapping[str, Any] | None]


def schema_of(key: str = "k", **types: str) -> Schema:
    """A schema with an int64 key and nullable columns of the given types."""
    columns = [Column(0, key, parse_type("int64"), nullable=False)]
    columns += [Column(0, name, parse_type(text)) for name, text in types.items()]
    return Schema.build(columns, [key])


@dataclass
class SmallRowSet:
    """A rowset of rows 0, 1, … with these values, all inserted at `inserted`."""

    folder: Path
    schema: Schema
    meta: RowSetMeta

    @staticmethod
    def write(
        folder: Path, schema: Schema, values: Mapping[str, Sequence], inserted: int = 10
    ) -> SmallRowSet:
        """Write base data; the key of row i is i."""
        count = len(next(iter(values.values())))
        keys = pa.array(range(count), pa.int64())
        arrays = [keys, *(pa.array(values[c.name], c.type.arrow) for c in schema.value_columns)]
        rows = pa.Table.from_arrays(arrays, schema=schema.arrow_schema())
        encoded = encode_keys([keys], schema.key_types)
        (meta,) = write_rowsets(NewFiles(LocalStorage()), folder, schema, RowImages(encoded, rows))
        return SmallRowSet(folder, schema, replace(meta, insert_timestamp=inserted))

    @property
    def set_folder(self) -> Path:
        """The rowset's own folder."""
        return self.folder / self.meta.id

    def add_redo(self, *changes: Change) -> DeltaFileMeta:
        """Write changes, by row id and time, as the newest REDO file."""
        columns = {}
        for column in self.schema.value_columns:
            given = [cells or {} for _, _, cells in changes]
            values = pa.array([cells.get(column.name) for cells in given], column.type.arrow)
            columns[column.id] = DeltaColumn(values, np.array([column.name in c for c in given]))
        rows = DeltaRows(
            np.array([rowid for rowid, _, _ in changes], np.int64),
            np.array([OP_DELETE if c is None else OP_UPDATE for _, _, c in changes], np.uint8),
            columns,
            np.array([timestamp for _, timestamp, _ in changes], np.uint64),
        )
        entry = create_delta_file(
            NewFiles(LocalStorage()), self.set_folder, "redo", without_unset(rows)
        )
        self.meta = self.meta.with_redo((entry,))
        return entry

    def opened(self) -> DiskRowSet:
        """The rowset as its entry is now, with nothing cached."""
        return DiskRowSet(self.meta, self.set_folder, BlockCache(LocalStorage(), 1 << 20))

    def rows(self, timestamp: int) -> list[dict[str, Any]]:
        """The rows of a scan at a moment."""
        rowset = self.opened()
        names = tuple(self.schema.names)
        spec = ScanSpec(self.schema, names, bind_predicates((), self.schema), timestamp)
        found: list[dict[str, Any]] = []
        for block in rowset.blocks(spec):
            scanned = rowset.read_block(block, spec)
            found += [] if scanned is None else scanned.batch.to_pylist()
        return found

    def delta(self, entry: DeltaFileMeta) -> list[tuple[int, int, int, dict[int, Any]]]:
        """The entries of a delta file: (rowid, timestamp, op, cells by column id)."""
        file = DeltaFile(
            LocalStorage(), self.set_folder / entry.ref.name, entry, self.meta.row_count
        )
        rows = file.read()
        cells: list[dict[int, Any]] = [{} for _ in rows.rowids]
        for column_id, column in rows.columns.items():
            is_set = np.ones(len(cells), bool) if column.is_set is None else column.is_set
            for at in np.flatnonzero(is_set).tolist():
                cells[at][column_id] = column.values[at].as_py()
        stamps = rows.timestamps
        times = [entry.timestamp_min] * len(cells) if stamps is None else stamps.tolist()
        return list(zip(rows.rowids.tolist(), times, rows.ops.tolist(), cells, strict=True))
