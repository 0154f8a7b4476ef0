"""Single Python values of columns: accepted values, their canonical form, and their form in JSON.

A canonical value is a bool, int, float (one NaN object, so that `==` on tuples holds), Decimal with
exactly the column's scale, `datetime.date`, `datetime.datetime` (UTC for unixtime_micros, naive for
timestamp_ntz, an int of microseconds where Python has no such year), str, bytes, and for arrays a
list of these and None.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.model.hybrid_time import NAIVE_DATETIME
from kudulite.model.types import DATE_MAX, DATE_MIN, ColumnType, value_text

INT_RANGES = {
    name: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for name, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64))
}
# Of a float by its bits: from 2^53 on, a double is not the only one of its integers.
SIGNIFICANT_BITS = {16: 11, 32: 24, 64: 53}
_EPOCH_DATE = datetime.date(1970, 1, 1).toordinal()
_EPOCH_NAIVE = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_JSON_INT_MAX = 1 << 53  # larger ones are strings: other JSON readers round them
DECIMAL_CONTEXT = decimal.Context(prec=200, Emax=10_000, Emin=-10_000, traps=[decimal.Inexact])


def canonical_value(value: Any, column_type: ColumnType, column: str) -> Any:
    """Return `value` in its canonical form, None for None. SchemaError names column and value."""
    if value is None:
        return None
    convert = _CONVERTERS[column_type.name]
    try:
        return convert(python_value(value, column_type), column_type)
    except (ValueError, TypeError, OverflowError, decimal.DecimalException) as error:
        raise SchemaError(
            f"column {column!r}: {value_text(value)} is no {column_type}: {error}"
        ) from error
    except SchemaError as error:  # of an element
        raise SchemaError(f"column {column!r}: {value_text(value)}: {error}") from error


def python_value(value: Any, column_type: ColumnType) -> Any:
    """Return the Python value of a numpy scalar, or any other value unchanged.

    Raises ValueError for a time with digits below a microsecond, and for an integer as a small
    float that may stand for several.
    """
    if not isinstance(value, np.generic):
        return value
    if column_type.is_integer and isinstance(value, np.floating):
        _check_whole(value, SIGNIFICANT_BITS.get(value.dtype.itemsize * 8, 53))
    if value.dtype.kind == "M" and (column_type.name != "date" or value.dtype != "datetime64[D]"):
        micros = value.astype("datetime64[us]")
        if micros != value:
            raise ValueError("it has digits below a microsecond")
        value = micros
    return value.item()


def _to_bool(value: Any, _: ColumnType) -> bool:
    if not isinstance(value, bool):
        raise TypeError("expected a bool")
    return value


def _check_whole(value: Any, bits: int) -> None:
    """Raise ValueError for a float of so many significant bits that may stand for two integers."""
    if abs(value) >= 1 << bits:
        raise ValueError(f"from 2^{bits} on a float does not tell integers apart; give an int")


def _to_int(value: Any, column_type: ColumnType) -> int:
    """Return a whole number as int, from int, float or Decimal; a bool is none."""
    if isinstance(value, float):
        _check_whole(value, SIGNIFICANT_BITS[64])
    if isinstance(value, (float, decimal.Decimal)) and value == value and int(value) == value:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("expected an integer")
    low, high = INT_RANGES[column_type.name]
    if not low <= value <= high:
        raise ValueError(f"outside {low}..{high}")
    return value


def _to_float(value: Any, column_type: ColumnType) -> float:
    """Return a number as float, exactly; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
        raise TypeError("expected a number")
    number = float(value)
    if number != number:
        return math.nan
    if number != value:
        raise ValueError("no double has this value")
    if column_type.name == "float" and not math.isinf(number):
        with np.errstate(over="ignore"):
            rounded = float(np.float32(number))
        if rounded != number:
            # A value of 0.1 means the nearest float, as in every language.
            if math.isinf(rounded):
                raise ValueError("outside the range of float")
            return rounded
    return number


def decimal_unscaled(value: decimal.Decimal, scale: int) -> int:
    """Return `value` × 10^scale; raises decimal.Inexact where that is no whole number."""
    return int(value.scaleb(scale, DECIMAL_CONTEXT).to_integral_exact(context=DECIMAL_CONTEXT))


