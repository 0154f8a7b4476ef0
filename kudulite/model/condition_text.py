"""Conditions as text: SQL to a tree of predicates.

    condition  := test | NOT condition | condition AND condition | condition OR condition
    test       := column (= | == | <=> | != | <> | < | <= | > | >=) literal, or the other way around
                | column [NOT] BETWEEN literal AND literal
                | column [NOT] IN (literal, …)
                | column IS [NOT] NULL | column <=> NULL
                | column [NOT] LIKE 'prefix%' | startswith(column, 'prefix')
    literal    := 12 | -1.5 | 1e3 | 10L | 1.5D | 1.5BD | 'text' | true | X'1CFF'
                | DATE '2013-01-01' | TIMESTAMP '2013-01-01 10:00:00 Europe/Berlin'

Names and literals are those of Spark SQL, parsed by sqlglot. Column names are found in any case.
Everything else is refused: a condition must never be weaker or stronger than its text.

A time without a zone is UTC. Write the zone where that matters. (Spark does not pass the session's
time zone to a Python source.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlglot import TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from kudulite.errors import ColumnNotFoundError, OptionError, SchemaError
from kudulite.model.condition import And, Condition, Or, Predicate
from kudulite.model.expression import literal_sql
from kudulite.model.schema import Column, Schema

# The value of a literal.
Literal = bool | int | float | Decimal | str | bytes | date

_SPARK = Dialect.get_or_raise("spark")

ALLOWED = (
    "possible, joined by AND, OR and NOT: column = != <=> < <= > >= literal, BETWEEN, IN (…),"
    " IS NULL, LIKE 'prefix%'"
)

ALLOWED_ORDER = (
    "possible: columns separated by commas, each with ASC or DESC, NULLS FIRST or NULLS LAST"
)

_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.NullSafeEQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Parts of a test that are understood; one with any other part means something else.
_KNOWN_ARGUMENTS = {"this", "expression", "expressions", "low", "high", "negate"}
_INTEGER_CASTS = {"TINYINT", "SMALLINT", "INT", "BIGINT"}
_FLOAT_CASTS = {"FLOAT", "DOUBLE"}
_ZONE_NAME = re.compile(r"(.*\d)\s+([A-Za-z][\w+\-/]*)|(.*\d)(Z)")


def parse_condition(text: str, schema: Schema, parameters: Sequence[Any] = ()) -> Condition:
    """Return the condition that `text` means, for a table of this schema.

    Each `?` in it stands for one of the parameters, in their order.

    OptionError quotes the part that is not possible; ColumnNotFoundError lists the columns, and
    SchemaError says that a name is ambiguous.
    """
    with errors_of_sql(text, "condition", "condition", ALLOWED):
        tree = parsed_sql(_filled(text, parameters))
        if tree is not None:
            return _Translator(schema).condition(tree)
    raise OptionError(f"condition {text!r} is not one condition; {ALLOWED}")


def parsed_sql(text: str) -> exp.Expression | None:
    """Return the syntax tree of one condition or value; None for several. Raises SqlglotError."""
    statements = _SPARK.parse_into(exp.Condition, _joined_quotes(text))
    return cast("exp.Expression | None", statements[0]) if len(statements) == 1 else None


def parsed_order(text: str, schema: Schema) -> list[tuple[str, bool, bool]]:
    """Return (column, whether it is descending, whether NULL comes first) of the parts of an order.

    OptionError quotes the part that is not possible; ColumnNotFoundError lists the columns.
    """
    with errors_of_sql(f"ORDER BY {text}", "order", "order", ALLOWED_ORDER):
        order = cast("exp.Order", _SPARK.parse_into(exp.Order, f"ORDER BY {text}")[0])
    found = []
    for part in order.expressions:
        column = bare(part.this)
        if not isinstance(column, exp.Column) or column.table:
            raise refusal(part.this, noun="order", allowed=ALLOWED_ORDER)
        name = find_column(column.name, schema, "order", part.this).name
        found.append((name, bool(part.args.get("desc")), bool(part.args.get("nulls_first"))))
    return found


@contextmanager
def errors_of_sql(text: str, name: str, noun: str, allowed: str) -> Iterator[None]:
    """Raise OptionError for text that is not SQL; `name` and `noun` say what it is in messages."""
    try:
        yield
    except SqlglotError as error:
        raise OptionError(
            f"{name} {text!r} is not SQL: {_plain_message(error)}; {allowed}"
        ) from error
    except InvalidOperation as error:  # sqlglot reads some numbers itself
        raise OptionError(
            f"{name} {text!r} is not SQL: a number in it cannot be read; {allowed}"
        ) from error
    except RecursionError:
        raise OptionError(f"{noun}: parentheses and NOT are nested too deeply") from None


def _filled(text: str, parameters: Sequence[Any]) -> str:
    """Write each parameter in the place of its `?`. Raises OptionError for another number."""
    places = [each for each in _SPARK.tokenize(text) if each.token_type == TokenType.PLACEHOLDER]
    if len(places) != len(parameters):
        raise OptionError(
            f"condition {text!r} has {len(places)} parameters ?, and {len(parameters)} values were"
            ' given; give both as in where=("city = ? AND v > ?", ["Rome", 5])'
        )
    for place, value in zip(reversed(places), reversed(parameters), strict=True):
        text = text[: place.start] + literal_sql(value) + text[place.end + 1 :]
    return text


def _plain_message(error: SqlglotError) -> str:
    """Return the error and its column, without the terminal colours of sqlglot's message."""
    details = getattr(error, "errors", None)
    if not details:
        return re.sub(r"\x1b\[\d*m", "", str(error))
    found = details[0]["description"]
    found = "a part is missing" if found.startswith("Required keyword") else found
    return f"{found} at column {details[0]['col']}"


