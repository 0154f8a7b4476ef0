"""Commands that look at a directory or a table, and those that print rows.

    list  describe  partitions  layout  check  dump  watch      get  scan  changes  history

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
from kudulite.shown.openmetrics import Family, openmetrics
from kudulite.shown.progress import Progress, byte_text
from kudulite.storage.address import DIRECTORIES
from kudulite.table.present import read_tablets
from kudulite.tools.addresses import (
    address_of,
    check_is_directory,
    connect,
    environment_of,
    open_store,
    open_table,
)
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
    is_table,
    json_text,
    key_of_text,
    names_of,
    print_fields,
    print_json,
    print_rows,
    write_rows,
)
from kudulite.upkeep.layout import layout_text

KeyTexts = Annotated[list[str], typer.Argument(help="The primary key, column by column.")]
AtMoment = Annotated[str | None, typer.Option(help="A moment: ISO 8601 or a HybridTime.")]


def list_tables(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="A directory of tables, or s3://bucket/prefix.")
    ],
    soft_deleted: Annotated[
        bool, typer.Option("--soft-deleted", help="Those dropped with --reserve, with their ids.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the tables of a directory."""
    check_is_directory(root)
    address = address_of(root)
    if address.storage == DIRECTORIES and is_table(address.path):
        raise typer.BadParameter(
            f"{root} is a table, not a directory of tables; see `kudulite describe {root}`, or"
            f" list {address.path.parent}"
        )
    client = connect(root)
    if soft_deleted:
        listed = client.list_soft_deleted_tables()
        found = [{n: v for n, v in vars(table).items() if n != "path"} for table in listed]
    else:
        found = [_summary(client.table(name)) for name in client.list_tables()]
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*table.values()] for table in found], thousands=True)


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
    described = partition.describe_all()
    hashed = described[: len(partition.hash_dimensions)]
    ranges = described[len(hashed) :]
    texts = {"owner": table.owner, "comment": table.comment}
    if as_json:
        parts = {"hash": hashed, "ranges": ranges}
        about = {"name": table.name, "path": str(table.path), "primary_key": table.schema.key_names}
        about |= texts
        print_json({**about, "columns": columns, "partitions": parts, "statistics": statistics})
        return
    print(f"table {table.name} at {table.path}")
    for name, text in texts.items():
        if text:
            print(f"{name} {text}")
    print()
    print_rows(list(columns[0]), [[*column.values()] for column in columns])
    print(f"\npartitions  {'; '.join(described) or 'one tablet'}\n")
    print_fields({name: _statistic(name, value) for name, value in vars(statistics).items()})


def check(path: TablePath, as_json: AsJson = False) -> None:
    """Read a whole table and compare its files with its metadata; status 1 for problems."""
    table = open_table(path)
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
    found = open_table(path).plot_layout()
    if png is not None:
        png.write_bytes(found.to_png())
    if as_json:
        print_json(list(found.tablets))
    elif png is None:
        for line in layout_text(found.tablets, max(20, shutil.get_terminal_size().columns - 50)):
            print(line)


def _summary(table: kudulite.Table) -> dict[str, Any]:
    figures = table.statistics
    return {
        "name": table.name,
        "rows": figures.live_row_count,
        "tablets": figures.tablet_count,
        "bytes": figures.bytes_on_disk,
        "version": figures.version,
        "owner": table.owner,
        "comment": table.comment,
    }


def _statistic(name: str, value: float) -> str:
    if name.endswith("_mark"):
        return str(Timestamp(int(value))) if value else "none yet"
    if "bytes" in name:
        return byte_text(int(value))
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def metrics(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Folders of tables.")],
) -> None:
    """Print the statistics of tables as OpenMetrics text, as Prometheus reads it.

    Counters of a process are `table.metrics` in Python.
    """
    values: dict[str, list[tuple[dict[str, str], float]]] = {}
    for path in paths:
        table = open_table(path)
        labels = {"table": table.name, "path": str(table.path)}
        for name, value in vars(table.statistics).items():
            if isinstance(value, Timestamp):
                name, value = f"{name}_seconds", value.to_datetime().timestamp() if value else 0.0
            values.setdefault(name, []).append((labels, value))
    print(
        openmetrics(
            Family(f"table_{name}", "gauge", name.replace("_", " "), samples)
            for name, samples in values.items()
        ),
        end="",
    )


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