def decimal_from_unscaled(unscaled: int, scale: int) -> decimal.Decimal:
    """Return the Decimal with exactly `scale` digits after the point."""
    return decimal.Decimal(unscaled).scaleb(-scale, DECIMAL_CONTEXT)


def _to_decimal(value: Any, column_type: ColumnType) -> decimal.Decimal:
    """Return an int or a Decimal as Decimal, exactly; a float or a bool is none."""
    assert column_type.scale is not None and column_type.precision is not None
    if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal)):
        raise TypeError("expected a Decimal or an int")
    number = decimal.Decimal(value)
    if not number.is_finite():
        raise ValueError("expected a finite number")
    try:
        unscaled = decimal_unscaled(number, column_type.scale)
    except decimal.Inexact:
        raise ValueError(f"more than {column_type.scale} digits after the point") from None
    if abs(unscaled) >= 10**column_type.precision:
        raise ValueError(f"more than {column_type.precision} digits")
    return decimal_from_unscaled(unscaled, column_type.scale)


def to_days(value: Any) -> int:
    """Return days since the epoch, from a date or an ISO string."""
    if isinstance(value, str):
        value = datetime.date.fromisoformat(value.strip())
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise TypeError("expected a date or a string such as '2026-11-21'")
    return value.toordinal() - _EPOCH_DATE


def date_from_days(days: int) -> datetime.date:
    """Return the date that is `days` after 1970-01-01; ValueError outside the years 1 to 9999."""
    if not DATE_MIN <= days <= DATE_MAX:
        raise ValueError(f"day {days} is outside 0001-01-01..9999-12-31")
    return datetime.date.fromordinal(days + _EPOCH_DATE)


def _to_date(value: Any, _: ColumnType) -> datetime.date:
    return date_from_days(to_days(value))


def to_micros(value: Any, column_type: ColumnType) -> int:
    """Return microseconds since the epoch, from an int of them, a datetime, or an ISO string.

    Also from (text, format of strptime), as in kudu-python. In a unixtime_micros column, text
    without a zone is UTC, and a datetime without one is an error, because most programs mean local
    time by it. A datetime with a zone is an error in a timestamp_ntz column.
    """
    if type(value) is datetime.datetime and value.tzinfo is datetime.UTC:  # the usual case
        if column_type.name == "unixtime_micros":
            return (value - _EPOCH_UTC) // _MICROSECOND
    if isinstance(value, int) and not isinstance(value, bool):
        low, high = INT_RANGES["int64"]
        if not low <= value <= high:
            raise ValueError(f"outside {low}..{high}")
        return value
    is_text = isinstance(value, str | tuple)
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.strip())
    elif isinstance(value, tuple) and len(value) == 2:
        value = datetime.datetime.strptime(*value)
    if not isinstance(value, datetime.datetime):
        raise TypeError("expected a datetime, an ISO string, or an int of microseconds")
    if type(value) is not datetime.datetime:  # of pandas: one that is missing, or has nanoseconds
        if value != value:
            raise ValueError("a missing moment is None")
        if getattr(value, "nanosecond", 0):
            raise ValueError("it has digits below a microsecond")
    if value.tzinfo is None or value.utcoffset() is None:
        if column_type.name == "unixtime_micros" and not is_text:
            raise ValueError(NAIVE_DATETIME)
        return (value.replace(tzinfo=None) - _EPOCH_NAIVE) // _MICROSECOND
    if column_type.name == "timestamp_ntz":
        raise ValueError("it has a time zone, and timestamp_ntz has none")
    return (value - _EPOCH_UTC) // _MICROSECOND


def timestamp_from_micros(micros: int, column_type: ColumnType) -> datetime.datetime | int:
    """Return the canonical value of `micros` microseconds since the epoch."""
    return _moment_of(micros, _EPOCH_UTC if column_type.name == "unixtime_micros" else _EPOCH_NAIVE)


