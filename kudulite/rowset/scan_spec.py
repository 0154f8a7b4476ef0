"""ScanSpec and DiffSpec: the request of a scan, one immutable value for all tablets and rowsets.

ScanSpec   the rows at one timestamp
DiffSpec   the changes in (start, end]: one at `start` is outside of the window, one at `end` is
           inside. Chained windows, each starting at the end of the last, neither lose nor
           repeat a change.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_applier import DeltaApplier
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Column, Schema

# The deltas to apply to a block, and the ascending positions of its rows to read; None is all rows.
View = tuple[DeltaApplier, np.ndarray | None]


@dataclass(frozen=True)
class ScanSpec:
    """Columns `names` (in this order) of the rows in [`lower`, `upper`) that match, at `timestamp`.

    The bounds are encoded keys; None is unbounded. With `with_keys` the scan also returns the
    encoded keys, which an ordered merge needs. A reader that stops after `limit` rows gets small
    blocks first.
    """

    schema: Schema
    names: tuple[str, ...]
    predicates: BoundPredicates
    timestamp: int
    lower: bytes | None = None
    upper: bytes | None = None
    with_keys: bool = False
    limit: int | None = None

    @cached_property
    def fields(self) -> pa.Schema:
        """The projected columns, without column ids."""
        return self.schema.result_schema(self.names)

    @property
    def has_conditions(self) -> bool:
        """Whether there are predicates or bounds."""
        return bool(self.predicates.columns) or self.lower is not None or self.upper is not None

    @cached_property
    def row_predicates(self) -> BoundPredicates:
        """The predicates to evaluate for rows whose keys are within the bounds."""
        return self.predicates.within(self.lower, self.upper)


@dataclass(frozen=True)
class DiffSpec:
    """Columns `names` of the rows of [`lower`, `upper`) that changed in (`start`, `end`].

    `predicates` on key columns choose keys; a row matches all others if its image at either end of
    the window does. `column_ids` are all columns of the table: an update of a
    dropped column is no change. With `with_before` the images at `start` are returned too.
    """

    schema: Schema
    names: tuple[str, ...]
    predicates: BoundPredicates
    start: int
    end: int
    column_ids: frozenset[int]
    with_before: bool = False
    lower: bytes | None = None
    upper: bytes | None = None

    @cached_property
    def key_scan(self) -> ScanSpec:
        """The scan of all keys that may be in the result."""
        return ScanSpec(self.schema, (), self._split[0], self.end, self.lower, self.upper)

    @property
    def value_predicates(self) -> BoundPredicates:
        """The predicates that need columns outside of the key."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[BoundPredicates, BoundPredicates]:
        return self.predicates.split(self.schema.key_names)

    @cached_property
    def image_columns(self) -> tuple[Column, ...]:
        """The columns to read: the projection, then the columns of the value predicates."""
        names = dict.fromkeys((*self.names, *self.value_predicates.columns))
        return tuple(self.schema.column(name) for name in names)

    @property
    def reads_before(self) -> bool:
        """Whether the images at `start` of rows that are live at `end` are needed."""
        return self.with_before or bool(self.value_predicates.columns)
