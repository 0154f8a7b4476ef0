"""Assessment: each figure is good, to be watched or to be acted on, as the documents say."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from kudulite.model.hybrid_time import Timestamp
from kudulite.upkeep.assessment import RULES, Level, Rule, assess, worst
from kudulite.upkeep.statistics import TableStatistics

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
GIB = 1 << 30
BASIS = {"bytes_on_disk": GIB, "live_row_count": 1_000_000, "tablet_count": 4}


def statistics(**figures: float) -> TableStatistics:
    """The statistics of a table of 1 GiB that needs nothing, with some figures changed."""
    zero = {
        f.name: Timestamp(0) if "Timestamp" in str(f.type) else 0 for f in fields(TableStatistics)
    }
    return replace(TableStatistics(**zero), **(BASIS | figures))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.figure)
def test_a_figure_changes_its_level_just_above_each_limit(rule: Rule):
    """Up to the first limit it is good, up to the second to be watched."""
    unit = BASIS[rule.unit] if rule.unit else 1

    def level(value: float) -> Level:
        (found,) = [f for f in assess(statistics(**{rule.figure: value}), "t") if
                    f.figure == rule.figure]  # fmt: skip
        assert (found.command == "") == (found.level == Level.GOOD)
        return found.level

    step = 0.1 if rule.figure == "rowset_height" else 1
    assert level(0) == level(int(rule.good_max * unit)) == Level.GOOD
    assert level(int(rule.good_max * unit) + step) == Level.WATCH
    if rule.act_min is None:
        assert level(1e6 * unit) == Level.WATCH
    else:
        assert level(int(rule.act_min * unit)) == Level.WATCH
        assert level(int(rule.act_min * unit) + step) == Level.ACT


def test_a_small_table_needs_nothing_for_the_ratios_of_its_bytes():
    """A few kilobytes of deltas are worth nobody's time; more than a mebibyte may be."""
    small = statistics(bytes_on_disk=1000, redo_bytes=900, undo_bytes=900, superseded_bytes=9000)
    assert worst(assess(small, "t")) == Level.GOOD
    assert worst(assess(statistics(bytes_on_disk=1000, redo_bytes=2 << 20), "t")) == Level.ACT
    assert worst(assess(statistics(rowset_height=4.0), "t")) == Level.WATCH


def test_the_command_names_the_table():
    """So that it can be typed as it stands."""
    findings = assess(statistics(rowset_height=9.0, log_bytes=GIB), "s3://b/wh/t")
    assert [f.command for f in findings if f.command] == [
        "kudulite maintain s3://b/wh/t", "kudulite flush s3://b/wh/t",
    ]  # fmt: skip


def test_the_documents_have_the_rules():
    """One row for each, in their order."""
    expected = [
        f"| `{rule.figure}` | {rule.good_text} | {rule.act_text} | {rule.meaning} |"
        f" `{rule.command.format(table='TABLE')}` |"
        for rule in RULES
    ]
    lines = OPERATIONS.read_text().splitlines()
    start = lines.index(expected[0])
    assert lines[start : start + len(expected)] == expected
    assert not lines[start + len(expected)].startswith("|")
