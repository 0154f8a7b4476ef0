"""The commands of `kudulite`: arguments and results; what they do is done elsewhere.

A table is named by its folder. `--json` prints one JSON value instead of text. An error of the
library ends a command with its message on standard error and status 1, as does a table with
problems that `check` finds; wrong usage of the command line ends it with status 2.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import kudulite
from kudulite.catalog.maintenance import (
    MaintenanceResult,
    Report,
    compact_table,
    maintain_table,
)
from kudulite.catalog.sweep import GRACE_SECONDS, STAGING_GRACE_SECONDS
from kudulite.errors import KuduliteError
from kudulite.mvcc.hybrid_time import format_timestamp
from kudulite.tablet.maintenance_policy import Operation
from kudulite.tools.layout import layout_png, layout_text, table_layout
from kudulite.tools.output import (
    Progress,
    byte_text,
    print_fields,
    print_json,
    print_rows,
)
from kudulite.tools.rows import RowFormat, key_of_text, write_rows
from kudulite.tools.table_access import open_store

app = typer.Typer(
    help="Look into kudulite tables, and look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TablePath = Annotated[str, typer.Argument(metavar="PATH", help="The table's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Budget = Annotated[
    int | None, typer.Option(help="Rewrite files of no more than so many megabytes.", min=0)
]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names, separated by commas.")]
Format = Annotated[RowFormat, typer.Option("--format", help="json prints one object a line.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", help="A file instead of standard output.")
]

_WORDS = {
    "CollectHistory": "dropping history",
    "CompactColumns": "compacting columns",
    "CompactDeltas": "joining delta files",
    "CompactRowSets": "merging rowsets",
}


def run() -> int:
    """Run the command of this process; returns its exit status."""
    try:
        app()
    except KuduliteError as error:
        print(f"kudulite: {error}", file=sys.stderr)
        return 1
    return 0


@app.command("list")
def list_tables(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A directory of tables.")],
    as_json: AsJson = False,
) -> None:
    """List the tables of a directory."""
    if not Path(root).is_dir():
        raise typer.BadParameter(f"{root} is not a directory")
    client = kudulite.connect(root, background_maintenance=False)
    found = [_summary(client.table(name)) for name in client.list_tables()]
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*table.values()] for table in found], thousands=True)


@app.command()
def describe(path: TablePath, as_json: AsJson = False) -> None:
    """Show a table's columns, its partitions, and what it would be worth to maintain."""
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
    hashed = [f"hash({', '.join(d.columns)}) × {d.bucket_count}" for d in partition.hash_dimensions]
    ranges = [partition.describe_range(n) for n in range(len(partition.ranges))]
    ranges = ranges if partition.range_columns else []
    if as_json:
        parts = {"hash": hashed, "ranges": ranges}
        about = {"name": table.name, "path": str(table.path), "primary_key": table.schema.key_names}
        print_json({**about, "columns": columns, "partitions": parts, "statistics": statistics})
        return
    print(f"table {table.name} at {table.path}\n")
    print_rows(list(columns[0]), [[*column.values()] for column in columns])
    print(f"\npartitions  {'; '.join([*hashed, *ranges]) or 'one tablet'}\n")
    print_fields({name: _statistic(name, value) for name, value in vars(statistics).items()})


