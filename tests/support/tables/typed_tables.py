"""Random tables with a column of every type, changed in every way that leaves a row elsewhere.

Bulk writes make rowsets and REDO files, sessions make memory, flushes make UNDO files, compactions
join them, an overwrite ends rowsets, an alteration adds, renames and drops columns. A dictionary
goes along, and knows the rows of every moment at which the table stood still.
"""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
from kudulite import Client, Table

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
KEY_COUNT = 60

DAY, DATE, MOMENT = datetime.date, kudulite.date, datetime.datetime
MICROSECOND = datetime.timedelta(microseconds=1)

# Name, type, values: extremes and whatever a statistic, an encoding or a calendar may spoil.
SCALARS: tuple[tuple[str, Any, list[Any]], ...] = (
    ("flag", kudulite.bool_, [True, False]),
    ("i8", kudulite.int8, [-128, -1, 0, 127]),
    ("i16", kudulite.int16, [-32768, 0, 300, 32767]),
    ("i32", kudulite.int32, [-(2**31), -7, 0, 2**31 - 1]),
    ("i64", kudulite.int64, [-(2**63), -1, 0, 5, 2**63 - 1]),
    ("f32", kudulite.float_, [math.nan, -0.0, 0.0, 1.5, -math.inf, math.inf]),
    ("f64", kudulite.double, [math.nan, -0.0, 0.0, 2.5, -1e300, math.inf]),
    ("text", kudulite.string, ["", "a", "a\0", "ÿ", "\U0001f600", "zz" * 40]),
    ("short", "varchar(5)", ["", "b", "ü", "\U0001f600\U0001f600"]),
    ("raw", kudulite.binary, [b"", b"\0", b"\xff\xfe", b"abc"]),
    ("day", DATE, [DAY(1, 1, 1), DAY(1582, 10, 10), DAY(1969, 12, 31), DAY(9999, 12, 31)]),
    (
        "moment",
        kudulite.unixtime_micros,
        [
            EPOCH.replace(year=2),
            EPOCH - MICROSECOND,
            EPOCH.replace(year=1500, microsecond=3),
            EPOCH.replace(year=9998),
        ],
    ),
    (
        "local",
        kudulite.timestamp_ntz,
        [MOMENT(1, 1, 1), MOMENT(1582, 10, 7), MOMENT(2024, 1, 1, microsecond=999_999)],
    ),
    ("d9", "decimal(9, 2)", [Decimal("-9999999.99"), Decimal("0.00"), Decimal("1.50")]),
    (
        "d18",
        "decimal(18, 4)",
        [Decimal("-99999999999999.9999"), Decimal("0.0001"), Decimal("7.0000")],
    ),
    (
        "d38",
        "decimal(38, 10)",
        [Decimal("1234567890123456789012345678.0123456789"), Decimal("-1E-10"), Decimal(3)],
    ),
)
# Values as above, none, and nulls among them.
ARRAYS: tuple[tuple[str, Any, list[Any]], ...] = (
    ("flags", "array(bool)", [[], [True, None, False], [None]]),
    ("numbers", "array(int32)", [[], [None], [-(2**31), None, 2**31 - 1], list(range(50))]),
    ("doubles", "array(double)", [[], [math.nan, None, 1e300]]),
    ("texts", "array(string)", [[], ["", None, "\U0001f600"], ["a\0"], ["zz" * 40]]),
    ("sums", "array(decimal(9, 2))", [[], [Decimal("-9999999.99"), None, Decimal("1.50")]]),
)
COLUMNS = (*SCALARS, *ARRAYS)
KEY_NAMES = ("group", "id")
VALUES = {name: values for name, _, values in COLUMNS}


