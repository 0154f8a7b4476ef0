"""Small tables with a history: keys, columns of every kind that can be altered, and their values.

Steps give values as small integers or None; `value_of` makes them the value of a column's type, so
the same step fits a column that was widened, or dropped and added again with another type.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import kudulite
from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.model.hybrid_time import LOGICAL_BITS
from kudulite.model.types import ColumnType, parse_type
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from tests.support.doubles.pausing_storage import PausingStorage
from tests.support.machines.unanswered import again
from tests.support.oracle.table_model import UPDATES, HistoryModel, Key, ModelColumn, Row
from tests.support.tables.core_tables import ManualClock, environment

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
LAYOUTS = ("one", "hashed", "ranges", "hashed ranges")


@dataclass(frozen=True)
class Setup:
    """A small table: `keys` of KEYS, `layout` of LAYOUTS.

    `tick` is by how many microseconds the clock moves when somebody looks; `group_rows`, if given,
    how many rows a row group has, so that few rows are many row groups. `faults`, if given, is the
    seed of the faults of a store, for processes whose storage is FAULTY (base_storage.py).
    """

    keys: str = "int"
    layout: str = "one"
    key_count: int = 5
    retention: int = 3
    tick: int = 1
    group_rows: int | None = None
    faults: int | None = None

    @property
    def has_ranges(self) -> bool:
        """Whether there are range partitions."""
        return self.layout in ("ranges", "hashed ranges")

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
        columns = [kudulite.column(name, column_type) for name, column_type in KEYS[self.keys]]
        columns += [
            kudulite.column(
                column.name,
                column.type,
                nullable=column.nullable,
                default=column.write_default,
                mutable=column.mutable,
            )
            for column in FIRST_COLUMNS
        ]
        layout: dict[str, Any] = {}
        if self.layout == "hashed":
            layout["hash_partitions"] = [(self.key_names, 3)]
        elif self.has_ranges:
            bounds: list[list[Any]] = [
                [None if side is None else list(side.values()) for side in self.bounds(place)]
                for place in range(RANGE_COUNT)
            ]
            if self.layout == "hashed ranges":
                layout["hash_partitions"] = [(self.key_names, 2)]
                bounds[1].append([(self.key_names[-1], 3)])
            layout["range_partitions"] = {"columns": self.key_names, "bounds": bounds}
        table = client.create_table("t", kudulite.schema(columns, self.key_names), **layout)
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


CLIENTS = 2
SMALL_ROWS_MAX = 4  # batches of the second client that go through the log
# Tokens are opened by the clock of the machine, which must not overtake ours.
AHEAD_SECONDS = 3600
# A moment that a ticking clock does not reach while it is looked at.
SLACK = 5_000 << LOGICAL_BITS


class MovingClock(ManualClock):
    """A clock that steps move, and that moves by `tick` microseconds whenever somebody looks."""

    def __init__(self, tick: int) -> None:
        super().__init__(time.time_ns() // 1000 + AHEAD_SECONDS * 1_000_000)
        self._ticks = itertools.count(0, tick)

    def now(self) -> int:
        """The present as a HybridTime."""
        return self.microseconds + next(self._ticks) << LOGICAL_BITS


class HistoryState:
    """A table, its clients, and the model that it must equal."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model()
        self.folder = folder
        self.clock = MovingClock(setup.tick)
        self.clients = [self.new_client(number) for number in range(CLIENTS)]
        self.tables = [setup.create(self.clients[0])]
        self.tables += [client.table("t") for client in self.clients[1:]]
        self.sessions: dict[int, Any] = {}
        self.slots: dict[int, Any] = {}
        self.tags: dict[str, int] = {}
        self.keys = [setup.key(number) for number in range(setup.key_count)]
        self.retention = setup.retention
        self.next_column_id = itertools.count(len(self.model.columns))
        self.tablet_of: dict[Key, str | None] = {}
        self.mark = 0
        self.description = ("", "")  # owner and comment
        self.find_tablets()

    def new_client(self, number: int) -> Client:
        """A client that has seen nothing; the second writes small batches through the log."""
        small = SMALL_ROWS_MAX if number else 0
        parts = environment(PausingStorage(), self.clock, small_write_rows_max=small)
        return Client(self.folder, parts)

    def find_tablets(self) -> None:
        """Ask which tablet owns each key, after a change of the partitioning."""
        ids = [entry.id for entry in self.manifest.tablets]
        rows = [dict(zip(self.setup.key_names, key, strict=True)) for key in self.keys]
        found = again(lambda: self.tables[0].tablet_index(rows)).to_pylist()
        self.tablet_of = {
            key: ids[place] if place >= 0 else None
            for key, place in zip(self.keys, found, strict=True)
        }
        uncovered = {key for key, tablet in self.tablet_of.items() if tablet is None}
        self.same(uncovered, set(self.model.uncovered), "keys that no tablet owns")

    # -- names and values

    @property
    def store(self) -> TableStore:
        """The table's folder, as the first client sees it."""
        return self.tables[0]._store

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return again(self.store.newest)

    def column(self, name: str) -> ModelColumn | None:
        """The column that has a name of COLUMN_NAMES now, if any."""
        assert name in COLUMN_NAMES
        return next((column for column in self.model.columns if column.name == name), None)

    @property
    def mutable_names(self) -> set[str]:
        """The names of the mutable columns; there is one at least."""
        return {column.name for column in self.model.columns if column.mutable}

    def row(self, operation: str, number: int, values: Row) -> tuple[Row, Row]:
        """A row for the table, by name, and for the model, by column id; unknown names left out.

        An update sets at least one mutable column, or it would be an error.
        """
        if operation in UPDATES and self.mutable_names.isdisjoint(values):
            values = values | {min(self.mutable_names): next(iter(values.values()), 0)}
        key = dict(zip(self.setup.key_names, self.setup.key(number), strict=True))
        named, numbered = dict(key), dict(key)
        for column in self.model.columns:
            if column.name in values:
                value = value_of(column, values[column.name])
                named[column.name] = numbered[column.id] = value
        return named, numbered

    # -- moments

    def settle_mark(self) -> int:
        """The ancient history mark, checked against the rule; the model forgets what is before."""
        manifest = self.manifest
        mark = again(lambda: ancient_history_mark(self.store, manifest))
        age = self.retention * 1_000_000 << LOGICAL_BITS
        rule = min([self.clock.now() - age, manifest.timestamp, *self.tags.values()])
        expected = max(0, manifest.history_start, rule)
        if not mark <= expected <= mark + SLACK:
            raise AssertionError(f"mark {mark}, expected {expected}")
        if mark < self.mark:
            raise AssertionError(f"the mark went back from {self.mark} to {mark}")
        self.mark = mark
        self.model.prune(mark)
        return mark

    def legal_moments(self) -> list[int]:
        """Commit timestamps and tags from the mark on, ascending; with it where it stands still."""
        self.settle_mark()
        first, stamps = self.first_legal, self.model.timestamps
        found = set(stamps[bisect_left(stamps, first) :])
        found |= {tag for tag in self.tags.values() if tag >= first}
        if not self.setup.tick:
            found.add(first)
        return sorted(found)

    @property
    def first_legal(self) -> int:
        """The first moment that the mark found last does not pass while it is looked at.

        The table exists at it.
        """
        mark = self.mark + SLACK if self.setup.tick else self.mark
        return max(mark, self.manifest.created)

    def moment(self, at: int | None) -> int | None:
        """A legal moment that a number stands for, or one right before it; None is now."""
        if at is None:
            return None
        moments = self.legal_moments()
        if not moments:
            return None
        place, is_before = divmod(at, 2)
        chosen = moments[place % len(moments)]
        return chosen - 1 if is_before and chosen > self.first_legal else chosen

    def same(self, found: Any, expected: Any, what: str) -> None:
        """Fail where two things differ."""
        if found != expected:
            raise AssertionError(f"{what}:\nfound    {found}\nexpected {expected}")


def by_key(rows: Iterable[tuple], key_count: int) -> dict[Key, tuple]:
    """Rows by key. Raises AssertionError for a key that is there twice."""
    listed = list(rows)
    found = {row[:key_count]: row for row in listed}
    if len(found) != len(listed):
        raise AssertionError(f"a key twice: {sorted(listed, key=repr)}")
    return found
