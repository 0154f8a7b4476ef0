"""Error for rows that a table refuses: their count, the reason, and the first few keys."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import NoReturn

import numpy as np
import pyarrow as pa

from kudulite.errors import RowError
from kudulite.model.schema import Schema

KEYS_SHOWN_MAX = 5


def raise_row_error(
    table: str, what: str, reason: str, rows: pa.Table, schema: Schema, row_numbers: np.ndarray
) -> NoReturn:
    """Raise a RowError for `row_numbers` of the batch `rows`; `what` names the operation."""
    numbers = np.sort(row_numbers)
    shown = rows.select(schema.key_names).take(pa.array(numbers[:KEYS_SHOWN_MAX]))
    keys = tuple(tuple(row.values()) for row in shown.to_pylist())
    names = ", ".join(schema.key_names)
    listed = ", ".join(_show(key) for key in keys)
    more = ", …" if len(numbers) > len(keys) else ""
    noun = "row" if len(numbers) == 1 else "rows"
    raise RowError(
        f"table {table!r}: {what}: {len(numbers)} {noun} refused: {reason};"
        f" ({names}) = {listed}{more}; nothing was written",
        reason=reason,
        row_count=len(numbers),
        keys=keys,
    )


def _show(key: tuple[object, ...]) -> str:
    cells = [_show_cell(cell) for cell in key]
    return cells[0] if len(cells) == 1 else f"({', '.join(cells)})"


def _show_cell(cell: object) -> str:
    """Return a key cell as people write it: dates and numbers plain, text in quotes."""
    if isinstance(cell, date):  # a datetime is one, too
        return cell.isoformat()
    return str(cell) if isinstance(cell, Decimal) else repr(cell)
