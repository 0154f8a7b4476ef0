"""The compaction policy: heights of known layouts, known picks, and an exhaustive search.

Layouts are written as in Kudu's own tests: "A-C" is a rowset from key A to key C.
"""

import itertools
import random

import pytest

from kudulite.tablet.compaction_policy import (
    QUALITY_MIN,
    RowSetExtent,
    average_height,
    choose_rowsets,
)

MEGABYTE = 1 << 20
FULL = 32 * MEGABYTE


def extents(layout: str, size: float = MEGABYTE, full: bool = True) -> list[RowSetExtent]:
    """Rowsets of equal size, their names their bounds and numbers; full at 32 MB unless `full`."""
    return [
        extent(f"{bounds}#{number}", bounds, size, full)
        for number, bounds in enumerate(layout.split())
    ]


def extent(name: str, bounds: str, size: float, full: bool = False) -> RowSetExtent:
    """One rowset of `size` bytes."""
    low, high = (end.encode() for end in bounds.split("-"))
    return RowSetExtent(name, low, high, int(size), 1.0 if full else size / FULL)


def numbered(count: int, step: int, length: int, size: int = MEGABYTE) -> list[RowSetExtent]:
    """Rowset i from i × step to i × step + length."""
    return [
        extent(f"{i}", f"{i * step:09d}-{i * step + length:09d}", size, full=True)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("layout", "height"),
    [
        ("", 0),
        ("A-A A-A", 0),
        ("A-B", 1),
        ("A-B B-C", 1),
        ("A-B C-D", 1),
        ("A-B A-B", 2),
        ("A-B A-B A-B", 3),
        ("A-C B-D", 1.5),
        ("A-C A-C B-B", 2),
        ("A-C B-D C-E", 5 / 3),
        ("A-C A-C B-D", 7 / 3),
        ("A-C A-C C-E C-E B-D", 2.6),
        ("A-C A-C C-E F-G F-G H-J B-D F-I D-D I-I", 2.3125),
    ],
)
def test_average_height_of_a_layout(layout, height):
    """Each byte of key space counts by how many rowsets lie over it."""
    assert average_height(extents(layout)) == pytest.approx(height, abs=1e-5)


def picked(found, layout):
    """The picks and their quality, against the expectation's precision."""
    assert found is not None
    return sorted(found.rowset_ids) == sorted(e.id for e in layout), found.quality


def test_rowsets_over_one_another_are_all_picked():
    """{C-c}, {B-a}, {A-b} overlap nearly whole: one merge makes three rowsets one."""
    layout = extents("C-c B-a A-b")
    is_all, quality = picked(choose_rowsets(layout, 1000 * MEGABYTE), layout)
    assert is_all and quality == pytest.approx(1.91, abs=0.005)


def test_a_ladder_is_picked_up_to_the_budget():
    """Of 100 rowsets, each half over the next, as many as the budget holds."""
    found = choose_rowsets(numbered(100, 10_000, 20_000), 64 * MEGABYTE)
    assert len(found.rowset_ids) == 64
    assert found.quality == pytest.approx(0.633, abs=0.001)
    numbers = sorted(int(name) for name in found.rowset_ids)
    assert numbers == list(range(numbers[0], numbers[0] + 64))


def test_small_overlaps_are_not_worth_it():
    """Neighbours that share a tenth of their keys stay as they are."""
    assert choose_rowsets(numbered(100, 10_000, 11_000), 64 * MEGABYTE) is None


def test_nothing_is_picked_from_nothing():
    """No rowset, and one rowset, full or empty."""
    assert choose_rowsets([]) is None
    assert choose_rowsets([extent("a", "A-B", FULL)]) is None
    assert choose_rowsets([extent("a", "A-B", 1)]) is None
    assert choose_rowsets([extent("a", "A-A", 1)]) is None


def test_nearly_full_neighbours_are_left_out():
    """A-B, A-B, B-C at 0.9 × 32 MB: the third would pay for its width; at 0.3 × it pays."""
    layout = extents("A-B A-B B-C", 0.9 * FULL, full=False)
    found = choose_rowsets(layout, 128 * MEGABYTE)
    assert sorted(found.rowset_ids) == ["A-B#0", "A-B#1"]
    assert found.quality == pytest.approx(0.666, abs=0.001)
    layout = extents("A-B A-B B-C", 0.3 * FULL, full=False)
    is_all, quality = picked(choose_rowsets(layout, 128 * MEGABYTE), layout)
    assert is_all and quality == pytest.approx(0.683, abs=0.001)


@pytest.mark.parametrize(
    ("divisor", "quality"), [(32, 0.01444), (16, 0.01388), (8, 0.01275), (4, 0.0105)]
)
def test_two_small_neighbours_are_picked(divisor, quality):
    """The smaller the better, without any overlap."""
    layout = extents("A-B B-C", FULL / divisor, full=False)
    is_all, found = picked(choose_rowsets(layout, 128 * MEGABYTE), layout)
    assert is_all and found == pytest.approx(quality, abs=1e-5)


@pytest.mark.parametrize("divisor", [2, 1])
def test_two_half_full_neighbours_are_not_picked(divisor):
    """From half a full rowset on, two of them are not worth a rewrite."""
    assert choose_rowsets(extents("A-B B-C", FULL / divisor, full=False), 128 * MEGABYTE) is None


def test_three_neighbours_that_fill_one_are_picked():
    """Three times a third."""
    layout = extents("A-B B-C C-D", FULL / 3, full=False)
    is_all, quality = picked(choose_rowsets(layout, 128 * MEGABYTE), layout)
    assert is_all and quality == pytest.approx(0.015, abs=1e-4)


