"""What a diff scan asks of every rowset: one immutable value, the same for all tablets and workers.

    (start, end]     a change at `start` is not in the window, one at `end` is

Chained windows, the next start being the last end, neither lose a change nor repeat one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kudulite.model.predicate import BoundPredicates, bind_predicates
from kudulite.model.schema import Column, Schema
from kudulite.rowset.scan_spec import ScanSpec


@dataclass(frozen=True)
class DiffSpec:
    """Columns `names` of the rows of [`lower`, `upper`) that changed in (`start`, `end`].

    `predicates` on key columns choose keys; a row meets those on other columns when its image at
    either end of the window does. `column_ids` are all columns of the table: an update of any
    other, a dropped one, is no change. `with_before` asks for the image at `start` too.
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
        """The scan of the keys that may be in the result."""
        names = self.schema.key_names
        own = [p for p in self.predicates.predicates if p.column in names]
        predicates = bind_predicates(own, self.schema)
        return ScanSpec(self.schema, (), predicates, self.end, self.lower, self.upper)

    @cached_property
    def value_predicates(self) -> BoundPredicates:
        """The predicates on columns that are not of the key."""
        names = self.schema.key_names
        own = [p for p in self.predicates.predicates if p.column not in names]
        return bind_predicates(own, self.schema)

    @cached_property
    def image_columns(self) -> tuple[Column, ...]:
        """The columns that images are read with: the projection, then those that are compared."""
        names = dict.fromkeys((*self.names, *self.value_predicates.columns))
        return tuple(self.schema.column(name) for name in names)

    @property
    def reads_before(self) -> bool:
        """Whether the image at `start` of rows that are still there at `end` is needed."""
        return self.with_before or bool(self.value_predicates.columns)
