"""Casts of Arrow arrays to a column type: exact, or an error that shows the values in question.

    cast_to_column(array, type) ─ no exact meaning in the type  SchemaError: the batch's schema
                                ─ values without a counterpart  RowError: values, count, first row
                                ─ otherwise                     an array of exactly `type.arrow`

No value is ever rounded, wrapped or truncated. Elements of lists are cast as values of a column.

**Invariants**: each cast below takes an Arrow array that is not yet of the column's type, and
raises ArrowInvalid for a value that has no exact counterpart.
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import RowError, SchemaError
from kudulite.model.types import (
    DATE_MAX,
    DATE_MIN,
    ColumnType,
    is_arrow_bytes,
    is_arrow_list,
    is_arrow_text,
    joined,
)
from kudulite.model.values import SIGNIFICANT_BITS

BAD_ROWS_MAX, BAD_VALUES_SHOWN = 1000, 3  # how many misfits are counted and named
_OFFSET_MAX = (1 << 31) - 1


def _cast_number(array: pa.Array, column_type: ColumnType) -> pa.Array:
    if column_type.is_float and pa.types.is_integer(array.type):
        return _exact_floats(array, column_type.arrow)
    if column_type.is_float and pa.types.is_decimal(array.type):
        array = _exact_doubles(array)
    if column_type.is_integer and pa.types.is_floating(array.type):
        _check_whole(array)
    result = array.cast(column_type.arrow)
    if pa.types.is_float64(array.type) and column_type.name == "float":
        back = result.cast(pa.float64())
        same = pc.or_kleene(pc.equal(back, array), pc.is_nan(array))
        if not pc.all(same).as_py() and pc.any(pc.invert(same)).as_py():
            raise pa.ArrowInvalid("no float has this value")
    return result


def _check_whole(array: pa.Array) -> None:
    """Raise ArrowInvalid for floats that may stand for several integers."""
    digits = SIGNIFICANT_BITS[array.type.bit_width]
    bounds = pc.min_max(array).as_py()
    limit = 1 << digits
    if bounds["max"] is not None and max(bounds["max"], -bounds["min"]) >= limit:
        raise pa.ArrowInvalid(
            f"a float of {array.type.bit_width} bits does not tell one integer from the next from"
            f" 2^{digits} on; give the column as integers, in pandas as Int64 from the beginning:"
            " a numpy column with a missing value has floats"
        )


def _exact_floats(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return integers as floats of exactly the same value; Arrow itself refuses large ones."""
    result = array.cast(wanted, safe=False)
    limit = 2.0 ** (array.type.bit_width - pa.types.is_signed_integer(array.type))
    is_inside = pc.less(result, pa.scalar(limit, wanted))
    back = pc.if_else(is_inside, result, pa.scalar(0, wanted)).cast(array.type, safe=False)
    if pc.any(pc.or_(pc.invert(is_inside), pc.not_equal(back, array))).as_py():
        raise pa.ArrowInvalid(f"no {wanted} has this value")
    return result


def _exact_doubles(array: pa.Array) -> pa.Array:
    """Return decimals as doubles of exactly the same value: n / 10^s is one if n / 5^s is whole."""
    scale = max(array.type.scale, 0)
    power = pa.scalar(decimal.Decimal(2**scale))
    power = power.cast(pa.decimal256(power.type.precision, 0))
    wide = array.cast(pa.decimal256(75 - power.type.precision, scale))
    whole = pc.multiply(wide, power).cast(pa.decimal256(76, 0))
    result = whole.cast(pa.float64())
    if pc.any(pc.not_equal(result.cast(pa.decimal256(76, 0)), whole)).as_py():
        raise pa.ArrowInvalid("no double has this value")
    return pc.divide(result, float(2**scale))


def _cast_decimal(array: pa.Array, column_type: ColumnType) -> pa.Array:
    # Through 76 digits: widening 128-bit decimals within 38 digits can overflow unnoticed.
    scale = column_type.scale or 0
    if pa.types.is_integer(array.type):
        wide = array.cast(pa.decimal256(76, scale))
    else:
        wide = array.cast(pa.decimal256(76, max(array.type.scale, scale)))
    return wide.cast(column_type.arrow)


