"""Delta debugging: the few steps of a long list that still make it fail.

**Source**: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", algorithm
ddmin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def shrink(
    steps: Sequence[Step],
    fails: Callable[[Sequence[Step]], bool],
    *,
    simpler: Callable[[Step], Sequence[Step]] = lambda step: (),
    seconds: float = 60.0,
) -> list[Step]:
    """Return a part of `steps`, in their order, for which `fails` is still true.

    Chunks are left out as long as that works, from halves down to single steps; then each step is
    tried as one of its `simpler` forms. The best list so far is returned when `seconds` are over.
    """
    deadline = time.monotonic() + seconds
    found = list(steps)
    before = -1
    while before != len(found) and time.monotonic() < deadline:
        before = len(found)
        found = _without_chunks(found, fails, deadline)
        found = _with_simpler_steps(found, fails, simpler, deadline)
    return found


def _without_chunks(
    steps: list[Step], fails: Callable[[Sequence[Step]], bool], deadline: float
) -> list[Step]:
    size = max(1, len(steps) // 2)
    while True:
        start = 0
        while start < len(steps) and time.monotonic() < deadline:
            fewer = steps[:start] + steps[start + size :]
            if fails(fewer):
                steps = fewer
            else:
                start += size
        if size == 1:
            return steps
        size = max(1, size // 2)


def _with_simpler_steps(
    steps: list[Step],
    fails: Callable[[Sequence[Step]], bool],
    simpler: Callable[[Step], Sequence[Step]],
    deadline: float,
) -> list[Step]:
    place = 0
    while place < len(steps) and time.monotonic() < deadline:
        for form in simpler(steps[place]):
            changed = [*steps[:place], form, *steps[place + 1 :]]
            if fails(changed):
                steps = changed
                break
        else:
            place += 1
    return steps
