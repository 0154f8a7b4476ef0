"""The list of the commands of `kudulite`, and how they end.

A table is named by its folder, or by its address on an object store. `--json` prints one JSON value
instead of text. A command ends with status 1 after an error of the library, whose message it writes
to standard error, and after problems found by `check` or `doctor`. Wrong usage of the command line
ends it with status 2.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import kudulite
from kudulite.errors import KuduliteError
from kudulite.tools import (
    commands_look,
    commands_measure,
    commands_sql,
    commands_table,
    commands_upkeep,
    commands_write,
)
from kudulite.tools.addresses import takes_storage_options

app = typer.Typer(
    help="Inspect kudulite tables, write to them, maintain them, and back them up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(is_asked: bool) -> None:
    """Print the version and end, before a command is looked for."""
    if is_asked:
        print(f"kudulite {kudulite.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


PANELS = {
    "Tables": (
        commands_look.list_tables,
        commands_look.describe,
        commands_look.partitions,
        commands_look.layout,
        commands_measure.schema,
        commands_table.create,
        commands_table.alter,
        commands_table.rename,
        commands_table.drop,
        commands_table.recall,
    ),
    "Rows": (
        commands_look.get,
        commands_measure.locate,
        commands_look.scan,
        commands_sql.sql,
        commands_look.changes,
        commands_look.history,
        commands_write.load,
        commands_write.upsert,
        commands_write.delete,
    ),
    "The past": (
        commands_table.tag,
        commands_table.untag,
        commands_table.tags,
        commands_table.versions,
        commands_table.retention,
    ),
    "Maintenance": (
        commands_look.watch,
        commands_look.metrics,
        commands_measure.sizes,
        commands_measure.perf,
        commands_upkeep.flush,
        commands_upkeep.compact,
        commands_upkeep.maintain,
        commands_look.check,
        commands_look.dump,
        commands_upkeep.doctor,
        commands_write.loadgen,
    ),
    "Backups and copies": (
        commands_upkeep.backup,
        commands_upkeep.backups,
        commands_upkeep.restore,
        commands_upkeep.copy,
    ),
}
for panel, commands in PANELS.items():
    for command in commands:
        name = "list" if command is commands_look.list_tables else command.__name__
        app.command(name, rich_help_panel=panel)(takes_storage_options(command))


def run() -> int:
    """Run the command of this process, and return its exit status."""
    try:
        app()
    except KuduliteError as error:
        print(f"kudulite: {error}", file=sys.stderr)
        return 1
    return 0
