"""Rows as bytes and as columns, for records of few rows, which Arrow would encode more slowly.

    rows := row*      row := op:u8 set:bits null:bits cell*
    bits := one bit for each column of the table, the first in the lowest bit, in whole bytes
    cell := of each column that is set and not null, in the table's order, little-endian:
            bool u8 · int8 to int64 in their widths · float f32 · double f64 · date days:i32 ·
            unixtime_micros, timestamp_ntz micros:i64 · decimal unscaled:i128 ·
            string, varchar, binary length:u32 bytes ·
            array length:u32 null:bit[length], in whole bytes, cell* of elements that are not null

Worked example, table (k int8, v string); UPDATE (1) of k = 7 to v = "a", then DELETE (2) of k = 8:

    01 03 00 07 01000000 61  02 01 00 08

Values are in canonical form (model/values.py). Any other value raises ValueError, so all values in
the log fit their columns.

`RowChanges` and `RowList` are the changes of one session flush in a tablet: one change per key, all
at one timestamp, by column or by row.
"""

from __future__ import annotations

import datetime
import itertools
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType
from kudulite.model.values import (
    date_from_days,
    decimal_from_unscaled,
    decimal_unscaled,
    timestamp_from_micros,
    to_days,
    to_micros,
)

# Takes a value of the column's only type; raises ValueError, struct.error or OverflowError.
Pack = Callable[[Any], bytes]
# Returns (value, position of the next cell).
Unpack = Callable[[memoryview, int], tuple[Any, int]]
Row = tuple[int, Mapping[str, Any]]

# (getter of the values from a row, packer of the values, whether there are several).
_Step = tuple[Callable[[Mapping[str, Any]], Any], Callable[..., bytes], bool]

_NUMBERS: dict[str, tuple[str, type]] = {
    "bool": ("?", bool),
    "int8": ("b", int),
    "int16": ("h", int),
    "int32": ("i", int),
    "int64": ("q", int),
    "float": ("f", float),
    "double": ("d", float),
}
_LENGTH, _DAYS, _MICROS = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")
_DECIMAL_BYTES = 16
CELL_BYTES_MAX = (1 << 32) - 1

CHANGE_INSERT, CHANGE_UPDATE, CHANGE_DELETE = 0, 1, 2  # on disk: do not renumber


_OPS = tuple(bytes((op,)) for op in range(256))
_MOMENT = datetime.datetime
_PLANS_MAX = 256


class RecordSizeError(ValueError):
    """The changes take more bytes than a record can hold."""


@dataclass(frozen=True, eq=False, slots=True)
class _RowPlan:
    """The encoding of rows with certain names: `kinds` in their order, `steps` in the table's.

    A step packs one value, or the numbers of adjacent columns. A name that is not in the table has
    no kind, so no row with it follows the plan.
    """

    masks: bytes
    kinds: tuple[type | None, ...]
    steps: Sequence[_Step]


