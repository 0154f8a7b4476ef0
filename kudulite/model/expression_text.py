"""Expressions as text: SQL to a cell of each row, computed from the other cells of the row.

    value      := column | literal | value (+ | - | * | / | % | DIV | ||) value | - value
                | CASE WHEN condition THEN value … ELSE value END | IF(condition, value, value)
                | CAST(value AS type) | function(value, …) | time (+ | -) INTERVAL n unit
    condition  := value (= | != | < | <= | > | >= | <=>) value, BETWEEN, IN, IS NULL, LIKE,
                  AND, OR, NOT

Names, literals and results are those of Spark SQL in its ANSI mode, parsed by sqlglot and computed
by pyarrow on whole columns: an overflow and a division by zero are errors, `/` gives a DOUBLE or
a DECIMAL, NULL makes NULL. Everything else is refused.

The result must fit the column: a number with a fraction is no value of an integer column.

**Threads**: any; a `ComputedCell` never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial, reduce
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from kudulite.errors import OptionError, SchemaError
from kudulite.model.condition_text import (
    bare,
    errors_of_sql,
    find_column,
    literal_value,
    parsed_sql,
    refusal,
)
from kudulite.model.schema import Column, Schema

Value = Any  # a pa.Array, or a pa.Scalar that all rows have

ALLOWED = (
    "possible: columns, literals, + - * / % DIV ||, CASE, IF, CAST, INTERVAL, comparisons, and"
    " ABS, CEIL, COALESCE, CONCAT, CURRENT_DATE, CURRENT_TIMESTAMP, FLOOR, GREATEST, LEAST, LENGTH,"
    " LOWER, NULLIF, REPLACE, ROUND, SUBSTRING, TRIM, UPPER"
)
_refusal = partial(refusal, noun="set", allowed=ALLOWED)
_MICROSECONDS = {"MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000}
_MICROSECONDS |= {"MINUTE": 60_000_000, "HOUR": 3_600_000_000, "DAY": 86_400_000_000}
_MICROSECONDS["WEEK"] = 7 * _MICROSECONDS["DAY"]
_CASTS = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    **{name: pa.timestamp("us", "UTC") for name in ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ")},
}
# Arguments of a node that are understood, and those that say what is so anyway.
_ARGUMENTS = {"this", "expression", "expressions", "ifs", "default", "true", "false", "low", "high"}
_ARGUMENTS |= {"to", "unit", "start", "length", "decimals", "replacement"}
_SAFE = {"safe", "coalesce", "ignore_nulls", "is_null", "is_nvl", "typed", "is_string"}


@dataclass(frozen=True)
class ComputedCell:
    """A `Cell` that SQL `text` computes; `names` has the column of each name in it."""

    column: Column
    text: str
    node: exp.Expression
    names: Mapping[str, Column]
    nbytes: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the text names."""
        return tuple(dict.fromkeys(column.name for column in self.names.values()))

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute the value of each row."""
        types = [self.column.type.arrow, *(column.type.arrow for column in self.names.values())]
        is_exact = any(pa.types.is_decimal(each) for each in types)
        evaluator = _Evaluator(rows, self.names, is_exact)
        try:
            found = evaluator.value(self.node)
            if isinstance(found, pa.Scalar):
                found = pa.repeat(found, rows.num_rows)
            return found.cast(self.column.type.arrow)
        except OptionError:
            raise
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            advice = ""
            if isinstance(error, pa.ArrowInvalid) and "truncated" in str(error):
                advice = "; write CAST, ROUND or FLOOR around it"
            raise SchemaError(
                f"set: {self.text!r} gives no value of column {self.column.name!r} of type"
                f" {self.column.type}: {error}{advice}"
            ) from error


def parse_cell(text: str, column: Column, schema: Schema) -> ComputedCell:
    """Return the value of `column` that SQL text computes.

    Raises OptionError for what is not possible, quoting the part, ColumnNotFoundError, and
    SchemaError for a name that is ambiguous.
    """
    with errors_of_sql(text, "set:", "set", ALLOWED):
        tree = parsed_sql(text)
    if tree is None:
        raise OptionError(f"set: {text!r} is not one expression; {ALLOWED}")
    names: dict[str, Column] = {}
    for found in tree.find_all(exp.Expression):
        _check_is_known(found)
        if isinstance(found, exp.Column):
            if found.table:
                raise _refusal(found)
            names[found.name] = find_column(found.name, schema, "set", tree)
    tree = tree.transform(_at(datetime.now(UTC)))
    return ComputedCell(column, text, tree, names)


def _at(now: datetime) -> Callable[[exp.Expression], exp.Expression]:
    """Return what writes a moment in the place of the functions that mean now, for all rows."""

    def replaced(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.CurrentTimestamp | exp.CurrentDate):
            return node
        is_date = isinstance(node, exp.CurrentDate)
        text = exp.Literal.string(now.date().isoformat() if is_date else now.isoformat())
        return exp.Cast(this=text, to=exp.DataType.build("DATE" if is_date else "TIMESTAMPTZ"))

    return replaced


def _check_is_known(node: exp.Expression) -> None:
    if isinstance(node, exp.Identifier | exp.Literal | exp.DataType | exp.DataTypeParam | exp.Var):
        return
    is_known = isinstance(node, (*_VALUES, exp.CurrentDate, exp.CurrentTimestamp))
    other = {name for name, found in node.args.items() if found} - _ARGUMENTS - _SAFE
    if not is_known or (other and not isinstance(node, exp.Column)):
        raise _refusal(node)


class _Evaluator:
    """Computes the values of a tree for all rows of a batch; constants stay scalars."""

    def __init__(self, rows: pa.RecordBatch, names: Mapping[str, Column], is_exact: bool) -> None:
        self._rows = rows
        self._names = names
        self._is_exact = is_exact  # a number with a point is a DECIMAL, else a DOUBLE

    def value(self, node: exp.Expression) -> Value:
        """Return the values of a node. Raises what pyarrow does, TypeError, OptionError."""
        for kind in type(node).__mro__:
            compute = _VALUES.get(kind)
            if compute is not None:
                return compute(self, node)
        raise _refusal(node)

    def _both(self, node: exp.Expression) -> tuple[Value, Value]:
        return _matched(self.value(node.this), self.value(node.expression))

    def _all(self, *nodes: exp.Expression) -> list[Value]:
        values = [self.value(node) for node in nodes]
        first = next((each for each in values if not pa.types.is_null(each.type)), values[0])
        return [first if each is first else _matched(first, each)[1] for each in values]

    def column(self, node: exp.Expression) -> Value:
        return self._rows.column(self._names[node.name].name)

    def literal(self, node: exp.Expression) -> Value:
        found = literal_value(node)
        if not isinstance(found, str | bytes | bool | int) and not self._is_exact:
            found = float(found) if isinstance(found, Decimal) else found
        return pa.scalar(found)

    def cast(self, node: exp.Expression) -> Value:
        if node.args.get("safe"):
            raise _refusal(node)
        if isinstance(node.this, exp.Literal):
            try:
                return self.literal(node)
            except ZoneInfoNotFoundError as error:
                raise _refusal(node, f"has no known time zone: {error}") from error
            except TypeError:
                pass
        return _cast(self.value(node.this), _type_of(node.args["to"], node))

    def interval(self, node: exp.Expression) -> Value:
        unit = str(node.args["unit"].name).upper().removesuffix("S")
        count = literal_value(node.this)
        if unit not in _MICROSECONDS or not str(count).lstrip("-").isdigit():
            raise _refusal(node, f"is no interval of {', '.join(_MICROSECONDS)}")
        return pa.scalar(timedelta(microseconds=int(str(count)) * _MICROSECONDS[unit]))

    # -- arithmetic

    def arithmetic(self, node: exp.Expression) -> Value:
        name = _ARITHMETIC[type(node)]
        values = self.value(node.this), self.value(node.expression)
        if any(pa.types.is_string(v.type) or pa.types.is_boolean(v.type) for v in values):
            raise _refusal(node, "is no arithmetic of numbers or times; || joins text")
        left, right = _matched(*values)
        return pc.call_function(f"{name}_checked", [left, right])

    def divide(self, node: exp.Expression) -> Value:
        left, right = self._divided(node)
        if not pa.types.is_decimal(left.type):
            left, right = left.cast(pa.float64()), right.cast(pa.float64())
        return pc.divide(left, right)

    def divide_whole(self, node: exp.Expression) -> Value:
        left, right = self._divided(node)
        if not pa.types.is_integer(left.type) or not pa.types.is_integer(right.type):
            raise _refusal(node, "divides integers only")
        return pc.divide_checked(left, right)

    def modulo(self, node: exp.Expression) -> Value:
        left, right = self._divided(node)
        if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
            return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
        if pa.types.is_decimal(left.type):
            raise _refusal(node, "is of integers and doubles only")
        numbers = [_numpy(each, self._rows.num_rows) for each in (left, right)]
        is_null = reduce(np.logical_or, (nulls for _, nulls in numbers))
        return pa.array(np.fmod(*(values for values, _ in numbers)), mask=is_null)

    def _divided(self, node: exp.Expression) -> tuple[Value, Value]:
        left, right = self._both(node)
        divisors = pa.repeat(right, 1) if isinstance(right, pa.Scalar) else right
        if pc.any(pc.equal(divisors, pa.scalar(0).cast(right.type))).as_py():
            raise ValueError(
                f"{node.sql(dialect='spark')} divides by zero; NULLIF({node.expression.sql()}, 0)"
                " makes NULL of it"
            )
        return left, right

    def negative(self, node: exp.Expression) -> Value:
        return pc.negate_checked(self.value(node.this))

    def absolute(self, node: exp.Expression) -> Value:
        return pc.abs_checked(self.value(node.this))

    def rounded(self, node: exp.Expression) -> Value:
        digits = node.args.get("decimals")
        count = 0 if digits is None else literal_value(digits)
        return pc.round(self.value(node.this), int(str(count)), "half_towards_infinity")

    def floor(self, node: exp.Expression) -> Value:
        return _whole(pc.floor(self.value(node.this)))

    def ceil(self, node: exp.Expression) -> Value:
        return _whole(pc.ceil(self.value(node.this)))

    # -- text

    def joined(self, node: exp.Expression) -> Value:
        parts = node.expressions or [node.this, node.expression]
        texts = []
        for part in parts:
            found = self.value(part)
            if not (pa.types.is_string(found.type) or pa.types.is_integer(found.type)):
                raise _refusal(part, f"of type {found.type} is no text; CAST it")
            texts.append(found.cast(pa.string()))
        return pc.binary_join_element_wise(*texts, pa.scalar(""), null_handling="emit_null")

    def text(self, node: exp.Expression) -> Value:
        found = self.value(node.this)
        if isinstance(node, exp.Trim):
            return pc.utf8_trim(found, characters=" ")
        return _TEXT_FUNCTIONS[type(node)](found)

    def replaced(self, node: exp.Expression) -> Value:
        old, new = (literal_value(node.args[name]) for name in ("expression", "replacement"))
        if not isinstance(old, str) or not isinstance(new, str):
            raise _refusal(node, "replaces text by text")
        return pc.replace_substring(self.value(node.this), pattern=old, replacement=new)

    def part(self, node: exp.Expression) -> Value:
        start = int(str(literal_value(node.args["start"])))
        length = node.args.get("length")
        if start < 0:
            raise _refusal(node, "begins before the text")
        first = max(0, start - 1)  # 0 is the first letter, too
        stop = None if length is None else first + max(0, int(str(literal_value(length))))
        return pc.utf8_slice_codeunits(self.value(node.this), first, stop)

    # -- choices

    def coalesced(self, node: exp.Expression) -> Value:
        return pc.coalesce(*self._all(node.this, *node.expressions))

    def greatest(self, node: exp.Expression) -> Value:
        extreme = pc.max_element_wise if isinstance(node, exp.Greatest) else pc.min_element_wise
        return extreme(*self._all(node.this, *node.expressions))

    def null_if(self, node: exp.Expression) -> Value:
        left, right = self._both(node)
        is_equal = pc.fill_null(pc.equal(left, right), fill_value=False)
        return pc.if_else(is_equal, pa.scalar(None, left.type), left)

    def chosen(self, node: exp.Expression) -> Value:
        default = node.args.get("default" if isinstance(node, exp.Case) else "false")
        ifs = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        tests = [
            self._test(each, node.this if isinstance(node, exp.Case) else None) for each in ifs
        ]
        last = exp.Null() if default is None else default
        *values, other = self._all(*(each.args["true"] for each in ifs), last)
        for test, value in reversed(list(zip(tests, values, strict=True))):
            other = pc.if_else(pc.fill_null(test, fill_value=False), value, other)
        return other

    def _test(self, node: exp.Expression, compared: exp.Expression | None) -> Value:
        if compared is None:
            return self.value(node.this)
        return pc.equal(*_matched(self.value(compared), self.value(node.this)))

    # -- conditions

    def compared(self, node: exp.Expression) -> Value:
        left, right = self._both(node)
        if isinstance(node, exp.NullSafeEQ):
            both = pc.and_(pc.is_null(left), pc.is_null(right))
            return pc.or_(both, pc.fill_null(pc.equal(left, right), fill_value=False))
        return _COMPARISONS[type(node)](left, right)

    def joint(self, node: exp.Expression) -> Value:
        join = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return join(self.value(node.this), self.value(node.expression))

    def inverted(self, node: exp.Expression) -> Value:
        return pc.invert(self.value(node.this))

    def is_null(self, node: exp.Expression) -> Value:
        if not isinstance(bare(node.expression), exp.Null):
            raise _refusal(node)
        return pc.is_null(self.value(node.this))

    def between(self, node: exp.Expression) -> Value:
        value, low, high = self._all(node.this, node.args["low"], node.args["high"])
        return pc.and_kleene(pc.greater_equal(value, low), pc.less_equal(value, high))

    def in_list(self, node: exp.Expression) -> Value:
        if not node.expressions:
            raise _refusal(node)
        value, *items = self._all(node.this, *node.expressions)
        return reduce(pc.or_kleene, (pc.equal(value, item) for item in items))

    def like(self, node: exp.Expression) -> Value:
        pattern = literal_value(node.expression)
        if not isinstance(pattern, str):
            raise _refusal(node)
        return pc.match_like(self.value(node.this), pattern)


_TEXT_FUNCTIONS: dict[type[exp.Expression], Callable[[Value], Value]] = {
    exp.Upper: pc.utf8_upper,
    exp.Lower: pc.utf8_lower,
    exp.Length: pc.utf8_length,
}
_ARITHMETIC: dict[type[exp.Expression], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
}
_COMPARISONS: dict[type[exp.Expression], Callable[[Value, Value], Value]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
_E = _Evaluator
_VALUES: dict[type, Callable[[_Evaluator, Any], Value]] = {
    exp.Paren: lambda found, node: found.value(node.this),
    exp.Column: _E.column,
    **dict.fromkeys((exp.Literal, exp.Boolean, exp.HexString, exp.RawString), _E.literal),
    exp.Null: lambda _found, _node: pa.scalar(None),
    exp.Cast: _E.cast,  # and TryCast, which sqlglot makes of Spark's CAST
    exp.Interval: _E.interval,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _E.arithmetic),
    exp.Div: _E.divide,
    exp.IntDiv: _E.divide_whole,
    exp.Mod: _E.modulo,
    exp.Neg: _E.negative,
    exp.Abs: _E.absolute,
    exp.Round: _E.rounded,
    exp.Floor: _E.floor,
    exp.Ceil: _E.ceil,
    **dict.fromkeys((exp.DPipe, exp.Concat), _E.joined),
    **dict.fromkeys((exp.Upper, exp.Lower, exp.Length, exp.Trim), _E.text),
    exp.Replace: _E.replaced,
    exp.Substring: _E.part,
    exp.Coalesce: _E.coalesced,
    **dict.fromkeys((exp.Greatest, exp.Least), _E.greatest),
    exp.Nullif: _E.null_if,
    **dict.fromkeys((exp.Case, exp.If), _E.chosen),
    **dict.fromkeys((*_COMPARISONS, exp.NullSafeEQ), _E.compared),
    **dict.fromkeys((exp.And, exp.Or), _E.joint),
    exp.Not: _E.inverted,
    exp.Is: _E.is_null,
    exp.Between: _E.between,
    exp.In: _E.in_list,
    exp.Like: _E.like,
}


def _matched(left: Value, right: Value) -> tuple[Value, Value]:
    """Return two values of types that fit: text and NULL take the other one's type."""
    for kind in (pa.types.is_null, pa.types.is_string):
        if kind(left.type) and not kind(right.type):
            return left.cast(right.type), right
        if kind(right.type) and not kind(left.type):
            return left, right.cast(left.type)
    return left, right


