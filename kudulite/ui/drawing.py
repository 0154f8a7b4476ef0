"""Drawings of the pages as SVG: the rowsets of a tablet over its keys, and figures over time.

    3 |      ▒▒▒▒▒▒▒▒                      rowsets that do not overlap share a row, as Kudu packs
    2 |   ████████████████                 them, so the number of rows at a key is the number of
    1 | ███████████████████  ██████████    rowsets that a lookup of the key has to search
      +--------------------------------
      a           m                  z

The width of a bar is the rowset's share of the tablet's bytes, as the compaction policy measures
it. Positions are percentages, so that a drawing has any width and its text stays readable. Colours
are classes of the style sheet, for light and dark pages.

**Threads**: any; all functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from kudulite.shown.progress import byte_text
from kudulite.upkeep.layout import RowSetBar, TabletLayout

_BAR_PIXELS, _STEP_PIXELS, _AXIS_PIXELS, _TOP_PIXELS = 18, 22, 36, 8
# The plot between the axis of heights and the right edge, in percent of the width.
_LEFT, _WIDTH = 6.0, 93.0
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
# A bar with a size on it is at least this wide, in parts of the plot.
_LABELLED_WIDTH = 0.16
_KEY_CHARACTERS_MAX = 24
_CHART_WIDTH, _CHART_HEIGHT = 400, 90
LEGEND = (
    ("clean", "base data only"),
    ("changed", "with updates or deletes"),
    ("ended", "only for the past"),
)


def packed(bars: Sequence[RowSetBar]) -> list[list[RowSetBar]]:
    """Return the rows of a drawing, from the lowest: no two bars of a row overlap.

    Each bar is in the lowest row that has room, in the order of the keys.
    """
    rows: list[list[RowSetBar]] = []
    for bar in sorted(bars, key=lambda each: (each.key_min, each.key_max)):
        for row in rows:
            if row[-1].key_max < bar.key_min:
                row.append(bar)
                break
        else:
            rows.append([bar])
    return rows


def tablet_svg(layout: TabletLayout, key_texts: Mapping[str, tuple[str, str]]) -> Markup:
    """Return the drawing of a tablet's rowsets; `key_texts` has the ends of each by its id."""
    rows = packed(layout.rowsets)
    bottom = _TOP_PIXELS + len(rows) * _STEP_PIXELS
    parts = [_heights(len(rows), bottom), _keys(layout.rowsets, key_texts, bottom)]
    for number, row in enumerate(rows):
        top = bottom - (number + 1) * _STEP_PIXELS + (_STEP_PIXELS - _BAR_PIXELS) // 2
        parts += [_bar(bar, key_texts, top) for bar in row]
    about = f"{len(layout.rowsets)} rowsets in {len(rows)} rows over the keys of the tablet"
    return Markup(
        '<svg class="layout" width="100%" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(bottom + _AXIS_PIXELS, about, Markup("").join(parts))


def _heights(count: int, bottom: int) -> Markup:
    """Return the axis of heights: how many rowsets lie over one another."""
    step = max(1, -(-count // 8))
    lines = [
        Markup(
            '<line class="grid" x1="{}%" x2="99%" y1="{}" y2="{}"/>'
            '<text class="axis" x="{}%" y="{}" dx="-6" text-anchor="end">{}</text>'
        ).format(_LEFT, y, y, _LEFT, y + 4 + _STEP_PIXELS // 2, height)
        for height in range(1, count + 1)
        if height % step == 0 or height == 1
        for y in [bottom - height * _STEP_PIXELS]
    ]
    line = Markup('<line class="edge" x1="{0}%" x2="{0}%" y1="{1}" y2="{2}"/>')
    return Markup("").join([*lines, line.format(_LEFT, _TOP_PIXELS, bottom)])


def _keys(
    bars: Sequence[RowSetBar], key_texts: Mapping[str, tuple[str, str]], bottom: int
) -> Markup:
    """Return the axis of keys: shares of the tablet's bytes, and its first and last key."""
    line = Markup('<line class="edge" x1="{}%" x2="99%" y1="{}" y2="{}"/>')
    parts = [line.format(_LEFT, bottom, bottom)]
    tick = Markup(
        '<line class="edge" x1="{0}%" x2="{0}%" y1="{1}" y2="{2}"/>'
        '<text class="axis" x="{0}%" y="{3}" text-anchor="{4}">{5} %</text>'
    )
    anchors = {0.0: "start", 1.0: "end"}
    for part in _TICKS:
        anchor, x = anchors.get(part, "middle"), round(_LEFT + part * _WIDTH, 2)
        parts.append(tick.format(x, bottom, bottom + 4, bottom + 16, anchor, int(part * 100)))
    if bars:
        first = key_texts[min(bars, key=lambda bar: bar.key_min).id][0]
        last = key_texts[max(bars, key=lambda bar: bar.key_max).id][1]
        text = Markup('<text class="axis key" x="{}%" y="{}" text-anchor="{}">{}</text>')
        parts.append(text.format(_LEFT, bottom + 31, "start", f"first key {_short(first)}"))
        parts.append(text.format(99, bottom + 31, "end", f"last key {_short(last)}"))
    return Markup("").join(parts)


def _bar(bar: RowSetBar, key_texts: Mapping[str, tuple[str, str]], top: int) -> Markup:
    left, right = _LEFT + bar.start * _WIDTH, _LEFT + bar.stop * _WIDTH
    kind = "ended" if bar.is_ended else "changed" if bar.redo_file_count else "clean"
    first, last = key_texts[bar.id]
    about = (
        f"keys {_short(first)} to {_short(last)}\n{byte_text(bar.byte_count)},"
        f" {bar.row_count:,} rows, {bar.live_row_count:,} of them live\n"
        f"{bar.redo_file_count} REDO files, {bar.undo_file_count} UNDO files"
    )
    label = Markup("")
    if bar.stop - bar.start >= _LABELLED_WIDTH:
        text = Markup('<text class="size" x="{}%" y="{}" text-anchor="middle">{}</text>')
        middle = round((left + right) / 2, 2)
        label = text.format(middle, top + 13, byte_text(bar.byte_count))
    return Markup(
        '<g><title>{}</title><rect class="{}" x="{}%" y="{}" width="{}%" height="{}" rx="2"/>{}</g>'
    ).format(
        about, kind, round(left, 3), top, round(max(0.15, right - left), 3), _BAR_PIXELS, label
    )


def _short(text: str) -> str:
    return text if len(text) <= _KEY_CHARACTERS_MAX else f"{text[: _KEY_CHARACTERS_MAX - 1]}…"


def chart_svg(points: Sequence[tuple[float, float]]) -> Markup:
    """Return a line through points (seconds, value), from 0 or the lowest value to the highest.

    It has no text: the page has the ends of both axes beside it.
    """
    if not points:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    low, high = min(0.0, *(value for _, value in points)), max(value for _, value in points)
    across, up = (last - first) or 1.0, (high - low) or 1.0
    places = [
        (
            (moment - first) / across * _CHART_WIDTH,
            _CHART_HEIGHT - 3 - (value - low) / up * (_CHART_HEIGHT - 6),
        )
        for moment, value in points
    ]
    if len(places) == 1:
        places.append((_CHART_WIDTH, places[0][1]))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">'
        '<polyline points="{}" vector-effect="non-scaling-stroke"/></svg>'
    ).format(_CHART_WIDTH, _CHART_HEIGHT, line)


def share_svg(share: float) -> Markup:
    """Return a bar whose filled part is a share from 0 to 1."""
    return Markup(
        '<svg class="share" width="100%" height="8" aria-hidden="true"><rect class="track"'
        ' width="100%" height="8" rx="3"/><rect class="clean" width="{}%" height="8" rx="3"/></svg>'
    ).format(round(100 * share, 2))
