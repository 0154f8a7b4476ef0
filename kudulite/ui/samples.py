"""Samples: figures of tables over the time that their pages have been open, for the charts.

Each look at a page of figures is one sample; the page asks the browser to look again every few
seconds. Nothing is sampled while nobody looks, so the pages cost a writer nothing then.

**Threads**: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from kudulite.shown.progress import byte_text
from kudulite.upkeep.statistics import TableStatistics

SAMPLES_MAX = 720  # an hour of looks, one each five seconds
_TABLES_MAX = 100
_BREAK_SECONDS = 300  # a page that nobody has looked at for so long begins anew

FIGURES = {
    "live_row_count": "rows",
    "bytes_on_disk": "bytes on disk",
    "unflushed_row_count": "rows in memory",
    "log_bytes": "bytes of the log",
    "rowset_count": "rowsets",
    "rowset_height": "height of rowsets",
    "redo_bytes": "bytes of updates",
    "superseded_bytes": "bytes of superseded files",
}


@dataclass(frozen=True)
class Chart:
    """One figure over time: its name, points (seconds, value), and its ends as text."""

    name: str
    points: tuple[tuple[float, float], ...]
    low: str
    high: str
    now: str
    seconds: float


class Samples:
    """The samples of some tables; those that nobody has looked at for longest are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # protects the samples
        self._of: OrderedDict[str, deque[tuple[float, TableStatistics]]] = OrderedDict()

    def add(self, table_id: str, statistics: TableStatistics) -> list[Chart]:
        """Add a sample of a table and return its charts."""
        now = self._clock()
        with self._lock:
            found = self._of.setdefault(table_id, deque(maxlen=SAMPLES_MAX))
            if found and now - found[-1][0] > _BREAK_SECONDS:
                found.clear()
            found.append((now, statistics))
            self._of.move_to_end(table_id)
            if len(self._of) > _TABLES_MAX:
                self._of.popitem(last=False)
            samples = list(found)
        return [_chart(name, title, samples) for name, title in FIGURES.items()]


def _chart(name: str, title: str, samples: list[tuple[float, TableStatistics]]) -> Chart:
    begin = samples[0][0]
    points = tuple((moment - begin, float(getattr(each, name))) for moment, each in samples)
    values = [value for _, value in points]
    low, high, now = (_text(name, value) for value in (min(0.0, *values), max(values), values[-1]))
    return Chart(title, points, low, high, now, points[-1][0])


def _text(name: str, value: float) -> str:
    if "bytes" in name:
        return byte_text(int(value))
    return f"{value:,.2f}" if name == "rowset_height" else f"{int(value):,}"
