"""Text conditions with parameters."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite

COLUMNS = [
    ("id", pa.int64()),
    ("city", pa.string()),
    ("x", pa.float64()),
    ("price", pa.decimal128(9, 2)),
    ("day", pa.date32()),
    ("at", pa.timestamp("us", "UTC")),
    ("raw", pa.binary()),
    ("ok", pa.bool_()),
]
DAY, AT = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC)
CITIES = ["Rome", "it's", 'a "b" \\ c', "100%", "?", "ünï", "' OR 1 = 1 --", "", "a\nb\x00"]


@pytest.fixture
def table(core):
    table = core.client().create_table("t", pa.schema(COLUMNS), primary_key="id")
    table.insert(
        [
            dict(zip([name for name, _ in COLUMNS], row, strict=True))
            for row in [
                (n, city, n / 7, Decimal(n) / 4, DAY, AT, city.encode(), n % 2 == 0)
                for n, city in enumerate(CITIES)
            ]
        ]
    )
    return table


def ids(table, where):
    return sorted(row["id"] for row in table.scan("id", where))


def test_each_text_is_found_as_it_is(table):
    """A value is never read as SQL."""
    for number, city in enumerate(CITIES):
        assert ids(table, ("city = ?", [city])) == [number]
        assert ids(table, ("raw = ?", [city.encode()])) == [number]
    assert ids(table, ("city IN (?, ?) AND id > ?", [*CITIES[:2], 0])) == [1]


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("id BETWEEN ? AND ?", [2, 3], [2, 3]),
        ("id >= ? OR ? = id", [7, -1], [7, 8]),
        ("x = ?", [3 / 7], [3]),
        ("price = ?", [Decimal("0.75")], [3]),
        ("day = ? AND at = ? AND ok = ?", [DAY, AT, True], [0, 2, 4, 6, 8]),
        ("city LIKE ?", ["R%"], [0]),
        ("city = '?' AND id = ?", [4], [4]),
        ("id = ? -- ? is no parameter here", [1], [1]),
    ],
)
def test_values_stand_for_the_marks_in_their_order(table, text, values, expected):
    assert ids(table, (text, values)) == expected
    assert ids(table, (text, tuple(values))) == expected
    assert ids(table, [(text, values), "id >= 0"]) == expected


def test_a_write_takes_parameters(table):
    assert table.update(where=("city = ?", ["it's"]), set={"x": 1.0}).updated == 1
    assert table.delete(where=("id > ?", [2])).deleted == len(CITIES) - 3
    assert ids(table, ("x = ?", [1.0])) == [1]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (("id = ?", []), "1 parameters ?, and 0 values"),
        (("id = 1", [2]), "0 parameters ?, and 1 values"),
        ("id = ?", "1 parameters ?, and 0 values"),
        (("city = ?", [None]), "IS NULL"),
        (("id = ?", ["x"]), "int64"),
        (("id = ?", [object()]), "cannot have"),
        (("x = ?", [float("nan")]), "nan"),
    ],
)
def test_what_does_not_fit_is_refused(table, where, words):
    with pytest.raises((kudulite.errors.OptionError, kudulite.errors.UsageError)) as caught:
        table.scan(where=where).to_arrow()
    assert words in str(caught.value)
