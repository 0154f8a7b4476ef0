"""Row sources: whatever holds rows or columns, as Arrow batches for a table.

a pyarrow Table, RecordBatch, RecordBatchReader     as it is
anything with __arrow_c_stream__                    Polars, DuckDB, scans and tables
a pandas DataFrame                                  with the levels of its index that have names
a dataset or scanner of pyarrow, a Lance dataset    read while it is written
a Polars LazyFrame, a DeltaTable                    the same
{"id": [1, 2], "v": [3, 4]}                         columns
[{"id": 1, "v": 3}, …], {"id": 1, "v": 3}           rows, and one row
a generator of dicts, or of Arrow batches           the same; dicts are collected first
"rows.parquet", a Path, ["a.csv", "b.csv"]          files; see source_paths.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa

from kudulite.errors import OptionError, SchemaError
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType, value_text
from kudulite.model.values import canonical_value
from kudulite.tablet.operation import mask_of

ACCEPTED = (
    "a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or Polars DataFrame, anything else"
    " with __arrow_c_stream__, a dataset of pyarrow, a Polars LazyFrame, a DeltaTable, a dict of"
    " columns, a list or generator of dicts, one dict, or the path of a file or several"
)
_ARROW = pa.Table | pa.RecordBatch | pa.RecordBatchReader


def arrow_batches(
    data: Any, schema: Schema, table: str
) -> tuple[list[str], Iterable[pa.RecordBatch | pa.Table]]:
    """Return (column names, batches) of `data`, meant for the table of that name.

    Raises SchemaError for what is not tabular, and for a value that does not fit its column. Rows
    given as dicts take the table's types. Each dict sets its own columns: a column that only some
    have is null in the others, and is followed by its mask (see `mask_of`).
    """
    if _are_paths(data):
        # Imported here: the readers of CSV and JSON are not loaded where no file is read.
        from kudulite.reads.source_paths import batches_of_paths

        return batches_of_paths(data, schema, table)
    data, _ = read_once(data, table)
    if isinstance(data, Mapping):
        data = _columns_table(dict(data), schema, table)
    elif _are_rows(data):
        data = rows_table(list(data), schema, table)
    if not isinstance(data, _ARROW):
        raise SchemaError(
            f"table {table!r}: cannot read rows from {type(data).__name__}; give {ACCEPTED}"
        )
    return data.schema.names, data if isinstance(data, pa.RecordBatchReader) else [data]


def arrow_schema(data: Any, table: str) -> pa.Schema:
    """Return the Arrow schema of a frame, or of anything else that has one; no row is read of most.

    Raises SchemaError for what is not tabular, and for a column of pandas with several types.
    """
    if _are_paths(data):
        from kudulite.reads.source_paths import schema_of_paths

        return schema_of_paths(data, table)
    data = data if isinstance(data, Mapping) else opened(data)
    if isinstance(data, pa.Schema):
        return data
    if _is_pandas(data):
        return _from_pandas(data, table).schema
    if isinstance(data, Mapping):
        return pa.schema([(name, _untyped(name, v, table).type) for name, v in data.items()])
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return arrow_schema({name: [row.get(name) for row in data] for name in names}, table)
    if isinstance(data, _ARROW):
        return data.schema
    if hasattr(data, "__arrow_c_schema__"):
        return pa.schema(data)
    if hasattr(data, "__arrow_c_stream__"):
        return _from_stream(data, table).schema
    raise SchemaError(
        f"table {table!r}: cannot make columns from {type(data).__name__}; give a kudulite.Schema,"
        f" a pyarrow.Schema, or rows with the columns of the table: {ACCEPTED}"
    )


def source_of(data: Any, nested: str | None, table: str) -> Any:
    """Return rows to write, with `nested` "json" their nested values as JSON text.

    Raises OptionError for another form, and for files, SchemaError for what JSON does not have.
    """
    if nested is None:
        return data
    if nested != "json":
        raise OptionError(f"table {table!r}: nested is 'json' or left out, not {nested!r}")
    if _are_paths(data):
        raise OptionError(
            f"table {table!r}: nested is for rows in memory, and these are in files: read them with"
            " pyarrow or pandas, and give the frame"
        )
    from kudulite.reads.nested_values import with_json_text

    data = data if _is_pandas(data) else read_once(data, table)[0]
    return with_json_text(data, table)


def read_once(data: Any, table: str) -> tuple[Any, bool]:
    """Return rows whose schema can be asked for before they are read, and if they have types.

    Texts of files and values of Python have none: a number is as long as it happens to be.
    """
    if _are_paths(data):
        some = data if isinstance(data, list | tuple) else [data]
        return data, all(str(path).lower().endswith(".parquet") for path in some)
    data = opened(data)
    if _is_pandas(data):
        return _from_pandas(data, table), True
    if isinstance(data, _ARROW):
        return data, True
    if hasattr(data, "__arrow_c_stream__"):
        return _from_stream(data, table), True
    return data, False


def opened(data: Any) -> Any:
    """Return the Arrow, the rows or the columns that a source of another library stands for."""
    if isinstance(data, _ARROW) or hasattr(data, "__arrow_c_stream__"):
        return data
    library = type(data).__module__.partition(".")[0]
    if library == "deltalake" and hasattr(data, "to_pyarrow_dataset"):
        data = data.to_pyarrow_dataset()
    if library == "polars" and hasattr(data, "collect"):
        return data.collect()
    if library != "pandas" and hasattr(data, "to_reader"):  # a scanner of pyarrow
        return data.to_reader()
    if hasattr(data, "to_batches") and isinstance(getattr(data, "schema", None), pa.Schema):
        return pa.RecordBatchReader.from_batches(data.schema, data.to_batches())
    if isinstance(data, Mapping):
        return [data] if data and all(map(_is_cell, data.values())) else data
    return _collected(data) if isinstance(data, Iterator) else data


def _is_cell(value: Any) -> bool:
    """Whether this is a value of one row, and no column of values or type of a column."""
    is_kind = isinstance(value, pa.DataType | ColumnType)
    return not is_kind and (isinstance(value, str | bytes) or not isinstance(value, Iterable))


def _collected(items: Iterator[Any]) -> Any:
    """Return the rows of an iterator, or a reader of the Arrow batches that it yields."""
    first = next(items, None)
    rest = itertools.chain([first], items)
    if not isinstance(first, pa.RecordBatch | pa.Table):
        return [] if first is None else list(rest)
    batches = (
        b
        for each in rest
        for b in ([each] if isinstance(each, pa.RecordBatch) else each.to_batches())
    )
    return pa.RecordBatchReader.from_batches(first.schema, batches)


def _are_paths(data: Any) -> bool:
    some = data if isinstance(data, list | tuple) else [data]
    return bool(some) and all(isinstance(path, str | PathLike) for path in some)


def _are_rows(data: Any) -> bool:
    return isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data)


def _from_stream(data: Any, table: str) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(
            f"table {table!r}: cannot read rows from {type(data).__name__}: {error}; give"
            f" {ACCEPTED}"
        ) from error


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.startswith("pandas.") and hasattr(data, "columns")


def _from_pandas(data: Any, table: str) -> pa.Table:
    """Return a DataFrame's columns, and those of its index if they have names of their own.

    SchemaError names a column of mixed types.
    """
    index_names = set(data.index.names)
    has_names = None not in index_names and index_names.isdisjoint(data.columns)
    try:
        return pa.Table.from_pandas(data, preserve_index=has_names)
    except (pa.ArrowException, ValueError, TypeError) as error:
        for place, name in enumerate(data.columns):
            _untyped(name, data.iloc[:, place], table)
        raise SchemaError(f"table {table!r}: cannot read the DataFrame: {error}") from error


def _untyped(name: str, values: Any, table: str) -> pa.Array | pa.ChunkedArray:
    """Return values in the type that Arrow finds for them; SchemaError if they have several."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | pa.DataType | ColumnType) or not isinstance(values, Iterable):
        raise SchemaError(
            f"table {table!r}, column {name!r}: a dict has the values of each column, found"
            f" {value_text(values)}; give types as in pyarrow.schema([({name!r}, pyarrow.int64())])"
        )
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError) as error:
        kinds = {type(value).__name__: value for value in values if value is not None}
        found = ", ".join(f"{kind} ({value_text(value)})" for kind, value in kinds.items())
        advice = (
            "give the column one type, as by astype in pandas"
            if len(kinds) > 1
            else "give the column a type of Arrow"
        )
        raise SchemaError(
            f"table {table!r}, column {name!r}: its values have no common Arrow type: {found};"
            f" {advice}"
        ) from error