class RowCodec:
    """Encodes and decodes rows of one schema; immutable, for any thread."""

    def __init__(self, schema: Schema) -> None:
        self.column_ids = tuple(column.id for column in schema.columns)
        self._cells = [
            (column.name, 1 << at, *_cell_codec(column.type))
            for at, column in enumerate(schema.columns)
        ]
        self._layouts = {
            column.name: _NUMBERS[column.type.name][0]
            for column in schema.columns
            if column.type.name in _NUMBERS
        }
        self._mask_bytes = (len(schema.columns) + 7) // 8
        self._key_count = schema.key_count
        self._types = {column.name: column.type.arrow for column in schema.columns}
        self._ids = {column.name: column.id for column in schema.columns}
        self._structs: dict[tuple[str, ...], pa.StructType] = {}
        self._plans: dict[tuple[str, ...], _RowPlan] = {}

    def encode(self, rows: Sequence[Row]) -> bytes:
        """Return the rows' bytes. Raises ValueError for a value that does not fit its column."""
        parts: list[bytes] = []
        for op, cells in rows:
            parts.append(_OPS[op])
            if not self._add_planned(parts, cells):
                self._add_any(parts, cells)
        return b"".join(parts)

    def _add_planned(self, parts: list[bytes], cells: Mapping[str, Any]) -> bool:
        """Add a row without nulls whose values have their columns' types; else False.

        Programs write rows of few kinds, so the parts that depend only on the names are prepared.
        """
        names = tuple(cells)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plan_of(names)
        if tuple(map(type, cells.values())) != plan.kinds:
            return False
        parts.append(plan.masks)
        try:
            for get, pack, are_several in plan.steps:
                parts.append(pack(*get(cells)) if are_several else pack(get(cells)))
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{dict(cells)!r}: {error}") from error
        return True

    def _plan_of(self, names: tuple[str, ...]) -> _RowPlan:
        known = {name: (bit, kind, pack) for name, bit, kind, pack, _ in self._cells}
        is_set = sum(known[name][0] for name in names if name in known)
        plan = _RowPlan(
            masks=is_set.to_bytes(self._mask_bytes, "little") + bytes(self._mask_bytes),
            kinds=tuple(known[name][1] if name in known else None for name in names),
            steps=self._steps_of(names),
        )
        if len(self._plans) < _PLANS_MAX:
            self._plans[names] = plan
        return plan

    def _steps_of(self, names: Sequence[str]) -> list[_Step]:
        packs = {name: pack for name, _, _, pack, _ in self._cells if name in names}
        steps: list[_Step] = []
        for is_number, group in itertools.groupby(packs, self._layouts.__contains__):
            together = list(group)
            if is_number and len(together) > 1:
                row = struct.Struct("<" + "".join(self._layouts[name] for name in together))
                steps.append((operator.itemgetter(*together), row.pack, True))
            else:
                steps += [(operator.itemgetter(name), packs[name], False) for name in together]
        return steps

    def _add_any(self, parts: list[bytes], cells: Mapping[str, Any]) -> None:
        """Add a row cell by cell."""
        is_set = is_null = 0
        packed = []
        for name, bit, kind, pack, _ in self._cells:
            if name in cells:
                is_set |= bit
                value = cells[name]
                if value is None:
                    is_null |= bit
                    continue
                if not _is_of(value, kind):
                    raise ValueError(f"{value!r} is no {kind.__name__}")
                try:
                    packed.append(pack(value))
                except (struct.error, OverflowError) as error:
                    raise ValueError(f"{value!r}: {error}") from error
        masks = is_set | is_null << 8 * self._mask_bytes
        parts.append(masks.to_bytes(2 * self._mask_bytes, "little"))
        parts += packed

    def decode(self, content: memoryview, row_count: int) -> list[Row]:
        """Return the rows that fill `content`. Raises CorruptionError."""
        rows: list[Row] = []
        at = 0
        try:
            for _ in range(row_count):
                row, at = self._decode_row(content, at)
                rows.append(row)
        except (ValueError, IndexError, struct.error, OverflowError) as error:
            raise CorruptionError(f"row {len(rows)} of {row_count}: {error}") from error
        if at != len(content):
            raise CorruptionError(f"{row_count} rows of {at} bytes, expected {len(content)}")
        return rows

    def _decode_row(self, content: memoryview, at: int) -> tuple[Row, int]:
        op = content[at]
        if op > CHANGE_DELETE:
            raise ValueError(f"change {op}, expected 0 to {CHANGE_DELETE}")
        masks_end = at + 1 + 2 * self._mask_bytes
        masks = int.from_bytes(content[at + 1 : masks_end], "little")
        is_set = masks & (1 << 8 * self._mask_bytes) - 1
        is_null = masks >> 8 * self._mask_bytes
        if (is_set | is_null) >> len(self._cells) or is_null & ~is_set:
            raise ValueError(f"columns set {is_set:#x}, null {is_null:#x} of {len(self._cells)}")
        cells: dict[str, Any] = {}
        at = masks_end
        for name, bit, _, _, unpack in self._cells:
            if is_null & bit:
                cells[name] = None
            elif is_set & bit:
                cells[name], at = unpack(content, at)
        if at > len(content):
            raise ValueError(f"ends at byte {at} of {len(content)}")
        return (op, cells), at

    def columns(
        self, cells: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[int, pa.Array], dict[int, np.ndarray]]:
        """Return rows as the columns and masks of RowChanges, by column id.

        Raises pa.ArrowException for a value that does not fit its column.
        """
        shapes = set(map(tuple, cells))  # programs write rows of few kinds
        used = set().union(*shapes)
        names = tuple(name for name in self._types if name in used)
        if names not in self._structs:
            self._structs[names] = pa.struct([(name, self._types[name]) for name in names])
        arrays = pa.array(cells, self._structs[names]).flatten()
        is_set = {}
        for name in names[self._key_count :]:
            if not all(name in shape for shape in shapes):
                is_set[self._ids[name]] = np.array([name in row for row in cells])
        return {self._ids[n]: array for n, array in zip(names, arrays, strict=True)}, is_set


