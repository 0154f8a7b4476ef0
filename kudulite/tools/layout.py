"""The rowsets of a table drawn over its key space: what is clean and what lies over what.

    tablet 1 of 4: 3 rowsets, height 1.40
    ██████████████████████████████████████████████████▏  8.1 MiB    100,000 rows
    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                                 3.0 MiB     40,000 rows   2 redo
                        ██████████████████████████████   4.5 MiB     60,000 rows

The width of a rowset is its share of the tablet's bytes, as the compaction policy measures it, so
two bars over one another are work for two. A rowset with updates or deletes is drawn lighter, one
that is kept for the past only lightest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kudulite.catalog.table_store import TableStore
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.compaction_policy import average_height, key_positions
from kudulite.tablet.maintenance_policy import extents_of
from kudulite.tools.output import byte_text
from kudulite.tools.png import encode_png

_CLEAN, _CHANGED, _ENDED = "█", "▒", "░"
_COLOURS = {_CLEAN: (46, 125, 50), _CHANGED: (239, 108, 0), _ENDED: (189, 189, 189)}
_BAR_PIXELS, _GAP_PIXELS, _MARGIN_PIXELS = 8, 2, 10


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
        """The character that the bar is made of."""
        if self.is_ended:
            return _ENDED
        return _CHANGED if self.redo_file_count else _CLEAN


@dataclass(frozen=True)
class TabletLayout:
    """The rowsets of one tablet in the order of their keys; `height` counts those of the present.

    1 is clean.
    """

    tablet_id: str
    height: float
    rowsets: tuple[RowSetBar, ...]


def table_layout(store: TableStore) -> list[TabletLayout]:
    """Return the layout of the newest version's rowsets; logs in memory are not drawn."""
    return [
        tablet_layout(entry.id, store.tablet(entry).superblock.rowsets)
        for entry in store.newest().tablets
    ]


def tablet_layout(tablet_id: str, metas: Sequence[RowSetMeta]) -> TabletLayout:
    """Return where the rowsets of a tablet lie."""
    start, stop = key_positions(extents_of(metas))
    bars = [_bar(meta, *ends) for meta, *ends in zip(metas, start, stop, strict=True)]
    bars.sort(key=lambda bar: (bar.start, bar.stop))
    current = [meta for meta in metas if meta.delete_timestamp is None]
    return TabletLayout(tablet_id, average_height(extents_of(current)), tuple(bars))


def layout_text(layouts: Sequence[TabletLayout], width: int) -> Iterator[str]:
    """Yield the lines of a drawing whose bars are at most `width` characters wide."""
    for number, layout in enumerate(layouts, 1):
        count = len(layout.rowsets)
        yield (
            f"tablet {number} of {len(layouts)} ({layout.tablet_id}): {count}"
            f" {'rowset' if count == 1 else 'rowsets'}, height {layout.height:.2f}"
        )
        for bar in layout.rowsets:
            left = min(width - 1, int(bar.start * width))
            right = max(left + 1, round(bar.stop * width))
            drawn = " " * left + bar.fill * (right - left)
            yield f"{drawn:<{width}}  {_label(bar)}"


def layout_png(layouts: Sequence[TabletLayout], width: int = 1000) -> bytes:
    """Return a PNG of the same drawing: green is clean, orange has deltas, grey is of the past."""
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


def _label(bar: RowSetBar) -> str:
    notes = [
        f"{count} {kind}"
        for count, kind in ((bar.redo_file_count, "redo"), (bar.undo_file_count, "undo"))
        if count
    ]
    notes += ["ended"] if bar.is_ended else []
    text = f"{byte_text(bar.byte_count):>10}  {bar.row_count:>12,} rows  {', '.join(notes)}"
    return text.rstrip()
