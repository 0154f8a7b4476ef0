"""Rowsets in a folder of a test, and every version of every row that they must show.

Nothing is random here. Reads go through DiskRowSet, one rowset at a time, as those of a tablet do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kudulite.cfile.block_cache import BlockCache
from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaFile
from kudulite.delta.delta_history import stamped
from kudulite.fs.file_system import FileSystem
from kudulite.model.encoded_key import decode_key, encode_key, key_width
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.scan_spec import ScanSpec

Row = dict[int, Any]


@dataclass(frozen=True)
class Version:
    """What a key was from a moment on: cells by column id, or None for no row."""

    timestamp: int
    key: tuple
    row: Row | None


class RowSetVersions:
    """Rowsets by id, the rows that are live in them, and what they were at each moment.

    `mark` is the ancient history mark: nobody reads before it. Time stands at `now`.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        self.folder = folder
        self.schema = schema
        self.file_system = FileSystem()
        self.cache = BlockCache(1 << 22)
        self.now, self.mark = 10, 0
        self.rowsets: dict[str, RowSetMeta] = {}
        self.versions: list[Version] = []
        self.live: dict[tuple, Row] = {}
        self.place: dict[tuple, str] = {}  # live key → its rowset

    def note(self, timestamp: int, key: tuple, row: Row | None) -> None:
        """A row was written, or is none any more."""
        self.versions.append(Version(timestamp, key, row))
        if row is None:
            self.live.pop(key, None)
            self.place.pop(key, None)
        else:
            self.live[key] = row

    def adopt(self, metas: Sequence[RowSetMeta], keys: set[tuple]) -> None:
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
        stamps = {version.timestamp for version in self.versions}
        stamps |= {stamp - 1 for stamp in stamps} | {self.mark, self.now + 1}
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
        rows: dict[tuple, Row | None] = {}
        for version in self.versions:
            if version.timestamp <= timestamp:
                rows[version.key] = version.row
        columns = self.schema.value_columns
        return {
            key: [row.get(column.id, column.read_default) for column in columns]
            for key, row in rows.items()
            if row is not None
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
        rows = stamped(DeltaFile(folder / delta.ref.name, delta, meta.row_count))
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
