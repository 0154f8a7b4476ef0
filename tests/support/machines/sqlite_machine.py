"""The same random operations on a table and on SQLite: rows, refusals, counts and queries agree.

One row at a time through a session, batches, changes of all rows of a condition, and scans with
conditions of three-valued logic, an order and a limit. Now and then the table is flushed, compacted
or opened again.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import kudulite
from kudulite.client.client import Client
from kudulite.errors import RowError
from tests.support.tables.core_tables import environment, in_order, tuples

KEYS = 40
TEXTS = (None, "", "a", "a\x01", "b", "ÿ", "\U0001f600", "zz")
NUMBERS = (None, -(1 << 62), -3, -1, 0, 1, 2, 7, 1 << 40)
COLUMNS = ("k", "n", "s")
CREATE = "CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER, s TEXT COLLATE BINARY) STRICT"


class SqliteMachine:
    """A table of two tablets and a table of SQLite; `count` operations were compared."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self.count = 0
        self._reference = sqlite3.connect(":memory:")
        self._reference.execute(CREATE)
        columns = [
            kudulite.column("k", kudulite.int64),
            kudulite.column("n", kudulite.int64),
            kudulite.column("s", kudulite.string),
        ]
        client = Client(folder, environment())
        client.create_table("t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)])
        self._open()

    def _open(self) -> None:
        client = Client(self._folder, environment())
        self._table, self._session = client.table("t"), client.new_session()

    def run(self, count: int) -> int:
        """Take so many steps; returns how many operations were compared."""
        steps = (
            *[self._row] * 8,
            *[self._query] * 5,
            self._batch,
            self._change_where,
            self._maintain,
        )
        for _ in range(count):
            self._chance.choice(steps)()
        self._compare("SELECT k, n, s FROM t", ())
        self._table.check().raise_if_bad()
        self._reference.close()
        return self.count

    # -- writes

    def _values(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "k": chance.randrange(KEYS),
            "n": chance.choice(NUMBERS),
            "s": chance.choice(TEXTS),
        }

    def _row(self) -> None:
        """One row through the log."""
        row, self.count = self._values(), self.count + 1
        operation = self._chance.choice(("insert", "upsert", "update", "delete"))
        is_there = self._has(row["k"])
        expected = is_there if operation == "insert" else operation == "upsert" or is_there
        expected = not is_there if operation == "insert" else expected
        given = {"k": row["k"]} if operation == "delete" else row
        self._session.apply(getattr(self._table, f"new_{operation}")(given))
        try:
            self._session.flush()
            is_done = True
        except RowError:
            self._session.get_pending_errors()
            is_done = False
        assert is_done == expected, (operation, row)
        if is_done:
            self._apply(operation, row)

    def _batch(self) -> None:
        """Some rows at once, with different keys."""
        rows = list({row["k"]: row for row in (self._values() for _ in range(8))}.values())
        operation = self._chance.choice(("upsert", "insert_ignore", "update_ignore"))
        getattr(self._table, operation)(rows)
        for row in rows:
            self.count += 1
            if operation == "upsert" or self._has(row["k"]) == (operation == "update_ignore"):
                self._apply(operation.removesuffix("_ignore"), row)

    def _has(self, key: int) -> bool:
        return self._reference.execute("SELECT 1 FROM t WHERE k = ?", (key,)).fetchone() is not None

    def _apply(self, operation: str, row: dict[str, Any]) -> None:
        if operation == "delete":
            self._reference.execute("DELETE FROM t WHERE k = :k", row)
        elif operation == "update":
            self._reference.execute("UPDATE t SET n = :n, s = :s WHERE k = :k", row)
        else:
            self._reference.execute("INSERT OR REPLACE INTO t VALUES (:k, :n, :s)", row)

    def _change_where(self) -> None:
        """All rows of a condition."""
        condition, self.count = self._condition(2), self.count + 1
        if self._chance.random() < 0.5:
            done = self._table.delete(where=condition).deleted
            found = self._reference.execute(f"DELETE FROM t WHERE {condition}")
        else:
            number = self._chance.choice(NUMBERS)
            done = self._table.update(where=condition, set={"n": number}).updated
            found = self._reference.execute(f"UPDATE t SET n = ? WHERE {condition}", (number,))
        assert done == found.rowcount, condition

    # -- queries

    def _condition(self, depth: int) -> str:
        chance = self._chance
        if depth and chance.random() < 0.6:
            left, right = self._condition(depth - 1), self._condition(depth - 1)
            return chance.choice((f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"))
        name = chance.choice(COLUMNS)
        values = {"k": range(-1, KEYS + 1), "n": NUMBERS[1:], "s": TEXTS[1:]}[name]
        literals = [repr(value) if name != "s" else f"'{value}'" for value in values]
        shape = chance.choice(("compare", "compare", "in", "null"))
        if shape == "null":
            return f"{name} IS {chance.choice(('', 'NOT '))}NULL"
        if shape == "in":
            return f"{name} IN ({', '.join(chance.sample(literals, 3))})"
        return (
            f"{name} {chance.choice(('=', '<>', '<', '<=', '>', '>='))} {chance.choice(literals)}"
        )

    def _query(self) -> None:
        """Rows of a condition, sometimes in the order of the keys with a limit."""
        condition = self._condition(3)
        if self._chance.random() < 0.3:
            limit = self._chance.randrange(1, 8)
            found = self._table.scan(where=condition, ordered=True, limit=limit).to_arrow()
            query = f"SELECT k, n, s FROM t WHERE {condition} ORDER BY k LIMIT {limit}"
            self.count += 1
            assert tuples(found) == self._reference.execute(query).fetchall(), condition
            return
        self._compare(f"SELECT k, n, s FROM t WHERE {condition}", condition)

    def _compare(self, query: str, condition: Any) -> None:
        self.count += 1
        scan = self._table.scan(where=condition) if condition else self._table.scan()
        expected = in_order(self._reference.execute(query).fetchall())
        assert in_order(tuples(scan.to_arrow())) == expected, condition
        assert scan.count() == len(expected), condition

    def _maintain(self) -> None:
        """Another process, or another layout of the same rows."""
        self._chance.choice((self._open, self._flush, self._compact))()

    def _flush(self) -> None:
        self._table.flush()

    def _compact(self) -> None:
        self._table.compact()