@app.command()
def scan(
    path: TablePath,
    columns: ColumnNames = None,
    at: Annotated[str | None, typer.Option(help="A moment: ISO 8601 or a HybridTime.")] = None,
    limit: Annotated[int | None, typer.Option(help="So many rows at most.", min=0)] = None,
    ordered: Annotated[bool, typer.Option(help="In the order of the key.")] = False,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table, at a moment."""
    table = kudulite.open_table(path)
    found = table.scan(columns=_names(columns), at=at, limit=limit, ordered=ordered)
    with Progress(f"scanning {table.name}"):
        write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


@app.command()
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
    found = table.changes(start, end, columns=_names(columns), images=images)
    with Progress(f"comparing two moments of {table.name}"):
        write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


@app.command()
def history(
    path: TablePath,
    key: Annotated[list[str], typer.Argument(help="The primary key, column by column.")],
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every version of one row that is still kept, the oldest first."""
    table = kudulite.open_table(path)
    found = table.history(key_of_text(table.schema.key_columns, key))
    write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


@app.command()
def flush(path: TablePath, as_json: AsJson = False) -> None:
    """Write to rowsets what the logs of a table hold."""
    table = kudulite.open_table(path)
    with Progress(f"flushing {table.name}"):
        count = table.flush()
    if as_json:
        print_json({"flushed_tablet_count": count})
    else:
        print(f"{count} of {table.tablet_count} tablets had something to flush")


@app.command()
def compact(path: TablePath, as_json: AsJson = False) -> None:
    """Bring a table to its best shape, whatever that rewrites."""
    store = open_store(path)
    with Progress(f"compacting {store.name}") as progress:
        result = compact_table(store, report=_reporter(store.name, progress))
    _print_maintenance(result, as_json)


@app.command()
def maintain(
    path: TablePath,
    grace_seconds: Annotated[
        float, typer.Option(help="Files superseded for longer are removed.", min=0)
    ] = GRACE_SECONDS,
    staging_grace_seconds: Annotated[
        float, typer.Option(help="Writes without progress for longer are given up.", min=0)
    ] = STAGING_GRACE_SECONDS,
    budget_megabytes: Budget = None,
    as_json: AsJson = False,
) -> None:
    """Flush, compact what is worth it, drop old history, and remove what nobody needs."""
    store = open_store(path)
    with Progress(f"maintaining {store.name}") as progress:
        result = maintain_table(
            store,
            grace_seconds=grace_seconds,
            staging_grace_seconds=staging_grace_seconds,
            budget_bytes=None if budget_megabytes is None else budget_megabytes << 20,
            report=_reporter(store.name, progress),
        )
    _print_maintenance(result, as_json)


@app.command()
def check(path: TablePath, as_json: AsJson = False) -> None:
    """Read a table whole and compare what its files say; status 1 where they do not agree."""
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


@app.command()
def layout(
    path: TablePath,
    png: Annotated[Path | None, typer.Option(help="Write a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the rowsets of each tablet over its key space: what lies over what."""
    found = table_layout(open_store(path))
    if png is not None:
        png.write_bytes(layout_png(found))
    if as_json:
        print_json(found)
    elif png is None:
        for line in layout_text(found, max(20, shutil.get_terminal_size().columns - 50)):
            print(line)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


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
        return format_timestamp(int(value)) if value else "none yet"
    if "bytes" in name:
        return byte_text(int(value))
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def _reporter(name: str, progress: Progress) -> Report:
    def report(tablet_id: str, operation: Operation) -> None:
        progress.say(f"{_WORDS[type(operation).__name__]} in tablet {tablet_id} of {name}")

    return report


def _print_maintenance(result: MaintenanceResult, as_json: bool) -> None:
    if as_json:
        print_json({**vars(result), "operations": [*_performed(result)]})
        return
    counts = Counter(type(done.operation).__name__ for done in result.operations)
    print(f"flushed {result.flushed_tablet_count} tablets")
    for kind, count in sorted(counts.items()):
        print(f"{_WORDS[kind]}: {count} times")
    print(f"{byte_text(result.bytes_written)} written by {len(result.operations)} operations")
    if result.busy_tablet_ids:
        print(f"{len(result.busy_tablet_ids)} tablets were left to another maintainer")
    swept = result.swept
    print(
        f"removed {swept.file_count} files ({byte_text(swept.byte_count)}),"
        f" {swept.version_count} versions, {swept.staging_folder_count} abandoned writes"
    )


def _performed(result: MaintenanceResult) -> Iterable[dict[str, Any]]:
    for done in result.operations:
        kind = type(done.operation).__name__
        yield {
            "tablet_id": done.tablet_id,
            "kind": kind,
            **vars(done.operation),
            **vars(done.result),
        }
