"""Random tables with a column of every type, changed in every way that leaves a row elsewhere.

Bulk writes make rowsets and REDO files, sessions make memory, flushes make UNDO files, an overwrite
ends rowsets, an alteration adds, renames and drops columns.
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
COLUMNS: tuple[tuple[str, Any, list[Any]], ...] = (
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
KEY_NAMES = ("group", "id")
VALUES = {name: values for name, _, values in COLUMNS}


class TypedTable:
    """A table at `path` with its random generator, and the moments at which it stood still."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.client: Client = kudulite.connect(path.parent)
        builder = kudulite.schema_builder()
        builder.add_column("group", kudulite.string, nullable=False)
        builder.add_column("id", kudulite.int32, nullable=False)
        for name, kind, _ in COLUMNS:
            encoding = self.random.choice(["auto", "plain"])
            builder.add_column(name, kudulite.parse_type(str(kind)), encoding=encoding)
        builder.set_primary_keys(["group", "id"])
        buckets = self.random.choice([1, 2, 3])
        layout = [(["id"], buckets)] if buckets > 1 else None
        self.table: Table = self.client.create_table(
            path.name, builder.build(), hash_partitions=layout
        )
        self.moments: list[int] = [self.table.current_timestamp()]

    @property
    def path(self) -> str:
        """The table's folder."""
        return str(self.table.path)

    def row(self, number: int, names: list[str] | None = None) -> dict[str, Any]:
        """A row of key `number` with random values in some columns, NULL among them."""
        row: dict[str, Any] = {"group": f"g{number % 3}", "id": number}
        for name in VALUES if names is None else names:
            row[name] = None if self.random.random() < 0.15 else self.random.choice(VALUES[name])
        return row

    def step(self) -> None:
        """Change the table in one of the ways, and note the moment."""
        steps = [self.bulk, self.bulk, self.rows, self.delete, self.update, self.flush]
        self.random.choice(steps)()
        self.moments.append(self.table.current_timestamp())

    def _numbers(self, fraction: float) -> list[int]:
        return [n for n in range(KEY_COUNT) if self.random.random() < fraction]

    def bulk(self) -> None:
        """Upsert many rows in one commit."""
        rows = [self.row(number) for number in self._numbers(0.5)]
        self.table.upsert(pa.Table.from_pylist(rows, schema=self.table.arrow_schema))

    def update(self) -> None:
        """Set one or two columns of some rows in one commit."""
        names = self.random.sample(sorted(VALUES), 2)
        rows = [self.row(number, names) for number in self._numbers(0.15)]
        self._write("update_ignore", rows)

    def delete(self) -> None:
        """Delete some rows in one commit."""
        self._write("delete_ignore", [self.row(number, []) for number in self._numbers(0.1)])

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
                session.apply(self.table.new_upsert(self.row(number)))
            else:
                key = self.row(number, [])
                session.apply(self.table.new_delete_ignore(key))
        session.flush()

    def flush(self) -> None:
        """Write memory to disk."""
        self.table.flush()

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
        self.moments.append(self.table.current_timestamp())

    def overwrite(self) -> None:
        """Replace all rows: rowsets end, and stay for the past."""
        rows = [self.row(number) for number in self._numbers(0.6)]
        self.table.overwrite(pa.Table.from_pylist(rows, schema=self.table.arrow_schema))
        self.moments.append(self.table.current_timestamp())


def random_table(path: Path, seed: int, step_count: int = 10) -> TypedTable:
    """A table after so many random changes."""
    made = TypedTable(path, seed)
    made.bulk()
    for _ in range(step_count):
        made.step()
    return made
