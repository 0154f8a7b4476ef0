"""The values that kudu-python's programs give: cells, literals, and options by name or number.

The two clients differ in these: text may be given as UTF-8, a datetime without a zone is UTC, a
varchar is cut to its length, a bool is the truth of any value. A value of a wrong type is a
TypeError, a whole number that is too large an OverflowError. Binary cells are bytes, and binary
literals may be text.

**Source**: Kudu python/kudu/client.pyx and schema.pyx; the texts of TypeError and OverflowError are
those of Cython.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kudulite.kudu.errors import KuduInvalidArgument
from kudulite.kudu.util import to_utc
from kudulite.model.schema import Column
from kudulite.model.types import ColumnType
from kudulite.model.values import INT_RANGES


def choice(given: object, what: str, names: Mapping[int, str]) -> str:
    """Return an option that is given by name, in any case, or by number. Raises ValueError."""
    if isinstance(given, int) and given in names:
        return names[given]
    if isinstance(given, str) and given.lower() in names.values():
        return given.lower()
    raise KuduInvalidArgument(f"Invalid {what}: {given}; known: {', '.join(names.values())}")


def literal_of(type_name: str, value: Any) -> Any:
    """Return a value that a column of the type is compared with. Raises TypeError."""
    return _CONVERTERS.get(type_name, _as_is)(value, True)


def cell_of(column: Column, value: Any) -> Any:
    """Return a value that a program gives for a cell in a form that the engine takes.

    Raises TypeError for a value of a wrong type, OverflowError for a number that is too large, and
    KuduInvalidArgument for None in a column that is NOT NULL.
    """
    if value is None:
        if not column.nullable:
            raise KuduInvalidArgument(f"column not nullable: {column.name}")
        return None
    try:
        return value_of(column.type, value)
    except (TypeError, OverflowError) as error:
        error.add_note(f"column {column.name!r} is of type {column.type}")
        raise


def value_of(column_type: ColumnType, value: Any) -> Any:
    """Return a value, not None, of a type in a form that the engine takes; raises as `cell_of`."""
    if column_type.element is not None:
        if not isinstance(value, list | tuple):
            raise TypeError(f"Array values must be a list or tuple, got {type(value)}")
        element = column_type.element
        return [None if item is None else value_of(element, item) for item in value]
    converted = _CONVERTERS.get(column_type.name, _as_is)(value, False)
    if column_type.is_integer:
        low, high = INT_RANGES[column_type.name]
        if not low <= converted <= high:
            raise OverflowError(f"value too large to convert to {column_type}_t: {converted}")
    if column_type.length is not None:
        return converted[: column_type.length]
    return converted


def _as_is(value: Any, _is_literal: bool) -> Any:
    return value


def _integer(value: Any, is_literal: bool) -> Any:
    is_number = isinstance(value, float | decimal.Decimal)
    if is_number and (is_literal or value == value.__trunc__()):
        return value if is_literal else int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"an integer is required, got {type(value).__name__}") from None


def _number(value: Any, _is_literal: bool) -> float:
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"must be real number, not {type(value).__name__}")
    return float(value)


def _text(value: Any, _is_literal: bool) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return bytes(value).decode()


def _bytes(value: Any, is_literal: bool) -> bytes:
    if isinstance(value, str) and is_literal:
        return value.encode()
    if isinstance(value, str):
        raise TypeError(
            "Unicode objects must be explicitly encoded before storing in a Binary field."
        )
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return bytes(value)


def _date(value: Any, _is_literal: bool) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError(f"a datetime.date is required, got {type(value).__name__}")
    return value


def _decimal(value: Any, _is_literal: bool) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        raise TypeError(f"a decimal.Decimal is required, got {type(value).__name__}")
    return decimal.Decimal(value)


_CONVERTERS: dict[str, Callable[[Any, bool], Any]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), _integer),
    **dict.fromkeys(("float", "double"), _number),
    **dict.fromkeys(("string", "varchar"), _text),
    "bool": lambda value, _: bool(value),
    "binary": _bytes,
    "date": _date,
    "decimal": _decimal,
    "unixtime_micros": lambda value, _: to_utc(value),
}
