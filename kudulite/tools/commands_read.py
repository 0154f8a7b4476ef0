"""Commands that print rows: scan, changes, history."""

from __future__ import annotations

from typing import Annotated

import typer

import kudulite
from kudulite.tools.arguments import AsJson, ColumnNames, Format, OutputFile, TablePath, names_of
from kudulite.tools.output import Progress
from kudulite.tools.rows import RowFormat, key_of_text, write_rows


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
    found = table.scan(columns=names_of(columns), at=at, limit=limit, ordered=ordered)
    with Progress(f"scanning {table.name}"):
        write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)


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
    key: Annotated[list[str], typer.Argument(help="The primary key, column by column.")],
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every version of one row that is still kept, the oldest first."""
    table = kudulite.open_table(path)
    found = table.history(key_of_text(table.schema.key_columns, key))
    write_rows(found.to_reader(), RowFormat.JSON if as_json else row_format, output)
