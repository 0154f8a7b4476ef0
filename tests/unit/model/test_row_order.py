"""Orders of rows by columns, against Python's own sort."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import ColumnNotFoundError, OptionError
from kudulite.model.row_order import OrderKey, parse_order, sorted_batches

SCHEMA = kudulite.schema(
    [
        kudulite.column("id", "int64"),
        kudulite.column("v", "double"),
        kudulite.column("city", "string"),
        kudulite.column("d", "decimal(9, 2)"),
        kudulite.column("a b", "bool"),
        kudulite.column("l", "array(int64)"),
    ],
    "id",
)


def rows_of(seed: int, count: int = 400) -> pa.Table:
    """Rows with few different values, among them NULL, NaN and the zeros."""
    rng = random.Random(seed)
    numbers = [None, math.nan, 0.0, -0.0, 1.5, -math.inf, math.inf]
    return pa.Table.from_pylist(
        [
            {
                "id": n,
                "v": rng.choice(numbers),
                "city": rng.choice([None, "", "Rom", "Ärö", "rom"]),
                "d": rng.choice([None, Decimal("-1.50"), Decimal("1.00")]),
                "a b": rng.choice([None, True, False]),
            }
            for n in rng.sample(range(10**6), count)
        ],
        SCHEMA.arrow_schema(),
    )


def rank(value: object, key: OrderKey) -> tuple[int, object]:
    """What Python sorts a cell by, ascending; of a descending order the result is turned round."""
    if value is None:
        return (-1 if key.has_nulls_first != key.is_descending else 2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)


def expected(rows: list[dict], order: tuple[OrderKey, ...]) -> list[tuple]:
    """The cells of the columns of the order, sorted by stable sorts from the last one on."""
    for key in reversed(order):
        rows = sorted(rows, key=lambda r, k=key: rank(r[k.column], k), reverse=key.is_descending)
    return [tuple(repr(row[key.column]).replace("-0.0", "0.0") for key in order) for row in rows]


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_sorted_as_sql_says(seed):
    rng = random.Random(seed)
    table = rows_of(seed)
    names = rng.sample(["v", "city", "d", "a b", "id"], rng.randint(1, 4))
    order = tuple(OrderKey(name, rng.random() < 0.5, rng.random() < 0.5) for name in names)
    for limit in (None, 0, 1, 37, 1000):
        batches = table.to_batches(max_chunksize=rng.choice([1, 50, 1000]))
        found = sorted_batches(batches, table.schema, order, limit).to_pylist()
        cells = [tuple(repr(r[k.column]).replace("-0.0", "0.0") for k in order) for r in found]
        assert cells == expected(table.to_pylist(), order)[:limit]


def test_with_a_limit_only_the_first_rows_are_kept(monkeypatch):
    """Those that cannot be among them any more are left."""
    monkeypatch.setattr("kudulite.model.row_order._SLACK_ROWS", 10)
    table = rows_of(1, 5000)
    order = (OrderKey("id", True),)
    found = sorted_batches(table.to_batches(max_chunksize=7), table.schema, order, 5)
    assert found["id"].to_pylist() == sorted(table["id"].to_pylist(), reverse=True)[:5]


def test_texts_of_orders():
    """NULL is the lowest value; the name of a column alone is that column."""
    cases = {
        ("v",): [("v", False, True)],
        ("v DESC",): [("v", True, False)],
        ("V desc nulls first, `a b`",): [("v", True, True), ("a b", False, True)],
        ("a b",): [("a b", False, True)],
        ("id ASC NULLS LAST", "city desc"): [("id", False, False), ("city", True, False)],
        (): [],
    }
    for texts, found in cases.items():
        assert parse_order(texts, SCHEMA) == tuple(OrderKey(*each) for each in found)
    keys = (OrderKey("v"),)
    assert parse_order(keys, SCHEMA) == keys


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("n", ColumnNotFoundError, "no column 'n'"),
        ("v + 1", OptionError, r"'v \+ 1' is not supported; possible: columns"),
        ("v; DROP", OptionError, "is not SQL"),
        ("", OptionError, "is not SQL"),
        ("v LIMIT 3", OptionError, "is not SQL"),
        ("t.v", OptionError, "is not supported"),
        ("l", OptionError, "column 'l' is an array, which has no order"),
        (7, OptionError, r"order_by has 7: give a text"),
    ],
)
def test_what_is_no_order_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        parse_order([text], SCHEMA)
