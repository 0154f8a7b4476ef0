"""Assessment of a table's statistics: which figures are good, which to watch, which to act on.

    figure          good up to              act above
    rowset_height   3                       8
    redo_bytes      0.1 × bytes_on_disk     0.33 × bytes_on_disk
    …               RULES has them all

A rule compares a figure with a number, or with a multiple of another figure of the same table. A
figure that is small is good whatever that other figure is: a few kilobytes are worth nobody's time.

The table in docs/operations.md has the same rules, and a test compares the two.

**Threads**: any; all functions are pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kudulite.shown.progress import byte_text
from kudulite.upkeep.statistics import TableStatistics


class Level(enum.StrEnum):
    """How a figure is, from best to worst."""

    GOOD = "good"
    WATCH = "watch"
    ACT = "act"


@dataclass(frozen=True)
class Rule:
    """One figure: good up to `good_max`, to be acted on above `act_min`, or never.

    Both are multiples of the figure `unit`, if there is one. Up to `small` the figure is good.
    `command` is what helps, with the table's address in the place of {table}.
    """

    figure: str
    good_max: float
    act_min: float | None
    meaning: str
    command: str
    unit: str = ""
    small: int = 0

    def level(self, statistics: TableStatistics) -> Level:
        """Return how the figure is in the statistics of a table."""
        value = getattr(statistics, self.figure)
        unit = getattr(statistics, self.unit) if self.unit else 1
        if value <= max(self.small, self.good_max * unit):
            return Level.GOOD
        is_bad = self.act_min is not None and value > self.act_min * unit
        return Level.ACT if is_bad else Level.WATCH

    @property
    def good_text(self) -> str:
        """Up to where the figure is good, as text."""
        return self._text(self.good_max)

    @property
    def act_text(self) -> str:
        """Above what the figure is to be acted on, as text; empty if never."""
        return "" if self.act_min is None else self._text(self.act_min)

    def _text(self, limit: float) -> str:
        if self.unit:
            return f"{f'{limit:.2f}'.rstrip('0').rstrip('.')} × {self.unit}"
        return byte_text(int(limit)) if self.figure.endswith("_bytes") else f"{int(limit):,}"


@dataclass(frozen=True)
class Finding:
    """One figure of a table and how it is; `command` helps, and is empty if it is good."""

    figure: str
    level: Level
    meaning: str
    command: str


_MAINTAIN, _FLUSH = "kudulite maintain {table}", "kudulite flush {table}"
_RETENTION = "kudulite retention {table}"
_KEPT, _TOO_OLD = "the past that is kept", "older than the past that is kept"
_READ_FIRST = "a process that opens the table reads it first"
_THIRD, _MIB = 1 / 3, 1 << 20

RULES = (
    Rule("rowset_height", 3, 8, "a lookup searches as many rowsets", _MAINTAIN),
    Rule("redo_bytes", 0.1, _THIRD, "every scan applies them", _MAINTAIN, "bytes_on_disk", _MIB),
    Rule("rowset_count", 300, 3000, "many small commits", _MAINTAIN, "tablet_count"),
    Rule("superseded_bytes", 1, 4, "nobody collects garbage", _MAINTAIN, "bytes_on_disk", _MIB),
    Rule("unflushed_row_count", 100_000, 1_000_000, "no writer flushes", _FLUSH),
    Rule("log_bytes", 64 << 20, 256 << 20, _READ_FIRST, _FLUSH),
    Rule("undo_bytes", 0.5, None, _KEPT, _RETENTION, "bytes_on_disk", _MIB),
    Rule("dead_row_count", 1, None, _KEPT, _RETENTION, "live_row_count", 10_000),
    Rule("ancient_bytes", 0.1, _THIRD, _TOO_OLD, _MAINTAIN, "bytes_on_disk", _MIB),
)


def assess(statistics: TableStatistics, table: str) -> list[Finding]:
    """Return how each figure that has a rule is; `table` is the address for the commands."""
    found = []
    for rule in RULES:
        level = rule.level(statistics)
        command = "" if level == Level.GOOD else rule.command.format(table=table)
        found.append(Finding(rule.figure, level, rule.meaning, command))
    return found


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of some findings."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.GOOD)
