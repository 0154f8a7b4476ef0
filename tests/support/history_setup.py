"""Small tables with a history: keys, columns of every kind that can be altered, and their values.

Steps give values as small integers or None; `value_of` makes them the value of a column's type, so
the same step fits a column that was widened, or dropped and added again with another type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from history_model import HistoryModel, ModelColumn
from model_table import Key

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.model.types import ColumnType, parse_type

# Strings share prefixes and hold what the key encoding escapes.
KEYS: dict[str, tuple[tuple[str, Any], ...]] = {
    "int": (("k", kudulite.int32),),
    "composite": (("s", kudulite.string), ("n", kudulite.int64)),
}
_HEADS = ("", "a", "a\0", "a\0b", "ÿ")
TEXTS = ("", "a", "a\0", "ÿ", "\U0001f600", "abcdef")
FIRST_COLUMNS = (
    ModelColumn(0, "a", parse_type("int8")),
    ModelColumn(1, "b", parse_type("varchar(6)"), True, "none", "none"),
    ModelColumn(2, "c", parse_type("int32"), False, 300_000, 300_000),
    ModelColumn(3, "f", parse_type("float")),
    ModelColumn(4, "m", parse_type("decimal(4, 1)")),
    ModelColumn(5, "l", parse_type("array(string)")),
)
COLUMN_NAMES = ("a", "b", "c", "f", "m", "l", "x", "y", "z")
ADDED_TYPES = tuple(
    parse_type(name)
    for name in (
        *("int8", "int16", "int32", "int64", "float", "double", "decimal(4, 1)", "varchar(6)"),
        *("string", "binary", "bool", "date", "unixtime_micros"),
        *("array(int8)", "array(bool)", "array(decimal(4, 1))", "array(binary)"),
    )
)
WIDER = {
    parse_type(narrow): tuple(parse_type(name) for name in wide)
    for narrow, wide in {
        "int8": ("int16", "int32", "int64"),
        "int16": ("int32", "int64"),
        "int32": ("int64",),
        "float": ("double",),
        "decimal(4, 1)": ("decimal(9, 1)", "decimal(18, 1)", "decimal(38, 1)"),
        "decimal(9, 1)": ("decimal(12, 1)", "decimal(38, 1)"),
        "varchar(6)": ("varchar(12)", "string"),
        "varchar(12)": ("string",),
    }.items()
}
_INTEGERS = {"int8": 1, "int16": 300, "int32": 100_000, "int64": 10**12}
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
RANGE_COUNT = 4
LAYOUTS = ("one", "hashed", "ranges")


@dataclass(frozen=True)
class Setup:
    """A small table: `keys` of KEYS, `layout` of LAYOUTS.

    `tick` is by how many microseconds the clock moves when somebody looks; `group_rows`, if given,
    how many rows a row group has, so that few rows are many row groups.
    """

    keys: str = "int"
    layout: str = "one"
    key_count: int = 5
    retention: int = 3
    tick: int = 1
    group_rows: int | None = None

    @property
    def key_names(self) -> list[str]:
        """Names of the key columns."""
        return [name for name, _ in KEYS[self.keys]]

    def key(self, number: int) -> Key:
        """One of the keys, which rise with the number."""
        number %= self.key_count
        if self.keys == "int":
            return (-7 + number * number,)
        low, high = number * len(_HEADS) // self.key_count, number
        return _HEADS[low], high - 2

    def range_of(self, number: int) -> int:
        """In which of the ranges a key is."""
        return number % self.key_count * RANGE_COUNT // self.key_count

    def bounds(self, place: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The bounds of one of the ranges, which cover all keys."""
        numbers = [n for n in range(self.key_count) if self.range_of(n) == place]
        lower = None if place == 0 else self._named(numbers[0])
        upper = None if place == RANGE_COUNT - 1 else self._named(numbers[-1] + 1)
        return lower, upper

    def _named(self, number: int) -> dict[str, Any]:
        return dict(zip(self.key_names, self.key(number), strict=True))

    def create(self, client: Client) -> Table:
        """The empty table, named `t`."""
        builder = kudulite.schema_builder()
        for name, column_type in KEYS[self.keys]:
            builder.add_column(name, column_type, nullable=False)
        for column in FIRST_COLUMNS:
            builder.add_column(
                column.name, column.type, nullable=column.nullable, default=column.write_default
            )
        builder.set_primary_keys(self.key_names)
        layout: dict[str, Any] = {}
        if self.layout == "hashed":
            layout["hash_partitions"] = [(self.key_names, 3)]
        elif self.layout == "ranges":
            bounds = [
                [None if side is None else list(side.values()) for side in self.bounds(place)]
                for place in range(RANGE_COUNT)
            ]
            layout["range_partitions"] = {"columns": self.key_names, "bounds": bounds}
        table = client.create_table("t", builder.build(), **layout)
        return client.new_table_alterer(table).set_history_retention(self.retention).alter()

    def model(self) -> HistoryModel:
        """The model of the table."""
        model = HistoryModel(self.key_names, [])
        model.set_columns(FIRST_COLUMNS)
        return model


def value_of(column: ModelColumn, number: int | None) -> Any:
    """The value of a column that a number stands for; the wider the type, the larger."""
    if number is None and column.nullable:
        return None
    number = number or 0
    column_type = column.type
    if column_type.element is not None:
        element = replace(column, type=column_type.element, nullable=True)
        numbers = [None if at == 1 else number + at for at in range(number % 4)]
        return [value_of(element, each) for each in numbers]
    if column_type.is_integer:
        return number * _INTEGERS[column_type.name]
    if column_type.is_float:
        return number / (2 if column_type.name == "float" else 3)
    if column_type.name == "decimal":
        assert column_type.precision is not None
        return Decimal(number).scaleb(-1 if column_type.precision == 4 else 3)
    if column_type.is_text:
        text = TEXTS[number % len(TEXTS)]
        return text * (3 if column_type.name == "string" else 1)
    if column_type.name == "binary":
        return bytes([number % 256]) * (number % 3)
    if column_type.name == "bool":
        return number % 2 == 0
    if column_type.name == "date":
        return date(2020, 1, 1) + timedelta(days=number)
    return _EPOCH + timedelta(seconds=number)


def widened(column: ModelColumn, choice: int) -> ModelColumn | None:
    """The column with a wider type, None where there is none."""
    wider: tuple[ColumnType, ...] = WIDER.get(column.type, ())
    return replace(column, type=wider[choice % len(wider)]) if wider else None
