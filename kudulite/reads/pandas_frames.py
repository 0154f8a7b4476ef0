"""The rows of a result as a pandas DataFrame.

    column of a result                       its type in pandas
    numpy's type keeps every cell            that type, as pyarrow chooses it
    whole numbers or booleans with NULL      Int8 … Int64, boolean
    floats with a NaN                        Float32, Float64: NULL and NaN stay two things
    lists with one of these inside           Arrow's type
    rows within rows                         dicts

numpy has no missing integer: pyarrow makes floats of a column that has one, and 2^53 + 1 becomes
2^53.

**Invariants**: a frame made here without a `dtype_backend` and written back gives the same rows.

**Threads**: any. pandas is imported where it is used, because that takes 0.25 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import OptionError
from kudulite.model.values import python_values

BACKENDS = ("numpy", "numpy_nullable", "pyarrow")
_NOT_A_TIME = -(1 << 63)


def frame_of(rows: pa.Table, dtype_backend: str | None, options: Mapping[str, Any]) -> Any:
    """Return rows as a DataFrame; `options` are those of pyarrow's `Table.to_pandas`.

    Without a `dtype_backend` numpy's types are used where they keep every cell. Raises OptionError
    for an unknown one.
    """
    if dtype_backend is not None and dtype_backend not in BACKENDS:
        raise OptionError(
            f"unknown dtype_backend {dtype_backend!r} of a DataFrame; known: {', '.join(BACKENDS)},"
            " and None for numpy's types where they keep every cell"
        )
    if dtype_backend == "numpy" or "types_mapper" in options:
        return rows.to_pandas(**options)
    import pandas

    if dtype_backend == "pyarrow":
        return rows.to_pandas(types_mapper=pandas.ArrowDtype, **options)
    nullable = _nullable_types()
    mapper = None
    if dtype_backend == "numpy_nullable":
        mapper = {**nullable, pa.string(): pandas.StringDtype()}.get
    lossy = [
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if (mapper is None or mapper(column.type) is None) and not _keeps_cells(column)
    ]
    frame = rows.drop_columns(lossy).to_pandas(types_mapper=mapper, **options)
    if not lossy:
        return frame
    others = {}
    for name in lossy:
        column = rows.column(name)
        if pa.types.is_struct(column.type):
            others[name] = pandas.Series(python_values(column), dtype=object)
        else:
            dtype = nullable.get(column.type) or pandas.ArrowDtype(column.type)
            others[name] = pandas.Series(dtype.__from_arrow__(column))
    return pandas.concat([frame, pandas.DataFrame(others)], axis=1)[rows.column_names]


def _nullable_types() -> dict[pa.DataType, Any]:
    import pandas

    return {
        pa.bool_(): pandas.BooleanDtype(),
        pa.int8(): pandas.Int8Dtype(),
        pa.int16(): pandas.Int16Dtype(),
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
        pa.uint64(): pandas.UInt64Dtype(),
        pa.float32(): pandas.Float32Dtype(),
        pa.float64(): pandas.Float64Dtype(),
    }


def _keeps_cells(values: pa.Array | pa.ChunkedArray, *, is_inside: bool = False) -> bool:
    """Whether numpy's type for a column, or for elements inside of its cells, keeps every value."""
    kind = values.type
    if pa.types.is_integer(kind):
        return bool(values.null_count == 0)
    if pa.types.is_boolean(kind):
        return bool(is_inside or values.null_count == 0)
    if pa.types.is_floating(kind):
        return not pc.any(pc.is_nan(values)).as_py()
    if pa.types.is_timestamp(kind):
        has_zone = is_inside and kind.tz is not None  # which an array of numpy does not have
        return not has_zone and pc.min(values.cast(pa.int64())).as_py() != _NOT_A_TIME
    if pa.types.is_list(kind):
        return _keeps_cells(pc.list_flatten(values), is_inside=True)
    if pa.types.is_struct(kind):
        fields = (pc.struct_field(values, [at]) for at in range(kind.num_fields))
        return all(_keeps_cells(field, is_inside=True) for field in fields)
    return True
