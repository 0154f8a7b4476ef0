"""Commands that look at a table: list, describe, partitions, layout, check, dump."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

import kudulite
from kudulite.mvcc.hybrid_time import format_timestamp
from kudulite.tools.arguments import AsJson, TablePath
from kudulite.tools.dump import dump as dump_file
from kudulite.tools.dump import table_folder_of
from kudulite.tools.layout import layout_png, layout_text, table_layout
from kudulite.tools.output import (
    Progress,
    byte_text,
    json_text,
    print_fields,
    print_json,
    print_rows,
)
from kudulite.tools.table_access import open_store


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


def partitions(path: TablePath, as_json: AsJson = False) -> None:
    """List a table's tablets: the place of each, its rows, rowsets and bytes."""
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
        print(f"dropped {alone.describe_range(0)} at {format_timestamp(dropped.timestamp)}")


def dump(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A table, or a file inside it.")],
    limit: Annotated[int, typer.Option(help="So many rows at most.", min=0)] = 20,
    as_json: AsJson = False,
) -> None:
    """Show what is inside a table's files: versions, rowsets, base data, deltas, logs, locks."""
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
