"""Random tables and writes: few keys of many types, several partitionings, all operations."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

import kudulite
from kudulite.errors import RowError
from kudulite.model.encoded_key import encode_key
from tests.support.oracle.table_model import (
    DELETES,
    OPERATIONS,
    UPDATES,
    Counts,
    ModelTable,
    Row,
)
from tests.support.oracle.version_model import Key
from tests.support.tables.core_tables import CoreTables, in_order, stored, tuples

UTC = datetime.UTC
EPOCH = datetime.datetime(2013, 1, 1, tzinfo=UTC)
TEXTS = ("", "a", "a\0", "b", "b\0b", "ÿ", "\U0001f600", "zz")

# Name -> (key columns, the i-th of many keys). Keys share prefixes, so that ranges overlap.
KEYS: dict[str, tuple[list[tuple[str, Any]], Any]] = {
    "int32": ([("k", kudulite.int32)], lambda i: ((-1) ** i * i,)),
    "int8": ([("k", kudulite.int8)], lambda i: (i - 20,)),
    "string, timestamp": (
        [("s", kudulite.string), ("t", kudulite.unixtime_micros)],
        lambda i: (TEXTS[i % len(TEXTS)], EPOCH + datetime.timedelta(microseconds=i // 3)),
    ),
    "decimal, int16": (
        [("d", "decimal(12, 2)"), ("k", kudulite.int16)],
        lambda i: (Decimal(i - 25) / 4, -i),
    ),
    "date, binary": (
        [("d", kudulite.date), ("k", kudulite.binary)],
        lambda i: (datetime.date(1969, 12, 28) + datetime.timedelta(i // 5), bytes([i, 0, 255])),
    ),
    "int64, varchar": (
        [("k", kudulite.int64), ("s", "varchar(8)")],
        lambda i: ((i // 6) << 40, TEXTS[i % 6]),
    ),
}
VALUE_COLUMNS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("a", kudulite.int64, {}),
    ("b", kudulite.string, {"default": "none"}),
    ("c", kudulite.int32, {"nullable": False, "default": 3}),
    ("l", kudulite.array(kudulite.string), {}),
    ("r", kudulite.double, {"nullable": False}),
)
DEFAULTS = {"b": "none", "c": 3}


@dataclass
class Write:
    """One write: rows with their operations, all providing the columns `names`."""

    operation: str | None
    names: tuple[str, ...]
    rows: list[tuple[str, Row]]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = [(operation, tuple(row.values())) for operation, row in self.rows]
        return f"{self.operation or 'mixed'} {self.names} {self.options} {rows}"


class RandomTable:
    """A table and its model, driven by one random generator."""

    def __init__(
        self,
        core: CoreTables,
        seed: int,
        *,
        has_required: bool = True,
        has_immutable: bool | None = None,
    ) -> None:
        self.core = core
        self.random = random.Random(seed)
        self.log: list[str] = [f"seed {seed}"]
        if has_immutable is None:
            has_immutable = self.random.random() < 0.3
        kind = self.random.choice(sorted(KEYS))
        columns, make_key = KEYS[kind]
        self.keys = [make_key(i) for i in range(self.random.randint(5, 50))]
        self.key_names = [name for name, _ in columns]
        values = [c for c in VALUE_COLUMNS if has_required or c[0] != "r"]
        self.model = ModelTable(
            self.key_names,
            [v[0] for v in values],
            DEFAULTS,
            frozenset({"r"} if has_required else ()),
            frozenset({"b"} if has_immutable else ()),
        )
        described = [kudulite.column(name, column_type) for name, column_type in columns]
        described += [
            kudulite.column(name, column_type, **options, mutable=name not in self.model.immutable)
            for name, column_type, options in values
        ]
        schema = kudulite.schema(described, self.key_names)
        layout = self._layout()
        self.log.append(f"key {kind}, {layout}")
        self.table = core.client().create_table("t", schema, **layout)

    def _layout(self) -> dict[str, Any]:
        """A random partitioning that covers every key."""
        layout: dict[str, Any] = {}
        names = list(self.key_names)
        if self.random.random() < 0.6:
            size = self.random.randint(1, len(names))
            hashed = self.random.sample(names, size)
            layout["hash_partitions"] = [(hashed, self.random.choice([2, 3, 5]), size * 7)]
            left = [name for name in names if name not in hashed]
            if left and self.random.random() < 0.5:
                layout["hash_partitions"].append((left, 2))
        if self.random.random() < 0.5:
            splits = self.random.sample(self.keys, self.random.randint(1, 3))
            bounds = sorted({key[0] for key in splits})
            edges = [None, *bounds, None]
            pairs = [list(pair) for pair in itertools.pairwise(edges)]
            layout["range_partitions"] = {"columns": names[:1], "bounds": pairs}
        return layout

    # -- writes

    def random_write(self, operations: Sequence[str | None] = (*OPERATIONS, None)) -> Write:
        """A write that is likely, not sure, to be accepted. None is a mixed batch."""
        operation = self.random.choice(operations)
        names = self._columns(operation)
        count = self.random.choice([1, 2, 5, 12, 25])
        keys = self.random.choices(self.keys, k=count)
        if operation in ("insert", "update", "delete") and self.random.random() < 0.9:
            keys = list(
                dict.fromkeys(k for k in keys if (k in self.model.rows) != (operation == "insert"))
            )
        safe = tuple(o for o in OPERATIONS if o not in ("insert", "update", "delete"))
        each = safe if self.random.random() < 0.8 else OPERATIONS
        rows = [(operation or self.random.choice(each), self._row(key, names)) for key in keys]
        options: dict[str, Any] = {}
        if self.random.random() < 0.25:
            options["ignore_null"] = True
        if self.model.immutable.isdisjoint(names) and self.random.random() < 0.3:
            options["unchanged"] = "skip"
        return Write(operation, names, rows, options)

    def _columns(self, operation: str | None) -> tuple[str, ...]:
        if operation in DELETES:
            return ()
        names = self.model.value_names
        size = self.random.choice([len(names), len(names), self.random.randint(0, len(names))])
        chosen = set(self.random.sample(list(names), size))
        if self.model.required and operation not in UPDATES and self.random.random() < 0.9:
            chosen |= self.model.required
        if operation in UPDATES and chosen <= self.model.immutable:
            chosen |= {"a"}
        return tuple(name for name in names if name in chosen)

    def _row(self, key: tuple, names: Sequence[str]) -> Row:
        values = {
            "a": self.random.choice([None, *range(-3, 6)]),
            "b": self.random.choice([None, *TEXTS]),
            "c": self.random.randint(0, 9),
            "l": self.random.choice([None, [], [None], ["a"], ["", None, "zz" * 20]]),
            "r": self.random.choice([-0.5, 0.0, 1.5]),
        }
        return dict(zip(self.key_names, key, strict=True)) | {n: values[n] for n in names}

    def arrow(self, write: Write, rows: Sequence[tuple[str, Row]] | None = None) -> pa.Table:
        """The rows of a write as Arrow, with the operation column `op` if it is mixed."""
        found = write.rows if rows is None else rows
        schema = self.table.arrow_schema
        columns = {
            name: pa.array([row[name] for _, row in found], schema.field(name).type)
            for name in [*self.key_names, *write.names]
        }
        if write.operation is None:
            columns["op"] = pa.array([operation for operation, _ in found], pa.string())
        return pa.table(columns)

    def apply(self, write: Write) -> None:
        """Give the write to table and model; both accept it with the same counts, or refuse."""
        self.log.append(repr(write))
        model, options = self.model, dict(write.options)
        before = model.rows
        try:
            counts = model.write(write.rows, **options)
        except RowError as expected:
            version = self.table.version
            self.expect_refused(write, str(expected))
            assert self.table.version == version
            return
        data = self.arrow(write)
        if options.pop("overwrite", False):
            result = self.table.overwrite(data, **options)
        elif write.operation is None:
            result = self.table.apply(data, **options)
        else:
            result = getattr(self.table, write.operation)(data, **options)
        self.compare_counts(result, counts, write, before)
        model.committed(result.timestamp)

    def expect_refused(self, write: Write, why: str) -> None:
        """The table refuses the write with a row error."""
        try:
            if write.operation is None:
                self.table.apply(self.arrow(write), **write.options)
            else:
                getattr(self.table, write.operation)(self.arrow(write), **write.options)
        except RowError:
            return
        raise AssertionError(f"{self.log}\naccepted, expected: {why}")

    # -- comparing

    def compare_counts(
        self,
        result: kudulite.WriteResult,
        counts: Counts,
        write: Write,
        before: dict[Key, Row],
    ) -> None:
        """The counts of a write are the model's, whose rows were `before`.

        Rows that are left out of a write that skips them are counted apart. An overwrite that skips
        them counts rows of before as updated and deleted.
        """
        updated = result.updated + result.unchanged
        found = result.inserted, updated, result.deleted, result.ignored
        expected = counts.inserted, counts.updated, counts.deleted, counts.ignored
        rows = self.model.rows
        if "unchanged" not in write.options:
            assert not result.unchanged
        elif write.options.get("overwrite"):
            kept = len(before.keys() & rows.keys())
            gone = len(before.keys() - rows.keys())
            expected = counts.inserted - kept, counts.updated + kept, *expected[2:]
            expected = *expected[:2], counts.deleted + gone, counts.ignored
        self.same(found, expected, "counts")
        is_new = result.timestamp not in {timestamp for timestamp, _ in self.model.versions}
        if "unchanged" in write.options and write.operation is not None and is_new:
            window = self.table.changes(result.timestamp - 1, result.timestamp)
            changed = {tuple(row[n] for n in self.key_names) for row in window.to_pylist()}
            keys = before.keys() | rows.keys()
            differ = {key for key in keys if before.get(key) != rows.get(key)}
            self.same(changed, differ, "changes")

    def reopen(self) -> None:
        """Go on with a client that has seen nothing."""
        self.table = self.core.client().table("t")

    def compare_past(self) -> None:
        """Every commit timestamp shows what it showed."""
        for timestamp, rows in self.model.versions:
            self.same(stored(self.table, timestamp), self.model.tuples(rows), f"at {timestamp}")

    def compare_now(self) -> None:
        """All ways to read the present agree with the model."""
        expected = self.model.tuples()
        self.same(stored(self.table), expected, "scan")
        self.same(self.table.scan().count(), len(expected), "count")
        self.same(self.table.statistics.live_row_count, len(expected), "live rows")
        ordered = tuples(self.table.scan(ordered=True).to_arrow())
        in_key_order = sorted(expected, key=lambda row: self.encoded(row[: len(self.key_names)]))
        self.same(ordered, in_key_order, "ordered scan")
        tokens = self.table.scan_tokens(split_size_bytes=1)
        pieces = [batch for token in tokens for batch in token.open()]
        self.same(in_order(row for batch in pieces for row in tuples(batch)), expected, "tokens")

    def encoded(self, key: tuple) -> bytes:
        """The encoded key."""
        return encode_key(key, self.table.schema.key_types)

    def compare_lookups(self) -> None:
        """`get` and `get_many` find what is there and nothing else."""
        keys = self.random.sample(self.keys, min(8, len(self.keys)))
        rows = self.model.rows
        names = self.table.schema.names
        for key in keys[:4]:
            found = self.table.get(key)
            expected = self._full(key) if key in rows else None
            self.same(found and tuple(found[n] for n in names), expected, f"get {key}")
        many = tuples(self.table.get_many(keys))
        self.same(many, [self._full(key) for key in keys if key in rows], f"get_many {keys}")

    def _full(self, key: tuple) -> tuple:
        return (*key, *(self.model.rows[key][name] for name in self.model.value_names))

    def compare_predicates(self, at: tuple[int, dict] | None = None) -> None:
        """Random conjunctions and disjunctions give the rows that Python's comparisons choose."""
        timestamp, rows = at or (None, self.model.rows)
        names = self.table.schema.names
        for _ in range(3):
            chosen = [self._predicate() for _ in range(self.random.choice([1, 1, 2]))]
            if self.random.random() < 0.3:
                chosen = [self._either(*self._predicate(), *self._predicate()), *chosen[1:]]
            expected = [
                row
                for row in self.model.tuples(rows)
                if all(accepts(dict(zip(names, row, strict=True))) for _, accepts in chosen)
            ]
            where = [predicate for predicate, _ in chosen]
            found = self.table.scan(where=where, at=timestamp)
            self.same(in_order(tuples(found.to_arrow())), expected, f"{where} at {timestamp}")
            self.same(found.count(), len(expected), f"count {where} at {timestamp}")

    @staticmethod
    def _either(one: Any, accepts: Any, other: Any, accepts_other: Any) -> tuple[Any, Any]:
        return one | other, lambda row: accepts(row) or accepts_other(row)

    def _predicate(self) -> tuple[Any, Any]:
        """A predicate and the same in Python, over a row as a dict."""
        name = self.random.choice(self.table.schema.names)
        column = self.table[name]
        if name == "l":
            if self.random.random() < 0.5:
                return column.is_null(), lambda row: row[name] is None
            return column.is_not_null(), lambda row: row[name] is not None
        if name in self.key_names:
            value = self.random.choice(self.keys)[self.key_names.index(name)]
        else:
            some = {"a": [0, 3], "b": ["a", "b"], "c": [3, 5], "r": [0.0]}
            value = self.random.choice(some[name])
        made = {
            "=": (column == value, lambda v: v == value),
            "<": (column < value, lambda v: v < value),
            "<=": (column <= value, lambda v: v <= value),
            ">": (column > value, lambda v: v > value),
            ">=": (column >= value, lambda v: v >= value),
            "in": (column.in_list([value]), lambda v: v == value),
            "!=": (column != value, lambda v: v != value),
            "not >": (~(column > value), lambda v: v <= value),
        }
        if self.random.random() < 0.15:
            return column.is_null(), lambda row: row[name] is None
        if self.random.random() < 0.1:
            return column.is_not_null(), lambda row: row[name] is not None
        predicate, accepts = made[self.random.choice(sorted(made))]
        return predicate, lambda row: row[name] is not None and accepts(row[name])

    def same(self, found: Any, expected: Any, what: str) -> None:
        """Fail with the whole history when `found` differs."""
        if found != expected:
            history = "\n".join(self.log)
            raise AssertionError(f"{history}\n{what}:\nfound    {found}\nexpected {expected}")
