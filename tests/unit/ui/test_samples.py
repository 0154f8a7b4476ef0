"""Samples: one for each look, of a bounded number of looks and tables."""

from dataclasses import fields
from types import SimpleNamespace

from kudulite.model.hybrid_time import Timestamp
from kudulite.ui.samples import FIGURES, SAMPLES_MAX, Samples
from kudulite.upkeep.statistics import TableStatistics


def statistics(rows: int) -> TableStatistics:
    """Figures of a table with so many rows."""
    values = {
        each.name: Timestamp(0) if each.type is Timestamp else 0 for each in fields(TableStatistics)
    }
    return TableStatistics(**values | {"live_row_count": rows})


def test_a_chart_has_a_point_for_each_look():
    """Its ends are texts, and a break begins it anew."""
    clock = SimpleNamespace(now=100.0)
    samples = Samples(lambda: clock.now)
    samples.add("t", statistics(10))
    clock.now = 105.0
    charts = samples.add("t", statistics(1030))
    assert [chart.name for chart in charts] == [*FIGURES.values()]
    assert charts[0].points == ((0.0, 10.0), (5.0, 1030.0))
    assert (charts[0].low, charts[0].high, charts[0].now) == ("0", "1,030", "1,030")
    clock.now = 1000.0
    assert len(samples.add("t", statistics(1))[0].points) == 1


def test_looks_and_tables_are_bounded():
    """The oldest are forgotten."""
    clock = SimpleNamespace(now=0.0)
    samples = Samples(lambda: clock.now)
    for _ in range(SAMPLES_MAX + 10):
        clock.now += 1
        charts = samples.add("t", statistics(1))
    assert len(charts[0].points) == SAMPLES_MAX
    for number in range(200):
        samples.add(str(number), statistics(1))
    assert len(samples.add("t", statistics(1))[0].points) == 1
