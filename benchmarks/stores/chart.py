"""Chart: a panel for each step with a bar for each store, as SVG for light and dark pages.

    title ──────────────────────    title ──────────────────────    title …
    store  ████▌ 1.4 s              store  █▍ 0.12 s
    store  ███████████ 3.3 s        store  –

Bars of a panel have one linear scale from 0; shorter is better. A step that a store does not have
is a dash. The background is transparent, and text follows the colour scheme of the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from stores.report import BASELINE, SHORT, seconds_of, time_text

# A second line of the same store would only make the panels longer.
LEFT_OUT = ("kudulite-1",)
COLUMNS = 3
PANEL_WIDTH, NAME_WIDTH, VALUE_WIDTH, GAP = 314, 118, 58, 16
LINE_HEIGHT, BAR_HEIGHT, TITLE_HEIGHT = 17, 9, 24
STYLE = """
text { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a }
.title { font-weight: 600; fill: #24292f }
.own { font-weight: 600; fill: #24292f }
.bar { fill: #afb8c1 }
.bar.own { fill: #1f6feb }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, text.own { fill: #f0f6fc }
  .bar { fill: #59636e }
  .bar.own { fill: #4493f8 }
}
"""


def write_chart(path: Path, results: dict[str, Any]) -> None:
    """Draw the times of all stores."""
    stores = {name: s for name, s in results["stores"].items() if name not in LEFT_OUT}
    panel_height = TITLE_HEIGHT + LINE_HEIGHT * len(stores) + GAP
    parts = []
    for number, (step, title) in enumerate(SHORT):
        left = number % COLUMNS * (PANEL_WIDTH + GAP)
        top = number // COLUMNS * panel_height
        parts += _panel(left, top, title, step, stores)
    width = COLUMNS * (PANEL_WIDTH + GAP) - GAP
    height = -(-len(SHORT) // COLUMNS) * panel_height + LINE_HEIGHT
    parts.append(_text(0, height - 6, _note(results), "note"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">'
    )
    title = "<title>Times of kudulite and of other stores</title>"
    path.write_text("\n".join([head, title, f"<style>{STYLE}</style>", *parts, "</svg>\n"]))


def _panel(left: int, top: int, title: str, step: str, stores: dict[str, Any]) -> list[str]:
    parts = [_text(left, top + 15, title, "title")]
    found = {name: seconds_of(store["steps"], step) for name, store in stores.items()}
    longest = max((seconds for seconds in found.values() if seconds), default=1.0)
    room = PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH
    for line, (name, seconds) in enumerate(found.items()):
        kind = "own" if name == BASELINE else "peer"
        bottom = top + TITLE_HEIGHT + line * LINE_HEIGHT + 12
        parts.append(_text(left, bottom, stores[name]["title"], kind))
        start, width = left + NAME_WIDTH, 0.0
        if seconds is not None:
            width = max(1.5, seconds / longest * room)
            parts.append(
                f'<rect class="bar {kind}" x="{start}" y="{bottom - BAR_HEIGHT}"'
                f' width="{width:.1f}" height="{BAR_HEIGHT}" rx="1.5"/>'
            )
        value = "–" if seconds is None else time_text(seconds)
        parts.append(_text(start + width + 6, bottom, value, kind))
    return parts


def _note(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"{results['rows']:,} rows × 10 columns, {machine['cores']} cores, {machine['memory_gb']}"
        " GB; reads after the writes, not compacted; shorter is better"
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(text)}</text>'
