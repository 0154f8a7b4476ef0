"""Conditions as text: what is possible means what SQL says, everything else is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from kudulite import Column, ColumnType, Predicate, Schema, decimal, parse_where, varchar
from kudulite.errors import ColumnNotFoundError, OptionError
from kudulite.model.condition import And

COLUMNS = {
    "i": ColumnType("int32"),
    "l": ColumnType("int64"),
    "s": ColumnType("string"),
    "v": varchar(9),
    "d": ColumnType("date"),
    "ts": ColumnType("unixtime_micros"),
    "ntz": ColumnType("timestamp_ntz"),
    "dec": decimal(10, 2),
    "f": ColumnType("float"),
    "x": ColumnType("double"),
    "b": ColumnType("bool"),
    "bin": ColumnType("binary"),
    "odd name": ColumnType("int8"),
    "Case": ColumnType("int8"),
    "case": ColumnType("int8"),
}
SCHEMA = Schema.build(
    [Column(0, name, kind, nullable=name != "i") for name, kind in COLUMNS.items()], ["i"]
)
MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i = 5", [("i", "=", 5)]),
        ("i == 5", [("i", "=", 5)]),
        ("i <=> 5", [("i", "=", 5)]),
        ("s <=> null", [("s", "is_null", None)]),
        ("(null) <=> s", [("s", "is_null", None)]),
        ("5 < i", [("i", ">", 5)]),
        ("5 >= i", [("i", "<=", 5)]),
        ("I >= -3", [("i", ">=", -3)]),
        ("l = 10000000000L AND i > 1", [("l", "=", 10**10), ("i", ">", 1)]),
        ("(i > 1) and ((l < 2) and x = 1e3)", [("i", ">", 1), ("l", "<", 2), ("x", "=", 1000.0)]),
        ("i > 5.5", [("i", ">", Decimal("5.5"))]),
        ("dec = -1.50", [("dec", "=", Decimal("-1.50"))]),
        ("dec <= 1.5BD", [("dec", "<=", Decimal("1.5"))]),
        ("x > 1.5", [("x", ">", 1.5)]),
        ("f = 1.5D", [("f", "=", 1.5)]),
        ("i between -1 and 7", [("i", ">=", -1), ("i", "<=", 7)]),
        ("s in ('a', 'b', null)", [("s", "in", ("a", "b", None))]),
        ("i in (1)", [("i", "in", (1,))]),
        ("s is null", [("s", "is_null", None)]),
        ("s is not null", [("s", "is_not_null", None)]),
        ("not (s is null)", [("s", "is_not_null", None)]),
        ("i <> 1 and 2 != i", [("i", "!=", 1), ("i", "!=", 2)]),
        ("not i = 1", [("i", "!=", 1)]),
        ("not not i < 1", [("i", "<", 1)]),
        ("i not in (1, 2)", [("i", "not_in", (1, 2))]),
        ("not (i < 1 or s >= 'a')", [("i", ">=", 1), ("s", "<", "a")]),
        ("not i not between 1 and 2", [("i", ">=", 1), ("i", "<=", 2)]),
        ("s not like 'ab%' and not s like 'c'", [("s", "not_starts_with", "ab"), ("s", "!=", "c")]),
        ("s <=> 'a'", [("s", "=", "a"), ("s", "is_not_null", None)]),
        ("s like 'ab%'", [("s", "starts_with", "ab")]),
        ("s like 'ab'", [("s", "=", "ab")]),
        (r"s like 'a\_b\%%'", [("s", "starts_with", "a_b%")]),
        ("startswith(v, 'a%')", [("v", "starts_with", "a%")]),
        ("s = 'it''s'", [("s", "=", "it's")]),
        (r"s = 'it\'s'", [("s", "=", "it's")]),
        ('s = "dq"', [("s", "=", "dq")]),
        ("b = true and b = false", [("b", "=", True), ("b", "=", False)]),
        ("bin = X'1CFF'", [("bin", "=", b"\x1c\xff")]),
        ("d >= '2013-01-01'", [("d", ">=", date(2013, 1, 1))]),
        ("d >= DATE '2013-01-01'", [("d", ">=", date(2013, 1, 1))]),
        ("ts < TIMESTAMP '2013-01-01 00:00:00'", [("ts", "<", MIDNIGHT)]),
        ("ts < '2013-01-01T01:00:00+01:00'", [("ts", "<", MIDNIGHT)]),
        ("ts < DATE '2013-01-01'", [("ts", "<", MIDNIGHT)]),
        ("ts = TIMESTAMP '2013-01-01 00:00:00Z'", [("ts", "=", MIDNIGHT)]),
        (
            "ntz = TIMESTAMP_NTZ '2013-01-01 00:00:00.5'",
            [("ntz", "=", datetime(2013, 1, 1, 0, 0, 0, 500000))],
        ),
        ("ntz = '2013-01-01'", [("ntz", "=", datetime(2013, 1, 1))]),
        ("`odd name` = 1", [("odd name", "=", 1)]),
        ("`Case` = 1 and `case` = 2", [("Case", "=", 1), ("case", "=", 2)]),
    ],
)
def test_allowed_forms(text, expected):
    """Literals get the type of the column; names are found as Spark finds them."""
    assert parse_where(text, SCHEMA) == tuple(Predicate(*part) for part in expected)


def test_named_zones_move_the_instant():
    """A zone in the literal wins over UTC."""
    (predicate,) = parse_where("ts >= TIMESTAMP '2013-07-01 00:00:00 America/New_York'", SCHEMA)
    assert predicate.value == datetime(2013, 7, 1, tzinfo=ZoneInfo("America/New_York"))
    assert predicate.value.astimezone(UTC) == datetime(2013, 7, 1, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("i = 1 xor i = 2", "is not SQL"),
        ("i is distinct from 1", "IS DISTINCT FROM"),
        ("i between symmetric 2 and 1", "BETWEEN"),
        ("s not ilike 'a%'", "ILIKE"),
        ("s like any ('a%', 'b%')", "ANY"),
        ("not b", "'b'"),
        ("i = 1 or true", "TRUE"),
        ("s not like '%a'", "'%a'"),
        ("i not in (select 1)", "SELECT 1"),
        ("not i = null", "is never true; use IS NULL"),
        ("i = l", "i = l"),
        ("1 = 1", "1 = 1"),
        ("i + 1 = 5", "i + 1 = 5"),
        ("upper(s) = 'A'", "UPPER(s) = 'A'"),
        ("s like '%a'", "s LIKE '%a'"),
        ("s like 'a%c'", "s LIKE 'a%c'"),
        ("s like 'a_'", "s LIKE 'a_'"),
        ("s like 'a%' escape '/'", "ESCAPE"),
        ("s rlike 'a'", "RLIKE"),
        ("b", "'b'"),
        ("b is true", "b IS TRUE"),
        ("i = null", "is never true; use IS NULL"),
        ("i = (null)", "is never true; use IS NULL"),
        ("i in (select 1)", "SELECT 1"),
        ("t.i = 1", "t.i = 1"),
        ("cast(s as int) = 1", "CAST(s AS INT)"),
        ("i = '5'", "of type int32: the literal is a str"),
        ("s = 5", "of type string: the literal is a int"),
        ("i = true", "the literal is a bool"),
        ("d = TIMESTAMP '2013-01-01 00:00:00'", "of type date"),
        ("ts = 5", "of type unixtime_micros"),
        ("d = 'soon'", "Invalid isoformat"),
        ("ts = '2013-01-01 00:00:00 Nowhere/Land'", "Nowhere/Land"),
        ("ntz = '2013-01-01 00:00:00Z'", "time zone"),
        ("i like '1%'", "i LIKE '1%'"),
        ("i = 1; i = 2", "not one condition"),
        ("", "not one condition"),
        ("i = (", "is not SQL"),
        ("f > .1.5", "'0.1.5' is not a number"),
        ("f > .1.5BD", "is not SQL: a number in it cannot be read"),
        ("f > CAST('a' AS DECIMAL)", "'a' is not a number"),
        ("i = ", "is not SQL: a part is missing at column"),
        ("i between 1", "is not SQL"),
    ],
)
def test_everything_else_is_refused_with_the_part_and_what_is_allowed(text, quoted):
    """A filter weaker or stronger than its text would be a wrong answer."""
    with pytest.raises(OptionError) as caught:
        parse_where(text, SCHEMA)
    assert quoted in str(caught.value)
    assert "LIKE 'prefix%'" in str(caught.value)


def test_unknown_column_lists_the_columns():
    """As everywhere: the message shows what there is."""
    with pytest.raises(ColumnNotFoundError, match="no column 'nope' in 'nope = 1'; columns: i, l"):
        parse_where("nope = 1", SCHEMA)


def test_or_and_not_keep_their_order():
    """AND binds closer than OR, NOT closer than AND; what prints is the condition itself."""
    for text, printed in (
        ("i = 1 OR i = 2 AND s = 'a'", "i = 1 OR (i = 2 AND s = 'a')"),
        ("(i = 1 OR i = 2) AND s = 'a'", "(i = 1 OR i = 2) AND s = 'a'"),
        ("i = 1 OR (i = 2 OR s = 'a')", "i = 1 OR i = 2 OR s = 'a'"),
        ("NOT (i = 1 AND (s IS NULL OR NOT x > 1))", "i != 1 OR (s IS NOT NULL AND x > 1.0)"),
        ("i NOT BETWEEN 1 AND 5 OR s NOT LIKE 'a%'", "i < 1 OR i > 5 OR s not starts_with 'a'"),
        ("NOT (s <=> 'a' OR s IS NULL)", "(s != 'a' OR s IS NULL) AND s IS NOT NULL"),
    ):
        assert str(And(parse_where(text, SCHEMA))) in (printed, f"({printed})"), text
    many = parse_where(" OR ".join(f"i = {number}" for number in range(5_000)), SCHEMA)
    assert len(many) == 1 and len(many[0].parts) == 5_000
    with pytest.raises(OptionError):
        parse_where("(" * 5_000 + "i = 1" + ")" * 5_000, SCHEMA)


def test_text_may_stand_beside_other_conditions():
    """All parts of a sequence hold, whatever their form."""
    found = parse_where(["i = 1 AND s = 'a'", Predicate("x", ">", 2.0), ("b", "=", True)], SCHEMA)
    assert [str(part) for part in found] == ["i = 1", "s = 'a'", "x > 2.0", "b = True"]
