"""Commands that read: list, describe, partitions, layout, check, dump, watch, get, scan, changes,
history.

`layout` draws the rowsets of each tablet over the key space:

    tablet 1 of 4: 3 rowsets, height 1.40
    ██████████████████████████████████████████████████▏  8.1 MiB    100,000 rows
    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                                 3.0 MiB     40,000 rows   2 redo
                        ██████████████████████████████   4.5 MiB     60,000 rows

The width of a bar is the rowset's share of the tablet's bytes, as the compaction policy measures
it. Bars over one another are rowsets that a compaction would merge. A rowset with updates or
deletes is drawn lighter, and a rowset that only reads of the past need is the lightest.

With `--png` the drawing is an image of 8-bit colours, encoded with the standard library alone:

    file  := signature  chunk IHDR  chunk IDAT  chunk IEND
    chunk := length:u32be  type[4]  payload[length]  crc:u32be     (of type and payload)
    IHDR  := width:u32be height:u32be  8 bits, colour type 2 (RGB), deflate, no filter, no interlace
    IDAT  := zlib of rows, each with a leading filter byte 0

**Source**: W3C, "Portable Network Graphics (PNG) Specification", sections 5 and 11.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

import kudulite
from kudulite.errors import NotFoundError
from kudulite.model.hybrid_time import Timestamp
from kudulite.rowset.rowset import RowSetMeta
from kudulite.table.table_store import TableStore
from kudulite.tablet.compaction_policy import average_height, key_positions
from kudulite.tablet.maintenance_policy import extents_of
from kudulite.tools.dump import dump as dump_file
from kudulite.tools.dump import table_folder_of
from kudulite.tools.output import (
    AsJson,
    ColumnNames,
    Format,
    OutputFile,
    Progress,
    RowFormat,
    TablePath,
    byte_text,
    fields_text,
    is_table,
    json_text,
    key_of_text,
    names_of,
    open_store,
    print_fields,
    print_json,
    print_rows,
    write_rows,
)

_CLEAN, _CHANGED, _ENDED = "█", "▒", "░"
_COLOURS = {_CLEAN: (46, 125, 50), _CHANGED: (239, 108, 0), _ENDED: (189, 189, 189)}
_BAR_PIXELS, _GAP_PIXELS, _MARGIN_PIXELS = 8, 2, 10

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


KeyTexts = Annotated[list[str], typer.Argument(help="The primary key, column by column.")]
AtMoment = Annotated[str | None, typer.Option(help="A moment: ISO 8601 or a HybridTime.")]


def list_tables(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A directory of tables.")],
    as_json: AsJson = False,
) -> None:
    """List the tables of a directory."""
    if not Path(root).is_dir():
        raise typer.BadParameter(f"{root} is not a directory")
    if is_table(Path(root)):
        raise typer.BadParameter(
            f"{root} is a table, not a directory of tables; see `kudulite describe {root}`, or list"
            f" {Path(root).absolute().parent}"
        )
    client = kudulite.connect(root, background_maintenance=False)
    found = [_summary(client.table(name)) for name in client.list_tables()]
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*table.values()] for table in found], thousands=True)


def describe(path: TablePath, as_json: AsJson = False) -> None:
    """Show a table's columns, its partitions, and its statistics."""
    table = kudulite.open_table(path)
    columns = [
        {
            "name": column.name,
            "type": str(column.type),
            "key": index < table.schema.key_count,
            "nullable": column.nullable,
            "encoding": column.encoding,
            "compression": column.compression,
            "comment": column.comment,
        }
        for index, column in enumerate(table.schema.columns)
    ]
    partition, statistics = table.partition_schema, table.statistics
    described = partition.describe_all()
    hashed = described[: len(partition.hash_dimensions)]
    ranges = described[len(hashed) :]
    if as_json:
        parts = {"hash": hashed, "ranges": ranges}
        about = {"name": table.name, "path": str(table.path), "primary_key": table.schema.key_names}
        print_json({**about, "columns": columns, "partitions": parts, "statistics": statistics})
        return
    print(f"table {table.name} at {table.path}\n")
    print_rows(list(columns[0]), [[*column.values()] for column in columns])
    print(f"\npartitions  {'; '.join(described) or 'one tablet'}\n")
    print_fields({name: _statistic(name, value) for name, value in vars(statistics).items()})


def check(path: TablePath, as_json: AsJson = False) -> None:
    """Read a whole table and compare its files with its metadata; status 1 for problems."""
    table = kudulite.open_table(path)
    with Progress(f"checking {table.name}"):
        report = table.check()
    if as_json:
        print_json(report)
    else:
        print(
            f"version {report.version}: {report.row_count:,} rows, {report.rowset_count:,} rowsets,"
            f" {report.file_count:,} files, {byte_text(report.byte_count)}:"
            f" {len(report.problems) or 'no'} problems"
        )
        for problem in report.problems:
            print(f"  {problem}")
    if report.problems:
        raise typer.Exit(1)


