"""Every type that a key column may have, alone and in each place of a key of several columns."""

import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import kudulite
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

# Values of each type in the order of their keys; the least and the greatest are among them.
VALUES: dict[str, list[Any]] = {
    "int8": [-128, -1, 0, 127],
    "int16": [-(1 << 15), -1, 0, (1 << 15) - 1],
    "int32": [-(1 << 31), -1, 0, (1 << 31) - 1],
    "int64": [-(1 << 63), -1, 0, (1 << 63) - 1],
    "date": [date(1, 1, 1), date(1969, 12, 31), date(2020, 2, 29), date(9999, 12, 31)],
    "unixtime_micros": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "decimal(9, 2)": [Decimal(n).scaleb(-2) for n in (-(10**9) + 1, -1, 0, 10**9 - 1)],
    "decimal(18, 0)": [Decimal(n) for n in (-(10**18) + 1, -1, 0, 10**18 - 1)],
    "decimal(38, 3)": [Decimal(f"{n}.000") for n in (-(10**35) + 1, -1, 0, 10**35 - 1)],
    "string": ["", "a", "a\0", "a\0b", "ab", "ÿ", "\U0001f600"],
    "varchar(4)": ["", "a", "a\0", "a\0b", "ab", "ÿ", "\U0001f600"],
    "binary": [b"", b"\0", b"\0\0", b"\0\1", b"\1", b"\xff", b"\xff\xff"],
}
KEYS = [(name,) for name in VALUES]
# Each type first, in the middle and last, with its neighbours in the list.
KEYS += [tuple((list(VALUES) * 2)[at : at + 3]) for at in range(len(VALUES))]


@tiered("types", KEYS, quick=[*KEYS[:12:4], *KEYS[12::4]])
def test_a_key_of_any_types_is_found_and_in_order(core: CoreTables, types: tuple[str, ...]):
    """By get, by a range of each column, before and after a flush, and after a reopening."""
    names = [f"k{number}" for number in range(len(types))]
    columns = [
        kudulite.column(name, column_type, nullable=False)
        for name, column_type in zip(names, types, strict=True)
    ]
    columns.append(kudulite.column("v", "int64"))
    schema = kudulite.schema(columns, names)
    client = core.client(small_write_rows_max=10_000)
    table = client.create_table("t", schema, hash_partitions=[(names, 2)])
    keys = list(itertools.product(*(VALUES[name] for name in types)))
    rows = [dict(zip([*names, "v"], [*key, at], strict=True)) for at, key in enumerate(keys)]
    table.upsert(rows[1::2])
    table.flush()
    table.upsert(rows[::2])  # unflushed at first
    for step in ("log", "flushed", "reopened"):
        if step == "flushed":
            table.flush()
        if step == "reopened":
            table = core.client().table("t")
        found = table.scan(ordered=True).to_arrow().to_pylist()
        assert found == sorted(rows, key=lambda row: row["v"]), step
        for key, row in itertools.islice(zip(keys, rows, strict=True), 0, None, 3):
            assert table.get(key) == row, step
        for place, name in enumerate(names):
            values = VALUES[types[place]]
            where = [table[name] >= values[1], table[name] < values[-1]]
            inside = [row for row in rows if row[name] in values[1:-1]]
            assert table.scan(where=where, ordered=True).to_arrow().to_pylist() == inside, step


@pytest.mark.parametrize("column_type", ["bool", "float", "double", "array(int32)"])
def test_the_other_types_are_refused_in_a_key(column_type: str):
    """As in Kudu."""
    columns = [kudulite.column("k", column_type)]
    with pytest.raises(kudulite.errors.SchemaError, match="key"):
        kudulite.schema(columns, "k")
