"""Rendering: the templates of the pages, and how values are written in them.

Every value is escaped by Jinja2, so a name, a cell or a message of a table is never markup. Only
drawing.py and `with_commands` make markup, and they escape the texts that they are given.

**Threads**: any.
"""

from __future__ import annotations

import datetime
import re
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from kudulite.model.hybrid_time import Timestamp
from kudulite.shown.progress import byte_text
from kudulite.ui.drawing import LEGEND, chart_svg, share_svg, tablet_svg
from kudulite.ui.row_view import CELL_CHARACTERS_MAX

_UNITS = ((7 * 86_400, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@cache
def templates() -> jinja2.Environment:
    """Return the templates, with autoescape for all of them; a name without a value is an error."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("kudulite.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "bytes": lambda count: byte_text(int(count)),
        "count": lambda count: f"{count:,}",
        "moment": moment_text,
        "exact": str,
        "ago": age_text,
        "cell": cell_text,
        "by_figure": lambda findings: {finding.figure: finding for finding in findings},
        "part": lambda name: quote(name, safe=""),
        "duration": duration_text,
        "figure": figure_text,
        "with_commands": with_commands,
    }
    found.globals |= {
        "tablet_svg": tablet_svg,
        "chart_svg": chart_svg,
        "share_svg": share_svg,
        "legend": LEGEND,
        "query_of": query_of,
        "is_error": lambda value: isinstance(value, Exception),
    }
    return found


def rendered(template: str, **values: Any) -> str:
    """Return the text of a page."""
    return templates().get_template(template).render(**values)


def style_sheet() -> str:
    """Return the style sheet of all pages."""
    environment = templates()
    assert environment.loader is not None
    return environment.loader.get_source(environment, "style.css")[0]


def query_of(**values: Any) -> str:
    """Return the query part of an address; a list is one parameter for each of its values.

    A value without text is left out, but not of a list: a key may be an empty text.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, list):
            pairs += [(name, str(each)) for each in value]
        elif value not in ("", None):
            pairs.append((name, str(value)))
    return f"?{urlencode(pairs)}" if pairs else ""


def moment_text(moment: Timestamp | None) -> str:
    """Return a HybridTime to the second."""
    return f"{moment.to_datetime():%Y-%m-%d %H:%M:%S} UTC" if moment else "never"


def age_text(moment: Timestamp | None) -> str:
    """Return how long ago a moment was, in its largest unit."""
    if not moment:
        return "never"
    now = datetime.datetime.now(datetime.UTC)
    return f"{duration_text(max(0.0, (now - moment.to_datetime()).total_seconds()))} ago"


def duration_text(seconds: float) -> str:
    """Return a time span in its largest unit."""
    size, unit = next((s, u) for s, u in _UNITS if seconds >= s or s == 1)
    count = int(seconds // size)
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def figure_text(value: Any, name: str) -> str:
    """Return a figure of the statistics by its name."""
    if isinstance(value, Timestamp):
        return moment_text(value)
    if "bytes" in name:
        return byte_text(int(value))
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def with_commands(text: str) -> Markup:
    """Return a text whose commands, between backticks, are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def cell_text(value: Any) -> str:
    """Return a cell as text, the end of a long one left out; bytes as hexadecimal digits."""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"