def _cast(value: Value, kind: pa.DataType) -> Value:
    """Cast as Spark does: a fraction is cut off, and what is too large an error."""
    if pa.types.is_integer(kind) and pa.types.is_floating(value.type):
        return pc.trunc(value).cast(kind)
    if pa.types.is_integer(kind) and pa.types.is_decimal(value.type):
        return pc.trunc(value).cast(kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(value.type):
        return pc.floor_temporal(value, unit="day").cast(kind)
    return value.cast(kind)


def _whole(value: Value) -> Value:
    return value.cast(pa.int64()) if pa.types.is_floating(value.type) else value


def _type_of(node: exp.Expression, part: exp.Expression) -> pa.DataType:
    name = node.this.name
    if name == "DECIMAL":
        sizes = [int(str(each.this.this)) for each in node.expressions] or [10]
        return pa.decimal128(sizes[0], sizes[1] if len(sizes) > 1 else 0)
    if name not in _CASTS:
        raise _refusal(part, "has a type that is not supported")
    return _CASTS[name]


def _numpy(value: Value, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return doubles, and which of them are NULL."""
    array = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    numbers = array.cast(pa.float64())
    is_null = numbers.is_null().to_numpy(zero_copy_only=False)
    return pc.fill_null(numbers, 0.0).to_numpy(zero_copy_only=False), is_null