@dataclass(eq=False)
class RowList:
    """RowChanges row by row: (CHANGE_ constant, cells by column name).

    Never changed after construction. A frozen dataclass would cost as much as encoding a row.
    """

    timestamp: int
    rows: Sequence[Row]
    codec: RowCodec

    @property
    def row_count(self) -> int:
        """The number of changes, 1 or more in a record."""
        return len(self.rows)

    @cached_property
    def ops(self) -> np.ndarray:
        """The CHANGE_ constants, uint8[n]."""
        return np.array([op for op, _ in self.rows], dtype=np.uint8)

    @property
    def columns(self) -> dict[int, pa.Array]:
        """The columns, as in RowChanges."""
        return self._columns[0]

    @property
    def is_set(self) -> dict[int, np.ndarray]:
        """The masks, as in RowChanges."""
        return self._columns[1]

    @cached_property
    def _columns(self) -> tuple[dict[int, pa.Array], dict[int, np.ndarray]]:
        return self.codec.columns([cells for _, cells in self.rows])


def _cell_codec(column_type: ColumnType) -> tuple[type, Pack, Unpack]:
    """Return (type of a column's values, packer, unpacker); a moment may also be an int."""
    name = column_type.name
    if column_type.element is not None:
        return _array_codec(*_cell_codec(column_type.element))
    if name in _NUMBERS:
        return _number_codec(*_NUMBERS[name])
    if name == "date":
        return datetime.date, *_fixed_codec(_DAYS, to_days, date_from_days)
    if column_type.is_timestamp:
        return _MOMENT, *_fixed_codec(
            _MICROS,
            lambda value: to_micros(value, column_type),
            lambda micros: timestamp_from_micros(micros, column_type),
        )
    return _decimal_codec(column_type) if name == "decimal" else _text_codec(column_type)


