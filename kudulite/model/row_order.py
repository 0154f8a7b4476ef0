"""Row orders: the rows of a read sorted by its columns, as text, and what sorts them.

    "v DESC, city"                       of Spark SQL: NULL is the lowest value, NaN the highest
    "v DESC NULLS FIRST", ["v", "id DESC"]

Rows with equal values of all columns of the order come in any order. Texts are ordered by their
bytes in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import OptionError
from kudulite.model.schema import Schema

# So many rows beyond the limit are gathered before those that cannot be among the first are left.
_SLACK_ROWS = 1 << 16


@dataclass(frozen=True)
class OrderKey:
    """One column of an order."""

    column: str
    is_descending: bool = False
    has_nulls_first: bool = True


def parse_order(texts: Sequence[str | OrderKey], schema: Schema) -> tuple[OrderKey, ...]:
    """Return the columns of an order that is given as texts.

    The name of a column alone is that column. Raises OptionError that quotes the text,
    ColumnNotFoundError.
    """
    found: list[OrderKey] = []
    for text in texts:
        if isinstance(text, OrderKey):
            found.append(text)
            continue
        if not isinstance(text, str):
            raise OptionError(f"order_by has {text!r}: give a text, as in order_by='v DESC, id'")
        if text in schema.names:
            found.append(OrderKey(text))
            continue
        # Imported here: sqlglot is not loaded where no text is parsed.
        from kudulite.model.condition_text import parsed_order

        found += [OrderKey(*part) for part in parsed_order(text, schema)]
    for key in found:
        if schema.column(key.column).type.is_array:
            raise OptionError(f"order_by: column {key.column!r} is an array, which has no order")
    return tuple(found)


def sorted_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    order: Sequence[OrderKey],
    limit: int | None,
) -> pa.Table:
    """Return the rows of batches in an order; with a limit the first rows, all that is in memory.

    `schema` is that of the batches.
    """
    rows = pa.Table.from_batches([], schema)
    for batch in batches:
        rows = pa.concat_tables([rows, pa.Table.from_batches([batch], schema)])
        if limit is not None and rows.num_rows >= 2 * limit + _SLACK_ROWS:
            rows = _first(rows, order, limit)
    return _first(rows, order, limit)


def _first(rows: pa.Table, order: Sequence[OrderKey], limit: int | None) -> pa.Table:
    """Return the first rows in an order."""
    columns: list[pa.ChunkedArray] = []
    directions: list[str] = []
    for key in order:
        cells = rows[key.column]
        if cells.null_count:
            columns.append(cells.is_null())
            directions.append("descending" if key.has_nulls_first else "ascending")
        direction = "descending" if key.is_descending else "ascending"
        if pa.types.is_floating(cells.type):
            columns.append(pc.is_nan(cells))  # Arrow puts NaN last in either direction
            directions.append(direction)
        columns.append(cells)
        directions.append(direction)
    names = [str(number) for number in range(len(columns))]
    places = pc.sort_indices(
        pa.table(columns, names), sort_keys=list(zip(names, directions, strict=True))
    )
    return rows.take(places if limit is None else places[:limit])
