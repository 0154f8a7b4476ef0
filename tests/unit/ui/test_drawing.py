"""Drawings of rowsets: rows of bars that do not overlap, axes, and escaped texts."""

import itertools
import re

import numpy as np
import pytest

from kudulite.ui.drawing import chart_svg, packed, tablet_svg
from kudulite.upkeep.layout import RowSetBar, TabletLayout


def bar(number: int, low: int, high: int, *, redo: int = 0, is_ended: bool = False) -> RowSetBar:
    """A rowset from one key to another, of 0 to 255."""
    ends = low / 256, (high + 1) / 256
    keys = f"{low:02x}", f"{high:02x}"
    return RowSetBar(f"r{number}", *ends, *keys, 10, 9, 2048, redo, 0, is_ended)


def texts(bars: list[RowSetBar]) -> dict[str, tuple[str, str]]:
    """The keys as they are."""
    return {each.id: (each.key_min, each.key_max) for each in bars}


@pytest.mark.parametrize("seed", range(5))
def test_bars_of_a_row_do_not_overlap_and_rows_are_as_few_as_can_be(seed):
    """Each bar stands once; the number of rows is the most bars over one key."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(0, 256, (40, 2)), axis=1)
    bars = [bar(number, int(low), int(high)) for number, (low, high) in enumerate(ends)]
    rows = packed(bars)
    assert sorted(each.id for row in rows for each in row) == sorted(each.id for each in bars)
    for row in rows:
        assert all(a.key_max < b.key_min for a, b in itertools.pairwise(row))
    over = [sum(low <= key <= high for low, high in ends) for key in range(256)]
    assert len(rows) == max(over)


def test_the_drawing_has_axes_sizes_and_kinds():
    """One rectangle for each rowset, in percent of the width."""
    bars = [bar(1, 0, 127), bar(2, 64, 255, redo=2), bar(3, 128, 255, is_ended=True)]
    svg = str(tablet_svg(TabletLayout("t", 1.5, tuple(bars)), texts(bars)))
    assert re.findall(r'<rect class="(\w+)"', svg) == ["clean", "ended", "changed"]
    assert svg.count(">2.0 KiB</text>") == 3
    for part in (
        "0 %",
        "50 %",
        "100 %",
        "first key 00",
        "last key ff",
        ">2</text>",
        "2 REDO files",
    ):
        assert part in svg
    edges = [
        (float(x), float(w)) for x, w in re.findall(r'x="([\d.]+)%" y="\d+" width="([\d.]+)%"', svg)
    ]
    assert len(edges) == 3 and all(6 <= x and x + w <= 99.1 for x, w in edges)


def test_keys_are_escaped():
    """A key is a text of a table."""
    bars = [bar(1, 0, 255)]
    svg = str(tablet_svg(TabletLayout("t", 1.0, tuple(bars)), {"r1": ("<script>", '"><b>')}))
    assert "<script>" not in svg and "<b>" not in svg and "&lt;script&gt;" in svg


def test_a_chart_of_no_one_and_many_points():
    """All places are inside of the drawing."""
    assert chart_svg([]) == ""
    for points in ([(0.0, 5.0)], [(0.0, 0.0), (1.0, 0.0)], [(0.0, -3.0), (2.0, 9.0), (5.0, 1.0)]):
        (found,) = re.findall(r'points="([^"]*)"', str(chart_svg(points)))
        places = [tuple(map(float, pair.split(","))) for pair in found.split()]
        assert len(places) >= 2
        assert all(0 <= x <= 400 and 0 <= y <= 90 for x, y in places)
