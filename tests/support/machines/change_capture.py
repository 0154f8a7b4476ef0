"""A set of changes, what it must leave, and random ways to deliver it: change capture's model.

The model needs no history: of each key the newest change of the whole set says what is there. Newer
is a higher ordering value; of equal ones a delete; of equal upserts the greater cells.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import kudulite
from kudulite.client.table import Table
from tests.support.oracle.table_model import sort_key
from tests.support.tables.core_tables import CoreTables, stored

KEYS = range(6)
UPKEEP = ("flush", "compact", "maintain", "reopen", "other", "session")
Change = tuple[str, int, Any, str | None, float | None]
NAN = float("nan")
ORDERINGS: dict[str, tuple[Any, Sequence[Any]]] = {
    "int64": (kudulite.int64, range(-4, 8)),
    "string": (kudulite.string, ["", "0", "00", "1", "10", "9", "a", "\U0001f600"]),
    "double": (kudulite.double, [-1e300, -1.0, -0.0, 0.0, 1e-300, 2.0, NAN]),
}
NAMES = ["op", "k", "o", "v", "x"]


class Capture:
    """A set of changes, tables that receive it, and what was done to them."""

    def __init__(self, core: CoreTables, seed: int) -> None:
        self.core = core
        self.random = random.Random(seed)
        self.log = [f"seed {seed}"]
        kind = self.random.choice(sorted(ORDERINGS))
        self.ordering_type, values = ORDERINGS[kind]
        self.values = self.random.sample(values, self.random.choice([1, 2, len(values)]))
        count = self.random.choice([3, 10, 30])
        self.changes = [self._change() for _ in range(count)]
        self.log.append(f"ordered by {kind}: {self.changes}")

    def _change(self) -> Change:
        choose = self.random.choice
        kind, key, value = choose("IUUDD"), choose(KEYS), choose(self.values)
        if kind == "D":
            return kind, key, value, None, None
        return kind, key, value, choose([None, "", "a", "b"]), choose([None, -0.0, 0.0, 1.0, NAN])

    def expected(self) -> list[str]:
        """The rows that the newest change of each key leaves."""
        newest: dict[int, Change] = {}
        for change in self.changes:
            known = newest.get(change[1])
            if known is None or rank(change) > rank(known):
                newest[change[1]] = change
        rows = [(k, o, v, x) for kind, k, o, v, x in newest.values() if kind != "D"]
        return sorted(map(repr, rows))

    def create(self, name: str) -> Table:
        """A new table."""
        columns = [
            kudulite.column("k", kudulite.int32),
            kudulite.column("o", self.ordering_type),
            kudulite.column("v", kudulite.string),
            kudulite.column("x", kudulite.double),
        ]
        buckets = self.random.choice([1, 1, 3])
        options = {"hash_partitions": [(["k"], buckets)]} if buckets > 1 else {}
        return self.core.client().create_table(name, kudulite.schema(columns, "k"), **options)

    def deliver(self, name: str) -> list[str]:
        """Send the changes to a new table, in a random way; returns the rows that it has then."""
        table = self.create(name)
        for batch in self.batches():
            self.log.append(f"{name}: {batch}")
            self.apply(table, batch)
            for step in self.random.sample(UPKEEP, self.random.choice([0, 0, 1, 2])):
                self.log.append(step)
                table = self._look_after(table, step)
        return self.rows_of(table)

    def rows_of(self, table: Table) -> list[str]:
        """The rows of a table that changes are of."""
        return sorted(repr(row) for row in stored(table) if row[0] in KEYS)

    def batches(self) -> list[list[Change]]:
        """The changes in any order, cut anywhere; batches are replayed, whole or in part."""
        order = list(self.changes)
        self.random.shuffle(order)
        most = self.random.choice([2, 5, len(order)])
        batches = []
        while order:
            size = self.random.randint(1, most)
            batches.append(order[:size])
            order = order[size:]
            if self.random.random() < 0.4:
                replayed = list(self.random.choice(batches))
                self.random.shuffle(replayed)
                batches.append(replayed[self.random.randint(0, 1) :] or replayed)
        return batches

    def apply(self, table: Table, batch: Sequence[Change]) -> None:
        """In one call, or as tasks of a bulk write whose parts come in any order."""
        arrays = [pa.array(column) for column in zip(*batch, strict=True)]
        rows = pa.Table.from_arrays(arrays, names=NAMES)
        if self.random.random() < 0.7:
            table.apply(rows, ordering_column="o")
            return
        write = table.new_bulk_write(columns=NAMES[1:], operation_column="op", ordering_column="o")
        cut = self.random.randint(0, len(batch))
        parts = [rows.slice(0, cut), rows.slice(cut)]
        staged = [write.stage([part], task_index=i) for i, part in enumerate(parts)]
        write.commit(staged[::-1])

    def _look_after(self, table: Table, step: str) -> Table:
        if step == "reopen":
            return self.core.client().table(table.name)
        if step == "other":
            table.upsert([{"k": 100 + self.random.randrange(9), "v": "other"}])
        elif step == "session":
            client = self.core.client()
            session = client.new_session()
            session.apply(client.table(table.name).new_upsert({"k": 100, "v": "session"}))
            session.flush()
        elif step == "maintain":
            table.maintain(grace_seconds=0)
        else:
            getattr(table, step)()
        return table


def rank(change: Change) -> list:
    """Compares as the newer of two changes of a key does."""
    kind, _, value, text, number = change
    cells = [] if kind == "D" else [*float_rank(value), text, *float_rank(number)]
    return sort_key([*float_rank(value)[:1], kind == "D", *cells])


def float_rank(value: Any) -> list:
    """The order of a value, then that of its bits; NaN is greater than all numbers."""
    if not isinstance(value, float):
        return [value]
    is_nan = value != value
    number = 0.0 if is_nan else value
    return [(is_nan, number), not str(value).startswith("-")]
