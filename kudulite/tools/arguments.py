"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kudulite.tools.rows import RowFormat

TablePath = Annotated[str, typer.Argument(metavar="PATH", help="The table's folder.")]
BackupSetPath = Annotated[
    str, typer.Argument(metavar="SET", help="The directory of the table's backups.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names, separated by commas.")]
Format = Annotated[RowFormat, typer.Option("--format", help="json prints one object a line.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", help="A file instead of standard output.")
]


def names_of(text: str | None) -> list[str] | None:
    """Return the names in a text with commas."""
    return None if text is None else [name.strip() for name in text.split(",")]
