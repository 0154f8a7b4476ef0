"""How rows that a table cannot take are reported: count, reason, and the first few keys."""

from __future__ import annotations

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


def _show(key: tuple) -> str:
    return repr(key[0]) if len(key) == 1 else repr(key)