def _joined_quotes(text: str) -> str:
    """Write `'it''s'` as `'it\\'s'`: one literal to Spark, two neighbours to sqlglot."""
    tokens = _SPARK.tokenize(text)
    for left, right in reversed(list(pairwise(tokens))):
        is_pair = left.token_type == right.token_type == TokenType.STRING
        if is_pair and right.start == left.end + 1 and text[left.end] == "'" == text[right.start]:
            text = text[: left.end] + "\\'" + text[right.start + 1 :]
    return text


def bare(node: exp.Expression) -> exp.Expression:
    """Return what the parentheses around it hold."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def refusal(
    node: exp.Expression,
    why: str = "is not supported",
    noun: str = "condition",
    allowed: str = ALLOWED,
) -> OptionError:
    """Return the error for a part of a text that is not possible."""
    return OptionError(f"{noun}: {node.sql(dialect='spark')!r} {why}; {allowed}")


def find_column(name: str, schema: Schema, what: str, part: exp.Expression) -> Column:
    """Return the column of a name in any case, which `part` of a condition or expression has.

    Raises SchemaError where it is ambiguous, ColumnNotFoundError.
    """
    if name in schema.names:
        return schema.column(name)
    alike = [each for each in schema.names if each.lower() == name.lower()]
    if len(alike) == 1:
        return schema.column(alike[0])
    if alike:
        raise SchemaError(
            f"{what}: column {name!r} is ambiguous: it may be {' or '.join(map(repr, alike))};"
            " write one of these names exactly"
        )
    raise ColumnNotFoundError(
        f"{what}: no column {name!r} in {part.sql(dialect='spark')!r}; columns:"
        f" {', '.join(schema.names)}"
    )


class _Translator:
    """Turns syntax trees into conditions on the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def condition(self, node: exp.Expression) -> Condition:
        node = bare(node)
        if any(found and name not in _KNOWN_ARGUMENTS for name, found in node.args.items()):
            raise refusal(node)
        # Depending on its version, sqlglot marks a test as negated or puts NOT around it.
        return ~self._test(node) if node.args.get("negate") else self._test(node)

    def _test(self, node: exp.Expression) -> Condition:
        if isinstance(node, exp.And | exp.Or):
            parts = tuple(self.condition(cast(exp.Expression, part)) for part in node.flatten())
            return And(parts) if isinstance(node, exp.And) else Or(parts)
        if isinstance(node, exp.Not):
            return ~self.condition(node.this)
        if type(node) in _OPERATORS:
            return self._comparison(node)
        if isinstance(node, exp.Between):
            column = self._column(node.this, node)
            low = self._literal(node.args["low"], column, node)
            high = self._literal(node.args["high"], column, node)
            return And((Predicate(column.name, ">=", low), Predicate(column.name, "<=", high)))
        if isinstance(node, exp.In) and node.expressions:
            return self._in_list(node)
        if isinstance(node, exp.Like | exp.StartsWith):
            return self._prefix(node)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return Predicate(self._column(node.this, node).name, "is_null")
        raise refusal(node)

    def _comparison(self, node: exp.Expression) -> Condition:
        operator = _OPERATORS[type(node)]
        left, right = node.this, node.expression
        if not isinstance(left, exp.Column):
            left, right, operator = right, left, _MIRRORED[operator]
        column = self._column(left, node)
        if not isinstance(node, exp.NullSafeEQ):
            return Predicate(column.name, operator, self._literal(right, column, node))
        if isinstance(bare(right), exp.Null):
            return Predicate(column.name, "is_null")
        equal = Predicate(column.name, "=", self._literal(right, column, node))
        # It is false, not unknown, where the cell is NULL; NOT makes a difference of that.
        return equal & Predicate(column.name, "is_not_null") if column.nullable else equal

    def _in_list(self, node: exp.In) -> Predicate:
        column = self._column(node.this, node)
        # A NULL in the list makes the test unknown where it would be false.
        values = tuple(
            None if isinstance(bare(item), exp.Null) else self._literal(item, column, node)
            for item in node.expressions
        )
        return Predicate(column.name, "in", values)

    def _prefix(self, node: exp.Expression) -> Predicate:
        column = self._column(node.this, node)
        text = self._literal(node.expression, column, node)
        if not isinstance(text, str) or column.type.name not in ("string", "varchar"):
            raise refusal(node)
        if isinstance(node, exp.StartsWith):
            return Predicate(column.name, "starts_with", text)
        matched = re.fullmatch(r"((?:[^%_\\]|\\[%_\\])*)(%*)", text, re.DOTALL)
        if matched is None:
            raise refusal(node, "is more than a prefix")
        prefix = re.sub(r"\\(.)", r"\1", matched.group(1), flags=re.DOTALL)
        return Predicate(column.name, "starts_with" if matched.group(2) else "=", prefix)

    def _column(self, node: exp.Expression, part: exp.Expression) -> Column:
        node = bare(node)
        if not isinstance(node, exp.Column) or node.table:
            raise refusal(part)
        return find_column(node.name, self._schema, "condition", part)

    def _literal(self, node: exp.Expression, column: Column, part: exp.Expression) -> Literal:
        if isinstance(bare(node), exp.Null):
            raise refusal(part, "is never true; use IS NULL")
        try:
            return _fitted(literal_value(node), column)
        except (TypeError, ValueError, OverflowError, ZoneInfoNotFoundError) as error:
            why = f"cannot be used on column {column.name!r} of type {column.type}: {error}"
            raise refusal(part, why) from error