def test_height_beats_size():
    """With room for either, two full rowsets over one another go before four small neighbours."""
    layout = extents("A-B A-B", FULL) + [
        extent(bounds, bounds, FULL / 4) for bounds in ("B-C", "C-D", "D-E", "E-F")
    ]
    found = choose_rowsets(layout, 64 * MEGABYTE)
    assert sorted(found.rowset_ids) == ["A-B#0", "A-B#1"]
    assert found.quality == pytest.approx(0.6647, abs=1e-4)


def test_a_rowset_heavier_than_the_budget_is_never_picked():
    """Whatever it lies over."""
    layout = [extent("big", "A-Z", 100 * MEGABYTE), *extents("A-Z A-Z")]
    found = choose_rowsets(layout, 64 * MEGABYTE)
    assert sorted(found.rowset_ids) == ["A-Z#0", "A-Z#1"]


def test_rowsets_that_are_left_out_still_count_as_layout():
    """A rowset that is left out keeps its place in key space: the others are as wide as before."""
    layout = [extent("big", "A-Z", 100 * MEGABYTE), *extents("A-B A-B Y-Z")]
    found = choose_rowsets(layout, 500 * MEGABYTE, without={"big"})
    assert sorted(found.rowset_ids) == ["A-B#0", "A-B#1"]
    assert found.quality < 0.1
    assert choose_rowsets(layout, 500 * MEGABYTE, without={e.id for e in layout}) is None


def test_keys_are_measured_behind_what_they_share():
    """Only the eight bytes after the common prefix of a rowset's bounds say where a key lies."""
    prefix = "p" * 40
    far = [extent("a", f"{prefix}A-{prefix}C", 1), extent("b", f"{prefix}B-{prefix}D", 1)]
    assert average_height(extents("A-C B-D", 1)) == pytest.approx(average_height(far))
    assert average_height([RowSetExtent("a", b"a", b"a\0", 5)] * 2) == 0.0


def test_quality_rises_with_the_budget():
    """More room never makes the best choice worse."""
    rng = random.Random(11)
    layout = random_layout(rng, 40)
    qualities = [
        0.0 if (found := choose_rowsets(layout, budget * MEGABYTE)) is None else found.quality
        for budget in (4, 8, 16, 32, 64, 128, 256, 512)
    ]
    # The search is content with less than 5 % below the best.
    assert all(low <= 1.05 * high for low, high in itertools.pairwise(qualities)), qualities


def random_layout(rng: random.Random, count: int) -> list[RowSetExtent]:
    """Rowsets of any bounds in 0 … 999 and any size."""
    layout = []
    for number in range(count):
        low, high = sorted((rng.randrange(1000), rng.randrange(1000)))
        size = rng.choice([1, MEGABYTE, rng.randrange(1, 40 * MEGABYTE)])
        layout.append(extent(str(number), f"{low:03d}-{high:03d}", size))
    return layout


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_within_five_percent_of_the_best_there_is(seed):
    """Against all subsets of up to nine rowsets, measured by the quality's definition."""
    rng = random.Random(seed)
    layout = random_layout(rng, rng.randrange(2, 10))
    budget = rng.choice([2, 8, 32, 128])
    best = 0.0
    for size in range(2, len(layout) + 1):
        for subset in itertools.combinations(layout, size):
            weight = sum(max(1, e.byte_count // MEGABYTE) for e in subset)
            if weight <= budget:
                best = max(best, quality_of(subset, layout))
    found = choose_rowsets(layout, budget * MEGABYTE)
    if found is None:
        assert best <= QUALITY_MIN * 1.06, (seed, best)
        return
    subset = [e for e in layout if e.id in found.rowset_ids]
    assert sum(max(1, e.byte_count // MEGABYTE) for e in subset) <= budget
    # It may be measured over a wider span than its own, which only makes it look worse.
    assert found.quality <= quality_of(subset, layout) + 1e-9
    assert found.quality >= best / 1.06, (seed, best, found)


def quality_of(subset, layout):
    """Σ value − span, with the penalty: spans and widths from the average height of pieces."""
    total = width_total(layout)
    starts, stops = [], []
    for one in subset:
        starts.append(width_below(layout, one.key_min) / total)
        stops.append(width_below(layout, one.key_max) / total)
    value = sum(b - a for a, b in zip(starts, stops, strict=True))
    value += sum(0.009 * max(0.0, 1 - one.fullness) for one in subset)
    gain = value - (max(stops) - min(starts))
    return gain - 0.003 * (max(stops) - min(starts)) if gain > 0 else gain


def width_total(layout):
    """The bytes of all rowsets that hold more than one key."""
    return sum(e.byte_count for e in layout if e.key_min < e.key_max) or 1


def width_below(layout, key):
    """The bytes that lie below a key, each rowset's spread evenly."""
    total = 0.0
    for e in layout:
        low, high, at = (text_number(k) for k in (e.key_min, e.key_max, key))
        if low < high:
            total += e.byte_count * ratio(e, min(max(at, low), high))
    return total


def ratio(e, at):
    """The share of a rowset's bytes below a key, from the bytes after the bounds' prefix."""
    low, high = e.key_min, e.key_max
    prefix = next(i for i in range(4) if low[i] != high[i])
    numbers = [
        int.from_bytes(key[prefix : prefix + 8].ljust(8, b"\0"), "big")
        for key in (low, f"{at:03d}".encode(), high)
    ]
    return (numbers[1] - numbers[0]) / (numbers[2] - numbers[0])


def text_number(key):
    """b"017" as 17."""
    return int(key)


def test_five_hundred_rowsets_are_chosen_from():
    """A tablet that nobody looked after for long; printed for who wonders how long it takes."""
    found = choose_rowsets(random_layout(random.Random(5), 500))
    assert found is not None and len(found.rowset_ids) > 10
