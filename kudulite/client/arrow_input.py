"""Turns what users hold into Arrow batches: Arrow itself, pandas, Polars, DuckDB, rows as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.model.schema import Schema
from kudulite.model.values import canonical_value

ACCEPTED = (
    "a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or Polars DataFrame, anything else"
    " with __arrow_c_stream__, a dict of columns, or a list of dicts"
)


def arrow_batches(
    data: Any, schema: Schema, table: str
) -> tuple[list[str], Iterable[pa.RecordBatch | pa.Table]]:
    """Return (column names, batches) of `data`, meant for the table of that name.

    Raises SchemaError for what is not tabular, and for a value that does not fit its column. Rows
    given as dicts take the table's types; a key that a row leaves out is null in it.
    """
    if isinstance(data, pa.Table):
        return data.column_names, [data]
    if isinstance(data, pa.RecordBatch):
        return data.schema.names, [data]
    if isinstance(data, pa.RecordBatchReader):
        return data.schema.names, data
    if type(data).__module__.startswith("pandas."):
        converted = pa.Table.from_pandas(data, preserve_index=False)
        return converted.column_names, [converted]
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema.names, reader
    if isinstance(data, Mapping):
        rows = _columns_table(dict(data), schema, table)
        return rows.column_names, [rows]
    if isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        rows = _rows_table(list(data), schema, table)
        return rows.column_names, [rows]
    raise SchemaError(
        f"table {table!r}: cannot read rows from {type(data).__name__}; give {ACCEPTED}"
    )


def _rows_table(rows: list[Mapping[str, Any]], schema: Schema, table: str) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row)) or schema.key_names
    columns = {name: [row.get(name) for row in rows] for name in names}
    return _columns_table(columns, schema, table)


def _columns_table(columns: dict[str, Any], schema: Schema, table: str) -> pa.Table:
    try:
        arrays = {name: _column(name, values, schema) for name, values in columns.items()}
    except SchemaError as error:
        raise SchemaError(f"table {table!r}, {error}") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"table {table!r}: columns of different lengths: {lengths}")
    return pa.table(arrays)


def _column(name: str, values: Any, schema: Schema) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "dtype"):
        return pa.array(values)
    found = list(values)
    if name not in schema.names:
        return pa.array(found)
    column_type = schema.column(name).type
    canonical = [canonical_value(value, column_type, name) for value in found]
    return pa.array(canonical, column_type.arrow)


def key_table(keys: Any, schema: Schema, table: str) -> pa.Table:
    """Return keys (tuples, single values, dicts, or Arrow) as a table of the key columns."""
    if isinstance(keys, list | tuple):
        return _rows_table([_key_dict(key, schema) for key in keys], schema, table)
    names, batches = arrow_batches(keys, schema, table)
    missing = [name for name in schema.key_names if name not in names]
    if missing:
        raise SchemaError(f"table {table!r}: keys without column {missing[0]!r}")
    tables = list(_tables(batches))
    return pa.concat_tables(tables).select(schema.key_names)


def _tables(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    for batch in batches:
        yield pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch


def key_values(key: Any, schema: Schema) -> tuple:
    """Return one key, given as tuple, single value or dict, as a tuple in key order."""
    return tuple(_key_dict(key, schema).values())


def _key_dict(key: Any, schema: Schema) -> dict[str, Any]:
    names = schema.key_names
    if isinstance(key, Mapping):
        missing = [name for name in names if name not in key]
        if missing:
            raise SchemaError(f"key {dict(key)!r} without column {missing[0]!r}")
        return {name: key[name] for name in names}
    values = tuple(key) if isinstance(key, list | tuple) else (key,)
    if len(values) != len(names):
        raise SchemaError(f"key {key!r} has {len(values)} values; the key is ({', '.join(names)})")
    return dict(zip(names, values, strict=True))
