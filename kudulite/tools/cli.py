"""The command line `kudulite`: which commands there are.

A table is named by its folder. `--json` prints one JSON value instead of text. An error of the
library ends a command with its message on standard error and status 1, as do problems that `check`
or `doctor` find; wrong usage of the command line ends it with status 2.
"""

from __future__ import annotations

import sys

import typer

from kudulite.errors import KuduliteError
from kudulite.tools import commands_look, commands_upkeep, commands_write

app = typer.Typer(
    help="Look into kudulite tables, write to them, look after them, and keep them twice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("list")(commands_look.list_tables)
for command in (
    commands_look.describe,
    commands_look.partitions,
    commands_look.layout,
    commands_look.scan,
    commands_look.changes,
    commands_look.history,
    commands_write.load,
    commands_write.upsert,
    commands_write.delete,
    commands_upkeep.flush,
    commands_upkeep.compact,
    commands_upkeep.maintain,
    commands_look.check,
    commands_look.dump,
    commands_upkeep.backup,
    commands_upkeep.backups,
    commands_upkeep.restore,
    commands_upkeep.copy,
    commands_upkeep.doctor,
    commands_write.loadgen,
):
    app.command()(command)


def run() -> int:
    """Run the command of this process; returns its exit status."""
    try:
        app()
    except KuduliteError as error:
        print(f"kudulite: {error}", file=sys.stderr)
        return 1
    return 0
