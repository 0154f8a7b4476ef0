"""Two tiers of tests: the quick one, which `pytest` runs, and the full one, `pytest -m full`.

A test is in one of them. A machine that takes many seeds or cases runs two of them in the quick
tier, unless it says how many or which ones, and the others in the full tier. Property tests of
hypothesis, and tests with the marker `both`, are in both tiers and do less in the quick one.

With --half=0 or 1, a run has one of two halves of its tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Any

import hypothesis
import pytest

QUICK_COUNT = 2


def tiered(
    names: str | tuple[str, ...],
    values: Iterable[Any],
    quick: int | Collection[Any] = QUICK_COUNT,
    **options: Any,
) -> pytest.MarkDecorator:
    """Parametrize a test; `quick` is how many of the values, or which, are for the quick tier."""
    listed = list(values)
    chosen = listed[:quick] if isinstance(quick, int) else list(quick)
    assert all(value in listed for value in chosen), f"not among the values: {chosen}"
    cases = [
        pytest.param(
            *((value,) if isinstance(names, str) else value),
            marks=() if value in chosen else pytest.mark.full,
        )
        for value in listed
    ]
    return pytest.mark.parametrize(names, cases, **options)


def half_of(nodeid: str) -> int:
    """Return the half, 0 or 1, that a test is always in."""
    return zlib.crc32(nodeid.encode()) & 1


def by_tier(quick: int, full: int) -> int:
    """The number for the tier of this run (conftest.py chooses its profile)."""
    settings = hypothesis.settings
    is_full = settings.default.max_examples == settings.get_profile("full").max_examples
    return full if is_full else quick


def examples(whole_count: int) -> int:
    """How many of so many examples a property test draws in this run (see conftest.py)."""
    return max(1, whole_count * hypothesis.settings.default.max_examples // 100)
