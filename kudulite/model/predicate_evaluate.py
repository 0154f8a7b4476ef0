"""Evaluating a constraint on a column's array: one bool per row, by whole-array comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.model.predicate_constraint import RANK_NOT_NULL, ColumnConstraint
from kudulite.model.predicate_domain import NAN_KEY, domain_value, float_of_key

_FEW_KEYS = 4  # up to here, comparisons one by one are faster than a set lookup


def evaluate_constraint(
    constraint: ColumnConstraint, array: pa.Array | pa.ChunkedArray
) -> np.ndarray:
    """bool[n]: which values match. `array` has exactly the column's Arrow type."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # over 2 GiB of strings
        parts = [evaluate_constraint(constraint, chunk) for chunk in array.chunks]
        return np.concatenate(parts)
    count, column_type = len(array), constraint.column.type
    if constraint.is_empty or count == 0:
        return np.zeros(count, bool)
    if constraint.is_null or constraint.rank == RANK_NOT_NULL:
        if array.null_count == 0:
            return np.full(count, not constraint.is_null)
        return _as_numpy(array.is_null() if constraint.is_null else array.is_valid())
    if column_type.is_bytes or column_type.name == "decimal":
        return _match_arrow(constraint, array)
    values = _numbers(array)
    if column_type.is_float:
        match = _match_floats(constraint, values)
    else:
        match = _match_integers(constraint, values)
    if array.null_count:
        match &= _as_numpy(array.is_valid())
    return match


def _as_numpy(array: pa.Array) -> np.ndarray:
    """A bool array without nulls, writable."""
    return np.array(array.to_numpy(zero_copy_only=False), bool)


def _numbers(array: pa.Array) -> np.ndarray:
    """The values as numpy numbers; anything where they are null."""
    if pa.types.is_boolean(array.type):
        return pc.fill_null(array, False).to_numpy(zero_copy_only=False).view(np.int8)
    if pa.types.is_floating(array.type):
        dtype = np.dtype(array.type.to_pandas_dtype())
    else:
        dtype = np.dtype(f"i{array.type.bit_width // 8}")
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _match_integers(constraint: ColumnConstraint, values: np.ndarray) -> np.ndarray:
    keys = constraint.keys
    if keys is not None:
        if len(keys) > _FEW_KEYS:
            return np.isin(values, np.array(keys, values.dtype))
        match = values == keys[0]
        for key in keys[1:]:
            match |= values == key
        return match
    if constraint.lower is None:
        return values <= constraint.upper - 1
    match = values >= constraint.lower
    if constraint.upper is not None:
        match &= values <= constraint.upper - 1
    return match


def _match_floats(constraint: ColumnConstraint, values: np.ndarray) -> np.ndarray:
    """NaN is the greatest key and equal to itself; bounds are doubles, also for a float column."""
    keys = constraint.keys
    if keys is not None:
        wanted = [float_of_key(key) for key in keys if key != NAN_KEY]
        match = np.isin(values.astype(np.float64, copy=False), wanted)
        if keys[-1] == NAN_KEY:
            match |= np.isnan(values)
        return match
    if constraint.lower is None:
        match = np.ones(len(values), bool)
    elif constraint.lower == NAN_KEY:
        match = np.isnan(values)
    else:
        match = ~(values < np.float64(float_of_key(constraint.lower)))  # true for NaN as well
    if constraint.upper is not None:
        if constraint.upper == NAN_KEY:
            match &= ~np.isnan(values)
        else:
            match &= values <= np.float64(float_of_key(constraint.upper - 1))
    return match


def _match_arrow(constraint: ColumnConstraint, array: pa.Array) -> np.ndarray:
    """For bytes, compared unsigned, and decimals: Arrow's comparisons with scalars."""
    column_type = constraint.column.type
    is_bytes = column_type.is_bytes
    if is_bytes:
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        array = array.view(pa.large_binary() if large else pa.binary())

    def scalar(key: Any) -> pa.Scalar:
        """The key as a scalar of the array's type."""
        return pa.scalar(key if is_bytes else domain_value(key, column_type), array.type)

    if constraint.keys is not None:
        if len(constraint.keys) == 1:
            match = pc.equal(array, scalar(constraint.keys[0]))
        else:
            wanted = pa.array([scalar(key).as_py() for key in constraint.keys], array.type)
            match = pc.is_in(array, value_set=wanted)
    elif constraint.lower is None:
        match = _below(array, constraint.upper, scalar, is_bytes)
    else:
        match = pc.greater_equal(array, scalar(constraint.lower))
        if constraint.upper is not None:
            match = pc.and_(match, _below(array, constraint.upper, scalar, is_bytes))
    if match.null_count:
        match = pc.fill_null(match, False)
    return _as_numpy(match)


def _below(array: pa.Array, upper: Any, scalar: Any, is_bytes: bool) -> pa.Array:
    # Of integers the greatest allowed is used: the bound itself may have one digit too many.
    if is_bytes:
        return pc.less(array, scalar(upper))
    return pc.less_equal(array, scalar(upper - 1))
