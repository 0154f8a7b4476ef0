"""Commands that look at a table, and those that print rows.

    describe  partitions  layout  dump  watch      get  scan  changes  history

None of them changes a row.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

import kudulite
from kudulite.errors import NotFoundError, OptionError
from kudulite.model.hybrid_time import Timestamp
from kudulite.shown.progress import Progress, byte_text
from kudulite.table.present import read_tablets
from kudulite.tools.addresses import address_of, environment_of, open_store, open_table
from kudulite.tools.dump import dump as dump_file
from kudulite.tools.dump import found_file
from kudulite.tools.output import (
    AsJson,
    ColumnNames,
    Format,
    OutputFile,
    RowFormat,
    TablePath,
    fields_text,
    json_text,
    key_of_text,
    names_of,
    print_fields,
    print_json,
    print_rows,
    write_rows,
)
from kudulite.upkeep.assessment import Finding, Level, assess
from kudulite.upkeep.layout import layout_text

KeyTexts = Annotated[list[str], typer.Argument(help="The primary key, column by column.")]
AtMoment = Annotated[str | None, typer.Option(help="A moment: ISO 8601 or a HybridTime.")]


def describe(path: TablePath, as_json: AsJson = False) -> None:
    """Show a table's columns, its partitions, and its statistics."""
    table = open_table(path)
    columns = [
        {
            "name": column.name,
            "type": str(column.type),
            "key": index < table.schema.key_count,
            "nullable": column.nullable,
            "mutable": column.mutable,
            "encoding": column.encoding,
            "compression": column.compression,
            "comment": column.comment,
        }
        for index, column in enumerate(table.schema.columns)
    ]
    partition, statistics = table.partition_schema, table.statistics
    findings = assess(statistics, path)
    described = partition.describe_all()
    hashed = described[: len(partition.hash_dimensions)]
    ranges = described[len(hashed) :]
    texts = {"owner": table.owner, "comment": table.comment}
    if as_json:
        parts = {"hash": hashed, "ranges": ranges}
        about = {"name": table.name, "path": str(table.path), "primary_key": table.schema.key_names}
        about |= texts
        shown = {"columns": columns, "partitions": parts, "statistics": statistics}
        print_json({**about, **shown, "upkeep": findings})
        return
    print(f"table {table.name} at {table.path}")
    for name, text in texts.items():
        if text:
            print(f"{name} {text}")
    print()
    print_rows(list(columns[0]), [[*column.values()] for column in columns])
    print(f"\npartitions  {'; '.join(described) or 'one tablet'}\n")
    _print_statistics(statistics, findings)


def _print_statistics(statistics: kudulite.TableStatistics, findings: list[Finding]) -> None:
    """Print all figures, how those are that have a rule, and what to type for those not good."""
    by_figure = {finding.figure: finding for finding in findings}
    rows, marked = [], set()
    for number, (name, value) in enumerate(vars(statistics).items()):
        found = by_figure.get(name)
        level, meaning, command = "", "", ""
        if found is not None:
            level = str(found.level)
        if found is not None and found.level != Level.GOOD:
            meaning, command = found.meaning, found.command
            marked |= {number} if found.level == Level.ACT else set()
        rows.append([name, _statistic(name, value), level, meaning, command])
    has_advice = any(row[-1] for row in rows)
    names = ["figure", "value", "state", *(["because", "type"] if has_advice else [])]
    print_rows(names, [row[: len(names)] for row in rows], marked=marked)


def layout(
    path: TablePath,
    png: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the rowsets of each tablet over its key space."""
    found = open_table(path).plot_layout()
    if png is not None:
        png.write_bytes(found.to_png())
    if as_json:
        print_json(list(found.tablets))
    elif png is None:
        for line in layout_text(found.tablets, max(20, shutil.get_terminal_size().columns - 50)):
            print(line)


def _statistic(name: str, value: float) -> str:
    if isinstance(value, Timestamp):
        return str(value) if value else "none yet"
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
    table = open_table(path)
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
    """List a table's tablets: the partition of each, its rows, rowsets and bytes.

    Unflushed rows, changed and deleted ones included, are in memory and in the log so far.
    """
    store = open_store(path)
    (manifest, _, _), tablets = read_tablets(store)
    found = [
        {
            "tablet": number,
            "id": entry.id,
            "place": manifest.partition.describe(entry.partition),
            "rows": tablet.live_row_count,
            "unflushed": tablet.memory_row_count,
            "rowsets": len(tablet.superblock.rowsets),
            "bytes": entry.bytes_on_disk,
        }
        for number, (entry, tablet) in enumerate(zip(manifest.tablets, tablets, strict=True))
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
    address = address_of(path)
    with Progress(f"reading {path}"):
        found = dump_file(*found_file(environment_of(address), address.path), limit)
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
    table = open_table(path)
    condition: Any = () if where is None else where
    found = table.scan(names_of(columns), condition, at=at, limit=limit, ordered=ordered)
    form = RowFormat.JSON if as_json else row_format
    write_rows(found.to_reader(), form, output, f"scan of table {table.name!r}")


def get(
    path: TablePath,
    key: KeyTexts,
    at: AtMoment = None,
    as_json: AsJson = False,
) -> None:
    """Print one row by its primary key; status 1 if there is none."""
    table = open_table(path)
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
    images: Annotated[str, typer.Option(help="after, or both: also the rows before.")] = "after",
    before: Annotated[bool, typer.Option("--before", hidden=True)] = False,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what changed in a table between two moments, one change of each key."""
    if before:
        raise OptionError("--before is --images both now: the row before is a row of its own")
    table = open_table(path)
    found = table.changes(start, end, columns=names_of(columns), images=images)
    form = RowFormat.JSON if as_json else row_format
    write_rows(found.to_reader(), form, output, f"changes of table {table.name!r}")


def history(
    path: TablePath,
    key: KeyTexts,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every version of a row that is kept, the oldest first."""
    table = open_table(path)
    found = table.history(key_of_text(table.schema.key_columns, key))
    form = RowFormat.JSON if as_json else row_format
    write_rows(found.to_reader(), form, output, f"history of a row of table {table.name!r}")