class TypedTable:
    """A table at `path` with its random generator, and the moments at which it stood still."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.client: Client = kudulite.connect(path.parent, background_maintenance=False)
        columns = [kudulite.column("group", kudulite.string), kudulite.column("id", kudulite.int32)]
        for name, kind, _ in COLUMNS:
            encoding = self.random.choice(["auto", "plain"])
            columns.append(kudulite.column(name, kudulite.parse_type(str(kind)), encoding=encoding))
        buckets = self.random.choice([1, 2, 3])
        layout = [(["id"], buckets)] if buckets > 1 else None
        self.table: Table = self.client.create_table(
            path.name, kudulite.schema(columns, ["group", "id"]), hash_partitions=layout
        )
        self.values = dict(VALUES)  # of each column as it is named now
        self._now: dict[int, dict[str, Any]] = {}
        self._past: dict[int, list[dict[str, Any]]] = {}
        self.stand_still()

    @property
    def path(self) -> str:
        """The table's folder."""
        return str(self.table.path)

    @property
    def moments(self) -> list[int]:
        """The moments at which the table stood still, in order."""
        return list(self._past)

    def expected(self, moment: int) -> pa.Table:
        """The rows of a moment, as the dictionary has them, in key order."""
        return pa.Table.from_pylist(self._past[moment], schema=self.table.arrow_schema)

    def stand_still(self) -> None:
        """Note the moment, and the rows."""
        rows = [self._now[number].copy() for number in self._now]
        rows.sort(key=lambda row: (row["group"], row["id"]))
        self._past[self.table.current_timestamp()] = rows

    def row(self, number: int, names: list[str] | None = None) -> dict[str, Any]:
        """A row of key `number` with random values in some columns, NULL among them."""
        row: dict[str, Any] = {"group": f"g{number % 3}", "id": number}
        for name in self.values if names is None else names:
            is_null = self.random.random() < 0.15
            row[name] = None if is_null else self.random.choice(self.values[name])
        return row

    def step(self) -> None:
        """Change the table in one of the ways, and note the moment."""
        steps = [self.bulk, self.bulk, self.rows, self.delete, self.update, self.flush]
        self.random.choice(steps)()
        self.stand_still()

    def _numbers(self, fraction: float) -> list[int]:
        return [n for n in range(KEY_COUNT) if self.random.random() < fraction]

    def bulk(self) -> None:
        """Upsert many rows in one commit."""
        rows = [self.row(number) for number in self._numbers(0.5)]
        self.table.upsert(pa.Table.from_pylist(rows, schema=self.table.arrow_schema))
        self._now |= {row["id"]: row for row in rows}

    def part(self) -> None:
        """Upsert some neighbours: a rowset of few keys, or updates of those that are there."""
        first = self.random.randrange(KEY_COUNT)
        rows = [self.row(number) for number in range(first, min(first + 9, KEY_COUNT))]
        self.table.upsert(pa.Table.from_pylist(rows, schema=self.table.arrow_schema))
        self._now |= {row["id"]: row for row in rows}

    def update(self) -> None:
        """Set one or two columns of some rows in one commit."""
        names = self.random.sample(sorted(self.values), 2)
        rows = [self.row(number, names) for number in self._numbers(0.15)]
        self._write("update_ignore", rows)
        self._now |= {r["id"]: self._now[r["id"]] | r for r in rows if r["id"] in self._now}

    def delete(self) -> None:
        """Delete some rows in one commit."""
        rows = [self.row(number, []) for number in self._numbers(0.1)]
        self._write("delete_ignore", rows)
        for row in rows:
            self._now.pop(row["id"], None)

    def reinsert(self) -> None:
        """Delete some rows, and insert most of them again at once and in another commit."""
        rows = [self.row(number) for number in self._numbers(0.15)]
        self._write("delete_ignore", [{name: row[name] for name in KEY_NAMES} for row in rows])
        self._now = {n: r for n, r in self._now.items() if n not in {row["id"] for row in rows}}
        self.stand_still()
        self._write("insert", rows[1:])
        self._now |= {row["id"]: row for row in rows[1:]}

    def _write(self, operation: str, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        schema = pa.schema([self.table.arrow_schema.field(name) for name in rows[0]])
        write = self.table.new_bulk_write(operation, columns=schema.names)
        write.commit([write.stage(pa.Table.from_pylist(rows, schema=schema).to_batches())])

    def rows(self) -> None:
        """Change some rows one by one: they stay in memory."""
        session = self.client.new_session()
        for number in self._numbers(0.1):
            kind = self.random.choice(["upsert", "upsert", "delete"])
            if kind == "upsert":
                self._now[number] = self.row(number)
                session.apply(self.table.new_upsert(self._now[number]))
            else:
                self._now.pop(number, None)
                session.apply(self.table.new_delete_ignore(self.row(number, [])))
        session.flush()

    def flush(self) -> None:
        """Write memory to disk."""
        self.table.flush()

    def compact(self) -> None:
        """Bring the table to its best shape: no row has a delta."""
        self.table.compact()

    def alter(self) -> None:
        """Add, rename and drop columns; one comes back under the name of another."""
        alterer = self.client.new_table_alterer(self.table)
        alterer.add_column("added", kudulite.int64, default=17)
        alterer.alter_column("i32", rename_to="renamed")
        alterer.drop_column("i16")
        self.table = alterer.alter()
        alterer = self.client.new_table_alterer(self.table)
        alterer.add_column("i16", kudulite.string)
        self.table = alterer.alter()
        self.values["renamed"] = self.values.pop("i32")
        self.values |= {"i16": VALUES["text"], "added": [17, None, 2**40]}
        states = [self._now.values(), *self._past.values()]
        for row in {id(row): row for rows in states for row in rows}.values():
            row["renamed"] = row.pop("i32")
            row |= {"i16": None, "added": 17}
        self.stand_still()

    def overwrite(self) -> None:
        """Replace all rows: rowsets end, and stay for the past."""
        rows = [self.row(number) for number in self._numbers(0.6)]
        self.table.overwrite(pa.Table.from_pylist(rows, schema=self.table.arrow_schema))
        self._now = {row["id"]: row for row in rows}
        self.stand_still()


def random_table(path: Path, seed: int, step_count: int = 10) -> TypedTable:
    """A table after so many random changes."""
    made = TypedTable(path, seed)
    made.bulk()
    for _ in range(step_count):
        made.step()
    return made