def _array_codec(kind: type, pack: Pack, unpack: Unpack) -> tuple[type, Pack, Unpack]:
    def pack_list(values: list[Any]) -> bytes:
        nulls = 0
        cells = []
        for at, value in enumerate(values):
            if value is None:
                nulls |= 1 << at
            elif not _is_of(value, kind):
                raise ValueError(f"element {value!r} is no {kind.__name__}")
            else:
                cells.append(pack(value))
        count = len(values)
        return b"".join([_LENGTH.pack(count), nulls.to_bytes((count + 7) // 8, "little"), *cells])

    def unpack_list(content: memoryview, at: int) -> tuple[Any, int]:
        count = _LENGTH.unpack_from(content, at)[0]
        begin = at + _LENGTH.size
        at = begin + (count + 7) // 8
        if at > len(content):
            raise ValueError(f"array of {count} elements from byte {begin} of {len(content)}")
        nulls = int.from_bytes(content[begin:at], "little")
        if nulls >> count:
            raise ValueError(f"nulls {nulls:#x} of {count} elements")
        values: list[Any] = []
        for index in range(count):
            value = None
            if not nulls >> index & 1:
                value, at = unpack(content, at)
            values.append(value)
        return values, at

    return list, pack_list, unpack_list


def _is_of(value: Any, kind: type) -> bool:
    """Return whether a value is of a column's type; a moment may be an int of microseconds."""
    return type(value) is kind or (kind is _MOMENT and type(value) is int)


def _number_codec(layout: str, kind: type) -> tuple[type, Pack, Unpack]:
    number = struct.Struct("<" + layout)
    read, width = number.unpack_from, number.size

    def unpack(content: memoryview, at: int) -> tuple[Any, int]:
        return read(content, at)[0], at + width

    return kind, number.pack, unpack


def _fixed_codec(
    number: struct.Struct, to_number: Callable[[Any], int], from_number: Callable[[int], Any]
) -> tuple[Pack, Unpack]:
    def unpack(content: memoryview, at: int) -> tuple[Any, int]:
        return from_number(number.unpack_from(content, at)[0]), at + number.size

    return lambda value: number.pack(to_number(value)), unpack


def _decimal_codec(column_type: ColumnType) -> tuple[type, Pack, Unpack]:
    precision, scale = column_type.precision or 0, column_type.scale or 0

    def pack(value: Any) -> bytes:
        try:
            unscaled = decimal_unscaled(value, scale)
        except ArithmeticError as error:
            raise ValueError(f"{value!r} has more than {scale} digits behind the point") from error
        if abs(unscaled) >= 10**precision:
            raise ValueError(f"{value!r} has more than {precision} digits")
        return unscaled.to_bytes(_DECIMAL_BYTES, "little", signed=True)

    def unpack(content: memoryview, at: int) -> tuple[Any, int]:
        cell = content[at : at + _DECIMAL_BYTES]
        if len(cell) < _DECIMAL_BYTES:
            raise ValueError(f"{len(cell)} bytes left for a decimal")
        unscaled = int.from_bytes(cell, "little", signed=True)
        if abs(unscaled) >= 10**precision:
            raise ValueError(f"decimal of more than {precision} digits")
        return decimal_from_unscaled(unscaled, scale), at + _DECIMAL_BYTES

    return Decimal, pack, unpack


def _text_codec(column_type: ColumnType) -> tuple[type, Pack, Unpack]:
    is_text, length_max = column_type.is_text, column_type.length
    kind = str if is_text else bytes

    def pack_text(value: str) -> bytes:
        if length_max is not None and len(value) > length_max:
            raise ValueError(f"{value!r} does not fit {column_type}")
        return pack_bytes(value.encode())

    def pack_bytes(value: bytes) -> bytes:
        if len(value) > CELL_BYTES_MAX:
            raise RecordSizeError(f"a cell of {len(value):,} bytes, at most {CELL_BYTES_MAX:,}")
        return _LENGTH.pack(len(value)) + value

    def unpack(content: memoryview, at: int) -> tuple[Any, int]:
        begin = at + _LENGTH.size
        end = begin + _LENGTH.unpack_from(content, at)[0]
        if end > len(content):
            raise ValueError(f"text up to byte {end} of {len(content)}")
        found = bytes(content[begin:end])
        return (found.decode() if is_text else found), end

    return kind, pack_text if is_text else pack_bytes, unpack


@dataclass(frozen=True, eq=False)
class RowChanges:
    """n changes at `timestamp`: `ops` uint8[n] of CHANGE_ constants, each key at most once.

    `columns` has n cells by column id, null where a row does not set the column. It always has the
    key columns, and an INSERT sets all columns of the table. `is_set` has bool[n] for each column
    that not every row sets. The arrays are of the columns' exact Arrow types and are never changed.
    """

    timestamp: int
    ops: np.ndarray
    columns: Mapping[int, pa.Array]
    is_set: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """The number of changes, 1 or more in a record."""
        return len(self.ops)

    def slice(self, start: int, stop: int) -> RowChanges:
        """Return the changes [start, stop), with the columns that some of them set."""
        columns, is_set = {}, {}
        for column_id, values in self.columns.items():
            mask = self.is_set.get(column_id)
            mask = None if mask is None else mask[start:stop]
            if mask is not None and not mask.any():
                continue
            columns[column_id] = values.slice(start, stop - start)
            if mask is not None and not mask.all():
                is_set[column_id] = mask
        return RowChanges(self.timestamp, self.ops[start:stop], columns, is_set)
