"""Layout: the rowsets of each tablet drawn over its key space, as text, SVG or PNG.

    tablet 1 of 4: 3 rowsets, height 1.40
    ██████████████████████████████████████████████████▏  8.1 MiB    100,000 rows
    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                                 3.0 MiB     40,000 rows   2 redo
                        ██████████████████████████████   4.5 MiB     60,000 rows

The width of a bar is the rowset's share of the tablet's bytes, as the compaction policy measures
it. Bars over one another are rowsets that a compaction would merge. A rowset with updates or
deletes is drawn lighter, and a rowset that only reads of the past need is the lightest.

A PNG has 8-bit colours and is encoded with the standard library alone:

    file  := signature  chunk IHDR  chunk IDAT  chunk IEND
    chunk := length:u32be  type[4]  payload[length]  crc:u32be     (of type and payload)
    IHDR  := width:u32be height:u32be  8 bits, colour type 2 (RGB), deflate, no filter, no interlace
    IDAT  := zlib of rows, each with a leading filter byte 0

**Source**: W3C, "Portable Network Graphics (PNG) Specification", sections 5 and 11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.shown.progress import byte_text
from kudulite.tablet.compaction_policy import average_height, key_positions
from kudulite.tablet.maintenance_policy import extents_of

_CLEAN, _CHANGED, _ENDED = "█", "▒", "░"
_COLOURS = {_CLEAN: (46, 125, 50), _CHANGED: (239, 108, 0), _ENDED: (189, 189, 189)}
_BAR_PIXELS, _GAP_PIXELS, _MARGIN_PIXELS, _TEXT_PIXELS = 8, 2, 10, 18
_TEXT_WIDTH = 60

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class RowSetBar:
    """One rowset in key space, from `start` to `stop` between 0 and 1; keys are hexadecimal."""

    id: str
    start: float
    stop: float
    key_min: str
    key_max: str
    row_count: int
    live_row_count: int
    byte_count: int
    redo_file_count: int
    undo_file_count: int
    is_ended: bool

    @property
    def fill(self) -> str:
        """Return the character of the bar."""
        if self.is_ended:
            return _ENDED
        return _CHANGED if self.redo_file_count else _CLEAN


@dataclass(frozen=True)
class TabletLayout:
    """The rowsets of one tablet in the order of their keys.

    `height` is the average number of present rowsets over a key; 1 is clean. Rows in memory, which
    are in the log, are in no rowset yet and not drawn; `live_row_count` counts them, too.
    """

    tablet_id: str
    height: float
    rowsets: tuple[RowSetBar, ...]
    memory_row_count: int = 0
    live_row_count: int = 0


@dataclass(frozen=True, repr=False)
class TableLayout:
    """The rowsets of all tablets of a table at one version, drawn over the keys of each tablet.

    It prints as text. A notebook shows the picture; point at a bar for its keys, rows and bytes.
    """

    tablets: tuple[TabletLayout, ...]

    def __repr__(self) -> str:
        return "\n".join(layout_text(self.tablets, _TEXT_WIDTH))

    def _repr_html_(self) -> str:
        """Return the picture and what its colours mean, for notebooks."""
        means = ((_CLEAN, "base data only"), (_CHANGED, "with updates or deletes"))
        legend = " ".join(
            f"<span style='color:rgb{_COLOURS[fill]}'>&#9632;</span> {text}"
            for fill, text in (*means, (_ENDED, "only for the past"))
        )
        return f"<p>{legend}</p>{self.to_svg()}"

    def to_svg(self, width: int = 800) -> str:
        """Return the picture as SVG of so many pixels; rows in memory are not drawn."""
        return layout_svg(self.tablets, width)

    def to_png(self, width: int = 1000) -> bytes:
        """Return the picture as PNG of so many pixels, without text."""
        return layout_png(self.tablets, width)


def tablet_layout(
    tablet_id: str,
    metas: Sequence[RowSetMeta],
    memory_row_count: int = 0,
    live_row_count: int = 0,
) -> TabletLayout:
    """Return the positions of a tablet's rowsets, with the tablet's own counts of rows."""
    start, stop = key_positions(extents_of(metas))
    bars = [_bar(meta, *ends) for meta, *ends in zip(metas, start, stop, strict=True)]
    bars.sort(key=lambda bar: (bar.start, bar.stop))
    current = [meta for meta in metas if meta.delete_timestamp is None]
    height = average_height(extents_of(current))
    return TabletLayout(tablet_id, height, tuple(bars), memory_row_count, live_row_count)


def layout_text(layouts: Sequence[TabletLayout], width: int) -> Iterator[str]:
    """Yield the lines of a drawing whose bars are at most `width` characters wide."""
    for number, layout in enumerate(layouts, 1):
        yield _title(number, len(layouts), layout)
        for bar in layout.rowsets:
            left = min(width - 1, int(bar.start * width))
            right = max(left + 1, round(bar.stop * width))
            drawn = " " * left + bar.fill * (right - left)
            yield f"{drawn:<{width}}  {_label(bar)}"


def layout_svg(layouts: Sequence[TabletLayout], width: int) -> str:
    """Return the drawing as SVG with a line of text above each tablet."""
    step = _BAR_PIXELS + _GAP_PIXELS
    parts, top = [], 0
    for number, layout in enumerate(layouts, 1):
        top += _TEXT_PIXELS
        title = escape(_title(number, len(layouts), layout))
        parts.append(f'<text x="0" y="{top - 5}" font-size="12" fill="currentColor">{title}</text>')
        for bar in layout.rowsets:
            left = bar.start * width
            length = max(1.0, bar.stop * width - left)
            about = escape(f"keys {bar.key_min} to {bar.key_max}: {' '.join(_label(bar).split())}")
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_BAR_PIXELS}"'
                f' fill="rgb{_COLOURS[bar.fill]}"><title>{about}</title></rect>'
            )
            top += step
        top += _MARGIN_PIXELS
    size = f'width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def layout_png(layouts: Sequence[TabletLayout], width: int = 1000) -> bytes:
    """Return the drawing as PNG: green is clean, orange has deltas, grey is only for the past."""
    bars = [[*layout.rowsets] for layout in layouts]
    step = _BAR_PIXELS + _GAP_PIXELS
    height = sum(len(tablet) * step + _MARGIN_PIXELS for tablet in bars) + _MARGIN_PIXELS
    pixels = np.full((height, width + 2 * _MARGIN_PIXELS, 3), 255, dtype=np.uint8)
    top = _MARGIN_PIXELS
    for tablet in bars:
        for bar in tablet:
            left = _MARGIN_PIXELS + int(bar.start * (width - 1))
            right = max(left + 1, _MARGIN_PIXELS + round(bar.stop * width))
            pixels[top : top + _BAR_PIXELS, left:right] = _COLOURS[bar.fill]
            top += step
        top += _MARGIN_PIXELS
    return encode_png(pixels)


def _bar(meta: RowSetMeta, start: float, stop: float) -> RowSetBar:
    return RowSetBar(
        id=meta.id,
        start=float(start),
        stop=float(stop),
        key_min=meta.key_min.hex(),
        key_max=meta.key_max.hex(),
        row_count=meta.row_count,
        live_row_count=meta.live_row_count,
        byte_count=meta.bytes_on_disk,
        redo_file_count=len(meta.redo),
        undo_file_count=len(meta.undo),
        is_ended=meta.delete_timestamp is not None,
    )


def _title(number: int, tablet_count: int, layout: TabletLayout) -> str:
    count, waiting = len(layout.rowsets), layout.memory_row_count
    return (
        f"tablet {number} of {tablet_count} ({layout.tablet_id}): {count}"
        f" {'rowset' if count == 1 else 'rowsets'}, height {layout.height:.2f}"
        f"{f'; {waiting:,} rows in memory are not drawn' if waiting else ''}"
    )


def _label(bar: RowSetBar) -> str:
    notes = [
        f"{count} {kind}"
        for count, kind in ((bar.redo_file_count, "redo"), (bar.undo_file_count, "undo"))
        if count
    ]
    notes += ["ended"] if bar.is_ended else []
    text = f"{byte_text(bar.byte_count):>10}  {bar.row_count:>12,} rows  {', '.join(notes)}"
    return text.rstrip()


def encode_png(pixels: np.ndarray) -> bytes:
    """Return the file of an image, uint8[height, width, 3]: red, green, blue."""
    height, width, channels = pixels.shape
    assert channels == 3
    assert pixels.dtype == np.uint8
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    body = zlib.compress(rows.tobytes(), level=9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(kind + payload)
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", crc)