def literal_value(node: exp.Expression) -> Literal:
    """Return the Python value of a literal; TypeError for any other expression."""
    if isinstance(node, exp.Paren):
        return literal_value(node.this)
    if isinstance(node, exp.Neg):
        value = literal_value(node.this)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise TypeError("only a number has a negative")
        return -value
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.HexString):
        return bytes.fromhex(str(node.this).rjust(len(str(node.this)) + 1 & ~1, "0"))
    if isinstance(node, exp.RawString):
        return str(node.this)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(str(node.this))
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
        return _typed_literal(str(node.this.this), node.to.this.name)
    raise TypeError("expected a literal")


def _number(text: str) -> int | float | Decimal:
    if text.isdigit():
        return int(text)
    return float(text) if "e" in text.lower() else _decimal(text)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number") from error


def _typed_literal(text: str, kind: str) -> Literal:
    """Return the value of `DATE '…'`, `TIMESTAMP '…'`, `10L`, `1.5D`, `1.5BD`."""
    if kind == "DATE":
        return date.fromisoformat(text.strip())
    if kind.startswith("TIMESTAMP"):
        return parse_time(text)
    if kind in _INTEGER_CASTS:
        return int(text)
    if kind in _FLOAT_CASTS:
        return float(text)
    if kind == "DECIMAL":
        return _decimal(text)
    raise TypeError("expected a number, a string, a boolean, DATE '…' or TIMESTAMP '…'")


def parse_time(text: str) -> datetime:
    """Return the datetime of ISO text, also with a named zone behind it; naive without a zone.

    >>> parse_time("2013-01-01 10:00:00 UTC").isoformat()
    '2013-01-01T10:00:00+00:00'
    """
    text = text.strip()
    match = _ZONE_NAME.fullmatch(text)
    if match is None:
        return datetime.fromisoformat(text)
    moment, zone = (match[1], match[2]) if match[2] else (match[3], match[4])
    zone_info = UTC if zone in ("Z", "UTC", "GMT") else ZoneInfo(zone)
    return datetime.fromisoformat(moment).replace(tzinfo=zone_info)


def _fitted(value: Literal, column: Column) -> Literal:
    """Return the literal in the column's type; TypeError if Spark would cast the column."""
    kind = column.type.name
    if kind in ("unixtime_micros", "timestamp_ntz"):
        return _fitted_time(value, kind)
    expected: dict[str, tuple[type, ...]] = {
        "bool": (bool,),
        "date": (date, str),
        "string": (str,),
        "varchar": (str,),
        "binary": (bytes, str),
    }
    allowed = expected.get(kind, (int, float, Decimal))
    is_stray_bool = isinstance(value, bool) and kind != "bool"
    if not isinstance(value, allowed) or is_stray_bool or isinstance(value, datetime):
        raise TypeError(f"the literal is a {type(value).__name__}")
    if kind == "date" and isinstance(value, str):
        return date.fromisoformat(value.strip())
    if kind in ("float", "double"):
        return float(cast(float, value))
    return value


def _fitted_time(value: Literal, kind: str) -> datetime:
    if isinstance(value, str):
        value = parse_time(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise TypeError(f"the literal is a {type(value).__name__}")
    if kind == "timestamp_ntz":
        if value.tzinfo is not None:
            raise ValueError("the literal has a time zone, the column has none")
        return value
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