def _cast_bytes(array: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return text or bytes of any layout in the column's type, whose offsets have 32 bits.

    Arrow casts large text only if the whole array that it is a slice of has no longer offsets.
    """
    is_text = pa.types.is_large_string(array.type)
    if len(array) and (is_text or pa.types.is_large_binary(array.type)):
        _, offsets, values = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        size = int(ends[-1] - ends[0])
        if size > _OFFSET_MAX:
            raise pa.ArrowInvalid(f"{size} bytes in one batch, at most {_OFFSET_MAX}")
        parts = [
            array.is_valid().buffers()[1] if array.null_count else None,
            pa.py_buffer((ends - ends[0]).astype(np.int32)),
            pa.py_buffer(b"") if values is None else values.slice(int(ends[0]), size),
        ]
        array = pa.Array.from_buffers(pa.string() if is_text else pa.binary(), len(array), parts)
    return array.cast(column_type.arrow)


def _cast_list(array: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return lists of any layout as lists whose elements are of the column's element type."""
    assert column_type.element is not None
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))  # null lists of this type have elements
    elements = array.flatten()  # without those of null lists
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
    if len(ends) and ends[-1] > _OFFSET_MAX:
        raise pa.ArrowInvalid(f"{ends[-1]} elements in one batch, at most {_OFFSET_MAX}")
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets,
        fitted(elements, column_type.element),
        type=column_type.arrow,
        mask=array.is_null() if array.null_count else None,
    )


def _is_exact_source(source: pa.DataType, column_type: ColumnType) -> bool:
    """Return whether values of `source` that fit have an exact meaning in `column_type`."""
    t = pa.types
    is_exact = source == column_type.arrow
    if column_type.is_integer or column_type.is_float:
        is_exact = t.is_integer(source) or t.is_floating(source) or t.is_decimal(source)
    elif column_type.name == "decimal":
        is_exact = t.is_integer(source) or t.is_decimal(source)
    elif column_type.name == "date":
        is_exact = t.is_date(source)
    elif column_type.is_timestamp:
        has_zone = column_type.name == "unixtime_micros"
        is_exact = t.is_timestamp(source) and (source.tz is not None) == has_zone
    elif column_type.is_bytes:
        is_exact = is_arrow_text(source) or (
            column_type.name == "binary" and is_arrow_bytes(source)
        )
    elif column_type.element is not None:
        is_exact = is_arrow_list(source) and (
            t.is_null(source.value_type) or _is_exact_source(source.value_type, column_type.element)
        )
    return bool(is_exact)


def _check_values(array: pa.Array, column_type: ColumnType) -> None:
    """Raise ArrowInvalid where an array of the right Arrow type holds a value that is not legal."""
    if column_type.is_text:
        array.validate(full=True)
    if column_type.name == "date":
        bounds = pc.min_max(array.view(pa.int32())).as_py()
        if bounds["min"] is not None and (bounds["min"] < DATE_MIN or bounds["max"] > DATE_MAX):
            raise pa.ArrowInvalid("outside the dates 0001-01-01 to 9999-12-31")
    if column_type.element is not None and len(array):
        _check_values(array.flatten(), column_type.element)
    if column_type.name == "varchar":
        assert column_type.length is not None
        longest = pc.max(pc.binary_length(array)).as_py()
        if longest is not None and longest > column_type.length:  # bytes are at least characters
            longest = pc.max(pc.utf8_length(array)).as_py()
            if longest > column_type.length:
                raise pa.ArrowInvalid(f"longer than {column_type.length} characters")


