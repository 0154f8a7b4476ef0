"""One write operation on one row, as a session hands it down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kudulite.tablet.operation import Operation


@dataclass(slots=True)
class RowOperation:
    """`operation` on the row whose key columns stand in `values`.

    `values` maps names of columns to canonical values (`model/values.py`), None for null: exactly
    the columns that the row sets, all key columns among them. Nobody changes it once it was handed
    down.
    """

    operation: Operation
    values: dict[str, Any]
