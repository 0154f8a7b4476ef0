"""Nested values as JSON text: structs, maps and lists of them, which no column holds.

    table.upsert(frame, nested="json")       {"street": "Corso", "no": 7}   becomes that text
    json.loads(row["address"])               and this brings it back

In the text, days and moments are ISO 8601, decimals are texts with all their digits, bytes are
base64, and the keys of a map are texts. Numbers that JSON does not have, such as NaN, are refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.model.types import is_arrow_list

_CONTAINERS = (Mapping, list, tuple, np.ndarray)


def with_json_text(data: Any, table: str) -> Any:
    """Return Arrow, a pandas DataFrame, or rows as dicts, with JSON text for nested values.

    Raises SchemaError for a value that JSON does not have.
    """
    if isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        nested = {name for row in data for name, cell in row.items() if _is_nested_value(cell)}
        return [
            {n: _cell(cell, n, table) if n in nested else cell for n, cell in row.items()}
            for row in data
        ]
    if type(data).__module__.startswith("pandas.") and hasattr(data, "columns"):
        texts = {name: _series(data[name], table) for name in data.columns}
        return data.assign(**{n: cells for n, cells in texts.items() if cells is not None})
    if not isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return data
    if not any(_is_nested(field.type) for field in data.schema):
        return data
    if isinstance(data, pa.RecordBatchReader):
        fields = [
            field.with_type(pa.string()) if _is_nested(field.type) else field
            for field in data.schema
        ]
        return pa.RecordBatchReader.from_batches(pa.schema(fields), _batches(data, table))
    columns = dict(zip(data.schema.names, data.columns, strict=True))
    texts = {n: _texts(c, n, table) if _is_nested(c.type) else c for n, c in columns.items()}
    return type(data).from_pydict(texts)


def _batches(reader: pa.RecordBatchReader, table: str) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield with_json_text(batch, table)


def _series(cells: Any, table: str) -> list[Any] | None:
    """Return the cells of a column of pandas with texts for nested ones, None without any."""
    if cells.dtype != object or not any(map(_is_nested_value, cells)):
        return None
    name = str(cells.name)
    return [_cell(cell, name, table) for cell in cells]


def _cell(cell: Any, name: str, table: str) -> Any:
    """Return a cell of a column with nested values: also an empty list is text."""
    return _text(cell, name, table) if isinstance(cell, _CONTAINERS) else cell


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind.value_type if is_arrow_list(kind) else kind))


def _is_nested_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, _CONTAINERS) and any(isinstance(item, _CONTAINERS) for item in value)


def _texts(cells: Any, name: str, table: str) -> pa.Array:
    """Return the texts of a column; a map is an object, the last of equal keys counting."""
    values = cells.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if v is None else _text(v, name, table) for v in values], pa.string())


def _text(value: Any, name: str, table: str) -> str:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"table {table!r}, column {name!r}: {str(value)[:80]} has no JSON: {error}"
        ) from error


def _plain(value: Any) -> Any:
    """Return a value with what JSON has in the place of keys and values that it does not have."""
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal | timedelta | UUID) else value