def layout(
    path: TablePath,
    png: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the rowsets of each tablet over its key space."""
    found = table_layout(open_store(path))
    if png is not None:
        png.write_bytes(layout_png(found))
    if as_json:
        print_json(found)
    elif png is None:
        for line in layout_text(found, max(20, shutil.get_terminal_size().columns - 50)):
            print(line)


def _summary(table: kudulite.Table) -> dict[str, Any]:
    figures = table.statistics
    return {
        "name": table.name,
        "rows": figures.live_row_count,
        "tablets": figures.tablet_count,
        "bytes": figures.bytes_on_disk,
        "version": figures.version,
    }


def _statistic(name: str, value: float) -> str:
    if name.endswith("_mark"):
        return str(Timestamp(int(value))) if value else "none yet"
    if "bytes" in name:
        return byte_text(int(value))
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def watch(
    path: TablePath,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0)] = 2.0,
    count: Annotated[int | None, typer.Option(help="End after so many looks.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the statistics of a table again and again, until Ctrl-C.

    In a pipe every look is printed, with --json as one object per line.
    """
    table = kudulite.open_table(path)
    is_live = Console().is_terminal and not as_json
    numbers = itertools.count() if count is None else range(count)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        live = stack.enter_context(Live()) if is_live else None
        for number in numbers:
            if number:
                time.sleep(interval)
            figures = table.statistics
            now = datetime.datetime.now(datetime.UTC)
            if as_json:
                print_json({"now": now, "statistics": figures})
                continue
            fields = {name: _statistic(name, value) for name, value in vars(figures).items()}
            text = fields_text({"now": f"{now:%Y-%m-%dT%H:%M:%SZ}", **fields})
            if live is None:
                print(text, end="\n\n", flush=True)
            else:
                live.update(Text(text), refresh=True)


def partitions(path: TablePath, as_json: AsJson = False) -> None:
    """List a table's tablets: the partition of each, its rows, rowsets and bytes."""
    store = open_store(path)
    manifest = store.newest()
    found = [
        {
            "tablet": number,
            "id": entry.id,
            "place": manifest.partition.describe(entry.partition),
            "rows": entry.live_row_count,
            "rowsets": len(store.tablet(entry).superblock.rowsets),
            "bytes": entry.bytes_on_disk,
        }
        for number, entry in enumerate(manifest.tablets)
    ]
    if as_json:
        print_json(found)
        return
    print_rows(list(found[0]), [[*tablet.values()] for tablet in found], thousands=True)
    for dropped in manifest.dropped:
        alone = manifest.partition.of_range(dropped.range)
        print(f"dropped {alone.describe_range(0)} at {Timestamp(dropped.timestamp)}")


def dump(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A table, or a file inside it.")],
    limit: Annotated[int, typer.Option(help="The most rows to print.", min=0)] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the content of a table's files: versions, rowsets, base data, deltas, logs, locks."""
    place = Path(os.path.abspath(path))
    with Progress(f"reading {path}"):
        found = dump_file(open_store(str(table_folder_of(place))), place, limit)
    if as_json:
        print_json(found)
        return
    if found.about:
        print_fields({name: _short(value) for name, value in found.about.items()})
    if found.rows:
        names = list(dict.fromkeys(name for row in found.rows for name in row))
        print()
        print_rows(names, [[row.get(name, "") for name in names] for row in found.rows])


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def scan(
    path: TablePath,
    columns: ColumnNames = None,
    where: Annotated[
        str | None, typer.Option(help="A condition, as in \"city = 'Rome' AND load > 0.5\".")
    ] = None,
    at: AtMoment = None,
    limit: Annotated[int | None, typer.Option(help="The most rows to print.", min=0)] = None,
    ordered: Annotated[bool, typer.Option(help="In the order of the key.")] = False,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table that meet a condition, at a moment."""
    table = kudulite.open_table(path)
    condition: Any = () if where is None else where
    found = table.scan(names_of(columns), condition, at=at, limit=limit, ordered=ordered)
    with Progress(f"scanning {table.name}"):
        write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


def get(
    path: TablePath,
    key: KeyTexts,
    at: AtMoment = None,
    as_json: AsJson = False,
) -> None:
    """Print one row by its primary key; status 1 if there is none."""
    table = kudulite.open_table(path)
    found = table.get(key_of_text(table.schema.key_columns, key), at)
    if found is None:
        named = zip(table.schema.key_names, key, strict=True)
        raise NotFoundError(
            f"table {table.name!r} has no row with {', '.join(f'{n} = {v}' for n, v in named)}"
        )
    if as_json:
        print_json(found)
    else:
        print_fields(found)


def changes(
    path: TablePath,
    start: Annotated[str, typer.Argument(help="A moment: ISO 8601 or a HybridTime; not included.")],
    end: Annotated[str | None, typer.Argument(help="A moment, included; now by default.")] = None,
    columns: ColumnNames = None,
    before: Annotated[bool, typer.Option(help="Also the row before, as `_before`.")] = False,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what changed in a table between two moments, one row per key."""
    table = kudulite.open_table(path)
    images = "both" if before else "after"
    found = table.changes(start, end, columns=names_of(columns), images=images)
    with Progress(f"comparing two moments of {table.name}"):
        write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


def history(
    path: TablePath,
    key: KeyTexts,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every version of a row that is kept, the oldest first."""
    table = kudulite.open_table(path)
    found = table.history(key_of_text(table.schema.key_columns, key))
    write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


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

    `height` is the average number of present rowsets over a key; 1 is clean.
    """

    tablet_id: str
    height: float
    rowsets: tuple[RowSetBar, ...]


def table_layout(store: TableStore) -> list[TabletLayout]:
    """Return the layout of the newest version's rowsets; rows in memory are not drawn."""
    return [
        tablet_layout(entry.id, store.tablet(entry).superblock.rowsets)
        for entry in store.newest().tablets
    ]


def tablet_layout(tablet_id: str, metas: Sequence[RowSetMeta]) -> TabletLayout:
    """Return the positions of a tablet's rowsets."""
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
