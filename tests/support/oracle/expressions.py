"""Expressions of columns, and what they give in Spark SQL, row by row."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

COLUMNS = {
    "id": pa.int64(),
    "n": pa.int64(),
    "small": pa.int8(),
    "x": pa.float64(),
    "price": pa.decimal128(10, 2),
    "city": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "ok": pa.bool_(),
}
NOON = datetime(2024, 2, 28, 12, tzinfo=UTC)
ROWS = [
    {"id": 1, "n": 7, "small": 100, "x": 2.5, "price": Decimal("1.50"), "city": " Rome ",
     "day": date(2024, 2, 28), "at": NOON, "ok": True},
    {"id": 2, "n": -7, "small": -3, "x": -2.5, "price": Decimal("-0.25"), "city": "it's",
     "day": date(2023, 12, 31), "at": NOON, "ok": False},
    {"id": 3, **dict.fromkeys(list(COLUMNS)[1:])},
]  # fmt: skip


OF_NUMBERS = [
    ("n", "n + 1", [8, -6, None]),
    ("n", "-n * 2 - 1", [-15, 13, None]),
    ("n", "n % 4", [3, -3, None]),
    ("n", "n DIV 2", [3, -3, None]),
    ("x", "n / 2", [3.5, -3.5, None]),
    ("x", "x * 1.5 + small", [103.75, -6.75, None]),
    ("x", "x % 2", [0.5, -0.5, None]),
    ("n", "round(x)", [3, -3, None]),
    ("n", "floor(x)", [2, -3, None]),
    ("n", "ceil(x) + abs(n)", [10, 5, None]),
    ("n", "CAST(x AS BIGINT)", [2, -2, None]),
    ("x", "round(x / 3, 2)", [0.83, -0.83, None]),
    ("price", "price * 2", [Decimal("3.00"), Decimal("-0.50"), None]),
    ("price", "price + 0.25", [Decimal("1.75"), Decimal("0.00"), None]),
    ("n", "coalesce(n, 0)", [7, -7, 0]),
    ("n", "greatest(n, small, 1)", [100, 1, 1]),
    ("n", "least(n, small)", [7, -7, None]),
    ("n", "nullif(n, 7)", [None, -7, None]),
    ("n", "if(ok, n, id)", [7, 2, 3]),
    ("n", "CASE WHEN n > 0 AND NOT ok IS NULL THEN 1 WHEN n < 0 THEN id END", [1, 2, None]),
    ("n", "CASE id WHEN 1 THEN 10 ELSE n END", [10, -7, None]),
    ("ok", "n BETWEEN 0 AND 9 OR id IN (2, 9)", [True, True, None]),
    ("ok", "city LIKE '%om%'", [True, False, None]),
    ("ok", "n <=> NULL", [False, False, True]),
    ("ok", "day > '2024-01-01'", [True, False, None]),
    ("n", "length(city)", [6, 4, None]),
    ("day", "day + INTERVAL 2 DAYS", [date(2024, 3, 1), date(2024, 1, 2), None]),
    ("at", "at - INTERVAL '90' MINUTE", [NOON - timedelta(minutes=90)] * 2 + [None]),
    ("day", "CAST(at AS DATE)", [NOON.date(), NOON.date(), None]),
    ("n", "NULL", [None, None, None]),
    ("n", "ID + `n`", [8, -5, None]),
]
OF_TEXT = [
    ("upper(trim(city))", ["ROME", "IT'S", None]),
    ("city || '/' || n", [" Rome /7", "it's/-7", None]),
    ("concat(lower(city), 'x')", [" rome x", "it'sx", None]),
    ("substring(city, 2, 3)", ["Rom", "t's", None]),
    ("substring(city, 0, 2)", [" R", "it", None]),
    ("substring(city, 2)", ["Rome ", "t's", None]),
    ("replace(city, '''', '')", [" Rome ", "its", None]),
    ("CAST(n AS STRING)", ["7", "-7", None]),
]
