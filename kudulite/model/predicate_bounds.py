"""From constraints on key columns to bounds on encoded keys.

The walk goes along the key columns as long as each is bounded. Lower bound: the smallest allowed
value of each column; a shorter prefix is smaller than what starts with it, so the rest needs no
filling. Upper bound: the greatest allowed value of each; whatever starts with those is included. It
ends at a column whose bound is open and has no greatest value below it.

Source: Kudu common/key_util.cc, scan_spec.cc."""

from __future__ import annotations

from collections.abc import Sequence

from kudulite.model.encoded_key import key_successor, prefix_successor
from kudulite.model.predicate_constraint import ColumnConstraint
from kudulite.model.predicate_domain import DomainKey
from kudulite.model.types import ColumnType


def encoded_bounds(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> tuple[bytes | None, bytes | None]:
    """(lower inclusive, upper exclusive) encoded keys of rows that can match; None is no bound.

    One constraint or None per column of `types`, which is a whole list of key columns."""
    if any(c is not None and (c.is_empty or c.is_null) for c in constraints):
        return b"", b""  # key columns are NOT NULL: nothing matches
    return _lower_bound(constraints, types), _upper_bound(constraints, types)


def _encode(key: DomainKey, column_type: ColumnType, is_last: bool) -> bytes:
    width = column_type.key_width
    if width is not None:
        return (key + (1 << (8 * width - 1))).to_bytes(width, "big")
    return key if is_last else key.replace(b"\0", b"\0\1") + b"\0\0"


def _lower_bound(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> bytes | None:
    result, last = b"", len(types) - 1
    for i, constraint in enumerate(constraints):
        if constraint is None:
            break
        least = constraint.keys[0] if constraint.keys else constraint.lower
        if least is None:
            break
        result += _encode(least, types[i], i == last)
    return result or None


def _upper_bound(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> bytes | None:
    result, last = b"", len(types) - 1
    for i, constraint in enumerate(constraints):
        greatest = None if constraint is None else _greatest(constraint)
        if greatest is None:
            if constraint is not None and constraint.upper is not None:
                return result + _encode(constraint.upper, types[i], i == last)
            return prefix_successor(result) if i else None
        result += _encode(greatest, types[i], i == last)
    return key_successor(result)


def _greatest(constraint: ColumnConstraint) -> DomainKey | None:
    """The greatest allowed key, or None if there is no bound or no key just below it."""
    if constraint.keys:
        return constraint.keys[-1]
    upper = constraint.upper
    if upper is None or isinstance(upper, int):
        return upper if upper is None else upper - 1
    return upper[:-1] if upper.endswith(b"\0") else None
