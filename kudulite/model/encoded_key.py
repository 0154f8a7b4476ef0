"""Kudu's order-preserving key encoding: comparing bytes is comparing keys, column by column.

    key     := value*                         one per key column, in key order
    integer := its bytes, big-endian, sign bit flipped        (also date, timestamps: their number)
    decimal := its unscaled integer, in 4, 8 or 16 bytes by precision
    string  := its bytes as they are, if it is the last column of the key; otherwise
               its bytes with each 00 as 00 01, then 00 00

Worked example, (int32 12345, string "a", int8 -1): 80 00 30 39 · 61 00 00 · 7f.

Arrays are encoded and decoded without a loop over rows. The scalar functions serve point reads and
bounds; a property test keeps the two equal.

**Source**: Kudu common/key_encoder.h, encoded_key.cc.
"""

from __future__ import annotations

import decimal
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import CorruptionError, RowError, SchemaError
from kudulite.model.key_array import KeyArray
from kudulite.model.key_hash import binary_parts
from kudulite.model.types import ColumnType, joined
from kudulite.model.values import (
    canonical_value,
    date_from_days,
    decimal_from_unscaled,
    decimal_unscaled,
    timestamp_from_micros,
    to_days,
    to_micros,
)

_TERMINATOR = b"\0\0"
_ESCAPED_NUL = b"\0\1"
_LARGE_BYTES = 2**31 - 2**20  # above this, 32-bit offsets may not reach

_ID_BYTES, _ID_OFFSET = 8, 1 << 63


def key_width(types: Sequence[ColumnType]) -> int | None:
    """Return the width in bytes of encoded keys over these columns, or None if it varies."""
    total = 0
    for column_type in types:
        if column_type.key_width is None:
            return None
        total += column_type.key_width
    return total


# --- one key

_Encoder = Callable[[Any], bytes]


@functools.cache
def _scalar_encoder(column_type: ColumnType, is_last: bool) -> _Encoder:
    if column_type.is_bytes:
        convert = _bytes_of if column_type.name == "binary" else _text_bytes
        if is_last:
            return convert
        return lambda value: convert(value).replace(b"\0", _ESCAPED_NUL) + _TERMINATOR
    width = column_type.key_width
    if width is None:
        raise SchemaError(f"{column_type} may not be part of a key")
    size, sign = width, 1 << (8 * width - 1)
    number = _number_reader(column_type)
    return lambda value: (number(value) + sign).to_bytes(size, "big")


def _text_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected a str")
    return value.encode()


