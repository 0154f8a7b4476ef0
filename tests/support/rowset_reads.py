"""The dictionary of all versions of a rowset's rows, and every way to read the rowset beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np

from kudulite.model.encoded_key import encode_key, key_width
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import Predicate, bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.wal.row_changes import CHANGE_DELETE, CHANGE_INSERT

LAST = 1 << 60
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
class Model:
    """Every change of each key, in order; what a snapshot shows is played from them."""

    events: dict[tuple, list[Event]] = field(default_factory=dict)

    def row(self, key: tuple, timestamp: int) -> dict[int, Any] | None:
        """The values that a row has at a moment, by column id; None when it is not there."""
        values: dict[int, Any] | None = None
        for event in self.events.get(key, ()):
            if event.timestamp > timestamp:
                break
            if event.op == CHANGE_DELETE:
                values = None
            elif event.op == CHANGE_INSERT:
                values = dict(event.values)
            else:
                assert values is not None
                values = values | event.values
        return values

    def add(self, key: tuple, event: Event) -> None:
        """Append a change."""
        self.events.setdefault(key, []).append(event)

    def moments(self) -> list[int]:
        """Every timestamp of a change, the one before it, and one after all."""
        stamps = {event.timestamp for events in self.events.values() for event in events}
        return sorted({*stamps, *(stamp - 1 for stamp in stamps), LAST})


@dataclass
class RowSetReads:
    """A rowset of `keys` at most, beside the `model` of their versions."""

    rowset: DiskRowSet
    schema: Schema
    keys: Sequence[tuple]
    model: Model
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