def _moment_of(micros: int, epoch: datetime.datetime) -> datetime.datetime | int:
    try:
        return epoch + datetime.timedelta(microseconds=micros)
    except OverflowError:
        return micros


def python_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return n rows as dicts, as `to_pylist` gives them, and any moment (see `python_values`)."""
    try:
        return list(rows.to_pylist())
    except (OverflowError, ValueError):
        cells = map(python_values, rows.columns)
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*cells, strict=True)]


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return n cells as Python values, None for null.

    A moment outside the years 1 to 9999 is an int of microseconds since the epoch, also in arrays
    and in rows within rows.
    """
    try:
        return list(array.to_pylist())
    except (OverflowError, ValueError):
        pass
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in python_values(chunk)]
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        cells = map(python_values, array.flatten())
        rows = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
        known = array.is_valid().to_pylist()
        return [row if is_known else None for row, is_known in zip(rows, known, strict=True)]
    if pa.types.is_list(array.type):
        return [python_values(cell.values) if cell.is_valid else None for cell in array]
    epoch = _EPOCH_NAIVE if array.type.tz is None else _EPOCH_UTC
    micros = array.cast(pa.int64()).to_pylist()
    return [None if value is None else _moment_of(value, epoch) for value in micros]


def _to_timestamp(value: Any, column_type: ColumnType) -> datetime.datetime | int:
    return timestamp_from_micros(to_micros(value, column_type), column_type)


def to_text(value: Any) -> str:
    """Return a str that has a UTF-8 form."""
    if not isinstance(value, str):
        raise TypeError("expected a str")
    value.encode()
    return value


def _to_text(value: Any, column_type: ColumnType) -> str:
    text = to_text(value)
    if column_type.length is not None and len(text) > column_type.length:
        raise ValueError(f"longer than {column_type.length} characters")
    return text


def to_bytes(value: Any) -> bytes:
    """Return bytes, from any bytes-like object or the UTF-8 of a str."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("expected bytes")
    return bytes(value)


def _to_list(value: Any, column_type: ColumnType) -> list[Any]:
    element = column_type.element
    assert element is not None
    if isinstance(value, np.ndarray):
        value = list(value)
    if not isinstance(value, list | tuple):
        raise TypeError("expected a list")
    return [canonical_value(item, element, "element") for item in value]


_CONVERTERS: dict[str, Callable[[Any, ColumnType], Any]] = {
    "bool": _to_bool,
    "int8": _to_int,
    "int16": _to_int,
    "int32": _to_int,
    "int64": _to_int,
    "float": _to_float,
    "double": _to_float,
    "decimal": _to_decimal,
    "date": _to_date,
    "unixtime_micros": _to_timestamp,
    "timestamp_ntz": _to_timestamp,
    "string": _to_text,
    "varchar": _to_text,
    "binary": lambda value, _: to_bytes(value),
    "array": _to_list,
}


def value_to_json(value: Any, column_type: ColumnType) -> Any:
    """Return a canonical value as something JSON keeps: number, string, bool, list, or None."""
    if value is not None and column_type.element is not None:
        return [value_to_json(item, column_type.element) for item in value]
    if value is None or column_type.name == "bool" or column_type.is_text:
        return value
    if column_type.is_integer:
        return value if abs(value) <= _JSON_INT_MAX else str(value)
    if column_type.is_float:
        return value if math.isfinite(value) else repr(value)
    if column_type.name == "binary":
        return value.hex()
    if column_type.is_timestamp:
        return str(to_micros(value, column_type))
    return str(value)  # Decimal, date


def value_from_json(stored: Any, column_type: ColumnType, column: str) -> Any:
    """Return the canonical value that `value_to_json` stored."""
    if stored is not None and column_type.element is not None:
        return [value_from_json(item, column_type.element, column) for item in stored]
    if isinstance(stored, str) and not column_type.is_text:
        if column_type.is_integer or column_type.is_timestamp:
            stored = int(stored)
        elif column_type.is_float:
            stored = float(stored)
        elif column_type.name == "decimal":
            stored = decimal.Decimal(stored)
        elif column_type.name == "binary":
            stored = bytes.fromhex(stored)
    return canonical_value(stored, column_type, column)