def cast_to_column(
    array: pa.Array | pa.ChunkedArray, column_type: ColumnType, *, column: str, table: str
) -> pa.Array:
    """Return one array of `column_type.arrow` with the same values; no copy if it has that type.

    RowError names the first values that do not fit, the row of the first one, and their number.
    SchemaError reports an Arrow type without an exact meaning in the column, unless all values are
    null: pandas gives such a column any type. Nulls are accepted; the caller checks them.
    """
    array = joined(array)
    if isinstance(array, pa.ChunkedArray):
        raise SchemaError(
            f"table {table!r}, column {column!r}: the batch holds more than 2 GiB of "
            f"{array.type} values; write it in smaller batches"
        )
    array = _unwrapped(array)
    if len(array) and array.null_count == len(array):
        return pa.nulls(len(array), column_type.arrow)
    if not pa.types.is_null(array.type) and not _is_exact_source(array.type, column_type):
        hint = ""
        if column_type.is_timestamp and pa.types.is_timestamp(array.type):
            hint = (
                "; give the timestamps a time zone, or make the column timestamp_ntz"
                if array.type.tz is None
                else "; convert to local time without a zone, or make the column unixtime_micros"
            )
        elif column_type.is_text and is_arrow_bytes(array.type):
            hint = '; decode the bytes, as in array.cast("string"), or make the column binary'
        elif column_type.is_text and pa.types.is_nested(array.type):
            hint = '; a write with nested="json" stores it as JSON text'
        raise SchemaError(
            f"table {table!r}, column {column!r}: Arrow type {array.type} has no exact meaning in "
            f"{column_type}{hint}"
        )

    try:
        return fitted(array, column_type)
    except pa.ArrowInvalid as error:
        rows = _bad_rows(array, column_type)
        others = ""
        if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
            others = "; round such values, as by dt.floor('us') in pandas"
        if len(rows) > 1:
            shown = ", ".join(_show(array, row) for row in rows[1:BAD_VALUES_SHOWN])
            more = ", …" if len(rows) > BAD_VALUES_SHOWN else ""
            at_least = "at least " if len(rows) == BAD_ROWS_MAX else ""
            others += f"; {at_least}{len(rows)} rows do not fit, the next with {shown}{more}"
        raise RowError(
            f"table {table!r}, column {column!r}: row {rows[0]}: value {_show(array, rows[0])} does"
            f" not fit {column_type}: {error}{others}",
            reason=RowError.REASON_INVALID,
            row_count=len(rows),
        ) from error


def cast_chunks(
    array: pa.ChunkedArray, column_type: ColumnType, *, column: str, table: str
) -> pa.ChunkedArray:
    """Do as `cast_to_column`, but leave the chunks as they are; those without rows are dropped."""
    names = {"column": column, "table": table}
    chunks = [chunk for chunk in array.chunks if len(chunk)]
    try:
        chunks = [cast_to_column(chunk, column_type, **names) for chunk in chunks]
    except (RowError, SchemaError):  # whose rows would be those of a chunk
        chunks = [cast_to_column(array, column_type, **names)]
    return pa.chunked_array(chunks, column_type.arrow)


def fitted(array: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return `array` in the column's type, all values checked; ArrowInvalid if one does not fit."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), column_type.arrow)
    if array.type != column_type.arrow:
        array = _cast(_unwrapped(array), column_type)
    _check_values(array, column_type)
    return array


def _cast(array: pa.Array, column_type: ColumnType) -> pa.Array:
    if column_type.is_integer or column_type.is_float:
        return _cast_number(array, column_type)
    if column_type.is_array:
        return _cast_list(array, column_type)
    if column_type.is_bytes:
        return _cast_bytes(array, column_type)
    is_decimal = column_type.name == "decimal"
    return _cast_decimal(array, column_type) if is_decimal else array.cast(column_type.arrow)


def _unwrapped(array: pa.Array) -> pa.Array:
    """Return `array` without dictionary, run-end, or extension wrapping."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        values = array.dictionary
        if values.type in (pa.string_view(), pa.binary_view()):  # of Polars; Arrow cannot cast them
            plain = pa.string() if values.type == pa.string_view() else pa.binary()
            array = pa.DictionaryArray.from_arrays(array.indices, values.cast(plain))
        array = array.cast(array.type.value_type)
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array


def _bad_rows(array: pa.Array, column_type: ColumnType) -> list[int]:
    """Return the first rows, at most BAD_ROWS_MAX, that do not fit, by bisection; some do not."""
    found: list[int] = []
    pending = [(0, len(array))]  # ranges to look at, the next one last
    while pending and len(found) < BAD_ROWS_MAX:
        start, end = pending.pop()
        try:
            fitted(array.slice(start, end - start), column_type)
        except pa.ArrowInvalid:
            middle = (start + end) // 2
            if middle == start:
                found.append(start)
            else:
                pending += [(middle, end), (start, middle)]
    return found


def _show(array: pa.Array, row: int) -> str:
    """Return the value for a message, readable even if Python has no object for it."""
    cell = array.slice(row, 1)
    try:
        text = repr(cell[0].as_py())
    except (ValueError, OverflowError, UnicodeDecodeError):
        if pa.types.is_date32(cell.type):
            text = f"day {cell.view(pa.int32())[0].as_py()}"
        elif cell.type.id in (pa.timestamp("us").id, pa.date64().id):
            text = f"{np.asarray(cell.view(pa.int64()))[0]} {cell.type}"
        else:
            text = "with no form in Python" if is_arrow_list(cell.type) else "that is no UTF-8"
    return text if len(text) <= 80 else text[:77] + "..."
