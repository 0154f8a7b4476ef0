"""The dictionary model of a table that is also written row by row, and small tables to compare.

A flush of a session applies each row by itself: a row that the table cannot take is reported and
leaves the others applied. A batch is applied whole or not at all, as in `model_table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model_table import DELETES, MISSING, Counts, Key, ModelTable, Row

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import RowError

KEY_COUNT = 5
UNCOVERED = 2  # the key that no tablet owns in a table of the layout "gap"

# Key columns, and the five keys. Strings share prefixes and hold what the encoding escapes.
KEYS: dict[str, tuple[tuple[tuple[str, Any], ...], tuple[Key, ...]]] = {
    "int": ((("k", kudulite.int32),), ((-7,), (0,), (1,), (2,), (1 << 30,))),
    "composite": (
        (("s", kudulite.string), ("n", kudulite.int64)),
        (("", 1), ("a", -1), ("a\0", -1), ("a\0b", 0), ("ÿ", 1 << 40)),
    ),
}
VALUES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("a", kudulite.int64, {}),
    ("b", kudulite.string, {"default": "none"}),
    ("c", kudulite.int32, {"nullable": False, "default": 3}),
    ("l", kudulite.array(kudulite.unixtime_micros), {}),
)
REQUIRED = ("r", kudulite.double, {"nullable": False})
DEFAULTS = {"b": "none", "c": 3}
LAYOUTS = ("one", "three", "gap")


@dataclass(frozen=True)
class Setup:
    """A small table: `keys` of KEYS, `layout` of LAYOUTS; `required`: with a column to be given."""

    keys: str = "int"
    layout: str = "one"
    required: bool = False

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [name for name, _ in KEYS[self.keys][0]]

    @property
    def value_names(self) -> list[str]:
        """Names of the other columns."""
        return [name for name, _, _ in VALUES] + (["r"] if self.required else [])

    def key(self, index: int) -> Key:
        """One of the five keys."""
        return KEYS[self.keys][1][index]

    def row(self, index: int, values: Row) -> Row:
        """A row of a key and values."""
        return dict(zip(self.key_names, self.key(index), strict=True)) | values

    def create(self, client: Client) -> Table:
        """The empty table, named `t`."""
        builder = kudulite.schema_builder()
        for name, column_type in KEYS[self.keys][0]:
            builder.add_column(name, column_type, nullable=False)
        for name, column_type, options in (*VALUES, *([REQUIRED] if self.required else [])):
            builder.add_column(name, column_type, **options)
        builder.set_primary_keys(self.key_names)
        layout: dict[str, Any] = {}
        if self.layout == "three":
            layout["hash_partitions"] = [(self.key_names, 3)]
        elif self.layout == "gap":
            edges = [self.key(UNCOVERED), self.key(UNCOVERED + 1)]
            bounds = [[None, list(edges[0])], [list(edges[1]), None]]
            layout["range_partitions"] = {"columns": self.key_names, "bounds": bounds}
        return client.create_table("t", builder.build(), **layout)

    def model(self) -> RowModel:
        """The model of the table."""
        return RowModel(
            self.key_names,
            self.value_names,
            DEFAULTS,
            frozenset({"r"} if self.required else ()),
            uncovered=frozenset({self.key(UNCOVERED)} if self.layout == "gap" else ()),
        )


@dataclass
class RowModel(ModelTable):
    """A ModelTable whose rows can also be written one by one; no tablet owns `uncovered` keys."""

    uncovered: frozenset[Key] = frozenset()

    def write(self, operations: Sequence[tuple[str, Row]], **options: Any) -> Counts:
        """Apply all rows or raise RowError and change nothing."""
        if any(self.key(row) in self.uncovered for _, row in operations):
            raise RowError("a key that no tablet owns", reason=RowError.REASON_NO_PARTITION)
        return super().write(operations, **options)

    def write_each(self, operations: Sequence[tuple[str, Row]]) -> tuple[Counts, dict[int, str]]:
        """Apply each row that can be; returns counts, and {position: reason} of the others."""
        counts, failures = Counts(), {}
        for number, (operation, row) in enumerate(operations):
            reason = self._reason(operation, row)
            if reason is None:
                self._apply(self.rows, operation, row, False, counts)
            else:
                failures[number] = reason
        return counts, failures

    def _reason(self, operation: str, row: Row) -> str | None:
        """Why the table cannot take a row now, or None."""
        key = self.key(row)
        is_present = key in self.rows
        if key in self.uncovered:
            return RowError.REASON_NO_PARTITION
        if operation == "insert" and is_present:
            return RowError.REASON_ALREADY_PRESENT
        if operation in ("update", "delete") and not is_present:
            return RowError.REASON_NOT_FOUND
        makes_row = not is_present and operation not in ("update_ignore", *DELETES)
        if makes_row and not self.required <= row.keys():
            return RowError.REASON_MISSING
        return None

    def expect_complete(self) -> None:
        """No row lacks a required value: the model itself is right."""
        assert not any(MISSING in row.values() for row in self.rows.values())
