"""Compaction policy: chooses the rowsets of a tablet to merge, within a budget of bytes.

    keys      A────────────B──────C────────────────D        rowset 1: A-C, 2: B-D, 3: C-D
    height          1         2            2                rowsets that a lookup there must ask
    key space 0 ─────────────────────────────────── 1       measured in bytes stored, not in keys

Each rowset has a width w in key space, the share of the bytes that lie under it. Merging a set of
rowsets replaces the sum of their widths by the width that they cover together, at most U. So

    value v  = w + 0.009 × (1 − fullness)                   merging half empty rowsets pays as well
    quality  = Σ v − U,  less 0.003 × U if that is positive (a wider span has to pay)

is maximised over sets of rowsets within the budget: a knapsack for each left end and each right
end. A fractional knapsack bounds them all; the exact one (dynamic programming over megabytes) is
solved where the bound promises 5 % more than the best set found so far.

The quality is the compaction score of the merge.

**Invariants**: (1) a lone rowset never qualifies, because 0.009 < 0.01. So the result of a
compaction, disjoint rowsets of which at most one is not full, is not chosen again; (2) nothing here
reads or writes files.

**Threads**: any; all functions are pure.

**Source**: Kudu compaction_policy.cc, rowset_info.cc and design-docs/compaction-policy.md. Kudu
derives fullness from bytes alone; here it is part of the extents, because a rowset is also full if
its writer stopped at a number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from sortedcontainers import SortedKeyList

BUDGET_BYTES = 512 << 20
QUALITY_MIN = 0.01

_MEGABYTE = 1 << 20
_FULLNESS_WEIGHT = 0.009
_SPAN_PENALTY = 0.003
# The exact search runs if it may be better than the best set so far by more than this factor.
_APPROXIMATION_RATIO = 1.05
_FRACTION_BYTES = 8


@dataclass(frozen=True)
class RowSetExtent:
    """A rowset's bounds (inclusive encoded keys), its bytes, and its fullness (0 … 1)."""

    id: str
    key_min: bytes
    key_max: bytes
    byte_count: int
    fullness: float = 1.0


@dataclass(frozen=True)
class RowSetChoice:
    """Rowsets to merge, in key order, and the compaction score of the merge."""

    rowset_ids: tuple[str, ...]
    quality: float


@dataclass(frozen=True)
class _KeySpace:
    """Key space cut at all ends of n extents: `widths` and `heights` of the pieces between them,
    and the `start` and `stop` of each extent, between 0 and 1."""

    widths: np.ndarray
    heights: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@dataclass(frozen=True)
class _Candidates:
    """The extents as items of a knapsack, n arrays ordered by `stop`."""

    extents: Sequence[RowSetExtent]
    start: np.ndarray
    stop: np.ndarray
    value: np.ndarray
    weight: np.ndarray

    def take(self, keep: np.ndarray) -> _Candidates:
        """Return the candidates where `keep` is true, in the same order."""
        extents = [self.extents[index] for index in np.flatnonzero(keep).tolist()]
        arrays = (self.start, self.stop, self.value, self.weight)
        return _Candidates(extents, *(array[keep] for array in arrays))


@dataclass(frozen=True)
class _Solution:
    quality: float
    extents: Sequence[RowSetExtent]


def average_height(extents: Sequence[RowSetExtent]) -> float:
    """Return the average number of rowsets that cover a key, weighted by bytes.

    1 if all are disjoint; 0 if there is none, or if each holds a single key.
    """
    space = _key_space(extents)
    total = space.widths.sum()
    return float((space.heights * space.widths).sum() / total) if total > 0 else 0.0