def rows_table(rows: Sequence[Mapping[str, Any]], schema: Schema, table: str) -> pa.Table:
    """Return rows given as dicts in the types of a schema, with masks. Raises SchemaError."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or schema.key_names
    columns = {name: [row.get(name) for row in rows] for name in names}
    found = _columns_table(columns, schema, table)
    if all(len(row) == len(names) for row in rows):
        return found
    for column in schema.value_columns:
        if column.name in columns and not all(column.name in row for row in rows):
            mask = pa.array([column.name in row for row in rows])
            found = found.append_column(mask_of(column.name), mask)
    return found


def _columns_table(columns: dict[str, Any], schema: Schema, table: str) -> pa.Table:
    try:
        arrays = {name: _column(name, values, schema, table) for name, values in columns.items()}
    except SchemaError as error:
        raise SchemaError(f"table {table!r}, {error}") from error
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"table {table!r}: columns of different lengths: {lengths}")
    return pa.table(arrays)


def _column(name: str, values: Any, schema: Schema, table: str) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "dtype"):
        return pa.array(values)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SchemaError(
            f"column {name!r}: a dict has the values of each column, found {value_text(values)};"
            " give one row as a list of one dict: [{…}]"
        )
    found = list(values)
    if name not in schema.names:
        return _untyped(name, found, table)
    column_type = schema.column(name).type
    canonical = [canonical_value(value, column_type, name) for value in found]
    return pa.array(canonical, column_type.arrow)


def joined_batches(batches: Iterable[pa.RecordBatch | pa.Table]) -> pa.Table:
    """Return the rows of all batches, without a copy."""
    return pa.concat_tables(
        pa.Table.from_batches([b]) if isinstance(b, pa.RecordBatch) else b for b in batches
    )