def _bytes_of(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("expected bytes")
    return bytes(value)


def _number_reader(column_type: ColumnType) -> Callable[[Any], int]:
    """Return the function from a Python value to the integer that is encoded."""
    if column_type.is_timestamp:
        return lambda value: to_micros(value, column_type)
    if column_type.name == "date":
        return to_days
    if column_type.name == "decimal":
        scale = column_type.scale or 0
        return lambda value: decimal_unscaled(canonical_value(value, column_type, "key"), scale)
    return _int_of


def _int_of(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (np.integer, int)) and not isinstance(value, bool):
        return int(value)
    raise TypeError("expected an int")


class KeyEncoder:
    """Encodes keys of columns of these types one by one; prepared once, for any thread."""

    def __init__(self, types: Sequence[ColumnType]) -> None:
        self.types = tuple(types)
        last = len(types) - 1
        self._encoders = [_scalar_encoder(given, i == last) for i, given in enumerate(types)]

    def __call__(self, values: Sequence[Any]) -> bytes:
        """Return the key of as many Python values as there are columns.

        Timestamps may be datetimes, ISO strings, or ints of microseconds. SchemaError if a value is
        not of its type.
        """
        if len(values) < len(self._encoders):
            raise self._miscounted(values)
        return self.prefix(values)

    def prefix(self, values: Sequence[Any]) -> bytes:
        """Return the bytes with which every key starts whose first columns have these values.

        The last value is encoded as last only if it is the key's last.
        """
        encoders = self._encoders
        if len(values) > len(encoders):
            raise self._miscounted(values)
        try:
            return b"".join([encode(v) for encode, v in zip(encoders, values, strict=False)])
        except (TypeError, ValueError, OverflowError, decimal.DecimalException) as error:
            shown = ", ".join(map(str, self.types))
            raise SchemaError(f"key {tuple(values)!r} does not fit ({shown}): {error}") from error

    def _miscounted(self, values: Sequence[Any]) -> SchemaError:
        count = len(self._encoders)
        return SchemaError(f"a key of {count} columns was given {len(values)} values: {values}")


def encode_key(values: Sequence[Any], types: Sequence[ColumnType]) -> bytes:
    """Return the encoded key of one tuple of Python values, as `KeyEncoder` gives it."""
    return KeyEncoder(types)(values)


def decode_key(key: bytes, types: Sequence[ColumnType]) -> tuple[Any, ...]:
    """Return the Python values of one encoded key; CorruptionError if it is not one."""
    values: list[Any] = []
    position, last = 0, len(types) - 1
    for i, column_type in enumerate(types):
        width = column_type.key_width
        if width is not None:
            field = key[position : position + width]
            if len(field) < width:
                raise CorruptionError(f"encoded key {key.hex()} ends within a {column_type}")
            number = int.from_bytes(field, "big") - (1 << (8 * width - 1))
            values.append(value_of_number(number, column_type))
            position += width
            continue
        stop = len(key) if i == last else key.find(_TERMINATOR, position)
        if stop < 0:
            raise CorruptionError(f"encoded key {key.hex()} has no end of a {column_type}")
        field = key[position:stop]
        if i != last:
            field, stop = field.replace(_ESCAPED_NUL, b"\0"), stop + 2
        values.append(field if column_type.name == "binary" else field.decode())
        position = stop
    if position != len(key):
        raise CorruptionError(f"encoded key {key.hex()} is longer than its columns")
    return tuple(values)


def value_of_number(number: Any, column_type: ColumnType) -> Any:
    """Return the canonical value of a whole number, day, microsecond or unscaled decimal."""
    if column_type.is_timestamp:
        return timestamp_from_micros(number, column_type)
    if column_type.name == "date":
        return date_from_days(number)
    if column_type.name == "decimal":
        return decimal_from_unscaled(number, column_type.scale or 0)
    return number


def id_of_key(key: bytes) -> int:
    """Return the last column of an encoded key, which is an int64."""
    return int.from_bytes(key[-_ID_BYTES:], "big") - _ID_OFFSET


def with_id(key: bytes, number: int) -> bytes:
    """Return an encoded key, whose last column is an int64, with another value of it."""
    return key[:-_ID_BYTES] + (number + _ID_OFFSET).to_bytes(_ID_BYTES, "big")


def key_successor(key: bytes) -> bytes:
    """Return the smallest byte string greater than `key`."""
    return key + b"\0"


def prefix_successor(prefix: bytes) -> bytes | None:
    """Return the smallest byte string above all that start with `prefix`, None without one."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


# --- many keys


def encode_keys(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> KeyArray:
    """Return the encoded keys of n rows, from one array per key column, of its exact Arrow type.

    Raises RowError if a value is null.
    """
    columns = [joined(column) for column in columns]
    for column, column_type in zip(columns, types, strict=True):
        assert column.type == column_type.arrow, f"{column.type} given for {column_type}"
        if column.null_count:
            raise RowError(
                f"{column.null_count} of {len(column)} values of a {column_type} key column are "
                "null",
                reason=RowError.REASON_NULL,
                row_count=column.null_count,
            )
    width = key_width(types)
    if width is None:
        return KeyArray(_encode_variable(columns, types), None)
    if width <= 8:
        return KeyArray(_encode_packed(columns, types), width)
    return KeyArray(_encode_fixed(columns, types).view(f"S{width}"), width)


def _fixed_fields(column: pa.Array, column_type: ColumnType) -> list[np.ndarray]:
    """Return unsigned integers whose big-endian bytes, one after the other, are the values."""
    width = column_type.key_width
    assert width is not None
    if column_type.name == "decimal":
        buffer = column.buffers()[1]
        halves = np.zeros((0, 2), np.uint64)
        if len(column):
            halves = np.frombuffer(buffer, np.uint64, 2 * len(column), 16 * column.offset)
            halves = halves.reshape(-1, 2)
        if width == 16:
            return [halves[:, 1] ^ np.uint64(1 << 63), halves[:, 0]]
        numbers = halves[:, 0].astype(f"u{width}")  # a decimal this short is its lowest word
    else:
        integers = column.view(pa.int64() if width == 8 else _SIGNED[width])
        numbers = integers.to_numpy().view(f"u{width}")
    return [_sign_flipped(numbers)]


def _sign_flipped(numbers: np.ndarray) -> np.ndarray:
    """Return unsigned integers with the highest bit inverted."""
    flipped: np.ndarray = numbers ^ numbers.dtype.type(1 << (8 * numbers.itemsize - 1))
    return flipped


_SIGNED = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


def _encode_packed(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> np.ndarray:
    """Return uint64[n], keys of up to eight bytes as big-endian numbers."""
    packed: np.ndarray | None = None
    for column, column_type in zip(columns, types, strict=True):
        (numbers,) = _fixed_fields(column, column_type)
        if packed is None:
            packed = numbers.astype(np.uint64, copy=False)
        else:
            packed = (packed << np.uint64(8 * numbers.itemsize)) | numbers
    assert packed is not None
    return packed


def _encode_fixed(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> np.ndarray:
    """Return one structured item per row, its bytes the concatenated fixed-width values."""
    fields: list[np.ndarray] = []
    for column, column_type in zip(columns, types, strict=True):
        fields += _fixed_fields(column, column_type)
    dtype = np.dtype([(f"f{i}", f">u{field.itemsize}") for i, field in enumerate(fields)])
    rows = np.empty(len(columns[0]), dtype)
    for i, field in enumerate(fields):
        rows[f"f{i}"] = field
    return rows


def _encode_variable(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> pa.Array:
    """Return keys with at least one string as a binary array, joined by Arrow."""
    parts: list[pa.Array | pa.Scalar] = []
    last = len(columns) - 1
    for is_bytes, group in itertools.groupby(range(len(columns)), lambda i: types[i].is_bytes):
        if not is_bytes:  # neighbouring fixed-width columns, encoded in one go
            run = list(group)
            rows = _encode_fixed([columns[i] for i in run], [types[i] for i in run])
            offsets = np.arange(len(rows) + 1) * rows.dtype.itemsize
            parts.append(_binary_array(offsets, rows.view(np.uint8)))
            continue
        for i in group:
            part = columns[i].view(pa.binary())
            if i == last:
                parts.append(part)
                break
            _, data = binary_parts(part)
            if not data.all():  # a NUL somewhere in the buffer
                part = pc.replace_substring(part, b"\0", _ESCAPED_NUL)
            parts += [part, pa.scalar(_TERMINATOR)]
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if isinstance(part, pa.Array)]
    byte_count = sum(array.nbytes for array in arrays) + 2 * len(columns[0]) * len(parts)
    if byte_count > _LARGE_BYTES:
        parts = [part.cast(pa.large_binary()) for part in parts]
    if len(parts) == 3 and not isinstance(parts[1], pa.Array):
        return pc.binary_join_element_wise(parts[0], parts[2], parts[1])  # terminator as separator
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", parts[0].type))


def _binary_array(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    """Return the binary array of the strings between `offsets` in `data`, which is not copied."""
    is_large = len(data) > _LARGE_BYTES
    kind, dtype = (pa.large_binary(), np.int64) if is_large else (pa.binary(), np.int32)
    buffers = [None, pa.py_buffer(offsets.astype(dtype, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


# --- decoding many


def decode_keys(keys: KeyArray, types: Sequence[ColumnType]) -> list[pa.Array]:
    """Return the key columns, one array each, of their exact Arrow types; undoes `encode_keys`.

    Raises CorruptionError if a key cannot have these columns.
    """
    width = key_width(types)
    assert keys.width == width
    if width is None:
        ragged = keys.ragged()
        return _decode_columns(ragged.data, ragged.starts, ragged.starts + ragged.lengths, types)
    if len(types) == 1 and width <= 8:
        return [_column_of_numbers([keys.values], types[0])]
    data = np.frombuffer(keys.to_arrow().buffers()[1], np.uint8)
    starts = np.arange(0, len(keys) * width, width, dtype=np.int64)
    return _decode_columns(data, starts, starts + width, types)


def _numbers_at(data: np.ndarray, starts: np.ndarray, width: int) -> list[np.ndarray]:
    """Return the big-endian unsigned integers of `width` bytes at `starts`; two for 16 bytes."""
    size = min(width, 8)
    if len(starts) == 0:
        return [np.zeros(0, f"u{size}")] * (width // size)
    view = np.ndarray((len(data) - size + 1,), f">u{size}", data, strides=(1,))
    return [view[starts + part].astype(f"u{size}") for part in range(0, width, size)]


def _column_of_numbers(fields: list[np.ndarray], column_type: ColumnType) -> pa.Array:
    """Return the column whose encoded values are these unsigned integers."""
    width = column_type.key_width
    assert width is not None
    if column_type.name == "decimal":
        halves = np.empty((len(fields[0]), 2), np.uint64)
        if width == 16:
            halves[:, 1] = fields[0] ^ np.uint64(1 << 63)
            halves[:, 0] = fields[1]
        else:
            signed = _sign_flipped(fields[0].astype(f"u{width}")).view(f"i{width}")
            halves[:, 0] = signed.astype(np.int64).view(np.uint64)
            halves[:, 1] = np.where(signed < 0, np.uint64(2**64 - 1), np.uint64(0))
        buffers = [None, pa.py_buffer(halves)]
        return pa.Array.from_buffers(column_type.arrow, len(halves), buffers)
    signed = _sign_flipped(fields[0].astype(f"u{width}")).view(f"i{width}")
    return pa.array(signed).view(column_type.arrow)


def _decode_columns(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, types: Sequence[ColumnType]
) -> list[pa.Array]:
    """Return the columns of the keys data[starts[i]:ends[i]]."""
    last, result = len(types) - 1, []
    terminators: np.ndarray | None = None
    for i, column_type in enumerate(types):
        width = column_type.key_width
        if width is not None:
            _check_within(starts + width, ends, column_type)
            result.append(_column_of_numbers(_numbers_at(data, starts, width), column_type))
            starts = starts + width
        elif i == last:
            result.append(_column_of_bytes(data, starts, ends, column_type, is_last=True))
            starts = ends
        else:
            rest = key_width(types[i + 1 :])
            if rest is not None:
                stops = _stops_before(data, starts, ends - rest - 2, column_type)
            else:
                if terminators is None:
                    terminators = np.flatnonzero((data[:-1] == 0) & (data[1:] == 0))
                    terminators = np.append(terminators, len(data))
                stops = terminators[np.searchsorted(terminators, starts)]
            _check_within(stops + 2, ends, column_type)
            result.append(_column_of_bytes(data, starts, stops, column_type, is_last=False))
            starts = stops + 2
    if not np.array_equal(starts, ends):
        raise CorruptionError("encoded keys are longer than their columns")
    return result


def _stops_before(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, column_type: ColumnType
) -> np.ndarray:
    """Return `stops`, known because only fixed widths follow, checked to be ends of strings."""
    if len(stops) and ((stops < starts).any() or data[stops].any() or data[stops + 1].any()):
        raise CorruptionError(f"an encoded key has no end of a {column_type}")
    return stops


def _check_within(stops: np.ndarray, ends: np.ndarray, column_type: ColumnType) -> None:
    if (stops > ends).any():
        row = int(np.argmax(stops > ends))
        raise CorruptionError(f"encoded key {row} ends within a {column_type}")


def _column_of_bytes(
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    column_type: ColumnType,
    *,
    is_last: bool,
) -> pa.Array:
    """Return the column of the strings data[starts[i]:stops[i]], which ascend without overlap."""
    # Every second string of an array over the same bytes; the others are between the keys' values.
    offsets = np.zeros(2 * len(starts) + 1, np.int64 if len(data) > _LARGE_BYTES else np.int32)
    offsets[0:-1:2], offsets[1::2] = starts, stops
    offsets[-1] = offsets[-2] if len(starts) else 0
    result = _binary_array(offsets, data).take(pa.array(np.arange(0, 2 * len(starts), 2)))
    if not is_last:
        _, taken = binary_parts(result)
        if not taken.all():
            result = pc.replace_substring(result, _ESCAPED_NUL, b"\0")
    return result.cast(column_type.arrow)