def key_positions(extents: Sequence[RowSetExtent]) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and stop of each extent in key space: float64[n] twice, from 0 to 1."""
    space = _key_space(extents)
    return space.start, space.stop


def choose_rowsets(
    extents: Sequence[RowSetExtent],
    budget_bytes: int = BUDGET_BYTES,
    without: Collection[str] = (),
) -> RowSetChoice | None:
    """Return the best set of rowsets to merge, or None if no set is worth it.

    The set has at most `budget_bytes`; each rowset counts as at least one megabyte. The rowsets
    `without` are part of the layout but never of the set. At worst O(n² log n) with n rowsets.
    """
    candidates = _candidates(extents)
    if without:
        candidates = candidates.take(np.array([e.id not in without for e in candidates.extents]))
    budget = budget_bytes // _MEGABYTE
    best = _Solution(0.0, ())
    bounds: list[tuple[float, _Candidates]] = []
    for left in np.unique(candidates.start):
        right_of = candidates.take(candidates.start >= left)
        solution, bound = _approximate(right_of, float(left), budget, best)
        best = max(best, solution, key=lambda each: each.quality)
        bounds.append((bound, right_of))
    for bound, right_of in bounds:
        if bound > max(QUALITY_MIN, _APPROXIMATION_RATIO * best.quality):
            solution = _solve(right_of, float(right_of.start.min()), budget)
            best = max(best, solution, key=lambda each: each.quality)
    if best.quality <= QUALITY_MIN:
        return None
    in_order = sorted(best.extents, key=lambda extent: (extent.key_min, extent.key_max))
    return RowSetChoice(tuple(extent.id for extent in in_order), best.quality)


def _key_space(extents: Sequence[RowSetExtent]) -> _KeySpace:
    """Measure key space by bytes; the bytes of a rowset are spread evenly between its bounds."""
    points = sorted({key for extent in extents for key in (extent.key_min, extent.key_max)})
    position = {key: index for index, key in enumerate(points)}
    widths = np.zeros(max(0, len(points) - 1))
    heights = np.zeros(len(widths))
    numbers: dict[int, np.ndarray] = {}
    for extent in extents:
        low, high = position[extent.key_min], position[extent.key_max]
        prefix = _common_length(extent.key_min, extent.key_max)
        if prefix not in numbers:
            numbers[prefix] = _as_numbers(points, prefix)
        inside = numbers[prefix][low : high + 1]
        heights[low:high] += 1
        if inside[-1] > inside[0]:
            share = np.diff(inside) / float(inside[-1] - inside[0])
            widths[low:high] += share * extent.byte_count
    ends = np.concatenate([[0.0], np.cumsum(widths)])
    ends /= max(ends[-1], 1e-300)
    start = ends[[position[extent.key_min] for extent in extents]]
    stop = ends[[position[extent.key_max] for extent in extents]]
    return _KeySpace(widths, heights, start, stop)


def _common_length(low: bytes, high: bytes) -> int:
    """Return the length of the common prefix of two keys."""
    pairs = enumerate(zip(low, high, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(low), len(high)))


def _as_numbers(keys: Sequence[bytes], offset: int) -> np.ndarray:
    """Return uint64[n]: the eight bytes of each key from `offset` on, missing ones as zero."""
    stop = offset + _FRACTION_BYTES
    parts = b"".join(key[offset:stop].ljust(_FRACTION_BYTES, b"\0") for key in keys)
    return np.frombuffer(parts, dtype=">u8").astype(np.uint64)


def _candidates(extents: Sequence[RowSetExtent]) -> _Candidates:
    space = _key_space(extents)
    fullness = np.array([extent.fullness for extent in extents])
    megabytes = np.array([extent.byte_count // _MEGABYTE for extent in extents], dtype=np.int64)
    value = space.stop - space.start + _FULLNESS_WEIGHT * (1 - np.clip(fullness, 0, 1))
    order = np.argsort(space.stop, kind="stable")
    return _Candidates(
        [extents[index] for index in order.tolist()],
        space.start[order],
        space.stop[order],
        value[order],
        np.maximum(1, megabytes)[order],
    )


def _quality(value: np.ndarray | float, span: np.ndarray | float) -> np.ndarray:
    """Return the quality of sets with these total values, covering at most these spans."""
    gain = value - span
    return np.where(gain > 0, gain - _SPAN_PENALTY * span, gain)


def _approximate(
    candidates: _Candidates, left: float, budget: int, best: _Solution
) -> tuple[_Solution, float]:
    """Return a good set with this left end and a bound for any; all right ends are tried.

    Prefixes of the candidates that fit into the budget are exact without a search.
    """
    whole = _quality(np.cumsum(candidates.value), candidates.stop - left)
    fits = np.cumsum(candidates.weight) <= budget
    solution = _Solution(0.0, ())
    if fits.any():
        at = int(np.argmax(np.where(fits, whole, -np.inf)))
        solution = _Solution(float(whole[at]), candidates.extents[: at + 1])
    # Even without a budget, no set is better than all candidates up to its right end.
    if whole.max() <= max(QUALITY_MIN, best.quality, solution.quality):
        return solution, solution.quality
    return _fractional(candidates, left, budget, solution)


def _fractional(
    candidates: _Candidates, left: float, budget: int, solution: _Solution
) -> tuple[_Solution, float]:
    """Fill a fractional knapsack by density, one right end after the other.

    A dropped candidate is never needed again, because the denser ones that replaced it stay.
    """
    spans = candidates.stop - left
    density = candidates.value / candidates.weight
    # The least dense stands first; it may exceed the budget.
    inside = SortedKeyList(key=lambda index: density[index])
    weight, value, bound = 0, 0.0, solution.quality
    for index in range(len(candidates.extents)):
        inside.add(index)
        weight += int(candidates.weight[index])
        value += float(candidates.value[index])
        while weight - candidates.weight[inside[0]] > budget:
            dropped = inside.pop(0)
            weight -= int(candidates.weight[dropped])
            value -= float(candidates.value[dropped])
        excess, last = max(0, weight - budget), inside[0]
        upper = value - excess / candidates.weight[last] * candidates.value[last]
        bound = max(bound, float(_quality(upper, spans[index])))
        sure = value - candidates.value[last] if excess else value
        quality = float(_quality(sure, spans[index]))
        if quality > solution.quality:
            kept = inside[1 if excess else 0 :]
            solution = _Solution(quality, [candidates.extents[at] for at in kept])
    return solution, bound


def _solve(candidates: _Candidates, left: float, budget: int) -> _Solution:
    """Return the best set with this left end; `most[w]` is the highest value within weight w."""
    most = np.zeros(budget + 1)
    is_taken = np.zeros((len(candidates.extents), budget + 1), dtype=bool)
    totals = np.empty(len(candidates.extents))
    for index, (weight, value) in enumerate(
        zip(candidates.weight.tolist(), candidates.value.tolist(), strict=True)
    ):
        if weight <= budget:
            taken = most[: budget + 1 - weight] + value
            is_taken[index, weight:] = taken > most[weight:]
            most[weight:] = np.maximum(most[weight:], taken)
        totals[index] = most[budget]
    quality = _quality(totals, candidates.stop - left)
    at, room, kept = int(np.argmax(quality)), budget, []
    for index in range(at, -1, -1):
        if is_taken[index, room]:
            kept.append(candidates.extents[index])
            room -= int(candidates.weight[index])
    return _Solution(float(quality[at]), kept)
