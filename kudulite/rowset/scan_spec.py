"""What a scan asks of every rowset: one immutable value, the same for all tablets and workers."""

from __future__ import annotations

from dataclasses import dataclass

from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Schema


@dataclass(frozen=True)
class ScanSpec:
    """Columns `names` (in this order) of the rows in [`lower`, `upper`) that match, at `timestamp`.

    The bounds are encoded keys, None is unbounded. `with_keys` also asks for the encoded keys,
    which an ordered merge needs.
    """

    schema: Schema
    names: tuple[str, ...]
    predicates: BoundPredicates
    timestamp: int
    lower: bytes | None = None
    upper: bytes | None = None
    with_keys: bool = False
